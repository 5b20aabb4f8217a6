//! The denial log of a running server: every protocol writes it.

use crate::resp::talk::Talk;
use crate::support::client::Operator;
use crate::support::upstream::Upstream;
use crate::support::{Server, folder, request, whole_lines};
use serde_json::{Value, json};
use std::path::PathBuf;

const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], user: header:x-user, api_key: header:x-api-key }
rules:
  - { name: users, key: [user], limits: [{ rate: 1/9600h, algorithm: fixed_window }] }
  - { name: keys, key: [api_key], limits: [{ rate: 1/9600h, algorithm: fixed_window }] }
";

/// A server with a denial log in a folder.
struct Logged {
    server: Server,
    path: PathBuf,
    folder: PathBuf,
}

impl Logged {
    fn start(flags: &[&str]) -> Self {
        let folder = folder("denials");
        let path = folder.join("denials.log");
        let all = [&["--denial-log", path.to_str().unwrap()], flags].concat();
        Self { server: Server::with_policy(POLICY, &all), path, folder }
    }

    /// The lines about refusals, once there are this many.
    fn lines(&self, count: usize) -> Vec<Value> {
        let read = || {
            let text = whole_lines(&self.path);
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            // A minute may end during the test.
            let lines = lines.filter(|line: &Value| line.get("protocol").is_some());
            lines.collect::<Vec<Value>>()
        };
        self.server.until(&format!("{count} lines"), |_| read().len() >= count);
        read()
    }

    fn check(&self, attributes: &Value) -> u16 {
        self.server.post("/v1/check", &json!({ "attributes": attributes }).to_string()).status
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn every_protocol_writes_who_is_refused() {
    let upstream = Upstream::start("site");
    let url = format!("http://{}", upstream.address);
    let logged = Logged::start(&["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", &url]);
    let server = &logged.server;
    let user = |name: &str| json!({ "user": name });
    assert_eq!((logged.check(&user("http")), logged.check(&user("http"))), (200, 429));
    let two = json!([{ "attributes": user("list") }, { "attributes": user("list") }]);
    server.post("/v1/check", &two.to_string());
    let of_proxy =
        |name: &'static str| request(server.proxy, "GET", "/", &[("x-user", name)], "").status;
    assert_eq!((of_proxy("proxy"), of_proxy("proxy")), (200, 429));
    let auth = |name: &'static str| {
        let fields = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-user", name)];
        request(server.http, "GET", "/v1/auth", &fields, "").status
    };
    assert_eq!((auth("auth"), auth("auth")), (200, 429));
    let json = json!({ "domain": "web", "descriptors": [{ "entries": [{ "key": "user", "value": "json" }] }] });
    let statuses = [(); 2].map(|()| server.post("/json", &json.to_string()).status);
    assert_eq!(statuses, [200, 429]);
    let take = json!({ "key": "take", "limit": 1, "per": "9600h" }).to_string();
    let statuses = [(); 2].map(|()| server.post("/v1/take", &take).status);
    assert_eq!(statuses, [200, 429]);
    let mut talk = Talk::to(server.resp);
    for command in ["TG.CHECK 1 user resp", "CL.THROTTLE cell 0 1 30000000"] {
        (0..2).for_each(|_| _ = talk.ask(command));
    }
    let seen: Vec<(String, String, Value)> = logged
        .lines(8)
        .into_iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            (text("protocol"), text("rule"), line["key"].clone())
        })
        .collect();
    let of = |protocol: &str, name: &str| (protocol.to_owned(), "users".to_owned(), user(name));
    let named =
        |protocol: &str, key: &str| (protocol.to_owned(), String::new(), json!({ "key": key }));
    let expected = [
        of("http", "http"),
        of("http", "list"),
        of("proxy", "proxy"),
        of("auth", "auth"),
        of("json", "json"),
        named("http", "take"),
        of("resp", "resp"),
        named("resp", "cell"),
    ];
    assert_eq!(seen, expected);
}

/// An API key is a password. It must not stand in a file that others read.
#[test]
fn an_api_key_is_never_in_the_log() {
    for form in ["clear", "hashed", "omitted"] {
        let logged = Logged::start(&["--denial-log-keys", form]);
        let attributes = json!({ "api_key": "s3cr3t-k3y" });
        assert_eq!((logged.check(&attributes), logged.check(&attributes)), (200, 429));
        let line = &logged.lines(1)[0];
        assert!(!line.to_string().contains("s3cr3t"), "{line}");
        let key = line["key"]["api_key"].as_str();
        assert_eq!(
            key.is_some_and(|key| key.starts_with('#') && key.len() == 33),
            form != "omitted"
        );
    }
}

#[test]
fn a_log_that_was_renamed_begins_anew() {
    let logged = Logged::start(&[]);
    (0..2).for_each(|_| _ = logged.check(&json!({ "user": "one" })));
    assert_eq!(logged.lines(1).len(), 1);
    std::fs::rename(&logged.path, logged.folder.join("old.log")).unwrap();
    (0..2).for_each(|_| _ = logged.check(&json!({ "user": "two" })));
    logged.server.until("a new file", |_| logged.path.exists());
    assert_eq!(logged.lines(1)[0]["key"], json!({ "user": "two" }));
}

#[test]
fn the_last_sums_are_written_before_the_server_ends() {
    let mut logged = Logged::start(&[]);
    (0..4).for_each(|_| _ = logged.check(&json!({ "user": "one" })));
    logged.server.signal("TERM");
    assert!(logged.server.wait().success());
    let text = std::fs::read_to_string(&logged.path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refusals = lines.iter().filter_map(|line| line["refusals"].as_u64()).sum::<u64>();
    let without_sums = lines.iter().filter(|line| line.get("protocol").is_some()).count();
    // A minute may have ended between two of them; then each has its line or its sums.
    assert!(refusals == 3 || without_sums > 1, "{text}");
}

#[test]
fn without_a_denial_log_there_is_none() {
    let server = Server::with_policy(POLICY, &[]);
    (0..3).for_each(|_| _ = server.post("/v1/check", r#"{"attributes":{"user":"x"}}"#));
    let metric = Operator::of(&server).metric("tidegate_denial_log_left_out_total{}");
    assert_eq!(metric, 0);
    assert!(!server.log().contains("denial"));
}

#[test]
fn a_log_that_cannot_be_opened_is_told_before_the_start() {
    let folder = folder("denials");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--http-listen", "127.0.0.1:0", "--admin-listen", "off"])
        .args(["--grpc-listen", "off", "--resp-listen", "off", "--denial-log"])
        .arg(folder.join("no/such/folder.log"))
        .arg("--data-dir")
        .arg(folder.join("data"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("denial_log"), "{said}");
    std::fs::remove_dir_all(folder).unwrap();
}
