//! The head of an HTTP/1 request, as the types that the rest of the proxy uses. The values share one buffer.

use crate::web::HeadError;
use crate::web::head::{HeadLines, Length, RequestHead};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};

/// A request whose head was read.
pub(crate) struct ReceivedRequest {
    pub(crate) parts: Parts,
    pub(crate) length: Length,
    /// Whether the client wants the connection to be closed after the answer.
    pub(crate) close: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(crate) expects: bool,
    /// Whether it is HTTP/1.1, not 1.0.
    pub(crate) eleven: bool,
}

impl ReceivedRequest {
    /// Parses a head, with all the checks of the HTTP API: what two parsers could understand differently is refused.
    pub(crate) fn parse(bytes: &Bytes) -> Result<Self, HeadError> {
        let mut lines = HeadLines::new();
        let head = lines.parse(bytes)?;
        let parts = parts(bytes, &head)?;
        let RequestHead { length, close, expects, eleven, .. } = head;
        Ok(Self { parts, length, close, expects, eleven })
    }
}

fn parts(bytes: &Bytes, head: &RequestHead<'_, '_>) -> Result<Parts, HeadError> {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = Method::from_bytes(head.method.as_bytes())
        .map_err(|_| HeadError::Malformed("the request line"))?;
    // `CONNECT` asks for a tunnel to anywhere, and a target of `*` belongs to no route.
    if parts.method == Method::CONNECT || head.path == "*" {
        return Err(HeadError::Malformed("its target"));
    }
    parts.uri = target(head).ok_or(HeadError::Malformed("its target"))?;
    parts.version = if head.eleven { Version::HTTP_11 } else { Version::HTTP_10 };
    parts.headers.reserve(head.fields.len().saturating_add(8));
    for line in head.fields {
        let name = HeaderName::from_bytes(line.name.as_bytes());
        let name = name.map_err(|_| HeadError::Malformed("the name of a header field"))?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(line.value));
        let value = value.map_err(|_| HeadError::Malformed("the value of a header field"))?;
        parts.headers.append(name, value);
    }
    Ok(parts)
}

/// The path and the query as the client spelled them. `Uri` would drop a fragment, which is not allowed in a request.
fn target(head: &RequestHead<'_, '_>) -> Option<Uri> {
    if head.path.contains('#') || head.query.is_some_and(|query| query.contains('#')) {
        return None;
    }
    match head.query {
        None => Uri::try_from(head.path).ok(),
        Some(query) => Uri::try_from(format!("{}?{query}", head.path)).ok(),
    }
    .filter(|uri| uri.authority().is_none())
}
