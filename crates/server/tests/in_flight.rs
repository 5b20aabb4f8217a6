//! Concurrency limits, as callers of the server see them: permits that are taken, renewed and returned over HTTP, and held by the
//! reverse proxy.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

use crate::support;

use serde_json::{Value, json};
use std::io::Write;
use std::thread;
use support::upstream::Upstream;
use support::{Reply, Server, connect, request};

const TWO: &str = "
version: 1
rules: [{ name: jobs, key: [user|ip], limits: [{ concurrent: 2, lease: 1h }] }]
";

fn check(server: &Server, user: &str) -> Reply {
    server.post("/v1/check", &json!({ "attributes": { "user": user } }).to_string())
}

/// The answer to a check that passes.
fn taken(server: &Server, user: &str) -> Value {
    let reply = check(server, user);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn report(server: &Server, receipt: &Value, what: Value) -> Reply {
    let mut body = what;
    body["receipt"] = receipt.clone();
    server.post("/v1/report", &body.to_string())
}

#[test]
fn a_permit_is_taken_renewed_and_returned() {
    let server = Server::with_policy(TWO, &[]);
    let first = taken(&server, "alice");
    assert_eq!(first["lease_ms"], 3_600_000);
    let limit = &first["limits"][0];
    assert_eq!((&limit["algorithm"], &limit["limit"]), (&json!("concurrent"), &json!(2)));
    assert_eq!((&limit["per_ms"], &limit["reset_ms"]), (&Value::Null, &Value::Null));
    assert_eq!(limit["remaining"], 1);
    let second = taken(&server, "alice");
    let refused = check(&server, "alice");
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("1")));
    let body = refused.json();
    assert_eq!((&body["receipt"], &body["lease_ms"]), (&Value::Null, &Value::Null));
    assert_eq!(body["limits"][0]["reset_ms"], Value::Null);
    assert_eq!(check(&server, "bob").status, 200);

    let renewed = report(&server, &first["receipt"], json!({ "renew": true }));
    assert_eq!(renewed.status, 200, "{renewed:?}");
    let renewed = renewed.json();
    assert_eq!(renewed["lease_ms"], 3_600_000);
    assert_ne!(renewed["receipt"], first["receipt"]);
    assert_eq!(check(&server, "alice").status, 429, "it is still held");
    for again in [json!({ "renew": true }), json!({ "outcome": "success" })] {
        assert_eq!(report(&server, &first["receipt"], again).status, 409);
    }
    assert_eq!(check(&server, "alice").status, 429, "the old receipt returns nothing");
    for (receipt, what) in [
        (&renewed["receipt"], json!({ "outcome": "failure" })),
        (&second["receipt"], json!({ "cost": 5 })),
    ] {
        assert_eq!(report(&server, receipt, what.clone()).status, 200);
        let next = taken(&server, "alice");
        assert_eq!(check(&server, "alice").status, 429, "exactly one was returned");
        assert_eq!(report(&server, &next["receipt"], json!({ "outcome": "success" })).status, 200);
        taken(&server, "alice");
    }
}

#[test]
fn a_report_that_is_not_clear_is_refused() {
    let server = Server::with_policy(TWO, &[]);
    let taken = taken(&server, "alice");
    for what in [
        json!({ "renew": true, "outcome": "success" }),
        json!({ "renew": true, "cost": 1 }),
        json!({ "renew": false }),
        json!({}),
        json!({ "renew": "yes" }),
    ] {
        assert_eq!(report(&server, &taken["receipt"], what.clone()).status, 400, "{what}");
    }
    let forged = report(&server, &json!("forged"), json!({ "renew": true }));
    assert_eq!(forged.status, 400);
    assert_eq!(report(&server, &taken["receipt"], json!({ "outcome": "success" })).status, 200);
    let plain =
        Server::with_policy("{ version: 1, rules: [{ name: a, key: [], limits: [9/h] }] }", &[]);
    let reply = plain.post("/v1/check", r#"{"attributes":{},"receipt":true}"#).json();
    assert_eq!(reply["lease_ms"], Value::Null);
    let renewed = report(&plain, &reply["receipt"], json!({ "renew": true }));
    assert_eq!(renewed.status, 400);
    assert!(renewed.body.contains("no permit"), "{renewed:?}");
}

#[test]
fn lists_take_renew_and_return_permits_too() {
    let server = Server::with_policy(TWO, &[]);
    let ask = json!({ "attributes": { "user": "alice" } });
    let taken = server.post("/v1/check", &json!([ask, ask, ask]).to_string()).json();
    let passed: Vec<bool> =
        taken.as_array().unwrap().iter().map(|one| one["allowed"] == true).collect();
    assert_eq!(passed, [true, true, false]);
    assert_eq!((&taken[0]["lease_ms"], &taken[2]["lease_ms"]), (&json!(3_600_000), &Value::Null));
    let reports = json!([
        { "receipt": taken[0]["receipt"], "renew": true },
        { "receipt": taken[1]["receipt"], "outcome": "success" },
        { "receipt": taken[1]["receipt"], "renew": true },
    ]);
    let done = server.post("/v1/report", &reports.to_string()).json();
    let statuses: Vec<&Value> = done.as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, [200, 200, 409]);
    assert_eq!(done[0]["lease_ms"], 3_600_000);
    assert_eq!(report(&server, &done[0]["receipt"], json!({ "outcome": "success" })).status, 200);
}

