//! Runs the examples as a reader would, and checks that the README shows `examples/axum.rs` and its real output.

#![cfg(feature = "tower")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The command of an example that this test run has built.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let target: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples");
    Command::new(target.join(name))
}

fn output(name: &str) -> String {
    let output = example(name).output().unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn in_process() {
    assert_eq!(
        output("in_process"),
        "free: 5 of 40 requests passed\npro: 40 of 40 requests passed\nalice: allowed false, denied by [\"logins\"]\n"
    );
}

#[test]
fn shadow() {
    assert_eq!(
        output("shadow"),
        "shadow: would have denied 40, denied 0\nenforced: would have denied 40, denied 56\n"
    );
}

/// The service says when nothing remains, and the client does not ask it again too early.
#[test]
fn outbound() {
    let text = output("outbound");
    assert_eq!(text, "served 5, denied 0, not sent 3; try again in 12 min\n");
}

#[test]
fn tonic() {
    let text = output("tonic");
    let calls: Vec<&str> = text.lines().collect();
    assert_eq!(calls[..3], ["call 1: served", "call 2: served", "call 3: served"]);
    assert_eq!(calls[3], "call 4: ResourceExhausted, try again in 20 min");
}

/// Stops the service when the test ends, also if it fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The first code block of this kind in the README.
fn block<'r>(readme: &'r str, kind: &str) -> &'r str {
    let (_, rest) = readme.split_once(&format!("```{kind}\n")).unwrap();
    rest.split_once("```\n").unwrap().0
}

/// Creates a project from nothing but what the README shows, as its reader would, and builds it.
fn project_of_the_readme(readme: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
    fs::create_dir_all(folder.join("src")).unwrap();
    let dependencies =
        block(readme, "toml").replace("../tidegate/crates", &format!("{root}/crates"));
    let package = "[package]\nname = \"mine\"\nedition = \"2024\"\n\n[workspace]\n\n";
    fs::write(folder.join("Cargo.toml"), format!("{package}{dependencies}")).unwrap();
    fs::write(folder.join("src/main.rs"), block(readme, "rust,no_run")).unwrap();
    // The versions of this workspace are in the local cache, so the build works offline.
    fs::copy(format!("{root}/Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    let built = cargo
        .args(["build", "--offline", "--quiet"])
        .current_dir(&folder)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .status();
    assert!(built.unwrap().success());
    folder.join("target/debug/mine")
}

/// A new user who follows the README gets a limited endpoint that answers 429 with the headers shown.
#[test]
fn the_readme_makes_a_limited_endpoint() {
    let (_, code) = include_str!("../examples/axum.rs").split_once("\n\n").unwrap();
    let readme = include_str!("../../../README.md");
    assert_eq!(block(readme, "rust,no_run"), code, "the README shows examples/axum.rs");
    let mut program = Command::new(project_of_the_readme(readme));
    let child = program.arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    let answers = pipelined(address, 60);
    for answer in &answers[..5] {
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello\n"),
            "{answer}"
        );
        assert!(answer.contains(
            "\r\nratelimit-policy: \"per-client/s\";q=5;w=1, \"per-client/h\";q=100;w=3600\r\n"
        ));
    }
    // The denial has the header fields that the README shows. There 5 requests passed before it. A slow machine may let more
    // pass, because a token is refilled every 200 ms: then as many fewer remain of the 100 per hour.
    let shown = block(readme, "text\n$ curl -i http://127.0.0.1:3000/");
    let passed = answers.iter().position(|answer| answer.starts_with("HTTP/1.1 429")).unwrap();
    let refused = &answers[passed];
    for line in shown.lines().take_while(|line| !line.is_empty()) {
        let line = line.replace("r=95;", &format!("r={};", 100 - passed));
        assert!(refused.contains(&format!("{line}\r\n")), "{line} is not in {refused}");
    }
    let detail = "per-client/s allows 5 per second; try again in 1 s.";
    assert!(shown.contains(detail) && refused.contains(detail), "{refused}");
    assert!(refused.contains("\"violated-policies\":[\"per-client/s\"]"), "{refused}");
}

/// The responses to requests that are sent in one write: many more than the 5 that pass in a second, so that some is denied
/// also on a slow machine.
fn pipelined(address: &str, requests: usize) -> Vec<String> {
    let mut stream = TcpStream::connect(address).unwrap();
    let all = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(requests - 1)
        + "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(all.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers.split("HTTP/1.1 ").skip(1).map(|answer| format!("HTTP/1.1 {answer}")).collect()
}
