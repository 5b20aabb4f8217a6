//! `tidegate data`, run as an operator would on the data directory of a real server.

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

use std::path::PathBuf;
use std::process::{Command, Output};
use support::{Server, write_private};

const POLICY: &str = "
version: 1
rules:
  - { name: accounts, key: [ip], limits: [20/9600h] }
";

/// A server that has counted a request of each of ten clients.
fn server() -> Server {
    let server = Server::with_policy(POLICY, &["--store", "file:"]);
    for client in 0..10 {
        server.check_ip(&format!("203.0.113.{client}"));
    }
    server
}

fn stopped() -> Server {
    let mut server = server();
    server.signal("TERM");
    server.wait();
    server
}

fn data(server: &Server, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("data")
        .args(words)
        .arg(server.folder.join("data"))
        .output()
        .unwrap()
}

/// What a command printed, and its exit code.
fn said(output: &Output) -> (String, Option<i32>) {
    let text = [&output.stdout[..], &output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

fn files(server: &Server) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(server.data("states")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn inspect_shows_files_and_limits() {
    let server = stopped();
    let (text, code) = said(&data(&server, &["inspect"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("log-0000000001") && text.contains("400d, token_bucket"), "{text}");
    let (text, _) = said(&data(&server, &["inspect", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["files"][0]["ended"], true);
    assert!(json["limits"][0]["records"].as_u64().unwrap() >= 10, "{json}");
}

#[test]
fn verify_finds_a_changed_byte_and_compact_leaves_it_alone_unless_told() {
    let server = stopped();
    let (text, code) = said(&data(&server, &["verify"]));
    assert!(code == Some(0) && text.contains("is intact"), "{text}");
    let log = files(&server).remove(0);
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[128 + 80 + 5] ^= 1; // in the body of the first frame
    std::fs::write(&log, &bytes).unwrap();
    let (text, code) = said(&data(&server, &["verify"]));
    assert!(code == Some(1) && text.contains("log-0000000001 is damaged"), "{text}");
    let (text, code) = said(&data(&server, &["compact"]));
    assert!(code == Some(1) && text.contains("nothing was changed"), "{text}");
    assert_eq!(std::fs::read(&log).unwrap(), bytes);
    let (text, code) = said(&data(&server, &["compact", "--drop-damaged"]));
    assert_eq!(code, Some(0), "{text}");
    let (text, code) = said(&data(&server, &["verify"]));
    assert!(code == Some(0) && text.contains("is intact"), "{text}");
}

#[test]
fn compact_leaves_one_snapshot_with_all_counters() {
    let server = stopped();
    let (text, code) = said(&data(&server, &["compact"]));
    assert_eq!(code, Some(0), "{text}");
    let names: Vec<String> = files(&server)
        .iter()
        .map(|file| {
            file.file_name().unwrap().to_str().unwrap().split('-').next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(names, ["log", "snapshot"]);
    let (text, _) = said(&data(&server, &["verify"]));
    assert!(text.contains("read 10 records"), "{text}");
}

#[test]
fn a_directory_in_use_is_not_compacted() {
    let server = server();
    let (text, code) = said(&data(&server, &["compact"]));
    assert!(code == Some(2) && text.contains("the tidegate server with process number"), "{text}");
}

#[test]
fn another_secret_and_a_missing_directory_are_explained() {
    let server = stopped();
    write_private(&server.data("secret"), [9; 32]);
    let (text, code) = said(&data(&server, &["verify"]));
    assert!(code == Some(2) && text.contains("was written under another secret"), "{text}");
    let nowhere = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["data", "inspect", "/nowhere"])
        .output()
        .unwrap();
    let (text, code) = said(&nowhere);
    assert!(code == Some(2) && text.contains("/nowhere/states: No such file"), "{text}");
}
