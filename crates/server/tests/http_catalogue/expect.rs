//! `Expect: 100-continue`: a client that waits for an interim answer gets one before it sends the body, but only if
//! the body is wanted.

use super::case::POLICY;
use crate::support::Server;
use crate::support::http1::Wire;

const BODY: &str = "{\"attributes\":{\"user\":\"alice\"}}";

fn waiting(path: &str, kind: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    )
}

#[test]
fn a_body_that_is_wanted_is_asked_for() {
    let server = Server::with_policy(POLICY, &[]);
    let mut wire = Wire::to(server.http);
    for _ in 0..3 {
        wire.send(waiting("/v1/check", "application/json", BODY.len()).as_bytes());
        assert_eq!(wire.answer().unwrap().status, 100);
        wire.send(BODY.as_bytes());
        assert_eq!(wire.answer().unwrap().status, 200);
    }
}

#[test]
fn a_body_that_is_here_already_is_not_asked_for() {
    let server = Server::with_policy(POLICY, &[]);
    let mut wire = Wire::to(server.http);
    let head = waiting("/v1/check", "application/json", BODY.len());
    wire.send(format!("{head}{BODY}").as_bytes());
    assert_eq!(wire.answer().unwrap().status, 200);
    let none = waiting("/live", "application/json", 0).replace("POST", "GET");
    wire.send(none.as_bytes());
    assert_eq!(wire.answer().unwrap().status, 200);
}

#[test]
fn a_body_that_is_not_wanted_is_refused_unread() {
    let server = Server::with_policy(POLICY, &[]);
    for (path, kind, length, status) in [
        ("/nowhere", "application/json", 31, 404),
        ("/v1/check", "text/xml", 31, 415),
        ("/live", "application/json", 31, 405),
        ("/v1/check", "application/json", 2 << 20, 413),
    ] {
        let mut wire = Wire::to(server.http);
        wire.send(waiting(path, kind, length).as_bytes());
        let reply = wire.answer().unwrap();
        assert_eq!((reply.status, reply.field("connection")), (status, Some("close")), "{path}");
        assert!(wire.rest().is_empty());
    }
}

/// HTTP/1.0 has no interim answers, so one would be taken for the answer.
#[test]
fn nobody_of_http_1_0_is_told_to_go_on() {
    let server = Server::with_policy(POLICY, &[]);
    let mut wire = Wire::to(server.http);
    let head = waiting("/v1/check", "application/json", BODY.len()).replace("1.1", "1.0");
    wire.send(head.as_bytes());
    wire.send(BODY.as_bytes());
    assert_eq!(wire.answer().unwrap().status, 200);
}
