//! Answers in the protocol of the request: problem details over HTTP, and a status with details for gRPC.

use super::fields::HeaderStyle;
use super::grpc::{grpc_overload, grpc_refusal};
use super::problem::{overload, refusal};
use crate::scheduler::Shed;
use crate::verdict::Verdict;
use http::{HeaderMap, HeaderValue, Response, header};

/// Whether a request with these header fields is a gRPC call.
///
/// ```
/// use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
/// let mut fields = HeaderMap::new();
/// assert!(!tidegate::http::is_grpc(&fields));
/// fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
/// assert!(tidegate::http::is_grpc(&fields));
/// ```
#[must_use]
pub fn is_grpc(request: &HeaderMap) -> bool {
    let kind = request.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    kind.starts_with(b"application/grpc")
}

/// The response to a denied request with these header fields: [`refusal`], or [`grpc_refusal`] with the `RateLimit` fields.
///
/// ```
/// use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
/// use tidegate::http::{HeaderStyle, refusal_to};
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// limiter.check_now(&Check::new(&request))?;
/// let refused = limiter.check_now(&Check::new(&request))?;
/// let mut fields = HeaderMap::new();
/// assert_eq!(refusal_to(&fields, &refused, &HeaderStyle::default()).status(), 429);
/// fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
/// let answer = refusal_to(&fields, &refused, &HeaderStyle::default());
/// assert_eq!(answer.headers()["grpc-status"], "8"); // RESOURCE_EXHAUSTED
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn refusal_to(request: &HeaderMap, verdict: &Verdict, style: &HeaderStyle) -> Response<String> {
    if !is_grpc(request) {
        return refusal(verdict, style);
    }
    let mut response = grpc_refusal(verdict).map(|()| String::new());
    style.write(verdict, response.headers_mut());
    response
}

/// The response to a request with these header fields for which a busy upstream has no capacity: [`overload`] or
/// [`grpc_overload`].
///
/// ```
/// use http::HeaderMap;
/// use tidegate::{Shed, ShedReason, Span};
/// let shed = Shed { reason: ShedReason::QueueFull, retry_after: Span::from_millis(2_300) };
/// assert_eq!(tidegate::http::overload_to(&HeaderMap::new(), &shed).status(), 503);
/// ```
#[must_use]
pub fn overload_to(request: &HeaderMap, shed: &Shed) -> Response<String> {
    match is_grpc(request) {
        true => grpc_overload(shed).map(|()| String::new()),
        false => overload(shed),
    }
}
