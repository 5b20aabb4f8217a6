//! Changes that end by themselves, and what is noted about a change: who made it, when, why, until when.

use crate::support::client::{Client, Operator};
use crate::support::{Reply, Server};
use serde_json::{Value, json};

const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: calls, key: [user], limits: [{ rate: 2/h, algorithm: sliding_log }], tiers: { pro: { scale: 10 } } }
";

fn put(operator: &mut Operator, what: &str, body: &Value) -> Reply {
    operator.send("PUT", &format!("/admin/v1/{what}"), body)
}

/// The limit of the next request; `null` if no rule counts it.
fn limit(server: &Server, user: &str) -> Value {
    let asked = json!({ "attributes": { "user": user } });
    Client::of(server.http).post("/v1/check", &asked.to_string()).json()["limits"][0]["limit"]
        .clone()
}

fn over(user: &str, expires: &Value) -> Value {
    json!({ "rule": "calls", "key": { "user": user }, "limits": ["7/h"], "expires": expires, "reason": "an import" })
}

fn lines(operator: &mut Operator, what: &str) -> Vec<Value> {
    let lines = operator.get("/admin/v1/audit").json();
    lines.as_array().unwrap().iter().filter(|line| line["what"] == what).cloned().collect()
}

#[test]
fn changes_of_each_kind_end_by_themselves() {
    let server = Server::with_policy(POLICY, &[]);
    let mut operator = Operator::of(&server);
    assert_eq!(put(&mut operator, "overrides", &over("alice", &json!(1))).status, 200);
    let tier = json!({ "attribute": "user", "value": "bob", "tier": "pro", "expires": 1 });
    assert_eq!(put(&mut operator, "tiers", &tier).status, 200);
    assert_eq!(put(&mut operator, "overrides", &over("eve", &json!(3_600))).status, 200);
    // It is seen in force before it gets its short time, however slow the machine is.
    for seconds in [3_600, 1] {
        let off = json!({ "rule": "calls", "enabled": false, "expires": seconds });
        assert_eq!(put(&mut operator, "rules", &off).status, 200);
        if seconds > 1 {
            assert_eq!(limit(&server, "alice"), Value::Null);
        }
    }
    server.until("the rule counts again", |server| limit(server, "mallory") == 2);
    server.until("the others have ended", |server| {
        limit(server, "alice") == 2 && limit(server, "bob") == 2
    });
    assert_eq!(limit(&server, "eve"), 7);
    server.until("they are removed", |_| {
        let control = operator.get("/admin/v1/control").json();
        let left =
            ["rules", "overrides", "tiers"].map(|kind| control[kind].as_array().unwrap().len());
        left == [0, 1, 0]
    });
    server.until("the audit log says so", |_| {
        let lines = lines(&mut operator, "expired");
        assert!(lines.iter().all(|line| line["who"] == "tidegate"));
        let ended = |kind: &str| -> usize {
            let of = |line: &Value| line["details"]["change"][kind].as_array().unwrap().len();
            lines.iter().map(of).sum()
        };
        ["rules", "overrides", "tiers"].map(ended) == [1, 1, 1]
    });
    assert_eq!(server.get("/ready").json()["status"], "ready");
}

/// A change that expired while the server was down has no effect from the first request on.
#[test]
fn a_change_that_ended_while_the_server_was_down_is_not_in_force() {
    let mut server = Server::with_policy(POLICY, &[]);
    let end = json!("2096-01-01T00:00:00Z");
    assert_eq!(put(&mut Operator::of(&server), "overrides", &over("alice", &end)).status, 400);
    let end = json!(7_200);
    assert_eq!(put(&mut Operator::of(&server), "overrides", &over("alice", &end)).status, 200);
    server.signal("KILL");
    server.wait();
    let path = server.data("control.json");
    let mut control: Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(control["overrides"][0]["expires_at_ms"].as_u64().unwrap() > 1_700_000_000_000);
    control["overrides"][0]["expires_at_ms"] = json!(1_700_000_000_000_u64);
    std::fs::write(&path, control.to_string()).unwrap();
    let folder = server.folder.clone();
    std::mem::forget(server);
    let policy = folder.join("policy.yaml");
    let server = Server::start_in(folder, &["--policy", policy.to_str().unwrap()]);
    assert_eq!(limit(&server, "alice"), 2);
    let mut operator = Operator::of(&server);
    assert_eq!(operator.get("/admin/v1/control").json()["overrides"], json!([]));
    server.until("it is removed", |_| !lines(&mut operator, "expired").is_empty());
}

