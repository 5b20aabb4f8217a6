//! Soft and elastic limits, as every front shows them.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::resp::talk;
use crate::support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread;
use support::{Server, request};
use talk::{Said, Talk, text};

const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8] }
rules:
  - name: soft
    match: { path: /soft }
    key: [path]
    limits: [{ rate: 4/day, algorithm: fixed_window, align: first }]
    mode: { soft: 50% }
  - name: elastic
    match: { path: /elastic }
    key: [path]
    limits: [{ rate: 4/day, algorithm: fixed_window, align: first }]
    mode: { elastic: { up_to: 200%, while: 'load < 0.7' } }
";

const SOFT: &str = r#"{"attributes":{"path":"/soft"}}"#;

/// A server whose soft limit is used up to its headroom.
fn used_up(flags: &[&str]) -> Server {
    let server = Server::with_policy(POLICY, flags);
    for used in [25, 50, 75, 100] {
        let verdict = server.post("/v1/check", SOFT).json();
        assert_eq!(
            (&verdict["over"], &verdict["limits"][0]["used_percent"]),
            (&false.into(), &used.into())
        );
    }
    server
}

#[test]
fn over_http() {
    let server = used_up(&[]);
    let verdict = server.post("/v1/check", SOFT).json();
    assert_eq!((&verdict["outcome"], &verdict["over"]), (&"allow".into(), &true.into()));
    assert_eq!(verdict["limits"][0]["over"], true);
    let metrics = server.admin("GET", "/metrics", "", "").body;
    assert!(metrics.contains("tidegate_over_limit_total{rule=\"soft\"} 1\n"), "{metrics}");
    let auth = request(
        server.http,
        "GET",
        "/v1/auth",
        &[("x-forwarded-uri", "/soft"), ("x-forwarded-method", "GET")],
        "",
    );
    assert_eq!((auth.status, auth.field("tidegate-over")), (200, Some("soft")), "{auth:?}");
}

#[test]
fn over_resp() {
    let server = used_up(&[]);
    let mut talk = Talk::to(server.resp);
    let Said::List(fields) = talk.ask("TG.CHECK 1 path /soft") else { panic!() };
    assert_eq!(fields[9], Said::List(vec![text("over")]));
}

#[test]
fn in_the_request_that_the_upstream_server_gets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (heads, heard) = channel();
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            head.push(byte[0]);
        }
        heads.send(String::from_utf8(head).unwrap()).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    });
    let server = used_up(&["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &url]);
    assert_eq!(
        request(server.proxy, "GET", "/soft", &[("tidegate-over", "forged")], "").status,
        200
    );
    let head = heard.recv().unwrap();
    assert!(head.contains("tidegate-over: soft\r\n") && !head.contains("forged"), "{head}");
}

#[test]
fn an_elastic_limit_says_why_it_is_closed_and_when_it_is_open() {
    let server = Server::with_policy(POLICY, &[]);
    let explained = || {
        let body = r#"{"attributes":{"path":"/elastic"}}"#;
        server.admin("POST", "/admin/v1/explain", "application/json", body).body
    };
    assert!(
        explained().contains("closed: a signal was not reported in the last 10 s"),
        "{}",
        explained()
    );
    // A signal expires, and the machine may be slow. So it is reported again before each attempt.
    let report = |server: &Server| {
        let put = server.admin("PUT", "/admin/v1/signals", "application/json", r#"{"load":0.1}"#);
        assert_eq!(put.status, 200, "{put:?}");
    };
    server.until("it is explained as open", |server| {
        report(server);
        explained().contains("open: 100 % of the headroom")
    });
    server.until("the metrics show it as open", |server| {
        report(server);
        let metrics = server.admin("GET", "/metrics", "", "").body;
        metrics.contains("tidegate_elastic_granted_percent{rule=\"elastic\"} 100\n")
    });
    server.until("twice as much passes", |server| {
        report(server);
        let body = r#"{"attributes":{"path":"/elastic"},"cost":8}"#;
        let check = server.post("/v1/check", body).json();
        let marks = (&check["over"], &check["limits"][0]["elastic_percent"]);
        check["allowed"] == true && marks == (&true.into(), &200.into())
    });
}
