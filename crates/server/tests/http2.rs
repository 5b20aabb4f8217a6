//! HTTP/2 without TLS and with prior knowledge: valid requests, invalid ones, slow ones, and floods.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

use crate::support;

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use support::http1::{Wire, while_others_ask};
use support::http2::{
    ACK, Answer, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, NONE, PADDED,
    PING, PRIORITY, RST_STREAM, SETTINGS, Two, WINDOW_UPDATE, fields, frame, request, text,
};
use support::{Server, pause};

const ALICE: &[u8] = b"{\"attributes\":{\"user\":\"alice\"}}";
const POLICY: &str = "
version: 1
rules: [{ name: per-user, key: [user], limits: [{ rate: 1000/h, algorithm: fixed_window, align: first }] }]
";
/// Short enough to wait for, and long enough that the test itself is not late on a busy machine.
const SHORT: [&str; 6] =
    ["--http-header-timeout", "2s", "--http-body-timeout", "2s", "--http-idle-timeout", "3s"];

fn status(answer: &Answer) -> u16 {
    match answer {
        Answer::Whole { status, .. } => *status,
        Answer::Reset(_) | Answer::Gone => 0,
    }
}

// === valid requests ===

#[test]
fn requests_are_answered_as_over_http_1() {
    let server = Server::with_policy(POLICY, &[]);
    let mut two = Two::to(server.http);
    assert_eq!(
        two.asked("GET", "/live", b""),
        Answer::Whole { status: 200, body: b"{\"status\":\"live\"}\n".to_vec() }
    );
    let Answer::Whole { status: 200, body } = two.asked("POST", "/v1/check", ALICE) else {
        panic!("no verdict");
    };
    let verdict: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(verdict["limits"][0]["remaining"], 999);
    for (method, path, body, expected) in [
        ("GET", "/nowhere", &b""[..], 404),
        ("GET", "/v1/check", b"", 405),
        ("POST", "/v1/check", b"{}", 400),
        ("GET", "/v1/auth", b"", 400),
    ] {
        assert_eq!(status(&two.asked(method, path, body)), expected, "{method} {path}");
    }
    server.is_sound();
}

#[test]
fn a_hundred_streams_at_once_are_all_answered() {
    let server = Server::with_policy(POLICY, &[]);
    let mut two = Two::to(server.http);
    let streams: Vec<u32> = (0..100).map(|_| two.next()).collect();
    let asked: Vec<u8> = streams
        .iter()
        .flat_map(|stream| {
            [request(*stream, "POST", "/v1/check", false), frame(DATA, END_STREAM, *stream, ALICE)]
                .concat()
        })
        .collect();
    two.send(&asked);
    let mut ended = Vec::new();
    while ended.len() < streams.len() {
        let Some(frame) = two.frame() else { panic!("it ended after {} answers", ended.len()) };
        if frame.kind == DATA && frame.flags & END_STREAM != 0 {
            ended.push(frame.stream);
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, streams);
}

/// Cookies may be split into several fields, and trailer fields may follow the body.
#[test]
fn forward_auth_reads_fields_as_over_http_1() {
    let policy = "
version: 1
identity: { trusted: [127.0.0.0/8], session: 'cookie:sid' }
rules: [{ name: s, key: [session, path], limits: [{ rate: 2/h, algorithm: fixed_window, align: first }] }]
";
    let server = Server::with_policy(policy, &[]);
    let mut two = Two::to(server.http);
    for (cookies, expected) in [
        (&["a=b; sid=7"][..], 200),
        (&["a=b", "sid=7", "c=d"], 200),
        (&["sid=7"], 429),
        (&["sid=8"], 200),
    ] {
        let mut list = vec![
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/v1/auth"),
            (":authority", "t"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/a/../b"),
        ];
        list.extend(cookies.iter().map(|cookie| ("cookie", *cookie)));
        let stream = two.next();
        two.send(&frame(HEADERS, END_HEADERS, stream, &fields(&list)));
        two.send(&frame(DATA, NONE, stream, b"a body"));
        two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[("x", "y")])));
        assert_eq!(status(&two.answer(stream)), expected, "{cookies:?}");
    }
}

