//! What concerns a connection and not a message: `Connection`, upgrades, `Expect`, and answers before the end of a body.

use super::recorder::Recorder;
use super::script::read_head;
use super::{OPEN, proxy};
use crate::support::connect;
use crate::support::http1::Wire;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

const UPGRADE: &str = "connection: Upgrade\r\nupgrade: websocket\r\n";

/// An upstream server for one connection: `serve` gets it after the head of its first request, with the bytes behind the head.
fn upstream<T: Send + 'static>(
    serve: impl FnOnce(String, TcpStream, Vec<u8>) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
        let mut bytes = Vec::new();
        let head = read_head(&mut stream, &mut bytes).unwrap();
        serve(head, stream, bytes)
    });
    (url, serving)
}

/// Whether nothing has arrived.
fn is_silent(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Reads until these bytes have come.
fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let (mut all, mut byte) = (Vec::new(), [0]);
    while !all.ends_with(end.as_bytes()) {
        stream.read_exact(&mut byte).unwrap_or_else(|error| {
            panic!("{error} after {:?}", String::from_utf8_lossy(&all));
        });
        all.push(byte[0]);
    }
    String::from_utf8(all).unwrap()
}

/// A client could name fields in `Connection` that protect the upstream server, so that the proxy removes them.
#[test]
fn connection_cannot_remove_what_protects_the_server() {
    let recorder = Recorder::start();
    let server = proxy(OPEN, &recorder.url());
    let names = "x-forwarded-for, x-forwarded-proto, x-forwarded-host, forwarded, x-request-id, host, content-length, transfer-encoding, authorization, cookie, origin, x-debug, tidegate-priority";
    let mut wire = Wire::to(server.proxy);
    for connection in [
        format!("connection: close, {names}\r\n"),
        format!("connection: close\r\nConnection: {names}\r\n"),
        format!("connection: close\r\nconnection: {}\r\n", names.to_uppercase()),
    ] {
        wire.send(
            format!("POST /x HTTP/1.1\r\nhost: site\r\n{connection}authorization: a\r\ncookie: c=1\r\norigin: http://o\r\nx-debug: 1\r\nx-forwarded-for: 6.6.6.6\r\nforwarded: for=6.6.6.6\r\nx-real-ip: 6.6.6.6\r\ntidegate-priority: high\r\ncontent-length: 3\r\n\r\nabc")
                .as_bytes(),
        );
        assert_eq!(wire.answer().unwrap().body, "POST /x");
        wire = Wire::to(server.proxy);
    }
    drop((wire, server));
    let seen = recorder.finish();
    assert_eq!((seen.requests.len(), seen.malformed.len()), (3, 0), "{:?}", seen.malformed);
    for request in seen.requests {
        let fields: [(&str, &[&str]); 11] = [
            ("x-forwarded-for", &["127.0.0.1"]),
            ("x-forwarded-proto", &["http"]),
            ("x-forwarded-host", &["site"]),
            ("forwarded", &["for=127.0.0.1;host=site;proto=http"]),
            ("host", &["site"]),
            ("content-length", &["3"]),
            ("authorization", &["a"]),
            ("cookie", &["c=1"]),
            ("origin", &["http://o"]),
            ("x-debug", &[]),
            ("x-real-ip", &[]),
        ];
        for (name, expected) in fields {
            assert_eq!(request.all(name), expected, "{name} of {request:?}");
        }
        assert_eq!((request.all("x-request-id").len(), request.body.as_slice()), (1, &b"abc"[..]));
    }
}

/// What a client sends behind the head of an upgrade belongs to the other protocol only if the server agrees to switch.
#[test]
fn bytes_before_the_switch_are_held_until_the_server_agrees() {
    let (url, serving) = upstream(|head, mut stream, behind| {
        assert!(head.contains("upgrade: websocket") && behind.is_empty(), "{head} {behind:?}");
        assert!(is_silent(&stream));
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello").unwrap();
        let early = read_until(&mut stream, "early bytes");
        stream.write_all(b"bye").unwrap();
        early
    });
    let server = proxy(OPEN, &url);
    let mut client = connect(server.proxy);
    let head = format!("GET /chat HTTP/1.1\r\nhost: x\r\n{UPGRADE}\r\nearly bytes");
    client.write_all(head.as_bytes()).unwrap();
    let answer = read_until(&mut client, "hellobye");
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    assert_eq!(serving.join().unwrap(), "early bytes");
}

/// If the server does not switch, these bytes are the next request, which is decided and checked like any other.
#[test]
fn bytes_behind_an_upgrade_that_was_declined_are_a_request() {
    for status in ["200 OK", "403 Forbidden", "426 Upgrade Required"] {
        let (url, serving) = upstream(move |_, mut stream, behind| {
            assert!(behind.is_empty() && is_silent(&stream), "{behind:?}");
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            rest
        });
        let server = proxy(OPEN, &url);
        let mut wire = Wire::to(server.proxy);
        wire.send(
            format!("GET /chat HTTP/1.1\r\nhost: x\r\n{UPGRADE}\r\n\x01\x05early\r\n\r\n")
                .as_bytes(),
        );
        assert_eq!(wire.answer().unwrap().status.to_string(), status[..3]);
        let refused = wire.answer().unwrap();
        assert_eq!((refused.status, wire.rest().len()), (400, 0), "{refused:?}");
        drop(server);
        assert_eq!(serving.join().unwrap(), b"", "{status}");
    }
}

