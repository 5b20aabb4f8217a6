//! What clients send to get past a limit, through an Envoy that fails open.
//!
//! Such an Envoy lets a request pass when its limiter answers with an error. A banned client sent a header field of
//! 33,000 bytes, or one with the byte `\xff`, or used a route with 17 actions: tidegate answered each with an error,
//! and the client passed. Nothing that a client can send may cause an error.

use super::mesh::{Mesh, Setup};

/// Header fields that Envoy turns into descriptors, besides the one that is banned. An absent field adds none.
const ROUTE: &str = "                        - match: { prefix: /banned }
                          route:
                            cluster: shop
                            rate_limits:
                              - actions: [{ request_headers: { header_name: customer, descriptor_key: banned } }]
                              - actions: [{ request_headers: { header_name: agent, descriptor_key: agent } }]
                              - actions: [{ request_headers: { header_name: agent, descriptor_key: again } }]
                              - actions: [{ request_headers: { header_name: ':path', descriptor_key: path } }]
                              - actions: [{ request_headers: { header_name: verb, descriptor_key: method } }]
                              - actions: [{ request_headers: { header_name: address, descriptor_key: ip } }]
                              - actions: [{ request_headers: { header_name: site, descriptor_key: domain } }]
                              - actions:
                                  - request_headers: { header_name: user, descriptor_key: user }
                                  - request_headers: { header_name: other-user, descriptor_key: user, skip_if_absent: true }
                              - actions:
                                  - header_value_match:
                                      descriptor_key: matched
                                      descriptor_value: matched
                                      headers: [{ name: agent, present_match: true }]
                              - actions: [{ remote_address: {} }]
                              - actions: [{ masked_remote_address: {} }]
                        - match: { prefix: /numerous }
                          route:
                            cluster: shop
                            rate_limits:
                              - actions: [{ request_headers: { header_name: customer, descriptor_key: banned } }]
NUMEROUS";

/// Rule files: every client that is named is banned, and everything else has a counter.
const RULES: &str = "
domain: shop
descriptors:
  - { key: banned, rate_limit: { unit: day, requests_per_unit: 0 } }
  - { key: agent, rate_limit: { unit: day, requests_per_unit: 1000000 } }
  - { key: path, rate_limit: { unit: day, requests_per_unit: 1000000 } }
  - { key: number, rate_limit: { unit: day, requests_per_unit: 1000000 } }
";

