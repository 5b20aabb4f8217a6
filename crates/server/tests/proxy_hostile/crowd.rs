//! Fifty hostile clients of each kind, all of one user, against a group with eight seats. The upstream server never finishes a request
//! of theirs. Beside them four polite users send requests, each one at a time: all of them are served.
//!
//! Nothing depends on time: a polite request needs no seat that a hostile one has to free.

use super::{Held, OK, next, proxy, seats_taken, send, status, until_held, upstream};
use crate::support::client::Client;
use crate::support::{PATIENCE, Server};
use std::sync::mpsc::Receiver;

const SEATS: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], user: 'header:x-user' }
priorities: [{ name: only, weight: 1, share: 100%, max_wait: 1h }]
rules: [{ name: each, key: [user], limits: [1000000/s] }]";
const HOSTILE: usize = 50;
const POLITE: [&str; 4] = ["alice", "bob", "carol", "dave"];

/// A request of each polite user at the same time. Returns how many of them are served.
fn polite(server: &Server, held: &Receiver<Held>) -> usize {
    let ask = |user: &&str| send(server, "GET", "/polite", &[("x-user", user)]);
    let mut clients: Vec<Client> = POLITE.iter().map(ask).collect();
    let mut work = Vec::new();
    while work.len() < POLITE.len() {
        let Ok(next) = held.recv_timeout(PATIENCE) else { break };
        // The hostile ones are kept: nothing of them is over.
        if next.path == "/polite" { work.push(next) } else { std::mem::forget(next) }
    }
    work.into_iter().for_each(|work| work.answer(OK));
    clients.iter_mut().map(status).filter(|status| *status == 200).count()
}

/// Fifty clients do this to a proxy that polite clients have used before; returns how many of 80 polite requests are served.
fn beside(hostile: impl Fn(&Server) -> Option<Client>) -> usize {
    let (url, held) = upstream();
    let server = proxy(SEATS, &url, "concurrency: 8");
    assert_eq!(polite(&server, &held), POLITE.len());
    let crowd: Vec<_> = (0..HOSTILE).map(|_| hostile(&server)).collect();
    server.until("they have seats", |server| seats_taken(server) > 0);
    let served = (0..20).map(|_| polite(&server, &held)).sum();
    drop(crowd);
    served
}

#[test]
fn polite_clients_are_served_beside_clients_that_leave() {
    let served = beside(|server| {
        let client = send(server, "GET", "/hostile", &[("x-user", "mallory")]);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        drop(client);
        None
    });
    assert_eq!(served, 80);
}

#[test]
fn polite_clients_are_served_beside_slow_uploads() {
    let served = beside(|server| {
        let mut client = Client::of(server.proxy);
        let head =
            "POST /hostile HTTP/1.1\r\nhost: x\r\nx-user: mallory\r\ncontent-length: 99\r\n\r\nx";
        client.send(head.as_bytes()).unwrap();
        Some(client)
    });
    assert_eq!(served, 80);
}

#[test]
fn polite_clients_are_served_beside_slow_readers() {
    let served = beside(|server| Some(send(server, "GET", "/large", &[("x-user", "mallory")])));
    assert_eq!(served, 80);
}

/// Ghosts burn turns of a queue: they leave when a later turn is promised. Those turns count for them, so a user with five requests a
/// day burns five, whatever becomes of its connections.
#[test]
fn polite_clients_have_their_turns_beside_ghosts() {
    const TURNS: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], user: 'header:x-user' }
rules:
  - { name: line, key: [], limits: [{ rate: 60/h, algorithm: leaky_bucket, queue: 50 }], on_limit: { delay: { max_wait: 1h, max_queue: 50 } } }
  - { name: each, key: [user], limits: [{ rate: 5/day, algorithm: fixed_window }] }";
    let (url, held) = upstream();
    let server = proxy(TURNS, &url, "concurrency: 8");
    let mut first = send(&server, "GET", "/polite", &[("x-user", "first")]);
    next(&held).answer(OK);
    assert_eq!(status(&mut first), 200);
    let mut waiting = Vec::new();
    for round in 0..HOSTILE / 2 {
        let mut ghost = send(&server, "GET", "/ghost", &[("x-user", "mallory")]);
        if round >= 5 {
            assert_eq!(status(&mut ghost), 429, "{round}");
            continue;
        }
        ghost.send(b"GET /behind").unwrap();
        until_held(&server, round + 1);
        waiting.push(send(&server, "GET", "/polite", &[("x-user", POLITE[round % 4])]));
        until_held(&server, round + 2);
        drop(ghost);
        until_held(&server, round + 1);
    }
    // Of 50 turns, the ghosts have burnt five. The polite ones wait for theirs, and others may come.
    waiting.push(send(&server, "GET", "/polite", &[("x-user", "erin")]));
    until_held(&server, waiting.len());
}
