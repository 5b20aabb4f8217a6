//! Clients that send their bodies slowly. The story: ten requests with a byte every eight seconds held all eight seats of a group, so
//! everyone else got 503.

use super::{OK, next, proxy, send, status, until_seats_taken, upstream};
use crate::support::client::Client;
use std::io::{Read, Write};

const OPEN: &str = "{ version: 1, rules: [{ name: all, key: [], limits: [1000000/s] }] }";
const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\nx";

/// The three bodies begin together. When the one with a least rate has broken off, the others go on.
#[test]
fn a_slow_body_loses_its_seat_in_groups_with_seats_only() {
    let (url, held) = upstream();
    let begin = |settings: &str| {
        let server = proxy(OPEN, &url, settings);
        let mut slow = Client::of(server.proxy);
        slow.send(HEAD).unwrap();
        let mut work = next(&held);
        work.stream.read_exact(&mut [0]).unwrap();
        (server, slow, work)
    };
    let others = ["concurrency: 8, min_body_rate: off", "host: keep"].map(begin);
    let (server, mut slow, mut work) = begin("concurrency: 8");
    assert_eq!(status(&mut slow), 408);
    work.sees_the_end();
    drop(work);
    until_seats_taken(&server, 0);
    for (_server, mut slow, mut work) in others {
        slow.send(b"y").unwrap();
        let mut byte = [0];
        work.stream.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"y");
    }
}

/// After the head of the answer, silence is no fault: it may be a conversation. But the seat is for those that the server works for.
#[test]
fn a_conversation_may_be_silent_without_its_seat() {
    let (url, held) = upstream();
    let server = proxy(OPEN, &url, "concurrency: 8");
    let mut talk = Client::of(server.proxy);
    talk.send(HEAD).unwrap();
    let mut work = next(&held);
    work.stream.read_exact(&mut [0]).unwrap();
    work.stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    until_seats_taken(&server, 1);
    until_seats_taken(&server, 0);
    talk.send(b"y").unwrap();
    work.stream.read_exact(&mut [0]).unwrap();
    work.stream.write_all(b"2\r\nok\r\n0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"2\r\nok\r\n0\r\n\r\n") {
        let mut byte = [0];
        talk.stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    let mut other = send(&server, "GET", "/", &[]);
    next(&held).answer(OK);
    assert_eq!(status(&mut other), 200);
}
