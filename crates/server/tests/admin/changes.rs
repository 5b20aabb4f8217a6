//! What operators change and look up for one customer: overrides, tiers, signals, reset, peek, explain.

use crate::support::client::{Client, Operator};
use crate::support::{Reply, Server};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: calls, match: { path: /calls }, key: [user], limits: [{ rate: 2/h, algorithm: sliding_log }], tiers: { pro: { scale: 10 } } }
  - { name: pairs, match: { path: /pairs }, key: [user, ip], limits: [{ rate: 2/h, algorithm: sliding_log }] }
  - { name: elastic, match: { path: /elastic }, key: [user], limits: [{ rate: 2/h, algorithm: sliding_log }], mode: { elastic: { up_to: 200%, while: 'load < 0.7' } } }
";

fn start() -> (Server, Client, Operator) {
    let server = Server::with_policy(POLICY, &[]);
    let (client, operator) = (Client::of(server.http), Operator::of(&server));
    (server, client, operator)
}

fn check(client: &mut Client, path: &str, user: &str) -> Value {
    let asked = json!({ "attributes": { "user": user, "ip": "203.0.113.7", "path": path } });
    client.post("/v1/check", &asked.to_string()).json()
}

/// The limit that applies to the next request of a user.
fn limit(client: &mut Client, path: &str, user: &str) -> Value {
    check(client, path, user)["limits"][0]["limit"].clone()
}

fn put(operator: &mut Operator, what: &str, body: &Value) -> Reply {
    operator.send("PUT", &format!("/admin/v1/{what}"), body)
}

#[test]
fn an_override_counts_for_the_next_request_and_for_nobody_else() {
    let (_server, mut client, mut operator) = start();
    let alice =
        |limits: Value| json!({ "rule": "calls", "key": { "user": "alice" }, "limits": limits });
    assert_eq!(limit(&mut client, "/calls", "alice"), 2);
    assert_eq!(put(&mut operator, "overrides", &alice(json!(["7/h"]))).status, 200);
    assert_eq!(limit(&mut client, "/calls", "alice"), 7);
    assert_eq!(limit(&mut client, "/calls", "bob"), 2);
    let limits = json!([{ "rate": "5/h", "algorithm": "sliding_log" }]);
    assert_eq!(put(&mut operator, "overrides", &alice(limits)).status, 200);
    // What was counted under the rule and under 7/h still counts.
    let verdict = check(&mut client, "/calls", "alice");
    assert_eq!(
        (&verdict["limits"][0]["limit"], &verdict["limits"][0]["remaining"]),
        (&json!(5), &json!(2))
    );
    assert_eq!(put(&mut operator, "overrides", &alice(json!("unlimited"))).status, 200);
    assert_eq!(check(&mut client, "/calls", "alice")["limits"], json!([]));
    assert_eq!(put(&mut operator, "overrides", &alice(Value::Null)).status, 200);
    assert_eq!(limit(&mut client, "/calls", "alice"), 2);
    assert_eq!(operator.get("/admin/v1/control").json()["overrides"], json!([]));
}

/// The rule counts by a sliding log. `7/h` in an override was a token bucket with a state of its own, so a customer whose limit
/// was raised got a fresh allowance. Another algorithm must be written out.
#[test]
fn raising_a_limit_grants_no_fresh_allowance() {
    let (_server, mut client, mut operator) = start();
    let passed = |client: &mut Client| {
        (0..20).filter(|_| check(client, "/calls", "alice")["allowed"] == true).count()
    };
    assert_eq!(passed(&mut client), 2);
    for (limits, more, algorithm) in [
        (json!(["7/h"]), 5, "sliding_log"),
        (json!([{ "rate": "9/h" }]), 2, "sliding_log"),
        (json!([{ "rate": "4/h", "algorithm": "token_bucket" }]), 4, "token_bucket"),
    ] {
        let over = json!({ "rule": "calls", "key": { "user": "alice" }, "limits": limits });
        assert_eq!(put(&mut operator, "overrides", &over).status, 200);
        assert_eq!(passed(&mut client), more, "{over}");
        let verdict = check(&mut client, "/calls", "alice");
        assert_eq!(verdict["limits"][0]["algorithm"], algorithm);
    }
}

/// Two overrides name the same number of attributes, but different ones, so both could apply to one request. The
/// second was accepted with 200 and stored, but never applied.
#[test]
fn an_override_that_contradicts_another_is_refused() {
    let (_server, mut client, mut operator) = start();
    let over = |key: Value| json!({ "rule": "pairs", "key": key, "limits": ["9/h"] });
    assert_eq!(put(&mut operator, "overrides", &over(json!({ "user": "alice" }))).status, 200);
    let refused = put(&mut operator, "overrides", &over(json!({ "ip": "203.0.113.7" })));
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.body.contains("another override names [user]"), "{refused:?}");
    assert_eq!(limit(&mut client, "/pairs", "bob"), 2);
    assert_eq!(operator.get("/admin/v1/control").json()["overrides"].as_array().unwrap().len(), 1);
    let both = json!({ "user": "bob", "ip": "203.0.113.7" });
    assert_eq!(put(&mut operator, "overrides", &over(both)).status, 200);
    assert_eq!(limit(&mut client, "/pairs", "bob"), 9);
}

