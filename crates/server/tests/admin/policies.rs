//! Uploaded policies: what they would change, what they change, and how they are withdrawn.

use super::kept;
use crate::support::Server;
use crate::support::client::Operator;
use serde_json::json;

const OLD: &str = "
version: 1
rules:
  - { name: a, key: [ip], limits: [1/s] }
  - { name: b, match: { path: /b }, key: [ip], limits: [2/s] }
";
const NEW: &str = "
version: 1
tiers: { default: free, known: [free] }
rules:
  - { name: a, key: [ip], limits: [7/s] }
  - { name: c, match: { path: /c }, key: [ip], limits: [3/s, 1000/min] }
";

/// The policy version, the version of the changes, the text and the audit log.
fn state(operator: &mut Operator) -> (serde_json::Value, serde_json::Value, String, usize) {
    let status = operator.get("/admin/v1/status").json();
    let audit = operator.get("/admin/v1/audit").json().as_array().unwrap().len();
    let text = operator.get("/admin/v1/policy").body;
    (status["policy_version"].clone(), status["control_version"].clone(), text, audit)
}

#[test]
fn a_rehearsal_tells_the_difference_and_changes_nothing() {
    let server = Server::with_policy(OLD, &[]);
    let mut operator = Operator::of(&server);
    let before = state(&mut operator);
    let rehearsed = operator.put_policy("?dry_run=true", NEW);
    assert_eq!(rehearsed.status, 200, "{rehearsed:?}");
    let rehearsed = rehearsed.json();
    assert_eq!((&rehearsed["dry_run"], &rehearsed["policy_version"]), (&json!(true), &json!(1)));
    let mut difference = rehearsed["difference"].clone();
    let warnings = difference["warnings"].take();
    assert!(warnings[0].as_str().unwrap().contains("has no effect"), "{warnings}");
    let rule = |amount: &str| json!({ "name": "a", "key": ["ip"], "limits": [amount] });
    assert_eq!(
        difference,
        json!({
            "added": ["c"], "removed": ["b"], "elsewhere": ["tiers"], "warnings": null,
            "changed": [{ "rule": "a", "before": rule("1/s"), "after": rule("7/s") }],
        })
    );
    assert_eq!(state(&mut operator), before);
    assert_eq!(operator.put_policy("?dry_run=true", "rules: [").status, 400);
    assert_eq!(state(&mut operator), before);
    assert_eq!(kept(&server)["version"], 0);

    let sent = operator.put_policy("?dry_run=false", NEW).json();
    assert_eq!((&sent["dry_run"], &sent["policy_version"]), (&json!(false), &json!(2)));
    assert_eq!(sent["difference"], rehearsed["difference"]);
    assert_eq!(state(&mut operator), (json!(2), json!(1), NEW.to_owned(), 1));
}

/// An operator mistypes `dry_run`. Once unknown parameters were ignored, and the policy took effect.
#[test]
fn a_word_that_is_not_understood_is_no_leave_to_go_on() {
    let server = Server::with_policy(OLD, &[]);
    let mut operator = Operator::of(&server);
    let before = state(&mut operator);
    for parameters in [
        "?dry_run",
        "?dry_run=",
        "?dry_run=1",
        "?dry_run=TRUE",
        "?dry-run=true",
        "?dryrun=true",
        "?DRY_RUN=true",
        "?dry_run=true&dry_run=false",
        "?force=yes",
        "?forced=true",
        "?dry%5frun=true",
        "?true",
        "?dry_run=false&dry_run=true",
    ] {
        let refused = operator.put_policy(parameters, NEW);
        assert_eq!(refused.status, 400, "{parameters}: {refused:?}");
    }
    assert_eq!(state(&mut operator), before);
    assert_eq!(operator.put_policy("?dry_run=true&force=true", NEW).status, 200);
    assert_eq!(state(&mut operator), before);
}

#[test]
fn what_was_sent_is_taken_back_by_hand_or_by_a_newer_file() {
    let server = Server::with_policy(OLD, &[]);
    let mut operator = Operator::of(&server);
    let from = |operator: &mut Operator| {
        operator.get("/admin/v1/policy").field("tidegate-policy-from").unwrap().to_owned()
    };
    assert_eq!(from(&mut operator), "file");
    operator.put_policy("", NEW);
    assert_eq!(from(&mut operator), "upload");
    let withdrawn = operator.ask("DELETE", "/admin/v1/policy", &[], "");
    assert_eq!(withdrawn.json()["difference"]["added"], json!(["b"]), "{withdrawn:?}");
    assert_eq!(
        (from(&mut operator), operator.get("/admin/v1/policy").body),
        ("file".to_owned(), OLD.to_owned())
    );

    operator.put_policy("", NEW);
    std::fs::write(server.folder.join("policy.yaml"), OLD.replace("1/s", "5/s")).unwrap();
    server.until("the file decides", |_| from(&mut operator) == "file");
    assert!(operator.get("/admin/v1/policy").body.contains("5/s"));
    assert_eq!(operator.get("/admin/v1/control").json()["policy"], json!(null));
}
