//! Header fields, read back by a strict parser of structured fields (RFC 9651), and the bodies of denials.

#![cfg(feature = "http")]
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

use http::{HeaderMap, StatusCode};
use proptest::prelude::*;
use sfv::{List, ListEntry, Parser};
use tidegate::http::{HeaderStyle, Heard, LegacyReset, Reduced, grpc_refusal, problem, refusal};
use tidegate::{
    Attributes, Check, Clock, Cost, Limiter, Memory, Outcome, Policy, Retry, Secret, Span,
    Timestamp, Verdict,
};
use tonic_types::StatusExt;

/// 2027-01-15T08:00:00Z, the beginning of an hour.
const NOW: Timestamp = Timestamp::from_nanos(1_800_000_000_000_000_000);

fn limiter(rules: &str) -> (Limiter, Clock) {
    let policy = Policy::parse(format!("version: 1\nrules:\n{rules}")).unwrap();
    let clock = Clock::manual(NOW);
    let limiter =
        Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock.clone());
    (limiter.unwrap(), clock)
}

fn check(limiter: &Limiter, cost: u64) -> Verdict {
    let request = Attributes::new();
    limiter.check_now(&Check::new(&request).cost(cost)).unwrap()
}

fn headers(style: HeaderStyle, verdict: &Verdict) -> HeaderMap {
    let mut headers = HeaderMap::new();
    style.write(verdict, &mut headers);
    headers
}

fn all_lines(headers: &HeaderMap) -> Vec<String> {
    headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
}

#[test]
fn an_allowed_and_a_denied_request_have_these_fields() {
    let (limiter, _) = limiter(
        "  - { name: burst, key: [], limits: [{ rate: 100/10s, algorithm: fixed_window }] }\n  - { name: daily, key: [], limits: [{ rate: 10000/day, algorithm: sliding_weighted }, { rate: 90000/calendar-month }] }",
    );
    // It is 08:00. The 43 of today weigh less than one when 42/43 of tomorrow have passed: 57,600 s to midnight, and 84,391 s
    // after it.
    let allowed = headers(HeaderStyle::default(), &check(&limiter, 43));
    assert_eq!(
        all_lines(&allowed),
        [
            "ratelimit-policy: \"burst\";q=100;w=10, \"daily/day\";q=10000;w=86400, \"daily/calendar-month\";q=90000",
            "ratelimit: \"burst\";r=57;t=10, \"daily/day\";r=9957;t=141991, \"daily/calendar-month\";r=89957;t=1440000",
        ]
    );
    let refused = headers(HeaderStyle::default(), &check(&limiter, 58));
    assert_eq!(refused["retry-after"], "10");
    assert!(refused["ratelimit"].to_str().unwrap().starts_with("\"burst\";r=57;t=10, "));
}

#[test]
fn short_and_odd_periods_are_written_in_whole_seconds() {
    for (rate, policy) in [
        ("1/500ms", "\"a\";q=2;w=1"),
        ("3/1500ms", "\"a\";q=4;w=2"),
        ("7/ms", "\"a\";q=7000;w=1"),
        ("5/2s", "\"a\";q=5;w=2"),
    ] {
        let (limiter, _) = limiter(&format!("  - {{ name: a, key: [], limits: [{rate}] }}"));
        let headers = headers(HeaderStyle::default(), &check(&limiter, 1));
        assert_eq!(headers["ratelimit-policy"], policy, "{rate}");
    }
}

/// The policy item of a rule is cached with its limit. A caller may pass the same limit under another name, and must not get
/// the cached item.
#[tokio::test]
async fn a_limit_is_shown_under_the_name_by_which_it_was_taken() {
    let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [5/min] }] }");
    let policy = policy.unwrap();
    let limit = policy.rules()[0].allowance().limits()[0].clone();
    let limiter = Limiter::in_memory(policy).unwrap();
    for _ in 0..2 {
        let taken = limiter.take("job", &limit, Cost::ONE, Span::ZERO).await.unwrap();
        let fields = headers(HeaderStyle::default(), &taken);
        assert_eq!(fields["ratelimit-policy"], "\"\";q=5;w=60");
        let fields = headers(HeaderStyle::default(), &check(&limiter, 1));
        assert_eq!(fields["ratelimit-policy"], "\"a\";q=5;w=60");
    }
}

