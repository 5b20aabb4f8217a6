//! What passes from one side to the other. The rules of each submodule are tested there.

use super::*;
use std::net::Ipv4Addr;

/// Names and values, in their order. Bytes above 127 are read as Latin-1.
pub(super) type HeaderLines = Vec<(String, String)>;

/// A header with these lines. Characters up to U+00FF become one byte, so that tests can write obs-text as `\u{ff}`.
pub(super) fn map(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let bytes: Vec<u8> = value.chars().map(|char| u8::try_from(char).unwrap()).collect();
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::try_from(bytes).unwrap());
    }
    headers
}

pub(super) fn lines(headers: &HeaderMap) -> HeaderLines {
    let latin = |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
    headers.iter().map(|(name, value)| (name.to_string(), latin(value))).collect()
}

fn forwarding() -> Forwarding<'static> {
    let peer = Ipv4Addr::LOCALHOST.into();
    Forwarding { peer, peer_is_trusted: false, secure: true, host: None, request_id: "id" }
}

/// What `to_upstream` adds to every request of these tests.
const ADDED: [(&str, &str); 4] = [
    ("forwarded", "for=127.0.0.1;proto=https"),
    ("x-forwarded-for", "127.0.0.1"),
    ("x-forwarded-proto", "https"),
    ("x-request-id", "id"),
];

fn upstream(sent: &[(&str, &str)], upgrade: Option<&str>) -> HeaderLines {
    let mut headers = map(sent);
    let upgrade = upgrade.map(|protocol| HeaderValue::from_str(protocol).unwrap());
    to_upstream(&mut headers, &forwarding(), upgrade.as_ref());
    lines(&headers)
}

/// Checks which fields of a request are forwarded, besides those that are added.
#[track_caller]
fn forwards(sent: &[(&str, &str)], expected: &[(&str, &str)]) {
    let all: Vec<_> = expected.iter().chain(&ADDED).copied().collect();
    // `te: trailers` is written before the fields that are added.
    assert_eq!(upstream(sent, None), lines(&map(&all)), "{sent:?}");
}

fn client(sent: &[(&str, &str)]) -> (HeaderLines, Option<UpstreamOutcome>) {
    let mut headers = map(sent);
    let outcome = to_client(&mut headers, None);
    (lines(&headers), outcome)
}

#[test]
fn hop_by_hop_fields_are_not_forwarded() {
    let names = [
        "Connection",
        "HTTP2-Settings",
        "Keep-Alive",
        "Proxy-Connection",
        "Proxy-Authenticate",
        "Proxy-Authentication-Info",
        "Proxy-Authorization",
        "TE",
        "Transfer-Encoding",
        "Upgrade",
        "Transfer_Encoding",
        "Proxy_Authorization",
    ];
    for name in names {
        let sent = [("accept", "a"), (name, "x"), ("host", "b"), (name, "\u{ff}"), ("accept", "c")];
        let kept = [("accept", "a"), ("accept", "c"), ("host", "b")];
        forwards(&sent, &kept);
        assert_eq!(client(&sent), (lines(&map(&kept)), None), "{name}");
    }
}

#[test]
fn lengths_and_cookies_are_written_plainly() {
    for (sent, expected) in [("0", "0"), ("000", "0"), ("0005", "5"), ("5", "5"), ("10", "10")] {
        forwards(&[("content-length", sent)], &[("content-length", expected)]);
    }
    forwards(&[("content_length", "5"), ("Content_Length", "6")], &[]);
    // The rules of both methods apply, so an override passes; but the rules do not see other spellings of its name.
    let spelled = [("x-http-method-override", "PUT"), ("X_HTTP-Method_Override", "PUT")];
    forwards(&spelled, &[("x-http-method-override", "PUT")]);
    let cookies = [("cookie", "a=1"), ("accept", "x"), ("cookie", "b=\u{ff}"), ("cookie", "c=3")];
    forwards(&cookies, &[("cookie", "a=1; b=\u{ff}; c=3"), ("accept", "x")]);
    forwards(&[("cookie", "a=1; b=2")], &[("cookie", "a=1; b=2")]);
}

#[test]
fn trailers_neither_frame_a_message_nor_say_who_sent_it() {
    let sent = [
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
        ("transfer_encoding", "chunked"),
        ("connection", "close"),
        ("host", "x"),
        ("trailer", "x"),
        ("cookie", "a=1"),
        ("set-cookie", "a=1"),
        ("authorization", "x"),
        ("tidegate-outcome", "failure"),
        ("x-forwarded-for", "6.6.6.6"),
        ("sum", "5"),
        ("grpc-status", "0"),
    ];
    let (mut request, mut response) = (map(&sent), map(&sent));
    trailers_to_upstream(&mut request, &[]);
    trailers_to_client(&mut response);
    let kept = [("sum", "5"), ("grpc-status", "0")];
    assert_eq!(lines(&request), lines(&map(&kept)));
    let also = [("x-forwarded-for", "6.6.6.6"), ("sum", "5"), ("grpc-status", "0")];
    assert_eq!(lines(&response), lines(&map(&also)));
}

