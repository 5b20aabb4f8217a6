//! The metrics listener: the page without a token, and nothing else.

use super::page::Page;
use crate::support::client::{Client, Operator};
use crate::support::{Server, folder, request};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const POLICY: &str = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1000000/s] }] }";
const ON: [&str; 2] = ["--metrics-listen", "127.0.0.1:0"];

#[test]
fn the_page_is_that_of_the_admin_listener_without_a_token() {
    let server = Server::with_policy(POLICY, &ON);
    let page = request(server.metrics, "GET", "/metrics", &[], "");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((page.status, page.field("content-type")), (200, Some(kind)));
    let admin = Operator::of(&server).get("/metrics").body;
    let names = |text: &str| -> Vec<String> { Page::read(text).kinds.into_keys().collect() };
    assert_eq!(names(&page.body), names(&admin));
    assert_eq!(request(server.metrics, "HEAD", "/metrics", &[], "").status, 200);
}

/// An address without a token must not lead to anything that needs one.
#[test]
fn it_serves_nothing_else() {
    let server = Server::with_policy(POLICY, &ON);
    let token = std::fs::read_to_string(server.data("operator-token")).unwrap();
    let bearer = format!("Bearer {}", token.trim());
    let fields = [("authorization", bearer.as_str())];
    for path in [
        "/",
        "/live",
        "/ready",
        "/admin/v1/status",
        "/admin/v1/policy",
        "/metrics/",
        "/Metrics",
        "/v1/check",
        "/rlconfig",
    ] {
        let reply = request(server.metrics, "GET", path, &fields, "");
        assert_eq!(reply.status, 404, "{path}: {reply:?}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let reply = request(server.metrics, method, "/metrics", &fields, "");
        assert_eq!((reply.status, reply.field("allow")), (405, Some("GET, HEAD")), "{method}");
    }
}

#[test]
fn it_is_off_by_default_and_does_not_need_the_admin_listener() {
    let server = Server::with_policy(POLICY, &[]);
    // The greeting names no address of it, so the tests have that of HTTP.
    assert_eq!(server.metrics, server.http);
    assert_eq!(server.get("/metrics").status, 404);
    let folder = folder("metrics");
    let mut alone = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--http-listen", "off", "--grpc-listen", "off", "--resp-listen", "off"])
        .args(["--admin-listen", "off", "--log-format", "text"])
        .args(["--data-dir", folder.to_str().unwrap()])
        .args(ON)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let greeting = BufReader::new(alone.stdout.take().unwrap());
    let lines = greeting.lines().map(Result::unwrap);
    let address = lines.into_iter().find_map(|line| {
        line.trim().strip_prefix("metrics http://")?.strip_suffix("/metrics")?.parse().ok()
    });
    assert_eq!(request(address.unwrap(), "GET", "/metrics", &[], "").status, 200);
    alone.kill().unwrap();
    alone.wait().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

/// It has the bounds of the admin listener. What it does not have is eviction: there is no token that a client could show.
#[test]
fn connections_are_bounded_and_counted() {
    let flags =
        [&ON[..], &["--admin-max-connections", "4", "--admin-max-connections-per-source", "3"]];
    let server = Server::with_policy(POLICY, &flags.concat());
    let mut clients: Vec<Client> = (0..3).map(|_| Client::of(server.metrics)).collect();
    let page = clients.iter_mut().map(|client| client.ask("GET", "/metrics", &[], "")).last();
    let page = page.unwrap().body;
    assert!(page.contains("tidegate_connections{listener=\"metrics\"} 3\n"), "{page}");
    assert!(page.contains("tidegate_max_connections{listener=\"metrics\"} 4\n"), "{page}");
    // The fourth is closed without an answer.
    let mut fourth = Client::of(server.metrics);
    let request = fourth.request("GET", "/metrics", &[], "");
    let _ = fourth.send(&request);
    assert!(!matches!(fourth.receive(), Ok(Some(_))));
    server.until_refused("full", 1);
    // The clients of the other listeners are not affected.
    assert_eq!(server.check_ip("203.0.113.7").status, 200);
}

/// A client that sends its request too slowly is closed, as on the other listeners.
#[test]
fn a_slow_client_is_closed() {
    let flags = [&ON[..], &["--admin-header-timeout", "50ms"]].concat();
    let server = Server::with_policy(POLICY, &flags);
    let mut slow = Client::of(server.metrics);
    slow.send(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let reply = slow.receive();
    assert!(
        matches!(&reply, Ok(Some(reply)) if reply.status == 408) || matches!(reply, Ok(None)),
        "{reply:?}"
    );
    server.until("it is counted", |server| {
        let page = request(server.metrics, "GET", "/metrics", &[], "").body;
        page.contains("tidegate_refused_total{reason=\"late\"} 1\n")
    });
}
