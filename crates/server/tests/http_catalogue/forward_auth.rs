//! Forward auth: a client may have written anything that its proxy passes on.

use super::case::get;
use crate::support::http1::Wire;
use crate::support::{Reply, Server};

/// The proxy is this machine. Each rule is about another part of a request that a client can spell in several ways.
const POLICY: &str = "
version: 1
identity:
  trusted: [127.0.0.0/8]
  user: header:x-user
  session: cookie:sid
rules:
  - { name: login, match: { path: /api/login }, key: [], limits: [{ rate: 1000/h, algorithm: fixed_window, align: first }] }
  - { name: address, match: { path: /address }, key: [ip], limits: [{ rate: 1000/h, algorithm: fixed_window, align: first }] }
  - { name: session, match: { path: /session }, key: [session], limits: [{ rate: 1000/h, algorithm: fixed_window, align: first }] }
  - { name: anybody, match: { path: /anybody }, key: [session|ip], limits: [{ rate: 1000/h, algorithm: fixed_window, align: first }] }
  - { name: once, match: { path: /once }, key: [user], limits: [{ rate: 1/h, algorithm: fixed_window, align: first }] }
";

/// Asks about a request to this target, with these additional header lines.
fn ask(server: &Server, target: &[u8], lines: &[u8]) -> Reply {
    let mut bytes =
        b"GET /v1/auth HTTP/1.1\r\nhost: t\r\nx-forwarded-method: GET\r\nx-forwarded-uri: "
            .to_vec();
    bytes.extend_from_slice(target);
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(lines);
    bytes.extend_from_slice(b"\r\n");
    let mut wire = Wire::to(server.http);
    wire.send(&bytes);
    wire.answer().unwrap()
}

/// How much is left of a limit, according to an answer; `None` if no limit applied.
fn left(reply: &Reply) -> Option<u64> {
    let state = reply.field("ratelimit")?;
    state.split(';').find_map(|part| part.strip_prefix("r=")).map(|left| left.parse().unwrap())
}

/// A client must not escape the limit on `/api/login` by another spelling.
#[test]
fn a_path_is_the_same_however_it_is_spelled() {
    let server = Server::with_policy(POLICY, &[]);
    let mut expected = left(&ask(&server, b"/api/login", b"")).unwrap();
    for spelling in [
        "//api/login",
        "/api//login",
        "/./api/login",
        "/x/../api/login",
        "/api/login/",
        "/api/login/.",
        "/api/login?",
        "/api/login?a=b",
        "/api/login;v=1",
        "/api%2flogin",
        "/api%2Flogin",
        "/%61pi/login",
        "/api/%6cogin",
        "/api\\login",
        "/api%5clogin",
        "/api/log%69n/",
        "/api/%2e%2e/api/login",
        "/api/..;/api/login",
        "/../api/login",
        "/api/x/%2e%2e%2flogin",
    ] {
        let reply = ask(&server, spelling.as_bytes(), b"");
        expected -= 1;
        assert_eq!((reply.status, left(&reply)), (200, Some(expected)), "{spelling}");
    }
    let deep = format!("{}api/login", "/..".repeat(1_000) + "/");
    assert_eq!(left(&ask(&server, deep.as_bytes(), b"")), Some(expected - 1));
}

#[test]
fn a_path_that_servers_read_differently_is_refused() {
    let server = Server::with_policy(POLICY, &[]);
    let long = format!("/{}", "p".repeat(9_000));
    for spelling in [
        &b"/api/login%00"[..],
        b"/api/%252flogin",
        b"/api/login%",
        b"/api/login%0d%0ax:y",
        b"/api/%c0%aflogin",
        b"/api/\xc0\xaflogin",
        b"/api/login\xff",
        b"api/login",
        b"*",
        b"/api/login#f",
        b"/#/../api/login",
        b"http://t/api/login",
        b"",
        long.as_bytes(),
    ] {
        let reply = ask(&server, spelling, b"");
        assert_eq!(reply.status, 400, "{} {reply:?}", String::from_utf8_lossy(spelling));
    }
    server.is_sound();
}

/// Paths that only look similar: no server treats them as the same.
#[test]
fn a_path_that_is_another_is_another() {
    let server = Server::with_policy(POLICY, &[]);
    for spelling in
        ["/API/Login", "/api/login%20", "/api/login%2e", "/api/login%3Fx", "/api\u{ff0f}login"]
    {
        let reply = ask(&server, spelling.as_bytes(), b"");
        assert_eq!((reply.status, left(&reply)), (200, None), "{spelling}");
    }
    let segments = "/s".repeat(2_000);
    assert_eq!(ask(&server, segments.as_bytes(), b"").status, 200);
}

