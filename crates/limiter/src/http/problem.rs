//! The body of a denial: problem details (RFC 9457), which say which limits denied the request and when to try again.

use super::fields::{HeaderStyle, policy_name};
use super::{status, words};
use crate::scheduler::Shed;
use crate::verdict::Verdict;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use tidegate_core::{Outcome, Period, Retry};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// The problem type of a request whose cost exceeds what a limit can ever allow. Retrying does not help.
const NEVER: &str = "urn:tidegate:problem:cost-exceeds-capacity";

/// The body of a denial as JSON (`application/problem+json`): which limits denied the request, and when to try again.
///
/// ```
/// use tidegate::{Attributes, Check, Clock, Limiter, Memory, Policy, Secret, Timestamp};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let clock = Clock::manual(Timestamp::EPOCH); // stands still, so that the times below are exact
/// let limiter = Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock)?;
/// let request = Attributes::new();
/// limiter.check_now(&Check::new(&request))?;
/// let refused = limiter.check_now(&Check::new(&request))?;
/// let body: serde_json::Value = serde_json::from_str(&tidegate::http::problem(&refused))?;
/// assert_eq!(body["title"], "Quota Exceeded");
/// assert_eq!(body["detail"], "all allows 1 per hour; try again in 1 h.");
/// assert_eq!(body["violated-policies"][0], "all");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn problem(verdict: &Verdict) -> String {
    let violated: Vec<String> =
        verdict.refusing().map(|limit| policy_name(verdict, &limit)).collect();
    let (kind, title) = match verdict.outcome {
        Outcome::Deny(Retry::Never) => (NEVER, "Cost Exceeds Capacity"),
        Outcome::Allow | Outcome::Delay(_) | Outcome::Deny(Retry::After(_)) => {
            (QUOTA_EXCEEDED, "Quota Exceeded")
        }
    };
    let body = ProblemBody {
        detail: detail(verdict),
        status: status(verdict).as_u16(),
        title,
        kind,
        violated,
    };
    // A struct of texts and numbers can always be written as JSON.
    serde_json::to_string(&body).unwrap_or_default()
}

/// The members of a problem.
#[derive(Serialize)]
struct ProblemBody {
    detail: String,
    status: u16,
    title: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(rename = "violated-policies")]
    violated: Vec<String>,
}

/// The complete response to a denied request: status 429, header fields, and [`problem`] as the body.
///
/// ```
/// # use tidegate::{Attributes, Check, Clock, Limiter, Memory, Policy, Secret, Timestamp};
/// # let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// # let clock = Clock::manual(Timestamp::EPOCH);
/// # let limiter = Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock)?;
/// # let request = Attributes::new();
/// # limiter.check_now(&Check::new(&request))?;
/// let refused = limiter.check_now(&Check::new(&request))?;
/// let answer = tidegate::http::refusal(&refused, &tidegate::http::HeaderStyle::default());
/// assert_eq!(answer.status(), 429);
/// assert_eq!(answer.headers()["retry-after"], "3600");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn refusal(verdict: &Verdict, style: &HeaderStyle) -> Response<String> {
    let mut response = Response::new(problem(verdict));
    *response.status_mut() = status(verdict);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    // A denial is valid only for the moment; RFC 6585 forbids caches to store it.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    style.write(verdict, headers);
    response
}

/// The complete response to a request that the [`Scheduler`](crate::Scheduler) sheds: status 503, `Retry-After`, and a problem of
/// the type `temporary-reduced-capacity`.
///
/// ```
/// use tidegate::{Shed, ShedReason, Span};
/// let shed = Shed { reason: ShedReason::WaitedTooLong, retry_after: Span::from_millis(2_300) };
/// let answer = tidegate::http::overload(&shed);
/// assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &"3".parse()?));
/// assert!(answer.body().contains("#temporary-reduced-capacity"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn overload(shed: &Shed) -> Response<String> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let body = serde_json::json!({
        "detail": shed.to_string(),
        "status": status.as_u16(),
        "title": "Temporary Reduced Capacity",
        "type": REDUCED_CAPACITY,
    });
    let mut response = Response::new(body.to_string());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::RETRY_AFTER, HeaderValue::from(shed.retry_after.as_secs_ceil().max(1)));
    response
}

/// A sentence for a person: `all allows 5 per 15 min; try again in 20 s.`
pub(super) fn detail(verdict: &Verdict) -> String {
    let limits = verdict.refusing().map(|limit| {
        let name = policy_name(verdict, &limit);
        let amount = limit.limit.amount();
        match limit.limit.period() {
            Period::Every(_) if limit.limit.lease().is_some() => {
                format!("{name} allows {amount} at a time")
            }
            Period::Every(span) => format!("{name} allows {amount} per {}", words::period(*span)),
            Period::Calendar(_) => format!("{name} allows {amount} per {}", limit.id),
        }
    });
    let limits: Vec<String> = limits.collect();
    match verdict.outcome {
        Outcome::Deny(Retry::After(retry)) => {
            format!("{}; try again in {}.", limits.join(", "), words::wait(retry))
        }
        Outcome::Deny(Retry::Never) => {
            format!(
                "{}; the cost of this request exceeds the limit, so trying again does not help.",
                limits.join(", ")
            )
        }
        Outcome::Allow | Outcome::Delay(_) => "The request is allowed.".to_owned(),
    }
}
