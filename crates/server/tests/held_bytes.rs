//! Memory that is held for clients: requests that never end, and answers that the client does not read.
//!
//! The story: a server with a memory budget of 8 MiB received bodies that never ended, and requests whose answers
//! were never read. One source made it use 500 MiB to 1 GiB, in four ways. Each of them is tried here, with enough
//! connections to exceed the bound clearly if the memory were not bounded.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

use crate::support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use support::Server;
use support::http1::{Wire, while_others_ask};
use support::http2::{
    Answer, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, NONE, RST_STREAM, Two, fields, frame,
    request,
};

const MIB: usize = 1024 * 1024;
/// What may be held for clients, plus what this many connections need otherwise.
const BOUND_KIB: u64 = (64 + 48) * 1024;

fn server(policy: &str) -> Server {
    Server::with_policy(policy, &["--memory-budget", "8MiB"])
}

const POLICY: &str = "
version: 1
rules: [{ name: all, key: [ip], limits: [{ rate: 1000000/h }] }]
";

/// Runs an attack while other clients are served, and checks the peak memory of the server.
fn bounded(server: &Server, attack: impl FnOnce()) {
    let before = server.resident_kib();
    while_others_ask(server, attack);
    let more = server.peak_kib().saturating_sub(before);
    assert!(more <= BOUND_KIB, "{} MiB more", more / 1024);
    // All held memory is released.
    server.until("nothing is held any more", |server| {
        server.metric("tidegate_connection_bytes{kind=\"used\"}") == 0
    });
    server.is_sound();
}

/// Sends all but the last byte of a request on several connections at once, then the last byte, and returns the
/// answers.
fn nearly(address: SocketAddr, connections: usize, text: &[u8]) -> Vec<Vec<u8>> {
    let (most, last) = text.split_at(text.len() - 1);
    let mut wires: Vec<Wire> = (0..connections).map(|_| Wire::to(address)).collect();
    // The server may read nothing for a while, or close the connection. No connection waits for another.
    thread::scope(|scope| wires.iter_mut().for_each(|wire| _ = scope.spawn(|| wire.send(most))));
    thread::scope(|scope| {
        let rest = wires.iter_mut().map(|wire| {
            scope.spawn(|| {
                wire.send(last);
                wire.end();
                wire.rest()
            })
        });
        let rest: Vec<_> = rest.collect();
        rest.into_iter().map(|rest| rest.join().unwrap()).collect()
    })
}

#[test]
fn bodies_that_never_end_over_http_1() {
    let server = server(POLICY);
    let body = [b"[", &vec![b' '; MIB - 2][..], b"]"].concat();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let text = [head.as_bytes(), &body].concat();
    bounded(&server, || {
        // Some requests wait for room and get it. Others are refused; most of these see no answer, because they sent
        // more than the server reads.
        nearly(server.http, 200, &text);
    });
}

/// Chunked bodies, whose length is not known in advance, that never end.
#[test]
fn chunks_that_never_end() {
    let server = server(POLICY);
    let head = "POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = [b"1000\r\n", &vec![b' '; 4096][..], b"\r\n"].concat();
    let chunks = [b"1000\r\n[", &vec![b' '; 4095][..], b"\r\n", &chunk.repeat(254)].concat();
    let text = [head.as_bytes(), &chunks, b"0\r\n\r\n"].concat();
    bounded(&server, || _ = nearly(server.http, 200, &text));
}

#[test]
fn commands_that_never_end_over_resp() {
    let server = server(POLICY);
    let word = [b"$8192\r\n", &vec![b'x'; 8192][..], b"\r\n"].concat();
    let text = [b"*64\r\n", &word.repeat(64)[..]].concat();
    bounded(&server, || {
        nearly(server.resp, 300, &text);
    });
}

/// The header fields of a request whose body has this length and is sent later.
fn announced(stream: u32, length: usize) -> Vec<u8> {
    let length = length.to_string();
    let list = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/check"),
        (":authority", "t"),
        ("content-type", "application/json"),
        ("content-length", &length),
    ];
    frame(HEADERS, END_HEADERS, stream, &fields(&list))
}

