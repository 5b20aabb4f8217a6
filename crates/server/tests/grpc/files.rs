//! Calls and their answers, with rule files of Envoy's reference service. Its windows are aligned to the clock, so those of these tests
//! are years: an hour could end during a test.

use crate::support::grpc::{Grpc, HEAD, INVALID_ARGUMENT, message};
use crate::support::messages::{Descriptor, OK, OVER_LIMIT, Request, YEAR};
use crate::support::{Server, folder};
use prost::Message;

const RULES: &str = "
domain: web
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 3, name: each-user }
    metadata: { team: edge, deep: { list: [1, two, true, null] } }
  - key: user
    value: banned
    rate_limit: { unit: year, requests_per_unit: 0 }
  - key: user
    value: root
    rate_limit: { unlimited: true }
  - key: twice
    descriptors:
      - key: twice
        rate_limit: { unit: year, requests_per_unit: 2 }
  - key: a
    descriptors:
      - key: b
        rate_limit: { unit: year, requests_per_unit: 1 }
  - key: tried
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
";

fn server(flags: &[&str]) -> Server {
    let rules = folder("rules");
    std::fs::write(rules.join("web.yaml"), RULES).unwrap();
    let mut all = vec!["--envoy-config", rules.to_str().unwrap()];
    all.extend(flags);
    Server::start_in(rules.clone(), &all)
}

#[test]
fn what_rule_files_say_of_descriptors() {
    let server = server(&[]);
    let mut grpc = Grpc::to(server.grpc);
    let users = ["alice", "banned", "root", ""].map(|user| Descriptor::of(&[("user", user)]));
    let [alice, banned, root, empty] = users.clone();
    let nobody = Descriptor::of(&[("tenant", "acme")]);
    let answer = grpc.asked(&Request::of([root, nobody, alice.clone()]));
    assert!(answer.passed());
    let [unlimited, unmatched, limited] = &answer.statuses[..] else { panic!("{answer:?}") };
    assert_eq!((unlimited.code, unlimited.limit_remaining), (OK, u32::MAX));
    assert!(unlimited.current_limit.is_none() && unlimited.duration_until_reset.is_none());
    assert_eq!((unmatched.code, unmatched.limit_remaining), (OK, 0));
    assert!(unmatched.current_limit.is_none() && unmatched.duration_until_reset.is_none());
    let limit = limited.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (3, YEAR, "each-user"));
    assert_eq!((limited.code, limited.limit_remaining), (OK, 2));
    // An empty value has a counter of its own.
    let answer = grpc.asked(&Request::of([empty]));
    assert_eq!((answer.passed(), answer.statuses[0].limit_remaining), (true, 2));
    let answer = grpc.asked(&Request::of([banned]));
    assert_eq!((answer.overall_code, answer.statuses[0].code), (OVER_LIMIT, OVER_LIMIT));
    // In a domain without rules everything passes, whatever limit a call brings.
    let elsewhere =
        Request { domain: "elsewhere".to_owned(), ..Request::of([alice.clone().limited(0, YEAR)]) };
    assert!(grpc.asked(&elsewhere).passed());
    // If there are rules for the domain, the limit in the call has priority over them.
    let answer = grpc.asked(&Request::of([alice.clone().limited(0, YEAR)]));
    assert_eq!((answer.passed(), answer.statuses[0].code), (false, OVER_LIMIT));
    assert_eq!(
        [(); 3].map(|()| grpc.asked(&Request::of([alice.clone()])).passed()),
        [true, true, false]
    );
    server.is_sound();
}

