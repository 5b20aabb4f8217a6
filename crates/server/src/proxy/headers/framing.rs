//! Framing checks: a message that two servers could read in two ways is refused.
//!
//! If the proxy and the upstream server disagree about where a message ends, the rest of one message becomes the beginning of the
//! next one, which may belong to another client. The errors complete the sentence "the message is not well formed: …".

use super::{only, tokens};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{StatusCode, Uri, Version};

/// Why a message is refused.
type RefusalReason = &'static str;

/// Checks the header of a request from a client.
///
/// The HTTP/1 parser of this server has refused contradicting lengths already, and the `h2` crate refuses connection-specific
/// fields. They are refused here as well, so that the proxy does not depend on the parser.
pub(crate) fn check_request(headers: &HeaderMap, version: Version) -> Result<(), RefusalReason> {
    if version >= Version::HTTP_2 {
        no_connection_fields(headers)?;
        if tokens(headers, &TE).any(|coding| !coding.eq_ignore_ascii_case(b"trailers")) {
            return Err("a `te` field other than `trailers` in HTTP/2");
        }
    }
    if headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err("two lengths");
    }
    match (length(headers)?, is_chunked(headers, version)?) {
        (Some(_), true) => Err("a length beside a transfer coding"),
        (Some(_), false) | (None, _) => Ok(()),
    }
}

/// The host that a request is for: the authority of its target, or else its `host` field. If both are given, they must agree:
/// otherwise the rules and the route could be those of one host, and the upstream server could answer for another one.
pub(crate) fn host<'r>(
    uri: &'r Uri,
    headers: &'r HeaderMap,
) -> Result<Option<&'r str>, RefusalReason> {
    let authority = uri.authority().map(http::uri::Authority::as_str);
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err("its target contains a user name");
    }
    if !headers.contains_key(HOST) {
        return Ok(authority);
    }
    let field = only(headers, &HOST).ok_or("two `host` fields")?;
    let field = field.to_str().map_err(|_| "the `host` field")?;
    match authority {
        Some(authority) if !authority.eq_ignore_ascii_case(field) => Err("it names two hosts"),
        None | Some(_) => Ok(Some(field)),
    }
}

/// Checks the header of a response from an upstream server. After an error the connection to that server must be closed: its
/// next bytes may be anything.
///
/// hyper obeys `Transfer-Encoding`, but leaves a contradicting `Content-Length` in the map.
pub(crate) fn check_response(
    status: StatusCode,
    headers: &HeaderMap,
    version: Version,
) -> Result<(), RefusalReason> {
    if version >= Version::HTTP_2 {
        no_connection_fields(headers)?;
    }
    let length = length(headers)?;
    let chunked = is_chunked(headers, version)?;
    let without_body = status.is_informational() || status == StatusCode::NO_CONTENT;
    match (length, chunked) {
        (Some(_), true) => Err("a length beside a transfer coding"),
        // hyper reads no body here. If there is one after all, it would be taken for the next response.
        (_, true) | (Some(1..), false) if without_body => Err("a body where none is allowed"),
        (Some(_), false) | (None, _) => Ok(()),
    }
}

/// HTTP/2 has frames instead of these fields. An HTTP/1 server behind this proxy would obey them.
fn no_connection_fields(headers: &HeaderMap) -> Result<(), RefusalReason> {
    const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
    const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
    let forbidden = [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, TRANSFER_ENCODING, UPGRADE];
    if forbidden.iter().any(|name| headers.contains_key(name)) {
        return Err("a connection-specific field in HTTP/2");
    }
    Ok(())
}

/// The length of the body. All lengths must be equal, and lists such as `5, 5` are refused.
fn length(headers: &HeaderMap) -> Result<Option<u64>, RefusalReason> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let value = parse_length(value.as_bytes()).ok_or("its length")?;
        if length.replace(value).is_some_and(|before| before != value) {
            return Err("two lengths");
        }
    }
    Ok(length)
}

