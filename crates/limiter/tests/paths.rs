//! Paths that axum reads differently than other servers do, through the layer.

#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used, reason = "a test fails loudly")]

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use std::net::{IpAddr, SocketAddr};
use tidegate::tower::RateLimitLayer;
use tidegate::{Attributes, Check, Clock, Limiter, Memory, Policy, Secret, Timestamp};
use tower::ServiceExt;

fn limiter(policy: &str) -> Limiter {
    let policy = Policy::parse(format!("version: 1\n{policy}")).unwrap();
    let clock = Clock::manual(Timestamp::from_nanos(1_800_000_000_000_000_000));
    Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock).unwrap()
}

/// A service that responds with the name of the matched route.
fn app() -> Router {
    Router::new()
        .route("/login", any(|| async { "login" }))
        .route("/api/{*rest}", any(|| async { "api" }))
        .fallback(|| async { "other" })
}

async fn send(app: &Router, path: &str) -> (StatusCode, String) {
    let mut request = Request::builder().uri(path).body(Body::empty()).unwrap();
    request.extensions_mut().insert(SocketAddr::new(IpAddr::from([203, 0, 113, 7]), 4711));
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts.status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Spellings of paths, and the route that axum matches.
const SPELLINGS: [(&str, &str); 22] = [
    ("/login", "login"),
    ("/login?next=/../x", "login"),
    ("/login;x", "other"),
    ("/x/../login", "other"),
    ("/x%2fy/../login", "other"),
    ("/%6cogin", "other"),
    ("//h/login", "other"),
    ("/LOGIN", "other"),
    ("/api/x", "api"),
    ("/api/search/..%2f..%2f..%2fz", "api"),
    ("/api/search/..%5c..%5c..%5cz", "api"),
    ("/api/files/../../../z", "api"),
    ("/api/files/%2e%2e/%2e%2e/%2e%2e/z", "api"),
    ("/api/../z", "api"),
    ("/api/./../z", "api"),
    ("/api//../../z", "api"),
    ("/api/x;/../../z", "api"),
    ("/api/x/..;/..;/z", "api"),
    ("/api/%2e%2e;/z", "api"),
    ("/api/..", "api"),
    ("/api%2fx", "other"),
    ("/z/..%2fapi/x", "other"),
];

/// The layer resolved `..` and axum did not. So `/api/search/..%2f..%2f..%2fz` was served by the route below `/api`, but was
/// `/z` for the rule, which did not apply.
#[tokio::test]
async fn no_spelling_of_a_path_escapes_its_rule() {
    for (path, route) in SPELLINGS {
        assert_eq!(send(&app(), path).await, (StatusCode::OK, route.to_owned()), "{path}");
    }
    let rules = "rules:
  - { name: login, match: { path: /login }, key: [ip], limits: [1/h] }
  - { name: api, match: { path: /api/** }, key: [ip], limits: [1/h] }";
    let app = app().layer(RateLimitLayer::new(limiter(rules)));
    for path in ["/login", "/api/x"] {
        assert_eq!(send(&app, path).await.0, 200);
    }
    for (path, route) in SPELLINGS.iter().filter(|(_, route)| *route != "other") {
        assert_eq!(send(&app, path).await.0, 429, "{path} {route}");
    }
}

/// The reverse: a rule with `stop: true` exempts requests from later rules only if its path matches in every reading.
#[tokio::test]
async fn no_spelling_of_a_path_is_exempted_by_a_rule_with_stop() {
    let rules = "rules:
  - { name: login, match: { path: /login }, key: [ip], limits: [1000/h], stop: true }
  - { name: rest, key: [ip], limits: [1/h] }";
    let app = app().layer(RateLimitLayer::new(limiter(rules)));
    assert_eq!(send(&app, "/").await.0, 200);
    for (path, route) in SPELLINGS {
        let expected = if route == "login" { 200 } else { 429 };
        assert_eq!(send(&app, path).await.0, expected, "{path} {route}");
    }
}

/// If the path is part of the key, a thousand spellings of one path share the counter of that path.
#[tokio::test]
async fn another_spelling_does_not_get_another_counter() {
    let rules = "rules: [{ name: per-path, key: [ip, path], limits: [3/h] }]";
    let app = app().layer(RateLimitLayer::new(limiter(rules)));
    let mut passed = 0;
    for n in 0..1_000 {
        let path = match n % 4 {
            0 => format!("/x{n}/../login"),
            1 => format!("/x%2fy{n}/../login"),
            2 => format!("//h{n}/login"),
            _ => format!("/login;x={n}"),
        };
        passed += u32::from(send(&app, &path).await.0 == 200);
    }
    assert_eq!(passed, 3);
    assert_eq!(send(&app, "/login").await.0, 429);
}

#[tokio::test]
async fn an_ambiguous_path_is_rejected_if_the_policy_says_so() {
    let rules = "paths: { ambiguous: reject }\nrules: [{ name: a, key: [path], limits: [100/h] }]";
    let by_service = RateLimitLayer::new(limiter(rules))
        .attributes(|parts| Attributes::new().with("path", parts.uri.path().to_owned()));
    for layer in [RateLimitLayer::new(limiter(rules)), by_service] {
        let app = app().layer(layer);
        for path in ["/x/../login", "/a%2fb", "/login;x", "//h/login", "/%6cogin", "/a\\b"] {
            let (status, body) = send(&app, path).await;
            assert_eq!(status, 400, "{path}");
            assert!(body.contains("in different ways"), "{body}");
        }
        for path in ["/login", "/login/", "/a%20b", "/.well-known/x"] {
            assert_eq!(send(&app, path).await.0, 200, "{path}");
        }
    }
    // A service that calls the limiter directly gets a decision.
    let request = Attributes::new().with("path", "/x/../login").unwrap();
    assert!(limiter(rules).check_now(&Check::new(&request)).unwrap().allowed());
}

/// A client that sends several session cookies must not choose which one is counted.
#[tokio::test]
async fn a_cookie_with_different_values_is_rejected() {
    let rules = "identity: { trusted: [203.0.113.7/32], session: 'cookie:sid' }
rules: [{ name: a, key: [session], limits: [1/h] }]";
    let app = app().layer(RateLimitLayer::new(limiter(rules)));
    for (cookie, expected) in [
        ("sid=REAL", 200),
        ("sid=REAL", 429),
        ("sid=REAL; sid=REAL", 429),
        ("sid=REAL; sid=7", 400),
        ("sid=7; sid=REAL", 400),
        ("a=1; a=2; sid=8", 200),
    ] {
        let mut request = Request::builder().uri("/").header("cookie", cookie);
        let peer = SocketAddr::new(IpAddr::from([203, 0, 113, 7]), 4711);
        request.extensions_mut().unwrap().insert(peer);
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), expected, "{cookie}");
    }
}

/// A service that passes its own attributes gets a denial, not an error: many services let a request pass on an error.
#[test]
fn a_malformed_path_is_denied() {
    let limiter = limiter("rules: [{ name: a, match: { path: /login }, key: [], limits: [9/h] }]");
    for path in ["/a%2541", "/%zz", "/login%00", "/%ff", "login", "http://h/login", "*"] {
        let mut request = Attributes::new();
        request.set_from_client("path", path).unwrap();
        let check = Check::new(&request);
        for verdict in
            [limiter.check_now(&check).unwrap(), limiter.check_without_store(&check).unwrap()]
        {
            assert!(!verdict.allowed() && verdict.retry_after().is_none(), "{path}");
            assert!(verdict.unreadable().is_some() && verdict.limits().next().is_none(), "{path}");
        }
    }
}

/// Twelve limits with the path in their key, and a path with four readings, make 48 takes: more than one plan can have.
#[test]
fn a_path_with_too_many_readings_is_denied() {
    let limits: Vec<String> = (1..=12).map(|n| format!("{n}/{n}h")).collect();
    let limiter =
        limiter(&format!("rules: [{{ name: a, key: [path], limits: [{}] }}]", limits.join(", ")));
    let allowed = |path: &'static str| {
        let request = Attributes::new().with("path", path).unwrap();
        limiter.check_now(&Check::new(&request)).unwrap().allowed()
    };
    assert!(allowed("/login") && !allowed("/x%2fy/../login"));
}
