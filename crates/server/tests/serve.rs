//! `tidegate serve`, started as a user starts it.

use crate::support;

use serde_json::json;
use support::{Server, folder};

#[test]
fn without_arguments_it_limits_each_address_to_15_a_second() {
    let server = Server::start(&[]);
    // In one batch: on a busy machine, single requests could be so slow that tokens come back between them.
    let batch = json!(vec![json!({ "attributes": { "ip": "203.0.113.7" } }); 1_000]);
    let verdicts = server.post("/v1/check", &batch.to_string()).json();
    let allowed: Vec<bool> =
        verdicts.as_array().unwrap().iter().map(|each| each["allowed"] == true).collect();
    assert_eq!(allowed[..15], [true; 15]);
    assert!(allowed.contains(&false));
    assert_eq!(server.check_ip("203.0.113.8").status, 200);
}

#[test]
fn a_refusal_says_everything() {
    let policy = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1/h] }] }";
    let server = Server::with_policy(policy, &[]);
    server.check_ip("203.0.113.7");
    let refused = server.check_ip("203.0.113.7");
    assert_eq!(refused.status, 429);
    let verdict = refused.json();
    let retry_after = verdict["retry_after_ms"].as_u64().unwrap().div_ceil(1_000);
    assert_eq!(refused.field("retry-after"), Some(retry_after.to_string().as_str()));
    // Two requests take less than half an hour, even on the busiest machine.
    let near =
        |value: &serde_json::Value| (1_800_000..=3_600_000).contains(&value.as_u64().unwrap());
    assert!(
        near(&verdict["retry_after_ms"]) && near(&verdict["limits"][0]["reset_ms"]),
        "{verdict}"
    );
    let mut verdict = verdict;
    verdict["retry_after_ms"] = json!(0);
    verdict["limits"][0]["retry_after_ms"] = json!(0);
    verdict["limits"][0]["reset_ms"] = json!(0);
    assert_eq!(
        verdict,
        json!({
            "allowed": false, "outcome": "deny", "delay_ms": 0, "retry_after_ms": 0, "over": false,
            "decided_by": "store", "policy_version": 1,
            "limits": [{
                "rule": "all", "limit": 1, "per_ms": 3_600_000, "algorithm": "token_bucket", "outcome": "deny",
                "remaining": 0, "reset_ms": 0, "retry_after_ms": 0, "shadow": false,
            }],
        })
    );
}

#[test]
fn what_nobody_limits_passes_and_makes_no_state() {
    let server = Server::start(&[]);
    let reply = server.post("/v1/check", "{\"attributes\":{\"user\":\"alice\"}}");
    assert_eq!((reply.status, &reply.json()["limits"]), (200, &json!([])));
    assert_eq!(reply.json()["decided_by"], "policy");
}

#[test]
fn settings_are_printed_and_nothing_starts() {
    let folder = folder("print");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--print-config", "--http-idle-timeout", "7s"])
        .env("TIDEGATE_LOG_LEVEL", "warn")
        .current_dir(&folder)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for line in ["  idle_timeout: 7s", "  level: warn"] {
        let found = text.lines().find(|found| found.starts_with(line)).unwrap();
        assert!(found.contains("# --http-idle-timeout") || found.contains("# TIDEGATE_LOG_LEVEL"));
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

/// Lint ensures that no request meets more than sixteen limits, but it does not know what operators change at run
/// time. In that case a whole list was once answered with 422, although its other entries had been counted.
#[test]
fn an_entry_that_cannot_be_decided_spoils_no_other() {
    let rules: String =
        (0..16).map(|n| format!("  - {{ name: r{n}, key: [user], limits: [2/h] }}\n")).collect();
    let server = Server::with_policy(&format!("version: 1\nrules:\n{rules}"), &[]);
    let two = json!({ "rule": "r0", "key": { "user": "alice" }, "limits": ["2/h", "3/day"] });
    let put = server.admin("PUT", "/admin/v1/overrides", "application/json", &two.to_string());
    assert_eq!(put.status, 200, "{put:?}");
    let [alice, bob] = ["alice", "bob"].map(|user| json!({ "attributes": { "user": user } }));
    let reply = server.post("/v1/check", &json!([bob, alice, bob, bob]).to_string());
    assert_eq!(reply.status, 200, "{reply:?}");
    let verdicts = reply.json();
    let allowed: Vec<bool> = (0..4).map(|at| verdicts[at]["allowed"] == true).collect();
    assert_eq!(allowed, [true, false, true, false]);
    assert_eq!((&verdicts[1]["allowed"], &verdicts[1]["status"]), (&json!(false), &json!(422)));
    assert_eq!(server.post("/v1/check", &alice.to_string()).status, 422);
}
