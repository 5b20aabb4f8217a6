//! What is saved: changes survive the end of the process, each is in the audit log, and the files are closed to other
//! users.

use crate::support::Server;
use crate::support::client::{Client, Operator};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: calls, match: { path: /calls }, key: [user], limits: [2/h], tiers: { pro: { scale: 10 } } }
  - { name: other, match: { path: /other }, key: [user], limits: [3/h] }
";

/// Kills a server, so that it cannot write anything more, and starts it again on the same folder.
fn killed_and_started(mut server: Server) -> Server {
    server.signal("KILL");
    server.wait();
    let folder = server.folder.clone();
    // The folder must not be removed with the server.
    std::mem::forget(server);
    let path = folder.join("policy.yaml");
    Server::start_in(folder, &["--policy", path.to_str().unwrap()])
}

fn limit(server: &Server, path: &str, user: &str) -> Value {
    let asked = json!({ "attributes": { "user": user, "path": path } });
    Client::of(server.http).post("/v1/check", &asked.to_string()).json()["limits"][0]["limit"]
        .clone()
}

fn put(operator: &mut Operator, what: &str, body: &Value) {
    let reply = operator.send("PUT", &format!("/admin/v1/{what}"), body);
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// One change of each kind.
fn change_everything(server: &Server) {
    let mut operator = Operator::of(server);
    put(
        &mut operator,
        "overrides",
        &json!({ "rule": "calls", "key": { "user": "alice" }, "limits": ["7/h"] }),
    );
    put(&mut operator, "tiers", &json!({ "attribute": "user", "value": "bob", "tier": "pro" }));
    put(&mut operator, "rules", &json!({ "rule": "other", "enabled": false }));
    let sent = operator.put_policy("", POLICY.replace("2/h", "4/h"));
    assert_eq!(sent.status, 200, "{sent:?}");
}

/// The limits in force after `change_everything`.
fn everything(server: &Server) -> [Value; 4] {
    [("/calls", "alice"), ("/calls", "bob"), ("/calls", "eve"), ("/other", "eve")]
        .map(|(path, user)| limit(server, path, user))
}

fn is_changed(server: &Server) {
    assert_eq!(everything(server), [json!(7), json!(40), json!(4), Value::Null]);
}

#[test]
fn changes_outlive_the_process() {
    let server = Server::with_policy(POLICY, &[]);
    change_everything(&server);
    is_changed(&server);
    let before = Operator::of(&server).get("/admin/v1/control").json();
    let server = killed_and_started(server);
    is_changed(&server);
    assert_eq!(Operator::of(&server).get("/admin/v1/control").json(), before);
    assert_eq!(server.get("/ready").json()["status"], "ready");

    // A newer file replaces the uploaded policy, and nothing else.
    std::fs::write(server.folder.join("policy.yaml"), POLICY.replace("2/h", "5/h")).unwrap();
    let server = killed_and_started(server);
    assert_eq!(everything(&server), [json!(7), json!(50), json!(5), Value::Null]);
    let control = Operator::of(&server).get("/admin/v1/control").json();
    assert_eq!((&control["policy"], &control["overrides"]), (&Value::Null, &before["overrides"]));
}

/// The document is replaced as a whole, so half a document cannot exist. If the file cannot be read, the server does
/// not start, because it cannot know what was changed.
#[test]
fn a_document_that_cannot_be_read_is_not_read_over() {
    let mut server = Server::with_policy(POLICY, &[]);
    change_everything(&server);
    server.signal("KILL");
    server.wait();
    for text in ["", "{", "{\"version\": 1, \"surprise\": true}", "[]"] {
        std::fs::write(server.data("control.json"), text).unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args([
                "serve",
                "--http-listen",
                "127.0.0.1:0",
                "--resp-listen",
                "off",
                "--grpc-listen",
                "off",
            ])
            .args(["--admin-listen", "127.0.0.1:0", "--data-dir"])
            .arg(server.folder.join("data"))
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), told.contains("control.json")),
            (Some(2), true),
            "{told}"
        );
        assert!(output.stdout.is_empty());
    }
}

// === the audit log ===

