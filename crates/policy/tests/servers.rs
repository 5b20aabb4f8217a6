//! How real servers read paths, and that no spelling of a path escapes a rule because of it.
//!
//! Each server had three routes: `/login`, everything below `/api`, and a catch-all. Every spelling was sent exactly as written
//! here, on a connection of its own, and the route that answered was recorded. To add a server, record its routes in the same
//! way: a row that makes a test fail is a way around a limit.
//!
//! Axum is a dependency of this project, so it is run and not recorded: `crates/limiter/tests/paths.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use crate::readers;

use readers::READERS;
use tidegate_policy::{Attributes, Policy};

/// The columns of the table, with the versions that were observed.
const SERVERS: [&str; 11] = [
    "Tomcat 10.1.60",
    "Tomcat 10.1.60 with allowBackslash, encodedSolidusHandling and encodedReverseSolidusHandling: decode",
    "nginx 1.22.1, exact and prefix locations",
    "Node 20.20.2, `new URL(request.url, base).pathname`",
    "Node 20.20.2, the same decoded",
    "Express 4.22.3",
    "Express 5.3.0",
    "Koa 3.2.1 with @koa/router 15.7.0",
    "Fastify 5.12.8",
    "Flask 3.1.3 on gunicorn 27.0.0",
    "Django 5.2.19 on gunicorn 27.0.0",
];

/// `L`: the route of `/login`. `A`: the route of `/api`. `o`: the catch-all. `-`: the server refused the request.
const OBSERVED: [(&str, &str); 51] = [
    ("/login", "LLLLLLLLLLL"),
    ("/login/", "ooLooLLLooo"),
    ("/LOGIN", "oooooLLLooo"),
    ("/%6cogin", "LLLoLoooLLL"),
    ("/login;x=1", "LLooooooooo"),
    ("/login%3bx", "ooooooooooo"),
    ("/login;%5c..%5c..%5cx", "LLooooooooo"),
    ("/login;%2f..%2f..%2fx", "LL-oooooooo"),
    ("/login;\\..\\..\\x", "LLooooooooo"),
    ("/login;/../x", "ooooooooooo"),
    ("/x;/../login", "LLLLLoooooo"),
    ("/x/..;/login", "LLooooooooo"),
    ("/x/../login", "LLLLLoooooo"),
    ("/x/%2e%2e/login", "LLLLLoooooo"),
    ("/x%2fy/../login", "-ooLLoooooo"),
    ("/x%5cy/../login", "-oLLLoooooo"),
    ("/x\\y/../login", "-oLoooooooo"),
    ("/x\\..\\login", "-LoLLoooooo"),
    ("/x%5c..%5clogin", "-Looooooooo"),
    ("/x%2f..%2flogin", "-LLoooooooo"),
    ("//login", "LLLooooooLo"),
    ("//h/login", "oooLLoooooo"),
    ("///h/login", "oooLLoooooo"),
    ("/\\h/login", "-ooLLoooooo"),
    ("//h:80/x/../login", "oooLLoooooo"),
    ("//h/api/x", "oooAAoooooo"),
    ("/x//../login", "LLLoooooooo"),
    ("/x//../../login", "---LLoooooo"),
    ("/./login", "LLLLLoooooo"),
    ("/login/.", "LLLoooooooo"),
    ("/login%2f", "-oLoooooooo"),
    ("/login%5c", "-oooooooooo"),
    ("/login/x/..", "LLLoooooooo"),
    ("/login%2fx%2f..", "-LLoooooooo"),
    ("/login;x/../..", "---oooooooo"),
    ("/api/search/..%5c..%5c..%5cz", "--AAAAAAAAA"),
    ("/api/search/..%2f..%2f..%2fz", "---AAAAAAAA"),
    ("/api/files/../../../z", "---ooAAAAAA"),
    ("/api/files/%2e%2e/%2e%2e/%2e%2e/z", "---ooAAAAAA"),
    ("/api/x\\..\\..\\z", "-oAooAAAAAA"),
    ("/api%2fx", "-AAoAooooAA"),
    ("/api;v=1/x", "AAooooooooo"),
    ("/API/x", "oooooAAAooo"),
    ("/api/x/..;/..;/z", "ooAAAAAAAAA"),
    ("/z/..%2fapi/x", "-AAoooooooo"),
    ("/z%2f../api/x", "-AAoooooooo"),
    ("/api//../../z", "---ooAAAAoA"),
    ("/login%20", "ooooooooooo"),
    ("/login.", "ooooooooooo"),
    ("/login#x", "--LLLLLLLLL"),
    ("/#/../login", "--ooooooooo"),
];

