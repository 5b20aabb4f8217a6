//! Verdicts as HTTP responses: status, header fields and problem details. And the client's side: reading those fields, and
//! keeping to them. (Feature `http`.)
//!
//! ```text
//!   HTTP/1.1 429 Too Many Requests
//!   RateLimit-Policy: "per-client";q=15;w=1
//!   RateLimit: "per-client";r=0;t=1
//!   Retry-After: 1
//!   Content-Type: application/problem+json
//! ```
//!
//! | you want to | read |
//! |---|---|
//! | write the header fields of a response | [`HeaderStyle::write`] |
//! | answer a denied request | [`refusal_to`], or [`refusal`] and [`grpc_refusal`] if you know the protocol |
//! | answer a request that a busy upstream has no capacity for | [`overload_to`], or [`overload`] and [`grpc_overload`] |
//! | read what a server said about its limits | [`Heard`] |
//! | keep a client from asking too early | [`Pacer`] |
//!
//! The fields follow draft-ietf-httpapi-ratelimit-headers-11. Times are rounded up to whole seconds. On a denial they are
//! never 0, and `Retry-After` is never earlier than `t`. Only limits that can deny are shown to clients: rules in shadow mode
//! and rules that only flag or deprioritize are for the operator.

mod by_protocol;
mod fields;
mod grpc;
mod pacer;
mod parse;
mod problem;
mod words;

pub use by_protocol::{is_grpc, overload_to, refusal_to};
pub use fields::{HeaderStyle, LegacyReset, Reduced, policy_name};
pub use grpc::{grpc_overload, grpc_refusal};
pub use pacer::Pacer;
pub use parse::{Budget, Heard};
pub use problem::{overload, problem, refusal};

pub use http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode, request::Parts};

use crate::verdict::Verdict;

/// The status of the response: 200 if the request passes, 429 if it is denied.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// let first = limiter.check_now(&Check::new(&request))?;
/// let second = limiter.check_now(&Check::new(&request))?;
/// assert_eq!([first, second].map(|verdict| tidegate::http::status(&verdict).as_u16()), [200, 429]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub const fn status(verdict: &Verdict) -> StatusCode {
    if verdict.allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }
}