/// The order of entries matters, and an entry may appear twice.
#[test]
fn entries_have_an_order_and_may_repeat() {
    let server = server(&[]);
    let mut grpc = Grpc::to(server.grpc);
    let mut passes = |entries: &[(&str, &str)]| grpc.asked(&Request::about(entries)).passed();
    let mut counted = |entries: &[(&str, &str)], most: usize| {
        (0..=most).map(|_| passes(entries)).collect::<Vec<_>>()
            == [vec![true; most], vec![false]].concat()
    };
    assert!(counted(&[("twice", "x"), ("twice", "x")], 2));
    assert!(counted(&[("twice", "x"), ("twice", "y")], 2));
    assert!(counted(&[("twice", "y"), ("twice", "x")], 2));
    for pair in [
        ["a_b", "c"],
        ["a", "b_c"],
        ["a", "b"],
        ["b", "a"],
        ["", "a"],
        ["a", ""],
        ["", ""],
        ["a_", "c"],
        ["a", "_c"],
    ] {
        assert!(counted(&[("a", pair[0]), ("b", pair[1])], 1), "{pair:?}");
    }
    // No rule matches one of them alone, or the other order.
    for entries in [&[("twice", "x")][..], &[("b", "x"), ("a", "x")], &[("a", "x")]] {
        assert!((0..5).all(|_| grpc.asked(&Request::about(entries)).passed()), "{entries:?}");
    }
    let told =
        grpc.sent(&HEAD, &message(&Request::about(&[("a", "x"), ("", "y")]).encode_to_vec()));
    assert_eq!(told.code, Some(INVALID_ARGUMENT));
    server.is_sound();
}

#[test]
fn shadows_refuse_nothing() {
    let server = server(&[]);
    let mut grpc = Grpc::to(server.grpc);
    let request = Request::about(&[("tried", "x")]);
    for left in [0, 0, 0] {
        let answer = grpc.asked(&request);
        assert!(answer.passed());
        assert_eq!((answer.statuses[0].code, answer.statuses[0].limit_remaining), (OK, left));
    }
    server.is_sound();
}

#[test]
fn metadata_of_rules_that_let_pass() {
    let request = Request::about(&[("user", "alice")]).hits(1);
    let server = server(&[]);
    assert_eq!(
        as_json(Grpc::to(server.grpc).asked(&request).dynamic_metadata),
        serde_json::json!({
            "domain": "web",
            "descriptors": [{ "entries": ["user=alice"] }],
            "hitsAddend": 1.0,
            "metadata": { "team": "edge", "deep": { "list": [1.0, "two", true, null] } },
        })
    );
    // The metadata describes every call, also one that is refused, and one without a rule.
    let mut grpc = Grpc::to(server.grpc);
    let banned = Descriptor::of(&[("user", "banned"), ("x", "y")]).hits(2);
    let refused = Request::of([Descriptor::of(&[("user", "banned")]), banned.limited(7, YEAR)]);
    let answer = grpc.asked(&refused);
    assert!(!answer.passed());
    assert_eq!(
        as_json(answer.dynamic_metadata),
        serde_json::json!({
            "domain": "web",
            "descriptors": [
                { "entries": ["user=banned"] },
                {
                    "entries": ["user=banned", "x=y"],
                    "limit": "requests_per_unit:7 unit:YEAR",
                    "hitsAddend": 2.0,
                },
            ],
        })
    );
    let answer = grpc.asked(&Request::about(&[("tenant", &"t".repeat(5_000))]));
    let descriptors =
        [serde_json::json!({ "entries": [format!("tenant={}…", "t".repeat(1_024))] })];
    assert_eq!(
        as_json(answer.dynamic_metadata),
        serde_json::json!({ "domain": "web", "descriptors": descriptors })
    );
    let silent = self::server(&["--grpc-dynamic-metadata", "off"]);
    assert_eq!(Grpc::to(silent.grpc).asked(&request).dynamic_metadata, None);
    server.is_sound();
}

fn as_json(told: Option<prost_types::Struct>) -> serde_json::Value {
    let kind = Some(prost_types::value::Kind::StructValue(told.unwrap()));
    json(&prost_types::Value { kind })
}

fn json(value: &prost_types::Value) -> serde_json::Value {
    use prost_types::value::Kind;
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(0) => serde_json::Value::Null,
        Kind::NullValue(other) => panic!("a null of {other}"),
        Kind::NumberValue(number) => (*number).into(),
        Kind::StringValue(text) => text.as_str().into(),
        Kind::BoolValue(is) => (*is).into(),
        Kind::ListValue(list) => list.values.iter().map(json).collect(),
        Kind::StructValue(object) => {
            object.fields.iter().map(|(name, value)| (name.clone(), json(value))).collect()
        }
    }
}