/// A server that switches to another protocol than the one that was asked for.
#[test]
fn a_switch_to_something_else_is_not_passed_on() {
    for fields in [
        "connection: upgrade\r\nupgrade: h2c\r\n",
        "connection: upgrade\r\nupgrade: websocket, h2c\r\n",
        "connection: upgrade\r\n",
        "upgrade: websocket\r\n",
        "",
    ] {
        let (url, serving) = upstream(move |_, mut stream, _| {
            let answer = format!("HTTP/1.1 101 Switching Protocols\r\n{fields}\r\nsecret");
            stream.write_all(answer.as_bytes()).unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            rest
        });
        let server = proxy(OPEN, &url);
        let mut wire = Wire::to(server.proxy);
        wire.send(format!("GET /chat HTTP/1.1\r\nhost: x\r\n{UPGRADE}\r\n").as_bytes());
        let answer = wire.answer().unwrap();
        assert!(answer.status == 502 && !answer.body.contains("secret"), "{fields:?} {answer:?}");
        // The connection to the server was closed.
        assert_eq!(serving.join().unwrap(), b"", "{fields:?}");
    }
}

/// A client that waits for `100 Continue` gets it from the proxy; the server gets the body without being asked.
#[test]
fn a_body_that_is_wanted_is_asked_for() {
    let recorder = Recorder::start();
    let policy = "{ version: 1, rules: [{ name: all, key: [ip], limits: [3/day] }] }";
    let server = proxy(policy, &recorder.url());
    let mut wire = Wire::to(server.proxy);
    let head = |lines: &str| {
        format!("POST /up HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n{lines}\r\n")
    };
    for (lines, body) in [
        ("content-length: 5\r\n", "abcde"),
        ("transfer-encoding: chunked\r\n", "5\r\nabcde\r\n0\r\n\r\n"),
        ("content-length: 5\r\n", "abcde"),
    ] {
        wire.send(head(lines).as_bytes());
        assert_eq!(wire.answer().unwrap().status, 100);
        wire.send(body.as_bytes());
        assert_eq!(wire.answer().unwrap().body, "POST /up");
    }
    // A request that a limit refuses is refused before its body is sent.
    wire.send(head("content-length: 5\r\n").as_bytes());
    let refused = wire.answer().unwrap();
    assert_eq!((refused.status, refused.field("connection")), (429, Some("close")));
    drop((wire, server));
    let seen = recorder.finish();
    assert_eq!(seen.malformed, [""; 0]);
    assert_eq!(seen.requests.len(), 3);
    let plain = |request: &super::strict::SeenRequest| {
        request.body == b"abcde" && request.all("expect").is_empty()
    };
    assert!(seen.requests.iter().all(plain), "{:?}", seen.requests);
}

/// A server may answer before it has read the body. The client gets the answer, and the connections are not used again.
#[test]
fn an_answer_before_the_end_of_the_body_is_passed_on() {
    const BODY: usize = 8 * 1024 * 1024;
    let (url, serving) = upstream_without_reading();
    let server = proxy(OPEN, &url);
    let mut wire = Wire::to(server.proxy);
    let head = format!("POST /up HTTP/1.1\r\nhost: x\r\ncontent-length: {BODY}\r\n\r\nx");
    wire.send(head.as_bytes());
    let answer = wire.answer().unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (413, "no more"));
    assert_eq!(answer.field("connection"), Some("close"));
    // The rest of the body goes nowhere, and is not taken for a request.
    wire.send(&vec![b'x'; BODY - 1]);
    assert!(wire.rest().is_empty());
    assert!(serving.join().unwrap() < BODY);
}

/// A server that answers as soon as it has a head, and reads the rest only to count it.
fn upstream_without_reading() -> (String, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_until(&mut stream, "\r\n\r\n");
        stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 7\r\n\r\nno more").unwrap();
        // Until the proxy closes the connection; it has bytes of the body, so they may be lost with it.
        std::iter::from_fn(|| stream.read(&mut [0; 64 * 1024]).ok().filter(|count| *count > 0))
            .sum::<usize>()
    });
    (url, serving)
}

/// Both directions at once: the server sends a piece back before the client sends the next one.
#[test]
fn bodies_pass_in_both_directions_at_the_same_time() {
    let (url, serving) = upstream(|_, mut stream, mut bytes| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
        let mut rounds = 0;
        loop {
            let line = loop {
                if let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
                    break bytes.drain(..end + 2).count() - 2;
                }
                let mut buffer = [0; 1024];
                let count = stream.read(&mut buffer).unwrap();
                assert!(count > 0, "the body broke off after {rounds}");
                bytes.extend_from_slice(&buffer[..count]);
            };
            // A chunk is two lines: its size and `round N`; the last one is `0` and an empty line.
            if line == 0 {
                stream.write_all(b"0\r\n\r\n").unwrap();
                return rounds;
            }
            if line > 1 {
                rounds += 1;
                stream.write_all(format!("1\r\n{}\r\n", rounds % 10).as_bytes()).unwrap();
            }
        }
    });
    let server = proxy(OPEN, &url);
    let mut client = connect(server.proxy);
    client.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    for round in 1..=9 {
        client.write_all(b"7\r\nround N\r\n").unwrap();
        let expected = format!("1\r\n{round}\r\n");
        read_until(&mut client, &expected);
    }
    client.write_all(b"0\r\n\r\n").unwrap();
    read_until(&mut client, "0\r\n\r\n");
    assert_eq!(serving.join().unwrap(), 9);
}