// === client addresses ===

/// How much is left for an address, without counting.
fn left_for(server: &Server, address: &str) -> u64 {
    let body = format!("{{\"attributes\":{{\"path\":\"/address\",\"ip\":\"{address}\"}}}}");
    server.post("/v1/peek", &body).json()["limits"][0]["remaining"].as_u64().unwrap()
}

#[test]
fn the_last_hop_that_is_no_proxy_is_the_client() {
    let server = Server::with_policy(POLICY, &[]);
    let many =
        format!("x-forwarded-for: {}, 198.51.100.2\r\n", vec!["198.51.100.1"; 500].join(", "));
    let cases: [(&[u8], &str); 17] = [
        (b"", "127.0.0.1"),
        (b"x-forwarded-for: 198.51.100.1\r\n", "198.51.100.1"),
        (b"x-forwarded-for: 198.51.100.1, 198.51.100.2\r\n", "198.51.100.2"),
        (b"x-forwarded-for: 198.51.100.1\r\nX-Forwarded-For: 198.51.100.2\r\n", "198.51.100.2"),
        (b"x-forwarded-for: 198.51.100.2, 127.0.0.9\r\n", "198.51.100.2"),
        (b"x-forwarded-for: 198.51.100.1, unknown\r\n", "127.0.0.1"),
        (b"x-forwarded-for: _hidden\r\n", "127.0.0.1"),
        (b"x-forwarded-for: \"[2001:db8::7]:80\"\r\n", "127.0.0.1"), // quotes belong to Forwarded
        (b"x-forwarded-for: [2001:db8::7]:80\r\n", "2001:db8::1"),   // the same network of 64 bits
        (b"x-forwarded-for: fe80::1%eth0\r\n", "fe80::1"),
        (b"x-forwarded-for: ::ffff:198.51.100.2\r\n", "198.51.100.2"),
        (b"x-forwarded-for: 198.51.100.2:4711\r\n", "198.51.100.2"),
        (b"x-forwarded-for:  ,,, \r\n", "127.0.0.1"),
        (b"x-forwarded-for: 127.0.0.1\r\n", "127.0.0.1"),
        (b"x-forwarded-for: 198.51.100.1\r\nforwarded: for=198.51.100.3\r\n", "198.51.100.1"),
        (b"x-real-ip: 198.51.100.3\r\ntrue-client-ip: 198.51.100.3\r\n", "127.0.0.1"),
        (many.as_bytes(), "198.51.100.2"),
    ];
    for (lines, client) in cases {
        let before = left_for(&server, client);
        assert_eq!(ask(&server, b"/address", lines).status, 200);
        let lines = String::from_utf8_lossy(lines);
        assert_eq!(left_for(&server, client), before - 1, "{lines}");
    }
}

/// A proxy appends to what its client sent. Once, if a client had put a byte that is not text before that, the whole
/// line was ignored: the client was counted as the proxy, together with every other client that did the same.
#[test]
fn bytes_that_are_no_text_hide_no_address() {
    let server = Server::with_policy(POLICY, &[]);
    let before = left_for(&server, "198.51.100.2");
    ask(&server, b"/address", b"x-forwarded-for: \xff, 198.51.100.2\r\n");
    assert_eq!(left_for(&server, "198.51.100.2"), before - 1);
}

#[test]
fn only_the_header_that_the_policy_names_is_read() {
    let policy = POLICY.replace("identity:", "identity:\n  ip: { header: forwarded }");
    let server = Server::with_policy(&policy, &[]);
    let before = left_for(&server, "198.51.100.3");
    let lines = b"x-forwarded-for: 198.51.100.1\r\nforwarded: for=198.51.100.3\r\n";
    assert_eq!(ask(&server, b"/address", lines).status, 200);
    assert_eq!(left_for(&server, "198.51.100.3"), before - 1);
}

/// `Connection` names header fields that a proxy removes. Here it removes nothing.
#[test]
fn a_client_cannot_take_fields_away() {
    let server = Server::with_policy(POLICY, &[]);
    let before = left_for(&server, "198.51.100.2");
    let lines =
        b"x-forwarded-for: 198.51.100.2\r\nconnection: close, x-forwarded-for, ratelimit\r\n";
    let reply = ask(&server, b"/address", lines);
    assert_eq!((left(&reply), left_for(&server, "198.51.100.2")), (Some(before - 1), before - 1));
}