/// `x-user: root` once reached the upstream server as a trailer, beside the `x-user: alice` of the auth server.
#[test]
fn trailers_do_not_contradict_what_this_server_sets() {
    let sent = [
        ("x-user", "root"),
        ("X_User", "root"),
        ("x-request-id", "1"),
        ("tidegate-priority", "high"),
        ("expect", "100-continue"),
        ("x-http-method-override", "DELETE"),
        ("x_http_method", "DELETE"),
        ("x-method-override", "DELETE"),
        ("sum", "5"),
    ];
    let mut trailers = map(&sent);
    trailers_to_upstream(&mut trailers, &[HeaderName::from_static("x-user")]);
    assert_eq!(lines(&trailers), lines(&map(&[("sum", "5")])));
    let sent = [
        ("RateLimit", "\"all\";r=9"),
        ("ratelimit-policy", "\"all\";q=9"),
        ("X-RateLimit-Remaining", "9"),
        ("x_ratelimit_limit", "9"),
        ("retry-after", "0"),
        ("access-control-expose-headers", "*"),
        ("date", "now"),
        ("x-user", "root"),
        ("grpc-status", "0"),
    ];
    let mut trailers = map(&sent);
    trailers_to_client(&mut trailers);
    let kept = [("x-user", "root"), ("grpc-status", "0")];
    assert_eq!(lines(&trailers), lines(&map(&kept)));
}

#[test]
fn connection_removes_the_fields_that_it_names() {
    let cases: &[&[&str]] = &[
        &["x-debug, x-trace"],
        &["X-Debug", "close, X-TRACE"],
        &[" ,,x-debug,\t, x-trace ,"],
        &["\u{ff}, x-debug", "x debug, x-trace", "x-trace"],
        &["x-debug, connection, x-absent, x-trace"],
    ];
    for values in cases {
        let mut sent = vec![("x-debug", "1"), ("accept", "a"), ("x-debug", "2")];
        sent.extend(values.iter().map(|value| ("Connection", *value)));
        sent.extend([("x-trace", "\u{e9}"), ("user-agent", "b")]);
        let kept = [("accept", "a"), ("user-agent", "b")];
        forwards(&sent, &kept);
        assert_eq!(client(&sent).0, lines(&map(&kept)), "{values:?}");
    }
}

#[test]
fn a_connection_field_that_cannot_be_read_removes_nothing() {
    for value in ["", ",", "x-debug\u{ff}", "x debug", "x-debug;q=1", "\"x-debug\"", "x-debu"] {
        forwards(&[("x-debug", "1"), ("connection", value)], &[("x-debug", "1")]);
    }
}

#[test]
fn connection_cannot_remove_fields_that_others_rely_on() {
    let names = [
        "Authorization",
        "Cache-Control",
        "Content-Encoding",
        "Content-Length",
        "Content-Type",
        "Cookie",
        "Expect",
        "Host",
        "Origin",
        "Set-Cookie",
        "Traceparent",
        "Tracestate",
        "Trailer",
    ];
    for name in names {
        let options = format!("close, {name}");
        let sent = [(name, "1"), ("connection", options.as_str())];
        forwards(&sent, &[(name, "1")]);
        assert_eq!(client(&sent).0, lines(&map(&[(name, "1")])), "{name}");
    }
    let sent = [("connection", "close, X-Forwarded-For, Authorization"), ("authorization", "a")];
    forwards(&sent, &[("authorization", "a")]);
}

/// A trusted proxy may forward a `Connection` field of the client that it does not understand.
#[test]
fn connection_cannot_remove_what_a_trusted_peer_wrote() {
    let names = ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "X-Request-Id"];
    for name in names {
        let mut headers = map(&[(name, "sent"), ("connection", name)]);
        let trusted = Forwarding { peer_is_trusted: true, ..forwarding() };
        to_upstream(&mut headers, &trusted, None);
        let value = headers.get(name).map(HeaderValue::as_bytes).unwrap();
        assert!(value.starts_with(b"sent"), "{name}");
    }
}

#[test]
fn connection_may_name_many_fields() {
    let names: Vec<String> = (0..100).map(|number| format!("x-field-{number}")).collect();
    let every = names.join(",");
    // The first half of the fields is sent; the second half is only named.
    let mut sent: Vec<_> = names.iter().take(50).map(|name| (name.as_str(), "1")).collect();
    sent.extend([("connection", every.as_str()), ("connection", every.as_str()), ("accept", "a")]);
    forwards(&sent, &[("accept", "a")]);
}

