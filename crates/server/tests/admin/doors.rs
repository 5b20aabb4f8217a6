//! Access to the admin API: every path, by every method, in every spelling, with every kind of token.

use super::kept;
use crate::support::client::{Client, Operator};
use crate::support::{Reply, Server, folder, request};
use serde_json::json;
use std::time::Instant;

/// A route of the admin API.
struct Route {
    method: &'static str,
    path: &'static str,
    operator: bool,
}

/// Routes that only look, although they are asked by POST.
const LOOKS: [&str; 4] =
    ["/admin/v1/peek", "/admin/v1/explain", "/admin/v1/who", "/admin/v1/playground"];

/// All routes, taken from the server's own table so that none is forgotten here. Who may use a route is stated again:
/// readers may read, and everything else needs an operator.
fn routes() -> Vec<Route> {
    let source = include_str!("../../src/front/admin/routes.rs");
    let rows = source.lines().filter_map(|line| line.trim().strip_prefix("route(\""));
    let route = |row: &'static str| {
        let mut words = row.split(['"', ',', ' ']).filter(|word| !word.is_empty());
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let looks = method == "GET" || LOOKS.contains(&path);
        Route { method, path, operator: !looks }
    };
    let routes: Vec<Route> = rows.map(route).collect();
    assert_eq!(routes.len(), 26);
    routes
}

/// A body that the route accepts, and its media type.
fn body(route: &Route) -> (&'static str, String) {
    let json = match route.path {
        "/admin/v1/policy" => return ("application/yaml", POLICY.replace("15/s", "16/s")),
        "/admin/v1/peek" | "/admin/v1/explain" | "/admin/v1/who" => {
            json!({ "attributes": { "ip": "::1" } })
        }
        "/admin/v1/playground" => {
            json!({ "amount": 1, "period_ms": 1_000, "step_ms": 1_000, "requests": [1] })
        }
        "/admin/v1/reset" => json!({ "rule": "a", "attributes": { "ip": "::1" } }),
        "/admin/v1/rules" => json!({ "rule": "a", "enabled": false }),
        "/admin/v1/overrides" => json!({ "rule": "a", "key": { "ip": "::1" }, "limits": ["1/s"] }),
        "/admin/v1/tiers" => json!({ "attribute": "user", "value": "x", "tier": "pro" }),
        "/admin/v1/signals" => json!({ "load": 0.5 }),
        "/admin/v1/upstreams" => {
            json!({ "group": "upstream", "server": "http://127.0.0.1:1", "drain": true })
        }
        _ => return ("", String::new()),
    };
    ("application/json", json.to_string())
}

const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro] }
rules: [{ name: a, key: [ip], limits: [15/s] }]
";

/// A server, and a client that sends any request to it.
struct Doors {
    server: Server,
    operator: String,
    reader: String,
}

impl Doors {
    fn new() -> Self {
        // So that every route has something to show.
        let rules = folder("rules");
        std::fs::write(rules.join("web.yaml"), "domain: web").unwrap();
        let proxy = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", "http://127.0.0.1:1"];
        let flags = [&["--envoy-config", rules.to_str().unwrap()][..], &proxy].concat();
        let server = Server::with_policy(POLICY, &flags);
        let token = |file| {
            let text = std::fs::read_to_string(server.data(file)).unwrap();
            format!("Bearer {}", text.trim())
        };
        let (operator, reader) = (token("operator-token"), token("reader-token"));
        Self { server, operator, reader }
    }