/// A client whose request is refused because of its header may still be sending the body. That is not abuse, however
/// often it happens.
#[test]
fn who_is_answered_early_may_finish_and_go_on() {
    let server = Server::start(&[]);
    let mut two = Two::to(server.http);
    for n in 0..200 {
        let stream = two.next();
        two.send(&request(stream, "POST", "/nowhere", false));
        assert_eq!(status(&two.answer(stream)), 404, "the {n}th");
        two.send(&frame(DATA, NONE, stream, b"{"));
        two.send(&frame(DATA, END_STREAM, stream, b"}"));
    }
    assert_eq!(status(&two.asked("GET", "/live", b"")), 200);
}

/// An answer to `HEAD` has no body in any version of HTTP. A client that gets one closes the connection.
#[test]
fn an_answer_to_head_has_no_body() {
    let server = Server::start(&[]);
    let mut two = Two::to(server.http);
    for path in ["/live", "/ready", "/openapi.json", "/nowhere"] {
        let Answer::Whole { body, .. } = two.asked("HEAD", path, b"") else { panic!("{path}") };
        assert_eq!(String::from_utf8(body).unwrap(), "", "{path}");
    }
}

/// Sixty-four connections take from one key, half of them over each version of HTTP. All of them together get no more
/// than the limit.
#[test]
fn sixty_four_connections_of_both_kinds_get_what_one_would_get() {
    let server = Server::with_policy(POLICY, &[]);
    let passed = AtomicU32::new(0);
    let check = format!(
        "POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
        ALICE.len(),
        str::from_utf8(ALICE).unwrap()
    );
    let one = || {
        let mut wire = Wire::to(server.http);
        for _ in 0..40 {
            wire.send(check.as_bytes());
            count(wire.answer().unwrap().status, &passed);
        }
    };
    let two = || {
        let mut two = Two::to(server.http);
        for _ in 0..40 {
            count(status(&two.asked("POST", "/v1/check", ALICE)), &passed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(one);
            scope.spawn(two);
        }
    });
    assert_eq!(passed.into_inner(), 1_000);
    server.is_sound();
}

fn count(status: u16, passed: &AtomicU32) {
    match status {
        200 => _ = passed.fetch_add(1, Ordering::Relaxed),
        other => assert_eq!(other, 429),
    }
}

// === invalid requests ===

/// Requests that cannot be expressed in HTTP/1. None of them is answered like a valid request, and the next valid
/// request is.
#[test]
fn what_is_no_request_ends_its_stream_or_the_connection() {
    let server = Server::start(&[]);
    let honest = [(":method", "GET"), (":scheme", "http"), (":path", "/live"), (":authority", "t")];
    let with = |more: &[(&'static str, &'static str)]| [&honest[..], more].concat();
    let but = |name: &'static str, value: &'static str| {
        let changed =
            honest.iter().map(|(known, old)| (*known, if *known == name { value } else { *old }));
        changed.collect::<Vec<_>>()
    };
    let without =
        |name: &str| honest.into_iter().filter(|(known, _)| *known != name).collect::<Vec<_>>();
    let cases = [
        ("a blank in the path", but(":path", "/li ve")),
        ("a line end in the path", but(":path", "/live\r\nx: y")),
        ("an empty path", but(":path", "")),
        ("a request line for a method", but(":method", "GET / HTTP/1.1\r\nx: y")),
        ("a line end in a value", with(&[("x", "y\r\nz: 1")])),
        ("NUL in a value", with(&[("x", "y\0z")])),
        ("a line end in a name", with(&[("x\r\ny", "z")])),
        ("a colon in a name", with(&[("x:y", "z")])),
        ("capitals in a name", with(&[("X-Y", "z")])),
        ("no method", without(":method")),
        ("no path", without(":path")),
        ("two methods", with(&[(":method", "PUT")])),
        ("two paths", with(&[(":path", "/ready")])),
        ("two authorities", with(&[(":authority", "evil")])),
        ("a pseudo field behind a field", [&[("x", "y")], &honest[..]].concat()),
        ("a pseudo field that is none", with(&[(":evil", "x")])),
        ("the status of an answer", with(&[(":status", "200")])),
        ("a field about the connection", with(&[("connection", "close")])),
        ("a transfer coding", with(&[("transfer-encoding", "chunked")])),
    ];
    for (name, list) in cases {
        let mut two = Two::to(server.http);
        let stream = two.next();
        two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&list)));
        let answer = two.answer(stream);
        let refused =
            matches!(answer, Answer::Reset(_) | Answer::Gone | Answer::Whole { status: 400, .. });
        assert!(refused, "{name}: {answer:?}");
        assert_eq!(status(&Two::to(server.http).asked("GET", "/live", b"")), 200, "after {name}");
    }
    server.is_sound();
}

