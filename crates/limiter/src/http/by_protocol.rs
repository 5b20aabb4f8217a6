//! Answers in the protocol of the request: problem details over HTTP, and a status with details for gRPC.

use super::fields::HeaderStyle;
use super::grpc::{grpc_overload, grpc_refusal};
use super::problem::{overload, refusal};
use crate::scheduler::Shed;
use crate::verdict::Verdict;
use http::request::Parts;
use http::{HeaderValue, Method, Response, Version, header};

/// Whether a request is a gRPC call: a `POST` over HTTP/2 with a content type of gRPC. No other request can be one, and its sender would
/// take the answer to a call, which has status 200, for the content that it asked for.
///
/// ```
/// use http::{Request, Version};
/// let call = || Request::post("/shop.Orders/Get").header("content-type", "application/grpc+proto");
/// let parts = |request: http::request::Builder| request.body(()).unwrap().into_parts().0;
/// assert!(tidegate::http::is_grpc(&parts(call().version(Version::HTTP_2))));
/// assert!(!tidegate::http::is_grpc(&parts(call().version(Version::HTTP_11))));
/// assert!(!tidegate::http::is_grpc(&parts(call().version(Version::HTTP_2).method("GET"))));
/// ```
#[must_use]
pub fn is_grpc(request: &Parts) -> bool {
    let kind = request.headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    request.method == Method::POST
        && request.version == Version::HTTP_2
        && kind.starts_with(b"application/grpc")
}

/// The response to a denied request: [`refusal`], or [`grpc_refusal`] with the `RateLimit` fields for a [call](is_grpc).
///
/// ```
/// use http::{Request, Version};
/// use tidegate::http::{HeaderStyle, refusal_to};
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// limiter.check_now(&Check::new(&request))?;
/// let refused = limiter.check_now(&Check::new(&request))?;
/// let (mut parts, ()) = Request::post("/orders").body(())?.into_parts();
/// assert_eq!(refusal_to(&parts, &refused, &HeaderStyle::default()).status(), 429);
/// parts.version = Version::HTTP_2;
/// parts.headers.insert("content-type", "application/grpc".parse()?);
/// let answer = refusal_to(&parts, &refused, &HeaderStyle::default());
/// assert_eq!(answer.headers()["grpc-status"], "8"); // RESOURCE_EXHAUSTED
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn refusal_to(request: &Parts, verdict: &Verdict, style: &HeaderStyle) -> Response<String> {
    if !is_grpc(request) {
        return refusal(verdict, style);
    }
    let mut response = grpc_refusal(verdict).map(|()| String::new());
    style.write(verdict, response.headers_mut());
    response
}

/// The response to a request for which a busy upstream has no capacity: [`overload`], or [`grpc_overload`] for a [call](is_grpc).
///
/// ```
/// use http::Request;
/// use tidegate::{Shed, ShedReason, Span};
/// let shed = Shed { reason: ShedReason::QueueFull, retry_after: Span::from_millis(2_300) };
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_eq!(tidegate::http::overload_to(&parts, &shed).status(), 503);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn overload_to(request: &Parts, shed: &Shed) -> Response<String> {
    match is_grpc(request) {
        true => grpc_overload(shed).map(|()| String::new()),
        false => overload(shed),
    }
}