/// An address can be written in many ways. An operator who removed an override by another spelling was told that it
/// was removed, but it was not.
#[test]
fn an_override_is_taken_back_however_its_address_is_written() {
    let (_server, mut client, mut operator) = start();
    let over = |ip: &str, limits: Value| json!({ "rule": "pairs", "key": { "user": "bob", "ip": ip }, "limits": limits });
    let made = put(&mut operator, "overrides", &over("::ffff:203.0.113.7", json!(["9/h"])));
    assert_eq!((made.status, limit(&mut client, "/pairs", "bob")), (200, json!(9)));
    let gone = put(&mut operator, "overrides", &over("203.0.113.7", Value::Null));
    assert_eq!((gone.status, limit(&mut client, "/pairs", "bob")), (200, json!(2)));
    let tier = |ip: &str, tier: Value| json!({ "attribute": "ip", "value": ip, "tier": tier });
    let made = put(&mut operator, "tiers", &tier("::ffff:203.0.113.7", json!("pro")));
    assert_eq!((made.status, limit(&mut client, "/calls", "eve")), (200, json!(20)));
    let gone = put(&mut operator, "tiers", &tier("203.0.113.7", Value::Null));
    assert_eq!((gone.status, limit(&mut client, "/calls", "eve")), (200, json!(2)));
}

#[test]
fn an_override_that_makes_no_sense_is_refused() {
    let (_server, mut client, mut operator) = start();
    for (body, status) in [
        (json!({ "rule": "callz", "key": { "user": "a" }, "limits": ["1/h"] }), 422),
        (json!({ "rule": "*", "key": { "user": "a" }, "limits": ["1/h"] }), 422),
        (json!({ "rule": "calls", "key": {}, "limits": ["1/h"] }), 422),
        (json!({ "rule": "calls", "key": { "ip": "::1" }, "limits": ["1/h"] }), 422),
        (json!({ "rule": "calls", "key": { "user": "" }, "limits": ["1/h"] }), 422),
        (json!({ "rule": "calls", "key": { "user": "a" }, "limits": ["1/fortnight"] }), 422),
        (json!({ "rule": "calls", "key": { "user": "a" }, "limits": [] }), 422),
        (json!({ "rule": "calls", "key": { "user": "a" }, "limits": 7 }), 422),
        (json!({ "rule": "calls", "key": { "user": 7 }, "limits": ["1/h"] }), 400),
        (json!({ "rule": "calls", "key": { "user": "a" }, "limit": ["1/h"] }), 400),
    ] {
        let refused = put(&mut operator, "overrides", &body);
        assert_eq!(refused.status, status, "{body}: {refused:?}");
    }
    assert_eq!(limit(&mut client, "/calls", "a"), 2);
    assert_eq!(operator.get("/admin/v1/control").json()["version"], 0);
}

#[test]
fn a_tier_counts_for_the_next_request_and_for_nobody_else() {
    let (_server, mut client, mut operator) = start();
    let bob = |tier: Value| json!({ "attribute": "user", "value": "bob", "tier": tier });
    assert_eq!(put(&mut operator, "tiers", &bob(json!("pro"))).status, 200);
    assert_eq!(limit(&mut client, "/calls", "bob"), 20);
    assert_eq!(limit(&mut client, "/calls", "alice"), 2);
    assert_eq!(put(&mut operator, "tiers", &bob(json!("gold"))).status, 422);
    assert_eq!(limit(&mut client, "/calls", "bob"), 20);
    assert_eq!(put(&mut operator, "tiers", &bob(Value::Null)).status, 200);
    assert_eq!(limit(&mut client, "/calls", "bob"), 2);
    assert_eq!(operator.get("/admin/v1/control").json()["tiers"], json!([]));
}

/// The condition must hold for two seconds, so this test takes two seconds.
#[test]
fn a_signal_lets_an_elastic_limit_grow() {
    let (server, mut client, mut operator) = start();
    let mut passed =
        (0..9).filter(|_| check(&mut client, "/elastic", "alice")["allowed"] == true).count();
    assert_eq!(passed, 2);
    server.until("the limit has grown", |_| {
        assert_eq!(put(&mut operator, "signals", &json!({ "load": 0.5 })).status, 200);
        check(&mut client, "/elastic", "alice")["allowed"] == true
    });
    passed +=
        1 + (0..9).filter(|_| check(&mut client, "/elastic", "alice")["allowed"] == true).count();
    assert_eq!(passed, 4);
    put(&mut operator, "signals", &json!({ "load": 0.9 }));
    assert_eq!(check(&mut client, "/elastic", "bob")["limits"][0]["limit"], 2);
    let many: BTreeMap<String, f64> = (0..65).map(|number| (number.to_string(), 0.5)).collect();
    for wrong in [json!({ "load": "high" }), json!({ "load": 1e300 }), json!(0.5), json!(many)] {
        assert_eq!(put(&mut operator, "signals", &wrong).status, 400, "{wrong}");
    }
}

