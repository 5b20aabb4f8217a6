//! Methods at every front: `HEAD`, method overrides, and requests that look like calls of gRPC.

use super::proxy;
use super::recorder::Recorder;
use crate::support::http1::Wire;
use crate::support::http2::{
    Answer, END_HEADERS, END_STREAM, HEADERS, Two, fields, frame, read_fields,
};
use crate::support::{Server, request};

type Fields<'f> = &'f [(&'f str, &'f str)];

/// The status of a request over HTTP/1, through the proxy.
fn one(server: &Server, method: &str, target: &str, fields: Fields<'_>) -> u16 {
    let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut wire = Wire::to(server.proxy);
    wire.send(format!("{method} {target} HTTP/1.1\r\nhost: site\r\n{lines}\r\n").as_bytes());
    wire.answer_to(method).unwrap().status
}

/// The header fields of the answer over HTTP/2.
fn head_over_two(
    server: &Server,
    method: &str,
    target: &str,
    more: Fields<'_>,
) -> Vec<(String, String)> {
    let usual =
        [(":method", method), (":scheme", "http"), (":authority", "site"), (":path", target)];
    let mut two = Two::to(server.proxy);
    let stream = two.next();
    let list = [&usual[..], more].concat();
    two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&list)));
    loop {
        let frame = two.frame().unwrap();
        if frame.kind == HEADERS && frame.stream == stream {
            return read_fields(&frame.payload);
        }
    }
}

fn two(server: &Server, method: &str, target: &str, more: Fields<'_>) -> u16 {
    let head = head_over_two(server, method, target, more);
    field(&head, ":status").unwrap().parse().unwrap()
}

fn field<'h>(head: &'h [(String, String)], name: &str) -> Option<&'h str> {
    head.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

/// The status of the same question, asked by a proxy in front.
fn forward_auth(server: &Server, method: &str, target: &str, more: Fields<'_>) -> u16 {
    let told = [("x-forwarded-method", method), ("x-forwarded-uri", target)];
    request(server.http, "GET", "/v1/auth", &[&told[..], more].concat(), "").status
}

#[test]
fn head_counts_as_get_at_every_front() {
    let recorder = Recorder::start();
    let policy = "
version: 1
identity: { trusted: [127.0.0.1] }
rules: [{ name: reads, match: { method: GET }, key: [], limits: [4/day] }]
";
    let server = proxy(policy, &recorder.url());
    let check = r#"{"attributes":{"method":"HEAD"}}"#;
    for expected in [200, 429] {
        assert_eq!(one(&server, "HEAD", "/", &[]), expected);
        assert_eq!(two(&server, "HEAD", "/", &[]), expected);
        assert_eq!(forward_auth(&server, "HEAD", "/", &[]), expected);
        assert_eq!(server.post("/v1/check", check).status, expected);
        assert_eq!(one(&server, "POST", "/", &[]), 200);
    }
}

#[test]
fn the_rules_of_both_methods_apply_to_an_override() {
    let recorder = Recorder::start();
    let policy = "
version: 1
identity: { trusted: [127.0.0.1] }
rules: [{ name: deletes, match: { method: DELETE }, key: [], limits: [4/day] }]
";
    let server = proxy(policy, &recorder.url());
    let field = [("x-http-method-override", "DELETE")];
    for expected in [200, 429] {
        assert_eq!(one(&server, "POST", "/1", &field), expected);
        assert_eq!(one(&server, "POST", "/2?_method=delete", &[]), expected);
        assert_eq!(two(&server, "POST", "/3", &[("x-method-override", "DELETE")]), expected);
        assert_eq!(forward_auth(&server, "POST", "/4", &field), expected);
        assert_eq!(one(&server, "POST", "/5", &[("X_HTTP_Method_Override", "DELETE")]), 200);
    }
    drop(server);
    // What passes is as the client sent it, except for what the rules could not read.
    let seen = recorder.finish().requests;
    assert_eq!((seen[0].line().as_str(), seen[0].all(field[0].0)), ("POST /1", vec!["DELETE"]));
    let of_five = seen.iter().find(|request| request.target == "/5").unwrap();
    assert!(of_five.fields.iter().all(|(name, _)| !name.contains("method")), "{of_five:?}");
}

#[test]
fn a_policy_may_refuse_overrides() {
    let recorder = Recorder::start();
    let policy = "
version: 1
identity: { trusted: [127.0.0.1] }
methods: { overrides: reject }
rules: [{ name: all, key: [], limits: [1000000/s] }]
";
    let server = proxy(policy, &recorder.url());
    let field = [("x-http-method", "DELETE")];
    assert_eq!(one(&server, "POST", "/", &field), 400);
    assert_eq!(two(&server, "POST", "/", &field), 400);
    assert_eq!(forward_auth(&server, "POST", "/", &field), 400);
    assert_eq!(one(&server, "DELETE", "/", &field), 200);
}

/// A refused `GET /app.js` with the content type of gRPC once got status 200, which caches stored in place of the script.
#[test]
fn only_calls_of_grpc_are_refused_as_such_and_no_cache_stores_a_refusal() {
    let recorder = Recorder::start();
    let policy = "{ version: 1, rules: [{ name: all, key: [], limits: [1/day] }] }";
    let server = proxy(policy, &recorder.url());
    assert_eq!(one(&server, "GET", "/app.js", &[]), 200);
    let call = [("content-type", "application/grpc")];
    let mut wire = Wire::to(server.proxy);
    for method in ["GET", "POST"] {
        wire.send(
            format!(
                "{method} /app.js HTTP/1.1\r\nhost: site\r\ncontent-type: application/grpc\r\n\r\n"
            )
            .as_bytes(),
        );
        let reply = wire.answer().unwrap();
        assert_eq!((reply.status, reply.field("cache-control")), (429, Some("no-store")));
        assert_eq!(reply.field("grpc-status"), None);
    }
    for (method, status, grpc) in [("GET", "429", None), ("POST", "200", Some("8"))] {
        let head = head_over_two(&server, method, "/app.js", &call);
        assert_eq!((field(&head, ":status"), field(&head, "grpc-status")), (Some(status), grpc));
        assert_eq!(field(&head, "cache-control"), Some("no-store"));
    }
    assert!(matches!(
        Two::to(server.proxy).asked("GET", "/", b""),
        Answer::Whole { status: 429, .. }
    ));
}
