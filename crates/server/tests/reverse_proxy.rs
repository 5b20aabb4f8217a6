//! The reverse proxy, between clients and upstream servers that are written by hand, byte by byte.

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

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use support::http1::Wire;
use support::http2::{Answer, Two};
use support::upstream::free_address;
use support::{Reply, Server, connect, request};

const OPEN: &str = "
version: 1
rules: [{ name: all, key: [ip], limits: [1000000/min] }]
";

/// An upstream server. It remembers every request that it read, as text, and when.
struct Upstream {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Upstream {
    /// Starts a server that answers each request with the bytes that `answer` makes of it. An answer that does not begin with
    /// `keep` is the last one of its connection.
    fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let (remembered, answer) = (Arc::clone(&seen), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (Arc::clone(&remembered), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        Self { address, seen }
    }

    /// A server that says what it was asked for.
    fn echo() -> Self {
        Self::start(|request| keep(&format!("saw {}", request.lines().next().unwrap())))
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(_, text)| text.clone()).collect()
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<(Instant, String)>>,
    answer: &dyn Fn(&str) -> String,
) {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let whole = text.split_once("\r\n\r\n").filter(|(head, body)| {
            let reply = Reply::parse(head);
            let length = reply.field("content-length").map_or(0, |length| length.parse().unwrap());
            match reply.field("transfer-encoding") {
                Some(_) => body.ends_with("\r\n\r\n") || body.ends_with("0\r\n\r\n"),
                None => body.len() >= length,
            }
        });
        if whole.is_some() {
            seen.lock().unwrap().push((now(), text.clone()));
            bytes.clear();
            let answer = answer(&text);
            let (keeps, answer) = match answer.strip_prefix("keep ") {
                Some(rest) => (true, rest),
                None => (false, answer.as_str()),
            };
            if stream.write_all(answer.as_bytes()).is_err() || !keeps {
                return;
            }
            continue;
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the turns of a leaky bucket are real time")]
fn now() -> Instant {
    Instant::now()
}

/// How many connections a server on this port holds, according to the kernel.
fn open_connections(address: SocketAddr) -> usize {
    const ESTABLISHED: &str = "01";
    const CLOSED_BY_CLIENT: &str = "08";
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{:04X}", address.port());
    let held = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let is_ours = words.next().is_some_and(|local| local.ends_with(&port));
        is_ours
            && words.nth(1).is_some_and(|state| [ESTABLISHED, CLOSED_BY_CLIENT].contains(&state))
    };
    table.lines().filter(held).count()
}

/// An answer with this body, after which the connection stays open.
fn keep(body: &str) -> String {
    format!("keep HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A server whose proxy forwards to this URL.
fn proxy(policy: &str, url: &str) -> Server {
    Server::with_policy(policy, &["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", url])
}

fn get(server: &Server, path: &str) -> Reply {
    request(server.proxy, "GET", path, &[], "")
}

#[test]
fn requests_and_answers_pass_with_their_bodies() {
    let upstream = Upstream::echo();
    let server = proxy(OPEN, &upstream.url());
    assert_eq!(get(&server, "/a%20b?q=1").body, "saw GET /a%20b?q=1 HTTP/1.1");
    let mut wire = Wire::to(server.proxy);
    wire.send(b"POST /up HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: sum\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nsum: 5\r\n\r\n");
    assert_eq!(wire.answer().unwrap().body, "saw POST /up HTTP/1.1");
    // The connection is still open.
    wire.send(b"POST /two HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody");
    assert_eq!(wire.answer().unwrap().body, "saw POST /two HTTP/1.1");
    let seen = upstream.seen();
    assert!(seen[1].contains("3\r\nabc\r\n") && seen[1].contains("sum: 5"), "{seen:?}");
    assert!(seen[2].ends_with("\r\n\r\nbody") && seen[2].contains("content-length: 4"), "{seen:?}");
}

#[test]
fn http2_clients_are_served_too() {
    let upstream = Upstream::echo();
    let server = proxy(OPEN, &upstream.url());
    let mut two = Two::to(server.proxy);
    let Answer::Whole { status, body } = two.asked("GET", "/two", b"") else { panic!("no answer") };
    assert_eq!((status, String::from_utf8(body).unwrap().as_str()), (200, "saw GET /two HTTP/1.1"));
    assert!(upstream.seen()[0].contains("host: "), "{:?}", upstream.seen());
}

#[test]
fn what_a_limit_refuses_does_not_reach_the_upstream_server() {
    let upstream = Upstream::echo();
    let policy = "{ version: 1, rules: [{ name: all, key: [ip], limits: [2/day] }] }";
    let server = proxy(policy, &upstream.url());
    let mut wire = Wire::to(server.proxy);
    for status in [200, 200, 429, 429] {
        wire.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        let answer = wire.answer().unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.field("ratelimit").is_some(), "{answer:?}");
        assert_eq!(answer.field("retry-after").is_some(), status == 429, "{answer:?}");
    }
    assert_eq!(upstream.seen().len(), 2);
    // A preflight is not limited, and the refusal can be read by a script.
    wire.send(b"OPTIONS / HTTP/1.1\r\nhost: x\r\norigin: https://y\r\naccess-control-request-method: PUT\r\n\r\n");
    assert_eq!(wire.answer().unwrap().status, 200);
    wire.send(b"GET / HTTP/1.1\r\nhost: x\r\norigin: http://other\r\n\r\n");
    let refused = wire.answer().unwrap();
    let exposed = "access-control-expose-headers";
    assert!(refused.field(exposed).unwrap().contains("Retry-After"), "{refused:?}");
}

/// Every request gets its turn, one after another; the last turn comes no sooner than all the others took.
#[test]
fn a_leaky_bucket_holds_requests_until_their_turn() {
    const REQUESTS: usize = 6;
    const GAP: Duration = Duration::from_millis(50);
    let upstream = Upstream::echo();
    let policy = "{ version: 1, rules: [{ name: all, key: [ip], limits: [{ rate: 20/s, algorithm: leaky_bucket, queue: 100 }] }] }";
    let server = proxy(policy, &upstream.url());
    let begun = now();
    let clients: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let address = server.proxy;
            thread::spawn(move || request(address, "GET", "/", &[], "").status)
        })
        .collect();
    let statuses: Vec<u16> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert_eq!(statuses, [200; REQUESTS]);
    let seen = upstream.seen.lock().unwrap();
    for (turn, (at, _)) in (0..).zip(seen.iter()) {
        // A millisecond for the resolution of timers.
        assert!(*at + Duration::from_millis(1) >= begun + GAP * turn, "turn {turn}");
    }
}

/// A client that goes away while it waits frees its place: it never reaches the upstream server.
#[test]
fn a_client_that_goes_away_leaves_the_queue() {
    let upstream = Upstream::start(|_| {
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_owned()
    });
    let policy = "{ version: 1, rules: [{ name: all, key: [], on_limit: { delay: { max_wait: 1h } }, limits: [{ rate: 1/h, burst: 1 }] }] }";
    let server = proxy(policy, &upstream.url());
    assert_eq!(get(&server, "/first").status, 200);
    let open = |server: &Server| open_connections(server.proxy);
    server.until("its connection is closed", |server| open(server) == 0);
    let mut waiting = Wire::to(server.proxy);
    waiting.send(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n");
    server.until("it is connected", |server| open(server) == 1);
    drop(waiting);
    server.until("the server has noticed", |server| open(server) == 0);
    // The limit is raised, so a request that still waited would be let through.
    let path = server.folder.join("policy.yaml");
    std::fs::write(path, OPEN).unwrap();
    server.until("the new policy is in force", |server| get(server, "/after").status == 200);
    let seen = upstream.seen();
    assert!(!seen.iter().any(|request| request.starts_with("GET /waits")), "{seen:?}");
}

#[test]
fn messages_that_can_be_read_in_two_ways_are_refused_on_both_sides() {
    let upstream = Upstream::start(|request| {
        let path = request.split(' ').nth(1).unwrap();
        let answers = [
            (
                "/both",
                "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            ),
            ("/lengths", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd"),
            ("/words", "HTTP/1.1 200 OK\r\ncontent-length: three\r\n\r\nabc"),
            ("/coding", "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
            ("/noise", "SSH-2.0-OpenSSH_9.2\r\n"),
            ("/nothing", ""),
            (
                "/switch",
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
            ),
        ];
        let found = answers.iter().find(|(name, _)| *name == path);
        found.map_or_else(|| keep("fine"), |(_, answer)| (*answer).to_owned())
    });
    let server = proxy(OPEN, &upstream.url());
    for path in ["/both", "/lengths", "/words", "/coding", "/noise", "/nothing", "/switch"] {
        assert_eq!(get(&server, path).status, 502, "{path}");
    }
    let before = upstream.seen().len();
    for request in [
        "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "GET /x HTTP/1.1\nhost: x\n\n",
        "GET /x HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        "GET /x HTTP/1.1\r\nhost : x\r\n\r\n",
        "GET http://y/x HTTP/1.1\r\nhost: x\r\n\r\n",
        "CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    ] {
        let mut stream = connect(server.proxy);
        stream.write_all(request.as_bytes()).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(Reply::parse(&all).status >= 400, "{request:?}: {all:?}");
    }
    assert_eq!(upstream.seen().len(), before);
    assert_eq!(get(&server, "/fine").body, "fine");
}

#[test]
fn a_websocket_passes_in_both_directions() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let accept = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello";
        stream.write_all(accept).unwrap();
        let mut sent = String::new();
        stream.read_to_string(&mut sent).unwrap();
        stream.write_all(sent.to_uppercase().as_bytes()).unwrap();
        String::from_utf8(head).unwrap()
    });
    let server = proxy(OPEN, &url);
    let mut stream = connect(server.proxy);
    stream
        .write_all(
            b"GET /chat HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
        )
        .unwrap();
    let mut all = String::new();
    while !all.ends_with("hello") {
        let mut buffer = [0; 512];
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{all}");
        all.push_str(str::from_utf8(&buffer[..count]).unwrap());
    }
    assert!(all.starts_with("HTTP/1.1 101 "), "{all}");
    stream.write_all(b"abc").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "ABC");
    assert!(upstream.join().unwrap().contains("upgrade: websocket"));
}

/// A request that could not be sent is sent to another server, and a server that refuses connections gets no more of them.
#[test]
fn a_dead_server_costs_no_request() {
    let dead = free_address();
    let upstreams = [Upstream::echo(), Upstream::echo()];
    let folder = support::folder("routes");
    let path = folder.join("routes.yaml");
    let [one, two] = upstreams.each_ref().map(Upstream::url);
    let routes =
        format!("groups: {{ api: {{ servers: [\"http://{dead}\", \"{one}\", \"{two}\"] }} }}");
    std::fs::write(&path, routes).unwrap();
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-routes", path.to_str().unwrap()];
    let server = Server::with_policy(OPEN, &flags);
    for _ in 0..50 {
        assert_eq!(get(&server, "/").status, 200);
    }
    assert!(upstreams.iter().all(|upstream| !upstream.seen().is_empty()));
    server.until_logged("gets no requests for now");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn routes_lead_by_host_and_path_and_are_read_again() {
    let (api, shop) = (Upstream::echo(), Upstream::echo());
    let folder = support::folder("routes");
    let path = folder.join("routes.yaml");
    let routes = |first: &str| {
        format!(
            "groups:\n  api: {{ servers: [\"{}\"] }}\n  shop: {{ servers: [\"{}\"] }}\nroutes:\n  - {first}\n  - {{ path: /api/**, group: api }}\n",
            api.url(),
            shop.url()
        )
    };
    std::fs::write(&path, routes("{ host: shop.example, group: shop }")).unwrap();
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-routes", path.to_str().unwrap()];
    let server = Server::with_policy(OPEN, &flags);
    let ask = |host: &str, path: &str| {
        let mut wire = Wire::to(server.proxy);
        wire.send(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes());
        wire.answer().unwrap().status
    };
    assert_eq!(
        [ask("shop.example", "/x"), ask("other", "/api/x"), ask("other", "/x")],
        [200, 200, 404]
    );
    assert_eq!((shop.seen().len(), api.seen().len()), (1, 1));
    // A file that is not valid changes nothing, and `/ready` says why.
    std::fs::write(&path, "groups: {}").unwrap();
    server.until("the problem is reported", |server| server.get("/ready").body.contains("routes"));
    assert_eq!(ask("shop.example", "/x"), 200);
    std::fs::write(&path, routes("{ host: other, group: shop }")).unwrap();
    server.until("the new routes are in force", |_| ask("shop.example", "/x") == 404);
    assert_eq!(ask("other", "/x"), 200);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Only failures are counted, as the upstream server reports them; a client cannot say what its outcome is.
#[test]
fn outcomes_are_counted() {
    let upstream = Upstream::start(|request| {
        let answer = |status: &str, fields: &str| {
            format!("keep HTTP/1.1 {status}\r\n{fields}content-length: 0\r\n\r\n")
        };
        match request.split(' ').nth(1).unwrap() {
            "/wrong" => answer("401 Unauthorized", ""),
            "/said" => answer("200 OK", "tidegate-outcome: failure\r\n"),
            "/down" => answer("500 Internal Server Error", ""),
            _ => answer("200 OK", ""),
        }
    });
    let policy =
        "{ version: 1, rules: [{ name: logins, key: [ip], count: failures, limits: [2/day] }] }";
    let server = proxy(policy, &upstream.url());
    for _ in 0..5 {
        assert_eq!((get(&server, "/right").status, get(&server, "/down").status), (200, 500));
    }
    assert_eq!(get(&server, "/wrong").status, 401);
    let said = get(&server, "/said");
    assert_eq!((said.status, said.field("tidegate-outcome")), (200, None));
    assert_eq!(get(&server, "/right").status, 429);
    let forged = request(server.proxy, "GET", "/right", &[("tidegate-outcome", "success")], "");
    assert_eq!(forged.status, 429);
    assert!(upstream.seen().iter().all(|request| !request.contains("tidegate-outcome")));
}

/// A browser gets a page, a program the problem document, and both the same header fields.
#[test]
fn refusals_have_the_body_that_the_client_accepts() {
    let upstream = Upstream::echo();
    let folder = support::folder("routes");
    let path = folder.join("routes.yaml");
    let routes = format!(
        "groups: {{ api: {{ servers: [\"{}\"] }} }}\nrefusals: {{ text/html: \"<p>wait {{retry_after}} s\" }}\n",
        upstream.url()
    );
    std::fs::write(&path, routes).unwrap();
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-routes", path.to_str().unwrap()];
    let policy = "{ version: 1, rules: [{ name: all, key: [ip], limits: [{ rate: 1/day, algorithm: fixed_window, align: first }] }] }";
    let server = Server::with_policy(policy, &flags);
    assert_eq!(get(&server, "/").status, 200);
    let ask = |accept| request(server.proxy, "GET", "/", &[("accept", accept)], "");
    let (page, problem) = (ask("text/html,*/*;q=0.8"), ask("*/*"));
    assert_eq!((page.status, page.field("content-type")), (429, Some("text/html")));
    let seconds = page.field("retry-after").unwrap();
    assert_eq!(page.body, format!("<p>wait {seconds} s"));
    assert_eq!(problem.field("content-type"), Some("application/problem+json"));
    assert!(page.field("ratelimit").is_some() && problem.json()["status"] == 429);
    std::fs::remove_dir_all(folder).unwrap();
}