    fn ask(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Reply {
        request(self.server.admin, method, path, fields, body)
    }

    /// Sends a request with the method and body of a route.
    fn go(&self, route: &Route, path: &str, fields: &[(&str, &str)]) -> Reply {
        let (kind, body) = body(route);
        let body = if route.method == "GET" || route.method == "DELETE" { "" } else { &body };
        let mut all = fields.to_vec();
        if !body.is_empty() {
            all.push(("content-type", kind));
        }
        self.ask(route.method, path, &all, body)
    }

    /// Checks that nothing was changed.
    fn unchanged(&self) {
        let mut operator = Operator::of(&self.server);
        let status = operator.get("/admin/v1/status").json();
        assert_eq!((&status["control_version"], &status["policy_version"]), (&json!(0), &json!(1)));
        assert_eq!(operator.get("/admin/v1/audit").json(), json!([]));
        assert_eq!(kept(&self.server)["version"], 0);
    }
}

/// Whether a request was refused because it has no valid token, or because of too many attempts. Both answers reveal
/// nothing else.
fn is_unknown(reply: &Reply) -> bool {
    match reply.status {
        401 => reply.field("www-authenticate") == Some("Bearer"),
        429 => reply.field("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok()),
        _ => false,
    }
}

/// Other spellings of a path. Some servers treat them as the path itself.
fn spellings(path: &str) -> Vec<String> {
    let last = path.rsplit('/').next().unwrap();
    let hex: String = last.bytes().map(|byte| format!("%{byte:02x}")).collect();
    vec![
        format!("{path}/"),
        format!("/{path}"),
        format!("{path}//"),
        format!("{path}/."),
        format!("{path}%00"),
        format!("{path}%20"),
        format!("{path};x"),
        format!("{path}.json"),
        format!("{path}#x"),
        format!("/x/..{path}"),
        format!("/.{path}"),
        format!("/live/..{path}"),
        format!("/live/%2e%2e{path}"),
        path.to_ascii_uppercase(),
        path.replace(last, &hex),
        path.replace('/', "%2f"),
        path.replace('/', "\\"),
    ]
}

const METHODS: [&str; 11] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get",
    "PROPFIND",
];

#[test]
fn without_a_token_nothing_but_live_is_answered() {
    let doors = Doors::new();
    let wrong = doors.operator.replace("tgo_", "tgr_");
    let nobodies =
        [None, Some(wrong.as_str()), Some("Bearer "), Some("Basic b3BlcmF0b3I6"), Some("")];
    for (number, token) in nobodies.into_iter().enumerate() {
        let fields: Vec<(&str, &str)> =
            token.map(|token| ("authorization", token)).into_iter().collect();
        for route in routes() {
            let reply = doors.go(&route, route.path, &fields);
            assert!(is_unknown(&reply), "{} {}: {reply:?}", route.method, route.path);
            let absolute = format!("http://{}{}", doors.server.admin, route.path);
            assert!(is_unknown(&doors.go(&route, &absolute, &fields)));
            if number > 0 {
                continue;
            }
            for path in spellings(route.path) {
                let reply = doors.go(&route, &path, &fields);
                // A path that is not valid is not even a valid request.
                assert!(is_unknown(&reply) || reply.status == 400, "{path}: {reply:?}");
            }
            for method in METHODS {
                let reply = doors.ask(method, route.path, &fields, "");
                assert!(is_unknown(&reply), "{method} {}: {reply:?}", route.path);
            }
        }
    }
    assert_eq!(doors.ask("GET", "/live", &[], "").json(), json!({ "status": "live" }));
    for (method, path) in
        [("HEAD", "/live"), ("POST", "/live"), ("GET", "/live/"), ("GET", "/LIVE"), ("GET", "/")]
    {
        assert!(is_unknown(&doors.ask(method, path, &[], "")), "{method} {path}");
    }
    doors.unchanged();
}

/// A client without a token is answered before its body is read.
#[test]
fn nobody_without_a_token_sends_a_body() {
    let doors = Doors::new();
    let mut client = Client::of(doors.server.admin);
    let head = "PUT /admin/v1/policy HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/yaml\r\ncontent-length: 4000000\r\n\r\n";
    client.send(head.as_bytes()).unwrap();
    let reply = client.receive().unwrap().unwrap();
    assert_eq!((reply.status, reply.field("connection")), (401, Some("close")));
}

#[test]
fn a_token_in_the_query_is_none() {
    let doors = Doors::new();
    let token = doors.operator.replace("Bearer ", "");
    for name in ["token", "access_token", "authorization", "bearer", "key", "api_key"] {
        for route in routes() {
            let path = format!("{}?{name}={token}", route.path);
            assert!(is_unknown(&doors.go(&route, &path, &[])), "{path}");
        }
    }
    let cookie = format!("token={token}");
    assert!(is_unknown(&doors.ask("GET", "/metrics", &[("cookie", &cookie)], "")));
    doors.unchanged();
}

#[test]
fn a_reader_looks_and_changes_nothing() {
    let doors = Doors::new();
    let reader = [("authorization", doors.reader.as_str())];
    for route in routes() {
        let reply = doors.go(&route, route.path, &reader);
        let expected = if route.operator { 403 } else { 200 };
        assert_eq!(reply.status, expected, "{} {}: {reply:?}", route.method, route.path);
    }
    doors.unchanged();
}

#[test]
fn an_operator_finds_every_route_at_its_one_spelling() {
    let doors = Doors::new();
    let operator = [("authorization", doors.operator.as_str())];
    for route in routes() {
        for path in spellings(route.path) {
            let status = doors.go(&route, &path, &operator).status;
            assert!(status == 404 || status == 400, "{path}: {status}");
        }
        let here = || routes().into_iter().filter(|other| other.path == route.path);
        for method in METHODS {
            let known = method == "HEAD" || here().any(|other| other.method == method);
            let known = known && (method != "HEAD" || here().any(|other| other.method == "GET"));
            if !known {
                let reply = doors.ask(method, route.path, &operator, "");
                let methods: Vec<&str> = here().map(|other| other.method).collect();
                let expected = (405, Some(methods.join(", ")));
                assert_eq!(
                    (reply.status, reply.field("allow").map(str::to_owned)),
                    expected,
                    "{method}"
                );
            }
        }
    }
    // A GET never changes anything, whatever its query says.
    for path in ["/admin/v1/rules?rule=*&enabled=false", "/admin/v1/policy?force=true"] {
        assert_eq!(doors.ask("GET", path, &operator, "").status, 200);
        assert_eq!(doors.ask("HEAD", path, &operator, "").status, 200);
    }
    doors.unchanged();
    for route in routes() {
        let reply = doors.go(&route, route.path, &operator);
        assert_eq!(reply.status, 200, "{} {}: {reply:?}", route.method, route.path);
    }
}

/// A page in a browser can make its visitor send almost any request. It cannot name this listener as the host, hide
/// its origin, or send JSON without a preflight request. These are checked before anything else, even before the
/// token.
#[test]
fn foreign_pages_and_hosts_come_first() {
    let doors = Doors::new();
    let [good, bad] = [doors.operator.clone(), "Bearer wrong-wrong-wrong-wrong".to_owned()];
    for token in [&good, &bad] {
        let token = ("authorization", token.as_str());
        for route in routes() {
            for (field, status) in [
                (("origin", "http://evil.example"), 403),
                (("origin", "null"), 403),
                (("origin", "http://localhost.evil.example"), 403),
                (("sec-fetch-site", "cross-site"), 403),
            ] {
                let reply = doors.go(&route, route.path, &[token, field]);
                assert_eq!(reply.status, status, "{field:?} {reply:?}");
            }
            for host in [
                "evil.example",
                "localhost.evil.example",
                "127.0.0.1.evil.example",
                "0x7f000001",
                "x@127.0.0.1",
            ] {
                let head = format!(
                    "{} {} HTTP/1.1\r\nhost: {host}\r\nauthorization: {}\r\nconnection: close\r\n\r\n",
                    route.method, route.path, token.1
                );
                let mut client = Client::of(doors.server.admin);
                client.send(head.as_bytes()).unwrap();
                assert_eq!(client.receive().unwrap().unwrap().status, 421, "{host}");
            }
        }
    }
    let mut client = Client::of(doors.server.admin);
    client.send(b"GET /live HTTP/1.1\r\nhost: evil.example\r\n\r\n").unwrap();
    assert_eq!(client.receive().unwrap().unwrap().status, 421);
    let mut operator = Operator::of(&doors.server);
    assert_eq!(operator.metric("tidegate_refused_total{reason=\"unauthorized\"}"), 0);
    let foreign = 2 * 9 * u64::try_from(routes().len()).unwrap() + 1;
    assert_eq!(operator.metric("tidegate_refused_total{reason=\"foreign\"}"), foreign);
    doors.unchanged();
}

#[test]
fn bodies_that_a_page_could_send_are_not_read() {
    let doors = Doors::new();
    let token = ("authorization", doors.operator.as_str());
    let kinds = [
        &[("content-type", "text/plain")][..],
        &[("content-type", "application/x-www-form-urlencoded")],
        &[("content-type", "multipart/form-data; boundary=x")],
        &[("content-type", "text/plain; application/json")],
        &[("content-type", "application/json"), ("content-type", "application/json")],
        &[],
    ];
    for route in routes().iter().filter(|route| matches!(route.method, "PUT" | "POST")) {
        for kind in kinds {
            let fields = [&[token][..], kind].concat();
            let reply = doors.ask(route.method, route.path, &fields, &body(route).1);
            assert_eq!(reply.status, 415, "{} {kind:?}: {reply:?}", route.path);
        }
    }
    doors.unchanged();
}

/// The first ten wrong tokens a minute are answered with 401. After that, guesses are answered with "wait" and learn
/// nothing more, while a client with the right token is still served.
#[test]
#[allow(clippy::disallowed_methods, reason = "the server counts guesses by the clock")]
fn whoever_guesses_waits_and_nobody_else_does() {
    let doors = Doors::new();
    let guess = |number: usize| {
        let token = format!("Bearer tgo_{number:048}");
        doors.ask("GET", "/metrics", &[("authorization", &token)], "")
    };
    let began = Instant::now();
    let statuses: Vec<u16> = (0..30).map(|number| guess(number).status).collect();
    assert_eq!(statuses[..10], [401; 10]);
    // Ten a minute: on a slow machine some more may be tried.
    let more = usize::try_from(began.elapsed().as_secs() / 6).unwrap() + 1;
    let tried = statuses.iter().filter(|status| **status == 401).count();
    assert!(tried <= 10 + more, "{statuses:?}");
    let late = (30..).map(guess).find(|reply| reply.status != 401).unwrap();
    let seconds: u32 = late.field("retry-after").unwrap().parse().unwrap();
    assert!(late.status == 429 && (1..=60).contains(&seconds), "{late:?}");
    for token in [&doors.operator, &doors.reader] {
        assert_eq!(doors.ask("GET", "/metrics", &[("authorization", token)], "").status, 200);
    }
    assert!(
        doors.server.log().matches("Unauthenticated request to the admin listener").count()
            <= 14 + more
    );
}

/// Listing 20,000 rules kept the thread that accepts connections busy for seconds, and switching one rule for longer.
/// The admin listener has its own thread now.
#[test]
fn operators_are_served_on_a_thread_of_their_own() {
    let server = Server::with_policy(POLICY, &[]);
    // A thread gets its name when it runs for the first time.
    server.until("a thread has the name", |server| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        // A thread may have ended meanwhile.
        names.flatten().filter(|name| name.starts_with("operators-0")).count() == 1
    });
}
