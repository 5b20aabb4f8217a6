//! The head of an HTTP/1 request, as the types that the rest of the proxy uses. The values share one buffer.

use crate::bounds;
use crate::web::HeadError;
use crate::web::head::{self, Framing, Length};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use std::mem::MaybeUninit;

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
        let mut lines = [const { MaybeUninit::uninit() }; bounds::HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(bytes, &mut lines);
        let framing = head::framing(parsed, &request, bytes)?;
        let parts = parts(bytes, &request, &framing)?;
        let Framing { length, close, expects, eleven, .. } = framing;
        Ok(Self { parts, length, close, expects, eleven })
    }
}

fn parts(
    bytes: &Bytes,
    request: &httparse::Request<'_, '_>,
    framing: &Framing<'_>,
) -> Result<Parts, HeadError> {
    let (mut parts, ()) = Request::new(()).into_parts();
    let method = request.method.unwrap_or_default();
    parts.method = Method::from_bytes(method.as_bytes())
        .map_err(|_| HeadError::Malformed("the request line"))?;
    // `CONNECT` asks for a tunnel to anywhere, and a target of `*` belongs to no route.
    if parts.method == Method::CONNECT || framing.path == "*" {
        return Err(HeadError::Malformed("its target"));
    }
    parts.uri = target(framing).ok_or(HeadError::Malformed("its target"))?;
    parts.version = if framing.eleven { Version::HTTP_11 } else { Version::HTTP_10 };
    parts.headers.reserve(request.headers.len().saturating_add(8));
    for line in request.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes());
        let name = name.map_err(|_| HeadError::Malformed("the name of a header field"))?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(line.value));
        let value = value.map_err(|_| HeadError::Malformed("the value of a header field"))?;
        parts.headers.append(name, value);
    }
    Ok(parts)
}

/// The path and the query as the client spelled them. `Uri` would drop a fragment, which is not allowed in a request.
fn target(framing: &Framing<'_>) -> Option<Uri> {
    if framing.path.contains('#') || framing.query.is_some_and(|query| query.contains('#')) {
        return None;
    }
    match framing.query {
        None => Uri::try_from(framing.path).ok(),
        Some(query) => Uri::try_from(format!("{}?{query}", framing.path)).ok(),
    }
    .filter(|uri| uri.authority().is_none())
}
