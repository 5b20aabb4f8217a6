//! Requests that a web page of a stranger makes a browser send, to every listener that is made for programs.
//!
//! A page once used up a victim's limit, or gave back an exhausted one, by `fetch` with a `text/plain` body at `/json`; and with a name
//! that leads to 127.0.0.1 (DNS rebinding) every path answered to it.

use crate::support::grpc::{Grpc, HEAD, message};
use crate::support::http1::Wire;
use crate::support::http2::{Answer, END_HEADERS, END_STREAM, HEADERS, Two, fields, frame};
use crate::support::messages::Request;
use crate::support::{Reply, Server, request};
use prost::Message as _;

const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8] }
rules: [{ name: a, key: [ip], limits: [{ rate: 1000/h, algorithm: fixed_window, align: first }] }]
";
const CALL: &str = r#"{"domain":"d","hitsAddend":500,"descriptors":[{"entries":[{"key":"ip","value":"203.0.113.7"}]}]}"#;
const CHECK: &str = r#"{"attributes":{"ip":"203.0.113.7"},"cost":500}"#;

fn server() -> Server {
    Server::with_policy(
        POLICY,
        &["--http-hosts", "limits.example", "--metrics-listen", "127.0.0.1:0"],
    )
}

/// The paths of the HTTP API, each with a request that it would answer.
const ASKED: [(&str, &str, &str); 8] = [
    ("POST", "/json", CALL),
    ("POST", "/v1/check", CHECK),
    ("POST", "/v1/peek", CHECK),
    ("POST", "/v1/take", r#"{"key":"k","limit":1,"per":"1h"}"#),
    ("POST", "/v1/report", r#"{"receipt":"x","outcome":"success"}"#),
    ("GET", "/ready", ""),
    ("GET", "/openapi.json", ""),
    ("GET", "/nowhere", ""),
];

const PAGES: [(&str, &str); 5] = [
    ("origin", "https://evil.example"),
    ("origin", "null"),
    ("origin", "http://localhost:3000"),
    ("sec-fetch-site", "cross-site"),
    ("sec-fetch-site", "same-site"),
];

/// Sends a request for another host over HTTP/1.
fn at_host(
    server: std::net::SocketAddr,
    host: &str,
    line: &str,
    fields: &str,
    body: &str,
) -> Reply {
    let mut wire = Wire::to(server);
    let length = body.len();
    wire.send(
        format!(
            "{line} HTTP/1.1\r\nhost: {host}\r\n{fields}content-length: {length}\r\n\r\n{body}"
        )
        .as_bytes(),
    );
    wire.answer().unwrap()
}

/// What is left of the victim's limit.
fn left(server: &Server) -> u64 {
    let peek = r#"{"attributes":{"ip":"203.0.113.7"}}"#;
    server.post("/v1/peek", peek).json()["limits"][0]["remaining"].as_u64().unwrap()
}

#[test]
fn a_page_changes_and_learns_nothing() {
    let server = server();
    for (method, path, body) in ASKED {
        for page in PAGES {
            let kind = ("content-type", "application/json");
            let reply = request(server.http, method, path, &[kind, page], body);
            assert_eq!(reply.status, 403, "{path} {page:?}: {reply:?}");
        }
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "a.b"] {
            let kind = "content-type: application/json\r\n";
            let reply = at_host(server.http, host, &format!("{method} {path}"), kind, body);
            assert_eq!(reply.status, 421, "{path} {host}: {reply:?}");
            assert!(reply.body.contains("http.hosts"), "{reply:?}");
        }
    }
    // What a page may send without asking first (CORS) is never read as JSON, however old the browser is.
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
    {
        for (method, path, body) in ASKED.into_iter().filter(|(method, ..)| *method == "POST") {
            let reply = request(server.http, method, path, &[("content-type", kind)], body);
            assert_eq!(reply.status, 415, "{path} {kind}: {reply:?}");
        }
    }
    assert_eq!(request(server.http, "POST", "/json", &[], CALL).status, 415);
    assert_eq!(left(&server), 1_000);
    let foreign = u64::try_from(ASKED.len() * (PAGES.len() + 4)).unwrap();
    assert_eq!(server.metric("tidegate_refused_total{reason=\"foreign\"}"), foreign);
    // A program is served under each name that a page cannot have, and under those that are listed.
    for host in
        ["limits.example", "Limits.Example:8443", "localhost:1", "tidegate", "t.n.svc", "[::1]"]
    {
        let kind = "content-type: application/json\r\n";
        let reply = at_host(server.http, host, "POST /v1/peek", kind, CHECK);
        assert_eq!(reply.status, 200, "{host}: {reply:?}");
    }
    let own = format!("http://{}", server.http);
    let kind = ("content-type", "application/json");
    for field in
        [("origin", own.as_str()), ("sec-fetch-site", "none"), ("sec-fetch-site", "same-origin")]
    {
        let call = CALL.replace("500", "1");
        assert_eq!(request(server.http, "POST", "/json", &[kind, field], &call).status, 200);
        assert_eq!(request(server.http, "GET", "/ready", &[field], "").status, 200);
    }
    server.is_sound();
}

#[test]
fn over_http_2_the_host_is_the_authority() {
    let server = server();
    let mut two = Two::to(server.http);
    let mut asked = |authority: &str, more: &[(&str, &str)]| {
        let head = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/ready"),
            (":authority", authority),
        ];
        let stream = two.next();
        let head = fields(&[&head, more].concat());
        two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &head));
        match two.answer(stream) {
            Answer::Whole { status, .. } => status,
            other @ (Answer::Reset(_) | Answer::Gone) => panic!("{other:?}"),
        }
    };
    for (authority, status) in
        [("evil.example", 421), ("localhost", 200), ("limits.example:443", 200), ("a.b", 421)]
    {
        assert_eq!(asked(authority, &[]), status, "{authority}");
    }
    for page in PAGES {
        assert_eq!(asked("localhost", &[page]), 403, "{page:?}");
    }
    server.is_sound();
}