#[test]
fn a_change_says_who_made_it_when_why_and_until_when() {
    let server = Server::with_policy(POLICY, &[]);
    let mut operator = Operator::of(&server);
    let made = put(&mut operator, "overrides", &over("alice", &json!(3_600))).json();
    let entry = &made["overrides"][0];
    assert_eq!((&entry["by"], &entry["reason"]), (&json!("operator"), &json!("an import")));
    let (since, end) =
        (entry["since_ms"].as_u64().unwrap(), entry["expires_at_ms"].as_u64().unwrap());
    assert_eq!(end, since + 3_600_000);
    let line = lines(&mut operator, "override").remove(0);
    assert_eq!((&line["reason"], &line["who"]), (&json!("an import"), &json!("operator")));
    let change = json!({ "rule": "calls", "key": { "user": "alice" }, "limits": ["7/h"], "expires_at_ms": end });
    assert_eq!(line["details"]["change"], change);
    // A removal has a reason, too.
    let gone =
        json!({ "rule": "calls", "key": { "user": "alice" }, "limits": null, "reason": "done" });
    assert_eq!(put(&mut operator, "overrides", &gone).json()["overrides"], json!([]));
    assert_eq!(lines(&mut operator, "override")[1]["reason"], "done");
    assert_eq!(limit(&server, "alice"), 2); // which counts a request
    let reset =
        json!({ "rule": "calls", "attributes": { "user": "alice" }, "reason": "a mistake" });
    assert_eq!(operator.send("POST", "/admin/v1/reset", &reset).status, 200);
    assert_eq!(lines(&mut operator, "reset")[0]["reason"], "a mistake");
}

#[test]
fn an_end_or_a_reason_that_makes_no_sense_is_refused() {
    let server = Server::with_policy(POLICY, &[]);
    let mut operator = Operator::of(&server);
    for wrong in [
        json!(0),
        json!(-5),
        json!("tomorrow"),
        json!("2001-01-01T00:00:00Z"),
        json!(1.5),
        json!([1]),
    ] {
        let refused = put(&mut operator, "overrides", &over("alice", &wrong));
        assert_eq!(
            (refused.status, &refused.json()["pointer"]),
            (400, &json!("/expires")),
            "{wrong}"
        );
    }
    let reason = |reason: &str| json!({ "rule": "calls", "shadow": true, "reason": reason });
    for wrong in ["two\nlines".to_owned(), "x".repeat(257)] {
        let refused = put(&mut operator, "rules", &reason(&wrong));
        assert_eq!(
            (refused.status, &refused.json()["pointer"]),
            (400, &json!("/reason")),
            "{wrong}"
        );
    }
    let gone = json!({ "attribute": "user", "value": "bob", "tier": null, "expires": 60 });
    let refused = put(&mut operator, "tiers", &gone);
    assert_eq!((refused.status, &refused.json()["pointer"]), (400, &json!("/expires")));
    assert_eq!(operator.get("/admin/v1/control").json()["version"], 0);
}

#[test]
fn a_dry_run_checks_a_change_and_makes_none() {
    let server = Server::with_policy(POLICY, &[]);
    let mut operator = Operator::of(&server);
    for (what, body) in [
        ("overrides", over("alice", &json!(60))),
        ("tiers", json!({ "attribute": "user", "value": "bob", "tier": "pro" })),
        ("rules", json!({ "rule": "calls", "enabled": false })),
    ] {
        let planned = put(&mut operator, &format!("{what}?dry_run=true"), &body);
        assert_eq!((planned.status, &planned.json()["version"]), (200, &json!(1)), "{planned:?}");
        assert_eq!(planned.json()[what].as_array().unwrap().len(), 1);
        assert_eq!(put(&mut operator, &format!("{what}?dryrun=true"), &body).status, 400);
    }
    let wrong = json!({ "rule": "nothing", "enabled": false });
    assert_eq!(put(&mut operator, "rules?dry_run=true", &wrong).status, 422);
    assert_eq!(operator.get("/admin/v1/control").json()["version"], 0);
    assert_eq!(operator.get("/admin/v1/audit").json(), json!([]));
    assert_eq!(limit(&server, "alice"), 2);
}