/// The limits of `RULES` as a policy, which reads every attribute that a client can choose.
const POLICY: &str = "
  - { name: ban, key: [banned], limits: [{ rate: 0/day, block: true }] }
  - { name: agents, key: [agent], limits: [1000000/day] }
  - { name: paths, match: { path: /banned/** }, key: [], limits: [1000000/day] }
  - { name: methods, match: { method: GET }, key: [ip], limits: [1000000/day] }
  - { name: users, key: [user], limits: [1000000/day] }
  - { name: numbers, key: [number], limits: [1000000/day] }
";

/// Many descriptors and entries: 40 counters, and a descriptor of 40 entries.
fn numerous() -> String {
    let action = |number: usize| {
        format!("{{ generic_key: {{ descriptor_key: number, descriptor_value: n{number} }} }}")
    };
    let indent = " ".repeat(30);
    let each: String = (0..40).map(|n| format!("{indent}- actions: [{}]\n", action(n))).collect();
    let entry =
        |n: usize| format!("{{ generic_key: {{ descriptor_key: deep{n}, descriptor_value: x }} }}");
    let deep: Vec<String> = (0..40).map(entry).collect();
    format!("{each}{indent}- actions: [{}]\n", deep.join(", "))
}

fn open(setup: Setup) -> Setup {
    let first = "                        - match: { prefix: /open }";
    let routes = ROUTE.replace("NUMEROUS", &numerous());
    setup
        .with("failure_mode_deny: true", "failure_mode_deny: false")
        .with(first, &format!("{routes}{first}"))
}

/// Requests of a banned client: a path, and header lines.
fn requests() -> Vec<(String, Vec<u8>)> {
    let path = |path: &str| (path.to_owned(), vec![]);
    let with = |name: &str, value: &[u8]| {
        ("/banned".to_owned(), [name.as_bytes(), b": ", value, b"\r\n"].concat())
    };
    let mut requests = vec![
        path("/banned"),
        path("/numerous"),
        with("agent", &b"a".repeat(33_000)),
        with("agent", &b"a".repeat(58_000)),
        with("agent", b"\xff"),
        with("agent", b"bot\xff\xfe"),
        with("agent", b""),
        with("agent", "\u{10ffff}\u{fffd}".as_bytes()),
        with("agent", &b"%00%ff\\;,=\"'{}".repeat(1_000)),
        with("verb", b"a b"),
        with("verb", b"\xff"),
        with("verb", &b"V".repeat(20_000)),
        with("address", b"localhost"),
        with("address", b"\xff"),
        with("address", b"127.0.0.1:80"),
        with("address", b"::1%eth0"),
        with("site", b"elsewhere"),
        with("user", b"a\r\nother-user: b"),
        with("x-forwarded-for", b"\xff, 1.2.3.4"),
        path("/banned/%zz"),
        path("/banned/%2541"),
        path("/banned/%0a"),
        path("/banned/%ff"),
        path("/banned/a;b=c//../x"),
        path(&format!("/banned/{}", "a".repeat(9_000))),
        path(&format!("/banned/{}", "%2f..".repeat(9_000))),
        path(&format!("/banned?{}", "q".repeat(50_000))),
        path("/banned#fragment"),
    ];
    let lines: Vec<u8> = (0..90).flat_map(|n| format!("agent: a{n}\r\n").into_bytes()).collect();
    requests.push(("/banned".to_owned(), lines));
    requests
}

/// Envoy's answer to each of them.
fn attack(mesh: &Mesh) -> Vec<(u16, String)> {
    let send = |(path, lines): (String, Vec<u8>)| {
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncustomer: x\r\n");
        let reply = mesh.envoy.send(&[head.as_bytes(), &lines, b"\r\n"].concat());
        (reply.status, format!("{path:.60} {:.60}", String::from_utf8_lossy(&lines)))
    };
    requests().into_iter().map(send).collect()
}

fn nothing_passes(mesh: &Mesh) {
    let answers = attack(mesh);
    let passed: Vec<_> =
        answers.iter().filter(|(status, _)| !(400..500).contains(status)).collect();
    assert!(passed.is_empty(), "{} of {} pass: {passed:#?}", passed.len(), answers.len());
    assert_eq!(mesh.shop.saw(), [""; 0]);
    // Envoy itself refuses a few that are not valid HTTP; tidegate refuses the others.
    let refused = answers.iter().filter(|(status, _)| *status == 429).count();
    assert!(refused >= 25, "{answers:#?}");
    let counted = mesh.envoy.stat("cluster.shop.ratelimit.over_limit");
    assert_eq!(usize::try_from(counted).unwrap(), refused);
    // A client that is not banned passes.
    assert_eq!(mesh.get("/shop", &[("customer", "alice"), ("does", "look")]).status, 200);
}

#[test]
fn nothing_that_a_banned_client_sends_passes_by_rule_files() {
    let mut setup = open(Setup::by_rules());
    setup.files = vec![("rules/shop.yaml", RULES.to_owned())];
    nothing_passes(&setup.start());
}

#[test]
fn nothing_that_a_banned_client_sends_passes_by_a_policy() {
    nothing_passes(&open(Setup::by_policy(POLICY)).start());
}

/// The operator chooses the domain, so it may have any length.
#[test]
fn a_long_domain_is_a_domain() {
    let long = "d".repeat(300);
    let mut setup = open(Setup::by_rules()).with("domain: shop", &format!("domain: {long}"));
    setup.files =
        vec![("rules/shop.yaml", RULES.replace("domain: shop", &format!("domain: {long}")))];
    nothing_passes(&setup.start());
}