#[test]
fn who_is_not_trusted_is_not_believed() {
    let policy = POLICY.replace("127.0.0.0/8", "10.0.0.0/8");
    let server = Server::with_policy(&policy, &[]);
    let reply = ask(&server, b"/address", b"x-forwarded-for: 198.51.100.1\r\n");
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("trusted"), "{reply:?}");
    assert_eq!(server.metric("tidegate_states"), 0);
}

// === sessions ===

#[test]
fn a_session_is_found_in_any_cookie_and_an_empty_one_is_nobodys() {
    let server = Server::with_policy(POLICY, &[]);
    let long = format!("cookie: sid={}\r\n", "s".repeat(8_000));
    let session = |path: &[u8], lines: &[u8]| left(&ask(&server, path, lines));
    // (the lines, what is left afterwards)
    let cases: [(&[u8], Option<u64>); 9] = [
        (b"cookie: sid=a\r\n", Some(999)),
        (b"cookie: x=y; sid=a; z=\r\n", Some(998)),
        (b"cookie: x=y\r\ncookie: sid=a\r\n", Some(997)),
        (b"cookie: sid=a\r\ncookie: sid = a\r\n", Some(996)),
        (b"cookie: sid=\"a\"\r\n", Some(995)),
        (b"cookie: SID=a\r\n", None),
        (b"cookie: sid=\r\n", None),
        (b"", None),
        (long.as_bytes(), Some(999)),
    ];
    for (lines, expected) in cases {
        assert_eq!(session(b"/session", lines), expected, "{}", String::from_utf8_lossy(lines));
    }
    // If the policy says so, a client without a session is counted by its address.
    assert_eq!(session(b"/anybody", b"cookie: sid=\r\n"), Some(999));
    assert_eq!(session(b"/anybody", b"x-forwarded-for: 198.51.100.1\r\n"), Some(999));
    assert_eq!(session(b"/anybody", b"cookie: other=\r\n"), Some(998));
}

/// Once the last of several values counted, and a framework that uses the first one served another session than the
/// one that was limited.
#[test]
fn different_values_of_what_the_policy_reads_are_refused() {
    let server = Server::with_policy(POLICY, &[]);
    for lines in [
        "cookie: sid=a; sid=b\r\n",
        "cookie: sid=a\r\ncookie: sid=b\r\n",
        "cookie: sid=; sid=b\r\n",
        "x-user: a\r\nx-user: b\r\n",
    ] {
        let reply = ask(&server, b"/session", lines.as_bytes());
        assert_eq!(reply.status, 400, "{lines}");
        assert!(reply.body.contains("more than once, with different values"), "{reply:?}");
    }
    let unread = b"cookie: x=a; x=b\r\ny-user: a\r\ny-user: b\r\n";
    assert_eq!(ask(&server, b"/session", unread).status, 200);
}

/// Once a cookie line with a byte that is not text was ignored as a whole: a client that added such a cookie kept its
/// session in the service behind, and had no limit any more.
#[test]
fn bytes_that_are_no_text_hide_no_session() {
    let server = Server::with_policy(POLICY, &[]);
    assert_eq!(left(&ask(&server, b"/session", b"cookie: sid=a\r\n")), Some(999));
    for (lines, expected) in [
        (&b"cookie: x=\xff; sid=a\r\n"[..], 998),
        (b"cookie: sid=a; x=\xe9\r\n", 997),
        (b"cookie: sid=b\xff\r\n", 999), // a session of its own
        (b"cookie: sid=b\xff\r\n", 998),
    ] {
        let reply = ask(&server, b"/session", lines);
        assert_eq!(left(&reply), Some(expected), "{}", String::from_utf8_lossy(lines));
    }
}

// === questions and answers ===