#[test]
fn clients_neither_send_nor_see_the_fields_of_this_server() {
    for name in ["Tidegate-Priority", "tidegate-flags", "TIDEGATE-", "Tidegate_Priority"] {
        let sent = [("a", "1"), (name, "high"), (name, "low"), ("b", "2"), ("tidegate", "3")];
        let kept = [("a", "1"), ("b", "2"), ("tidegate", "3")];
        forwards(&sent, &kept);
        assert_eq!(client(&sent).0, lines(&map(&kept)), "{name}");
    }
}

#[test]
fn of_te_only_trailers_is_forwarded() {
    let cases: &[(&[&str], bool)] = &[
        (&["trailers"], true),
        (&["Trailers"], true),
        (&["trailers, deflate"], true),
        (&["gzip;q=0.5", " trailers"], true),
        (&["deflate"], false),
        (&["trailers;q=0"], false),
        (&["\u{ff}trailers"], false),
        (&[""], false),
    ];
    for (values, kept) in cases {
        let mut sent: Vec<_> = values.iter().map(|value| ("te", *value)).collect();
        sent.extend([("connection", "TE"), ("trailer", "checksum")]);
        let expected = [("trailer", "checksum"), ("te", "trailers")];
        forwards(&sent, if *kept { &expected } else { &expected[..1] });
    }
}

#[test]
fn only_an_answered_expectation_is_dropped() {
    let cases: &[(&[&str], bool)] = &[
        (&["100-continue"], false),
        (&["100-Continue", ",100-continue, "], false),
        (&["magic"], true),
        (&["100-continue, magic"], true),
        (&["\u{ff}"], true),
    ];
    for (values, kept) in cases {
        let sent: Vec<_> = values.iter().map(|value| ("expect", *value)).collect();
        let found = upstream(&sent, None).iter().any(|(name, _)| name == "expect");
        assert_eq!(found, *kept, "{values:?}");
    }
}

#[test]
fn an_upgrade_is_forwarded_only_if_the_caller_switches() {
    let sent = [
        ("connection", "keep-alive, Upgrade, HTTP2-Settings"),
        ("upgrade", "websocket"),
        ("http2-settings", "AAMAAABk"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let key = sent[3];
    forwards(&sent, &[key]);
    let mut expected = vec![key];
    expected.extend(ADDED);
    expected.extend([("connection", "upgrade"), ("upgrade", "websocket")]);
    assert_eq!(upstream(&sent, Some("websocket")), lines(&map(&expected)));

    let mut response = map(&[("connection", "Upgrade"), ("upgrade", "websocket"), ("a", "1")]);
    to_client(&mut response, Some(&HeaderValue::from_static("websocket")));
    let expected = [("a", "1"), ("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(lines(&response), lines(&map(&expected)));
}

#[test]
fn everything_else_keeps_its_order_and_its_bytes() {
    let kept = [
        ("date", "Mon, 05 Oct 2026 10:00:00 GMT"),
        ("set-cookie", "a=1, b"),
        ("set-cookie", "b=\u{e9}\u{ff}"),
        ("set-cookie", ""),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("x_custom", "\t tabs \t"),
        ("vary", "accept"),
        ("vary", "origin"),
        ("content-length", "5"),
    ];
    forwards(&kept, &kept);
    assert_eq!(client(&kept), (lines(&map(&kept)), None));
    let mut sent = vec![("connection", "close"), ("keep-alive", "timeout=5")];
    sent.extend(kept);
    sent.extend([("tidegate-outcome", "success"), ("content-length", "5")]);
    assert_eq!(client(&sent), (lines(&map(&kept)), Some(UpstreamOutcome::Success)));
}

#[test]
fn an_outcome_is_reported_once_and_spelled_exactly() {
    let cases: &[(&[&str], Option<UpstreamOutcome>)] = &[
        (&["success"], Some(UpstreamOutcome::Success)),
        (&["failure"], Some(UpstreamOutcome::Failure)),
        (&["Success"], None),
        (&["failure "], None),
        (&["fail"], None),
        (&["success, failure"], None),
        (&["success", "failure"], None),
        (&["failure", "failure"], None),
        (&["\u{ff}"], None),
        (&[""], None),
        (&[], None),
    ];
    for (values, expected) in cases {
        let mut sent: Vec<_> = values.iter().map(|value| ("Tidegate-Outcome", *value)).collect();
        // The field is read before `Connection` can remove it.
        sent.push(("connection", "tidegate-outcome"));
        assert_eq!(client(&sent), (Vec::new(), *expected), "{values:?}");
    }
}
