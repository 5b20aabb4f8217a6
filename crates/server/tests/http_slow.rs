//! Slow clients: a client that takes too long is disconnected, and other clients do not wait for it.
//!
//! Nothing here measures time. A test starts a server with short timeouts, does something slow, and waits for the end
//! of the connection. If the end does not come, the test fails.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use support::http1::{Wire, is_late, while_others_ask};
use support::{Server, pause};

/// Short enough to wait for, and long enough that the test itself is not late on a busy machine.
const SHORT: [&str; 6] =
    ["--http-header-timeout", "2s", "--http-body-timeout", "2s", "--http-idle-timeout", "3s"];
const LIVE: &[u8] = b"GET /live HTTP/1.1\r\nhost: t\r\n\r\n";
const HEAD: &[u8] = b"POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 65536\r\n\r\n";

/// The pause between two bytes of a slow client. It is so short that a timeout which restarts with each byte would
/// never end.
const DRIP: Duration = Duration::from_millis(50);

/// Sends byte by byte until the server closes the connection, and returns its answer.
fn drip(server: &Server, at_once: &[u8], bytes: impl Iterator<Item = u8>) -> String {
    let mut stream = server.connect();
    stream.write_all(at_once).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut said = Vec::new();
    for byte in bytes {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => return String::from_utf8(said).unwrap(),
            Ok(count) => said.extend_from_slice(&buffer[..count]),
            Err(error) if is_late(&error) => {}
            Err(_) => return String::from_utf8(said).unwrap(),
        }
        if stream.write(&[byte]).is_err_and(|error| !is_late(&error)) {
            return String::from_utf8(said).unwrap();
        }
        pause(DRIP);
    }
    panic!("nobody was tired of waiting");
}

/// More bytes than the server waits for: they take a minute.
const ENOUGH: usize = 1_200;

#[test]
fn a_head_that_comes_byte_by_byte_is_not_waited_for() {
    let server = Server::start(&SHORT);
    let fields = "x: y\r\n".bytes().cycle().take(ENOUGH);
    let said = drip(&server, b"GET /live HTTP/1.1\r\nhost: t\r\n", fields);
    assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("connection: close"), "{said}");
    let said = drip(&server, b"", "GET /live".bytes().chain(std::iter::repeat_n(b'e', ENOUGH)));
    assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
    server.until_refused("late", 2);
}

#[test]
fn a_body_that_comes_byte_by_byte_is_not_waited_for() {
    let server = Server::start(&SHORT);
    let said = drip(&server, HEAD, std::iter::repeat_n(b' ', ENOUGH));
    assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("connection: close"), "{said}");
    let head = "POST /v1/check HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunks = "1\r\n \r\n".bytes().cycle().take(ENOUGH);
    let said = drip(&server, head.as_bytes(), chunks);
    assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
}

#[test]
fn a_body_that_stops_is_not_waited_for() {
    let server = Server::start(&SHORT);
    let mut wire = Wire::to(server.http);
    wire.send(HEAD);
    wire.send(b"{\"attribut");
    assert_eq!(wire.answer().unwrap().status, 408);
    assert!(wire.rest().is_empty());
}

#[test]
fn who_says_nothing_is_sent_away_without_a_word() {
    let server = Server::start(&SHORT);
    assert!(Wire::to(server.http).rest().is_empty()); // not even a first byte
    let mut wire = Wire::to(server.http);
    wire.send(b"P"); // HTTP/1 and HTTP/2 both begin like this
    assert!(wire.rest().is_empty());
    let mut wire = Wire::to(server.http);
    wire.send(LIVE);
    assert_eq!(wire.answer().unwrap().status, 200);
    assert!(wire.rest().is_empty()); // nothing after an answer
}

/// Empty lines before a request are skipped, because some clients send one too many. Once any number of them was
/// skipped, and each restarted the idle timeout: a client could hold a connection for ever without a request.
#[test]
fn empty_lines_are_no_requests() {
    let server = Server::start(&SHORT);
    let said = drip(&server, LIVE, "\r\n".bytes().cycle().take(ENOUGH));
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
}

/// A timer that is set for a connection is checked only when it expires. A request that begins late must still have
/// its full time.
#[test]
fn each_request_has_its_own_time() {
    let server = Server::start(&["--http-header-timeout", "2s", "--http-idle-timeout", "2s"]);
    let mut wire = Wire::to(server.http);
    // Together they take longer than either timeout.
    for _ in 0..10 {
        let (first, second) = LIVE.split_at(10);
        wire.send(first);
        pause(Duration::from_millis(250));
        wire.send(second);
        assert_eq!(wire.answer().unwrap().status, 200);
    }
}