#[test]
fn bodies_that_never_end_over_http_2() {
    let server = server(POLICY);
    let attack = || {
        let mut two = Two::to(server.http);
        let mut open: BTreeSet<u32> = (0..100).map(|_| two.next()).collect();
        for stream in &open {
            two.send(&announced(*stream, MIB));
        }
        // All streams take turns. Each sends as much as its window allows, until all but its last byte is sent or it
        // is refused.
        let mut sent = std::collections::BTreeMap::<u32, usize>::new();
        while let Some(stream) = open.iter().copied().find(|stream| two.window(*stream) > 0) {
            let so_far = sent.entry(stream).or_default();
            let window = usize::try_from(two.window(stream)).unwrap();
            let mut piece = vec![b' '; window.min(16 * 1024).min(MIB - 1 - *so_far)];
            if *so_far == 0 {
                piece[0] = b'[';
            }
            two.send_data(NONE, stream, &piece);
            *so_far += piece.len();
            if *so_far == MIB - 1 {
                open.remove(&stream);
            }
            while !open.is_empty() && !open.iter().any(|stream| two.window(*stream) > 0) {
                let Some(frame) = two.frame() else { return };
                match frame.kind {
                    GOAWAY => return,
                    HEADERS | RST_STREAM => _ = open.remove(&frame.stream),
                    _ => {}
                }
            }
        }
        // Either the server has handled it, or the connection is closed.
        two.in_step();
    };
    bounded(&server, || thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(attack))));
}

/// Streams that never end, each with many header fields.
#[test]
fn streams_that_never_end() {
    let server = server(POLICY);
    let cookie = "x".repeat(12_000);
    let attack = || {
        let mut two = Two::to(server.http);
        for _ in 0..100 {
            let stream = two.next();
            let list = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/v1/check"),
                (":authority", "t"),
                ("content-type", "application/json"),
                ("cookie", &cookie),
            ];
            two.send(&frame(HEADERS, END_HEADERS, stream, &fields(&list)));
        }
        two.in_step();
        two
    };
    bounded(&server, || {
        let all: Vec<Two> = (0..120).map(|_| attack()).collect();
        drop(all);
    });
}

/// Answers of 2 MiB each that the client does not read: sixteen limits for each of a thousand entries.
#[test]
fn answers_that_nobody_takes() {
    let limits: Vec<String> = (1..=16)
        .map(|number| {
            format!("{{ name: l{number}, rate: {number}000000/h, algorithm: token_bucket }}")
        })
        .collect();
    let policy = format!(
        "version: 1\nrules: [{{ name: all, key: [ip], limits: [{}] }}]\n",
        limits.join(", ")
    );
    let server = server(&policy);
    let list = vec!["{\"attributes\":{\"ip\":\"203.0.113.7\"}}"; 1_000].join(",");
    let body = format!("[{list}]").into_bytes();
    let attack = || {
        // The client opens a window of 0 bytes for answers.
        let mut two = Two::with_settings(server.http, &[0, 4, 0, 0, 0, 0]);
        for _ in 0..30 {
            let stream = two.next();
            two.send(&request(stream, "POST", "/v1/check", false));
            if !two.send_body(stream, &body) {
                return;
            }
            // The header fields of an answer need no window. The server chooses what it sends, and whether it closes
            // the connection.
            loop {
                match two.frame() {
                    Some(frame) if frame.kind == HEADERS && frame.stream == stream => break,
                    Some(frame) if frame.kind != GOAWAY => {}
                    _ => return,
                }
            }
        }
    };
    bounded(&server, || thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(attack))));
}

/// Requests within the bounds are answered, however they are sent.
#[test]
fn large_lists_are_answered() {
    let server = server(POLICY);
    let entry =
        format!("{{\"attributes\":{{\"ip\":\"203.0.113.7\",\"user\":\"{}\"}}}}", "u".repeat(900));
    let body = format!("[{}]", vec![entry; 1_000].join(","));
    assert!(body.len() > MIB * 9 / 10 && body.len() < MIB);
    for _ in 0..3 {
        let reply = server.post("/v1/check", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    let mut two = Two::to(server.http);
    let stream = two.next();
    two.send(&announced(stream, body.len()));
    assert!(two.send_body(stream, body.as_bytes()));
    let mut length = 0;
    loop {
        let frame = two.frame().unwrap();
        if frame.stream == stream && frame.kind == DATA {
            length += frame.payload.len();
            // Open the window, so that the rest can be sent.
            let more = u32::try_from(frame.payload.len()).unwrap().to_be_bytes();
            for stream in [0, stream] {
                two.send(&support::http2::frame(
                    support::http2::WINDOW_UPDATE,
                    NONE,
                    stream,
                    &more,
                ));
            }
            if frame.flags & END_STREAM != 0 {
                break;
            }
        }
    }
    assert!(length > 100_000, "{length}");
    assert!(!matches!(two.asked("GET", "/live", b""), Answer::Gone));
}
