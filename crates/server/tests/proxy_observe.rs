//! What operators see of the reverse proxy: metrics, `/ready`, upstream servers in the admin API, and the access log.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests may fail loudly"
)]

use crate::support;
use crate::support::client;

use client::Operator;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use support::http1::Wire;
use support::http2::{Answer, Two};
use support::upstream::free_address;
use support::{Reply, Server, request};

const OPEN: &str = "
version: 1
rules: [{ name: all, key: [ip], limits: [1000000/min] }]
";

// === upstream servers ===

/// An upstream server. It answers one request on each connection; `/status/404` gets that status.
struct Upstream {
    address: SocketAddr,
    /// The requests that it got, as text.
    seen: Arc<Mutex<Vec<String>>>,
    /// While this is locked, no answer is sent.
    gate: Arc<Mutex<()>>,
}

impl Upstream {
    fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap())
    }

    fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, gate) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<()>>::default());
        let shared = (Arc::clone(&seen), Arc::clone(&gate));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, gate) = shared.clone();
                thread::spawn(move || answer(stream, &seen, &gate));
            }
        });
        Self { address, seen, gate }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// Requests are received but not answered until this is dropped.
    fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap()
    }
}

fn answer(mut stream: TcpStream, seen: &Mutex<Vec<String>>, gate: &Mutex<()>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if reader.read_line(&mut text).unwrap_or(0) == 0 {
            return;
        }
    }
    let length =
        Reply::parse(&text).field("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let path = text.split(' ').nth(1).unwrap().to_owned();
    seen.lock().unwrap().push(text);
    drop(gate.lock());
    let status = path.split("/status/").nth(1).unwrap_or("200");
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
    );
}

// === a server with a proxy ===

/// A routes file. It is removed when it is dropped.
struct RoutesFile(PathBuf);

impl RoutesFile {
    fn new(text: &str) -> Self {
        let file = Self(support::folder("routes"));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        // Replaced at once, so that no half of a file is read.
        std::fs::write(self.0.join("new"), text).unwrap();
        std::fs::rename(self.0.join("new"), self.0.join("routes.yaml")).unwrap();
    }

    fn serve(&self, policy: &str, flags: &[&str]) -> Server {
        let path = self.0.join("routes.yaml");
        let mut all = vec!["--proxy-listen", "127.0.0.1:0", "--proxy-routes"];
        all.push(path.to_str().unwrap());
        all.extend(flags);
        Server::with_policy(policy, &all)
    }
}

impl Drop for RoutesFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server whose proxy forwards to this URL.
fn proxy(policy: &str, url: &str, flags: &[&str]) -> Server {
    let mut all = vec!["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", url];
    all.extend(flags);
    Server::with_policy(policy, &all)
}

fn get(server: &Server, path: &str) -> u16 {
    request(server.proxy, "GET", path, &[], "").status
}

/// Requests of a group that were answered in this way, according to the metrics.
fn answers(operator: &mut Operator, group: &str, answer: &str) -> u64 {
    let labels = format!("group=\"{group}\",answer=\"{answer}\"");
    operator.metric(&format!("tidegate_proxy_requests_total{{{labels}}}"))
}

/// A metric of a group.
fn of_group(operator: &mut Operator, name: &str, group: &str) -> u64 {
    operator.metric(&format!("{name}{{group=\"{group}\"}}"))
}

/// A metric of a server.
fn of_server(operator: &mut Operator, name: &str, group: &str, address: SocketAddr) -> u64 {
    operator.metric(&format!("{name}{{group=\"{group}\",server=\"http://{address}\"}}"))
}

// === metrics ===