/// Forward auth gets the fields of the client whose request is to be decided, so they say nothing about the proxy that asks.
#[test]
fn forward_auth_is_asked_with_the_fields_of_the_client() {
    let server = server();
    for page in PAGES {
        let fields = [
            page,
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-for", "203.0.113.7"),
        ];
        assert_eq!(request(server.http, "GET", "/v1/auth", &fields, "").status, 200, "{page:?}");
    }
    let fields = "x-original-method: GET\r\nx-original-uri: /\r\nx-forwarded-for: 203.0.113.7\r\n";
    let reply = at_host(server.http, "shop.example", "GET /v1/auth/nginx", fields, "");
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[test]
fn metrics_are_not_shown_to_pages() {
    let server = server();
    for page in PAGES {
        assert_eq!(request(server.metrics, "GET", "/metrics", &[page], "").status, 403, "{page:?}");
    }
    for (host, status) in
        [("evil.example", 421), ("prometheus-target:9100", 200), ("limits.example", 200)]
    {
        assert_eq!(at_host(server.metrics, host, "GET /metrics", "", "").status, status, "{host}");
    }
}

/// A proxy puts the name of a cluster where the host is, so only the fields of a page are refused.
#[test]
fn a_page_calls_nothing_over_grpc() {
    let server = server();
    let mut grpc = Grpc::to(server.grpc);
    let body = message(&Request::about(&[("ip", "203.0.113.7")]).encode_to_vec());
    for page in PAGES {
        let head = [&HEAD[..], &[page]].concat();
        let stream = grpc.send(&head, &body);
        assert_eq!(grpc.told(stream).http, 403, "{page:?}");
    }
    let cluster = "tidegate.ns.example.com";
    let head = HEAD.map(|(name, value)| (name, if name == ":authority" { cluster } else { value }));
    for head in [head.to_vec(), HEAD.to_vec()] {
        let stream = grpc.send(&head, &body);
        let told = grpc.told(stream);
        assert_eq!((told.http, told.answer().passed()), (200, true), "{told:?}");
    }
    assert_eq!(left(&server), 998);
}
