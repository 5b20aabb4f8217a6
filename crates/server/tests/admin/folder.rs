//! The data directory: it belongs to one server, is closed to other users, and damage to it is reported.

use super::starting::refused;
use crate::support::client::Operator;
use crate::support::{Server, connect, folder, write_private};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

const POLICY: &str = "
version: 1
identity: { trusted: [127.0.0.0/8], session: 'digest:cookie:sid', user: 'header:x-user' }
tiers: { default: free, known: [free, pro] }
rules:
  - { name: sessions, key: [session], limits: [2/h] }
  - { name: users, key: [user], limits: [3/h] }
";

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn disable(server: &Server, rule: &str) -> u16 {
    let switch = json!({ "rule": rule, "enabled": false });
    Operator::of(server).send("PUT", "/admin/v1/rules", &switch).status
}

fn kinds(server: &Server) -> Vec<String> {
    let lines = Operator::of(server).get("/admin/v1/audit").json();
    let lines = lines.as_array().unwrap().iter();
    lines.map(|line| line["what"].as_str().unwrap().to_owned()).collect()
}

fn reasons(server: &Server) -> String {
    server.get("/ready").json()["reasons"].to_string()
}

/// Kills a server, and keeps its folder.
fn killed(mut server: Server) -> std::path::PathBuf {
    server.signal("KILL");
    server.wait();
    let folder = server.folder.clone();
    std::mem::forget(server);
    folder
}

fn started(folder: std::path::PathBuf) -> Server {
    let policy = folder.join("policy.yaml").to_str().unwrap().to_owned();
    Server::start_in(folder, &["--policy", &policy])
}

// === who may use it ===

/// Two servers on one directory once overwrote each other's changes and tokens, after both had reported them as
/// saved.
#[test]
fn a_second_server_does_not_start() {
    let server = Server::with_policy(POLICY, &[]);
    let process = server.pid().to_string();
    refused(&server.folder, &[], &["data_dir", "data", &process, "data directory of its own"]);
    // It is free as soon as the first server has ended, however it ended.
    let server = started(killed(server));
    assert_eq!(disable(&server, "users"), 200);
}

/// In a directory that other users can write to, a token file that they had created was once used, with their
/// permissions.
#[test]
fn what_other_users_could_have_touched_is_refused() {
    let folder = folder("loose");
    let data = folder.join("data");
    fs::create_dir(&data).unwrap();
    for loose in [0o777, 0o770, 0o702] {
        mode(&data, loose);
        refused(&folder, &[], &["data_dir", "chmod 700"]);
    }
    mode(&data, 0o755);
    fs::write(data.join("operator-token.new"), "planted").unwrap();
    mode(&data.join("operator-token.new"), 0o666);
    let server = Server::start_in(folder, &[]);
    let token = fs::metadata(server.data("operator-token")).unwrap();
    assert_eq!(token.permissions().mode() & 0o777, 0o600);
    let folder = killed(server);
    for name in ["secret", "operator-token", "reader-token"] {
        mode(&data.join(name), 0o644);
        refused(&folder, &[], &[name, "chmod 600"]);
        mode(&data.join(name), 0o600);
    }
    let users = folder.join("users");
    write_private(&users, "app client 0123456789abcdef\n");
    mode(&users, 0o640);
    refused(
        &folder,
        &["--resp-users-file", users.to_str().unwrap()],
        &["resp.users_file", "chmod 600"],
    );
}