#[test]
fn requests_are_counted_by_group_and_answer() {
    let (api, dead) = (Upstream::start(), free_address());
    let routes = RoutesFile::new(&format!(
        "groups:\n  api: {{ servers: [\"{}\"] }}\n  shop: {{ servers: [\"http://{dead}\"] }}\nroutes:\n  - {{ path: /api/**, group: api }}\n  - {{ path: /shop, group: shop }}\n",
        api.url()
    ));
    let policy = "{ version: 1, rules: [{ name: few, match: { path: /api/few }, key: [], limits: [1/day] }] }";
    let server = routes.serve(policy, &[]);
    let mut operator = Operator::of(&server);
    let paths = ["/api/a", "/api/b", "/api/status/302", "/api/status/404", "/api/status/503"];
    assert_eq!(paths.map(|path| get(&server, path)), [200, 200, 302, 404, 503]);
    assert_eq!(["/api/few", "/api/few"].map(|path| get(&server, path)), [200, 429]);
    assert_eq!(["/shop", "/elsewhere", "/else"].map(|path| get(&server, path)), [502, 404, 404]);
    let expected = [("2xx", 3), ("3xx", 1), ("4xx", 1), ("5xx", 1), ("refused", 1)];
    for (answer, count) in expected {
        assert_eq!(answers(&mut operator, "api", answer), count, "{answer}");
    }
    assert_eq!(answers(&mut operator, "shop", "unreachable"), 1);
    assert_eq!(operator.metric("tidegate_refused_total{reason=\"no_route\"}"), 2);
    // The server closes each connection after its answer.
    assert_eq!(of_group(&mut operator, "tidegate_upstream_connections_total", "api"), 6);
    assert_eq!(of_group(&mut operator, "tidegate_upstream_connections_total", "shop"), 0);
    assert_eq!(of_group(&mut operator, "tidegate_upstream_first_byte_seconds_count", "api"), 6);
    // Four tries, of which three are repetitions.
    assert_eq!(of_group(&mut operator, "tidegate_upstream_retries_total", "shop"), 3);
    assert_eq!(of_group(&mut operator, "tidegate_upstream_retries_total", "api"), 0);
    assert_eq!(of_server(&mut operator, "tidegate_upstream_up", "api", api.address), 1);
    assert_eq!(of_server(&mut operator, "tidegate_upstream_up", "shop", dead), 0);
    let text = operator.get("/metrics").body;
    assert!(
        text.contains(&format!(
            "tidegate_upstream_up{{group=\"shop\",server=\"http://{dead}\"}} 0"
        ))
    );
    server.until("nothing is in flight", |_| {
        of_server(&mut operator, "tidegate_upstream_in_flight", "api", api.address) == 0
    });
}

/// Every metric of the proxy stands in the table of the page about it, with the same labels.
#[test]
fn the_page_names_every_metric_of_the_proxy() {
    let upstream = Upstream::start();
    let server = proxy(OPEN, &upstream.url(), &[]);
    let metrics = Operator::of(&server).get("/metrics").body;
    let page = std::fs::read_to_string(support::project("docs/proxy-operations.md")).unwrap();
    let names: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .filter(|name| ["_proxy_", "_upstream_", "_access_"].iter().any(|part| name.contains(part)))
        .collect();
    assert_eq!(names.len(), 12, "{names:?}");
    for name in names {
        let named = ["{", "_total{", "_total`"].map(|end| format!("`{name}{end}"));
        assert!(named.iter().any(|text| page.contains(text)), "{name} is not in the page");
    }
}

#[test]
fn requests_in_flight_are_counted_until_they_are_answered() {
    let upstream = Upstream::start();
    let server = proxy(OPEN, &upstream.url(), &[]);
    let mut operator = Operator::of(&server);
    let in_flight = |operator: &mut Operator| {
        of_server(operator, "tidegate_upstream_in_flight", "upstream", upstream.address)
    };
    let held = upstream.hold();
    let address = server.proxy;
    let client = thread::spawn(move || request(address, "GET", "/", &[], "").status);
    server.until("it is in flight", |_| in_flight(&mut operator) == 1);
    assert_eq!(answers(&mut operator, "upstream", "2xx"), 0);
    drop(held);
    assert_eq!(client.join().unwrap(), 200);
    server.until("it is over", |_| in_flight(&mut operator) == 0);
    assert_eq!(answers(&mut operator, "upstream", "2xx"), 1);
}

