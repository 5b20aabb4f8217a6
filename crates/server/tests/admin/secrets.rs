//! Secrets: a canary is sent wherever an API key or a token can appear, and must not appear anywhere else.

use crate::support::client::{Client, Operator};
use crate::support::{Server, project, request};
use serde_json::json;

const CANARY: &str = "canary-5f3a9c71e8";
const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], api_key: header:x-api-key }
tiers: { default: free, known: [free, pro] }
rules: [{ name: keys, key: [api_key], limits: [2/h] }]
";

/// Sends the canary in every way in which a client can send an API key.
fn let_fly(server: &Server) {
    let mut client = Client::of(server.http);
    let asked = json!({ "attributes": { "api_key": CANARY } });
    let batch = json!([asked, asked]).to_string();
    for path in ["/v1/check", "/v1/peek"] {
        for body in [asked.to_string(), batch.clone(), batch.replace("\":", "\" ")] {
            client.post(path, &body);
        }
    }
    let broken = format!("{{\"attributes\":{{\"api_key\":\"{CANARY}\",\"ip\":\"nowhere\"}}}}");
    client.post("/v1/check", &broken);
    let asked_by_proxy =
        [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/?key=x"), ("x-api-key", CANARY)];
    assert_eq!(client.ask("GET", "/v1/auth", &asked_by_proxy, "").status, 429);
    let mut operator = Operator::of(server);
    for path in ["peek", "explain"] {
        assert_eq!(operator.send("POST", &format!("/admin/v1/{path}"), &asked).status, 200);
    }
    let reset = json!({ "rule": "keys", "attributes": { "api_key": CANARY } });
    assert_eq!(operator.send("POST", "/admin/v1/reset", &reset).status, 200);
    // A customer is named by the digest of the secret, not by the secret itself.
    let over = json!({ "rule": "keys", "key": { "api_key": CANARY }, "limits": ["7/h"] });
    assert_eq!(operator.send("PUT", "/admin/v1/overrides", &over).status, 422);
    let tier = json!({ "attribute": "api_key", "value": CANARY, "tier": "pro" });
    assert_eq!(operator.send("PUT", "/admin/v1/tiers", &tier).status, 422);
    for policy in policies_with_the_canary() {
        assert_eq!(operator.put_policy("", policy).status, 400);
    }
}

/// Mistakes whose error messages quote their surroundings.
fn policies_with_the_canary() -> [String; 5] {
    let rule = |more: &str| POLICY.replace("limits: [2/h]", &format!("limits: [2/h], {more}"));
    [
        rule(&format!("overrides: [{{ key: {{ api_key: {CANARY} }}, limits: [1/s] }}]")),
        rule(&format!("match: {{ api_key: {CANARY} }}")),
        rule(&format!("when: 'api_key == \"{CANARY}\"'")),
        rule(&format!("when: 'api_key = \"{CANARY}\"'")),
        rule(&format!("when: '\"{CANARY}\" == api_key'")),
    ]
}

#[test]
fn a_secret_is_told_to_nobody() {
    let server = Server::with_policy(POLICY, &["--log-level", "trace"]);
    let_fly(&server);
    let mut operator = Operator::of(&server);
    let refusals = "tidegate_reload_total{result=\"refused\"}";
    for policy in policies_with_the_canary() {
        let before = operator.metric(refusals);
        std::fs::write(server.folder.join("policy.yaml"), policy).unwrap();
        server.signal("HUP");
        server.until("the file was read", |_| operator.metric(refusals) > before);
        let ready = server.get("/ready").body;
        assert!(!ready.contains(CANARY), "{ready}");
    }

    let token = |name: &str| std::fs::read_to_string(server.data(name)).unwrap().trim().to_owned();
    let tokens = [token("operator-token"), token("reader-token")];
    let wrong = format!("Bearer {CANARY}");
    assert_eq!(
        request(server.admin, "GET", "/metrics", &[("authorization", &wrong)], "").status,
        401
    );
    let path = format!("/admin/v1/{CANARY}?token={CANARY}");
    assert_eq!(operator.get(&path).status, 404);

    let mut places = vec![("log".to_owned(), server.log())];
    for name in ["audit.log", "control.json"] {
        let text = std::fs::read_to_string(server.data(name)).unwrap_or_default();
        places.push((name.to_owned(), text));
    }
    for path in [
        "/metrics",
        "/admin/v1/status",
        "/admin/v1/control",
        "/admin/v1/audit",
        "/admin/v1/rules",
        "/admin/v1/policy",
    ] {
        places.push((path.to_owned(), operator.get(path).body));
    }
    let asked = json!({ "attributes": { "api_key": CANARY } });
    for path in ["/admin/v1/explain", "/admin/v1/peek"] {
        places.push((path.to_owned(), operator.send("POST", path, &asked).body));
    }
    let printed = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--print-config", "--data-dir"])
        .arg(server.folder.join("data"))
        .arg("--admin-operator-token-file")
        .arg(server.data("operator-token"))
        .output()
        .unwrap();
    places.push(("--print-config".to_owned(), String::from_utf8(printed.stdout).unwrap()));
    for (place, text) in places {
        assert!(!text.is_empty() || place.ends_with(".json"), "{place} is empty");
        for secret in [CANARY, &tokens[0], &tokens[1]] {
            let line = text.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{place}");
        }
    }
}

/// The example policy in the documents does not contain it either.
#[test]
fn the_digest_that_explain_shows_names_the_customer() {
    assert!(!std::fs::read_to_string(project("docs/policy.yaml")).unwrap().contains(CANARY));
    let server = Server::with_policy(POLICY, &[]);
    let mut operator = Operator::of(&server);
    let asked = json!({ "attributes": { "api_key": CANARY } });
    let explained = operator.send("POST", "/admin/v1/explain", &asked).json();
    let key = explained["rules"][0]["key"].as_str().unwrap().to_owned();
    let digest = key.strip_prefix("api_key=").unwrap();
    let over = json!({ "rule": "keys", "key": { "api_key": digest }, "limits": ["7/h"] });
    assert_eq!(operator.send("PUT", "/admin/v1/overrides", &over).status, 200);
    let verdict = Client::of(server.http).post("/v1/check", &asked.to_string()).json();
    assert_eq!(verdict["limits"][0]["limit"], 7);
}