#[test]
fn legacy_fields_and_the_tightest_limit_only_are_optional() {
    let rules = "  - { name: a, key: [], limits: [{ rate: 5/min, algorithm: fixed_window }, { rate: 1000/h, algorithm: fixed_window }] }";
    let (limiter, _) = limiter(rules);
    let verdict = check(&limiter, 2);
    for (legacy, reset) in [(LegacyReset::Delta, "60"), (LegacyReset::Epoch, "1800000060")] {
        let style = HeaderStyle { fields: false, legacy: Some(legacy), ..HeaderStyle::default() };
        let lines = all_lines(&headers(style, &verdict));
        let expected = [
            "x-ratelimit-limit: 5".to_owned(),
            "x-ratelimit-remaining: 3".to_owned(),
            format!("x-ratelimit-reset: {reset}"),
        ];
        assert_eq!(lines, expected);
    }
    let style = HeaderStyle { reduced: Reduced::ToTightest, ..HeaderStyle::default() };
    assert_eq!(headers(style, &verdict)["ratelimit"], "\"a/min\";r=3;t=60");
}

#[test]
fn limits_that_never_deny_are_not_shown() {
    let (limiter, _) = limiter(
        "  - { name: a, key: [], limits: [1/h], shadow: true }\n  - { name: b, key: [], limits: [1/h], on_limit: { flag: x } }",
    );
    let verdicts = [check(&limiter, 1), check(&limiter, 1)];
    for verdict in &verdicts {
        assert_eq!(all_lines(&headers(HeaderStyle::default(), verdict)), [""; 0]);
    }
    assert!(verdicts[1].shadow_deny && verdicts[1].flags().eq(["x"]));
}

#[test]
fn a_list_that_already_has_items_is_extended() {
    let (limiter, _) = limiter("  - { name: a, key: [], limits: [5/s] }");
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", "\"theirs\";r=1;t=1".parse().unwrap());
    HeaderStyle::default().write(&check(&limiter, 1), &mut headers);
    let heard = Heard::of(StatusCode::OK, &headers, NOW);
    let names: Vec<&str> = heard.budgets.iter().map(|budget| budget.name.as_str()).collect();
    assert_eq!(names, ["theirs", "a"]);
}

#[test]
fn a_denial_is_a_problem_that_says_what_to_do() {
    let (limiter, _) =
        limiter("  - { name: all, key: [], limits: [{ rate: 2/min, algorithm: fixed_window }] }");
    check(&limiter, 2);
    let response = refusal(&check(&limiter, 1), &HeaderStyle::default());
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let body: serde_json::Value = serde_json::from_str(response.body()).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded", "status": 429,
            "detail": "all allows 2 per minute; try again in 60 s.",
            "violated-policies": ["all"],
        })
    );
    // A cost that can never pass must not be retried.
    let never = check(&limiter, 3);
    assert_eq!(never.outcome, Outcome::Deny(Retry::Never));
    let response = refusal(&never, &HeaderStyle::default());
    assert!(!response.headers().contains_key("retry-after"));
    assert!(problem(&never).contains("cost-exceeds-capacity"));
    assert!(problem(&never).contains("all allows 2 per minute; the cost of this request exceeds"));
}

/// The details are decoded by the types of the gRPC project.
#[test]
fn a_grpc_denial_is_decoded_by_grpc_libraries() {
    let (limiter, _) = limiter(
        "  - { name: all, key: [], limits: [{ rate: 1/1500ms, algorithm: fixed_window }] }",
    );
    check(&limiter, 1);
    let refused = check(&limiter, 1);
    let response = grpc_refusal(&refused);
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1500");
    let status = tonic::Status::from_header_map(response.headers()).unwrap();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    let details = status.get_error_details();
    let delay = details.retry_info().unwrap().retry_delay.unwrap();
    assert_eq!(delay, std::time::Duration::from_millis(1_500));
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, "all");
    let never = grpc_refusal(&check(&limiter, 2));
    assert_eq!(never.headers()["grpc-retry-pushback-ms"], "-1");
    let status = tonic::Status::from_header_map(never.headers()).unwrap();
    assert!(status.get_details_retry_info().is_none());
}

