//! What a refused client reads: problem details (RFC 9457).

use super::fields::{HeaderStyle, policy_name};
use super::status;
use crate::verdict::Verdict;
use http::{HeaderValue, Response, header};
use serde_json::json;
use tidegate_core::{Outcome, Period, Retry};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// A cost that no waiting helps: nobody should retry it.
const NEVER: &str = "urn:tidegate:problem:cost-exceeds-capacity";

/// The body of a refusal: which limits, and what to do.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let nobody = Attributes::new();
/// limiter.check_now(&Check::new(&nobody))?;
/// let refused = limiter.check_now(&Check::new(&nobody))?;
/// let body = tidegate::http::problem(&refused);
/// assert!(body.contains("\"violated-policies\":[\"all\"]"));
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
    json!({
        "type": kind,
        "title": title,
        "status": status(verdict).as_u16(),
        "detail": detail(verdict),
        "violated-policies": violated,
    })
    .to_string()
}

/// A refusal as a whole answer.
///
/// ```
/// # use tidegate::{Attributes, Check, Limiter, Policy};
/// # let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// # let limiter = Limiter::in_memory(policy)?;
/// # let nobody = Attributes::new();
/// # limiter.check_now(&Check::new(&nobody))?;
/// let refused = limiter.check_now(&Check::new(&nobody))?;
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
    // A refusal is about this moment; RFC 6585 forbids to keep it.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    style.write(verdict, headers);
    response
}

/// A sentence for whoever reads the body.
pub(super) fn detail(verdict: &Verdict) -> String {
    let limits = verdict.refusing().map(|limit| {
        let name = policy_name(verdict, &limit);
        let amount = limit.limit.amount();
        match limit.limit.period() {
            Period::Every(span) => format!("{name} allows {amount} per {span}"),
            Period::Calendar(_) => format!("{name} allows {amount} per {}", limit.id),
        }
    });
    let limits: Vec<String> = limits.collect();
    match verdict.outcome {
        Outcome::Deny(Retry::After(retry)) => {
            format!("{}; retry in {} s.", limits.join(", "), retry.as_secs_ceil().max(1))
        }
        Outcome::Deny(Retry::Never) => {
            format!("{}; this cost is more than can ever pass.", limits.join(", "))
        }
        Outcome::Allow | Outcome::Delay(_) => "The request passes.".to_owned(),
    }
}
