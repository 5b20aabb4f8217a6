//! Top keys and recent refusals of a running server: every protocol counts them, and `tidegate top` shows them.

use crate::resp::talk::Talk;
use crate::support::client::Operator;
use crate::support::upstream::Upstream;
use crate::support::{Server, request};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;

const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], user: header:x-user }
rules:
  - { name: users, key: [user], limits: [{ rate: 1/9600h, algorithm: fixed_window }] }
  - { name: trial, key: [user], limits: [{ rate: 1/9600h, algorithm: fixed_window }], shadow: true }
  - { name: keys, key: [api_key], limits: [{ rate: 1/9600h, algorithm: fixed_window }] }
";

/// The counts of a tally, by rule and key.
fn top(server: &Server, by: &str) -> BTreeMap<(String, String), u64> {
    let answer = Operator::reader(server).get(&format!("/admin/v1/top?by={by}&last=100")).json();
    assert_eq!((&answer["scope"], &answer["nodes"]), (&"this node".into(), &1.into()));
    let mut counts = BTreeMap::new();
    for rule in answer["rules"].as_array().unwrap() {
        for key in rule["keys"].as_array().unwrap() {
            let shown: Vec<String> = key["key"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(n, v)| format!("{n}={}", v.as_str().unwrap()))
                .collect();
            assert_eq!(key["error"], 0);
            let name = (rule["rule"].as_str().unwrap().to_owned(), shown.join(" "));
            counts.insert(name, key["count"].as_u64().unwrap());
        }
    }
    counts
}

#[test]
fn every_protocol_counts_who_uses_and_who_is_refused() {
    let upstream = Upstream::start("site");
    let url = format!("http://{}", upstream.address);
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &url];
    let server = Server::with_policy(POLICY, &flags);
    let check = |name: &str| {
        server.post("/v1/check", &json!({ "attributes": { "user": name } }).to_string()).status
    };
    assert_eq!([check("http"), check("http"), check("http")], [200, 429, 429]);
    let two = json!([{ "attributes": { "user": "list" } }, { "attributes": { "user": "list" } }]);
    server.post("/v1/check", &two.to_string());
    for name in ["proxy"; 2] {
        request(server.proxy, "GET", "/", &[("x-user", name)], "");
    }
    let fields = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-user", "auth")];
    for _ in 0..2 {
        request(server.http, "GET", "/v1/auth", &fields, "");
    }
    let call = json!({ "domain": "web", "descriptors": [{ "entries": [{ "key": "user", "value": "json" }] }] });
    let take = json!({ "key": "take", "limit": 1, "per": "9600h" }).to_string();
    for _ in 0..2 {
        server.post("/json", &call.to_string());
        server.post("/v1/take", &take);
    }
    let mut talk = Talk::to(server.resp);
    for command in ["TG.CHECK 1 user resp", "CL.THROTTLE cell 0 1 30000000"] {
        (0..2).for_each(|_| _ = talk.ask(command));
    }
    let names = ["auth", "http", "json", "list", "proxy", "resp"];
    let of = |rule: &str, name: &str| (rule.to_owned(), format!("user={name}"));
    let named = |key: &str| (String::new(), format!("key={key}"));
    let mut expected: BTreeMap<_, u64> = names.map(|name| (of("users", name), 1)).into();
    expected.extend([(named("take"), 1), (named("cell"), 1)]);
    let mut used = expected.clone();
    used.extend(names.map(|name| (of("trial", name), 1)));
    assert_eq!(top(&server, "used"), used);
    expected.insert(of("users", "http"), 2);
    assert_eq!(top(&server, "denied"), expected);
    assert!(server_metric(&server) > 0);

    let denials = Operator::reader(&server).get("/admin/v1/denials?last=3").json();
    let denials = denials["denials"].as_array().unwrap();
    assert_eq!(denials.len(), 3);
    assert!(denials.iter().all(|one| one["first_ms"].as_u64() > Some(1_700_000_000_000)));
}

fn server_metric(server: &Server) -> u64 {
    Operator::reader(server).metric("tidegate_top_keys_bytes{}")
}

#[test]
fn tidegate_top_prints_tables_and_json() {
    let server = Server::with_policy(POLICY, &[]);
    for _ in 0..3 {
        server
            .post("/v1/check", &json!({ "attributes": { "user": "al\u{1b}[2Jice" } }).to_string());
        server.post("/v1/check", &json!({ "attributes": { "api_key": "s3cr3t-k3y" } }).to_string());
    }
    let run = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["top", "--admin", &format!("http://{}", server.admin)]);
        command.args(["--data-dir", server.data("").to_str().unwrap()]).args(flags);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(&["--once"]);
    for part in ["Most denied, this node", "users", "keys", "api_key=#", "No problems found"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("s3cr3t") && !text.contains('\u{1b}'), "{text}");
    let json: Value =
        serde_json::from_str(&run(&["--json", "--by", "used", "--rule", "keys"])).unwrap();
    assert_eq!(json["top"]["rules"].as_array().unwrap().len(), 1);
    assert_eq!(json["top"]["rules"][0]["keys"][0]["count"], 1);
}

#[test]
fn mistakes_are_explained_and_off_is_off() {
    let server = Server::with_policy(POLICY, &["--top-keys-memory", "0"]);
    let mut reader = Operator::reader(&server);
    for path in ["/admin/v1/top", "/admin/v1/denials"] {
        let answer = reader.get(path);
        assert!(answer.status == 404 && answer.body.contains("top_keys.memory"), "{answer:?}");
    }
    for query in ["by=most", "last=-1", "last=x"] {
        assert_eq!(reader.get(&format!("/admin/v1/top?{query}")).status, 400, "{query}");
    }
}
