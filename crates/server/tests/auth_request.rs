//! The auth sub-request of the reverse proxy: `auth: { url: … }` in the routes file.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

use crate::support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use support::http1::Wire;
use support::upstream::listen;
use support::{Reply, Server, folder, request};

/// A user may send 2 requests an hour, and an address 6.
const POLICY: &str = "
version: 1
identity: { user: 'auth:X-User' }
rules:
  - { name: per-user, key: [user], limits: [2/h] }
  - { name: per-address, key: [ip], limits: [6/h] }
";

/// A server that remembers the requests that it got.
struct Remembering {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Remembering {
    /// Answers each request with the bytes that `answer` makes of it.
    fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let remembered = Arc::clone(&seen);
        let address = listen(move |mut stream| {
            let mut text = String::new();
            let mut buffer = [0; 4096];
            loop {
                let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                    if Reply::parse(head).field("transfer-encoding").is_some() {
                        return body.ends_with("\r\n\r\n");
                    }
                    let length = Reply::parse(head).field("content-length").map(str::to_owned);
                    body.len() >= length.map_or(0, |length| length.parse().unwrap())
                });
                if whole {
                    let answer = answer(&text);
                    remembered.lock().unwrap().push(std::mem::take(&mut text));
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
                let Ok(count @ 1..) = stream.read(&mut buffer) else { return };
                text.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { address, seen }
    }

    /// An upstream server.
    fn site() -> Self {
        Self::start(|_| "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nsite".to_owned())
    }

    /// An auth server that takes the token for the name of the user.
    fn auth() -> Self {
        Self::start(|request| {
            match field(request, "authorization") {
            Some("mallory") => "HTTP/1.1 403 Forbidden\r\nx-why: banned\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nno".to_owned(),
            Some(status) if status.parse::<u16>().is_ok() => format!("HTTP/1.1 {status} No\r\ncontent-length: 2\r\n\r\nno"),
            Some("broken") => "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n".to_owned(),
            Some("twice") => "HTTP/1.1 200 OK\r\nx-user: a\r\nx-user: b\r\ncontent-length: 0\r\n\r\n".to_owned(),
            Some(name) => format!("HTTP/1.1 204 No Content\r\nX-User: {name}\r\nx-plan: pro\r\n\r\n"),
            None => "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic\r\ncontent-length: 0\r\n\r\n".to_owned(),
        }
        })
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// A field of a request, as text.
fn field<'r>(request: &'r str, name: &str) -> Option<&'r str> {
    let lines = request.lines().take_while(|line| !line.is_empty());
    let mut fields = lines.filter_map(|line| line.split_once(": "));
    fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// A server before this site, with these keys of `auth`.
/// The auth server has 30 s for its answer, so that a busy machine is not taken for a server that does not answer.
fn server(policy: &str, site: SocketAddr, auth: SocketAddr, keys: &str) -> Server {
    let patient = format!("{keys}, timeout: 30s");
    let keys = if keys.contains("timeout") { keys } else { &patient };
    let folder = folder("routes");
    let path = folder.join("routes.yaml");
    let auth = format!("{{ url: 'http://{auth}/verify?x=1', headers: [x-user]{keys} }}");
    let text = format!("groups: {{ site: {{ servers: ['http://{site}'], auth: {auth} }} }}\n");
    std::fs::write(&path, text).unwrap();
    let flags = ["--proxy-listen", "127.0.0.1:0", "--proxy-routes", path.to_str().unwrap()];
    Server::with_policy(policy, &flags)
}

fn get(server: &Server, token: Option<&str>) -> Reply {
    let fields = token.map(|token| ("authorization", token));
    request(server.proxy, "GET", "/", fields.as_slice(), "")
}

#[test]
fn the_auth_server_says_who_the_user_is() {
    let (site, auth) = (Remembering::site(), Remembering::auth());
    let server = server(POLICY, site.address, auth.address, "");
    let forged = [("authorization", "alice"), ("x-user", "bob"), ("x_user", "bob")];
    let reply = request(server.proxy, "POST", "/a?b=c", &forged, "body");
    assert_eq!((reply.status, reply.body.as_str()), (200, "site"));
    for (token, expected) in [("alice", 200), ("alice", 429), ("bob", 200)] {
        assert_eq!(get(&server, Some(token)).status, expected);
    }
    // What the auth server was asked: the head, and not the body.
    let asked = &auth.seen()[0];
    assert!(asked.starts_with("GET /verify?x=1 HTTP/1.1\r\n"), "{asked}");
    for (name, expected) in [
        ("x-forwarded-method", "POST"),
        ("x-forwarded-uri", "/a?b=c"),
        ("x-forwarded-for", "127.0.0.1"),
        ("authorization", "alice"),
        ("host", &auth.address.to_string()),
    ] {
        assert_eq!(field(asked, name), Some(expected), "{asked}");
    }
    assert!(field(asked, "content-length").is_none() && asked.ends_with("\r\n\r\n"), "{asked}");
    // What the upstream server got: the user of the auth server alone.
    let got = &site.seen()[0];
    assert!(got.contains("x-user: alice") && got.ends_with("body"), "{got}");
    assert!(!got.contains("bob") && !got.contains("x-plan"), "{got}");
}

#[test]
fn its_refusals_are_passed_on_and_count_for_the_address() {
    let (site, auth) = (Remembering::site(), Remembering::auth());
    let server = server(POLICY, site.address, auth.address, "");
    let reply = get(&server, Some("mallory"));
    assert_eq!((reply.status, reply.body.as_str()), (403, "no"));
    assert_eq!(
        (reply.field("x-why"), reply.field("content-type")),
        (Some("banned"), Some("text/plain"))
    );
    let reply = get(&server, None);
    assert_eq!((reply.status, reply.field("www-authenticate")), (401, Some("Basic")));
    for expected in [403, 403, 403, 403, 429] {
        assert_eq!(get(&server, Some("mallory")).status, expected);
    }
    assert_eq!(site.seen(), [""; 0]);
}

#[test]
fn an_address_cannot_flood_the_auth_server() {
    let (site, auth) = (Remembering::site(), Remembering::auth());
    let server = server(POLICY, site.address, auth.address, ", limit: 3/h");
    for (token, expected) in [("alice", 200), ("mallory", 403), ("bob", 200), ("carol", 429)] {
        assert_eq!(get(&server, Some(token)).status, expected);
    }
    let options = request(server.proxy, "OPTIONS", "/", &[("authorization", "carol")], "");
    assert_eq!(options.status, 429);
    assert_eq!(auth.seen().len(), 3);
}

#[test]
fn without_a_valid_answer_nothing_passes_unless_the_routes_say_so() {
    let (site, auth) = (Remembering::site(), Remembering::auth());
    let policy = POLICY.replace("6/h", "1000000/h");
    let strict = server(&policy, site.address, auth.address, "");
    for token in ["broken", "twice"] {
        let reply = get(&strict, Some(token));
        assert_eq!(reply.status, 502, "{reply:?}");
        assert!(reply.body.contains("the auth server"), "{reply:?}");
    }
    // It accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().map(|address| (address, silent)).unwrap();
    let late = server(&policy, site.address, silent.0, ", timeout: 20ms");
    assert_eq!(get(&late, Some("alice")).status, 504);
    assert_eq!(site.seen(), [""; 0]);
    let open = server(&policy, site.address, auth.address, ", on_error: allow");
    let fields = [("authorization", "broken"), ("x-user", "bob")];
    for _ in 0..3 {
        assert_eq!(request(open.proxy, "GET", "/", &fields, "").status, 200);
    }
    assert!(site.seen().iter().all(|request| field(request, "x-user").is_none()));
}

/// Node answers 431 to fields above 16 KiB, and other servers 400 to what they cannot read. That was once taken for a failure of the auth
/// server, so that `on_error: allow` let a request pass whose client had caused it.
#[test]
fn a_client_cannot_make_the_auth_server_fail() {
    let (site, auth) = (Remembering::site(), Remembering::auth());
    let policy = POLICY.replace("6/h", "1000000/h");
    let open = server(&policy, site.address, auth.address, ", on_error: allow, limit: off");
    for status in ["400", "404", "413", "414", "429", "431", "499"] {
        let reply = get(&open, Some(status));
        assert_eq!((reply.status.to_string().as_str(), reply.body.as_str()), (status, "no"));
    }
    assert_eq!((site.seen().len(), auth.seen().len()), (0, 7));
    // What it may be unable to read is not sent to it.
    let cookie = format!("a={}", "x".repeat(4_500));
    let target = format!("/?{}", "x".repeat(4_500));
    let asked = |server: &Server, target: &str, fields: &[(&str, &str)]| {
        let fields = [&[("authorization", "alice")], fields].concat();
        request(server.proxy, "GET", target, &fields, "").status
    };
    assert_eq!(asked(&open, &target, &[("cookie", &cookie)]), 431);
    assert_eq!((site.seen().len(), auth.seen().len()), (0, 7));
    assert_eq!(asked(&open, &target, &[]), 200);
    assert_eq!(asked(&open, "/", &[("cookie", &cookie)]), 200);
    // `send` narrows what it gets, and so what may be too large. The upstream server gets everything.
    let narrow = server(&policy, site.address, auth.address, ", limit: off, send: [Authorization]");
    let fields = [("cookie", cookie.as_str()), ("x-user", "bob"), ("x-forwarded-for", "10.0.0.1")];
    assert_eq!(asked(&narrow, &target, &fields), 200);
    let asked = auth.seen().pop().unwrap();
    let (got, long) = (site.seen().pop().unwrap(), Some(cookie.as_str()));
    let authority = auth.address.to_string();
    assert_eq!((field(&asked, "cookie"), field(&got, "cookie")), (None, long));
    for (name, expected) in [
        ("authorization", Some("alice")),
        ("x-user", None),
        ("x-forwarded-uri", Some(target.as_str())),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("host", Some(authority.as_str())),
    ] {
        assert_eq!(field(&asked, name), expected, "{name}");
    }
}

/// A trailer was once passed on beside the field that the auth server sets.
#[test]
fn a_trailer_cannot_name_another_user() {
    let (site, auth) = (Remembering::site(), Remembering::auth());
    let server = server(POLICY, site.address, auth.address, "");
    let head =
        "POST / HTTP/1.1\r\nhost: site\r\nauthorization: alice\r\ntransfer-encoding: chunked\r\n";
    let body = "trailer: x-user, x_user, sum\r\n\r\n1\r\na\r\n0\r\nx-user: root\r\nX_User: root\r\nsum: 5\r\n\r\n";
    let mut wire = Wire::to(server.proxy);
    wire.send(format!("{head}{body}").as_bytes());
    assert_eq!(wire.answer().unwrap().status, 200);
    let got = site.seen().pop().unwrap();
    assert!(
        got.contains("x-user: alice") && got.contains("sum: 5") && !got.contains("root"),
        "{got}"
    );
}
