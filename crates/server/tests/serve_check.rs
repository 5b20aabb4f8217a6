//! `tidegate serve --check`: finds every problem that a start would have, and changes nothing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

use crate::support;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use support::authority::Authority;
use support::redis::Redis;
use support::{Server, folder, tidegate, write_private};

/// Ports that the system chooses, so that the checks of several tests do not meet.
const PORTS: [&str; 8] = [
    "--http-listen",
    "127.0.0.1:0",
    "--admin-listen",
    "127.0.0.1:0",
    "--grpc-listen",
    "off",
    "--resp-listen",
    "off",
];

fn check(flags: &[&str]) -> Output {
    check_for("--check", flags)
}

fn check_for(purpose: &str, flags: &[&str]) -> Output {
    let mut command = tidegate();
    // Flags of a test replace those above.
    let given = |name: &str| flags.contains(&name);
    let ports = PORTS.chunks(2).filter(|pair| !given(pair[0])).flatten();
    command.args(["serve", purpose]).args(ports).args(flags).output().unwrap()
}

/// The exit code, and both outputs.
fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Every file below a folder, with its content and the time of its last change.
fn tree(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        let (path, about) = (entry.path(), entry.metadata().unwrap());
        all.push(format!("{} {:?} {}", path.display(), about.modified().unwrap(), about.len()));
        all.extend(tree(&path));
    }
    all.sort();
    all
}

#[test]
fn settings_without_a_problem_pass_and_nothing_is_created() {
    let folder = folder("serve-check");
    let data = folder.join("data");
    let (code, text) = said(&check(&["--data-dir", data.to_str().unwrap()]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("secret does not exist; the first start creates it"), "{text}");
    assert!(text.ends_with("no problems found: the server can start\n"), "{text}");
    assert!(!data.exists());
}

/// The point of the check: all problems in one run, not one for each attempt to start.
#[test]
fn every_problem_is_listed() {
    let (authority, folder) = (Authority::new(), folder("serve-check"));
    authority.sign_until("old", &["localhost"], 2020);
    authority.sign("one");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let data = path("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o777)).unwrap();
    write_private(&folder.join("data/secret"), "too short");
    std::fs::write(folder.join("data/control.json"), "{").unwrap();
    // Other users may read it.
    std::fs::write(folder.join("data/reader-token"), "reader-token-12345\n").unwrap();
    std::fs::write(path("policy.yaml"), "version: 1\nrulez: []\n").unwrap();
    std::fs::write(path("routes.yaml"), "groupz: {}\n").unwrap();
    write_private(&folder.join("token"), "short");
    write_private(&folder.join("users"), "alice king token\n");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let (certificates, keys) = (authority.text("old.pem"), authority.text("old.key"));
    let (code, text) = said(&check(&[
        "--data-dir",
        &data,
        "--policy",
        &path("policy.yaml"),
        "--proxy-listen",
        "127.0.0.1:0",
        "--proxy-routes",
        &path("routes.yaml"),
        "--admin-operator-token-file",
        &path("token"),
        "--resp-listen",
        &taken,
        "--resp-users-file",
        &path("users"),
        "--tls-certificate",
        &certificates,
        "--tls-key",
        &keys,
        "--envoy-config",
        &path("gone"),
        "--store",
        "redis://127.0.0.1:1/",
    ]));
    assert_eq!(code, Some(2), "{text}");
    for part in [
        "data_dir: ",
        "so other users can replace the files in it",
        "control.json: ",
        "secret_file: ",
        "policy.yaml:2:1: unknown key `rulez`, did you mean `rules`?",
        "routes.yaml:1:1: ",
        "admin.operator_token_file: ",
        "admin.reader_token_file: ",
        "resp.users_file: ",
        "tls.certificate: ",
        "it has expired on ",
        "envoy.config: ",
        "resp.listen: ",
        "another program listens there",
        "store: the store cannot be reached",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[test]
fn problems_with_the_settings_come_first() {
    let (code, text) = said(&check(&["--http-idle-timeout", "soon", "--memory-budget", "lots"]));
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("--http-idle-timeout: `soon`") && text.contains("--memory-budget: `lots`")
    );
}

#[test]
fn warnings_of_the_policy_are_shown_and_are_no_problem() {
    let folder = folder("serve-check");
    let policy = folder.join("policy.yaml");
    // No rule counts a request without a user.
    let text = "version: 1\nrules: [{ name: api, key: [user], limits: [5/s] }]\n";
    std::fs::write(&policy, text).unwrap();
    let data = folder.join("data");
    let flags = ["--policy", policy.to_str().unwrap(), "--data-dir", data.to_str().unwrap()];
    let (code, text) = said(&check(&flags));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("WARN") && text.contains("the policy, at 2:"), "{text}");
}

#[test]
fn a_certificate_must_match_its_key() {
    let (authority, folder) = (Authority::new(), folder("serve-check"));
    authority.sign("one");
    authority.sign("two");
    let data = folder.join("data");
    let (one, two) = (authority.text("one.pem"), authority.text("two.key"));
    let pair = ["--tls-certificate", &one, "--tls-key", &two];
    let (code, text) = said(&check(&[&pair[..], &["--data-dir", data.to_str().unwrap()]].concat()));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("it does not match the certificate"), "{text}");
}

/// A running server holds the lock of its data directory and its addresses. A second one cannot start, but the settings of the
/// first can be checked before a restart. The server must not notice either.
#[test]
fn a_running_server_is_not_disturbed() {
    let server = Server::start(&["--store", "file:"]);
    assert_eq!(server.check_ip("203.0.113.7").status, 200);
    let data = server.folder.join("data");
    let (data_dir, http) = (data.to_str().unwrap(), server.http.to_string());
    let flags = ["--data-dir", data_dir, "--http-listen", &http, "--store", "file:"];
    let names = |tree: Vec<String>| -> Vec<String> {
        // The server itself may write its counters at any time.
        tree.into_iter().filter(|line| !line.contains("/states")).collect()
    };
    let before = names(tree(&data));
    let (code, text) = said(&check(&flags));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(&format!("the tidegate server with process number {}", server.pid())));
    assert!(text.contains("another program listens there"), "{text}");
    let (code, text) = said(&check_for("--check=restart", &flags));
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(names(tree(&data)), before);
    assert_eq!(server.check_ip("203.0.113.8").status, 200);
}