fn audit(server: &Server) -> Vec<Value> {
    Operator::of(server).get("/admin/v1/audit").json().as_array().unwrap().clone()
}

#[test]
fn every_change_is_one_line() {
    let server = Server::with_policy(POLICY, &[]);
    change_everything(&server);
    let mut operator = Operator::of(&server);
    assert_eq!(limit(&server, "/calls", "alice"), 7); // which counts a request
    let reset = json!({ "rule": "calls", "attributes": { "user": "alice" } });
    assert_eq!(operator.send("POST", "/admin/v1/reset", &reset).status, 200);
    assert_eq!(operator.ask("DELETE", "/admin/v1/policy", &[], "").status, 200);
    // Refused requests, dry runs and reads are not changes.
    operator.put_policy("?dry_run=true", POLICY);
    operator.put_policy("", "rules: [");
    operator.send("PUT", "/admin/v1/rules", &json!({ "rule": "nobody", "enabled": false }));
    operator.send("POST", "/admin/v1/peek", &json!({ "attributes": { "user": "alice" } }));
    let reader = Operator::reader(&server).send(
        "PUT",
        "/admin/v1/rules",
        &json!({ "rule": "*", "enabled": false }),
    );
    assert_eq!(reader.status, 403);

    let lines = audit(&server);
    let kinds: Vec<&str> = lines.iter().map(|line| line["what"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["override", "tier", "rule", "policy", "reset", "policy"]);
    let versions: Vec<u64> =
        lines.iter().map(|line| line["details"]["version"].as_u64().unwrap()).collect();
    assert_eq!(versions, [1, 2, 3, 4, 4, 5]);
    assert!(lines.iter().all(|line| line["who"] == "operator" && line["peer"] == "127.0.0.1"));
    let chains: BTreeSet<String> = lines.iter().map(|line| line["chain"].to_string()).collect();
    assert_eq!(chains.len(), 6);
    let file = std::fs::read_to_string(server.data("audit.log")).unwrap();
    let written: Vec<Value> =
        file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(written, lines);
    assert_eq!(operator.get("/admin/v1/audit?last=2").json(), json!(lines[4..]));
}

#[test]
fn a_log_that_somebody_else_wrote_in_is_told() {
    let mut server = Server::with_policy(POLICY, &[]);
    change_everything(&server);
    let good = std::fs::read_to_string(server.data("audit.log")).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    for (text, word, line) in [
        (good.clone(), "ready", ""),
        (good.replace("alice", "mallory"), "degraded", "line 1"),
        (format!("{}\n{}\n{}\n", lines[0], lines[2], lines[3]), "degraded", "line 2"),
        (format!("{}\n{}\n{}\n{}\n", lines[1], lines[0], lines[2], lines[3]), "degraded", "line 1"),
        (good.clone(), "ready", ""),
    ] {
        std::fs::write(server.data("audit.log"), text).unwrap();
        server = killed_and_started(server);
        let ready = server.get("/ready").json();
        assert_eq!(ready["status"], word, "{ready}");
        assert!(ready["reasons"].to_string().contains(line), "{ready}");
        is_changed(&server);
    }
    std::fs::write(server.data("audit.log"), [good.as_bytes(), b"\xff\n"].concat()).unwrap();
    server = killed_and_started(server);
    assert!(server.get("/ready").json()["reasons"].to_string().contains("line 5"));
}

/// A large policy makes a long line. Once it was longer than the part of the log that was read, so the next line was
/// not chained to it, and the next start reported tampering.
#[test]
fn a_long_line_is_a_link_of_the_chain() {
    let rule = |number: u32, amount: u32| {
        format!(
            "  - {{ name: r{number}, match: {{ path: /p{number} }}, key: [ip], limits: [{amount}/s] }}\n"
        )
    };
    let policy = |amount| {
        let rules: String = (0..3_000).map(|number| rule(number, amount)).collect();
        format!("version: 1\nrules:\n{rules}")
    };
    let server = Server::with_policy(&policy(1), &[]);
    assert_eq!(Operator::of(&server).put_policy("", policy(2)).status, 200);
    let server = killed_and_started(server);
    put(&mut Operator::of(&server), "rules", &json!({ "rule": "r7", "enabled": false }));
    let server = killed_and_started(server);
    let ready = server.get("/ready").json();
    assert_eq!(ready["status"], "ready", "{ready}");
    assert!(std::fs::metadata(server.data("audit.log")).unwrap().len() > 256 * 1024);
}

/// The process ended in the middle of a line. Once the next line was appended to the incomplete one, and neither
/// could be read.
#[test]
fn a_line_that_was_cut_short_spoils_no_other() {
    let server = Server::with_policy(POLICY, &[]);
    change_everything(&server);
    let path = server.data("audit.log");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &good[..good.len() - 20]).unwrap();
    let server = killed_and_started(server);
    // The control file says that there were four lines. The missing line is recorded by a line of its own.
    assert!(server.get("/ready").body.contains("audit.log was shortened: it has 3 of 4 lines"));
    let kinds = |server: &Server| {
        audit(server).iter().map(|line| line["what"].to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(kinds(&server), r#""override" "tier" "rule" "audit""#);
    put(&mut Operator::of(&server), "rules", &json!({ "rule": "other", "enabled": true }));
    let server = killed_and_started(server);
    assert_eq!(kinds(&server), r#""override" "tier" "rule" "audit" "rule""#);
    assert_eq!(server.get("/ready").json()["status"], "ready");
}

/// Without the control file nothing said how many lines the log should have. Whoever removed it could remove lines too, and the
/// server started without a word.
#[test]
fn a_log_without_its_control_file_is_reported() {
    let server = Server::with_policy(POLICY, &[]);
    change_everything(&server);
    let path = server.data("audit.log");
    let first = std::fs::read_to_string(&path).unwrap().lines().next().unwrap().to_owned();
    std::fs::write(&path, first + "\n").unwrap();
    std::fs::remove_file(server.data("control.json")).unwrap();
    let server = killed_and_started(server);
    let ready = server.get("/ready").json();
    assert!(ready["reasons"].to_string().contains("control.json is missing"), "{ready}");
    assert_eq!(audit(&server)[1]["what"], "audit");
    // That line is the record. The next start has nothing to add to it.
    let server = killed_and_started(server);
    assert_eq!(server.get("/ready").json()["status"], "ready");
}

/// The log is read from its end, and that part may begin in the middle of a character. Once it was then rejected as
/// invalid text: the log could not be read, and the server did not start.
#[test]
fn a_long_log_in_any_script_is_read() {
    let server = Server::with_policy(POLICY, &[]);
    let mut operator = Operator::of(&server);
    for number in 0..300 {
        let user = format!("{number}{}", "日".repeat(330 + number % 3));
        put(
            &mut operator,
            "overrides",
            &json!({ "rule": "calls", "key": { "user": user }, "limits": ["7/h"] }),
        );
        let looked = operator.get("/admin/v1/audit?last=1000");
        assert_eq!(looked.status, 200, "after {number}: {}", looked.body);
    }
    assert!(std::fs::metadata(server.data("audit.log")).unwrap().len() > 300_000);
    let server = killed_and_started(server);
    assert_eq!(server.get("/ready").json()["status"], "ready");
    assert_eq!(
        Operator::of(&server).get("/admin/v1/audit?last=1").json()[0]["details"]["version"],
        300
    );
}

// === files ===

#[test]
fn what_is_kept_is_for_nobody_else() {
    let server = Server::with_policy(POLICY, &[]);
    change_everything(&server);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let kept = std::fs::read_dir(server.folder.join("data")).unwrap();
    let mut names = BTreeSet::new();
    for entry in kept.map(Result::unwrap) {
        assert_eq!(mode(&entry.path()), 0o600, "{entry:?}");
        names.insert(entry.file_name().into_string().unwrap());
    }
    let expected = [
        "audit.log",
        "control-lineage",
        "control.json",
        "lock",
        "operator-token",
        "reader-token",
        "secret",
    ];
    assert_eq!(names, BTreeSet::from(expected.map(str::to_owned)));
    assert_eq!(mode(&server.folder.join("data")), 0o700);
}