/// Unread answers fill the socket, and then wait in the server, but not for ever.
#[test]
fn answers_that_nobody_takes_are_not_kept() {
    let server = Server::start(&SHORT);
    let before = server.resident_kib();
    let asked = b"GET /openapi.json HTTP/1.1\r\nhost: t\r\n\r\n".repeat(10_000);
    let mut stuck: Vec<Wire> = (0..8).map(|_| Wire::to(server.http)).collect();
    for wire in &mut stuck {
        wire.push(&asked);
    }
    server.until_refused("unread", 8);
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown <= 8 * 1024, "{grown} KiB more");
    for wire in &mut stuck {
        wire.rest(); // what was on its way, then the end
    }
    server.is_sound();
}

/// After a refusal the server reads on for a moment, so that its answer is not lost, but only for a moment.
#[test]
fn who_was_refused_and_stays_is_closed() {
    let server = Server::start(&[]);
    assert_eq!(server.get("/live").status, 200);
    let before = server.open_files();
    let mut refused: Vec<Wire> = (0..50).map(|_| Wire::to(server.http)).collect();
    for wire in &mut refused {
        wire.send(b"nonsense\r\n\r\n");
        assert_eq!(wire.answer().unwrap().status, 400);
    }
    server.until("all are closed", |server| server.open_files() <= before + 5);
}

/// Every kind of slow client at once, and one client beside them that sends ordinary requests.
#[test]
fn five_hundred_slow_ones_hold_nobody_up() {
    let server = Server::start(&SHORT);
    let beginnings: [(&[u8], &str); 5] = [
        (b"", ""),
        (b"GET /li", "HTTP/1.1 408 "),
        (b"GET /live HTTP/1.1\r\nhost: t\r\nx: ", "HTTP/1.1 408 "),
        (HEAD, "HTTP/1.1 408 "),
        (LIVE, "HTTP/1.1 200 "),
    ];
    while_others_ask(&server, || {
        let slow = beginnings.iter().cycle().take(500);
        let slow: Vec<(Wire, &str)> = slow
            .map(|(beginning, expected)| {
                let mut wire = Wire::to(server.http);
                wire.send(beginning);
                (wire, *expected)
            })
            .collect();
        for (mut wire, expected) in slow {
            let said = String::from_utf8(wire.rest()).unwrap();
            // If this machine itself was slow, the first byte came too late for an answer.
            assert!(said.is_empty() || said.starts_with(expected), "{said}");
        }
    });
    server.is_sound();
}

// === the number of connections ===
//
// A connection for which there is no room is accepted, and closed without an answer. A client that has sent something by then sees
// a reset.

/// The default policy trusts loopback, and trusted peers have another maximum.
const TRUSTS_NOBODY: &str = "{ version: 1, rules: [{ name: a, key: [ip], limits: [15/s] }] }";

#[test]
fn one_source_has_so_many_connections_and_no_more() {
    let server = Server::with_policy(TRUSTS_NOBODY, &["--http-max-connections-per-source", "5"]);
    let mut inside: Vec<Wire> = (0..5)
        .map(|_| {
            let mut wire = Wire::to(server.http);
            wire.send(LIVE);
            assert_eq!(wire.answer().unwrap().status, 200);
            wire
        })
        .collect();
    for _ in 0..3 {
        assert!(Wire::to(server.http).rest().is_empty());
    }
    server.until_refused("full", 3);
    // The other connections are still served. When one of them closes, a new one is accepted.
    for _ in 0..3 {
        drop(inside.pop());
        server.until("there is room again", |server| {
            let mut wire = Wire::to(server.http);
            wire.send(LIVE);
            match wire.answer() {
                Some(reply) => {
                    assert_eq!(reply.status, 200);
                    inside.push(wire);
                    true
                }
                None => false,
            }
        });
    }
    for wire in &mut inside {
        wire.send(LIVE);
        assert_eq!(wire.answer().unwrap().status, 200);
    }
}

