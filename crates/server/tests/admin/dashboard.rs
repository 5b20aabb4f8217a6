//! The dashboard is served without a token, under a strict security policy; what it shows needs one.

use crate::support::client::Operator;
use crate::support::{Server, request};
use serde_json::json;

const POLICY: &str = "{ version: 1, rules: [{ name: a, key: [ip], limits: [15/s] }] }";

#[test]
fn the_page_needs_no_token_and_allows_only_its_own_files() {
    let server = Server::with_policy(POLICY, &[]);
    let page = request(server.admin, "GET", "/dashboard/", &[], "");
    assert_eq!((page.status, page.field("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.field("content-security-policy").unwrap();
    for part in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.field("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.field("access-control-allow-origin"), None);

    let tag = page.field("etag").unwrap().to_owned();
    let again = request(server.admin, "GET", "/dashboard/", &[("if-none-match", &tag)], "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    assert_eq!(again.field("content-length"), None);
    let head = request(server.admin, "HEAD", "/dashboard/main.js", &[], "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    for (method, path) in
        [("POST", "/dashboard/"), ("GET", "/dashboard/x"), ("GET", "/dashboard/../admin/v1/status")]
    {
        assert_eq!(request(server.admin, method, path, &[], "").status, 401, "{method} {path}");
    }
    server.is_sound();
}

/// A runbook on another site may lead to the page. Such a site can neither read it nor have it loaded as a part of its own.
#[test]
fn other_pages_can_link_to_the_page_and_do_nothing_else_with_it() {
    let server = Server::with_policy(POLICY, &[]);
    let cross = ("sec-fetch-site", "cross-site");
    let follow = [cross, ("sec-fetch-mode", "navigate")];
    assert_eq!(request(server.admin, "GET", "/dashboard/", &follow, "").status, 200);
    for fields in [
        vec![cross],
        vec![cross, ("sec-fetch-mode", "no-cors")],
        vec![("sec-fetch-mode", "navigate"), ("origin", "http://evil.example")],
    ] {
        assert_eq!(
            request(server.admin, "GET", "/dashboard/", &fields, "").status,
            403,
            "{fields:?}"
        );
    }
    assert_eq!(request(server.admin, "GET", "/live", &follow, "").status, 403);
}

#[test]
fn the_playground_compares_the_algorithms_on_one_trace() {
    let server = Server::with_policy(POLICY, &[]);
    let mut operator = Operator::of(&server);
    let body = json!({ "amount": 6, "period_ms": 10_000, "step_ms": 1_000, "requests": [0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 6] });
    let played = operator.send("POST", "/admin/v1/playground", &body).json();
    let most = |algorithm: &str| {
        let rows = played["algorithms"].as_array().unwrap();
        rows.iter().find(|row| row["algorithm"] == algorithm).unwrap()["most_in_a_period"].clone()
    };
    assert_eq!((most("fixed_window"), most("sliding_log")), (json!(12), json!(6)));
    let many = json!({ "amount": 6, "period_ms": 1_000, "step_ms": 1_000, "requests": [10_001] });
    assert_eq!(operator.send("POST", "/admin/v1/playground", &many).status, 422);
    let unknown = json!({ "amount": 6, "period_ms": 1, "step_ms": 1, "requests": [], "seed": 1 });
    assert_eq!(operator.send("POST", "/admin/v1/playground", &unknown).status, 400);
}
