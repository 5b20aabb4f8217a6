//! The layer in front of a real axum service.

#![cfg(feature = "tower")]
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::get;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tidegate::http::{HeaderStyle, LegacyReset};
use tidegate::tower::RateLimitLayer;
use tidegate::{
    Attributes, Check, Clock, Limiter, Memory, Policy, Scheduler, SchedulerSettings, Secret, Span,
    Timestamp, Verdict,
};
use tower::ServiceExt;

const NOW: Timestamp = Timestamp::from_nanos(1_800_000_000_000_000_000);

/// The fields of a preflight request.
const PREFLIGHT: [(&str, &str); 2] =
    [("origin", "https://example.com"), ("access-control-request-method", "PUT")];

fn limiter(policy: &str) -> (Limiter, Clock) {
    let policy = Policy::parse(format!("version: 1\n{policy}")).unwrap();
    let clock = Clock::manual(NOW);
    let limiter =
        Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock.clone());
    (limiter.unwrap(), clock)
}

/// A service that responds with the status that its path names.
fn app(layer: RateLimitLayer) -> Router {
    let answer = |Path(status): Path<u16>| async move { StatusCode::from_u16(status).unwrap() };
    Router::new().route("/{status}", get(answer).post(answer).options(answer)).layer(layer)
}

fn request(peer: &str, method: Method, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(SocketAddr::new(peer.parse::<IpAddr>().unwrap(), 4711));
    request
}

