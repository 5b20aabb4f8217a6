//! What fuzz targets feed with bytes, and the properties that must hold for all of them. An error names the property that does
//! not hold.

use super::body_pump::parse_trailers;
use super::headers::{self, Forwarding};
use super::request_head::ReceivedRequest;
use crate::net::ReadBuffer;
use crate::web::head::Length;
use crate::web::{BodyDecoder, Decoded};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};
use std::net::{IpAddr, Ipv4Addr};

/// A request head that is accepted and rewritten can be read in one way only.
pub fn request_head(bytes: &[u8]) -> Result<(), String> {
    let bytes = Bytes::copy_from_slice(bytes);
    let Ok(mut request) = ReceivedRequest::parse(&bytes) else { return Ok(()) };
    let fields = &mut request.parts.headers;
    let codings = fields.get_all("transfer-encoding").iter().count();
    let lengths = fields.get_all("content-length").iter().count();
    if codings > 1
        || (codings > 0 && lengths > 0)
        || (codings > 0) != (request.length == Length::Chunks)
    {
        return Err(format!("the end of the body is not clear: {fields:?}"));
    }
    let forwarding = Forwarding {
        peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
        peer_is_trusted: false,
        secure: false,
        host: Some("example.com"),
        request_id: "id",
    };
    headers::to_upstream(fields, &forwarding, None);
    only_end_to_end(fields)
}

/// An answer head that is accepted and rewritten has at most one length, and nothing that concerns one connection only.
pub fn answer_head(bytes: &[u8]) -> Result<(), String> {
    let mut lines = [httparse::EMPTY_HEADER; 64];
    let mut answer = httparse::Response::new(&mut lines);
    if !matches!(answer.parse(bytes), Ok(httparse::Status::Complete(_))) {
        return Ok(());
    }
    let mut fields = HeaderMap::new();
    for line in answer.headers.iter() {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(line.name.as_bytes()), HeaderValue::from_bytes(line.value))
        {
            fields.append(name, value);
        }
    }
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
    let version = if answer.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let Some(status) = status else { return Ok(()) };
    if headers::check_response(status, &fields, version).is_err() {
        return Ok(());
    }
    let is_chunked = fields.contains_key("transfer-encoding");
    if is_chunked && fields.contains_key("content-length") {
        return Err(format!("the end of the body is not clear: {fields:?}"));
    }
    headers::to_client(&mut fields, None);
    let lengths: Vec<_> = fields.get_all("content-length").iter().collect();
    let is_number = |length: &&HeaderValue| {
        !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit)
    };
    if lengths.len() > 1 || !lengths.iter().all(is_number) {
        return Err(format!("the length is not clear: {fields:?}"));
    }
    only_end_to_end(&fields)
}

/// A chunked body is decoded to the same data however it arrives, and the bytes behind it are left alone.
pub fn chunked_body(bytes: &[u8]) -> Result<(), String> {
    let (split, body) = bytes.split_first().map_or((1, bytes), |(first, rest)| (*first, rest));
    let whole = decode(body, usize::MAX);
    let parts = decode(body, usize::from(split.max(1)));
    if whole == parts { Ok(()) } else { Err(format!("{whole:?} is not {parts:?}")) }
}

/// The data, the number of trailers and the number of bytes behind it; or that it is incomplete or not valid.
fn decode(bytes: &[u8], size: usize) -> Option<(Vec<u8>, usize, usize)> {
    let mut decoder = BodyDecoder::new(Length::Chunks, 1 << 20).ok()?;
    let mut input = ReadBuffer::default();
    let mut pieces = bytes.chunks(size.min(bytes.len().max(1)));
    let (mut data, mut trailers) = (Vec::new(), 0);
    loop {
        match decoder.next(&mut input).ok()? {
            Decoded::Data(piece) => data.extend_from_slice(piece),
            Decoded::Trailers(lines) => trailers = parse_trailers(lines).ok()?.len(),
            Decoded::End => break,
            Decoded::NeedsMore => input.arrived(pieces.next()?),
        }
    }
    let behind = input.unread().len().saturating_add(pieces.map(<[u8]>::len).sum());
    Some((data, trailers, behind))
}

/// Whether no field is left that concerns one connection, or that only this server may write.
fn only_end_to_end(fields: &HeaderMap) -> Result<(), String> {
    let bad = fields.keys().find(|name| {
        let name = name.as_str().replace('_', "-");
        ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"]
            .contains(&name.as_str())
            || name.starts_with("tidegate-")
    });
    bad.map_or(Ok(()), |name| Err(format!("`{name}` was passed on")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The properties hold for the messages that smuggling is made of.
    #[test]
    fn the_properties_hold_for_known_attacks() {
        for head in [
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer_encoding: x\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\nconnection: content-length, x\r\nx: 1\r\ntidegate_flags: 1\r\n\r\n",
        ] {
            request_head(head.as_bytes()).unwrap();
        }
        for head in [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +3\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntidegate-outcome: failure\r\n\r\n",
        ] {
            answer_head(head.as_bytes()).unwrap();
        }
        for body in ["\u{1}3\r\nabc\r\n0\r\n\r\nGET", "\u{2}0\r\na: b\r\n\r\n", "\u{3}3 \r\nabc"] {
            chunked_body(body.as_bytes()).unwrap();
        }
    }

    /// The property would notice a field that concerns the connection only.
    #[test]
    fn a_field_of_the_connection_is_noticed() {
        let fields = HeaderMap::from_iter([(http::header::UPGRADE, HeaderValue::from_static("x"))]);
        assert!(only_end_to_end(&fields).is_err());
    }
}