/// Two requests wait. One gives up; the other passes when the limit is raised.
#[test]
fn waiting_requests_are_counted_with_their_time() {
    let upstream = Upstream::start();
    let policy = "{ version: 1, rules: [{ name: all, key: [], on_limit: { delay: { max_wait: 1h } }, limits: [{ rate: 3/h, burst: 1 }] }] }";
    let server = proxy(policy, &upstream.url(), &[]);
    let mut operator = Operator::of(&server);
    let held =
        |operator: &mut Operator| of_group(operator, "tidegate_proxy_held_requests", "upstream");
    let waited = |operator: &mut Operator| {
        of_group(operator, "tidegate_proxy_wait_seconds_count", "upstream")
    };
    assert_eq!(get(&server, "/first"), 200);
    assert_eq!((held(&mut operator), waited(&mut operator)), (0, 0));
    let [stays, leaves] = [(); 2].map(|()| {
        let mut wire = Wire::to(server.proxy);
        wire.send(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n");
        wire
    });
    let mut stays = stays;
    server.until("both wait", |_| held(&mut operator) == 2);
    drop(leaves);
    server.until("one has left", |_| held(&mut operator) == 1);
    server.until("it is counted", |_| answers(&mut operator, "upstream", "cut_short") == 1);
    std::fs::write(server.folder.join("policy.yaml"), OPEN).unwrap();
    assert_eq!(stays.answer().unwrap().status, 200);
    assert_eq!((held(&mut operator), waited(&mut operator)), (0, 1));
    server.until("it is counted", |_| answers(&mut operator, "upstream", "2xx") == 2);
}

/// The values of labels come from the routes file; requests of any kind add no series.
#[test]
fn clients_make_no_series() {
    let upstream = Upstream::start();
    let server = proxy(OPEN, &upstream.url(), &["--workers", "1"]);
    let mut operator = Operator::of(&server);
    let names = |operator: &mut Operator| {
        let text = operator.get("/metrics").body;
        let series = text.lines().filter(|line| !line.starts_with('#'));
        series.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!([get(&server, "/"), get(&server, "/status/404")], [200, 404]);
    let before = names(&mut operator);
    for number in 0..50 {
        let name = format!("x{number}");
        let fields = [("user-agent", name.as_str()), ("x-user", &name)];
        request(server.proxy, "GET", &format!("/{name}"), &fields, "");
        request(server.proxy, &name.to_uppercase(), "/status/404", &fields, "");
    }
    assert_eq!(names(&mut operator), before);
}

// === health ===

/// Two servers, both dead: at most half of a group is ejected, but the group is down.
#[test]
fn a_group_without_a_server_that_answers_makes_the_server_degraded() {
    let dead = [free_address(), free_address()];
    let [one, two] = dead;
    let routes = RoutesFile::new(&format!(
        "groups: {{ api: {{ servers: [\"http://{one}\", \"http://{two}\"] }} }}"
    ));
    let server = routes.serve(OPEN, &[]);
    assert!(server.get("/ready").body.contains("\"ready\""), "{:?}", server.get("/ready"));
    assert_eq!(get(&server, "/"), 502);
    server.until("the group is reported", |server| {
        server.get("/ready").body.contains("all upstream servers of group `api` are down")
    });
    assert_eq!(server.get("/ready").status, 200);
    assert!(server.get("/ready").body.contains("\"degraded\""));
    for address in dead {
        let line = format!("upstream server http://{address} is down: no connection can be made");
        server.until_logged(&line);
    }
    let mut operator = Operator::of(&server);
    let ejections: u64 = dead
        .iter()
        .map(|address| {
            of_server(&mut operator, "tidegate_upstream_ejections_total", "api", *address)
        })
        .sum();
    assert_eq!(ejections, 1);
    let _back = Upstream::at(one);
    server.until("one is back", |server| {
        get(server, "/");
        server.get("/ready").body.contains("\"ready\"")
    });
    server.until_logged(&format!("upstream server http://{one} is up again"));
}

/// Without any request, health checks notice that a server goes and comes back.
#[test]
fn health_checks_tell_that_a_server_is_down_and_back() {
    let address = free_address();
    let routes = RoutesFile::new(&format!(
        "groups: {{ api: {{ servers: [\"http://{address}\"], health: {{ path: /live, every: 100ms }} }} }}"
    ));
    let server = routes.serve(OPEN, &[]);
    server.until("it is down", |server| server.get("/ready").body.contains("are down"));
    server.until_logged("three health checks in a row failed");
    let _back = Upstream::at(address);
    server.until("it is back", |server| server.get("/ready").body.contains("\"ready\""));
}

// === draining ===

fn drain(operator: &mut Operator, server: &str, drain: bool) -> Reply {
    let body = json!({ "group": "api", "server": server, "drain": drain });
    operator.send("PUT", "/admin/v1/upstreams", &body)
}

#[test]
fn a_server_that_is_drained_finishes_its_requests_and_gets_no_more() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let [one, two] = upstreams.each_ref().map(Upstream::url);
    let text =
        |more: &str| format!("groups: {{ api: {{ servers: [\"{one}\", \"{two}\"]{more} }} }}");
    let routes = RoutesFile::new(&text(""));
    let server = routes.serve(OPEN, &[]);
    let mut operator = Operator::of(&server);
    let in_flight = |operator: &mut Operator| {
        operator.get("/admin/v1/upstreams").json()["groups"][0]["servers"][0]["in_flight"].clone()
    };
    // A request is held by the first server while it is drained.
    let held = upstreams[0].hold();
    let mut clients = Vec::new();
    while in_flight(&mut operator) == 0 {
        let address = server.proxy;
        clients.push(thread::spawn(move || request(address, "GET", "/held", &[], "").status));
    }
    let answer = drain(&mut operator, &one, true);
    assert_eq!(answer.status, 200, "{answer:?}");
    let shown = answer.json();
    let servers = &shown["groups"][0]["servers"];
    assert_eq!((&shown["groups"][0]["group"], &servers[0]["server"]), (&json!("api"), &json!(one)));
    assert_eq!((&servers[0]["draining"], &servers[1]["draining"]), (&json!(true), &json!(false)));
    assert_eq!((&servers[0]["state"], &servers[0]["ejected_ms"]), (&json!("up"), &Value::Null));
    assert_eq!(
        of_server(&mut operator, "tidegate_upstream_draining", "api", upstreams[0].address),
        1
    );
    for _ in 0..20 {
        assert_eq!(get(&server, "/new"), 200);
    }
    drop(held);
    assert!(clients.into_iter().all(|client| client.join().unwrap() == 200));
    assert!(!upstreams[0].seen().iter().any(|request| request.starts_with("GET /new")));
    // It stays drained when the settings of its group change.
    routes.write(&text(", concurrency: 7"));
    server.until_logged("the routes were read");
    for _ in 0..20 {
        assert_eq!(get(&server, "/new"), 200);
    }
    assert!(!upstreams[0].seen().iter().any(|request| request.starts_with("GET /new")));
    // A group whose servers are all drained refuses requests.
    assert_eq!(drain(&mut operator, &two, true).status, 200);
    assert_eq!(get(&server, "/none"), 503);
    server.until("`/ready` says so", |server| {
        server.get("/ready").body.contains("all upstream servers of group `api` are drained")
    });
    assert_eq!(drain(&mut operator, &one, false).status, 200);
    assert_eq!(get(&server, "/back"), 200);
    assert!(upstreams[0].seen().last().unwrap().starts_with("GET /back"));
}

#[test]
fn only_operators_drain_and_each_change_is_audited() {
    let upstream = Upstream::start();
    let text = format!("groups: {{ api: {{ servers: [\"{}\"] }} }}", upstream.url());
    let routes = RoutesFile::new(&text);
    let server = routes.serve(OPEN, &[]);
    let (mut operator, mut reader) = (Operator::of(&server), Operator::reader(&server));
    assert_eq!(reader.get("/admin/v1/upstreams").status, 200);
    assert_eq!(drain(&mut reader, &upstream.url(), true).status, 403);
    assert_eq!(request(server.admin, "GET", "/admin/v1/upstreams", &[], "").status, 401);
    assert_eq!(drain(&mut operator, &upstream.url(), true).status, 200);
    let audit = operator.get("/admin/v1/audit?last=1").json();
    assert_eq!((&audit[0]["who"], &audit[0]["what"]), (&json!("operator"), &json!("upstream")));
    let change = json!({ "group": "api", "server": upstream.url(), "drain": true });
    assert_eq!(audit[0]["details"]["change"], change);
    for (body, status) in [
        (json!({ "group": "nope", "server": upstream.url(), "drain": true }), 422),
        (json!({ "group": "api", "server": "http://127.0.0.9:9", "drain": true }), 422),
        (json!({ "group": "api", "server": "127.0.0.9", "drain": true }), 422),
        (json!({ "group": "api", "server": upstream.url() }), 400),
        (json!({ "group": "api", "server": upstream.url(), "drain": 1 }), 400),
        (json!({ "group": "api", "server": upstream.url(), "drain": true, "more": 1 }), 400),
    ] {
        let reply = operator.send("PUT", "/admin/v1/upstreams", &body);
        assert_eq!(reply.status, status, "{body}: {reply:?}");
    }
    assert_eq!(operator.get("/admin/v1/audit?last=9").json().as_array().unwrap().len(), 1);
}

#[test]
fn a_server_without_a_proxy_has_no_upstream_servers() {
    let server = Server::with_policy(OPEN, &[]);
    let mut operator = Operator::of(&server);
    assert_eq!(operator.get("/admin/v1/upstreams").json(), json!({ "groups": [] }));
    let reply = drain(&mut operator, "http://127.0.0.1:1", true);
    assert!(reply.status == 422 && reply.body.contains("proxy.listen"), "{reply:?}");
    assert!(!operator.get("/metrics").body.contains("tidegate_upstream"));
}

/// The limit of a shard is that of its home server, also while another server answers for it.
#[test]
fn draining_grants_no_fresh_allowance() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let [one, two] = upstreams.each_ref().map(Upstream::url);
    let routes = RoutesFile::new(&format!(
        "groups: {{ api: {{ servers: [\"{one}\", \"{two}\"], balance: {{ hash: path }} }} }}"
    ));
    let policy = "{ version: 1, rules: [{ name: shard, key: [upstream], limits: [{ rate: 2/day, algorithm: fixed_window, align: first }] }] }";
    let server = routes.serve(policy, &[]);
    let mut operator = Operator::of(&server);
    assert_eq!(get(&server, "/shard"), 200);
    let (home, other) = if upstreams[0].seen().is_empty() { (&two, 0) } else { (&one, 1) };
    assert_eq!(drain(&mut operator, home, true).status, 200);
    assert_eq!(get(&server, "/shard"), 200);
    assert_eq!(upstreams[other].seen().len(), 1);
    assert_eq!(get(&server, "/shard"), 429);
}