async fn send(app: &Router, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
    let response: Response<Body> = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts.status, parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn over_the_limit_is_429_with_everything_a_client_needs() {
    let (limiter, _) = limiter("rules: [{ name: per-client, key: [ip], limits: [2/min] }]");
    let app = app(RateLimitLayer::new(limiter));
    for left in [1, 0] {
        let (status, headers, _) =
            send(&app, request("203.0.113.7", Method::GET, "/200", &[])).await;
        assert_eq!(status, 200);
        assert_eq!(headers["ratelimit"], format!("\"per-client\";r={left};t=30"));
        assert!(!headers.contains_key("retry-after"));
    }
    let browser = [("origin", "https://shop.example")];
    let (status, headers, body) =
        send(&app, request("203.0.113.7", Method::GET, "/200", &browser)).await;
    assert_eq!(status, 429);
    assert_eq!(headers["retry-after"], "30");
    assert_eq!(headers["ratelimit-policy"], "\"per-client\";q=2;w=60");
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(
        headers["access-control-expose-headers"],
        "RateLimit, RateLimit-Policy, Retry-After"
    );
    assert!(body.contains("quota-exceeded"));
    // Other clients are not affected, and neither is a preflight. `OPTIONS` alone is no way around the limit.
    assert_eq!(send(&app, request("203.0.113.8", Method::GET, "/200", &[])).await.0, 200);
    for (fields, expected) in [
        (&PREFLIGHT[..], 204),
        (&[], 429),
        (&PREFLIGHT[..1], 429),
        (&[PREFLIGHT[1]], 429),
        (&[PREFLIGHT[0], PREFLIGHT[1], ("content-length", "1")], 429),
        (&[PREFLIGHT[0], PREFLIGHT[1], ("transfer-encoding", "chunked")], 429),
    ] {
        let options = request("203.0.113.7", Method::OPTIONS, "/204", fields);
        assert_eq!(send(&app, options).await.0, expected, "{fields:?}");
    }
}

#[tokio::test]
async fn headers_are_believed_only_from_trusted_peers() {
    let (limiter, _) = limiter(
        "identity: { trusted: [10.0.0.0/8], user: 'header:x-user' }\nrules: [{ name: a, key: [user|ip], limits: [1/h] }]",
    );
    let app = app(RateLimitLayer::new(limiter));
    let mut passed = 0;
    for n in 0..1_000 {
        let (forged, user) = (format!("198.51.{}.{}", n / 250, n % 250), format!("user-{n}"));
        let forged = [("x-forwarded-for", forged.as_str()), ("x-user", user.as_str())];
        let (status, ..) = send(&app, request("203.0.113.7", Method::GET, "/200", &forged)).await;
        passed += u32::from(status == 200);
    }
    assert_eq!(passed, 1);
    // Behind the trusted proxy, the header names the user.
    for user in ["alice", "bob"] {
        let (status, ..) =
            send(&app, request("10.0.0.1", Method::GET, "/200", &[("x-user", user)])).await;
        assert_eq!(status, 200);
    }
}

/// How many of these requests pass, each with an API key, from one address that is not trusted.
async fn passed(app: &Router, keys: impl IntoIterator<Item = String>) -> usize {
    let mut passed = 0;
    for key in keys {
        let sent = request("203.0.113.7", Method::GET, "/200", &[("x-api-key", key.as_str())]);
        passed += usize::from(send(app, sent).await.0 == 200);
    }
    passed
}

/// With `api_key: header:x-api-key` and a limit of 5/s for each key, 12 of 12 requests passed, and neither the policy nor the
/// layer said why: header fields count only from trusted peers, so no request had a key. The policy returns a warning now, the
/// limiter logs it, and `peers: any` accepts the keys of clients. docs/library.md shows how.
#[tokio::test]
async fn keys_of_clients_count_with_peers_any_and_their_absence_is_warned_about() {
    let twelve = || (0..12).map(|_| "s3cr3t".to_owned());
    let without = "identity: { api_key: 'header:x-api-key' }\nrules: [{ name: per-key, key: [api_key], limits: [5/s] }]";
    let (unlimited, _) = limiter(without);
    assert_eq!(passed(&app(RateLimitLayer::new(unlimited)), twelve()).await, 12);
    let policy = Policy::parse(format!("version: 1\n{without}")).unwrap();
    let warnings: Vec<&str> = policy.warnings().iter().map(|found| found.text.as_str()).collect();
    assert!(warnings.iter().any(|text| text.contains("write `{ from: …, peers: any }`")));
    assert!(warnings.iter().any(|text| text.contains("no rule counts a request without")));

    let page = include_str!("../../../docs/library.md");
    let mut blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let shown = blocks.find(|block| block.contains("peers: any")).unwrap();
    assert_eq!(Policy::parse(shown).unwrap().warnings(), []);
    let (limited, _) = limiter(shown.strip_prefix("version: 1\n").unwrap());
    let app = app(RateLimitLayer::new(limited));
    assert_eq!(passed(&app, twelve()).await, 5);
    // A client that invents keys is limited by its address: 50, of which the 5 above have taken their part.
    assert_eq!(passed(&app, (0..60).map(|n| format!("invented-{n}"))).await, 45);
}

/// Values that were not ASCII were ignored. So the user Jürgen had no limit, and neither had a client that added such a cookie
/// to its others.
#[tokio::test]
async fn names_outside_of_ascii_are_counted() {
    let (limiter, _) = limiter(
        "identity: { trusted: [10.0.0.0/8], user: 'header:x-user', session: 'cookie:sid' }\nrules: [{ name: a, key: [user|session], limits: [1/h] }]",
    );
    let app = app(RateLimitLayer::new(limiter));
    for fields in [[("x-user", "Jürgen")], [("cookie", "x=é; sid=7")]] {
        for expected in [200, 429] {
            let (status, ..) = send(&app, request("10.0.0.1", Method::GET, "/200", &fields)).await;
            assert_eq!(status, expected, "{fields:?}");
        }
    }
}

#[tokio::test]
async fn the_spelling_of_a_path_does_not_change_the_rule_and_a_malformed_path_is_400() {
    let (limiter, _) =
        limiter("rules: [{ name: a, match: { path: /200 }, key: [ip], limits: [1/h] }]");
    let app = app(RateLimitLayer::new(limiter));
    let mut statuses = Vec::new();
    for path in
        ["/200", "//200", "/./200", "/x/../200", "/%32%30%30", "/200/", "/200?x=y", "/200;v=1"]
    {
        statuses.push(send(&app, request("203.0.113.7", Method::GET, path, &[])).await.0.as_u16());
    }
    assert_eq!(statuses[0], 200);
    assert!(statuses[1..].iter().all(|status| *status == 429), "{statuses:?}");
    let (status, _, body) = send(&app, request("203.0.113.7", Method::GET, "/%2541", &[])).await;
    assert_eq!(status, 400);
    assert!(body.contains("encoded twice"), "{body}");
}

#[tokio::test]
async fn failures_count_and_successes_are_given_back() {
    let (limiter, _) =
        limiter("rules: [{ name: logins, key: [ip], limits: [3/h], count: failures }]");
    let app = app(RateLimitLayer::new(limiter));
    for status in [200, 204, 302, 404, 200, 200, 200] {
        let path = format!("/{status}");
        assert_eq!(send(&app, request("203.0.113.7", Method::POST, &path, &[])).await.0, status);
    }
    for status in [401, 403, 500] {
        let path = format!("/{status}");
        assert_eq!(send(&app, request("203.0.113.7", Method::POST, &path, &[])).await.0, status);
    }
    assert_eq!(send(&app, request("203.0.113.7", Method::POST, "/200", &[])).await.0, 429);
}

#[tokio::test]
async fn a_service_can_set_attributes_and_cost_and_read_the_verdict() {
    let (limiter, _) = limiter("rules: [{ name: a, key: [user], limits: [10/h] }]");
    let layer = RateLimitLayer::new(limiter)
        .attributes(|parts| {
            Attributes::new().with("user", parts.headers["x-session"].to_str().unwrap().to_owned())
        })
        .cost(|parts| if parts.method == Method::POST { 5 } else { 1 });
    let verdict_of = |request: Request<Body>| async move {
        let verdict = request.extensions().get::<Arc<Verdict>>().unwrap();
        verdict.limits().next().unwrap().decision.remaining.to_string()
    };
    let app = Router::new().route("/", get(verdict_of).post(verdict_of)).layer(layer);
    let alice = [("x-session", "alice")];
    for (method, remaining) in [(Method::POST, "5"), (Method::GET, "4")] {
        let (_, _, body) = send(&app, request("203.0.113.7", method, "/", &alice)).await;
        assert_eq!(body, remaining);
    }
    assert_eq!(send(&app, request("203.0.113.7", Method::POST, "/", &alice)).await.0, 429);
}

/// The user of a session, as a service knows it.
fn user_of_session(layer: RateLimitLayer) -> RateLimitLayer {
    layer.attributes(|parts| match parts.headers.get("x-session") {
        Some(user) => Attributes::new().with("user", user.to_str().unwrap().to_owned()),
        None => Ok(Attributes::new()),
    })
}

/// The function of `attributes` replaced all attributes, also the path, the method and the address. So a service that set only the
/// user lost its rules by path, and 20 of 20 requests passed a limit of 2. Now it adds to what `identity` finds.
#[tokio::test]
async fn attributes_of_the_service_are_added_to_those_of_the_request() {
    let (limiter, _) = limiter(
        "identity: { trusted: [10.0.0.0/8], user: 'header:x-user', tenant: 'header:x-tenant' }
rules: [{ name: a, match: { path: /200, method: GET }, key: [user, tenant, ip], limits: [2/h] }]",
    );
    let app = app(user_of_session(RateLimitLayer::new(limiter)));
    let passed_of_20 = async |fields: &[(&str, &str)]| {
        let mut passed = 0;
        for n in 0..20 {
            // The proxy names another user in each request, and the function replaces it if it knows the user.
            let claimed = format!("user-{n}");
            let mut fields = fields.to_vec();
            fields.push(("x-user", &claimed));
            let sent = request("10.0.0.1", Method::GET, "/200", &fields);
            passed += u32::from(send(&app, sent).await.0 == 200);
        }
        passed
    };
    let (alice, a, b) = (("x-session", "alice"), ("x-tenant", "a"), ("x-tenant", "b"));
    let [home, office] = ["203.0.113.7", "203.0.113.8"].map(|ip| ("x-forwarded-for", ip));
    assert_eq!(passed_of_20(&[alice, a, home]).await, 2);
    assert_eq!(passed_of_20(&[alice, a, office]).await, 2);
    assert_eq!(passed_of_20(&[alice, b, office]).await, 2);
    assert_eq!(passed_of_20(&[a, office]).await, 20); // 20 users, all named by the proxy
}

/// The layer refuses a policy whose users come from tokens, because it verifies none. A service that verifies them sets the user.
#[tokio::test]
async fn a_service_can_set_the_user_of_a_policy_that_reads_tokens() {
    let policy = "identity: { user: 'jwt:sub' }
rules: [{ name: a, match: { path: /200 }, key: [user], limits: [1/h] }]";
    let alice = [("x-session", "alice")];
    let by_itself = app(RateLimitLayer::new(limiter(policy).0));
    let sent = || request("203.0.113.7", Method::GET, "/200", &alice);
    assert_eq!(send(&by_itself, sent()).await.0, 400);
    let with_users = app(user_of_session(RateLimitLayer::new(limiter(policy).0)));
    for status in [200, 429] {
        assert_eq!(send(&with_users, sent()).await.0, status);
    }
}

/// Twenty simultaneous requests under a leaky bucket of 10 per second: all are served, the last after 1.9 s of virtual time.
#[tokio::test(start_paused = true)]
#[expect(clippy::disallowed_methods, reason = "the clock of the runtime is paused")]
async fn requests_wait_for_their_turn() {
    let policy = Policy::parse(
        "{ version: 1, rules: [{ name: a, key: [], limits: [{ rate: 10/s, algorithm: leaky_bucket, queue: 100 }] }] }",
    );
    let start = tokio::time::Instant::now();
    let clock = Clock::borrowed(move || {
        let passed = u64::try_from(start.elapsed().as_nanos()).unwrap();
        tidegate_core::Now::at(NOW.after(Span::from_nanos(passed)).unwrap())
    });
    let limiter =
        Limiter::new(policy.unwrap(), Memory::new(clock.clone()), Secret::new([7; 32]), clock);
    let app = app(RateLimitLayer::new(limiter.unwrap()));
    let calls = (0..20).map(|_| {
        let app = app.clone();
        tokio::spawn(
            async move { send(&app, request("203.0.113.7", Method::GET, "/200", &[])).await.0 },
        )
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), 200);
    }
    assert_eq!(start.elapsed().as_millis(), 1_900);
}