#[test]
fn the_counters_of_a_stopped_server_are_read_and_not_changed() {
    let mut server = Server::start(&["--store", "file:"]);
    assert_eq!(server.check_ip("203.0.113.7").status, 200);
    server.signal("TERM");
    server.wait();
    let data = server.folder.join("data");
    let flags = ["--data-dir", data.to_str().unwrap(), "--store", "file:"];
    let before = tree(&data);
    let (code, text) = said(&check(&flags));
    assert_eq!((code, tree(&data)), (Some(0), before), "{text}");
    // The counters of another secret could not be read.
    write_private(&data.join("secret"), [9; 32]);
    let (code, text) = said(&check(&flags));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("store: "), "{text}");
}

// === Redis ===

/// What `redis-cli` prints.
fn asked(redis: &Redis, words: &[&str]) -> String {
    let socket = redis.folder.join("socket");
    let output = Command::new("redis-cli").arg("-s").arg(socket).args(words).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All keys of a Redis server, how many nodes there are, and its programs. A node writes its canary states again and again.
fn contents(redis: &Redis) -> String {
    let keys = asked(redis, &["--scan"]);
    let mut keys: Vec<&str> = keys.lines().filter(|key| !key.contains("canary")).collect();
    keys.sort_unstable();
    let (nodes, functions) = (["ZCARD", "{tidegate}nodes"], ["FUNCTION", "LIST"]);
    keys.join("\n") + &asked(redis, &nodes) + &asked(redis, &functions)
}

#[test]
fn a_store_is_asked_and_not_changed() {
    let redis = Redis::started();
    redis.tell(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let folder = folder("serve-check");
    let (data, secret) = (folder.join("data"), folder.join("secret"));
    write_private(&secret, [7; 32]);
    let flags = |secret: &Path| {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let flags =
            ["--data-dir", &text(&data), "--store", &redis.url(), "--secret-file", &text(secret)];
        flags.map(str::to_owned)
    };
    let run = |secret: &Path| {
        let flags = flags(secret);
        said(&check(&flags.each_ref().map(String::as_str)))
    };
    let (code, text) = run(&secret);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("store: Redis ") && text.contains("no counters of this secret yet"),
        "{text}"
    );
    assert!(text.contains("maxmemory-policy is allkeys-lru"), "{text}");
    assert_eq!(asked(&redis, &["DBSIZE"]), "0\n");
    assert_eq!(asked(&redis, &["FUNCTION", "LIST"]), "\n");
    // A node counts in it. The check does not become a second one, and finds the secret.
    std::fs::copy(&secret, redis.folder.join("secret")).unwrap();
    let server = redis.server("{ name: all, key: [ip], limits: [5/h] }", &[]);
    assert_eq!(server.check_ip("203.0.113.7").status, 200);
    let before = contents(&redis);
    let (code, text) = run(&secret);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("no counters of this secret yet"), "{text}");
    assert_eq!(contents(&redis), before);
    // Another secret would not be accepted, and neither would one that does not exist yet.
    let other = folder.join("other");
    write_private(&other, [8; 32]);
    for secret in [other, folder.join("new")] {
        let (code, text) = run(&secret);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("copy that file from a node that uses the store already"), "{text}");
    }
}

#[test]
fn a_store_that_cannot_count_is_a_problem() {
    let redis = Redis::started();
    redis.tell(&["ACL", "SETUSER", "poor", "on", ">password", "~*", "+get", "+role", "+ping"]);
    let folder = folder("serve-check");
    let (data, socket) = (folder.join("data"), redis.folder.join("socket"));
    for (user, part) in [
        ("?user=poor&pass=password", "its scripts must be allowed to read the time"),
        ("?user=poor&pass=wrong", "store: "),
    ] {
        let url = format!("redis+unix://{}{user}", socket.display());
        let (code, text) = said(&check(&["--data-dir", data.to_str().unwrap(), "--store", &url]));
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(part) && !text.contains("password"), "{text}");
    }
}
