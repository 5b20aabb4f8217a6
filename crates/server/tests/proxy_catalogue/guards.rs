//! An auth server before some routes of an upstream server, and generated spellings of their paths. Whatever a real server would
//! read as a guarded path is refused without a token; what no server can confuse passes.

use super::readers::READERS;
use super::recorder::Recorder;
use crate::support::http1::{Dice, Wire};
use crate::support::http2::{Answer, END_HEADERS, END_STREAM, HEADERS, Two, fields, frame};
use crate::support::upstream::{listen, read_request};
use crate::support::{Server, folder};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use tidegate_policy::Readings;

const OPEN: &str = "{ version: 1, rules: [{ name: all, key: [ip], limits: [1000000/s] }] }";
const SPELLINGS: usize = 500;

/// Which paths have an auth server before them.
const FILES: [&str; 2] = [
    "routes: [{ path: /private/**, group: private }, { group: open }]",
    // A guarded rest, of which only `/public` is open.
    "routes: [{ path: /public/**, group: open }, { group: private }]",
];

/// An auth server that lets every request with a token pass.
fn auth() -> SocketAddr {
    listen(|mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let answer = match request.contains("authorization: token") {
                true => "204 No Content\r\nx-user: alice",
                false => "401 Unauthorized\r\ncontent-length: 0",
            };
            // In one piece, because the system delays the second of two small ones.
            if stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn server(routes: &str, site: &str) -> Server {
    let path = folder("guards").join("routes.yaml");
    let guard =
        format!("{{ url: 'http://{}/', limit: off, timeout: 30s, headers: [x-user] }}", auth());
    let text = format!(
        "groups:\n  private: {{ servers: ['{site}'], auth: {guard} }}\n  open: {{ servers: ['{site}'] }}\n{routes}\n"
    );
    std::fs::write(&path, text).unwrap();
    let flags = ["--workers", "1", "--proxy-listen", "127.0.0.1:0", "--proxy-routes"];
    Server::with_policy(OPEN, &[&flags[..], &[path.to_str().unwrap()]].concat())
}

/// Different spellings of paths, of which some servers read many as paths below `/private`.
fn spellings() -> Vec<String> {
    const NAMES: [&str; 12] = [
        "private",
        "private",
        "PRIVATE",
        "Private",
        "%70rivate",
        "priv%61te",
        "public",
        "Public",
        "x",
        "h",
        "private;v=1",
        "public;v=1",
    ];
    const BETWEEN: [&str; 22] = [
        "/", "/", "/", "//", "\\", "%2f", "%5c", "/./", "/../", "/x/../", "/..;/", "/..;a=b/",
        "/..%2f", "%2f..%2f", "%2f../", "/..%5c", "\\..\\", "%5c..%5c", "/%2e%2e/", "/;/", ";/",
        "/.%2e/",
    ];
    let mut dice = Dice::new(51);
    let mut found = BTreeSet::new();
    while found.len() < SPELLINGS {
        let mut path = ["/", "/", "//", "/\\", "///"][dice.up_to(5) - 1].to_owned();
        for _ in 0..dice.up_to(5) {
            path.push_str(NAMES[dice.up_to(NAMES.len()) - 1]);
            path.push_str(BETWEEN[dice.up_to(BETWEEN.len()) - 1]);
        }
        path.push('x');
        found.insert(path);
    }
    found.into_iter().collect()
}

/// Whether a server reads a spelling as a path of this folder, in any case of letters.
fn is_below(folder: &str, target: &str) -> impl Iterator<Item = bool> {
    let paths = READERS.iter().filter_map(|reader| reader.route(target));
    let paths = paths.map(|path| format!("{}/", path.to_lowercase()));
    paths.map(move |path| path.starts_with(&format!("/{folder}/")))
}

fn is_guarded(file: &str, target: &str) -> bool {
    if file == FILES[0] {
        return is_below("private", target).any(|is_private| is_private);
    }
    !is_below("public", target).all(|is_public| is_public)
}

#[test]
fn no_spelling_of_a_path_escapes_its_auth_server() {
    for file in FILES {
        let recorder = Recorder::start();
        let server = server(file, &recorder.url());
        let spellings = spellings();
        let guarded = spellings.iter().filter(|path| is_guarded(file, path)).count();
        assert!(guarded > SPELLINGS / 4, "{guarded}");
        let mut wire = Wire::to(server.proxy);
        let mut status = |path: &str, fields: &str| {
            wire.send(format!("GET {path} HTTP/1.1\r\nhost: site\r\n{fields}\r\n").as_bytes());
            wire.answer().unwrap_or_else(|| panic!("{path}: no answer")).status
        };
        for path in &spellings {
            let (stranger, user) = (status(path, ""), status(path, "authorization: token\r\n"));
            let expected = match (Readings::new(path), is_guarded(file, path)) {
                (Err(_), _) => &[400][..],
                (Ok(_), true) => &[401],
                (Ok(_), false) => &[200, 401],
            };
            assert!(expected.contains(&stranger), "{path}: {stranger}");
            // Only a path that cannot be read is refused to a user.
            assert_eq!(user == 200, stranger != 400, "{path}: {user}");
        }
        // Over HTTP/2 some of these paths end their stream or connection. What arrives is judged below.
        let mut two = Two::to(server.proxy);
        for path in &spellings {
            if !matches!(two.asked("GET", path, b""), Answer::Whole { .. }) {
                two = Two::to(server.proxy);
            }
        }
        drop((server, two));
        let seen = recorder.finish();
        for request in &seen.requests {
            let target = request.line();
            let target = target.strip_prefix("GET ").unwrap();
            let is_known = request.all("x-user") == ["alice"];
            assert!(is_known || !is_guarded(file, target), "{target}");
        }
    }
}

/// Common paths are not asked about, however they are written.
#[test]
fn paths_that_no_server_confuses_are_not_guarded() {
    let recorder = Recorder::start();
    let server = server(FILES[0], &recorder.url());
    let mut wire = Wire::to(server.proxy);
    let paths = [
        "/",
        "/public",
        "/privateer",
        "/x/private",
        "/@scope%2Fname",
        "/projects/group%2Fproject",
        "/a%20b;v=1",
        "/search?q=/private/../..%2f",
    ];
    for path in paths {
        wire.send(format!("GET {path} HTTP/1.1\r\nhost: site\r\n\r\n").as_bytes());
        assert_eq!(wire.answer().unwrap().status, 200, "{path}");
    }
    drop((server, wire));
    assert_eq!(recorder.finish().requests.len(), paths.len());
}

/// An invalid `Host` once fell to the routes without one, and so past the auth server of the host that it names.
#[test]
fn a_host_that_is_not_valid_reaches_no_route() {
    let recorder = Recorder::start();
    let routes = "routes: [{ host: admin.example.com, group: private }, { group: open }]";
    let server = server(routes, &recorder.url());
    let one = |head: &str| {
        let mut wire = Wire::to(server.proxy);
        wire.send(format!("GET /x {head}\r\n").as_bytes());
        wire.answer().unwrap_or_else(|| panic!("{head}: no answer")).status
    };
    let two = |host: &str| {
        let mut two = Two::to(server.proxy);
        let stream = two.next();
        let list = [(":method", "GET"), (":scheme", "http"), (":authority", host), (":path", "/x")];
        two.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&list)));
        two.answer(stream)
    };
    for host in [
        "",
        ":80",
        "admin.example.com:999999",
        "admin.example.com:65536",
        "admin.example.com:x",
        "u@admin.example.com",
        "[admin.example.com]",
        "[::1",
        "admin.example.com..",
        "%61dmin.example.com",
        "admin.example.com,site",
    ] {
        assert_eq!(one(&format!("HTTP/1.1\r\nhost: {host}\r\n")), 400, "{host:?}");
        assert_eq!(one(&format!("HTTP/1.0\r\nhost: {host}\r\n")), 400, "{host:?}");
        let answer = two(host);
        let is_refused = matches!(answer, Answer::Reset(_) | Answer::Gone)
            || matches!(answer, Answer::Whole { status: 400, .. });
        assert!(is_refused, "{host:?}: {answer:?}");
    }
    for (host, expected) in
        [("admin.example.com.:443", 401), ("ADMIN.example.com", 401), ("site:", 200)]
    {
        assert_eq!(one(&format!("HTTP/1.1\r\nhost: {host}\r\n")), expected, "{host}");
    }
    assert_eq!(one("HTTP/1.0\r\n"), 200);
    drop(server);
    assert_eq!(recorder.finish().requests.len(), 2);
}