/// A service that does not configure where the peer address is limits all clients together, instead of none.
#[tokio::test]
async fn requests_without_a_peer_address_share_a_counter() {
    let (limiter, _) = limiter("rules: [{ name: a, key: [ip], limits: [1/h] }]");
    let app = app(RateLimitLayer::new(limiter));
    let without_peer = || Request::builder().uri("/200").body(Body::empty()).unwrap();
    assert_eq!(send(&app, without_peer()).await.0, 200);
    assert_eq!(send(&app, without_peer()).await.0, 429);
}

/// Applications clone a layer and adapt the clone for each route. While another clone was alive, every setter was silently
/// ignored, because it changed the settings only if nothing else held them. Here each setter is used on a clone whose original
/// is in use, and must change that clone only.
#[tokio::test]
async fn a_setter_on_a_clone_changes_the_clone_and_only_the_clone() {
    type Setter = fn(RateLimitLayer) -> RateLimitLayer;
    let peer: Setter = |layer| layer.peer(|_| Some([198, 51, 100, 1].into()));
    let attributes: Setter = |layer| {
        layer.attributes(|parts| {
            Attributes::new().with("ip", parts.headers["x-ip"].to_str().unwrap().to_owned())
        })
    };
    let cost: Setter = |layer| layer.cost(|_| 3);
    let failures: Setter = |layer| layer.failures(|status| status == 200);
    let max_wait: Setter = |layer| layer.max_wait(Span::ZERO);
    let limit_options: Setter = RateLimitLayer::limit_options;
    let skip: Setter = |layer| layer.skip(|parts| parts.uri.path() == "/200");
    let refusal: Setter = |layer| layer.refusal(|_, _| teapot());
    let headers: Setter = |layer| {
        layer.headers(HeaderStyle { legacy: Some(LegacyReset::Delta), ..HeaderStyle::default() })
    };
    let plain = "limits: [2/h]";
    let queue = "limits: [{ rate: 1/s, algorithm: leaky_bucket, queue: 9 }]";
    for (name, limits, setter, sees) in [
        ("peer", plain, peer, &[200, 200, 429][..]),
        ("attributes", plain, attributes, &[200, 200, 429]),
        ("cost", plain, cost, &[429]),
        ("failures", "limits: [2/h], count: failures", failures, &[200, 200, 429]),
        ("max_wait", queue, max_wait, &[200, 429]),
        ("limit_options", plain, limit_options, &[200, 200, 429]),
        ("skip", plain, skip, &[200, 200, 200, 200]),
        ("refusal", plain, refusal, &[200, 200, 418]),
        ("headers", plain, headers, &[200, 200, 429]),
    ] {
        let method = if name == "limit_options" { Method::OPTIONS } else { Method::GET };
        let fields = [("x-ip", "198.51.100.2"), PREFLIGHT[0], PREFLIGHT[1]];
        let ask = async |app: &Router, host: usize| {
            let peer = format!("203.0.113.{host}");
            send(app, request(&peer, method.clone(), "/200", &fields)).await
        };
        let (limiter, _) = limiter(&format!("rules: [{{ name: a, key: [ip], {limits} }}]"));
        let original = RateLimitLayer::new(limiter);
        let in_use = app(original.clone());
        let changed = app(setter(original.clone()));
        for (at, expected) in sees.iter().enumerate() {
            // The setters that replace the address see one client, whatever its real address is.
            let host = if matches!(name, "peer" | "attributes") { 10 + at } else { 9 };
            let (status, headers, _) = ask(&changed, host).await;
            assert_eq!(status, *expected, "{name}: request {at}");
            assert_eq!(headers.contains_key("x-ratelimit-limit"), name == "headers", "{name}");
        }
        let (status, headers, _) = ask(&in_use, 40).await;
        assert_eq!(
            (status.as_u16(), headers.contains_key("x-ratelimit-limit")),
            (200, false),
            "{name}"
        );
        drop(original);
    }
}