fn policy(paths: &str, stop: bool) -> Policy {
    Policy::parse(format!(
        "
version: 1
paths: {paths}
rules:
  - {{ name: login, match: {{ path: /login }}, key: [ip], limits: [5/min], stop: {stop} }}
  - {{ name: api, match: {{ path: /api/** }}, key: [ip], limits: [5/min], stop: {stop} }}
  - {{ name: rest, key: [ip], limits: [5/s] }}
"
    ))
    .unwrap()
}

/// The rules that apply to a path; `None` if the path is refused.
fn applying(policy: &Policy, path: &str) -> Option<Vec<String>> {
    let request = Attributes::new().with("ip", "203.0.113.7").unwrap().with("path", path).ok()?;
    Some(policy.applying(&request, 1).map(|(rule, _)| rule.name().to_owned()).collect())
}

/// Every observation: the spelling, the server, and the rule for the route that it took, if there is one.
fn observations() -> impl Iterator<Item = (&'static str, &'static str, Option<&'static str>)> {
    OBSERVED.into_iter().flat_map(|(path, routes)| {
        assert_eq!(routes.len(), SERVERS.len(), "{path}");
        let seen = routes.chars().zip(SERVERS).filter(|(route, _)| *route != '-');
        seen.map(move |(route, server)| match route {
            'L' => (path, server, Some("login")),
            'A' => (path, server, Some("api")),
            'o' => (path, server, None),
            other => panic!("{other}"),
        })
    })
}

#[test]
fn a_rule_applies_whenever_a_server_takes_its_route() {
    let policy = policy("{ case_insensitive: true }", false);
    for (path, server, route) in observations() {
        let rules = applying(&policy, path).unwrap();
        if let Some(rule) = route {
            assert!(rules.iter().any(|name| name == rule), "{path} on {server}: {rules:?}");
        }
    }
    assert_eq!(observations().filter(|(.., route)| route.is_some()).count(), 168);
}

/// Without `case_insensitive`, a rule about `/login` or `/api` does not apply to paths with `LOGIN` or `API`.
#[test]
fn case_counts_unless_the_policy_says_otherwise() {
    let policy = policy("{}", false);
    for (path, server, route) in observations() {
        let capitals = path.contains("LOGIN") || path.contains("API");
        let rules = applying(&policy, path).unwrap();
        if let Some(rule) = route {
            assert_eq!(rules.iter().any(|name| name == rule), !capitals, "{path} on {server}");
        }
    }
}

/// A rule with `stop` exempts requests from the rules after it, so it must not stop a request that some server routes
/// elsewhere. Slashes at the end and empty segments do not count here, as DESIGN.md of the crate says.
#[test]
fn a_rule_stops_only_if_every_server_takes_its_route() {
    let policy = policy("{}", true);
    for (path, server, route) in observations() {
        let rules = applying(&policy, path).unwrap();
        let elsewhere = |rule: &str| route != Some(rule) && rules.iter().any(|name| name == rule);
        let only_slashes = ["/login/"].contains(&path);
        if (elsewhere("login") || elsewhere("api")) && !only_slashes {
            assert!(rules.iter().any(|name| name == "rest"), "{path} on {server}: {rules:?}");
        }
    }
}

/// Paths that browsers, package managers and code hosting sites use must not be refused, nor be counted by rules for other
/// paths.
#[test]
fn ordinary_paths_have_one_reading() {
    for path in [
        "/",
        "/login",
        "/login/",
        "/a b",
        "/gr%C3%B6%C3%9Fe/a%20b",
        "/größe",
        "/.well-known/security.txt",
        "/a/..b/c..",
        "/x/...",
        "/a:b@c,d=e+f!g$h&i'j(k)*",
        "/wiki/C%2B%2B",
        "/100%25",
        "/search?q=../..;%2f%5c//",
    ] {
        let request = Attributes::new().with("path", path).unwrap();
        assert!(!request.is_ambiguous(), "{path}");
    }
    // These have two readings, and both are checked: by default, nothing is refused.
    for (path, rule) in [
        ("/projects/group%2Fproject", "/projects/*"),
        ("/projects/group%2Fproject", "/projects/group/project"),
        ("/@scope%2Fname", "/*"),
        ("/cars;color=red", "/cars"),
    ] {
        let policy = Policy::parse(format!(
            "{{ version: 1, rules: [{{ name: a, match: {{ path: '{rule}' }}, key: [], limits: [1/s] }}] }}"
        ));
        assert_eq!(applying(&policy.unwrap(), path), Some(vec!["a".to_owned()]), "{path} {rule}");
    }
}

/// The functions in `readers` do what the servers were seen to do, so they may judge spellings that were not recorded.
#[test]
fn the_readers_do_what_the_servers_did() {
    for (path, routes) in OBSERVED {
        for reader in READERS {
            let route = match reader.route(path).as_deref() {
                None => '-',
                Some("/login") => 'L',
                Some(path) if path == "/api" || path.starts_with("/api/") => 'A',
                Some(_) => 'o',
            };
            let seen = routes.chars().nth(reader.column).unwrap();
            assert_eq!(route, seen, "{path} on {}", SERVERS[reader.column]);
        }
    }
}
