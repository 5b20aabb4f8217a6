//! One path in many spellings. Every spelling that a web server might read as `/api/login` counts for the limit of that path, or
//! is refused. The upstream server gets the path as the client spelled it: it reads it in its own way, for which the rules allow.

use super::proxy;
use super::recorder::Recorder;
use crate::support::http1::Wire;
use crate::support::http2::{Answer, Two};

const POLICY: &str = "
version: 1
paths: { case_insensitive: true }
rules: [{ name: login, match: { path: /api/login }, key: [ip], limits: [3/day] }]
";

/// Spellings of `/api/login`.
const SPELLINGS: [&str; 49] = [
    "/api/login",
    "//api/login",
    "/api//login",
    "///api///login",
    "/./api/login",
    "/api/./login",
    "/x/../api/login",
    "/x/y/../../api/login",
    "/api/x/../login",
    "/api/login/",
    "/api/login//",
    "/api/login/.",
    "/api/login/x/..",
    "/API/Login",
    "/api/LOGIN",
    "/api/login?",
    "/api/login?x=1",
    "/api/login?/../../x",
    "/api/login;v=1",
    "/api;v=1/login",
    "/api/login;",
    "/;/api/login",
    "/api%2flogin",
    "/api%2Flogin",
    "/%61pi/login",
    "/api/%6cogin",
    "/api/%6C%4f%47in",
    "/api/log%69n/",
    "/api\\login",
    "/api%5clogin",
    "/x\\..\\api\\login",
    "/x%5c..%5capi%5clogin",
    "/api/%2e/login",
    "/api/%2e%2e/api/login",
    "/api/%2E%2E/api/login",
    "/api/.%2e/api/login",
    "/api/..;/api/login",
    "/api/..;x/api/login",
    "/x%2f..%2fapi%2flogin",
    "/../api/login",
    "/../../../api/login",
    "/%2e%2e/api/login",
    "//site/api/login",
    "/api/login%2f",
    "/api/login%2f.",
    "/api/login%3b",
    "/api/login;%2f..%2f..%2fx",
    "/api%2f%2flogin",
    "/api/login/%2e",
];

/// Paths that no two servers read alike, or that are too long. They are refused.
const REFUSED: [&str; 13] = [
    "/api/login%00",
    "/api/%00/login",
    "/api/login%",
    "/api/login%2",
    "/api/login%zz",
    "/api/%252flogin",
    "/api%252flogin",
    "/%2561pi/login",
    "/api%c0%aflogin",
    "/api%c1%9clogin",
    "/api/%e0%80%aflogin",
    "/api/login%ff",
    "/api/login#f",
];

/// Paths that look similar, but that no server was seen to read as `/api/login` (`crates/policy/tests/servers.rs`).
const OTHERS: [&str; 6] = [
    "/api/login%3fx",
    "/api/login%20",
    "/api/login%2e",
    "/api/login%250",
    "/api/login.",
    "/api\u{ff0f}login",
];

fn status(proxy: std::net::SocketAddr, target: &str) -> u16 {
    let mut wire = Wire::to(proxy);
    wire.send(format!("GET {target} HTTP/1.1\r\nhost: site\r\n\r\n").as_bytes());
    wire.answer().unwrap_or_else(|| panic!("{target}: no answer")).status
}

#[test]
fn no_spelling_of_a_path_escapes_its_limit() {
    let recorder = Recorder::start();
    let server = proxy(POLICY, &recorder.url());
    for _ in 0..3 {
        assert_eq!(status(server.proxy, "/api/login"), 200);
    }
    let escaped = |path: &&&str| !matches!(status(server.proxy, path), 400 | 429);
    let absolute = ["http://site/api/login", "https://site/api/login", "http://SITE//api/login"];
    let all = SPELLINGS.iter().chain(&REFUSED).chain(&absolute);
    let found: Vec<_> = all.filter(escaped).collect();
    assert_eq!(found, [&""; 0]);
    let two = |path: &&&str| match Two::to(server.proxy).asked("GET", path, b"") {
        Answer::Whole { status, .. } => !matches!(status, 400 | 429),
        Answer::Reset(_) | Answer::Gone => false,
    };
    let found: Vec<_> = SPELLINGS.iter().chain(&REFUSED).filter(two).collect();
    assert_eq!(found, [&""; 0], "over HTTP/2");
    drop(server);
    assert_eq!(recorder.finish().lines_with(""), ["GET /api/login"; 3]);
}

/// A spelling that passes reaches the server unchanged; a path that is refused does not reach it.
#[test]
fn the_server_gets_the_path_as_the_client_spelled_it() {
    let recorder = Recorder::start();
    let server = proxy(&POLICY.replace("3/day", "1000000/s"), &recorder.url());
    let paths: Vec<&&str> = SPELLINGS.iter().chain(&OTHERS).collect();
    for path in &paths {
        assert_eq!(status(server.proxy, path), 200, "{path}");
    }
    for path in REFUSED {
        assert_eq!(status(server.proxy, path), 400, "{path}");
    }
    drop(server);
    let latin = |path: &str| path.bytes().map(char::from).collect::<String>();
    let expected: Vec<String> = paths.iter().map(|path| format!("GET {}", latin(path))).collect();
    assert_eq!(recorder.finish().lines_with(""), expected);
}

#[test]
fn paths_have_bounds() {
    let recorder = Recorder::start();
    let server = proxy(POLICY, &recorder.url());
    let asked = |path: &str| status(server.proxy, path);
    assert_eq!(asked(&format!("/{}", "p".repeat(9_000))), 414);
    // Many segments and many steps up cost no more than others, and are not another path.
    let up = format!("/{}api/login", "../".repeat(1_000));
    let long = format!("/{}api/login", "x/../".repeat(1_000));
    for _ in 0..3 {
        assert_eq!(asked("/api/login"), 200);
    }
    for path in [up, long] {
        let status = asked(&path);
        assert!(matches!(status, 400 | 429), "{status}");
    }
    assert_eq!(asked(&"/s".repeat(2_000)), 200);
}
