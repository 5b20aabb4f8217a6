//! The bounds of the reverse proxy: time, memory, interim answers, and requests that wait when the server stops.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use support::redis::Redis;
use support::{Reply, Server, connect, request};

const OPEN: &str = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1000000/min] }] }";
const LISTEN: [&str; 2] = ["--proxy-listen", "127.0.0.1:0"];

/// An upstream server: `answer` gets every connection after the head of its first request.
fn upstream(answer: impl Fn(&str, TcpStream) + Send + Sync + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || answer(&head(&mut stream), stream));
        }
    });
    url
}

/// Reads up to the end of a head, byte by byte.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn proxy(url: &str, flags: &[&str]) -> Server {
    Server::with_policy(OPEN, &[&LISTEN[..], &["--proxy-upstream", url], flags].concat())
}

/// A proxy whose only group has this URL and these timeouts.
fn proxy_with_timeouts(url: &str, timeouts: &str) -> Server {
    let folder = support::folder("routes");
    let path = folder.join("routes.yaml");
    let routes =
        format!("groups: {{ api: {{ servers: [\"{url}\"], timeouts: {{ {timeouts} }} }} }}");
    std::fs::write(&path, routes).unwrap();
    let flags = [&LISTEN[..], &["--proxy-routes", path.to_str().unwrap()]].concat();
    Server::with_policy(OPEN, &flags)
}

fn metric(server: &Server, name: &str) -> usize {
    let text = server.admin("GET", "/metrics", "", "").body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().parse().unwrap_or_else(|_| panic!("{name} in {text}"))
}

/// Hints reach the client before the answer exists; fields that concern the connection only do not.
#[test]
fn early_hints_are_passed_on_before_the_answer() {
    let (go_on, waits) = mpsc::channel::<()>();
    let waits = std::sync::Arc::new(std::sync::Mutex::new(waits));
    let url = upstream(move |_, mut stream| {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nconnection: x\r\n\r\n").unwrap();
        waits.lock().unwrap().recv().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").unwrap();
    });
    let server = proxy(&url, &[]);
    let mut stream = connect(server.proxy);
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let hint = head(&mut stream);
    assert_eq!(hint, "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n");
    go_on.send(()).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let answer = Reply::parse(&rest);
    assert_eq!((answer.status, answer.body.as_str()), (200, "done"));
}

#[test]
fn a_server_that_sends_interim_answers_for_ever_is_not_valid() {
    let url = upstream(
        |_, mut stream| {
            while stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").is_ok() {}
        },
    );
    let server = proxy(&url, &[]);
    let mut stream = connect(server.proxy);
    stream.write_all(b"GET / HTTP/1.0\r\nhost: x\r\n\r\n").unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert_eq!(Reply::parse(&all).status, 502, "{all}");
    assert!(all.contains("too many interim answers"), "{all}");
}

/// The time for the whole exchange ends an answer that never stops, and one that never begins.
#[test]
fn the_whole_exchange_has_a_time() {
    let url = upstream(|head, mut stream| {
        if head.starts_with("GET /endless") {
            let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n";
            let _ = stream.write_all(head);
        }
        // Until the proxy closes the connection.
        let _ = stream.read(&mut [0]);
    });
    let server = proxy_with_timeouts(&url, "total: 300ms");
    assert_eq!(request(server.proxy, "GET", "/silent", &[], "").status, 504);
    // Long enough for the head to arrive on a busy machine, and shorter than the time without a byte (60 s).
    let server = proxy_with_timeouts(&url, "total: 10s");
    let endless = request(server.proxy, "GET", "/endless", &[], "");
    assert_eq!(endless.status, 200);
    assert!(!endless.body.ends_with("0\r\n\r\n"), "it must not look complete");
}

/// Clients that do not read hold at most what the budget allows; others are served meanwhile; nothing stays counted.
#[test]
fn bodies_stay_within_the_budget() {
    const ASKED: usize = 60;
    const MIB: usize = 1024 * 1024;
    // More than the sockets between the server and a client that does not read can hold (4 MiB and more).
    const BODY: usize = 16 * MIB;
    let url = upstream(|_, mut stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        let _ = (0..BODY / MIB).try_for_each(|_| stream.write_all(&vec![b'x'; MIB]));
        let _ = stream.read(&mut [0]);
    });
    let server = proxy(&url, &["--proxy-buffer-budget", "8MiB", "--proxy-body-timeout", "1day"]);
    let stalled: Vec<TcpStream> = (0..ASKED)
        .filter_map(|_| {
            let mut stream = connect(server.proxy);
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            // Its head has arrived, so its body is on its way. A source that holds its share gets no more.
            let head = head(&mut stream);
            assert!(head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 503"), "{head}");
            head.starts_with("HTTP/1.1 200").then_some(stream)
        })
        .collect();
    assert!((10..ASKED).contains(&stalled.len()), "{}", stalled.len());
    let used = || metric(&server, "tidegate_proxy_buffer_bytes{kind=\"used\"}");
    assert!((1..=8 * MIB).contains(&used()), "{}", used());
    // When some have gone, one that reads on gets everything, although the others still hold what they hold.
    let mut few: Vec<TcpStream> = stalled.into_iter().take(6).collect();
    let mut reader = few.remove(0);
    let mut body = vec![0; BODY];
    reader.read_exact(&mut body).unwrap();
    assert!(body.iter().all(|byte| *byte == b'x') && used() <= 8 * MIB);
    drop((reader, few));
    server.until("everything is free", |_| used() == 0);
}

/// A request that waits for a turn after the end of the drain is told to come again, and its turn is free for another server.
#[test]
fn waiting_requests_are_answered_when_the_server_stops() {
    const TURN: u64 = 1_800_000;
    let redis = Redis::started();
    let url = upstream(|_, mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    });
    let policy = "{ version: 1, rules: [{ name: all, key: [], on_limit: { delay: { max_wait: 1h } }, limits: [{ rate: 2/h, algorithm: leaky_bucket, queue: 10 }] }] }";
    let store = redis.url();
    let flags = ["--store", store.as_str(), "--drain-timeout", "4s"];
    let flags = [&LISTEN[..], &["--proxy-upstream", &url], &flags].concat();
    let mut server = Server::with_policy(policy, &flags);
    let peeked = |server: &Server| server.post("/v1/peek", "{\"attributes\":{}}").json();
    server.until("the store answers", |server| peeked(server)["decided_by"] == "store");
    assert_eq!(request(server.proxy, "GET", "/", &[], "").status, 200);
    let address = server.proxy;
    let waiting = thread::spawn(move || request(address, "GET", "/", &[], ""));
    // The turns are half an hour apart; the next one comes after those that are taken.
    let next = |server: &Server| peeked(server)["retry_after_ms"].as_u64().unwrap();
    server.until("it has its turn", |server| next(server) > TURN);
    server.signal("TERM");
    let answer = waiting.join().unwrap();
    assert_eq!((answer.status, answer.field("retry-after")), (503, Some("1")), "{answer:?}");
    assert!(server.wait().success());
    let secret = server.data("secret");
    let flags = ["--store", &store, "--secret-file", secret.to_str().unwrap()];
    let other = Server::with_policy(policy, &flags);
    other.until("the store answers", |server| peeked(server)["decided_by"] == "store");
    assert!(next(&other) <= TURN, "{}", next(&other));
}