#[test]
fn a_request_names_one_host() {
    let server = Server::start(&[]);
    let honest = [(":method", "GET"), (":scheme", "http"), (":path", "/live")];
    for (more, expected) in [
        (&[(":authority", "t"), ("host", "t")][..], 200),
        (&[(":authority", "t"), ("host", "T")], 200),
        (&[("host", "t")], 200),
        (&[(":authority", "t"), ("host", "evil")], 400),
        (&[(":authority", "t"), ("host", "t"), ("host", "t")], 400),
        (&[("host", "t"), ("host", "evil")], 400),
        (&[], 400),
    ] {
        let mut two = Two::to(server.http);
        let stream = two.next();
        let list = [&honest[..], more].concat();
        two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&list)));
        assert_eq!(status(&two.answer(stream)), expected, "{more:?}");
    }
}

#[test]
fn heads_and_bodies_have_the_bounds_of_http_1() {
    let server = Server::with_policy(POLICY, &[]);
    let asked = |path: &str, more: &[(&str, &str)], body: &[u8]| {
        let mut two = Two::to(server.http);
        assert!(two.in_step()); // now the windows are known
        let stream = two.next();
        let method = if body.is_empty() { "GET" } else { "POST" };
        let list = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "t")];
        let list = [&list[..], more].concat();
        let flags = if body.is_empty() { END_HEADERS | END_STREAM } else { END_HEADERS };
        two.send(&frame(HEADERS, flags, stream, &fields(&list)));
        two.send_body(stream, body);
        two.answer(stream)
    };
    let json = ("content-type", "application/json");
    let blanks = |bytes: usize| [ALICE, &b" ".repeat(bytes - ALICE.len())].concat();
    let path = |bytes: usize| format!("/{}", "p".repeat(bytes - 1));
    let value = |bytes: usize| "v".repeat(bytes);
    assert_eq!(status(&asked(&path(8 * 1024), &[], b"")), 404);
    assert_eq!(status(&asked(&path(8 * 1024 + 1), &[], b"")), 414);
    assert_eq!(status(&asked("/live", &[("x", &value(12 * 1024))], b"")), 200);
    assert_eq!(status(&asked("/live", &[("x", &value(16 * 1024 - 100))], b"")), 431);
    assert_eq!(status(&asked("/live", &[("x", "y"); 100], b"")), 200);
    assert_eq!(status(&asked("/live", &[("x", "y"); 101], b"")), 431);
    assert_eq!(status(&asked("/v1/check", &[json], &blanks(64 * 1024))), 200);
    assert_eq!(status(&asked("/v1/check", &[json], &blanks(64 * 1024 + 1))), 413);
    assert_eq!(status(&asked("/v1/check", &[("content-type", "text/xml")], ALICE)), 415);
    assert_eq!(status(&asked("/v1/check", &[json, ("content-encoding", "gzip")], ALICE)), 415);
    // A `content-length` that differs from the frames is an error of the stream.
    let short = asked("/v1/check", &[json, ("content-length", "5")], ALICE);
    assert!(matches!(short, Answer::Reset(_) | Answer::Gone), "{short:?}");
    let long = asked("/v1/check", &[json, ("content-length", "99")], ALICE);
    assert!(matches!(long, Answer::Reset(_) | Answer::Gone), "{long:?}");
    server.is_sound();
}