/// A pipe once kept the server from starting, for ever. A directory or a device ended it with an error that did not
/// name the file.
#[test]
fn what_is_not_a_file_is_named() {
    for name in ["secret", "audit.log", "control.json", "operator-token", "lock"] {
        let folder = folder("pipes");
        let path = folder.join("data").join(name);
        fs::create_dir(folder.join("data")).unwrap();
        mode(&folder.join("data"), 0o700);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        refused(&folder, &[], &["not a regular file"]);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused(&folder, &[], &["data"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}

// === damage ===

/// The hash chain once detected a changed line, but not lines that were missing at the end.
#[test]
fn a_shortened_log_is_told() {
    for left in [Some(1), Some(0), None] {
        let server = Server::with_policy(POLICY, &[]);
        assert_eq!((disable(&server, "users"), disable(&server, "sessions")), (200, 200));
        let path = server.data("audit.log");
        let folder = killed(server);
        let lines = fs::read_to_string(&path).unwrap();
        match left {
            Some(left) => {
                fs::write(&path, lines.split_inclusive('\n').take(left).collect::<String>())
                    .unwrap();
            }
            None => fs::remove_file(&path).unwrap(),
        }
        let server = started(folder);
        let told = format!("audit.log was shortened: it has {} of 2 lines", left.unwrap_or(0));
        assert!(reasons(&server).contains(&told), "{}", reasons(&server));
        assert_eq!(kinds(&server).last().unwrap(), "audit");
        // It is reported once and recorded: from here on, the shortened log is the log.
        let lines = kinds(&server).len();
        let server = started(killed(server));
        assert_eq!((reasons(&server).as_str(), kinds(&server).len()), ("[]", lines));
    }
}

/// A change once took effect before its line was written, so a crash could leave it without a line.
#[test]
fn a_change_that_a_crash_interrupted_is_told() {
    let server = Server::with_policy(POLICY, &[]);
    assert_eq!(disable(&server, "users"), 200);
    let control = server.data("control.json");
    let before = fs::read(&control).unwrap();
    assert_eq!(disable(&server, "sessions"), 200);
    // As if the process had ended after it wrote the line and before it wrote the document.
    let folder = killed(server);
    fs::write(&control, before).unwrap();
    let server = started(folder);
    assert_eq!(kinds(&server), ["rule", "rule", "abandoned"]);
    assert_eq!(reasons(&server), "[]");
    assert_eq!(Operator::of(&server).get("/admin/v1/control").json()["version"], 1);
    assert_eq!(disable(&server, "sessions"), 200);
}

/// If a change cannot be written to the disk, that is reported until one can.
#[test]
fn a_change_that_cannot_be_written_is_told() {
    let server = Server::with_policy(POLICY, &[]);
    let in_the_way = server.data("control.json.new");
    fs::create_dir(&in_the_way).unwrap();
    assert_eq!(disable(&server, "users"), 500);
    assert!(reasons(&server).contains("control.json could not be written"), "{}", reasons(&server));
    assert_eq!(kinds(&server), ["rule", "abandoned"]);
    fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(disable(&server, "users"), 200);
    assert_eq!(reasons(&server), "[]");
    // If the line of a change cannot be written, the change is not made either.
    let log = server.data("audit.log");
    fs::rename(&log, server.data("elsewhere")).unwrap();
    fs::create_dir(&log).unwrap();
    assert_eq!(disable(&server, "sessions"), 500);
    assert!(reasons(&server).contains("audit.log could not be written"), "{}", reasons(&server));
    fs::remove_dir(&log).unwrap();
    fs::rename(server.data("elsewhere"), &log).unwrap();
    assert_eq!(disable(&server, "sessions"), 200);
    assert_eq!(reasons(&server), "[]");
}

/// The reply to a command over RESP, on a new connection.
fn resp(server: &Server, command: &str) -> String {
    let mut stream = connect(server.resp);
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// On a full disk, a reset once succeeded without a line in the audit log, whatever asked for it; so did draining a server. And a `DEL`
/// of nothing wrote a line: one client could fill the disk with 2 GB of them a day.
#[test]
fn nothing_is_reset_without_a_line_and_there_is_no_line_for_nothing() {
    let proxy = ["--proxy-listen", "127.0.0.1:0", "--proxy-upstream", "http://127.0.0.1:1"];
    let policy = "{ version: 1, rules: [{ name: a, key: [ip], limits: [2/h, 3/day] }] }";
    let server = Server::with_policy(policy, &proxy);
    let mut operator = Operator::of(&server);
    let one = json!({ "rule": "a", "attributes": { "ip": "203.0.113.7" } });
    let person = json!({ "attributes": { "ip": "203.0.113.7" } });
    let drain = json!({ "group": "upstream", "server": "http://127.0.0.1:1", "drain": true });
    let mut reset = |body: &Value| {
        let reply = operator.send("POST", "/admin/v1/reset", body);
        (reply.status, reply.json()["states"].as_u64())
    };
    let drained = || {
        let groups = server.admin("GET", "/admin/v1/upstreams", "", "").json();
        groups.to_string().contains("\"draining\":true")
    };
    let put_drain = || {
        let kind = "application/json";
        server.admin("PUT", "/admin/v1/upstreams", kind, &drain.to_string()).status
    };
    // There is nothing to reset.
    for _ in 0..100 {
        assert_eq!(resp(&server, "DEL k l"), ":0");
        assert_eq!(resp(&server, "TG.RESET a ip 203.0.113.7"), ":0");
    }
    assert_eq!((reset(&one), reset(&person)), ((200, Some(0)), (200, Some(0))));
    assert_eq!(kinds(&server), Vec::<String>::new());
    let count = || {
        assert_eq!(server.check_ip("203.0.113.7").status, 200);
        assert!(resp(&server, "CL.THROTTLE k 0 1 3600").starts_with("*5"));
    };
    count();
    // No line can be written.
    let log = server.data("audit.log");
    fs::create_dir(&log).unwrap();
    let refused = "-ERR it could not be written to the data directory";
    for command in ["DEL k", "TG.RESET a ip 203.0.113.7"] {
        let reply = resp(&server, command);
        assert!(reply.starts_with(refused), "{command}: {reply}");
    }
    assert_eq!((reset(&one).0, reset(&person).0, put_drain()), (500, 500, 500));
    assert!(reasons(&server).contains("audit.log could not be written"), "{}", reasons(&server));
    let peek = server.post("/v1/peek", &person.to_string()).json();
    assert_eq!(peek["limits"][0]["remaining"], 1, "{peek}");
    assert!(!drained());
    fs::remove_dir(&log).unwrap();
    assert_eq!((resp(&server, "DEL k"), put_drain(), drained()), (":1".to_owned(), 200, true));
    assert_eq!(resp(&server, "TG.RESET a ip 203.0.113.7"), ":2");
    count();
    assert_eq!(reset(&one), (200, Some(2)));
    assert_eq!(server.check_ip("203.0.113.7").status, 200);
    assert_eq!(reset(&person), (200, Some(2)));
    assert_eq!(kinds(&server), ["reset", "upstream", "reset", "reset", "reset"]);
    assert!(!reasons(&server).contains("audit"), "{}", reasons(&server));
}

/// A policy file that is gone cannot be read at the next start, so that is reported.
#[test]
fn a_policy_file_that_is_gone_is_told() {
    let server = Server::with_policy(POLICY, &[]);
    let (file, away) = (server.folder.join("policy.yaml"), server.folder.join("away.yaml"));
    fs::rename(&file, &away).unwrap();
    server.until("it is missed", |server| reasons(server).contains("policy.yaml"));
    assert_eq!(server.check_ip("203.0.113.7").status, 200);
    fs::rename(&away, &file).unwrap();
    server.until("it is back", |server| reasons(server) == "[]");
}

// === contents ===

/// An override for a raw cookie was once accepted and written into two files, but never matched.
#[test]
fn what_could_never_match_is_refused() {
    let server = Server::with_policy(POLICY, &[]);
    let mut operator = Operator::of(&server);
    let mut put = |rule: &str, name: &str, value: &str| {
        let body = json!({ "rule": rule, "key": { name: value }, "limits": ["7/h"] });
        let reply = operator.send("PUT", "/admin/v1/overrides", &body);
        (reply.status, reply.json())
    };
    let (status, told) = put("sessions", "session", "canary-session-cookie");
    assert_eq!(status, 422, "{told}");
    // The error says what to write instead.
    let digest = told["detail"].as_str().unwrap().split('`').nth(3).unwrap().to_owned();
    assert_eq!(put("sessions", "session", &digest).0, 200);
    let long = "x".repeat(5_000);
    assert_eq!(put("users", "user", &long).0, 422);
    assert_eq!(put("users", "user", &"x".repeat(9_000)).0, 422);
    assert_eq!(put("users", "user", "").0, 422);
    let tier = json!({ "attribute": "session", "value": "canary-session-cookie", "tier": "pro" });
    assert_eq!(operator.send("PUT", "/admin/v1/tiers", &tier).status, 422);
    for name in ["control.json", "audit.log"] {
        let text = fs::read_to_string(server.data(name)).unwrap();
        assert!(!text.contains("canary") && !text.contains(&long), "{text}");
        assert!(text.contains(&digest), "{text}");
    }
    let cookie = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("cookie", "sid=canary-session-cookie"),
    ];
    let passed = (0..9).filter(|_| {
        crate::support::request(server.http, "GET", "/v1/auth", &cookie, "").status == 200
    });
    assert_eq!(passed.count(), 7);
}

// === environment ===

/// A text greeting on the standard output came before the first line of a JSON log, and programs that read both streams of a
/// container failed at it. With a JSON log, the greeting is one of its lines.
#[test]
fn a_server_that_logs_json_prints_nothing_else() {
    let server = folder("json");
    let log = fs::File::create(server.join("log")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--http-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .args(["--resp-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--data-dir"])
        .arg(server.join("data"))
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let greeting = crate::support::greeting(&server.join("log"), &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    for name in ["http", "admin", "resp", "grpc", "data", "tidegate"] {
        assert!(greeting[name].is_string(), "{name}: {greeting}");
    }
    let log = fs::read_to_string(server.join("log")).unwrap();
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    fs::remove_dir_all(&server).unwrap();
}

/// If its greeting could not be written, the server once ended immediately, with exit code 0.
#[test]
fn a_greeting_that_cannot_be_written_is_no_reason_to_stop() {
    let folder = folder("unread");
    let log = fs::File::create(folder.join("log")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--http-listen", "127.0.0.1:0", "--admin-listen", "off"])
        .args(["--resp-listen", "off", "--grpc-listen", "off", "--data-dir"])
        .arg(folder.join("data"))
        .args(["--log-format", "text"])
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let address = loop {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended");
        let log = crate::support::whole_lines(&folder.join("log"));
        let rest = log.split("serving").nth(1).and_then(|rest| rest.split(" http=").nth(1));
        let address = rest.and_then(|rest| rest.split_whitespace().next());
        // This line is the later one.
        match address.filter(|_| log.contains("the greeting could not be written")) {
            Some(address) => break address.parse().unwrap(),
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(crate::support::request(address, "GET", "/live", &[], "").status, 200);
    child.kill().unwrap();
    child.wait().unwrap();
    fs::remove_dir_all(&folder).unwrap();
}

/// An environment variable that is not valid text was once ignored, and the server used the default instead.
#[test]
fn a_variable_that_is_no_text_is_refused() {
    let folder = folder("variables");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("serve")
        .current_dir(&folder)
        .env("TIDEGATE_POLICY", OsStr::from_bytes(b"policy-\xff.yaml"))
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("TIDEGATE_POLICY: its value is not valid UTF-8"), "{told}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// Other servers use these signals for something. Ours once ended at them, in the middle of its work.
#[test]
fn signals_of_other_servers_end_nothing() {
    let mut server = Server::with_policy(POLICY, &[]);
    for signal in ["USR1", "USR2"] {
        server.signal(signal);
    }
    server.until("they were heard", |server| {
        server.log().matches("SIGUSR1 and SIGUSR2").count() >= 2
    });
    assert_eq!(server.get("/live").status, 200);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let mut log = String::new();
    fs::File::open(server.folder.join("log")).unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("stopped; every request was answered"), "{log}");
}
