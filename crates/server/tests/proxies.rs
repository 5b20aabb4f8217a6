//! Forward auth with real proxies, configured by the files of `docs/proxies`.
//!
//! Every test runs with nginx, Caddy and `HAProxy`. The policy is `docs/proxies/policy.yaml`: five logins a minute
//! for each address, and 15 requests a second to `/api`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::support;

use crate::support::proxy;

use proxy::{Client, Page, Proxy, Site, WhenDown};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Reply, Server, request};

macro_rules! behind_every_proxy {
    ($($law:ident),* $(,)?) => {
        mod nginx { $(#[test] fn $law() { super::$law(super::Proxy::Nginx); })* }
        mod caddy { $(#[test] fn $law() { super::$law(super::Proxy::Caddy); })* }
        mod haproxy { $(#[test] fn $law() { super::$law(super::Proxy::Haproxy); })* }
    };
}

behind_every_proxy![
    what_is_within_the_limit_passes_and_what_is_over_it_does_not,
    a_client_is_who_it_is,
    a_path_is_the_same_however_it_is_spelled,
    no_spelling_of_a_path_escapes_its_rule,
    a_cookie_with_different_values_does_not_pass,
    a_method_override_does_not_escape_the_rule_on_its_method,
    the_site_gets_tidegates_fields_and_not_those_of_the_client,
    what_the_site_says_itself_stays,
    bodies_queries_and_websockets_pass,
    connections_to_tidegate_are_kept,
    without_tidegate_nothing_passes,
    without_tidegate_everything_passes_if_that_is_wanted,
    nobody_waits_long_for_a_tidegate_that_does_not_answer,
];

fn closed(proxy: Proxy) -> Site {
    Site::start(proxy, WhenDown::Closed)
}

/// Uses up the logins of a client.
fn used_up(site: &Site, client: &Client) {
    for _ in 0..5 {
        assert_eq!(client.get("/login").status, 200);
    }
    assert_eq!(site.upstream.saw(), ["GET /login"; 5]);
    assert_eq!(client.get("/login").status, 429);
}

/// How much is left, according to an answer.
fn left(reply: &Reply) -> Option<u64> {
    let left = reply.field("ratelimit")?.split(";r=").nth(1)?.split(';').next()?;
    left.parse().ok()
}

fn what_is_within_the_limit_passes_and_what_is_over_it_does_not(proxy: Proxy) {
    let site = closed(proxy);
    let client = site.client(2);
    for expected in [4, 3, 2, 1, 0] {
        let reply = client.get("/login");
        assert_eq!((reply.status, left(&reply)), (200, Some(expected)), "{reply:?}");
        assert_eq!(reply.field("ratelimit-policy"), Some("\"login\";q=5;w=60"));
        assert_eq!(reply.body, "the site saw GET /login");
    }
    assert_eq!(site.upstream.saw(), ["GET /login"; 5]);
    let refused = client.get("/login");
    assert_eq!((refused.status, left(&refused)), (429, Some(0)), "{refused:?}");
    assert_eq!(refused.field("ratelimit-policy"), Some("\"login\";q=5;w=60"));
    assert_eq!(refused.field("cache-control"), Some("no-store"));
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{refused:?}");
    assert!(site.upstream.saw().is_empty());

    assert_eq!(site.client(3).get("/login").status, 200);
    let free = client.get("/");
    assert_eq!((free.status, free.field("ratelimit")), (200, None), "{free:?}");
}

/// Whatever header fields a client sends, it is counted by its own address and by the path that it really requests.
fn a_client_is_who_it_is(proxy: Proxy) {
    let site = closed(proxy);
    let client = site.client(2);
    used_up(&site, &client);
    for (path, lines) in [
        ("/login", "x-forwarded-for: 203.0.113.7\r\n"),
        ("/login", "x-forwarded-for: 203.0.113.7\r\nx-forwarded-for: 203.0.113.8\r\n"),
        ("/login", "forwarded: for=203.0.113.7\r\nx-real-ip: 203.0.113.7\r\n"),
        ("/login", "x-forwarded-uri: /\r\nx-forwarded-method: GET\r\n"),
        ("/login", "x-original-uri: /\r\nx-original-method: GET\r\n"),
        ("/login", "x-original-url: http://site.example/\r\n"),
        ("/login", "x-rewrite-url: /\r\nx-http-method-override: DELETE\r\n"),
        ("/login", "connection: x-forwarded-for, x-forwarded-uri, x-forwarded-method\r\n"),
        // The proxy asks tidegate with another path; the client's query must not become part of it.
        ("/login?profile=nginx", "x-original-uri: /\r\nx-original-method: GET\r\n"),
    ] {
        let reply = client.get_with(path, lines);
        assert_eq!(reply.status, 429, "{path} {lines} {reply:?}");
    }
    assert!(site.upstream.saw().is_empty());

    let other = site.client(3);
    for lines in [
        "x-forwarded-for: 127.0.0.2\r\n",
        "x-original-uri: /login\r\nx-original-method: GET\r\n",
        "x-forwarded-uri: /login\r\nx-forwarded-method: GET\r\n",
    ] {
        assert_eq!(other.get_with("/", lines).status, 200);
    }
    assert_eq!(site.upstream.saw(), ["GET /"; 3]);
    used_up(&site, &other);
}

fn a_path_is_the_same_however_it_is_spelled(proxy: Proxy) {
    let site = closed(proxy);
    let client = site.client(2);
    used_up(&site, &client);
    for path in
        ["//login", "/./login", "/x/../login", "/%6cogin", "/login/", "/login?x", "/login;x=1"]
    {
        assert_eq!(client.get(path).status, 429, "{path}");
    }
    let absolute = "GET http://site.example/login HTTP/1.1\r\nhost: site.example\r\n\r\n";
    assert_eq!(client.send(absolute).status, 429);
    for path in ["/%256cogin", "/login%00", "/login%"] {
        assert_eq!(client.get(path).status, 400, "{path}");
    }
    // nginx passes it on unchanged, Caddy writes `%23`, and HAProxy refuses it.
    let fragment = client.get("/#/../login").status;
    assert!(matches!(fragment, 400 | 429), "{fragment}");
    assert!(site.upstream.saw().is_empty());
}

/// Spellings that Tomcat, Node, Express, Koa, Fastify, nginx, Flask or Django were observed to route to `/login`
/// (recorded in `crates/policy/tests/servers.rs`), and some that another server might.
const LOGINS: [&str; 33] = [
    "/login",
    "/login/",
    "/LOGIN",
    "/Login",
    "/%6cogin",
    "/%6C%4FGIN",
    "/login;x=1",
    "/login;%5c..%5c..%5cx",
    "/login;%2f..%2f..%2fx",
    "/login;\\..\\..\\x",
    "/login%3b/../x/../login",
    "/x;/../login",
    "/x/..;/login",
    "/x/../login",
    "/x/%2e%2e/login",
    "/x%2fy/../login",
    "/x%5cy/../login",
    "/x\\y/../login",
    "/x\\..\\login",
    "/x%5c..%5clogin",
    "/x%2f..%2flogin",
    "//login",
    "//h/login",
    "///h/login",
    "/\\h/login",
    "//h:80/x/../login",
    "//h/x%2fy/../LOGIN;z",
    "/x//../login",
    "/x//../../login",
    "/./login",
    "/login/.",
    "/login/x/..",
    "/login%2fx%2f..",
];

/// Spellings of paths below `/api`.
const CALLS: [&str; 17] = [
    "/api/x",
    "/API/x",
    "/%61pi/x",
    "//h/api/x",
    "/api%2fx",
    "/api;v=1/x",
    "/api/search/..%5c..%5c..%5cz",
    "/api/search/..%2f..%2f..%2fz",
    "/api/files/../../../z",
    "/api/files/%2e%2e/%2e%2e/%2e%2e/z",
    "/api/x\\..\\..\\z",
    "/api/x/..;/..;/z",
    "/z/..%2fapi/x",
    "/z%2f../api/x",
    "/api//../../z",
    "/api;%2f..%2f../z",
    "/api/%2e%2e%5c..%5c%2e%2e/z",
];

/// Once, after `/login` was refused, 30 of 30 such requests passed behind each of these proxies: tidegate read paths
/// in one way, and servers read them in several. The site must see none of them when the limit is used up.
fn no_spelling_of_a_path_escapes_its_rule(proxy: Proxy) {
    let policy = std::fs::read_to_string(support::project("docs/proxies/policy.yaml")).unwrap();
    let policy = policy.replace("limits: [15/s]", "limits: [15/h]").replace("5/min", "5/h");
    let site = Site::start_with(proxy, &policy);
    let client = site.client(2);
    used_up(&site, &client);
    for _ in 0..15 {
        assert_eq!(client.get("/api/x").status, 200);
    }
    assert_eq!(site.upstream.saw().len(), 15);
    let spellings = || LOGINS.iter().chain(&CALLS).copied();
    let passed = |path: &&str| !matches!(client.get(path).status, 400 | 429);
    assert_eq!(spellings().filter(passed).collect::<Vec<_>>(), [""; 0]);
    assert!(site.upstream.saw().is_empty());

    // They do not pass either if the policy refuses paths with several readings.
    let site = Site::start_with(proxy, &policy.replace("paths: {", "paths: { ambiguous: reject,"));
    let client = site.client(2);
    for path in spellings().filter(|path| path.contains(['\\', ';', '%']) || path.contains("..")) {
        assert_eq!(client.get(path).status, 400, "{path}");
    }
    assert!(site.upstream.saw().is_empty());
    assert_eq!(client.get("/login").status, 200);
}

/// A session must be one customer, however often a client sends its cookie, and with whatever values. Some frameworks
/// use the first value, some the last.
fn a_cookie_with_different_values_does_not_pass(proxy: Proxy) {
    let policy = "
version: 1
identity: { trusted: [127.0.0.1/32], session: 'cookie:sid' }
rules: [{ name: a, key: [session|ip], limits: [1/h] }]
";
    let site = Site::start_with_cookies(proxy, policy);
    let client = site.client(2);
    for (lines, expected) in [
        ("cookie: sid=REAL\r\n", 200),
        ("cookie: sid=REAL\r\n", 429),
        ("cookie: a=1; sid=REAL; a=2\r\n", 429),
        ("cookie: sid=REAL; sid=REAL\r\n", 429),
        ("cookie: sid=REAL; sid=7\r\n", 400),
        ("cookie: sid=7; sid=REAL\r\n", 400),
        ("cookie: sid=REAL\r\ncookie: sid=8\r\n", 400),
        ("cookie: sid=9\r\ncookie: sid=REAL\r\n", 400),
        ("cookie: sid=; sid=REAL\r\n", 400),
        ("cookie: sid=OTHER\r\n", 200),
    ] {
        assert_eq!(client.get_with("/", lines).status, expected, "{lines}");
    }
    assert_eq!(site.upstream.saw().len(), 2);
}

/// The files pass to tidegate what frameworks behind the proxy read.
fn a_method_override_does_not_escape_the_rule_on_its_method(proxy: Proxy) {
    let policy = "
version: 1
identity: { trusted: [127.0.0.1/32] }
rules: [{ name: deletes, match: { method: DELETE }, key: [], limits: [1/h] }]
";
    let site = Site::start_with(proxy, policy);
    let client = site.client(2);
    let send = |line: &str, fields: &str| {
        let text =
            format!("{line} HTTP/1.1\r\nhost: site.example\r\n{fields}content-length: 0\r\n\r\n");
        client.send(&text).status
    };
    assert_eq!(send("DELETE /a", ""), 200);
    for name in ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"] {
        assert_eq!(send("POST /a", &format!("{name}: DELETE\r\n")), 429, "{name}");
        // Of repeated fields, what the site gets is what tidegate was asked about.
        site.upstream.saw();
        let repeated = format!("{name}: PUT\r\n{name}: DELETE\r\n");
        let passed = send("POST /a", &repeated) == 200;
        let got = site.upstream.fields(&name.to_lowercase());
        assert!(!passed || got.iter().all(|(_, value)| !value.contains("DELETE")), "{got:?}");
    }
    assert_eq!(send("POST /a?_method=DELETE", ""), 429);
    assert_eq!(send("POST /a", ""), 200);
}

/// What a client may write itself. Some proxies remove fields that `Connection` names. The class is one that tidegate believes if the proxy passes it on. Programs that follow the
/// rules of CGI cannot tell an underscore from a hyphen.
const FORGED: &str = "Tidegate-Flags: forged\r\nTIDEGATE-RECEIPT: forged\r\ntidegate-receipt: forged\r\n\
    tidegate-priority: critical\r\ntidegate-over: forged\r\ntidegate_flags: forged\r\n\
    connection: keep-alive, Tidegate-Flags, tidegate-receipt\r\n";

/// The files once passed a client's own `Tidegate-Flags` and `Tidegate-Receipt` on to the site, and dropped those of tidegate.
/// So a client could pretend that it needs no challenge, and the site could not report an outcome.
fn the_site_gets_tidegates_fields_and_not_those_of_the_client(proxy: Proxy) {
    let policy = "
version: 1
identity: { trusted: [127.0.0.1/32] }
rules:
  - { name: flagged, match: { path: /login }, key: [ip], limits: [1/h], on_limit: { flag: challenge } }
  - { name: later, match: { path: /login }, key: [ip], limits: [1/h], on_limit: { deprioritize: low } }
  - { name: softly, match: { path: /login }, key: [ip], limits: [1/h], mode: { soft: 900% } }
  - { name: failures, match: { path: /login }, key: [ip], limits: [9/h], count: failures }
";
    let site = Site::start_with(proxy, policy);
    let names = ["flags", "priority", "over", "receipt"];
    let told = |path: &str| {
        assert_eq!(site.client(2).get_with(path, FORGED).status, 200);
        site.upstream.fields("tidegate")
    };
    assert_eq!(told("/"), []);
    let [(name, receipt)] = told("/login").try_into().unwrap();
    assert_eq!(name, "tidegate-receipt");
    let body = format!(r#"{{"receipt":"{receipt}","outcome":"success"}}"#);
    let settled = site.tidegate.post("/v1/report", &body);
    assert_eq!(settled.status, 200, "{settled:?}");

    let mut second = told("/login");
    second.sort_by_key(|(name, _)| names.iter().position(|known| name.ends_with(known)));
    let [flags, priority, over, (name, receipt)] = second.try_into().unwrap();
    for (field, expected) in [
        (flags, ("tidegate-flags", "challenge")),
        (priority, ("tidegate-priority", "low")),
        (over, ("tidegate-over", "softly")),
    ] {
        assert_eq!((field.0.as_str(), field.1.as_str()), expected);
    }
    assert!(name == "tidegate-receipt" && receipt != "forged", "{name}: {receipt}");
}

fn what_the_site_says_itself_stays(proxy: Proxy) {
    let site = closed(proxy);
    let forbidden = site.client(2).get("/forbidden");
    assert_eq!(
        (forbidden.status, forbidden.body.as_str()),
        (403, "the site saw GET /forbidden"),
        "{forbidden:?}"
    );
    assert_eq!(forbidden.field("retry-after"), None);
}

/// Requests with properties that could disturb the question to tidegate.
fn bodies_queries_and_websockets_pass(proxy: Proxy) {
    let site = closed(proxy);
    let client = site.client(2);
    let body = "x".repeat(100);
    let whole = client.send(&format!(
        "POST /api/a HTTP/1.1\r\nhost: site.example\r\ncontent-length: 100\r\n\r\n{body}"
    ));
    assert_eq!(whole.body, format!("the site saw POST /api/a {body}"));
    let chunks = client.send(
        "POST /api/b HTTP/1.1\r\nhost: site.example\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert_eq!((chunks.status, left(&chunks).is_some()), (200, true), "{chunks:?}");
    let saw = site.upstream.saw();
    assert!(saw.len() == 2 && saw.last().unwrap().contains("abc"), "{saw:?}");

    let query = client.get("/api/c?profile=alice");
    assert_eq!(query.body, "the site saw GET /api/c?profile=alice", "{query:?}");
    let websocket = client.get_with(
        "/api/d",
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    );
    assert_eq!(websocket.body, "the site saw GET /api/d", "{websocket:?}");
    if proxy != Proxy::Nginx {
        assert_eq!(site.upstream.fields("upgrade").len(), 1);
    }
}

fn connections_to_tidegate_are_kept(proxy: Proxy) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let site =
        Site::start_through(proxy, WhenDown::Closed, |tidegate| proxy::counted(tidegate, counter));
    let client = site.client(2);
    for _ in 0..10 {
        assert_eq!(client.get("/api/a").status, 200);
    }
    let connections = asked.load(Ordering::Relaxed);
    assert!((1..=2).contains(&connections), "{connections} connections for 10 requests");
}

fn without_tidegate_nothing_passes(proxy: Proxy) {
    let mut site = closed(proxy);
    assert_eq!(site.client(2).get("/api/a").status, 200);
    site.lose_tidegate();
    site.upstream.saw();
    let expected = match proxy {
        Proxy::Nginx | Proxy::Haproxy => 503,
        Proxy::Caddy | Proxy::CaddyInShort => 502,
    };
    for _ in 0..3 {
        assert_eq!(site.client(2).get("/api/a").status, expected);
    }
    assert!(site.upstream.saw().is_empty());
}

fn without_tidegate_everything_passes_if_that_is_wanted(proxy: Proxy) {
    let mut site = Site::start(proxy, WhenDown::Open);
    let client = site.client(2);
    // While tidegate is running, it decides; a request that it cannot read does not pass.
    used_up(&site, &client);
    assert_eq!(client.get("/%256cogin").status, 400);
    let large = format!("x: {}\r\n", "x".repeat(4_000)).repeat(240);
    assert!(matches!(client.get_with("/login", &large).status, 400 | 431));
    assert!(site.upstream.saw().is_empty());

    site.lose_tidegate();
    for _ in 0..3 {
        assert_eq!(client.get("/login").status, 200);
    }
    assert_eq!(site.upstream.saw(), ["GET /login"; 3]);
}

fn nobody_waits_long_for_a_tidegate_that_does_not_answer(proxy: Proxy) {
    let expected = match proxy {
        Proxy::Nginx | Proxy::Haproxy => 503,
        Proxy::Caddy | Proxy::CaddyInShort => 504,
    };
    for (down, expected) in [(WhenDown::Closed, expected), (WhenDown::Open, 200)] {
        let site = Site::start(proxy, down);
        site.stop_tidegate();
        assert_eq!(site.client(2).get("/api/a").status, expected, "{down:?}");
    }
}

/// `connections-per-source` once counted a proxy as one client. When one client sent 1,200 requests together, Caddy
/// asked about each on a separate connection, and 200 of these connections were refused. Caddy takes that for a
/// server that is down, so it let everything pass: those requests, and the requests of all other clients for five
/// seconds.
#[test]
fn one_client_with_many_connections_does_not_switch_the_limit_off() {
    const TOGETHER: usize = 1_200;
    raise_file_limit(); // four files per connection, three of them in this process
    let site = Site::start_patient(Proxy::Caddy, WhenDown::Open, |tidegate| {
        proxy::gathered(tidegate, TOGETHER)
    });
    let client = site.client(2);
    let login = "GET /login HTTP/1.1\r\nhost: site.example\r\nconnection: close\r\n\r\n";
    let replies = client.send_together(login, TOGETHER);
    let with = |status: u16| replies.iter().filter(|reply| reply.status == status).count();
    assert_eq!((with(200), with(429)), (5, TOGETHER - 5));
    assert_eq!(site.upstream.saw(), ["GET /login"; 5]);
    assert_eq!(client.get("/login").status, 429);
    used_up(&site, &site.client(3));
}

/// Raises the limit of open files as far as the system allows.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

// === the other configurations of the page ===

#[test]
fn caddy_in_short_limits_as_well() {
    a_client_is_who_it_is(Proxy::CaddyInShort);
    a_path_is_the_same_however_it_is_spelled(Proxy::CaddyInShort);
    let site = closed(Proxy::CaddyInShort);
    assert_eq!(site.client(2).get_with("/login", FORGED).status, 200);
    assert_eq!(site.upstream.fields("tidegate"), []);
    no_spelling_of_a_path_escapes_its_rule(Proxy::CaddyInShort);
    without_tidegate_nothing_passes(Proxy::CaddyInShort);
}

#[test]
fn the_page_quotes_the_policy() {
    let policy = std::fs::read_to_string(support::project("docs/proxies/policy.yaml")).unwrap();
    assert_eq!(Page::quoted("proxies.md", "yaml").text, policy);
}

// === Traefik ===

/// There is no package of Traefik, so this test sends what Traefik sends: the client's fields, with Traefik's own in
/// place of those that it sets.
#[test]
fn traefik_asks_in_its_own_words() {
    let policy = std::fs::read_to_string(support::project("docs/proxies/policy.yaml")).unwrap();
    let server = Server::with_policy(&policy, &[]);
    let asked = |client: &str, uri: &str| {
        let fields = [
            ("User-Agent", "curl/7.88.1"),
            ("Accept", "*/*"),
            ("X-Original-Uri", "/"),
            ("X-Forwarded-Method", "GET"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "site.example"),
            ("X-Forwarded-Uri", uri),
            ("X-Forwarded-For", client),
        ];
        request(server.http, "GET", "/v1/auth", &fields, "")
    };
    for expected in [4, 3, 2, 1, 0] {
        let passed = asked("203.0.113.7", "/login?next=%2F");
        assert_eq!((passed.status, left(&passed)), (200, Some(expected)));
    }
    // Traefik passes the answer to the client unchanged.
    let refused = asked("203.0.113.7", "/login");
    assert_eq!((refused.status, left(&refused)), (429, Some(0)));
    assert!(refused.field("retry-after").is_some(), "{refused:?}");
    assert_eq!(refused.json()["violated-policies"][0], "login");

    assert_eq!(left(&asked("2001:db8::7", "/login")), Some(4));
    assert_eq!(left(&asked("2001:db8::8", "/login")), Some(3), "one /64 is one client");
}