// === slow clients ===

#[test]
fn who_takes_too_long_is_sent_away() {
    let server = Server::start(&SHORT);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for length in [1, 10, preface.len()] {
        let mut wire = Wire::to(server.http);
        wire.send(&preface[..length]);
        wire.rest(); // until the server closes
    }
    // No request at all; nothing after an answer; a header that never ends.
    Two::to(server.http).until_end();
    let mut two = Two::to(server.http);
    assert_eq!(status(&two.asked("GET", "/live", b"")), 200);
    two.until_end();
    let mut two = Two::to(server.http);
    two.send(&frame(HEADERS, END_STREAM, 1, &fields(&[(":method", "GET")])));
    two.until_end();
    // A body that never ends is answered, and then the connection is closed.
    let mut two = Two::to(server.http);
    two.send(&request(1, "POST", "/v1/check", false));
    two.send(&frame(DATA, NONE, 1, b"{"));
    let late = two.answer(1);
    assert_eq!(status(&late), 408, "{late:?}");
    two.until_end();
    server.is_sound();
}

/// The server counts the streams that it works on, to know when a connection is idle. A stream that the client resets
/// must not stay counted.
#[test]
fn a_request_that_was_taken_back_keeps_no_connection_open() {
    let server = Server::start(&SHORT);
    let mut two = Two::to(server.http);
    let stream = two.next();
    two.send(&request(stream, "POST", "/v1/check", false));
    assert!(two.in_step()); // the server waits for the body
    two.send(&frame(RST_STREAM, NONE, stream, &8_u32.to_be_bytes()));
    assert!(two.in_step());
    two.until_end();
}

/// A client that opens no window gets no answer, and the server does not wait for it.
#[test]
fn answers_that_nobody_takes_are_not_kept() {
    let server = Server::start(&SHORT);
    let before = server.resident_kib();
    while_others_ask(&server, || {
        let closed = [0, 4, 0, 0, 0, 0]; // SETTINGS_INITIAL_WINDOW_SIZE
        let mut all: Vec<Two> = (0..20).map(|_| Two::with_settings(server.http, &closed)).collect();
        for two in &mut all {
            for _ in 0..100 {
                two.ask("GET", "/openapi.json", b"");
            }
        }
        for two in &mut all {
            let bodies = two.until_end().into_iter().filter(|frame| frame.kind == DATA);
            assert_eq!(bodies.map(|frame| frame.payload.len()).sum::<usize>(), 0);
        }
    });
    server.has_not_grown(before);
}

/// The server once kept an unread answer for as long as the connection was not idle. A client that sent a small
/// request now and then made it keep a hundred large answers on every connection.
#[test]
fn an_answer_that_nobody_takes_is_not_kept_for_those_that_are_taken() {
    let server = Server::start(&SHORT);
    let closed = [0, 4, 0, 0, 0, 0];
    let mut two = Two::with_settings(server.http, &closed);
    two.ask("GET", "/openapi.json", b"");
    // Enough requests for a minute; the connection is closed before.
    let ended = (0..600).any(|_| {
        let stream = two.ask("GET", "/live", b"");
        two.send(&frame(WINDOW_UPDATE, NONE, stream, &100_u32.to_be_bytes()));
        pause(Duration::from_millis(100));
        status(&two.answer(stream)) != 200
    });
    assert!(ended);
    server.until_refused("unread", 1);
}

#[test]
fn an_idle_connection_costs_little() {
    let server = Server::start(&["--http-max-connections-per-source", "2000"]);
    assert_eq!(server.get("/live").status, 200);
    let before = server.resident_kib();
    let mut idle: Vec<Two> = (0..1_000).map(|_| Two::to(server.http)).collect();
    for two in &mut idle {
        assert_eq!(status(&two.asked("GET", "/live", b"")), 200);
    }
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown <= 48 * 1_000, "{grown} KiB for a thousand");
}

// === floods ===

impl Server {
    /// Checks that nothing of what was sent stayed in memory, and that no internal error occurred.
    fn has_not_grown(&self, before: u64) {
        let grown = self.resident_kib().saturating_sub(before);
        assert!(grown <= 32 * 1024, "{grown} KiB more");
        self.is_sound();
    }
}

