//! `--store file:`: counters survive the end of the server, whether it stops or is killed.

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
use crate::support::client;

use client::Operator;
use std::path::Path;
use support::{Server, write_private};

/// The windows are 400 days long: much longer than any test.
const POLICY: &str = "
version: 1
rules:
  - { name: accounts, key: [ip], limits: [20/9600h] }
  - { name: log, key: [ip], limits: [{ rate: 30/9600h, algorithm: sliding_log }] }
";

fn started(folder: Option<&Path>) -> Server {
    match folder {
        None => Server::with_policy(POLICY, &["--store", "file:"]),
        Some(folder) => {
            let policy = folder.join("policy.yaml");
            let flags = ["--policy", policy.to_str().unwrap(), "--store", "file:"];
            Server::start_in(folder.to_owned(), &flags)
        }
    }
}

/// Ends a server by this signal, and starts it again on the same folder.
fn ended_and_started(mut server: Server, signal: &str) -> Server {
    server.signal(signal);
    server.wait();
    started_again(server)
}

/// Starts a server that has ended again, on the same folder.
fn started_again(server: Server) -> Server {
    let folder = server.folder.clone();
    // The folder must not be removed with the server.
    std::mem::forget(server);
    started(Some(&folder))
}

/// What remains of each limit.
fn remaining(server: &Server, ip: &str) -> Vec<u64> {
    let reply = server.check_ip(ip).json();
    let limits = reply["limits"].as_array().unwrap().iter();
    limits.map(|limit| limit["remaining"].as_u64().unwrap()).collect()
}

/// Waits until everything that was counted before this call is in the log.
fn until_written(server: &Server) {
    let mut operator = Operator::of(server);
    let mut writes = || operator.metric("tidegate_file_writes_total{}");
    let before = writes();
    server.until("two more writes", |_| writes() >= before + 2);
}

#[test]
fn a_server_that_stops_forgets_nothing() {
    let server = started(None);
    for _ in 0..5 {
        server.check_ip("203.0.113.7");
    }
    let server = ended_and_started(server, "TERM");
    assert_eq!(remaining(&server, "203.0.113.7"), [14, 24]);
    assert_eq!(remaining(&server, "203.0.113.8"), [19, 29]);
    assert!(
        server.log().contains("records of counters from the data directory"),
        "{}",
        server.log()
    );
}

#[test]
fn a_server_that_is_killed_remembers_what_was_written() {
    let mut server = started(None);
    for round in 1..=3 {
        for _ in 0..3 {
            server.check_ip("203.0.113.7");
        }
        until_written(&server);
        server = ended_and_started(server, "KILL");
        assert_eq!(remaining(&server, "203.0.113.7"), [20 - 4 * round, 30 - 4 * round]);
        until_written(&server);
    }
    assert_eq!(server.get("/ready").status, 200);
}

/// With counters in memory, a receipt of before a restart once gave back what the new counters had counted for others.
#[test]
fn a_receipt_is_valid_for_as_long_as_the_counters_that_it_was_taken_from() {
    for (store, status, left) in [("memory:", 409, 19), ("file:", 200, 19)] {
        let mut server = Server::with_policy(POLICY, &["--store", store]);
        let body = r#"{"attributes":{"ip":"203.0.113.7"},"receipt":true}"#;
        let receipt = server.post("/v1/check", body).json()["receipt"].clone();
        server.signal("TERM");
        server.wait();
        let policy = server.folder.join("policy.yaml");
        let flags = ["--policy", policy.to_str().unwrap(), "--store", store];
        let again = Server::start_in(server.folder.clone(), &flags);
        std::mem::forget(server);
        again.check_ip("203.0.113.7");
        let report = serde_json::json!({ "receipt": receipt, "outcome": "cancelled" });
        assert_eq!(again.post("/v1/report", &report.to_string()).status, status, "{store}");
        let peek = again.post("/v1/peek", r#"{"attributes":{"ip":"203.0.113.7"}}"#).json();
        assert_eq!(peek["limits"][0]["remaining"], left, "{store}: {peek}");
    }
}

/// Counters that were left out were once one line of the log: a load balancer or an operator who looked at `/ready` was told that
/// all was well, while clients that had used up their limits started from zero.
#[test]
fn ready_says_that_counters_were_left_out_until_a_start_finds_them_intact() {
    let mut server = started(None);
    server.check_ip("203.0.113.7");
    assert_eq!(server.get("/ready").json()["status"], "ready");
    server.signal("TERM");
    server.wait();
    let states = std::fs::read_dir(server.data("states")).unwrap();
    let log = states.map(|entry| entry.unwrap().path()).next().unwrap();
    let intact = std::fs::read(&log).unwrap();
    let mut damaged = intact.clone();
    damaged[..8].fill(0);
    for (bytes, status) in [(damaged, "degraded"), (intact, "ready")] {
        // The files of the start before are not part of the story.
        for file in std::fs::read_dir(server.data("states")).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
        write_private(&log, &bytes);
        server = started_again(server);
        let ready = server.get("/ready");
        let (code, ready) = (ready.status, ready.json());
        assert_eq!((code, &ready["status"]), (200, &status.into()), "{ready}");
        assert_eq!(
            ready["reasons"].to_string().contains("counters were left out"),
            status == "degraded",
            "{ready}"
        );
        server.signal("TERM");
        server.wait();
    }
}

#[test]
fn another_secret_does_not_start_and_leaves_the_files_alone() {
    let mut server = started(None);
    server.check_ip("203.0.113.7");
    server.signal("TERM");
    server.wait();
    let states = server.data("states");
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(&states)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), entry.metadata().unwrap().len()))
            .collect();
        names.sort();
        names
    };
    let before = names();
    write_private(&server.data("secret"), [9; 32]);
    let policy = server.folder.join("policy.yaml");
    let started = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--store", "file:", "--policy", policy.to_str().unwrap()])
        .args(["--data-dir", server.folder.join("data").to_str().unwrap()])
        .args(["--http-listen", "127.0.0.1:0", "--admin-listen", "off"])
        .args(["--resp-listen", "off", "--grpc-listen", "off"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&started.stderr);
    assert!(
        !started.status.success() && text.contains("was written under another secret"),
        "{text}"
    );
    assert_eq!(names(), before);
}
