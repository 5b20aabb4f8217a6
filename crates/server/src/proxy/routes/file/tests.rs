//! Routes files and their mistakes.

use super::*;
use crate::proxy::routes::Scheme;

fn problems(text: &str) -> Vec<String> {
    let problems = Routes::parse(text.as_bytes()).unwrap_err();
    problems.iter().map(Problem::to_string).collect()
}

fn parsed(text: &str) -> Routes {
    Routes::parse(text.as_bytes()).unwrap_or_else(|problems| panic!("{text}\n{problems:?}"))
}

fn server(scheme: Scheme, host: &str, port: u16) -> ServerUrl {
    ServerUrl { scheme, host: host.to_owned(), port }
}

/// A file with one group that has these keys beside its servers, all in the second line.
fn with_keys(keys: &str) -> String {
    format!("groups:\n  api: {{ servers: [http://a], {keys} }}\n")
}

/// A file with one group and one route, which is in the second line.
fn with_route(route: &str) -> String {
    format!("groups: {{ api: {{ servers: [http://a] }} }}\nroutes: [{route}]\n")
}

#[test]
fn a_full_example_is_read() {
    let routes = parsed(
        r#"
groups:
  api:
    servers: [http://10.0.0.1:8080, "https://[2001:db8::7]", h2c://grpc.internal:50051]
    balance: { hash: user }
    concurrency: 200
    timeouts: { connect: 500ms, first_byte: off, idle: 2min, total: 1h }
    health: { path: /live?full=1, every: 100ms }
    host: upstream
    preflight_limit: 5/s
    min_body_rate: 500
  pages:
    servers:
      - http://[::1]:3000
routes:
  - { host: shop.example.com, path: /api/**, group: api }
  - { host: "*.example.com", group: pages }
"#,
    );
    let api = GroupSpec {
        name: "api".to_owned(),
        servers: vec![
            server(Scheme::Http, "10.0.0.1", 8080),
            server(Scheme::Https, "2001:db8::7", 443),
            server(Scheme::H2c, "grpc.internal", 50051),
        ],
        balance: BalanceBy::Hash("user".to_owned()),
        concurrency: Some(200),
        timeouts: UpstreamTimeouts {
            connect: Duration::from_millis(500),
            first_byte: None,
            idle: Some(Duration::from_secs(120)),
            total: Some(Duration::from_secs(3_600)),
        },
        health: Some(HealthSpec {
            path: "/live?full=1".to_owned(),
            every: Duration::from_millis(100),
        }),
        host: HostField::Upstream,
        auth: None,
        preflight_limit: RuleLimit::from_rate("5/s").ok(),
        min_body_rate: NonZeroU32::new(500),
    };
    assert_eq!(routes.groups[0], api);
    assert_eq!(routes.groups[1].servers, [server(Scheme::Http, "::1", 3000)]);
    let route = &routes.routes[0];
    assert_eq!(route.host, HostPattern::parse("shop.example.com").ok());
    assert_eq!(route.path, "/api/**".parse().ok());
    assert_eq!((route.group, routes.routes[1].group), (0, 1));
    assert_eq!(routes.routes[1].path, None);
    assert_eq!(routes.warnings(), []);
}

#[test]
fn everything_but_the_servers_has_a_default() {
    let routes = parsed("groups: { api: { servers: [http://a], health: { path: / } } }");
    let expected = GroupSpec {
        name: "api".to_owned(),
        servers: vec![server(Scheme::Http, "a", 80)],
        balance: BalanceBy::LeastInFlight,
        concurrency: None,
        timeouts: UpstreamTimeouts {
            connect: Duration::from_secs(1),
            first_byte: Some(Duration::from_secs(30)),
            idle: Some(Duration::from_secs(60)),
            total: None,
        },
        health: Some(HealthSpec { path: "/".to_owned(), every: Duration::from_secs(1) }),
        host: HostField::Keep,
        auth: None,
        preflight_limit: RuleLimit::from_rate("20/s").ok(),
        min_body_rate: NonZeroU32::new(1_024),
    };
    assert_eq!(routes.groups, [expected]);
    let [Route { host: None, path: None, path_in_any_case: None, group: 0 }] =
        routes.routes.as_slice()
    else {
        panic!("{routes:?}");
    };
}

#[test]
fn what_bounds_clients_can_be_turned_off() {
    let routes = parsed(&with_keys("preflight_limit: off, min_body_rate: off"));
    let group = &routes.groups[0];
    assert_eq!((group.preflight_limit.as_ref(), group.min_body_rate), (None, None));
    for (keys, expected) in [
        ("preflight_limit: often", "`preflight_limit` is a rate such as `20/s`, or `off`"),
        ("min_body_rate: 0", "`min_body_rate` is a whole number from 1 to 1000000000"),
    ] {
        let problems = Routes::parse(with_keys(keys).as_bytes()).unwrap_err();
        assert!(problems[0].text.starts_with(expected), "{problems:?}");
    }
}

#[test]
fn the_defaults_can_be_written_out() {
    let written = with_keys(
        "balance: least_in_flight, timeouts: { connect: 1s, first_byte: 30s, idle: 60s, total: off }, host: keep, preflight_limit: 20/s, min_body_rate: 1024",
    );
    let left_out = "groups: { api: { servers: [http://a] } }";
    assert_eq!(parsed(&written).groups, parsed(left_out).groups);
}

#[test]
fn a_group_that_moves_in_the_file_stays_equal() {
    let before = "groups: { api: { servers: [http://a] } }";
    assert_eq!(parsed(before).groups, parsed(&format!("# a comment\n\n{before}")).groups);
}

#[test]
fn all_problems_are_reported_together_in_the_order_of_the_file() {
    let text = "routes:
  - { host: '*', path: api, group: apii }
  - { path: /x }
groups:
  api: { servers: [a, http://b/x], concurency: 5, balance: random }
  API: { servers: [http://a] }
";
    assert_eq!(
        problems(text),
        [
            "2:13: `*`: to match every host, remove `host`",
            "2:24: `api`: a path begins with a slash",
            "2:36: unknown group `apii`, did you mean `api`?",
            "3:5: a route needs the key `group`, as in `{ path: /api/**, group: api }`",
            "5:20: `a`: a server begins with `http://`, `https://` or `h2c://`; write `http://a`",
            "5:23: `http://b/x`: a server has no path; write `http://b`",
            "5:36: unknown key `concurency`, did you mean `concurrency`?",
            "5:60: `balance` is `least_in_flight` or `{ hash: user }`, not `random`",
            "6:3: `API` is not a valid name of a group; use 1 to 64 of `a-z 0-9 _ -`",
        ]
    );
}

#[test]
fn errors_in_the_file_say_what_to_write() {
    let example = "groups: { api: { servers: [http://10.0.0.1:8080] } }";
    for (text, expected) in [
        ("", format!("1:1: the file is empty; write at least one group: `{example}`")),
        ("# x\n\n", format!("1:1: the file is empty; write at least one group: `{example}`")),
        ("[]", format!("1:1: a routes file is a map such as `{example}`, not a list")),
        ("routes: [{ group: a }]", format!("1:1: a routes file needs the key `groups`, as in `{example}`")),
        ("group: { a: { servers: [http://a] } }", "1:1: unknown key `group`, did you mean `groups`?".to_owned()),
        (&format!("{example}\nversion: 1"), "2:1: unknown key `version`; use one of `groups`, `routes`, `refusals`".to_owned()),
        ("groups: {}", "1:9: `groups` has from 1 to 256 groups, not 0".to_owned()),
        ("groups: [a]", "1:9: `groups` is a map such as `{ api: { servers: [http://10.0.0.1:8080] } }`, not a list".to_owned()),
        ("groups: { a: http://u:hunter2@b }", "1:14: a group is a map such as `{ servers: [http://10.0.0.1:8080] }`, not a text".to_owned()),
        ("groups: { a: {} }", "1:14: a group needs the key `servers`, as in `{ servers: [http://10.0.0.1:8080] }`".to_owned()),
        ("groups: { a: { servers: [] } }", "1:25: `servers` has from 1 to 64 values, not 0".to_owned()),
        ("groups: { a: { servers: http://u:hunter2@b } }", "1:25: `servers` is a list; put the value between `[` and `]`".to_owned()),
        ("groups: { a: { servers: ~ } }", "1:25: `servers` is a list, not nothing".to_owned()),
        ("groups: { a: { servers: [[b]] } }", "1:26: a server is a text, not a list".to_owned()),
        ("groups: { a: { servers: ['http://u:hunter2@b'] } }", "1:26: a server has no user name and no password; write only its host and port, as in `http://10.0.0.1:8080`".to_owned()),
        ("groups:\n  a: { servers: [http://a] }\n  b: { servers: [http://b] }", "1:1: a file with several groups needs `routes`, such as `routes: [{ path: /api/**, group: api }]`".to_owned()),
    ] {
        assert_eq!(problems(text), [expected], "{text}");
    }
}

#[test]
fn errors_in_a_group_say_what_to_write() {
    let time = "is a time such as `10s`, `500ms` or `2min`, from 1ms to 1day,";
    let target = "the path of a health check begins with a slash and has at most 1024 characters that are valid in a URL, without `#`; write it like `/live`";
    for (keys, expected) in [
        ("concurrency: 0", "2:44: `concurrency` is a whole number from 1 to 1000000, not `0`".to_owned()),
        ("concurrency: 1000001", "2:44: `concurrency` is a whole number from 1 to 1000000, not `1000001`".to_owned()),
        ("concurrency: ''", "2:44: `concurrency` is a whole number from 1 to 1000000, not ``".to_owned()),
        ("concurrency: '5'", "2:44: `concurrency` is a number; write 5 without quotes".to_owned()),
        ("balance: [a]", "2:40: `balance` is `least_in_flight` or `{ hash: user }`, not a list".to_owned()),
        ("balance: hash", "2:40: `balance` is `least_in_flight` or `{ hash: user }`, not `hash`".to_owned()),
        ("balance: {}", "2:40: `balance` needs the key `hash`, as in `{ hash: user }`".to_owned()),
        ("balance: { hash: 'a b' }", "2:48: `a b` is not a valid attribute name; use 1 to 64 of `A-Z a-z 0-9 _ - .`".to_owned()),
        ("balance: { hash: [user] }", "2:48: `hash` is a text, not a list".to_owned()),
        ("timeouts: 1s", "2:41: `timeouts` is a map such as `{ connect: 1s, first_byte: 30s }`, not a text".to_owned()),
        ("timeouts: { conect: 1s }", "2:43: unknown key `conect`, did you mean `connect`?".to_owned()),
        ("timeouts: { connect: off }", format!("2:52: `connect` {time} not `off`")),
        ("timeouts: { total: 5 }", format!("2:50: `total` {time} or `off`, not `5`")),
        ("timeouts: { idle: 25h }", format!("2:49: `idle` {time} or `off`, not `25h`")),
        ("timeouts: { first_byte: ~ }", format!("2:55: `first_byte` {time} or `off`, not nothing")),
        ("health: /live", "2:39: `health` is a map such as `{ path: /live }`, not a text".to_owned()),
        ("health: { every: 1s }", "2:39: `health` needs the key `path`, as in `{ path: /live }`".to_owned()),
        ("health: { path: live }", format!("2:47: `live`: {target}")),
        ("health: { path: '/a b' }", format!("2:47: `/a b`: {target}")),
        ("health: { path: '/a#b' }", format!("2:47: `/a#b`: {target}")),
        ("health: { path: /a<b }", format!("2:47: `/a<b`: {target}")),
        ("health: { path: /ä }", format!("2:47: `/ä`: {target}")),
        ("health: { path: /live, every: 99ms }", "2:61: `every` is a time such as `10s`, `500ms` or `2min`, from 100ms to 1h, not `99ms`".to_owned()),
        ("host: kep", "2:37: `host` is `keep` or `upstream`, not `kep`".to_owned()),
        ("server: x", "2:31: unknown key `server`, did you mean `servers`?".to_owned()),
    ] {
        assert_eq!(problems(&with_keys(keys)), [expected], "{keys}");
    }
}

#[test]
fn errors_in_a_route_say_what_to_write() {
    for (route, expected) in [
        ("", "2:9: `routes` has from 1 to 4096 values, not 0"),
        ("api", "2:10: a route is a map such as `{ path: /api/**, group: api }`, not a text"),
        ("{ group: web }", "2:19: unknown group `web`; use one of `api`"),
        ("{ group: [api] }", "2:19: `group` is a text, not a list"),
        ("{ group: api, paht: /x }", "2:24: unknown key `paht`, did you mean `path`?"),
        ("{ gruop: api }", "2:12: unknown key `gruop`, did you mean `group`?"),
        (
            "{ group: api, path: /a* }",
            "2:30: `/a*`: `a*`: a star stands for a whole segment; write `*` or `**` between slashes",
        ),
        (
            "{ group: api, path: /a?b }",
            "2:30: `/a?b`: a path is matched without its query; remove it",
        ),
        ("{ group: api, path: ~ }", "2:30: `path` is a text, not nothing"),
        (
            "{ group: api, host: 'a.com:80' }",
            "2:30: `a.com:80`: a route matches every port; write `a.com`",
        ),
        ("{ group: api, host: ~ }", "2:30: `host` is a text, not nothing"),
    ] {
        assert_eq!(problems(&with_route(route)), [expected], "{route}");
    }
    assert_eq!(
        problems(&with_route("{ group: api, host: *.example.com }")),
        ["2:30: `*` begins a YAML alias; put the text in quotes"]
    );
}

#[test]
fn groups_servers_and_routes_are_bounded() {
    let groups = |count: usize| {
        let group = |n| format!("  g{n}: {{ servers: [http://a] }}\n");
        let groups: String = (0..count).map(group).collect();
        format!("groups:\n{groups}routes: [{{ group: g0 }}]\n")
    };
    assert_eq!(parsed(&groups(256)).groups.len(), 256);
    assert_eq!(problems(&groups(257)), ["2:3: `groups` has from 1 to 256 groups, not 257"]);

    let servers = |count: usize| {
        let servers: String = (0..count).map(|n| format!("    - http://s{n}\n")).collect();
        format!("groups:\n  a:\n   servers:\n{servers}")
    };
    assert_eq!(parsed(&servers(64)).groups[0].servers.len(), 64);
    assert_eq!(problems(&servers(65)), ["4:5: `servers` has from 1 to 64 values, not 65"]);

    let routes = |count: usize| {
        let routes: String =
            (0..count).map(|n| format!("  - {{ path: /{n}, group: a }}\n")).collect();
        format!("groups: {{ a: {{ servers: [http://a] }} }}\nroutes:\n{routes}")
    };
    assert_eq!(parsed(&routes(4_096)).routes.len(), 4_096);
    assert_eq!(problems(&routes(4_097)), ["3:3: `routes` has from 1 to 4096 values, not 4097"]);
}

#[test]
fn an_ipv6_server_in_brackets_needs_quotes() {
    let unquoted = "groups:\n  a:\n    servers: [http://a, http://[::1]:80]";
    let problem = problems(unquoted).concat();
    assert!(problem.starts_with("3:32: "), "{problem}");
    assert!(problem.ends_with("; put a URL with an IPv6 address in quotes"), "{problem}");
    let other = "groups:\n  a:\n    servers: [http://a, 'http://[::1]'";
    assert!(!problems(other)[0].contains("quotes"));
    let quoted = "groups:\n  a:\n    servers: [http://a, 'http://[::1]:80']";
    assert_eq!(parsed(quoted).groups[0].servers[1], server(Scheme::Http, "::1", 80));
}

#[test]
fn a_misspelt_key_is_not_reported_as_missing_too() {
    let group = "servers: [http://a]";
    let text =
        format!("groups: {{ a: {{ {group} }}, b: {{ {group} }} }}\nrotues: [{{ group: a }}]");
    assert_eq!(problems(&text), ["2:1: unknown key `rotues`, did you mean `routes`?"]);
}

#[test]
fn paths_and_attributes_are_bounded() {
    let health = |length| with_keys(&format!("health: {{ path: /{} }}", "x".repeat(length)));
    assert!(parsed(&health(1_023)).groups[0].health.is_some());
    assert!(problems(&health(1_024))[0].contains("has at most 1024 characters"));
    let hash = |length| with_keys(&format!("balance: {{ hash: {} }}", "x".repeat(length)));
    assert_eq!(parsed(&hash(64)).groups[0].balance, BalanceBy::Hash("x".repeat(64)));
    assert!(problems(&hash(65))[0].contains("is not a valid attribute name"));
}

#[test]
fn names_of_groups_are_bounded() {
    let named = |name: &str| format!("groups: {{ {name}: {{ servers: [http://a] }} }}");
    for name in ["a", "0", "a-b_c", &"x".repeat(64)] {
        assert_eq!(parsed(&named(name)).groups[0].name, name);
    }
    for name in ["''", "A", "a.b", "ä", &"x".repeat(65)] {
        let found = problems(&named(name));
        assert!(
            found[0].starts_with("1:11: `") && found[0].contains("name of a group"),
            "{found:?}"
        );
    }
}

#[test]
fn bytes_that_are_not_a_file_are_refused() {
    for bytes in [&b"\xff\xfe"[..], b"\0", b"{", b"groups: &a {}", b"- - -", b"? {}"] {
        assert!(!Routes::parse(bytes).unwrap_err().is_empty(), "{bytes:?}");
    }
}

proptest::proptest! {
    /// Files made of the words of the language never cause a panic, and a refusal always has a reason.
    #[test]
    fn mutilated_files_do_not_panic(
        parts in proptest::collection::vec(proptest::sample::select(PARTS), 0..40),
    ) {
        if let Err(problems) = Routes::parse(parts.concat().as_bytes()) {
            assert!(!problems.is_empty());
        }
    }
}

const PARTS: &[&str] = &[
    "groups:\n",
    "routes:\n",
    "  ",
    "  a:\n",
    "    servers:\n",
    "      - ",
    "http://a\n",
    "{ ",
    " }",
    "[",
    "]",
    ", ",
    "servers: ",
    "[http://a]",
    "http://[::1]:80",
    "host: ",
    "'*.a.com'",
    "*",
    "path: ",
    "/a/**",
    "group: ",
    "a",
    "\n",
    "balance: ",
    "hash: ",
    "timeouts: ",
    "connect: ",
    "1s",
    "off",
    "health: ",
    "every: ",
    "::",
    "é",
    "\u{202e}",
];