/// A proxy is one source with many clients. The policy in force at the time of the connection says whether a peer is
/// a proxy.
#[test]
fn a_trusted_proxy_has_all_but_an_eighth_of_the_connections() {
    let policy = |trusted: &str| {
        format!(
            "{{ version: 1, identity: {{ trusted: [{trusted}] }}, rules: [{{ name: a, key: [ip], limits: [15/s] }}] }}"
        )
    };
    let caps = ["--http-max-connections", "40", "--http-max-connections-per-source", "5"];
    let server = Server::with_policy(&policy("127.0.0.1/32"), &caps);
    let enter = || {
        let mut wire = Wire::to(server.http);
        wire.send(LIVE);
        wire.answer().map(|reply| assert_eq!(reply.status, 200)).map(|()| wire)
    };
    let inside: Vec<Wire> = (0..40).map_while(|_| enter()).collect();
    assert_eq!(inside.len(), 35);
    drop(inside);
    let old = server.metric("tidegate_policy_version{}");
    std::fs::write(server.folder.join("policy.yaml"), policy("192.0.2.0/24")).unwrap();
    server
        .until("the policy is in force", |server| server.metric("tidegate_policy_version{}") > old);
    server.until("there is room for as many as anybody has", |_| {
        let inside: Vec<Wire> = (0..40).map_while(|_| enter()).collect();
        assert!(inside.len() <= 5);
        inside.len() == 5
    });
}

#[test]
fn all_together_have_so_many_connections_and_no_more() {
    let server = Server::start(&["--http-max-connections", "3"]);
    let mut inside: Vec<Wire> = (0..3).map(|_| Wire::to(server.http)).collect();
    for wire in &mut inside {
        wire.send(LIVE);
        assert_eq!(wire.answer().unwrap().status, 200);
    }
    assert!(Wire::to(server.http).rest().is_empty());
}

/// Rejected connections do not fill the log.
#[test]
fn a_thousand_who_find_no_room_fill_no_log() {
    let server = Server::with_policy(TRUSTS_NOBODY, &["--http-max-connections-per-source", "1"]);
    let mut inside = Wire::to(server.http);
    inside.send(LIVE);
    assert_eq!(inside.answer().unwrap().status, 200);
    for _ in 0..1_000 {
        assert!(Wire::to(server.http).rest().is_empty());
    }
    server.until_refused("full", 1_000);
    let lines = server.log().lines().filter(|line| line.contains("too many connections")).count();
    // At most ten lines a second, and a thousand connections take less than a minute.
    assert!((1..=600).contains(&lines), "{lines}");
    inside.send(LIVE);
    assert_eq!(inside.answer().unwrap().status, 200);
}

/// The queue of the listener (its backlog) once had 128 places. When all clients came back at once, as after a
/// restart, the system dropped the others, and each of them tried again only after a second.
#[test]
fn a_thousand_can_come_at_once() {
    let server = Server::start(&[]);
    server.signal("STOP"); // no connection is accepted meanwhile
    let wait = || TcpStream::connect_timeout(&server.http, Duration::from_secs(5));
    let waiting: Vec<_> = (0..1_000).map_while(|_| wait().ok()).collect();
    assert_eq!(waiting.len(), 1_000);
    server.signal("CONT");
    drop(waiting);
    server.is_sound();
}

#[test]
fn who_comes_and_goes_leaves_nothing_open() {
    let server = Server::start(&[]);
    assert_eq!(server.get("/live").status, 200);
    let before = server.open_files();
    let beginnings: [&[u8]; 4] =
        [b"", b"G", b"POST /v1/check HTTP/1.1\r\nhost:", b"PRI * HTTP/2.0\r\n\r\nSM"];
    for n in 0..20_000 {
        let mut stream = server.connect();
        let _ = stream.write_all(beginnings[n % beginnings.len()]);
    }
    server.until("all are gone", |server| server.open_files() <= before + 5);
    server.is_sound();
}

#[test]
fn an_idle_connection_costs_little() {
    let server = Server::start(&["--http-max-connections-per-source", "3000"]);
    assert_eq!(server.get("/live").status, 200);
    let count = 2_000;
    let before = server.resident_kib();
    let mut idle: Vec<Wire> = (0..count).map(|_| Wire::to(server.http)).collect();
    let large = [HEAD, b"{\"attributes\":{}}", &b" ".repeat(65_536 - 17)].concat();
    for wire in &mut idle {
        wire.send(&large); // its memory is released after the answer
        assert_eq!(wire.answer().unwrap().status, 200);
    }
    assert!(server.open_files() > count);
    let grown = server.resident_kib().saturating_sub(before);
    let most = 24 * u64::try_from(count).unwrap();
    assert!(grown <= most, "{grown} KiB for {count} connections");
    for wire in &mut idle {
        wire.send(LIVE);
        assert_eq!(wire.answer().unwrap().status, 200);
    }
}
