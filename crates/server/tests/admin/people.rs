//! One person, of whom an operator knows a user name or an address: what is counted, what applies, and a reset of all of it.

use crate::support::Server;
use crate::support::client::{Client, Operator};
use serde_json::{Value, json};

const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: calls, match: { method: POST }, key: [user], limits: [{ rate: 5/h, algorithm: sliding_log }, { rate: 9/day, algorithm: sliding_log }], tiers: { pro: { scale: 10 } } }
  - { name: devices, key: [user, device], limits: [{ rate: 3/h, algorithm: sliding_log }] }
  - { name: all, key: [], limits: [{ rate: 1000/h, algorithm: sliding_log }] }
  - { name: addresses, key: [ip], limits: [{ rate: 7/h, algorithm: sliding_log }], shadow: true }
";

fn start() -> (Server, Client, Operator) {
    let server = Server::with_policy(POLICY, &[]);
    let (client, operator) = (Client::of(server.http), Operator::of(&server));
    (server, client, operator)
}

fn check(client: &mut Client, user: &str, device: &str) -> bool {
    let attributes =
        json!({ "user": user, "device": device, "method": "POST", "ip": "203.0.113.7" });
    client.post("/v1/check", &json!({ "attributes": attributes }).to_string()).json()["allowed"]
        == true
}

fn who(operator: &mut Operator, attributes: &Value) -> Value {
    let reply = operator.send("POST", "/admin/v1/who", &json!({ "attributes": attributes }));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn rule<'v>(person: &'v Value, name: &str) -> &'v Value {
    person["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == name).unwrap()
}

#[test]
fn a_person_is_known_by_any_attribute() {
    let (_server, mut client, mut operator) = start();
    (0..3).for_each(|_| assert!(check(&mut client, "alice", "phone")));
    let person = who(&mut operator, &json!({ "user": "alice" }));
    assert_eq!((&person["scope"], &person["complete"]), (&json!("this node"), &json!(false)));
    assert_eq!(person["tier"], json!({ "name": "free", "from": "policy" }));
    assert_eq!(
        person["not_covered"],
        json!([
            { "rule": "devices", "needs": ["device"] }, { "rule": "addresses", "needs": ["ip"] },
        ])
    );
    let calls = rule(&person, "calls");
    assert_eq!(
        (&calls["key"], &calls["key_text"]),
        (&json!({ "user": "alice" }), &json!("user=alice"))
    );
    assert_eq!((&calls["only_when"], &calls["from"]), (&json!("method is POST"), &json!("rule")));
    let figures = |limit: &Value| {
        json!([limit["rate"], limit["used"], limit["limit"], limit["remaining"], limit["allowed"]])
    };
    let limits: Vec<Value> = calls["limits"].as_array().unwrap().iter().map(figures).collect();
    assert_eq!(
        limits,
        [json!(["5/h sliding_log", 3, 5, 2, true]), json!(["9/day sliding_log", 3, 9, 6, true])]
    );
    assert!(calls["limits"][0]["reset_ms"].as_u64().unwrap() > 0);
    assert_eq!(rule(&person, "all")["limits"][0]["used"], 3);

    let known = json!({ "user": "alice", "device": "phone", "ip": "203.0.113.7" });
    let person = who(&mut operator, &known);
    assert_eq!((&person["complete"], &person["not_covered"]), (&json!(true), &json!([])));
    let devices = rule(&person, "devices");
    assert_eq!(
        (&devices["limits"][0]["allowed"], &devices["limits"][0]["remaining"]),
        (&json!(false), &json!(0))
    );
    assert!(devices["limits"][0]["retry_after_ms"].as_u64().unwrap() > 0);
    assert_eq!(
        (&rule(&person, "addresses")["shadow"], &devices["shadow"]),
        (&json!(true), &json!(false))
    );
    // Looking counts nothing.
    assert_eq!(who(&mut operator, &known)["rules"][0]["limits"][0]["used"], 3);
    assert_eq!(who(&mut operator, &json!({ "user": "bob" }))["rules"][0]["limits"][0]["used"], 0);
}

#[test]
fn it_is_shown_since_when_a_key_is_refused_also_if_only_a_part_of_it_is_known() {
    let (_server, mut client, mut operator) = start();
    let allowed = (0..5).filter(|_| check(&mut client, "alice", "phone")).count();
    assert_eq!(allowed, 3);
    let known = who(&mut operator, &json!({ "user": "alice", "device": "phone" }));
    let denied = &rule(&known, "devices")["denied"];
    assert_eq!((&denied["denials"], &denied["would_deny"]), (&json!(2), &json!(false)));
    assert!(denied["retry_after_ms"].as_u64().unwrap() > 0, "{denied}");
    assert!(
        denied["first_ms"].as_u64().unwrap() <= denied["last_ms"].as_u64().unwrap(),
        "{denied}"
    );
    assert_eq!(rule(&known, "calls")["denied"], Value::Null);
    assert_eq!(known["seen"], json!([]));
    // Without the device, the key is not known; the rule and the key are found among those that were refused lately.
    let partly = who(&mut operator, &json!({ "user": "alice" }));
    let seen = &partly["seen"][0];
    assert_eq!(
        (&seen["rule"], &seen["key"], &seen["denied"]["denials"]),
        (&json!("devices"), &json!({ "user": "alice", "device": "phone" }), &json!(2))
    );
    let bob = who(&mut operator, &json!({ "user": "bob" }));
    assert_eq!(bob["seen"], json!([]));
}