// === the access log ===

/// A server with an access log in its folder.
struct Logged {
    server: Server,
    path: PathBuf,
    folder: PathBuf,
}

impl Logged {
    fn start(policy: &str, url: &str, flags: &[&str]) -> Self {
        let folder = support::folder("access");
        let path = folder.join("access.log");
        let mut all = vec!["--proxy-access-log", path.to_str().unwrap()];
        all.extend(flags);
        let server = proxy(policy, url, &all);
        Self { server, path, folder }
    }

    /// The lines of the log, once there are this many.
    fn lines(&self, count: usize) -> Vec<Value> {
        let text = || support::whole_lines(&self.path);
        self.server.until(&format!("{count} lines"), |_| text().lines().count() >= count);
        let text = text();
        assert_eq!(text.lines().count(), count, "{text}");
        let harmless =
            |c: char| c == '\n' || !(c.is_control() || matches!(c, '\u{2028}'..='\u{202e}'));
        assert!(text.chars().all(harmless), "{text:?}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[test]
fn a_line_tells_everything_about_a_request_but_its_query() {
    let upstream = Upstream::start();
    let log = Logged::start(OPEN, &upstream.url(), &[]);
    let traceparent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let fields = [("traceparent", traceparent.as_str()), ("tracestate", "a=1,b=2")];
    let reply = request(log.server.proxy, "POST", "/a/b?token=secret", &fields, "four");
    assert_eq!(reply.status, 200);
    let line = &log.lines(1)[0];
    for (name, expected) in [
        ("trace", json!(TRACE)),
        ("peer", json!("127.0.0.1")),
        ("method", json!("POST")),
        ("host", json!(log.server.proxy.to_string())),
        ("path", json!("/a/b")),
        ("group", json!("upstream")),
        ("server", json!(upstream.url())),
        ("status", json!(200)),
        ("answer", json!("2xx")),
        ("decision", json!("passed")),
        ("rule", Value::Null),
        ("wait_ms", json!(0.0)),
        ("bytes_in", json!(4)),
        ("bytes_out", json!(5)),
        ("complete", json!(true)),
    ] {
        assert_eq!(line[name], expected, "{name} of {line}");
    }
    let number = |name: &str| line[name].as_f64().unwrap();
    assert!(number("total_ms") >= number("upstream_ms"), "{line}");
    assert!(line["at_ms"].as_u64().unwrap() > 1_700_000_000_000, "{line}");
    // The upstream server got the same id, and the fields of the trace unchanged.
    let seen = &upstream.seen()[0];
    for (name, value) in [("x-request-id", line["id"].as_str().unwrap()), fields[0], fields[1]] {
        let field = format!("{name}: {value}\r\n");
        assert_eq!(seen.matches(&field).count(), 1, "{field} in {seen}");
    }
    assert!(!line.to_string().contains("secret"), "{line}");
}

#[test]
fn refusals_and_errors_are_always_written_and_successes_are_sampled() {
    let upstream = Upstream::start();
    let policy =
        "{ version: 1, rules: [{ name: few, match: { path: /few }, key: [], limits: [1/day] }] }";
    let flags = ["--proxy-access-log-sample", "10", "--workers", "1"];
    let log = Logged::start(policy, &upstream.url(), &flags);
    for _ in 0..19 {
        assert_eq!(get(&log.server, "/well"), 200);
    }
    // The twentieth success; then refusals and an error.
    let statuses = ["/few", "/few", "/few", "/status/503"].map(|path| get(&log.server, path));
    assert_eq!(statuses, [200, 429, 429, 503]);
    let lines = log.lines(5);
    let told = |line: &Value| {
        let words = ["path", "answer", "decision", "rule"].map(|name| line[name].clone());
        json!(words)
    };
    let told: Vec<Value> = lines.iter().map(told).collect();
    let refused = json!(["/few", "refused", "refused", "few"]);
    let passed = json!(["/well", "2xx", "passed", null]);
    let failed = json!(["/status/503", "5xx", "passed", null]);
    assert_eq!(told, [passed.clone(), passed, refused.clone(), refused, failed]);
    assert_eq!((&lines[2]["status"], &lines[2]["server"]), (&json!(429), &Value::Null));
}

#[test]
fn requests_that_waited_or_found_no_answer_are_told() {
    let dead = free_address();
    let policy = "{ version: 1, rules: [{ name: slow, key: [], on_limit: { delay: { max_wait: 1h } }, limits: [{ rate: 3/h, burst: 1 }] }] }";
    let log = Logged::start(policy, &format!("http://{dead}"), &[]);
    assert_eq!(get(&log.server, "/first"), 502);
    let [mut stays, leaves] = ["/stays", "/leaves"].map(|path| {
        let mut wire = Wire::to(log.server.proxy);
        wire.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        wire
    });
    let mut operator = Operator::of(&log.server);
    log.server.until("both wait", |_| {
        of_group(&mut operator, "tidegate_proxy_held_requests", "upstream") == 2
    });
    drop(leaves);
    let line = &log.lines(2)[1];
    assert_eq!((&line["path"], &line["answer"]), (&json!("/leaves"), &json!("cut_short")));
    assert_eq!((&line["status"], &line["complete"]), (&Value::Null, &json!(false)));
    std::fs::write(log.server.folder.join("policy.yaml"), OPEN).unwrap();
    assert_eq!(stays.answer().unwrap().status, 502);
    let lines = log.lines(3);
    let told = |line: &Value| {
        let words = ["answer", "decision", "status"].map(|name| line[name].clone());
        json!(words)
    };
    assert_eq!(told(&lines[0]), json!(["unreachable", "passed", 502]));
    assert_eq!(told(&lines[2]), json!(["unreachable", "delayed", 502]));
    assert!(lines[2]["wait_ms"].as_f64().unwrap() > 0.0, "{}", lines[2]);
    assert_eq!(lines[2]["server"], json!(format!("http://{dead}")));
}

#[test]
fn what_clients_send_is_shortened_and_harmless() {
    let upstream = Upstream::start();
    let log = Logged::start(OPEN, &upstream.url(), &[]);
    let long = format!("/{}", "x".repeat(5_000));
    let mut wire = Wire::to(log.server.proxy);
    // The server refuses methods that are longer than any that is registered.
    let method = "UPDATEREDIRECTREF";
    wire.send(
        format!(
            "{method} {long} HTTP/1.1\r\nhost: x\r\ntraceparent: \"}},{{\u{202e}\u{85}\r\n\r\n"
        )
        .as_bytes(),
    );
    assert_eq!(wire.answer().unwrap().status, 200);
    let Answer::Whole { status, .. } = Two::to(log.server.proxy).asked("GET", "/two", b"") else {
        panic!("no answer")
    };
    assert_eq!(status, 200);
    let lines = log.lines(2);
    assert!(lines[0]["path"].as_str().unwrap().chars().count() < 600, "{}", lines[0]);
    assert_eq!(lines[0]["method"], json!(method));
    assert_eq!(lines[0]["trace"], Value::Null);
    assert_eq!((&lines[1]["path"], &lines[1]["complete"]), (&json!("/two"), &json!(true)));
    assert_eq!(lines[1]["bytes_out"], json!(5));
}

/// Nothing reads the standard output: the pipe is full after 64 KiB, and the queue after 4,096 lines. Requests are served all
/// the same, and every line that was dropped is counted.
#[test]
fn a_log_that_is_not_read_delays_no_request() {
    let policy = "{ version: 1, rules: [{ name: none, key: [], limits: [{ rate: 1/day, algorithm: fixed_window, align: first }] }] }";
    let upstream = Upstream::start();
    let server = proxy(policy, &upstream.url(), &["--proxy-access-log", "stdout"]);
    let mut wire = Wire::to(server.proxy);
    for number in 0..6_000 {
        wire.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        let status = wire.answer().unwrap().status;
        assert_eq!(status, if number == 0 { 200 } else { 429 });
    }
    let dropped = server.metric("tidegate_access_log_lines_dropped_total");
    assert!((500..2_000).contains(&dropped), "{dropped}");
}

#[test]
fn the_last_lines_are_written_before_the_server_ends() {
    let upstream = Upstream::start();
    let mut log = Logged::start(OPEN, &upstream.url(), &[]);
    for _ in 0..50 {
        assert_eq!(get(&log.server, "/"), 200);
    }
    log.server.signal("TERM");
    assert!(log.server.wait().success());
    let text = std::fs::read_to_string(&log.path).unwrap();
    assert_eq!(text.lines().count(), 50);
}

#[test]
fn a_log_that_cannot_be_opened_is_told_before_the_start() {
    let folder = support::folder("access");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--http-listen", "127.0.0.1:0", "--admin-listen", "off"])
        .args(["--grpc-listen", "off", "--resp-listen", "off", "--proxy-listen", "127.0.0.1:0"])
        .args(["--proxy-upstream", "http://127.0.0.1:1", "--proxy-access-log"])
        .arg(folder.join("no/such/folder.log"))
        .arg("--data-dir")
        .arg(folder.join("data"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("proxy.access_log"), "{said}");
    std::fs::remove_dir_all(folder).unwrap();
}