/// Builds what is sent for the next stream.
type Make<'m> = &'m dyn Fn(u32) -> Vec<u8>;

/// Sends what `make` builds, this many times, while other clients send requests. Returns how many were accepted
/// before the server closed the connection.
fn flood(times: usize, make: impl FnMut(u32) -> Vec<u8>) -> usize {
    let server = Server::start(&[]);
    let before = server.resident_kib();
    let taken = while_others_ask(&server, || Two::to(server.http).flood(times, make));
    server.has_not_grown(before);
    taken
}

/// Requests that are reset immediately cost the client nothing (rapid reset, CVE-2023-44487).
#[test]
fn requests_that_are_taken_back_are_cut_off() {
    let taken = flood(50_000, |stream| {
        let taken_back = frame(RST_STREAM, NONE, stream, &8_u32.to_be_bytes());
        [request(stream, "GET", "/live", true), taken_back].concat()
    });
    assert!(taken <= 1_000, "{taken}");
}

/// A client that makes the server reset stream after stream is cut off (CVE-2025-8671).
#[test]
fn streams_that_the_server_must_end_are_cut_off() {
    let no_window = |stream: u32| {
        let update = frame(WINDOW_UPDATE, NONE, stream, &[0; 4]);
        [request(stream, "POST", "/v1/check", false), update].concat()
    };
    let too_much_window = |stream: u32| {
        let update = frame(WINDOW_UPDATE, NONE, stream, &0x7fff_ffff_u32.to_be_bytes());
        [request(stream, "POST", "/v1/check", false), update].concat()
    };
    let after_the_end = |stream: u32| {
        let data = frame(DATA, END_STREAM, stream, b"x");
        [request(stream, "GET", "/live", true), data].concat()
    };
    let itself = |stream: u32| {
        let priority = [&stream.to_be_bytes()[..], &[0]].concat();
        [request(stream, "POST", "/v1/check", false), frame(PRIORITY, NONE, stream, &priority)]
            .concat()
    };
    let wrong =
        |stream: u32| frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[("X", "y")]));
    let makes: [(&str, Make<'_>); 5] = [
        ("a window of nothing", &no_window),
        ("a window of too much", &too_much_window),
        ("data after the end", &after_the_end),
        ("a stream that depends on itself", &itself),
        ("no request", &wrong),
    ];
    for (name, make) in makes {
        let taken = flood(50_000, make);
        assert!(taken <= 2_000, "{name}: {taken}");
    }
}

#[test]
fn frames_that_ask_for_nothing_are_cut_off() {
    let makes: [(&str, Make<'_>); 6] = [
        ("pings", &|_| frame(PING, NONE, 0, b"sent all")),
        ("answers to pings", &|_| frame(PING, ACK, 0, b"sent all")),
        ("settings", &|_| frame(SETTINGS, NONE, 0, &[0, 3, 0, 0, 0, 100])),
        ("windows", &|_| frame(WINDOW_UPDATE, NONE, 0, &1_u32.to_be_bytes())),
        ("priorities", &|_| frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 7])),
        ("frames of no known kind", &|_| frame(0xbb, NONE, 0, b"?")),
    ];
    for (name, make) in makes {
        let taken = flood(100_000, make);
        assert!(taken <= 2_000, "{name}: {taken}");
    }
}

