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
//! | let the preflight requests of browsers pass | [`is_preflight`] |
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
use http::{Method, header};
use tidegate_policy::Request;

/// Whether a request is a CORS preflight, as browsers send it: `OPTIONS` with `Origin` and `Access-Control-Request-Method`, and
/// without a body. Refusing one would hide the refusal from the page. A request that asks to be taken for one of another method is not a
/// preflight.
///
/// Any client can send such a request, so let only a bounded number of them pass. Over HTTP/2 a body need not be announced in the
/// fields; a server that can see whether there is one must check that too.
///
/// ```
/// use http::Request;
/// let preflight = Request::options("/").header("origin", "https://example.com");
/// let (parts, ()) = preflight.header("access-control-request-method", "PUT").body(())?.into_parts();
/// assert!(tidegate::http::is_preflight(&parts));
/// let (parts, ()) = Request::options("/").body(())?.into_parts();
/// assert!(!tidegate::http::is_preflight(&parts));
/// # Ok::<(), http::Error>(())
/// ```
#[must_use]
pub fn is_preflight(request: &Parts) -> bool {
    let fields = &request.headers;
    let announces_body = fields.contains_key(header::TRANSFER_ENCODING)
        || fields.get_all(header::CONTENT_LENGTH).iter().any(|length| length != "0");
    let values = |name: &str| fields.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
    let asked = Request { peer: None, method: "OPTIONS", target, headers: &values };
    request.method == Method::OPTIONS
        && fields.contains_key(header::ORIGIN)
        && fields.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
        && !announces_body
        && !asked.has_method_override()
}

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
