//! A verdict as HTTP: status, headers, problem; and the same read back by a client.
//!
//! ```text
//!   HTTP/1.1 429 Too Many Requests
//!   RateLimit-Policy: "per-client";q=15;w=1
//!   RateLimit: "per-client";r=0;t=1
//!   Retry-After: 1
//!   Content-Type: application/problem+json
//! ```
//!
//! The fields are those of draft-ietf-httpapi-ratelimit-headers-11. Times are rounded up, and never 0 on a
//! refusal; `Retry-After` never points earlier than `t`. Only limits that can refuse are told of: what only
//! pretends or marks is nobody's business but the operator's.

mod fields;
mod grpc;
mod pacer;
mod parse;
mod problem;

pub use fields::{HeaderStyle, LegacyReset, Reduced, policy_name};
pub use grpc::grpc_refusal;
pub use pacer::Pacer;
pub use parse::{Budget, Heard};
pub use problem::{problem, refusal};

use crate::verdict::Verdict;
use http::StatusCode;

/// The status of an answer to a request with this verdict: 200 when it passes, 429 when not.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let nobody = Attributes::new();
/// let first = limiter.check_now(&Check::new(&nobody))?;
/// let second = limiter.check_now(&Check::new(&nobody))?;
/// assert_eq!([first, second].map(|verdict| tidegate::http::status(&verdict).as_u16()), [200, 429]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub const fn status(verdict: &Verdict) -> StatusCode {
    if verdict.allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }
}