/// A body that goes on without growing. A frame with padding only is as empty as a frame without bytes.
#[test]
fn bodies_of_nothing_are_cut_off() {
    for (name, flags, payload) in [
        ("empty", NONE, &b""[..]),
        ("padding alone", PADDED, &[0]),
        ("much padding", PADDED, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let mut first = true;
        let taken = flood(100_000, |_| {
            let begin = if first { request(1, "POST", "/v1/check", false) } else { Vec::new() };
            first = false;
            [begin, frame(DATA, flags, 1, payload)].concat()
        });
        assert!(taken <= 2_000, "{name}: {taken}");
    }
}

/// A header that never ends (CVE-2024-27316), sent as fast as possible.
#[test]
fn a_header_without_an_end_is_cut_off() {
    for payload in [&b""[..], &fields(&[("x", "y")]), &fields(&[("x", &"y".repeat(16_000))])] {
        let server = Server::start(&[]);
        let before = server.resident_kib();
        while_others_ask(&server, || {
            let mut two = Two::to(server.http);
            let begin = fields(&[
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/live"),
                (":authority", "t"),
            ]);
            two.send(&frame(HEADERS, END_STREAM, 1, &begin));
            let piece =
                frame(CONTINUATION, NONE, 1, payload).repeat(16 * 1024 / (payload.len() + 9) + 1);
            let pieces = 64 * 1024 * 1024 / piece.len();
            let mut writer = two.writer();
            // The operating system buffers a few megabytes. The server does not read the rest.
            let taken = std::thread::spawn(move || {
                (0..pieces).take_while(|_| writer.write_all(&piece).is_ok()).count()
            });
            let ended = two.until_end();
            assert!(!ended.iter().any(|frame| frame.kind == HEADERS), "{ended:?}");
            let taken = taken.join().unwrap();
            assert!(taken < pieces / 2, "{taken} of {pieces}");
        });
        server.has_not_grown(before);
    }
}

/// A few bytes that stand for many (an HPACK bomb): one large field that is kept in the table, then its index again
/// and again.
#[test]
fn a_header_that_unfolds_to_megabytes_is_refused() {
    let server = Server::start(&[]);
    let before = server.resident_kib();
    while_others_ask(&server, || {
        for _ in 0..20 {
            let mut two = Two::to(server.http);
            let first = two.next();
            let honest =
                [(":method", "GET"), (":scheme", "http"), (":path", "/live"), (":authority", "t")];
            let mut block = fields(&honest);
            block.push(0x40); // literal with indexing
            text(&mut block, b"x");
            text(&mut block, "v".repeat(4_000).as_bytes());
            two.send(&frame(HEADERS, END_HEADERS | END_STREAM, first, &block));
            assert_eq!(status(&two.answer(first)), 200);
            let mut block = fields(&honest);
            block.extend(std::iter::repeat_n(0x80 | 62, 15_000)); // 60 MB
            for _ in 0..5 {
                let stream = two.next();
                two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
                let answer = two.answer(stream);
                let refused = matches!(
                    answer,
                    Answer::Whole { status: 431, .. } | Answer::Reset(_) | Answer::Gone
                );
                assert!(refused, "{answer:?}");
            }
        }
    });
    server.has_not_grown(before);
}

/// Streams above the announced maximum are not opened, and a client that goes on trying is disconnected.
#[test]
fn more_streams_than_offered_are_not_begun() {
    let server = Server::start(&[]);
    let mut two = Two::to(server.http);
    let offered = |frame: &Frame| {
        frame.kind == SETTINGS && frame.payload.chunks(6).any(|one| one == [0, 3, 0, 0, 0, 100])
    };
    let first = two.frame().unwrap();
    assert!(offered(&first), "{first:?}");
    let taken = flood(10_000, |stream| request(stream, "POST", "/v1/check", false));
    assert!(taken <= 1_000, "{taken}");
}

/// The server announces the end (GOAWAY), so that a correct client knows which requests it may send elsewhere.
#[test]
fn who_is_cut_off_for_streams_is_told_so() {
    let server = Server::start(&[]);
    let mut two = Two::to(server.http);
    let bytes: Vec<u8> = (0..200)
        .flat_map(|n| {
            let stream = 2 * n + 1;
            let taken_back = frame(RST_STREAM, NONE, stream, &8_u32.to_be_bytes());
            [request(stream, "GET", "/live", true), taken_back].concat()
        })
        .collect();
    two.send(&bytes);
    let enhance_your_calm = 11_u32.to_be_bytes();
    let told = two
        .until_end()
        .into_iter()
        .any(|frame| frame.kind == GOAWAY && frame.payload.get(4..8) == Some(&enhance_your_calm));
    assert!(told);
}