#[test]
fn the_override_and_the_tier_in_force_are_shown_with_their_notes() {
    let (_server, mut client, mut operator) = start();
    assert!(check(&mut client, "alice", "phone"));
    let over = json!({ "rule": "calls", "key": { "user": "alice" }, "limits": ["50/h"], "expires": 3_600, "reason": "import" });
    assert_eq!(operator.send("PUT", "/admin/v1/overrides", &over).status, 200);
    let tier = json!({ "attribute": "ip", "value": "::ffff:203.0.113.7", "tier": "pro", "reason": "paid" });
    assert_eq!(operator.send("PUT", "/admin/v1/tiers", &tier).status, 200);
    let off = json!({ "rule": "all", "enabled": false });
    assert_eq!(operator.send("PUT", "/admin/v1/rules", &off).status, 200);
    let person = who(&mut operator, &json!({ "user": "alice", "ip": "203.0.113.7" }));
    let calls = rule(&person, "calls");
    let shown = &calls["override"];
    assert_eq!(calls["from"], "override");
    assert_eq!(
        (&shown["limits"], &shown["by"], &shown["reason"]),
        (&json!(["50/h"]), &json!("operator"), &json!("import"))
    );
    assert!(shown["expires_at_ms"].as_u64().unwrap() > shown["since_ms"].as_u64().unwrap());
    assert_eq!(
        (&calls["limits"][0]["limit"], &calls["limits"][0]["used"]),
        (&json!(50), &json!(1))
    );
    let tier = &person["tier"];
    assert_eq!(
        (&tier["name"], &tier["from"], &tier["reason"]),
        (&json!("pro"), &json!("operator"), &json!("paid"))
    );
    assert_eq!(tier["expires_at_ms"], Value::Null);
    assert_eq!(rule(&person, "all")["enabled"], false);
    let bob = who(&mut operator, &json!({ "user": "bob", "ip": "203.0.113.7" }));
    assert_eq!(
        (&rule(&bob, "calls")["from"], &rule(&bob, "calls")["override"]),
        (&json!("tier"), &Value::Null)
    );
}

#[test]
fn a_reset_of_a_person_covers_what_it_can_and_says_what_it_cannot() {
    let (_server, mut client, mut operator) = start();
    (0..3).for_each(|_| assert!(check(&mut client, "alice", "phone")));
    assert!(check(&mut client, "bob", "phone"));
    let reset = |operator: &mut Operator, body: &Value| {
        let reply = operator.send("POST", "/admin/v1/reset", body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    let alice = json!({ "user": "alice" });
    let expected = json!({
        "states": 2, "rules": [{ "rule": "calls", "states": 2 }],
        "not_covered": [
            { "rule": "devices", "needs": ["device"] }, { "rule": "addresses", "needs": ["ip"] },
            { "rule": "all", "needs": [] },
        ],
    });
    let dry = reset(&mut operator, &json!({ "attributes": alice, "dry_run": true }));
    assert_eq!(dry, expected);
    assert_eq!(who(&mut operator, &alice)["rules"][0]["limits"][0]["used"], 3);
    assert_eq!(operator.get("/admin/v1/audit").json(), json!([]));
    assert_eq!(
        reset(&mut operator, &json!({ "attributes": alice, "reason": "by hand" })),
        expected
    );
    let person = who(&mut operator, &alice);
    assert_eq!(rule(&person, "calls")["limits"][0]["used"], 0);
    // The counter of all requests is not hers alone.
    assert_eq!(rule(&person, "all")["limits"][0]["used"], 4);
    assert!(!check(&mut client, "alice", "phone"));
    let one = json!({ "rule": "devices", "attributes": { "user": "alice", "device": "phone" } });
    let dry = json!({ "rule": "devices", "attributes": one["attributes"], "dry_run": true });
    assert_eq!(reset(&mut operator, &dry), json!({ "states": 1 }));
    assert_eq!(reset(&mut operator, &one), json!({ "states": 1 }));
    assert!(check(&mut client, "alice", "phone"));
    let bob = who(&mut operator, &json!({ "user": "bob" }));
    assert_eq!(rule(&bob, "calls")["limits"][0]["used"], 1);
    // The audit log has the names of attributes and no values.
    let lines = operator.get("/admin/v1/audit").body;
    assert!(!lines.contains("alice") && lines.contains("by hand"), "{lines}");
    for wrong in [
        json!({ "rule": "devices", "attributes": alice, "dry_run": true }),
        json!({ "rule": "nothing", "attributes": alice, "dry_run": true }),
    ] {
        assert_eq!(operator.send("POST", "/admin/v1/reset", &wrong).status, 422, "{wrong}");
    }
}

#[test]
fn a_person_that_makes_no_sense_is_refused() {
    let (_server, _client, mut operator) = start();
    for wrong in [
        json!({}),
        json!({ "attributes": { "ip": "somewhere" } }),
        json!({ "attributes": { "user": 7 } }),
        json!({ "attributes": { "user": "a" }, "rule": "calls" }),
    ] {
        let refused = operator.send("POST", "/admin/v1/who", &wrong);
        assert_eq!(refused.status, 400, "{wrong}: {refused:?}");
    }
    // Nothing is known of this person but what counts for everyone.
    let nobody = who(&mut operator, &json!({}));
    assert_eq!(nobody["rules"].as_array().unwrap().len(), 1);
}