/// Forward auth cannot return the permit. The service behind the proxy can: it gets the receipt.
#[test]
fn forward_auth_hands_the_receipt_to_the_service() {
    let policy = format!("{TWO}identity: {{ trusted: [127.0.0.0/8] }}\n");
    let server = Server::with_policy(&policy, &[]);
    let ask_for = |method: &str| {
        let fields = [
            ("x-forwarded-method", method),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-for", "203.0.113.7"),
            ("origin", "https://example.com"),
            ("access-control-request-method", "PUT"),
        ];
        request(server.http, "GET", "/v1/auth", &fields, "")
    };
    let ask = || ask_for("GET");
    // A preflight is limited like any request.
    let replies = [ask(), ask_for("OPTIONS"), ask_for("OPTIONS")];
    assert_eq!(replies.each_ref().map(|reply| reply.status), [200, 200, 429]);
    assert_eq!(
        replies[0].field("ratelimit-policy"),
        Some("\"jobs\";q=2;qu=\"concurrent-requests\"")
    );
    assert_eq!(replies[0].field("ratelimit"), Some("\"jobs\";r=1"));
    let receipt = json!(replies[0].field("tidegate-receipt").unwrap());
    assert_eq!(report(&server, &receipt, json!({ "outcome": "success" })).status, 200);
    assert_eq!([ask().status, ask().status], [200, 429]);
}

/// The proxy holds the permit until the answer of the upstream server has ended, also if the client is gone.
#[test]
fn the_proxy_holds_a_permit_until_the_exchange_ends() {
    let upstream = Upstream::start("site");
    let url = format!("http://{}", upstream.address);
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &url];
    let server = Server::with_policy(TWO, &flags);
    let get = || request(server.proxy, "GET", "/", &[], "");
    // Without a request of its own, which could take a permit.
    let is_free = |server: &Server, count: u64| {
        let peek = server.post("/v1/peek", r#"{"attributes":{"ip":"127.0.0.1"},"cost":0}"#);
        peek.json()["limits"][0]["remaining"] == count
    };
    let held = upstream.hold();
    let proxy = server.proxy;
    let running: Vec<_> =
        (0..2).map(|_| thread::spawn(move || request(proxy, "GET", "/", &[], "").status)).collect();
    server.until("two requests are in flight", |server| is_free(server, 0));
    let refused = get();
    assert_eq!(refused.status, 429);
    assert_eq!(refused.field("ratelimit"), Some("\"jobs\";r=0"));
    assert_eq!(refused.field("ratelimit-policy"), Some("\"jobs\";q=2;qu=\"concurrent-requests\""));
    assert_eq!(refused.field("retry-after"), Some("1"));
    assert!(refused.body.contains("jobs allows 2 at a time"), "{refused:?}");
    drop(held);
    for request in running {
        assert_eq!(request.join().unwrap(), 200);
    }
    server.until("the permits are returned", |server| is_free(server, 2));
    assert_eq!(get().status, 200);

    // Two clients that go away before there is an answer: the upstream server works on for them.
    let held = upstream.hold();
    let mut clients: Vec<_> = (0..2).map(|_| connect(server.proxy)).collect();
    clients
        .iter_mut()
        .for_each(|client| write!(client, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap());
    server.until("both are in flight", |server| is_free(server, 0));
    assert_eq!(get().status, 429);
    drop(clients);
    assert_eq!(get().status, 429);
    drop(held);
    server.until("their permits are returned", |server| is_free(server, 2));
}