/// Parses up to 18 digits, which always fit. `str::parse` alone would accept `+5`.
fn parse_length(text: &[u8]) -> Option<u64> {
    let plain = text.len() <= 18 && text.iter().all(u8::is_ascii_digit);
    plain.then(|| str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// Whether the body is chunked. Every other transfer coding is refused, and so are repeated ones: servers disagree about what
/// `chunked, chunked` or `identity` means.
fn is_chunked(headers: &HeaderMap, version: Version) -> Result<bool, RefusalReason> {
    if !headers.contains_key(TRANSFER_ENCODING) {
        return Ok(false);
    }
    let coding = only(headers, &TRANSFER_ENCODING).ok_or("two transfer codings")?;
    if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        return Err("its transfer coding");
    }
    if version < Version::HTTP_11 {
        return Err("chunks in HTTP/1.0");
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::map;
    use super::*;

    type Sent = [(&'static str, &'static str)];
    type Host = Result<Option<&'static str>, RefusalReason>;
    type Checked = Result<(), RefusalReason>;

    const CODED: &str = "transfer-encoding";
    const LENGTH: &str = "content-length";

    #[test]
    fn requests_are_refused_if_they_can_be_read_in_two_ways() {
        let specific = Err("a connection-specific field in HTTP/2");
        let te = Err("a `te` field other than `trailers` in HTTP/2");
        let two = Version::HTTP_2;
        let eleven = Version::HTTP_11;
        let cases: &[(Version, &Sent, Checked)] = &[
            (two, &[("accept", "*/*"), ("te", "trailers")], Ok(())),
            (two, &[("te", "Trailers,"), (LENGTH, "5")], Ok(())),
            (two, &[("te", "trailers, deflate")], te),
            (two, &[("te", "trailers"), ("te", "gzip")], te),
            (two, &[("te", "trailers;q=0.5")], te),
            (two, &[("te", "trailers\u{e9}")], te),
            (two, &[("connection", "close")], specific),
            (two, &[("connection", "")], specific),
            (two, &[("keep-alive", "timeout=5")], specific),
            (two, &[("proxy-connection", "keep-alive")], specific),
            (two, &[(CODED, "chunked")], specific),
            (two, &[("upgrade", "h2c")], specific),
            (two, &[(LENGTH, "5"), (LENGTH, "0")], Err("two lengths")),
            (eleven, &[("connection", "close"), ("te", "gzip"), ("upgrade", "x")], Ok(())),
            (eleven, &[(CODED, "chunked")], Ok(())),
            (eleven, &[(LENGTH, "5"), (LENGTH, "5")], Err("two lengths")),
            (
                eleven,
                &[(LENGTH, "5"), (CODED, "chunked")],
                Err("a length beside a transfer coding"),
            ),
            (eleven, &[(LENGTH, "+5")], Err("its length")),
            (Version::HTTP_10, &[(CODED, "chunked")], Err("chunks in HTTP/1.0")),
        ];
        for (version, lines, expected) in cases {
            assert_eq!(check_request(&map(lines), *version), *expected, "{version:?} {lines:?}");
        }
    }

    #[test]
    fn a_request_is_for_one_host() {
        let cases: &[(&str, &Sent, Host)] = &[
            ("/", &[], Ok(None)),
            ("/", &[("host", "a.example:80")], Ok(Some("a.example:80"))),
            ("http://a.example/", &[], Ok(Some("a.example"))),
            ("http://a.example/", &[("host", "A.example")], Ok(Some("A.example"))),
            ("http://a.example/", &[("host", "b.example")], Err("it names two hosts")),
            ("http://a.example/", &[("host", "a.example:80")], Err("it names two hosts")),
            ("http://a.example/", &[("host", "")], Err("it names two hosts")),
            ("http://b@a.example/", &[], Err("its target contains a user name")),
            ("/", &[("host", "a"), ("host", "a")], Err("two `host` fields")),
            ("/", &[("host", "\u{e9}.example")], Err("the `host` field")),
        ];
        for (uri, lines, expected) in cases {
            let uri: Uri = uri.parse().unwrap();
            assert_eq!(host(&uri, &map(lines)), *expected, "{uri} {lines:?}");
        }
    }

    #[test]
    fn responses_are_refused_if_their_length_is_in_doubt() {
        let both = Err("a length beside a transfer coding");
        let coding = Err("its transfer coding");
        let cases: &[(&Sent, Checked)] = &[
            (&[], Ok(())),
            (&[(LENGTH, "0")], Ok(())),
            (&[(LENGTH, "999999999999999999")], Ok(())),
            (&[(LENGTH, "5"), (LENGTH, "5")], Ok(())),
            (&[(LENGTH, "5"), (LENGTH, "05")], Ok(())), // the client gets only the first one
            (&[(LENGTH, "5"), (LENGTH, "6")], Err("two lengths")),
            (&[(LENGTH, "5"), (LENGTH, "5"), (LENGTH, "6")], Err("two lengths")),
            (&[(LENGTH, "5"), (LENGTH, "")], Err("its length")),
            (&[(LENGTH, "")], Err("its length")),
            (&[(LENGTH, "5, 5")], Err("its length")),
            (&[(LENGTH, "+5")], Err("its length")),
            (&[(LENGTH, "-0")], Err("its length")),
            (&[(LENGTH, "0x5")], Err("its length")),
            (&[(LENGTH, "5\u{b2}")], Err("its length")),
            (&[(LENGTH, "1000000000000000000")], Err("its length")),
            (&[(CODED, "chunked")], Ok(())),
            (&[(CODED, "Chunked")], Ok(())),
            (&[(CODED, "chunked"), (LENGTH, "0")], both),
            (&[(LENGTH, "5"), (CODED, "chunked")], both),
            (&[(CODED, "chunked"), (CODED, "chunked")], Err("two transfer codings")),
            (&[(CODED, "identity"), (CODED, "chunked")], Err("two transfer codings")),
            (&[(CODED, "gzip, chunked")], coding),
            (&[(CODED, "chunked\t")], coding),
            (&[(CODED, "identity")], coding),
            (&[(CODED, "")], coding),
            (&[(CODED, "xchunked")], coding),
        ];
        for (lines, expected) in cases {
            let checked = check_response(StatusCode::OK, &map(lines), Version::HTTP_11);
            assert_eq!(checked, *expected, "{lines:?}");
        }
    }

    #[test]
    fn the_version_and_the_status_limit_how_a_response_is_framed() {
        let body = Err("a body where none is allowed");
        let specific = Err("a connection-specific field in HTTP/2");
        let eleven = Version::HTTP_11;
        let cases = [
            (204, eleven, (LENGTH, "0"), Ok(())),
            (204, eleven, (LENGTH, "5"), body),
            (204, eleven, (CODED, "chunked"), body),
            (101, eleven, (LENGTH, "5"), body),
            (101, eleven, (CODED, "chunked"), body),
            (101, eleven, ("upgrade", "websocket"), Ok(())),
            (304, eleven, (LENGTH, "5"), Ok(())), // the length that the body of a 200 would have
            (200, Version::HTTP_10, (CODED, "chunked"), Err("chunks in HTTP/1.0")),
            (200, Version::HTTP_10, (LENGTH, "5"), Ok(())),
            (200, Version::HTTP_2, (CODED, "chunked"), specific),
            (200, Version::HTTP_2, ("connection", "close"), specific),
            (200, Version::HTTP_2, (LENGTH, "5"), Ok(())),
        ];
        for (status, version, line, expected) in cases {
            let status = StatusCode::from_u16(status).unwrap();
            let checked = check_response(status, &map(&[line]), version);
            assert_eq!(checked, expected, "{status} {version:?} {line:?}");
        }
    }
}
