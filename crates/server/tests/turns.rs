//! Fairness between the connections of one worker, measured in decisions and not in time.
//!
//! The server is stopped (`SIGSTOP`) while several connections write long work to it, and then one connection a short
//! request. When the server continues, all of them are readable. All requests share one limit, so the `remaining` in
//! the answer to the short request tells how much was decided before it.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::resp::talk;
use crate::support;
use crate::support::client;

use client::Client;
use support::Server;
use support::http2::{Answer, Two};
use talk::{Said, Talk, list, numbers};

const ALL: i64 = 1_000_000;
const POLICY: &str = "
version: 1
rules: [{ name: all, key: [], limits: [{ rate: 1000000/day, algorithm: fixed_window, align: first }] }]
";
const CHECK: &str = r#"{"attributes":{"user":"u"}}"#;
/// Connections with long work.
const LONG: usize = 40;
/// Two pieces of long work, in decisions.
const PIECES: i64 = 256;
/// How many requests of a connection are answered before it has to wait for its turn.
const SHORT: i64 = 16;

/// Writes to a server that is stopped meanwhile.
fn while_stopped(server: &Server, write: impl FnOnce()) {
    server.stall();
    write();
    server.signal("CONT");
}

fn remaining(verdict: &serde_json::Value) -> i64 {
    verdict["limits"][0]["remaining"].as_i64().unwrap()
}

/// Connections that the worker has accepted: each has got an answer.
fn connections(server: &Server, count: usize) -> Vec<Client> {
    let known = |_| {
        let mut client = Client::of(server.http);
        assert_eq!(client.post("/v1/check", CHECK).status, 200);
        client
    };
    (0..count).map(known).collect()
}

/// How many decisions were made before that of a short request, which was written after the long work of other
/// connections.
fn decided_before(server: &Server, long: &mut [Client], work: &[u8]) -> i64 {
    let mut short = connections(server, 1).remove(0);
    let before = remaining(&short.post("/v1/check", CHECK).json());
    let json = [("content-type", "application/json")];
    let request = short.request("POST", "/v1/check", &json, CHECK);
    while_stopped(server, || {
        long.iter_mut().for_each(|client| client.send(work).unwrap());
        short.send(&request).unwrap();
    });
    before - 1 - remaining(&short.receive().unwrap().unwrap().json())
}

/// Five hundred connections with batches of a thousand once made a short request wait for seconds: every batch was
/// decided as a whole before another connection had a turn.
#[test]
fn a_short_request_is_answered_between_the_pieces_of_batches() {
    let server = Server::with_policy(POLICY, &["--workers", "1"]);
    let mut long = connections(&server, LONG);
    let body = format!("[{}]", [CHECK; 1_000].join(","));
    let json = [("content-type", "application/json")];
    for path in ["/v1/check", "/v1/peek"] {
        let work = long[0].request("POST", path, &json, &body);
        let decided = decided_before(&server, &mut long, &work);
        assert!(decided <= PIECES, "{decided} of {} of {path}", LONG * 1_000);
        for client in &mut long {
            let answer = client.receive().unwrap().unwrap();
            assert_eq!((answer.status, answer.json().as_array().unwrap().len()), (200, 1_000));
        }
    }
    // Every entry was counted once.
    let all = ALL - remaining(&connections(&server, 1)[0].post("/v1/check", CHECK).json());
    assert_eq!(all, i64::try_from(LONG * 1_000 + LONG).unwrap() + 8);
}

#[test]
fn a_short_request_is_answered_between_the_pieces_of_pipelines() {
    let server = Server::with_policy(POLICY, &["--workers", "1"]);
    let mut long = connections(&server, LONG);
    let json = [("content-type", "application/json")];
    let work = long[0].request("POST", "/v1/check", &json, CHECK).repeat(200);
    let decided = decided_before(&server, &mut long, &work);
    let short = SHORT * i64::try_from(LONG).unwrap();
    assert!(decided <= short + PIECES, "{decided} of {}", LONG * 200);
    for client in &mut long {
        let left: Vec<i64> =
            (0..200).map(|_| remaining(&client.receive().unwrap().unwrap().json())).collect();
        assert!(left.is_sorted_by(|one, next| one > next), "{left:?}");
    }
}

#[test]
fn a_short_command_is_answered_between_the_pieces_of_pipelines() {
    let server = Server::start(&["--workers", "1"]);
    let last = (ALL - 1).to_string();
    let words = ["CL.THROTTLE", "k", &last, "1", "3000"].map(str::as_bytes);
    let throttle = list(&words);
    let remaining = |said: &Said| numbers(said)[2];
    let known = |_| {
        let mut talk = Talk::to(server.resp);
        talk.send(&throttle);
        remaining(&talk.hear());
        talk
    };
    let mut long: Vec<Talk> = (0..LONG).map(known).collect();
    let mut short = known(0);
    short.send(&throttle);
    let before = remaining(&short.hear());
    let pipeline = throttle.repeat(600);
    while_stopped(&server, || {
        long.iter_mut().for_each(|talk| talk.send(&pipeline));
        short.send(&throttle);
    });
    let decided = before - 1 - remaining(&short.hear());
    let shorts = SHORT * i64::try_from(LONG).unwrap();
    assert!(decided <= shorts + PIECES, "{decided} of {}", LONG * 600);
    for talk in &mut long {
        let left: Vec<i64> = (0..600).map(|_| remaining(&talk.hear())).collect();
        assert!(left.is_sorted_by(|one, next| one > next), "{left:?}");
    }
}

/// An HTTP/2 connection with many batches has one place in the queue: another connection waits for one of the
/// batches, not for all.
#[test]
fn the_batches_of_one_connection_wait_for_each_other() {
    let server = Server::with_policy(POLICY, &["--workers", "1"]);
    let verdict = |answer: Answer| -> serde_json::Value {
        let Answer::Whole { status: 200, body } = answer else { panic!("{answer:?}") };
        serde_json::from_slice(&body).unwrap()
    };
    let [mut many, mut one] = [Two::to(server.http), Two::to(server.http)];
    verdict(many.asked("POST", "/v1/check", CHECK.as_bytes()));
    let before = remaining(&verdict(one.asked("POST", "/v1/check", CHECK.as_bytes())));
    let body = format!("[{}]", [CHECK; 100].join(","));
    let mut stream = 0;
    while_stopped(&server, || {
        (0..20).for_each(|_| _ = many.ask("POST", "/v1/check", body.as_bytes()));
        stream = one.ask("POST", "/v1/check", body.as_bytes());
    });
    let decided = before - 1 - remaining(&verdict(one.answer(stream))[0]);
    assert!(decided <= 200, "{decided} of 2000");
}