// === what the application decides ===

fn teapot() -> Response<&'static str> {
    let mut response = Response::new("short and stout");
    *response.status_mut() = StatusCode::IM_A_TEAPOT;
    response
}

#[tokio::test]
async fn the_application_writes_the_refusal_and_the_layer_adds_the_fields_that_are_missing() {
    let (limiter, _) = limiter("rules: [{ name: per-client, key: [ip], limits: [1/min] }]");
    let app = app(RateLimitLayer::new(limiter).refusal(|verdict, request| {
        let limits: Vec<&str> = verdict.refusing().map(|limit| limit.rule).collect();
        let mut response = teapot().map(|_| format!("{} {limits:?}", request.uri.path()));
        response.headers_mut().insert("retry-after", "90".parse().unwrap());
        response.headers_mut().insert("x-mine", "1".parse().unwrap());
        response
    }));
    let browser = [("origin", "https://shop.example")];
    let ask = || send(&app, request("203.0.113.7", Method::GET, "/200", &browser));
    assert_eq!(ask().await.0, 200);
    let (status, headers, body) = ask().await;
    assert_eq!((status.as_u16(), body.as_str()), (418, "/200 [\"per-client\"]"));
    for (name, value) in [
        ("retry-after", "90"), // its own, not that of the layer
        ("x-mine", "1"),
        ("ratelimit", "\"per-client\";r=0;t=60"),
        ("ratelimit-policy", "\"per-client\";q=1;w=60"),
        ("cache-control", "no-store"),
        ("access-control-expose-headers", "RateLimit, RateLimit-Policy, Retry-After"),
    ] {
        let values: Vec<_> = headers.get_all(name).iter().collect();
        assert_eq!(values, [value], "{name}");
    }
}

