//! Clients that leave.
//!
//! The story: what a request held was given back when its client left, while the upstream server worked on. With requests of 3 s, a
//! client that closed each connection after 20 ms had 60 at a time of `{ concurrent: 2 }`, and 100 of `concurrency: 8`.

use super::{Held, OK, next, proxy, send, status, until_held, until_seats_taken, upstream};
use crate::support::client::Client;
use crate::support::http2::{HEADERS, NONE, RST_STREAM, SETTINGS, Two, frame};
use crate::support::{PATIENCE, Server};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::Receiver;
use std::time::Duration;

const TWO: &str =
    "{ version: 1, rules: [{ name: jobs, key: [], limits: [{ concurrent: 2, lease: 1h }] }] }";
const OPEN: &str = "{ version: 1, rules: [{ name: all, key: [], limits: [1000000/s] }] }";
/// The reason of a `RST_STREAM`.
const CANCEL: [u8; 4] = [0, 0, 0, 8];
/// A turn every two minutes; 20 requests may wait for theirs.
const TURNS: &str = "{ version: 1, rules: [
    { name: line, key: [], on_limit: { delay: { max_wait: 1h, max_queue: 20 } }, limits: [{ rate: 30/h, algorithm: leaky_bucket, queue: 20 }] }] }";

/// How many permits are free.
fn free(server: &Server) -> u64 {
    let peek = server.post("/v1/peek", r#"{"attributes":{},"cost":0}"#).json();
    peek["limits"][0]["remaining"].as_u64().unwrap()
}

fn until_free(server: &Server, many: u64) {
    server.until(&format!("{many} permits are free"), |server| free(server) == many);
}

/// Two requests that the server works on, with their permits and seats.
fn two_at_work(server: &Server, held: &Receiver<Held>) -> (Vec<Client>, Vec<Held>) {
    let clients = (0..2).map(|_| send(server, "GET", "/job", &[])).collect();
    let work = (0..2).map(|_| next(held)).collect();
    until_free(server, 0);
    until_seats_taken(server, 2);
    (clients, work)
}

/// The client closes its connection, or resets it. Both times the server learns of it, and what the request holds is kept until the
/// server is done.
#[test]
fn what_a_request_holds_is_kept_until_the_server_is_done() {
    let (url, held) = upstream();
    let server = proxy(TWO, &url, "concurrency: 8");
    for resets in [false, true] {
        let (clients, mut work) = two_at_work(&server, &held);
        if resets {
            let zero = Some(Duration::ZERO);
            for client in &clients {
                rustix::net::sockopt::set_socket_linger(&client.stream, zero).unwrap();
            }
        }
        drop(clients);
        work.iter_mut().for_each(Held::sees_the_end);
        assert_eq!(free(&server), 0);
        assert_eq!(status(&mut send(&server, "GET", "/job", &[])), 429);
        until_seats_taken(&server, 2);
        // One server closes its side, the other answers.
        drop(work.remove(0));
        until_free(&server, 1);
        work.remove(0).answer(OK);
        until_free(&server, 2);
        until_seats_taken(&server, 0);
    }
}

/// A request also keeps what it holds when its client leaves in the middle of an answer: many servers send its head at once, and work
/// then.
#[test]
fn what_a_request_holds_is_kept_in_the_middle_of_an_answer() {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nx";
    let (url, held) = upstream();
    let server = proxy(TWO, &url, "concurrency: 8");
    let (clients, mut work) = two_at_work(&server, &held);
    work.iter_mut().for_each(|work| work.stream.write_all(HEAD).unwrap());
    for mut client in clients {
        client.stream.read_exact(&mut [0; 20]).unwrap();
        let zero = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&client.stream, zero).unwrap();
    }
    // The proxy learns of it when it writes.
    work.iter_mut().for_each(|work| work.stream.write_all(b"xx").unwrap());
    work.iter_mut().for_each(Held::sees_the_end);
    assert_eq!(free(&server), 0);
    drop(work);
    until_free(&server, 2);
    until_seats_taken(&server, 0);
}

