//! Rules that operators switch off, on and to shadow mode, one by one and all at once, with every algorithm.

use crate::support::Server;
use crate::support::client::{Client, Operator};
use serde_json::{Value, json};

const ALGORITHMS: [&str; 6] = [
    "fixed_window",
    "sliding_log",
    "sliding_buckets",
    "sliding_weighted",
    "token_bucket",
    "leaky_bucket",
];
const MODES: [(&str, &str); 3] = [
    ("hard", "hard"),
    ("soft", "{ soft: 10% }"),
    ("elastic", "{ elastic: { up_to: 200%, while: 'load < 0.7' } }"),
];

fn names() -> impl Iterator<Item = String> {
    ALGORITHMS.iter().flat_map(|algorithm| MODES.map(|(mode, _)| format!("{algorithm}-{mode}")))
}

/// A rule for each algorithm in each mode, each with its own path.
fn policy() -> String {
    let rules = ALGORITHMS.iter().flat_map(|algorithm| {
        MODES.map(|(name, mode)| {
            format!(
                "  - {{ name: {algorithm}-{name}, match: {{ path: /{algorithm}-{name} }}, key: [ip], limits: [{{ rate: 1/h, algorithm: {algorithm} }}], mode: {mode} }}\n"
            )
        })
    });
    format!("version: 1\nrules:\n{}", rules.collect::<String>())
}

/// The outcome of the next request to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Refused,
    /// It would have been refused.
    Shadow,
    /// No rule counted it.
    Nothing,
}

fn next(client: &mut Client, rule: &str) -> Said {
    let asked = json!({ "attributes": { "ip": "203.0.113.7", "path": format!("/{rule}") } });
    let verdict = client.post("/v1/check", &asked.to_string()).json();
    let limits = verdict["limits"].as_array().unwrap();
    match (&verdict["outcome"], limits.as_slice(), &verdict["shadow_deny"]) {
        (Value::String(outcome), [_], Value::Null) if outcome == "deny" => Said::Refused,
        (Value::String(outcome), [_], Value::Bool(true)) if outcome == "allow" => Said::Shadow,
        (Value::String(outcome), [], Value::Null) if outcome == "allow" => Said::Nothing,
        _ => panic!("{verdict}"),
    }
}

/// A server on which every rule has used up its limit.
fn used_up() -> (Server, Client, Operator) {
    let server = Server::with_policy(&policy(), &[]);
    let (mut client, operator) = (Client::of(server.http), Operator::of(&server));
    for rule in names() {
        let asked = json!({ "attributes": { "ip": "203.0.113.7", "path": format!("/{rule}") } });
        let passes =
            (0..5).position(|_| client.post("/v1/check", &asked.to_string()).status != 200);
        assert!(matches!(passes, Some(1 | 2)), "{rule} let {passes:?} pass");
    }
    (server, client, operator)
}

fn put(operator: &mut Operator, switch: &Value) {
    let reply = operator.send("PUT", "/admin/v1/rules", switch);
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[test]
fn a_switch_counts_for_the_next_request_whatever_the_rule_counts_by() {
    let (_server, mut client, mut operator) = used_up();
    for rule in names() {
        for (switch, said) in [
            (json!({ "rule": rule, "enabled": false }), Said::Nothing),
            (json!({ "rule": rule, "shadow": true }), Said::Nothing), // both: off has priority
            (json!({ "rule": rule, "enabled": null }), Said::Shadow),
            (json!({ "rule": rule, "shadow": false }), Said::Refused),
            (json!({ "rule": rule, "shadow": null }), Said::Refused), // as the policy says
        ] {
            put(&mut operator, &switch);
            assert_eq!(next(&mut client, &rule), said, "{switch}");
        }
    }
    assert_eq!(operator.get("/admin/v1/control").json()["rules"], json!([]));
    assert_eq!(operator.get("/admin/v1/control").json()["version"], 5 * 18);
}

#[test]
fn one_switch_for_all_and_exceptions_from_it() {
    let (_server, mut client, mut operator) = used_up();
    let all = |client: &mut Client, exception: &str, said: (Said, Said)| {
        for rule in names() {
            let expected = if rule == exception { said.1 } else { said.0 };
            assert_eq!(next(client, &rule), expected, "{rule}");
        }
    };
    put(&mut operator, &json!({ "rule": "*", "shadow": true }));
    all(&mut client, "", (Said::Shadow, Said::Shadow));
    put(&mut operator, &json!({ "rule": "sliding_log-soft", "shadow": false }));
    all(&mut client, "sliding_log-soft", (Said::Shadow, Said::Refused));
    put(&mut operator, &json!({ "rule": "*", "enabled": false }));
    put(&mut operator, &json!({ "rule": "leaky_bucket-hard", "enabled": true }));
    all(&mut client, "leaky_bucket-hard", (Said::Nothing, Said::Shadow));
    for rule in ["*", "sliding_log-soft", "leaky_bucket-hard"] {
        put(&mut operator, &json!({ "rule": rule, "enabled": null, "shadow": null }));
    }
    all(&mut client, "", (Said::Refused, Said::Refused));
    let listed = operator.get("/admin/v1/rules").json();
    assert!(listed.as_array().unwrap().iter().all(|rule| rule["enabled"] == true));
}

#[test]
fn a_switch_that_makes_no_sense_is_refused() {
    let (_server, mut client, mut operator) = used_up();
    for (switch, status) in [
        (json!({ "rule": "sliding_lug-soft", "enabled": false }), 422),
        (json!({ "rule": "", "enabled": false }), 422),
        (json!({ "rule": "sliding_log-soft", "enabled": "false" }), 400),
        (json!({ "rule": "sliding_log-soft", "enabld": false }), 400),
        (json!({ "enabled": false }), 400),
        (json!([{ "rule": "sliding_log-soft", "enabled": false }]), 400),
    ] {
        assert_eq!(operator.send("PUT", "/admin/v1/rules", &switch).status, status, "{switch}");
    }
    assert_eq!(next(&mut client, "sliding_log-soft"), Said::Refused);
    assert_eq!(operator.get("/admin/v1/control").json()["version"], 0);
}