fn limit() -> impl Strategy<Value = String> {
    let algorithm = prop::sample::select(vec![
        "fixed_window",
        "sliding_log",
        "sliding_buckets",
        "sliding_weighted",
        "token_bucket",
        "leaky_bucket",
    ]);
    let period =
        prop::sample::select(vec!["ms", "7ms", "s", "1500ms", "min", "h", "day", "400day"]);
    (1u64..10_000, period, algorithm).prop_filter_map("log", |(amount, period, algorithm)| {
        let amount = if period == "ms" { amount.min(1_000) } else { amount };
        Some(format!("{{ rate: {amount}/{period}, algorithm: {algorithm} }}"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// For any limits at any time: the fields are lists of strings with integer parameters, every limit is in both fields,
    /// times are above 0, and `Retry-After` is not before the end of a denying limit's window.
    #[test]
    fn fields_are_structured_fields(
        limits in prop::collection::vec(limit(), 1..4),
        costs in prop::collection::vec((0u64..20_000, 0u64..100_000_000_000), 1..20),
    ) {
        let rules: String = (0..).zip(&limits)
            .map(|(n, limit): (u32, _)| format!("  - {{ name: r{n}, key: [], limits: [{limit}] }}\n"))
            .collect();
        let (limiter, clock) = limiter(&rules);
        let mut now = NOW;
        for (cost, later) in costs {
            now = now.after(Span::from_nanos(later)).unwrap();
            clock.set(now);
            let verdict = check(&limiter, cost);
            let headers = headers(HeaderStyle::default(), &verdict);
            let list = |name: &str| {
                let text = headers[name].to_str().unwrap();
                let list: List = Parser::new(text).parse().unwrap();
                let items: Vec<(String, Vec<(String, i64)>)> = list.iter().map(|entry| {
                    let ListEntry::Item(item) = entry else { panic!("{text}") };
                    let params = item.params.iter()
                        .map(|(key, value)| (key.to_string(), i64::from(value.as_integer().unwrap())));
                    (item.bare_item.as_string().unwrap().to_string(), params.collect())
                }).collect();
                items
            };
            let (policies, states) = (list("ratelimit-policy"), list("ratelimit"));
            prop_assert_eq!(policies.len(), limits.len());
            for ((policy, quota), (state, left)) in policies.iter().zip(&states) {
                prop_assert_eq!(policy, state);
                prop_assert_eq!(&quota[0].0, "q");
                prop_assert!(quota[1].1 >= 1, "w");
                prop_assert!(left[0].0 == "r" && left[0].1 >= 0);
                prop_assert!(left.get(1).is_none_or(|(_, t)| *t >= 1));
            }
            let retry = headers.get("retry-after").map(|value| value.to_str().unwrap().parse::<i64>().unwrap());
            match verdict.outcome {
                Outcome::Deny(Retry::After(exact)) => {
                    let exact = i64::try_from(exact.as_secs_ceil()).unwrap().max(1);
                    prop_assert_eq!(retry, Some(exact));
                    for (report, (_, left)) in verdict.limits().zip(&states) {
                        let refuses = !report.decision.passes();
                        prop_assert!(!refuses || left[1].1 <= exact, "Retry-After before t");
                    }
                }
                Outcome::Allow | Outcome::Delay(_) | Outcome::Deny(Retry::Never) => {
                    prop_assert_eq!(retry, None);
                }
            }
            // The client side of this crate reads what its server side writes.
            let heard = Heard::of(tidegate::http::status(&verdict), &headers, now);
            prop_assert_eq!(heard.budgets.len(), limits.len());
        }
    }
}

/// A concurrency limit has no window, and what remains of it is valid for no particular time.
#[test]
fn a_concurrency_limit_has_no_window_and_no_time() {
    let (limiter, _) = limiter(
        "  - { name: jobs, key: [], limits: [{ concurrent: 2 }] }\n  - { name: both, key: [], limits: [{ concurrent: 5, name: slots }, { rate: 90/h, algorithm: fixed_window }] }",
    );
    let style = HeaderStyle { legacy: Some(LegacyReset::Delta), ..HeaderStyle::default() };
    let policies = "ratelimit-policy: \"jobs\";q=2;qu=\"concurrent-requests\", \"both/slots\";q=5;qu=\"concurrent-requests\", \"both/h\";q=90;w=3600";
    let first = headers(style, &check(&limiter, 1));
    let expected = [
        policies,
        "ratelimit: \"jobs\";r=1, \"both/slots\";r=4, \"both/h\";r=89;t=3600",
        "x-ratelimit-limit: 2",
        "x-ratelimit-remaining: 1",
        "x-ratelimit-reset: 0",
    ];
    assert_eq!(all_lines(&first), expected);
    check(&limiter, 1);
    let denied = check(&limiter, 1);
    let expected = [
        policies,
        "ratelimit: \"jobs\";r=0, \"both/slots\";r=3, \"both/h\";r=88;t=3600",
        "x-ratelimit-limit: 2",
        "x-ratelimit-remaining: 0",
        "x-ratelimit-reset: 1",
        "retry-after: 1",
    ];
    assert_eq!(all_lines(&headers(style, &denied)), expected);
    assert!(problem(&denied).contains("jobs allows 2 at a time; try again in 1 s."));
    // A parser of structured fields reads all of it.
    for value in [&denied].map(|verdict| headers(style, verdict)["ratelimit-policy"].clone()) {
        let list = Parser::new(value.to_str().unwrap()).parse::<List>().unwrap();
        assert_eq!(list.len(), 3);
    }
}