/// A client over HTTP/2 resets its stream, or closes its connection.
#[test]
fn what_a_request_holds_is_kept_over_http2_too() {
    let (url, held) = upstream();
    let server = proxy(TWO, &url, "concurrency: 8");
    let mut client = Two::to(server.proxy);
    let streams = ["/a", "/b"].map(|path| client.ask("GET", path, b""));
    let mut work: Vec<Held> = (0..2).map(|_| next(&held)).collect();
    // They go over connections of their own, so they may arrive in any order.
    work.sort_by(|one, other| one.path.cmp(&other.path));
    until_free(&server, 0);
    client.send(&frame(RST_STREAM, NONE, streams[0], &CANCEL));
    work[0].sees_the_end();
    drop(client);
    work[1].sees_the_end();
    assert_eq!(free(&server), 0);
    until_seats_taken(&server, 2);
    drop(work);
    until_free(&server, 2);
    until_seats_taken(&server, 0);
}

/// To a server over HTTP/2, leaving is a reset of the stream. Nothing tells when the server is done, so what the request holds is kept.
#[test]
fn what_a_request_holds_is_kept_if_the_server_speaks_http2() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = proxy(TWO, &format!("h2c://{}", listener.local_addr().unwrap()), "concurrency: 8");
    let client = send(&server, "GET", "/job", &[]);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 24]).unwrap();
    stream.write_all(&frame(SETTINGS, NONE, 0, &[])).unwrap();
    let mut until = |kind| {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            stream.read_exact(&mut vec![0; length]).unwrap();
            if head[3] == kind {
                return;
            }
        }
    };
    until(HEADERS);
    until_free(&server, 1);
    let zero = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&client.stream, zero).unwrap();
    drop(client);
    until(RST_STREAM);
    assert_eq!(free(&server), 1);
    until_seats_taken(&server, 1);
}

/// Once its request is sent, a client that closes only its sending side gets the answer.
#[test]
fn a_client_that_half_closes_is_answered() {
    let (url, held) = upstream();
    let server = proxy(OPEN, &url, "concurrency: 8");
    for body in ["", "body"] {
        let mut client = Client::of(server.proxy);
        let request = client.request("POST", "/", &[], body);
        client.send(&request).unwrap();
        client.finish();
        let mut work = next(&held);
        if body.is_empty() {
            // Also after the server has learnt of it.
            work.sees_the_end();
        }
        work.answer(OK);
        assert_eq!(status(&mut client), 200, "{body:?}");
    }
    until_seats_taken(&server, 0);
}

/// Ghosts: a byte behind a request hid that its client had left, so requests of clients that were gone filled the queue.
#[test]
fn a_client_that_leaves_is_noticed_behind_bytes_that_were_not_read() {
    let (url, held) = upstream();
    let server = proxy(TURNS, &url, "concurrency: 8");
    let mut first = send(&server, "GET", "/", &[]);
    next(&held).answer(OK);
    assert_eq!(status(&mut first), 200);
    for behind in [&b"x"[..], &[b'x'; 3_000]] {
        let ghosts: Vec<Client> = (0..5)
            .map(|_| {
                let mut ghost = send(&server, "GET", "/", &[]);
                ghost.send(behind).unwrap();
                ghost
            })
            .collect();
        until_held(&server, 5);
        drop(ghosts);
        until_held(&server, 0);
    }
    // A client that is still there waits on, also with bytes behind its request.
    let mut stays = send(&server, "GET", "/", &[]);
    stays.send(b"GET").unwrap();
    until_held(&server, 1);
    let mut next_one = send(&server, "GET", "/", &[]);
    next_one.send(b"GET").unwrap();
    drop(next_one);
    until_held(&server, 1);
}
