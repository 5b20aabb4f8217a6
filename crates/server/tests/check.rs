//! `tidegate check`, as people and scripts call it.

#![allow(clippy::unwrap_used, reason = "a test fails loudly")]

use crate::support;

use std::process::{Command, Output};
use support::upstream::free_address;
use support::{Server, folder};

fn check(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("check").args(arguments).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

const ONE_AN_HOUR: &str = "
version: 1
rules: [{ name: per-client, key: [ip], limits: [{ rate: 1/h, algorithm: sliding_log }] }]
";

#[test]
fn a_server_is_asked() {
    let server = Server::with_policy(ONE_AN_HOUR, &[]);
    let url = format!("http://{}", server.http);
    let ask = |more: &[&str]| {
        let mut all = vec!["--server", &url, "ip=203.0.113.7"];
        all.extend(more);
        said(&check(&all))
    };
    let allowed = "allowed
  rule        limit    left  full again in  algorithm
  per-client  1 per h     1  0 ms           sliding_log
";
    assert_eq!(ask(&["--peek", "--cost", "0"]), (Some(0), allowed.to_owned()));
    assert_eq!(ask(&[]).0, Some(0));
    let (code, text) = ask(&[]);
    assert_eq!(code, Some(1));
    // One hour and up to a step of the log, rounded up to seconds; or less, if time has passed.
    let waits = ["1 h\n", "1 h 1 s\n", "5"].map(|wait| format!("refused; try again in {wait}"));
    assert!(waits.iter().any(|wait| text.starts_with(wait)), "{text}");
    assert!(
        text.contains("  per-client  1 per h     0  ") && text.ends_with("  refuses\n"),
        "{text}"
    );
    let (code, text) = ask(&["--cost", "2"]);
    assert!(code == Some(1) && text.starts_with("refused; it can never pass\n"), "{text}");
    let (_, json) = ask(&["--json"]);
    let verdict: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (verdict["allowed"].as_bool(), verdict["policy_version"].as_u64()),
        (Some(false), Some(1))
    );
}

#[test]
fn a_policy_file_is_asked_without_a_server() {
    let folder = folder("check");
    let path = folder.join("policy.yaml");
    std::fs::write(&path, ONE_AN_HOUR).unwrap();
    let file = path.to_str().unwrap();
    assert_eq!(check(&["--policy", file, "ip=203.0.113.7"]).status.code(), Some(0));
    assert_eq!(check(&["--policy", file, "ip=203.0.113.7", "--cost", "2"]).status.code(), Some(1));
    let (code, text) = said(&check(&["--policy", file, "user=alice"]));
    assert_eq!((code, text.as_str()), (Some(0), "allowed\n  no rule applies to it\n"));
    std::fs::write(&path, "version: 1\nrulez: []\n").unwrap();
    let (code, text) = said(&check(&["--policy", file, "ip=203.0.113.7"]));
    assert_eq!(code, Some(2));
    assert!(text.contains(":2:1: error: unknown key `rulez`, did you mean `rules`?"), "{text}");
}

#[test]
fn what_cannot_be_asked_is_told() {
    let server = Server::start(&[]);
    let url = format!("http://{}", server.http);
    let free = free_address();
    for (arguments, part) in [
        (vec!["--server", "http://127.0.0.1:1", "ip=1.2.3.4"], "is it running?"),
        (vec!["--server", &format!("http://{free}"), "ip=1.2.3.4"], "is it running?"),
        (
            vec!["--server", "gopher://127.0.0.1", "ip=1.2.3.4"],
            "write it like `http://127.0.0.1:8080`",
        ),
        (vec!["--server", &url, "ip=localhost"], "`localhost` is not a valid address"),
        (vec!["--server", &url, "alice"], "write it like `user=alice`"),
        (vec!["--server", &url, "cost=5"], "the cost is given with --cost"),
        (vec!["--server", &url, "ip=1.2.3.4", "ip=1.2.3.5"], "`ip` is given twice"),
        (vec!["--server", &format!("http://{}", server.admin), "ip=1.2.3.4"], "401"),
        (vec!["--policy", "/nonexistent", "ip=1.2.3.4"], "/nonexistent"),
    ] {
        let (code, text) = said(&check(&arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
}