/// A refusal that the application builds from the default one has its fields already.
#[tokio::test]
async fn a_refusal_made_from_the_default_one_has_each_field_once() {
    let (limiter, _) = limiter("rules: [{ name: per-client, key: [ip], limits: [1/min] }]");
    let style = HeaderStyle { legacy: Some(LegacyReset::Delta), ..HeaderStyle::default() };
    let layer = RateLimitLayer::new(limiter).headers(style);
    let app = app(layer
        .refusal(move |verdict, _| tidegate::http::refusal(verdict, &style).map(|_| "slow down")));
    let ask = || send(&app, request("203.0.113.7", Method::GET, "/200", &[]));
    assert_eq!(ask().await.0, 200);
    let (status, headers, body) = ask().await;
    assert_eq!((status.as_u16(), body.as_str()), (429, "slow down"));
    for name in
        ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "retry-after", "cache-control"]
    {
        assert_eq!(headers.get_all(name).iter().count(), 1, "{name}");
    }
}

/// A gRPC client reads a status, and nothing of a page.
#[tokio::test]
async fn a_grpc_call_is_denied_as_grpc_whatever_the_application_answers_to_others() {
    let (limiter, _) = limiter("rules: [{ name: all, key: [], limits: [1/min] }]");
    let app = app(RateLimitLayer::new(limiter).refusal(|_, _| teapot()));
    let call = [("content-type", "application/grpc")];
    let ask = |method: Method, version: Version| {
        let mut request = request("203.0.113.7", method, "/200", &call);
        *request.version_mut() = version;
        send(&app, request)
    };
    ask(Method::POST, Version::HTTP_2).await;
    let (status, headers, body) = ask(Method::POST, Version::HTTP_2).await;
    assert_eq!((status.as_u16(), body.as_str()), (200, ""));
    assert_eq!(
        (&headers["grpc-status"], &headers["cache-control"]),
        (&"8".parse().unwrap(), &"no-store".parse().unwrap())
    );
    // A `GET` with the content type of gRPC once got this answer too: a success, which a cache stored in place of the page.
    for (method, version) in [
        (Method::GET, Version::HTTP_2),
        (Method::GET, Version::HTTP_11),
        (Method::POST, Version::HTTP_11),
    ] {
        let (status, headers, _) = ask(method, version).await;
        assert_eq!((status, headers.contains_key("grpc-status")), (teapot().status(), false));
        assert_eq!(headers["cache-control"], "no-store");
    }
}