/// A value is taken literally: no character in it is a wildcard.
#[test]
fn a_reset_is_for_one_key_exactly() {
    let (_server, mut client, mut operator) = start();
    let users =
        ["alice", "*", "%", "?", "a*", "alice\n", "alice\nbob", "al_ce", ".*", "' or 1=1 --"];
    for user in users {
        (0..2).for_each(|_| _ = check(&mut client, "/calls", user));
        assert_eq!(check(&mut client, "/calls", user)["allowed"], false, "{user:?}");
    }
    for (number, user) in users.into_iter().enumerate() {
        let asked = json!({ "rule": "calls", "attributes": { "user": user } });
        let reply = operator.send("POST", "/admin/v1/reset", &asked);
        assert_eq!((reply.status, &reply.json()["states"]), (200, &json!(1)), "{user:?}");
        for (later, user) in users.into_iter().enumerate().skip(number) {
            let peeked = json!({ "attributes": { "user": user, "path": "/calls" } });
            let verdict = operator.send("POST", "/admin/v1/peek", &peeked).json();
            assert_eq!(verdict["allowed"], later == number, "{user:?}");
        }
    }
    for (asked, status) in [
        (json!({ "rule": "*", "attributes": { "user": "alice" } }), 422),
        (json!({ "rule": "calls", "attributes": {} }), 422),
        (json!({ "rule": "calls", "attributes": { "ip": "203.0.113.7" } }), 422),
        (json!({ "rule": "calls" }), 400),
    ] {
        assert_eq!(operator.send("POST", "/admin/v1/reset", &asked).status, status, "{asked}");
    }
}

#[test]
fn looking_changes_nothing() {
    let (_server, mut client, mut operator) = start();
    let alice = json!({ "attributes": { "user": "alice", "path": "/calls" } });
    check(&mut client, "/calls", "alice");
    for _ in 0..20 {
        let peeked = operator.send("POST", "/admin/v1/peek", &alice).json();
        assert_eq!((&peeked["allowed"], &peeked["limits"][0]["limit"]), (&json!(true), &json!(2)));
        let explained = operator.send("POST", "/admin/v1/explain", &alice).json();
        assert_eq!(explained["rules"][0]["from"], "rule", "{explained}");
    }
    assert_eq!(check(&mut client, "/calls", "alice")["limits"][0]["remaining"], 0);
    let over = json!({ "rule": "calls", "key": { "user": "alice" }, "limits": ["7/h"] });
    put(&mut operator, "overrides", &over);
    let explained = operator.send("POST", "/admin/v1/explain", &alice).json();
    assert_eq!(explained["rules"][0]["from"], "run-time override", "{explained}");
}

/// Two operators read the same version and both change it. The second change is based on an outdated version.
#[test]
fn of_changes_made_under_one_version_exactly_one_is_made() {
    let (server, _client, mut operator) = start();
    for round in 0..5 {
        let looked = operator.get("/admin/v1/control");
        let tag = looked.field("etag").unwrap().to_owned();
        assert_eq!(tag, format!("\"{round}\""));
        let threads = (0..8).map(|number| {
            let (mut operator, tag) = (Operator::of(&server), tag.clone());
            std::thread::spawn(move || {
                let fields = [("if-match", tag.as_str()), ("content-type", "application/json")];
                let (path, body) = match number % 4 {
                    0 => ("policy", format!("{POLICY}# {number}\n")),
                    1 => ("rules", json!({ "rule": "calls", "shadow": true }).to_string()),
                    2 => (
                        "tiers",
                        json!({ "attribute": "user", "value": "x", "tier": "pro" }).to_string(),
                    ),
                    _ => (
                        "overrides",
                        json!({ "rule": "calls", "key": { "user": "x" }, "limits": ["1/h"] })
                            .to_string(),
                    ),
                };
                operator.ask("PUT", &format!("/admin/v1/{path}"), &fields, body).status
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut statuses: Vec<u16> = threads.into_iter().map(|one| one.join().unwrap()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 412, 412, 412, 412, 412, 412, 412]);
    }
    assert_eq!(operator.get("/admin/v1/audit").json().as_array().unwrap().len(), 5);
    for tag in ["5", "\"five\"", "*", "W/\"5\"", "\"5\", \"6\"", ""] {
        let fields = [("if-match", tag), ("content-type", "application/json")];
        let body = json!({ "rule": "calls", "shadow": true }).to_string();
        assert_eq!(operator.ask("PUT", "/admin/v1/rules", &fields, body).status, 400, "{tag}");
    }
    assert_eq!(operator.get("/admin/v1/control").json()["version"], 5);
}
