//! `tidegate admin` and `tidegate top`, as an operator calls them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

use crate::support;
use crate::support::client;

use client::Client;
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use support::{Server, folder, write_private};

const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: calls, key: [user], limits: [{ rate: 2/h, algorithm: sliding_log }], tiers: { pro: { scale: 10 } } }
  - { name: devices, key: [user, device], limits: [9/h] }
";

struct Desk {
    server: Server,
}

/// What a command said.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Desk {
    fn new() -> Self {
        Self { server: Server::with_policy(POLICY, &[]) }
    }

    /// Runs `tidegate admin` with the address and the data directory of the server.
    fn run(&self, words: &[&str]) -> Said {
        self.run_with(words, "")
    }

    fn run_with(&self, words: &[&str], input: &str) -> Said {
        let (url, data) = self.access();
        said(&["admin", "--admin", &url, "--data-dir", &data], words, input)
    }

    /// Runs `tidegate top`.
    fn top(&self, words: &[&str]) -> Said {
        let (url, data) = self.access();
        said(&["top", "--admin", &url, "--data-dir", &data], words, "")
    }

    /// The address of the server and its data directory.
    fn access(&self) -> (String, String) {
        let data = self.server.folder.join("data");
        (format!("http://{}", self.server.admin), data.to_str().unwrap().to_owned())
    }

    /// Runs a command that must succeed.
    fn ok(&self, words: &[&str]) -> String {
        let said = self.run(words);
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        said.out
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[words, &["--json"]].concat())).unwrap()
    }

    /// Uses up the limit of a user.
    fn use_up(&self, user: &str) {
        let body = json!({ "attributes": { "user": user } }).to_string();
        let mut client = Client::of(self.server.http);
        let passed = (0..5).filter(|_| client.post("/v1/check", &body).status == 200).count();
        assert_eq!(passed, 2);
    }
}

fn said(first: &[&str], words: &[&str], input: &str) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(first)
        .args(words)
        .env_remove("TIDEGATE_DATA_DIR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// The ten questions that an operator has at night. Each is answered by one command.
#[test]
fn each_question_is_one_command() {
    let desk = Desk::new();
    desk.use_up("alice");
    let questions: [(&str, &[&str], &str); 9] = [
        ("why is alice refused?", &["who", "user=alice"], "2 of 2"),
        ("which rule is it?", &["who", "user=alice"], "calls"),
        ("since when, and how long still?", &["who", "user=alice"], "refuses for "),
        (
            "raise her limit for an hour",
            &[
                "override",
                "user=alice",
                "--rule",
                "calls",
                "--limits",
                "100/h",
                "--for",
                "1h",
                "--reason",
                "import",
                "--yes",
            ],
            "version 1",
        ),
        ("reset her counters", &["reset", "user=alice", "--yes"], "Reset 1 counter."),
        ("stop a rule from refusing", &["rule", "shadow", "calls", "--yes"], "version 2"),
        ("what would it refuse?", &["status"], "would refuse"),
        ("which policy does each node have?", &["nodes"], "same policy"),
        ("how is the store?", &["status"], "The store works"),
    ];
    for (question, words, part) in questions {
        let out = desk.ok(words);
        assert!(out.contains(part), "{question}\n{out}");
    }
    let most = desk.top(&["--once"]);
    assert!(
        most.out.contains("alice"),
        "`tidegate top --once` does not list the client that is refused most\n{most:?}"
    );
    let out = desk.ok(&["who", "user=alice"]);
    for part in [
        "100/h",
        "Override of calls: 100/h, set by operator",
        "until 2",
        "import",
        "Not shown: devices",
    ] {
        assert!(out.contains(part), "{part}\n{out}");
    }
}

#[test]
fn a_change_asks_or_needs_yes() {
    let desk = Desk::new();
    desk.use_up("alice");
    let changes: [&[&str]; 5] = [
        &["override", "user=alice", "--rule", "calls", "--limits", "unlimited"],
        &["tier", "user=alice", "pro"],
        &["rule", "disable", "calls"],
        &["reset", "user=alice"],
        &["policy", "withdraw"],
    ];
    for words in changes {
        let refused = desk.run(words);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains("add --yes"), "{refused:?}");
        let dry = desk.ok(&[words, &["--dry-run"]].concat());
        assert!(dry.contains("Nothing was "), "{dry}");
    }
    assert_eq!(desk.json(&["changes"])["version"], 0);
    assert_eq!(desk.json(&["audit"]), json!([]));
    for words in &changes[..4] {
        desk.ok(&[words, &["--yes"][..]].concat());
    }
    let control = desk.json(&["changes"]);
    let counts =
        ["rules", "overrides", "tiers"].map(|kind| control[kind].as_array().unwrap().len());
    assert_eq!((counts, &control["version"]), ([1, 1, 1], &json!(3)));
    let table = desk.ok(&["changes"]);
    assert!(table.contains("calls for user=alice") && table.contains("unlimited"), "{table}");
    for words in [
        &["override", "user=alice", "--rule", "calls", "--remove"][..],
        &["tier", "user=alice", "--remove"],
        &["rule", "restore", "calls"],
    ] {
        desk.ok(&[words, &["--yes"]].concat());
    }
    assert!(desk.ok(&["changes"]).contains("There are no changes"));
    let audit = desk.ok(&["audit", "--last", "3"]);
    assert_eq!(audit.lines().count(), 4, "{audit}");
}