#[tokio::test]
async fn head_and_method_overrides_are_subject_to_the_rules_on_the_method_that_they_stand_for() {
    let rule = |name: &str, method: &str| {
        format!("  - {{ name: {name}, match: {{ method: {method} }}, key: [ip], limits: [1/h] }}\n")
    };
    let rules = format!("rules:\n{}{}", rule("reads", "GET"), rule("deletes", "DELETE"));
    let (limiter, _) = limiter(&rules);
    let app = app(RateLimitLayer::new(limiter));
    let ask = |method: Method, fields: &[(&str, &str)]| {
        send(&app, request("203.0.113.7", method, "/200", fields))
    };
    let delete = [("x-http-method-override", "DELETE")];
    for expected in [200, 429] {
        assert_eq!(ask(Method::HEAD, &[]).await.0, expected);
        assert_eq!(ask(Method::POST, &delete).await.0, expected);
        assert_eq!(ask(Method::POST, &[]).await.0, 200);
    }
}

#[tokio::test]
async fn skipped_requests_are_neither_counted_nor_marked() {
    let (limiter, _) = limiter("rules: [{ name: all, key: [], limits: [1/h] }]");
    let layer = RateLimitLayer::new(limiter.clone());
    let app = app(layer.skip(|request| request.headers.contains_key("x-probe")));
    for _ in 0..5 {
        let probe = request("203.0.113.7", Method::GET, "/204", &[("x-probe", "1")]);
        let (status, headers, _) = send(&app, probe).await;
        assert_eq!((status.as_u16(), headers.contains_key("ratelimit")), (204, false));
    }
    assert_eq!(limiter.stats().rules[0].1.allowed, 0);
    for status in [200, 429] {
        let counted = request("203.0.113.7", Method::GET, "/200", &[]);
        assert_eq!(send(&app, counted).await.0, status);
    }
}

// === concurrency limits ===

/// A body that sends one frame, and ends when the test says so.
struct HeldBody {
    frame: Option<bytes::Bytes>,
    end: tokio::sync::oneshot::Receiver<()>,
}

impl http_body::Body for HeldBody {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        match self.frame.take() {
            Some(frame) => Poll::Ready(Some(Ok(http_body::Frame::data(frame)))),
            None => Pin::new(&mut self.end).poll(context).map(|_| None),
        }
    }
}

/// One request at a time. `/hold` answers with the body that the test left there, and `/never` does not answer.
fn one_at_a_time() -> (Router, Limiter, Arc<Mutex<Option<HeldBody>>>) {
    let (limiter, _) = limiter(
        "rules: [{ name: jobs, key: [], limits: [{ concurrent: 1 }] }, { name: logins, key: [], limits: [100/h], count: failures }]",
    );
    let bodies = Arc::<Mutex<Option<HeldBody>>>::default();
    let left = Arc::clone(&bodies);
    let hold = move || {
        let body = left.lock().unwrap().take().unwrap();
        async move { Response::new(Body::new(body)) }
    };
    let never = || async { std::future::pending::<String>().await };
    let routes = Router::new().route("/hold", get(hold)).route("/never", get(never));
    (routes.layer(RateLimitLayer::new(limiter.clone())), limiter, bodies)
}

