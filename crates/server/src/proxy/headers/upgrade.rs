//! Switching to another protocol, such as WebSocket: `Connection: upgrade`, `Upgrade: websocket`, answered by
//! `101 Switching Protocols`.
//!
//! After the switch the proxy copies bytes that it does not understand. So it must not switch to a protocol that carries further
//! HTTP requests (`h2c`, `HTTP/2.0`, `TLS/1.2`): they would reach the upstream server without a decision of the limiter. Such a
//! request is forwarded without its `Upgrade` field, and the upstream server answers it in HTTP/1.1.

use super::{only, tokens};
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue};

/// The protocol that an HTTP/1.1 request asks to switch to. (HTTP/1.0 has no upgrades, and HTTP/2 has no `Upgrade` field; the
/// caller checks the version.)
///
/// Exactly one protocol must be named: from a list, the upstream server could choose one that carries HTTP.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = asked_protocol(headers)?;
    (is_protocol(protocol.as_bytes()) && !carries_http(protocol.as_bytes()))
        .then(|| protocol.clone())
}

/// Whether a `101 Switching Protocols` response switches to the protocol that the request asked for, and to no other.
pub(crate) fn accepts_upgrade(response: &HeaderMap, asked: &HeaderValue) -> bool {
    let protocol = asked_protocol(response).map(HeaderValue::as_bytes);
    protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(asked.as_bytes()))
}

/// The only `Upgrade` field, if `Connection` says that it is meant.
fn asked_protocol(headers: &HeaderMap) -> Option<&HeaderValue> {
    let meant = tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    only(headers, &UPGRADE).filter(|_| meant)
}

/// Whether this is one name, with or without a version: `websocket`, `SPDY/3.1`.
fn is_protocol(text: &[u8]) -> bool {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~/".contains(byte);
    !text.is_empty() && text.iter().all(token)
}

/// Whether HTTP requests continue after the switch.
fn carries_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
    let names: [&[u8]; 6] = [b"h2", b"h2c", b"h3", b"http", b"https", b"tls"];
    names.iter().any(|http| name.eq_ignore_ascii_case(http))
}

#[cfg(test)]
mod tests {
    use super::super::tests::map;
    use super::*;

    type Sent = [(&'static str, &'static str)];

    const C: &str = "Connection";
    const U: &str = "Upgrade";

    #[test]
    fn a_request_asks_for_one_protocol_that_is_not_http() {
        let cases: &[(&Sent, Option<&str>)] = &[
            (&[(C, "Upgrade"), (U, "websocket")], Some("websocket")),
            (&[(C, "keep-alive, UPGRADE"), (U, "WebSocket")], Some("WebSocket")),
            (&[(C, "keep-alive"), (C, ",, upgrade ,"), (U, "SPDY/3.1")], Some("SPDY/3.1")),
            (&[(C, "\u{ff}, upgrade"), (U, "tcp")], Some("tcp")),
            (&[(U, "websocket")], None),
            (&[(C, "upgrade")], None),
            (&[(C, "upgraded"), (U, "websocket")], None),
            (&[(C, "upgrade"), (U, "websocket"), (U, "websocket")], None),
            (&[(C, "upgrade"), (U, "websocket, h2c")], None),
            (&[(C, "upgrade"), (U, "")], None),
            (&[(C, "upgrade"), (U, "web socket")], None),
            (&[(C, "upgrade"), (U, "websocket\u{ff}")], None),
            (&[(C, "Upgrade, HTTP2-Settings"), (U, "h2c")], None),
            (&[(C, "upgrade"), (U, "H2C")], None),
            (&[(C, "upgrade"), (U, "h2")], None),
            (&[(C, "upgrade"), (U, "HTTP/2.0")], None),
            (&[(C, "upgrade"), (U, "TLS/1.2")], None),
        ];
        for (lines, expected) in cases {
            let found = is_upgrade(&map(lines));
            assert_eq!(found.as_ref().map(HeaderValue::as_bytes), expected.map(str::as_bytes));
        }
    }

    #[test]
    fn a_response_must_accept_the_protocol_that_was_asked_for() {
        let cases: &[(&Sent, bool)] = &[
            (&[(C, "upgrade"), (U, "websocket")], true),
            (&[(C, "Upgrade"), (U, "WebSocket")], true),
            (&[(C, "upgrade"), (U, "h2c")], false),
            (&[(C, "upgrade"), (U, "websocket, h2c")], false),
            (&[(C, "upgrade"), (U, "websocket"), (U, "h2c")], false),
            (&[(C, "close"), (U, "websocket")], false),
            (&[(U, "websocket")], false),
            (&[(C, "upgrade")], false),
            (&[], false),
        ];
        let asked = HeaderValue::from_static("websocket");
        for (lines, expected) in cases {
            assert_eq!(accepts_upgrade(&map(lines), &asked), *expected, "{lines:?}");
        }
    }
}