/// `script` gives the command a terminal, on which it asks.
#[test]
fn on_a_terminal_an_operator_may_decline() {
    let desk = Desk::new();
    let (url, data) = (format!("http://{}", desk.server.admin), desk.server.folder.join("data"));
    for (answer, code, version) in [("n\n", "1", 0), ("\n", "1", 0), ("y\n", "0", 1)] {
        let command = format!(
            "{} admin --admin {url} --data-dir {} rule shadow calls; echo code=$?",
            env!("CARGO_BIN_EXE_tidegate"),
            data.display()
        );
        let child = Command::new("script")
            .args(["--quiet", "--command", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_ref().unwrap().write_all(answer.as_bytes()).unwrap();
        let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert!(out.contains("[y/N]") && out.contains(&format!("code={code}")), "{out}");
        assert_eq!(desk.json(&["changes"])["version"], version, "{answer:?}");
    }
}

#[test]
fn a_policy_is_compared_put_in_force_and_withdrawn() {
    let desk = Desk::new();
    let file = desk.server.folder.join("new.yaml");
    std::fs::write(&file, POLICY.replace("2/h", "3/h").replace("name: devices", "name: tools"))
        .unwrap();
    let path = file.to_str().unwrap();
    let difference = desk.ok(&["policy", "diff", path]);
    for part in ["+ rule tools", "- rule devices", "~ rule calls"] {
        assert!(difference.contains(part), "{difference}");
    }
    desk.ok(&["policy", "put", path, "--dry-run"]);
    assert!(desk.ok(&["policy"]).contains("2/h"));
    desk.ok(&["policy", "put", path, "--yes"]);
    assert!(desk.ok(&["policy", "show"]).contains("3/h"));
    desk.ok(&["policy", "withdraw", "--yes"]);
    assert!(desk.ok(&["policy"]).contains("2/h"));
    std::fs::write(&file, "version: 1\nrulez: []\n").unwrap();
    let refused = desk.run(&["policy", "put", path, "--yes"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("2:1: unknown key `rulez`"), "{refused:?}");
}

#[test]
fn the_token_is_found_on_this_machine_and_never_sent_elsewhere() {
    let desk = Desk::new();
    let url = format!("http://{}", desk.server.admin);
    let data = desk.server.folder.join("data");
    let token = std::fs::read_to_string(data.join("operator-token")).unwrap().trim().to_owned();
    let reader = std::fs::read_to_string(data.join("reader-token")).unwrap().trim().to_owned();
    // In the directory of the variable, in `tidegate-data` where the command runs, and in a file.
    let run = |folder: &std::path::Path, variable: Option<&std::path::Path>, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["admin", "--admin", &url]).args(words).current_dir(folder);
        command.env_remove("TIDEGATE_DATA_DIR").stdin(Stdio::null());
        if let Some(variable) = variable {
            command.env("TIDEGATE_DATA_DIR", variable);
        }
        command.output().unwrap()
    };
    let place = folder("place");
    let status = |output: &Output| output.status.code();
    assert_eq!(status(&run(&place, Some(&data), &["nodes"])), Some(0));
    std::fs::create_dir(place.join("tidegate-data")).unwrap();
    write_private(&place.join("tidegate-data/operator-token"), format!("{token}\n"));
    assert_eq!(status(&run(&place, None, &["nodes"])), Some(0));
    // A token of another server is tried, and then the right one.
    let other = folder("other");
    write_private(&other.join("operator-token"), "the-token-of-another-server\n");
    assert_eq!(status(&run(&place, Some(&other), &["nodes"])), Some(0));
    let file = place.join("reader");
    write_private(&file, format!("{reader}\n"));
    let file = file.to_str().unwrap();
    assert_eq!(status(&run(&other, None, &["--token-file", file, "nodes"])), Some(0));
    let refused = run(&other, None, &["--token-file", file, "rule", "shadow", "calls", "--yes"]);
    assert_eq!(status(&refused), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("403"), "{refused:?}");
    let lost = said(
        &["admin", "--admin", &url, "--data-dir", other.join("no").to_str().unwrap()],
        &["nodes"],
        "",
    );
    assert!(lost.code == Some(2) && lost.err.contains("no token was found"), "{lost:?}");
    let far = said(&["admin", "--admin", "http://192.0.2.1:8082"], &["nodes"], "");
    assert!(far.code == Some(2) && far.err.contains("--token-file"), "{far:?}");
    let link = desk.ok(&["dashboard"]);
    assert_eq!(link, format!("http://{}/dashboard/#token={token}\n", desk.server.admin));
    assert!(desk.ok(&["dashboard", "--reader"]).ends_with(&format!("#token={reader}\n")));
}

#[test]
fn whatever_the_admin_api_can_do_is_at_hand() {
    let desk = Desk::new();
    let leases: Value =
        serde_json::from_str(&desk.ok(&["call", "GET", "/admin/v1/leases"])).unwrap();
    assert_eq!(leases, json!({ "rules": [] }));
    let peek = r#"{"attributes":{"user":"alice"}}"#;
    let peeked = desk.run_with(&["call", "POST", "/admin/v1/peek", "--body"], peek);
    assert!(peeked.code == Some(0) && peeked.out.contains("\"allowed\":true"), "{peeked:?}");
    let signal = desk.run_with(&["call", "PUT", "/admin/v1/signals", "--body"], "{\"load\":0.5}");
    assert!(signal.code == Some(2) && signal.err.contains("--yes"), "{signal:?}");
    let words = ["call", "PUT", "/admin/v1/signals", "--body", "--yes"];
    assert_eq!(desk.run_with(&words, "{\"load\":0.5}").code, Some(0));
    let unknown = desk.run(&["call", "GET", "/admin/v1/nothing"]);
    assert!(unknown.code == Some(2) && unknown.err.contains("no such path"), "{unknown:?}");
}

#[test]
fn what_is_wrong_is_told_before_anything_is_changed() {
    let desk = Desk::new();
    for (words, part) in [
        (&["who", "alice"][..], "write it like `user=alice`"),
        (&["who", "ip=somewhere"], "/attributes/ip"),
        (&["override", "user=alice", "--rule", "callz", "--limits", "1/h", "--yes"], "callz"),
        (
            &["override", "user=alice", "--rule", "calls", "--limits", "1/fortnight", "--yes"],
            "limits",
        ),
        (&["override", "user=alice", "--rule", "calls", "--yes"], "--limits"),
        (&["override", "user=alice", "--rule", "calls", "--limits", "1/h", "--for", "1x"], "15min"),
        (
            &[
                "override",
                "user=alice",
                "--rule",
                "calls",
                "--limits",
                "1/h",
                "--until",
                "noon",
                "--yes",
            ],
            "expires",
        ),
        (&["tier", "user=alice", "gold", "--yes"], "gold"),
        (&["rule", "sleep", "calls"], "disable"),
    ] {
        let said = desk.run(words);
        assert_eq!(said.code, Some(2), "{words:?}: {said:?}");
        assert!(said.err.contains(part), "{words:?}: {said:?}");
    }
    assert_eq!(desk.json(&["changes"])["version"], 0);
}
