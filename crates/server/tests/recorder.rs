//! The recorder of a running server: what it writes, and that a replay of it decides the same.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

use crate::resp::talk;
use crate::support;

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use support::grpc::Grpc;
use support::messages::{Descriptor, Request};
use support::upstream::Upstream;
use support::{Server, folder, request};
use talk::Talk;

/// Every algorithm, and what else changes an answer: costs, tiers, overrides, headroom, shadow mode, charged refusals, waiting.
const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], user: header:x-user, tier: header:x-plan, api_key: header:x-api-key }
tiers: { default: free, known: [free, pro] }
rules:
  - name: windows
    match: { path: /windows/** }
    key: [user]
    limits: [{ rate: 5/s, algorithm: fixed_window }, { rate: 40/min, algorithm: sliding_log }]
    tiers: { pro: { scale: 2 } }
  - name: buckets
    match: { path: /buckets/** }
    key: [user, ip]
    mode: { soft: 50% }
    limits: [{ rate: 6/s, algorithm: sliding_buckets }, { rate: 50/min, algorithm: sliding_weighted }]
  - { name: tokens, key: [user|ip], count_rejected: true, limits: [{ rate: 30/s, burst: 40 }] }
  - { name: leaky, match: { path: /leaky/** }, key: [api_key], limits: [{ rate: 5/s, algorithm: leaky_bucket }] }
  - { name: watched, key: [ip], shadow: true, limits: [20/s] }
";
const OVERRIDES: &str = "
  - name: named
    match: { method: POST }
    key: [user]
    limits: [3/s]
    overrides: [{ key: { user: u1 }, limits: [1/s] }, { key: { user: u2 }, limits: unlimited }]
";

struct Recorded {
    server: Server,
    upstream: Upstream,
    folder: std::path::PathBuf,
    policy: String,
}

impl Recorded {
    fn start(policy: String, flags: &[&str]) -> Self {
        let (folder, upstream) = (folder("recorder"), Upstream::start("site"));
        let (file, url) = (folder.join("decisions.jsonl"), format!("http://{}", upstream.address));
        let all = ["--record-file", file.to_str().unwrap(), "--proxy-listen", "127.0.0.1:0"];
        let all = [&all[..], &["--proxy-upstream", &url], flags].concat();
        let server = Server::with_policy(&policy, &all);
        Self { server, upstream, folder, policy }
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.join("decisions.jsonl")
    }

    /// Sends requests over every protocol and returns how many.
    fn drive(&self) -> u64 {
        let (mut resp, mut grpc) = (Talk::to(self.server.resp), Grpc::to(self.server.grpc));
        let paths = ["/windows/a", "/buckets/b?c=d", "/leaky//e", "/other"];
        let count = 600_u64;
        for number in 0..count {
            // A fixed sequence without a pattern.
            let draw = number.wrapping_mul(6_364_136_223_846_793_005).rotate_left(23) >> 7;
            let (user, path) =
                (format!("u{}", draw % 4), paths[usize::try_from(draw / 8 % 4).unwrap()]);
            let (cost, plan) = (draw / 32 % 3, if draw % 4 == 3 { "pro" } else { "free" });
            let attributes = json!({ "user": user, "tier": plan, "ip": "2001:db8::7", "path": path, "method": "POST", "api_key": "s3cr3t" });
            let wait = draw / 128 % 2 * 300;
            let ask = json!({ "attributes": attributes, "cost": cost, "max_wait_ms": wait });
            let fields = [("x-user", &*user), ("x-plan", plan), ("x-api-key", "s3cr3t")];
            match draw / 512 % 5 {
                0 => drop(self.server.post("/v1/check", &ask.to_string())),
                1 => drop(self.server.post("/v1/check", &json!([ask]).to_string())),
                2 => {
                    let command = format!("TG.CHECK {cost} user {user} ip 192.0.2.7 path {path}");
                    drop(resp.ask(&command));
                }
                3 => {
                    let two = [
                        Descriptor::of(&[("user", &user)]),
                        Descriptor::of(&[("ip", "192.0.2.9"), ("path", path)]),
                    ];
                    grpc.asked(&Request::of(two));
                }
                _ => drop(request(self.server.proxy, "GET", path, &fields, "")),
            }
        }
        count
    }

    /// Stops the server, so that every line is written.
    fn stop(&mut self) {
        self.server.signal("TERM");
        self.server.wait();
    }

    fn replay(&self, policy: &str) -> Value {
        let path = self.folder.join("replayed.yaml");
        fs::write(&path, policy).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["replay", "--format", "recorded", "--json", "--policy"]).arg(path);
        let output = command.arg("--log").arg(self.file()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The answers of a replay are those of the server, one by one.
#[test]
fn a_replay_of_the_recording_answers_as_the_server_did() {
    let policy = format!("{POLICY}{OVERRIDES}");
    let mut recorded = Recorded::start(policy, &["--record-attributes", "clear"]);
    let count = recorded.drive();
    recorded.stop();
    let lines = lines(&recorded.file());
    let refused = lines.iter().filter(|line| line["o"] == "deny").count();
    assert!(refused > 50 && lines.len() - refused > 50, "{refused} of {}", lines.len());
    assert!(lines.iter().any(|line| line["o"] == "delay"));
    let report = recorded.replay(&recorded.policy);
    let same = json!({ "compared": count, "newly_refused": 0, "newly_allowed": 0, "first_differences": [] });
    assert_eq!(report["policies"][0]["recorded"], same);
    assert_eq!(report["log"]["bad_lines"], 0);
    // Another policy answers differently, and the report says so.
    let stricter = recorded.replay(&recorded.policy.replace("30/s, burst: 40", "1/s"));
    assert!(stricter["policies"][0]["recorded"]["newly_refused"].as_u64().unwrap() > 0);
    assert!(recorded.upstream.saw().len() > 10);
}

/// Digests are enough for keys, so the answers are the same. Rules that compare values are named.
#[test]
fn digests_are_enough_for_keys() {
    let mut recorded = Recorded::start(POLICY.to_owned(), &[]);
    let count = recorded.drive();
    recorded.stop();
    let text = fs::read_to_string(recorded.file()).unwrap();
    for secret in ["s3cr3t", "\"u1\"", "2001:db8", "192.0.2", "127.0.0.1", "c=d"] {
        assert!(!text.contains(secret), "{secret}");
    }
    let report = recorded.replay(POLICY);
    let same = json!({ "compared": count, "newly_refused": 0, "newly_allowed": 0, "first_differences": [] });
    assert_eq!(report["policies"][0]["recorded"], same);
    let named = recorded.replay(&format!("{POLICY}{OVERRIDES}"));
    let rules = named["policies"][0]["rules"].as_array().unwrap();
    let why =
        rules.iter().find(|rule| rule["rule"] == "named").unwrap()["not_evaluated"].to_string();
    assert!(why.contains("`user`") && why.contains("digests"), "{why}");
}

#[test]
fn only_the_owner_may_read_the_recording() {
    let recorded = Recorded::start(POLICY.to_owned(), &[]);
    let mode = fs::metadata(recorded.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A sample of requests would make limits look too generous. A sample of keys has all requests of a key, or none.
#[test]
fn a_sample_has_all_requests_of_a_key_or_none() {
    let mut recorded = Recorded::start(POLICY.to_owned(), &["--record-sample", "4"]);
    for _ in 0..3 {
        let ask = |user: u32| json!({ "attributes": { "user": format!("user-{user}"), "path": "/other" } });
        let all: Vec<Value> = (0..200).map(ask).collect();
        recorded.server.post("/v1/check", &json!(all).to_string());
    }
    recorded.stop();
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for line in lines(&recorded.file()) {
        assert_eq!(line["n"], 4);
        *counts.entry(line["a"]["user"].to_string()).or_default() += 1;
    }
    assert!((20..90).contains(&counts.len()), "{} keys", counts.len());
    assert!(counts.values().all(|count| *count == 3), "{counts:?}");
}

/// A disk that fails stops no request. `/ready` and a metric say what happens.
#[test]
fn a_recording_that_cannot_be_written_is_a_problem_of_the_server() {
    let recorded = Recorded::start(POLICY.to_owned(), &["--record-max-bytes", "1MiB"]);
    let ask = json!({ "attributes": { "user": "alice", "path": "/other" } });
    let thousand = json!(vec![ask; 1_000]).to_string();
    let elsewhere = recorded.folder.with_extension("moved");
    fs::rename(&recorded.folder, &elsewhere).unwrap();
    // Half of the bound is reached after about 3,000 lines; then the file cannot be rotated.
    (0..5).for_each(|_| assert_eq!(recorded.server.post("/v1/check", &thousand).status, 200));
    recorded.server.until("the problem", |server| server.get("/ready").body.contains("recording"));
    fs::rename(&elsewhere, &recorded.folder).unwrap();
    recorded.server.until("the end of the problem", |server| {
        server.post("/v1/check", &thousand);
        !server.get("/ready").body.contains("recording")
    });
}
