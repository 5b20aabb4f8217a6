//! The HTTP API is what `openapi.json` says, according to an independent tool: schemathesis generates valid and
//! invalid requests from the document, and checks every answer against it.

#![allow(clippy::unwrap_used, reason = "a test fails loudly")]

use crate::support;

use std::process::Command;
use support::{Server, folder, project};

#[test]
fn the_server_does_as_its_document_says() {
    let policy = "
version: 1
identity: { trusted: [127.0.0.0/8] }
tiers: { default: free, known: [free, pro] }
rules:
  - { name: calendar, match: { path: /urls/** }, key: [user], limits: [50/calendar-day] }
  - { name: logins, key: [user], limits: [20/min], count: failures }
  - { name: per-client, key: [ip], limits: [15/s, { rate: 100/h, algorithm: sliding_log }] }
  - { name: paced, key: [tenant], limits: [{ rate: 5/s, algorithm: leaky_bucket }] }
";
    let server = Server::with_policy(policy, &[]);
    let said = judged(&format!("http://{}/openapi.json", server.http), &[], LEFT_OUT, "60");
    // All operations of the document, except the one that returns the document.
    assert!(said.contains("Tested: 8"), "{said}");
}

#[test]
fn the_admin_api_does_as_its_document_says() {
    let server = Server::start(&[]);
    let token = std::fs::read_to_string(server.folder.join("data/operator-token")).unwrap();
    let field = format!("authorization: Bearer {}", token.trim());
    let said = judged(
        &format!("http://{}/admin/v1/openapi.json", server.admin),
        // Each request has the token, so the tool cannot try without; tests/admin/doors.rs does.
        &["--header", &field],
        &format!("{LEFT_OUT},ignored_auth"),
        "10",
    );
    let paths: serde_json::Value =
        serde_json::from_str(include_str!("../src/front/admin/openapi.json")).unwrap();
    let operations = paths["paths"].as_object().unwrap().values();
    let operations: usize = operations.map(|path| path.as_object().unwrap().len()).sum();
    // All operations of the document, except the one that returns the document.
    assert!(said.contains(&format!("Tested: {}", operations - 1)), "{said}");
}

/// The document cannot express every rule (a text need not be a valid address, a number need not be a valid limit), so some of the
/// requests that it allows are refused.
const LEFT_OUT: &str = "positive_data_acceptance";

/// Lets schemathesis judge a server by its document, and returns what it says.
fn judged(document: &str, more: &[&str], left_out: &str, examples: &str) -> String {
    let tool = project("target/schemathesis");
    let program = tool.join("bin/schemathesis");
    assert!(program.exists(), "schemathesis is not there; run `make deps`");
    // Requests that are too large are refused too, with another status.
    let refusals = "[checks]\nnegative_data_rejection.expected-statuses = [400, 401, 404, 405, 413, 415, 422, 429]\n";
    let place = folder("schemathesis");
    std::fs::write(place.join("schemathesis.toml"), refusals).unwrap();
    let output = Command::new(program)
        .args(["run", document])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", examples, "--seed", "1"])
        .args(["--checks", "all", "--no-color"])
        // The machine may be slow; that says nothing about the server.
        .args(["--suppress-health-check", "too_slow", "--request-timeout", "120"])
        .args(["--warnings", "off", "--exclude-checks", left_out])
        .args(more)
        .env("PYTHONPATH", &tool)
        .current_dir(&place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn the_document_names_every_path() {
    let server = Server::start(&[]);
    let document = server.get("/openapi.json").json();
    for path in [
        "/v1/check",
        "/v1/peek",
        "/v1/report",
        "/v1/take",
        "/v1/auth",
        "/v1/auth/nginx",
        "/live",
        "/ready",
        "/openapi.json",
    ] {
        let asked = server.get(path).status;
        assert_ne!(asked, 404, "{path}");
        assert!(document["paths"].get(path).is_some(), "{path}");
    }
    assert_eq!(server.get("/v2/check").status, 404);
}