/// How many permits are free.
fn free(limiter: &Limiter) -> u64 {
    let nothing = Attributes::new();
    let verdict = limiter.check_now(&Check::new(&nothing).cost(0)).unwrap();
    verdict.limits().next().unwrap().decision.remaining
}

#[tokio::test]
async fn a_permit_is_returned_when_the_body_has_ended_or_the_response_is_dropped() {
    let (app, limiter, bodies) = one_at_a_time();
    let get = |path| request("203.0.113.7", Method::GET, path, &[]);
    for is_read in [true, false] {
        let (end, ended) = tokio::sync::oneshot::channel();
        let body = HeldBody { frame: Some(bytes::Bytes::from("working")), end: ended };
        *bodies.lock().unwrap() = Some(body);
        let mut response = app.clone().oneshot(get("/hold")).await.unwrap();
        assert_eq!(response.headers()["ratelimit"], "\"jobs\";r=0, \"logins\";r=99;t=36");
        assert_eq!(free(&limiter), 0, "the head was sent, the body was not");
        let (status, headers, text) = send(&app, get("/hold")).await;
        assert_eq!(status, 429);
        assert_eq!(headers["retry-after"], "1");
        assert_eq!(
            headers["ratelimit-policy"],
            "\"jobs\";q=1;qu=\"concurrent-requests\", \"logins\";q=100;w=3600"
        );
        assert!(text.contains("jobs allows 1 at a time; try again in 1 s."), "{text}");
        let frame = response.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "working");
        assert_eq!(free(&limiter), 0, "the body has not ended");
        if is_read {
            end.send(()).unwrap();
            assert!(response.body_mut().frame().await.is_none());
            assert_eq!(free(&limiter), 1, "the body has ended");
        }
        drop(response);
        assert_eq!(free(&limiter), 1);
    }
}

#[tokio::test]
async fn a_permit_is_returned_when_the_request_is_cancelled() {
    let (app, limiter, _) = one_at_a_time();
    for _ in 0..10 {
        let mut call = call_without_end(&app);
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(call.as_mut().poll(&mut context).is_pending());
        assert_eq!(free(&limiter), 0);
        drop(call);
        assert_eq!(free(&limiter), 1);
    }
}

type Call = Pin<Box<dyn Future<Output = StatusCode> + Send>>;

fn call_without_end(app: &Router) -> Call {
    let (app, never) = (app.clone(), request("203.0.113.7", Method::GET, "/never", &[]));
    Box::pin(async move { send(&app, never).await.0 })
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_bounds_what_the_inner_service_has_and_gives_back_what_is_shed() {
    let (limiter, _) = limiter("rules: [{ name: all, key: [], priority: low, limits: [10/h] }]");
    let settings = SchedulerSettings { limit: Some(4), ..SchedulerSettings::default() };
    let scheduler = Scheduler::new(settings).unwrap();
    let app = app(RateLimitLayer::new(limiter).scheduled_by(scheduler.clone()));
    let one = || request("203.0.113.7", Method::GET, "/200", &[]);
    // A response whose body has not ended holds its seat.
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(app.clone().oneshot(one()).await.unwrap());
    }
    for _ in 0..20 {
        let (status, headers, body) = send(&app, one()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(headers["retry-after"], "1");
        assert!(body.contains("#temporary-reduced-capacity"), "{body}");
    }
    held.truncate(3);
    let (status, headers, _) = send(&app, one()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(headers["ratelimit"].to_str().unwrap().contains("r=5"), "{headers:?}");
    drop(held);
    let in_flight: usize = scheduler.reading().classes.iter().map(|class| class.in_flight).sum();
    assert_eq!(in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_seat_is_served_when_one_is_free() {
    let (limiter, _) = limiter("rules: [{ name: all, key: [], priority: high, limits: [10/h] }]");
    let settings = SchedulerSettings { limit: Some(4), ..SchedulerSettings::default() };
    let scheduler = Scheduler::new(settings).unwrap();
    let app = app(RateLimitLayer::new(limiter).scheduled_by(scheduler));
    let one = || request("203.0.113.7", Method::GET, "/200", &[]);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(app.clone().oneshot(one()).await.unwrap());
    }
    let waiting = send(&app, one());
    let ((status, ..), ()) = tokio::join!(waiting, async { held.truncate(3) });
    assert_eq!(status, StatusCode::OK);
}
