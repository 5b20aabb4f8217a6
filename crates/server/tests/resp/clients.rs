//! Common client libraries: each connects in its own way, throttles once and a hundred times at once, and checks.

use crate::support::{Server, project};
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

const POLICY: &str = "{ version: 1, rules: [{ name: each, key: [user], limits: [2/h] }] }";

/// What every client must receive: for one throttle, for the last of a hundred more, and for a check.
fn expected() -> Value {
    json!({
        "throttle": [0, 200, 199, -1, 3_600],
        "pipeline": [100, [0, 200, 99, -1, 363_600]],
        "check": [1, "allow", 0, 0, 1, 1_800_000, "each", null, "normal", []],
    })
}

/// The output of a program.
fn printed(command: &mut Command, input: &[u8]) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; run make deps"));
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A library that `make deps` has installed.
fn installed(path: &str) -> String {
    let path = project(path);
    assert!(path.exists(), "no {}; run make deps", path.display());
    path.to_str().unwrap().to_owned()
}

fn script(name: &str) -> String {
    project("crates/server/tests/resp/clients").join(name).to_str().unwrap().to_owned()
}

/// Runs a script with both versions of the protocol, each against a new server.
fn both_dialects(play: impl Fn(SocketAddr, &str) -> String) {
    for dialect in ["2", "3"] {
        let server = Server::with_policy(POLICY, &[]);
        let heard = play(server.resp, dialect);
        let heard: Value = serde_json::from_str(&heard).unwrap_or_else(|_| panic!("{heard}"));
        assert_eq!(heard, expected(), "RESP{dialect}");
        server.is_well();
    }
}

#[test]
fn redis_py() {
    let library = installed("target/redis-py/redis").replace("/redis-py/redis", "/redis-py");
    both_dialects(|address, dialect| {
        let port = address.port().to_string();
        let mut command = Command::new("python3");
        command.args([&script("client.py"), &port, dialect]).env("PYTHONPATH", &library);
        printed(&mut command, b"")
    });
}

#[test]
fn node_redis() {
    let library = installed("target/node-redis/node_modules/redis/package.json");
    let library = Path::new(&library).parent().unwrap();
    both_dialects(|address, dialect| {
        let port = address.port().to_string();
        let library = library.to_str().unwrap();
        printed(Command::new("node").args([&script("client.mjs"), library, &port, dialect]), b"")
    });
}

#[test]
fn redis_cli() {
    for dialect in ["-2", "-3"] {
        let server = Server::with_policy(POLICY, &[]);
        let port = server.resp.port().to_string();
        let cli = |words: &[&str], input: &[u8]| {
            printed(Command::new("redis-cli").args([dialect, "-p", &port]).args(words), input)
        };
        let throttle = ["CL.THROTTLE", "k", "199", "1", "3600"];
        assert_eq!(cli(&throttle, b""), "0\n200\n199\n-1\n3600\n");
        let pipeline = crate::resp::talk::list(&throttle.map(str::as_bytes)).repeat(100);
        let piped = cli(&["--pipe"], &pipeline);
        assert!(piped.ends_with("errors: 0, replies: 100\n"), "{piped}");
        assert_eq!(cli(&[&throttle[..], &["0"]].concat(), b"").lines().nth(2), Some("99"));
        let check = cli(&["TG.CHECK", "1", "user", "u"], b"");
        assert_eq!(check, "1\nallow\n0\n0\n1\n1800000\neach\n\nnormal\n\n");
        server.is_well();
    }
}

#[test]
fn redis_rs() {
    both_dialects(|address, dialect| {
        let client =
            redis::Client::open(format!("redis://{address}/?protocol=resp{dialect}")).unwrap();
        let mut connection = client.get_connection().unwrap();
        let throttle = || {
            let mut command = redis::cmd("CL.THROTTLE");
            command.arg("k").arg(199).arg(1).arg(3_600);
            command
        };
        let one: Vec<i64> = throttle().query(&mut connection).unwrap();
        let mut pipeline = redis::pipe();
        for _ in 0..100 {
            pipeline.add_command(throttle());
        }
        let all: Vec<Vec<i64>> = pipeline.query(&mut connection).unwrap();
        type Check = (i64, String, i64, i64, i64, i64, String, Option<String>, String, Vec<String>);
        let check: Check =
            redis::cmd("TG.CHECK").arg(1).arg("user").arg("u").query(&mut connection).unwrap();
        json!({ "throttle": one, "pipeline": [all.len(), all.last()], "check": check }).to_string()
    });
}
