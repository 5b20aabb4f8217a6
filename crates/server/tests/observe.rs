//! What operators see: metrics that count everything and never grow with what clients send, and a log that clients
//! can neither flood nor forge.

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
use crate::support::client;

use client::{Client, Operator};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use support::Server;

/// Rules for every outcome: `pass`, `refuse` (from the second request on), `wait`, `mark`.
const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], user: header:x-user }
tiers: { default: free, known: [free, pro] }
rules:
  - { name: refuse, key: [user], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }] }
  - { name: pass, match: { path: /pass/** }, key: [path, method], limits: [1000000/h] }
  - { name: wait, match: { path: /wait }, key: [ip], limits: [{ rate: 1/min, algorithm: leaky_bucket, queue: 5 }], on_limit: { delay: { max_wait: 5min, max_queue: 5 } } }
  - { name: mark, match: { path: /mark }, key: [ip], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }], on_limit: { flag: challenge } }
";

fn check(client: &mut Client, attributes: &Value) -> Value {
    client
        .post("/v1/check", &json!({ "attributes": attributes, "max_wait_ms": 300_000 }).to_string())
        .json()
}

/// How often a rule had this outcome, according to the metrics.
fn decisions(operator: &mut Operator, front: &str, rule: &str, outcome: &str, by: &str) -> u64 {
    let labels =
        format!("protocol=\"{front}\",rule=\"{rule}\",outcome=\"{outcome}\",decided_by=\"{by}\"");
    operator.metric(&format!("tidegate_decisions_total{{{labels}}}"))
}

// === metrics ===

/// The series of a scrape, each with its value. Text that is not valid `OpenMetrics` fails here.
fn series(text: &str) -> BTreeMap<String, f64> {
    let (mut all, mut families, mut family) =
        (BTreeMap::new(), BTreeSet::new(), (String::new(), ""));
    let body = text.strip_suffix("# EOF\n").expect("the last line is `# EOF`");
    for line in body.split_terminator('\n') {
        if let Some(described) = line.strip_prefix("# ") {
            let (word, rest) = described.split_once(' ').unwrap();
            let (name, rest) = rest.split_once(' ').unwrap();
            match word {
                "HELP" => assert!(families.insert(name.to_owned()) && !rest.is_empty(), "{line}"),
                "TYPE" => {
                    let kinds = ["counter", "gauge", "histogram"];
                    family = (name.to_owned(), *kinds.iter().find(|kind| **kind == rest).unwrap());
                }
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        let suffixes: &[&str] = match family.1 {
            "counter" => &["_total"],
            "gauge" => &[""],
            _ => &["_bucket", "_sum", "_count"],
        };
        let suffix =
            name.strip_prefix(&family.0).unwrap_or_else(|| panic!("{line} after {family:?}"));
        assert!(suffixes.contains(&suffix), "{line}");
        labels.split_terminator(',').for_each(|label| check_label(label, line));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(all.insert(series.to_owned(), value).is_none(), "twice: {line}");
    }
    all
}

fn check_label(label: &str, line: &str) {
    let (name, value) = label.split_once('=').unwrap();
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
    assert!(value.chars().all(plain), "{line}");
}

fn scrape(operator: &mut Operator) -> BTreeMap<String, f64> {
    let reply = operator.get("/metrics");
    let kind = reply.field("content-type").unwrap();
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(reply.body.len() < 16 * 1024, "a scrape of {} bytes", reply.body.len());
    series(&reply.body)
}

/// Every outcome of every rule, once over each protocol. After this, no label value is new.
fn warm_up(server: &Server) {
    let mut client = Client::of(server.http);
    let outcomes = |client: &mut Client, attributes: Value, times: usize| {
        let verdicts = (0..times).map(|_| check(client, &attributes));
        let said = |verdict: Value| {
            let flagged = verdict["flags"] == json!(["challenge"]);
            if flagged {
                "would_deny".to_owned()
            } else {
                verdict["outcome"].as_str().unwrap().to_owned()
            }
        };
        verdicts.map(said).collect::<Vec<String>>()
    };
    assert_eq!(outcomes(&mut client, json!({ "user": "first" }), 2), ["allow", "deny"]);
    assert_eq!(outcomes(&mut client, json!({ "path": "/pass/1", "method": "GET" }), 1), ["allow"]);
    let waits = outcomes(&mut client, json!({ "path": "/wait", "ip": "::1" }), 8);
    assert_eq!((&*waits[0], &*waits[1], &*waits[7]), ("allow", "delay", "deny"));
    assert_eq!(
        outcomes(&mut client, json!({ "path": "/mark", "ip": "::1" }), 2),
        ["allow", "would_deny"]
    );
    assert_eq!(outcomes(&mut client, json!({ "shard": "x" }), 1), ["allow"]);
    for _ in 0..2 {
        client.post("/v1/take", &json!({ "key": "first", "limit": 1, "per": "1h" }).to_string());
        proxied(&mut client, "first-by-proxy", "/pass/1");
    }
    proxied(&mut client, "", "/elsewhere");
}

fn proxied(client: &mut Client, user: &str, path: &str) -> u16 {
    let fields = [("x-forwarded-method", "GET"), ("x-forwarded-uri", path), ("x-user", user)];
    client.ask("GET", "/v1/auth", &fields, "").status
}

/// Label values come from the policy, never from clients: a million customers and thousands of paths, methods, hosts
/// and keys add no series.
#[test]
fn a_million_keys_make_no_series() {
    let server = Server::with_policy(POLICY, &["--workers", "1"]);
    let (mut client, mut operator) = (Client::of(server.http), Operator::of(&server));
    warm_up(&server);
    let before = scrape(&mut operator);

    let (mut passed, mut refused) = (0, 0);
    let mut body = String::new();
    for batch in 0..1_000 {
        body.clear();
        for number in 0..1_000 {
            let start = if number == 0 { '[' } else { ',' };
            write!(body, "{start}{{\"attributes\":{{\"user\":\"{batch}-{number}\"}}}}").unwrap();
        }
        body.push(']');
        let reply = client.post("/v1/check", &body);
        passed += reply.body.matches("\"allowed\":true").count();
        refused += reply.body.matches("\"allowed\":false").count();
    }
    assert_eq!((passed, refused), (1_000_000, 0));

    for number in 0..2_000 {
        let method = format!("M{number}");
        let path = format!("/pass/{number}/%e2%80%a8\u{2028}");
        check(
            &mut client,
            &json!({ "path": path, "method": method, "user": "first", "tier": method }),
        );
        client.ask(&method, &format!("/v1/{number}"), &[("user-agent", &method)], "");
        proxied(&mut client, &method, &format!("/pass/{number}"));
        let take = json!({ "key": format!("k{number}"), "limit": 1, "per": "1h" });
        client.post("/v1/take", &take.to_string());
    }
    let after = scrape(&mut operator);
    let names = |all: &BTreeMap<String, f64>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));

    let grown = |rule: &str, front: &str, outcome: &str| {
        let labels = format!(
            "protocol=\"{front}\",rule=\"{rule}\",outcome=\"{outcome}\",decided_by=\"store\""
        );
        let name = format!("tidegate_decisions_total{{{labels}}}");
        after[&name] - before[&name]
    };
    assert!(grown("refuse", "http", "allow").total_cmp(&1_000_000.0).is_eq());
    assert!(grown("refuse", "http", "deny").total_cmp(&2_000.0).is_eq());
    assert!(grown("refuse", "auth", "allow").total_cmp(&2_000.0).is_eq());
    assert!(grown("", "http", "allow").total_cmp(&2_000.0).is_eq());
    assert!(after["tidegate_states{}"] > 1_000_000.0);
}

/// Every decision is counted once for each rule that applied, and nothing else is counted.
#[test]
fn counts_are_what_was_asked() {
    let server = Server::with_policy(POLICY, &["--workers", "4"]);
    let mut operator = Operator::of(&server);
    // Connections are distributed over the workers; the metrics show their sum.
    for connection in 0..8 {
        let mut client = Client::of(server.http);
        let user = format!("user-{connection}");
        (0..3).for_each(|_| _ = check(&mut client, &json!({ "user": user })));
        let one = json!({ "attributes": { "user": "all", "path": "/pass/x", "method": "GET" } });
        client.post("/v1/check", &json!([one, one]).to_string());
        client.post("/v1/peek", &json!([one, one, one]).to_string());
        client.post("/v1/check", "{\"attributes\":{\"ip\":\"nowhere\"}}");
        client.post("/v1/check", &json!([one, { "attributes": { "ip": "nowhere" } }]).to_string());
        client.post("/v1/check", "[]");
        (0..2).for_each(|_| _ = check(&mut client, &json!({ "ip": "203.0.113.7" })));
        proxied(&mut client, &user, "/elsewhere");
    }
    let counted = |operator: &mut Operator, front, rule, outcome| {
        decisions(operator, front, rule, outcome, "store")
    };
    assert_eq!(counted(&mut operator, "http", "refuse", "allow"), 8 + 1);
    assert_eq!(counted(&mut operator, "http", "refuse", "deny"), 8 * 2 + 15);
    assert_eq!(counted(&mut operator, "http", "pass", "allow"), 8 * 2);
    assert_eq!(counted(&mut operator, "auth", "refuse", "deny"), 8);
    assert_eq!(decisions(&mut operator, "http", "", "allow", "policy"), 8 * 2);
    let status = operator.get("/admin/v1/status").json();
    let refuse =
        status["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == "refuse").unwrap();
    assert_eq!((&refuse["allowed"], &refuse["denied"]), (&json!(9), &json!(8 * 3 + 15)));
    // All decisions, also those of lists.
    assert_eq!(operator.metric("tidegate_decision_seconds_count{protocol=\"http\"}"), 8 * 7);
    assert_eq!(operator.metric("tidegate_decision_seconds_count{protocol=\"auth\"}"), 8);
}

#[test]
fn buckets_of_a_histogram_only_grow() {
    let server = Server::with_policy(POLICY, &[]);
    warm_up(&server);
    let text = Operator::of(&server).get("/metrics").body;
    for front in ["http", "auth"] {
        let labelled = format!("protocol=\"{front}\"}} ");
        let buckets: Vec<(f64, u64)> = text
            .lines()
            .filter_map(|line| line.strip_prefix("tidegate_decision_seconds_bucket{le=\""))
            .filter_map(|line| {
                let (most, count) = line.split_once(&labelled)?;
                Some((most.trim_end_matches("\",").parse().unwrap(), count.parse().unwrap()))
            })
            .collect();
        assert!(buckets.is_sorted() && buckets.len() == 14, "{buckets:?}");
        assert!(buckets.iter().map(|(_, count)| count).is_sorted(), "{buckets:?}");
        let count = format!("tidegate_decision_seconds_count{{protocol=\"{front}\"}}");
        let count = Operator::of(&server).metric(&count);
        assert!(buckets[13] == (f64::INFINITY, count) && count > 0, "{buckets:?}");
    }
}

/// In the first milliseconds of a listener, the date was once 29 blanks.
#[test]
fn every_answer_has_a_date_from_the_first_on() {
    for _ in 0..5 {
        let server = Server::with_policy(POLICY, &[]);
        let replies =
            [server.get("/live"), support::request(server.admin, "GET", "/live", &[], "")];
        for reply in replies {
            assert!(reply.field("date").is_some_and(|date| date.ends_with(" GMT")), "{reply:?}");
        }
    }
}

// === the log ===

/// The lines of the log. Each is a JSON object without characters that a terminal or a line-based reader would act
/// on.
fn lines(server: &Server) -> Vec<Value> {
    let log = server.log();
    let breaks = |c: char| c != '\n' && (c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'));
    assert_eq!(log.chars().find(|c| breaks(*c)), None, "{log}");
    let line = |line: &str| -> Value {
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(value["timestamp"].is_string() && value["level"].is_string(), "{line}");
        value
    };
    log.lines().map(line).collect()
}

/// Thousands of invalid requests, wrong tokens and requests that a reader may not make: each kind of line is written
/// at most ten times a second, and every line that was left out is counted.
#[test]
fn nobody_floods_the_log() {
    let server = Server::with_policy(POLICY, &[]);
    let forbidden = "Reader token used for an operator's endpoint";
    let mut unauthenticated = 0;
    for number in 0..2_000 {
        let answer = server.raw(b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: \x1b[31m\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        let token = format!("Bearer {number:032}");
        let reply =
            support::request(server.admin, "GET", "/metrics", &[("authorization", &token)], "");
        assert!(matches!(reply.status, 401 | 429), "{reply:?}");
        unauthenticated += u64::from(reply.status == 401);
    }
    // After ten, one every six seconds, however long that took.
    assert!(unauthenticated < 1_000, "{unauthenticated}");
    let mut reader = Operator::reader(&server);
    for _ in 0..2_000 {
        assert_eq!(reader.ask("DELETE", "/admin/v1/policy", &[], "").status, 403);
    }
    let left_out = |lines: &[Value]| {
        let told = lines.iter().filter(|line| {
            line["message"].as_str().unwrap().starts_with("lines of this kind were left out")
        });
        told.map(|line| line["count"].as_u64().unwrap()).sum::<u64>()
    };
    let written = |lines: &[Value], message: &str| {
        let found = lines.iter().filter(|line| line["message"] == message);
        u64::try_from(found.count()).unwrap()
    };
    server.until("all lines are accounted for", |server| {
        let lines = lines(server);
        left_out(&lines) + written(&lines, forbidden) == 2_000
    });
    let lines = lines(&server);
    assert_eq!(
        Operator::of(&server).metric("tidegate_log_lines_left_out_total{}"),
        left_out(&lines)
    );
    assert!(left_out(&lines) > 1_000);
    assert!(written(&lines, "Unauthenticated request to the admin listener") <= unauthenticated);
    // A second of the log need not begin with a second of the clock, so one second of the clock may contain the ten
    // lines of two.
    let mut seconds: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in &lines {
        let second = line["timestamp"].as_str().unwrap()[..19].to_owned();
        *seconds.entry((second, line["message"].to_string())).or_default() += 1;
    }
    assert!(seconds.values().all(|count| *count <= 20), "{seconds:?}");
}

/// A name that looks like a line of the log, or that contains terminal control sequences, is logged as plain text.
#[test]
fn nobody_forges_a_line() {
    let server = Server::with_policy(POLICY, &["--log-level", "trace"]);
    let hostile =
        "x\u{1b}[2J\r\n{\"level\":\"ERROR\",\"message\":\"forged\"}\u{2028}\u{202e}\u{85}\u{7f}";
    let raw = |bytes: &str| {
        for address in [server.http, server.admin] {
            let mut client = Client::of(address);
            client.send(bytes.as_bytes()).unwrap();
            client.finish();
            // With or without an answer: only the log matters.
            let _ = client.receive();
        }
    };
    raw(hostile);
    raw(&format!("GET /{hostile} HTTP/1.1\r\nhost: x\r\n\r\n"));
    raw(&format!("GET / HTTP/1.1\r\nhost: {hostile}\r\n\r\n"));
    raw(
        "GET /\u{2028}\u{1b} HTTP/1.1\r\nhost: \u{2028}\r\nauthorization: Bearer \u{2028}\u{85}\r\n\r\n",
    );
    raw("GET /%1b%0d%0a%e2%80%a8 HTTP/1.1\r\nhost: localhost\r\norigin: http://\u{2028}\r\n\r\n");

    let mut client = Client::of(server.http);
    check(&mut client, &json!({ "user": hostile, "path": format!("/{hostile}"), "ip": hostile }));
    check(&mut client, &json!({ "user": hostile, "tier": hostile, hostile: hostile }));
    let mut operator = Operator::of(&server);
    let put = |operator: &mut Operator, what: &str, body: Value| {
        operator.send("PUT", &format!("/admin/v1/{what}"), &body).status
    };
    let over = json!({ "rule": "refuse", "key": { "user": hostile }, "limits": ["7/h"] });
    assert_eq!(put(&mut operator, "overrides", over), 200);
    assert_eq!(
        put(
            &mut operator,
            "tiers",
            json!({ "attribute": "user", "value": hostile, "tier": "pro" })
        ),
        200
    );
    // No request can have an attribute with such a name.
    assert_eq!(
        put(&mut operator, "tiers", json!({ "attribute": hostile, "value": "x", "tier": "pro" })),
        422
    );
    assert_eq!(put(&mut operator, "rules", json!({ "rule": hostile, "enabled": false })), 422);
    assert_eq!(put(&mut operator, "signals", json!({ "load": 0.5 })), 200);
    assert_eq!(put(&mut operator, "signals", json!({ hostile: 0.5 })), 200);
    // The new policy has no tiers. The log says so, and names the customers whose tiers are gone.
    let without = "{ version: 1, rules: [{ name: other, key: [ip], limits: [1/s] }] }";
    assert_eq!(operator.put_policy("?force=true", without).status, 200);
    std::fs::write(server.folder.join("policy.yaml"), format!("{hostile}: [")).unwrap();
    server.signal("HUP");
    server.until("the file was read", |server| server.log().contains("the policy is not changed"));

    let lines = lines(&server);
    assert!(
        lines
            .iter()
            .any(|line| line["message"].to_string().contains("waits for its rule: tier of"))
    );
    assert!(lines.iter().all(|line| line["message"] != "forged" && line["level"] != "FORGED"));
    let audit = std::fs::read_to_string(server.data("audit.log")).unwrap();
    assert_eq!(audit.matches('\n').count(), 3);
    assert!(audit.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
}