#[test]
fn a_proxy_says_method_and_target_in_the_fields_of_its_profile() {
    let server = Server::with_policy(POLICY, &[]);
    let nginx = "/v1/auth/nginx";
    let forwarded = "x-forwarded-method: GET\r\nx-forwarded-uri: /api/login\r\n";
    let original = "x-original-method: GET\r\nx-original-uri: /api/login\r\n";
    for (path, lines, status) in [
        ("/v1/auth", forwarded, 200),
        (nginx, original, 200),
        (nginx, "x-original-method: GET\r\nx-original-url: https://t/api/login\r\n", 200),
        ("/v1/auth", "", 400),
        (nginx, "", 400),
        ("/v1/auth", original, 400),
        (nginx, forwarded, 400),
        ("/v1/auth", "x-forwarded-uri: /api/login\r\n", 400),
        ("/v1/auth", "x-forwarded-method: GET\r\n", 400),
        ("/v1/auth", "x-forwarded-method: G E T\r\nx-forwarded-uri: /\r\n", 400),
        ("/v1/auth", &format!("{forwarded}x-forwarded-uri: /other\r\n"), 400),
        ("/v1/auth", &format!("{forwarded}x-forwarded-method: PUT\r\n"), 400),
        ("/v1/auth?profile=nginx", forwarded, 200), // the query belongs to the client
        ("/v1/auth/apache", forwarded, 404),
    ] {
        let mut wire = Wire::to(server.http);
        wire.send(&get(path, lines));
        let reply = wire.answer().unwrap();
        assert_eq!(reply.status, status, "{path} {lines}");
        assert_eq!(left(&reply).is_some(), status == 200, "{path} {lines}");
    }
}

/// What a client writes into the fields of the other profile, or of other rate limiters, has no effect.
#[test]
fn fields_of_others_change_nothing() {
    let server = Server::with_policy(POLICY, &[]);
    let forged = b"x-original-uri: /free\r\nx-original-method: PUT\r\nx-original-url: http://t/free\r\nx-rl-key: free\r\nx-envoy-original-path: /free\r\nx-rewrite-url: /free\r\n";
    assert_eq!(left(&ask(&server, b"/api/login", forged)), Some(999));
    assert_eq!(left(&ask(&server, b"/api/login", forged)), Some(998));
}

/// nginx turns every status except 2xx, 401 and 403 into 500.
#[test]
fn a_refusal_is_told_as_the_proxy_understands_it() {
    let server = Server::with_policy(POLICY, &[]);
    let user = "x-user: alice\r\n";
    assert_eq!(ask(&server, b"/once", user.as_bytes()).status, 200);
    let refused = ask(&server, b"/once", user.as_bytes());
    assert_eq!((refused.status, refused.field("x-ratelimit-denied")), (429, None));
    let lines = format!("{user}x-original-method: GET\r\nx-original-uri: /once\r\n");
    let mut wire = Wire::to(server.http);
    wire.send(&get("/v1/auth/nginx", &lines));
    let nginx = wire.answer().unwrap();
    assert_eq!((nginx.status, nginx.field("x-ratelimit-denied")), (403, Some("1")));
    for reply in [refused, nginx] {
        assert!(
            (3_500..=3_604).contains(&reply.field("retry-after").unwrap().parse::<u32>().unwrap())
        );
        assert_eq!(reply.field("cache-control"), Some("no-store"));
        assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    }
}

/// A proxy always asks with `GET`. The client's method is in a header field.
#[test]
fn a_proxy_asks_by_get() {
    let server = Server::with_policy(POLICY, &[]);
    let fields = "x-forwarded-method: POST\r\nx-forwarded-uri: /api/login\r\n";
    for (method, status) in [("GET", 200), ("HEAD", 200), ("POST", 405), ("PURGE", 405)] {
        let mut wire = Wire::to(server.http);
        wire.send(format!("{method} /v1/auth HTTP/1.1\r\nhost: t\r\n{fields}\r\n").as_bytes());
        let reply = wire.answer_to(method).unwrap();
        assert_eq!((reply.status, left(&reply).is_some()), (status, status == 200), "{method}");
    }
}

// === other ways to ask ===

/// A service that asks in JSON about a path that cannot be read gets a refusal and not an error, because many services let a
/// request pass on errors. The other entries of a list are decided as usual.
#[test]
fn a_path_that_cannot_be_read_is_refused_to_services_too() {
    let server = Server::with_policy(POLICY, &[]);
    let asked = |path: &str| format!("{{\"attributes\":{{\"path\":\"{path}\"}}}}");
    for path in ["/api/login%", "/api/%252flogin", "/a%00", "/%ff", "http://t/api/login", "*", "x"]
    {
        for ask in ["/v1/check", "/v1/peek"] {
            let reply = server.post(ask, &asked(path));
            assert_eq!((reply.status, &reply.json()["allowed"]), (429, &false.into()), "{path}");
            assert!(reply.json()["detail"].is_string(), "{reply:?}");
        }
        let list = format!("[{},{}]", asked(path), asked("/api/login"));
        let reply = server.post("/v1/check", &list);
        let allowed = [&reply.json()[0]["allowed"], &reply.json()[1]["allowed"]].map(|a| a == true);
        assert_eq!((reply.status, allowed), (200, [false, true]), "{path}");
    }
}
