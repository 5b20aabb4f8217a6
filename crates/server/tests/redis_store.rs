//! Several nodes that count in one Redis server, and what they do while it is unreachable.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]

#[path = "../../store/tests/support/settings.rs"]
mod settings;
use crate::support;

use std::io::Write;
use std::process::{Command, Stdio};
use support::redis::Redis;
use support::{Reply, Server, folder, passed_together, tidegate};
use tidegate::{Attributes, Check, Clock, DecidedBy, Limiter, Policy, Secret, Span};
use tidegate_core::Now;

const LIMITED: &str =
    "{ name: per-client, key: [ip], limits: [{ rate: 10/9600h, algorithm: fixed_window }] }";
/// Every answer comes from the store.
const ASKED: [&str; 2] = ["--redis-denial-cache", "off"];

fn by(reply: &Reply) -> String {
    let verdict: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    verdict["decided_by"].as_str().unwrap().to_owned()
}

/// Waits until the store decides.
fn until_asked(server: &Server) {
    server.until("the store is asked", |server| server.get("/ready").body.contains("\"ready\""));
}

/// How much the store has left for an address; a larger number than the limit if the store did not decide.
fn left(server: &Server, ip: &str) -> usize {
    let body = format!(r#"{{"attributes":{{"ip":"{ip}"}}}}"#);
    let told = server.post("/v1/peek", &body).json();
    let left = told["limits"][0]["remaining"].as_u64().unwrap();
    if told["decided_by"] == "store" { usize::try_from(left).unwrap() } else { usize::MAX }
}

#[test]
fn three_servers_share_one_limit() {
    let redis = Redis::started();
    let servers = [(); 3].map(|()| redis.server(LIMITED, &ASKED));
    servers.iter().for_each(until_asked);
    assert_eq!(passed_together(&servers, "203.0.113.7", 20), 10);
    let told = servers[0].check_ip("203.0.113.7");
    assert_eq!((told.status, by(&told)), (429, "store".to_owned()));
}

/// A repeated denial is answered without a call to the store, with the same result. A reset takes effect immediately.
#[test]
fn a_refusal_is_remembered() {
    let redis = Redis::started();
    let server = redis.server(LIMITED, &[]);
    until_asked(&server);
    let passed = (0..10).filter(|_| server.check_ip("203.0.113.7").status == 200).count();
    assert_eq!(passed, 10);
    // A denial is remembered for half a second. A batch takes much less, unless the machine stalls meanwhile.
    let batch = vec![r#"{"attributes":{"ip":"203.0.113.7"}}"#; 50].join(",");
    server.until("refusals are remembered", |server| {
        let told = server.post("/v1/check", &format!("[{batch}]")).json();
        let told = told.as_array().unwrap();
        assert!(told.iter().all(|told| told["allowed"] == false), "{told:?}");
        told.iter().filter(|told| told["decided_by"] == "cache").count() >= 40
    });
    let told = server.check_ip("203.0.113.7");
    let retry = told.field("retry-after").unwrap().parse::<u64>().unwrap();
    assert!((1..=9_600 * 3_600).contains(&retry), "{retry}");
    assert_eq!(by(&server.check_ip("203.0.113.8")), "store");
}

/// `/ready` and the log said `the store cannot be reached: …; the nodes cannot be counted, 8 are assumed: the store cannot be
/// reached: …`. One cause is said once.
#[test]
fn one_cause_is_reported_once() {
    let redis = Redis::new();
    let server = redis.server(LIMITED, &[]);
    server.until("it says so", |server| server.get("/ready").body.contains("8 are assumed"));
    let ready = server.get("/ready").body;
    assert_eq!(ready.matches("cannot be reached").count(), 1, "{ready}");
    server.until("it is logged", |server| server.log().contains("the store has a problem"));
    for line in server.log().lines() {
        assert!(line.matches("cannot be reached").count() <= 1, "{line}");
    }
}

/// The server starts without the store, decides as each rule says for that case, reports that it is degraded, and
/// uses the store as soon as it is there.
#[test]
fn a_server_starts_before_its_store() {
    let mut redis = Redis::new();
    let rules = format!(
        "{LIMITED}, {{ name: login, match: {{ path: /login }}, key: [ip], limits: [1000/h], on_store_error: deny }}"
    );
    let server = redis.server(&rules, &[]);
    let local = server.check_ip("203.0.113.7");
    assert_eq!((local.status, by(&local)), (200, "fallback".to_owned()));
    let body = r#"{"attributes":{"ip":"203.0.113.8","method":"GET","path":"/login"}}"#;
    let login = server.post("/v1/check", body);
    assert_eq!((login.status, by(&login)), (429, "fallback".to_owned()));
    server.until("it says so", |server| {
        let ready = server.get("/ready");
        ready.status == 200 && ready.body.contains("degraded") && ready.body.contains("store")
    });
    assert_eq!(server.get("/live").status, 200);
    redis.start();
    until_asked(&server);
    let shared = server.check_ip("203.0.113.7");
    assert_eq!((shared.status, by(&shared)), (200, "store".to_owned()));
    assert_eq!(server.post("/v1/check", body).status, 200);
}

/// The store is killed and started again without its data. No client sees an error, and the server uses the store
/// again by itself.
#[test]
fn a_store_that_is_killed_is_missed_and_found_again() {
    let mut redis = Redis::started();
    let server = redis.server(LIMITED, &[]);
    until_asked(&server);
    assert_eq!(by(&server.check_ip("203.0.113.7")), "store");
    redis.kill();
    // The server notices at the first call, at the latest, that the connection is gone.
    server.until("it is missed", |server| by(&server.check_ip("203.0.113.7")) == "fallback");
    for _ in 0..30 {
        let reply = server.check_ip("203.0.113.9");
        assert!(matches!(reply.status, 200 | 429), "{reply:?}");
    }
    // Without the store, a node is limited, too.
    assert_eq!(server.check_ip("203.0.113.9").status, 429);
    redis.start();
    server.until("it is found again", |server| by(&server.check_ip("203.0.113.9")) == "store");
}

/// The store is stopped while requests are in flight. Requests that wait for it are answered after the timeout, later
/// ones immediately. When the store continues, the requests that it had not answered do not count; what the server
/// granted by itself is charged.
#[test]
fn a_store_that_stands_still_keeps_nobody_waiting_and_counts_no_ghosts() {
    let redis = Redis::started();
    let server = redis.server(LIMITED, &["--redis-timeout", "200ms"]);
    until_asked(&server);
    server.until("it is asked in time", |server| by(&server.check_ip("203.0.113.1")) == "store");
    redis.stop();
    let answers: Vec<Reply> = (0..50).map(|_| server.check_ip("203.0.113.7")).collect();
    assert!(answers.iter().all(|reply| matches!(reply.status, 200 | 429)));
    // At least this many requests waited in vain before the breaker opened.
    assert!(server.metric("tidegate_store_errors_total") >= 5);
    assert_eq!(by(answers.last().unwrap()), "fallback");
    redis.signal("CONT");
    until_asked(&server);
    // Nothing else was counted. A node with long timeouts checks that.
    let granted = answers.iter().filter(|reply| reply.status == 200).count();
    let patient = redis.server(LIMITED, &ASKED);
    until_asked(&patient);
    patient.until("what was granted is charged", |patient| {
        left(patient, "203.0.113.7") <= 10 - granted
    });
    let passed = (0..30)
        .map(|_| patient.check_ip("203.0.113.7"))
        .filter(|reply| by(reply) == "store" && reply.status == 200)
        .count();
    assert_eq!(passed, 10 - granted);
}

/// A store that answers pings but not decisions: its user may not run scripts. The server does not use it.
#[test]
fn a_store_that_only_answers_pings_is_not_asked() {
    let redis = Redis::started();
    redis.tell(&[
        "ACL",
        "SETUSER",
        "tg",
        "on",
        ">hush",
        "~*",
        "+@all",
        "-fcall",
        "-function",
        "-evalsha",
        "-eval",
        "-script",
    ]);
    let server = redis.server_at(&format!("{}?user=tg&pass=hush", redis.url()), LIMITED, &[]);
    let ready = server.get("/ready").body;
    assert!(ready.contains("degraded") && ready.contains("evalsha"), "{ready}");
    assert_eq!(by(&server.check_ip("203.0.113.7")), "fallback");
    redis.tell(&["ACL", "SETUSER", "tg", "+@all"]);
    until_asked(&server);
    assert_eq!(by(&server.check_ip("203.0.113.7")), "store");
    // The permission is revoked again, while there are no requests.
    redis.tell(&["ACL", "SETUSER", "tg", "-fcall", "-function", "-evalsha", "-eval", "-script"]);
    server.until("it is noticed", |server| server.get("/ready").body.contains("evalsha"));
    assert!(!server.log().contains("hush"), "{}", server.log());
}

/// One key holds another program's data. Requests that are counted there are decided without the store, all others by
/// it.
#[test]
fn one_foreign_key_is_no_reason_to_give_up_the_others() {
    let redis = Redis::started();
    let server = redis.server(LIMITED, &ASKED);
    until_asked(&server);
    assert_eq!(by(&server.check_ip("203.0.113.7")), "store");
    let spoil = "for _, key in ipairs(redis.call('KEYS', '*')) do
        if not key:find('tidegate') and not key:find('canary') then
            redis.call('DEL', key)
            redis.call('LPUSH', key, 'foreign')
        end
    end
    return redis.status_reply('OK')";
    redis.tell(&["EVAL", spoil, "0"]);
    for _ in 0..20 {
        assert_eq!(by(&server.check_ip("203.0.113.7")), "fallback");
        assert_eq!(by(&server.check_ip("203.0.113.8")), "store");
    }
    // `/ready` names the key while requests for it fail, and for ten seconds more.
    server.until("it is told", |server| {
        server.check_ip("203.0.113.7");
        let told = server.get("/ready").body;
        told.contains("degraded") && told.contains("the fallback decides about the key")
    });
}

/// The timeout of the store is a minute here. A caller with a shorter timeout gets its answer in time, from the
/// fallback.
#[test]
fn a_caller_in_a_hurry_is_answered_in_time() {
    let redis = Redis::started();
    let server = redis.server(LIMITED, &[]);
    until_asked(&server);
    redis.stop();
    let ask = |ip: &str, timeout_ms: u32| {
        let body = format!(r#"{{"attributes":{{"ip":"{ip}"}},"timeout_ms":{timeout_ms}}}"#);
        server.post("/v1/check", &body)
    };
    let hurried = ask("203.0.113.7", 500);
    assert_eq!((hurried.status, by(&hurried)), (200, "fallback".to_owned()));
    // The server's estimate of the store's clock is only as exact as replies are quick. When this request is
    // answered, the first one is clearly late by the store's clock.
    assert_eq!(by(&ask("203.0.113.8", 3_000)), "fallback");
    redis.signal("CONT");
    // It is counted once: because it was granted by the fallback, not because it was sent to the store.
    server.until("it is charged", |server| left(server, "203.0.113.7") == 9);
    let told = server.check_ip("203.0.113.7");
    let told: serde_json::Value = serde_json::from_str(&told.body).unwrap();
    assert_eq!(
        (&told["decided_by"], &told["limits"][0]["remaining"]),
        (&"store".into(), &8.into()),
        "{told}"
    );
}

#[test]
fn a_server_with_another_secret_does_not_start() {
    let redis = Redis::started();
    let server = redis.server(LIMITED, &[]);
    until_asked(&server);
    let data = redis.folder.join("other");
    let output = tidegate()
        .args([
            "serve",
            "--http-listen",
            "127.0.0.1:0",
            "--resp-listen",
            "off",
            "--grpc-listen",
            "off",
        ])
        .args(["--admin-listen", "off", "--store", &redis.url(), "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("the states of another secret"), "{told}");
}

/// `tidegate secret`, with this on its standard input.
fn secret(words: &[&str], input: &str) -> (Option<i32>, String) {
    let mut child = tidegate()
        .arg("secret")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // `show` may end before it has read anything.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// A second node did not start, and said that its secret was another one, but not which file has it and how to copy it. What the
/// error says must work.
#[test]
fn a_node_with_another_secret_is_told_how_to_get_the_right_one() {
    let redis = Redis::started();
    let first = redis.server(LIMITED, &[]);
    until_asked(&first);
    let folder = folder("second");
    let data = folder.join("data");
    let start = |variables: &[(&str, &str)]| {
        tidegate()
            .args(["serve", "--http-listen", "127.0.0.1:0", "--resp-listen", "off"])
            .args(["--grpc-listen", "off", "--admin-listen", "off", "--store", &redis.url()])
            .arg("--data-dir")
            .arg(&data)
            .envs(variables.iter().copied())
            .output()
            .unwrap()
    };
    let refused = start(&[]);
    let told = String::from_utf8(refused.stderr).unwrap();
    let file = data.join("secret").to_str().unwrap().to_owned();
    let set = format!("tidegate secret set --replace --secret-file {file}");
    for part in ["all nodes that share a store need the same one", "tidegate secret show", &set] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let other = "11".repeat(32);
    let refused = start(&[("TIDEGATE_SECRET", &other)]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("TIDEGATE_SECRET has the secret of this node"), "{told}");
    assert!(!told.contains(&other), "{told}");

    let theirs = redis.folder.join("secret").to_str().unwrap().to_owned();
    let (code, shown) = secret(&["show", "--secret-file", &theirs], "");
    assert_eq!((code, shown.trim().len()), (Some(0), 64), "{shown}");
    let (code, told) = secret(&["set", "--secret-file", &file], &shown);
    assert!(code == Some(2) && told.contains("Add --replace"), "{told}");
    let (code, told) = secret(&["set", "--replace", "--secret-file", &file], &shown[1..]);
    assert!(code == Some(2) && !told.contains(&shown[1..20]), "{told}");
    let (code, told) = secret(&["set", "--replace", "--secret-file", &file], &shown);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(secret(&["show", "--data-dir", data.to_str().unwrap()], "").1, shown);
    let url = redis.url();
    let second = Server::start_in(folder, &[&["--store", &url][..], &ASKED].concat());
    until_asked(&second);
    assert_eq!(by(&second.check_ip("203.0.113.7")), "store");
}

/// In a container the secret comes from the environment. It is shown nowhere, and no file is written.
#[test]
fn a_secret_of_the_environment_is_shown_nowhere() {
    let (redis, text) = (Redis::started(), "a1".repeat(32));
    let url = redis.url();
    let flags = [&["--store", &url][..], &ASKED].concat();
    let start =
        |name: &str| Server::start_with(folder(name), &flags, &[("TIDEGATE_SECRET", &text)]);
    let servers = ["one", "two"].map(start);
    for server in &servers {
        until_asked(server);
        assert_eq!(by(&server.check_ip("203.0.113.7")), "store");
        assert!(!server.data("secret").exists());
        let status = server.admin("GET", "/admin/v1/status", "", "").body;
        assert!(![server.log(), status].concat().contains(&text));
    }
    let run = |words: &[&str], text: &str| {
        let output = tidegate().args(words).env("TIDEGATE_SECRET", text).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let printed = run(&["serve", "--print-config"], &text);
    assert!(printed.contains("TIDEGATE_SECRET is set") && !printed.contains(&text), "{printed}");
    for wrong in [&text[1..], "", "secret", &text.replace('a', "x")] {
        let told = run(&["serve", "--print-config"], wrong);
        assert!(told.contains("TIDEGATE_SECRET: a secret is 64 hexadecimal digits"), "{told}");
        assert!(wrong.is_empty() || !told.contains(&format!("`{wrong}`")), "{told}");
    }
    assert!(run(&["secret", "show"], &text).contains("TIDEGATE_SECRET is set"));
}

#[test]
fn a_password_shows_nowhere() {
    let printed = tidegate()
        .args(["serve", "--store", "redis://tg:hush@127.0.0.1:6379/", "--print-config"])
        .output()
        .unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text.contains("redis://tg:***@127.0.0.1:6379/") && !text.contains("hush"), "{text}");
    for url in ["redisss://tg:hush@h/", "redis:tg:hush@h", "redis://tg:hush@h:port/"] {
        let data = folder("password");
        let refused = tidegate()
            .args(["serve", "--store", url, "--http-listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(2), "{url}");
        let told = String::from_utf8(refused.stderr).unwrap();
        assert!(told.contains("store") && !told.contains("hush"), "{told}");
        let _ = std::fs::remove_dir_all(&data);
    }
}

/// A change that an operator makes on one node is in force on all nodes, also on those that start later, and after
/// the store has lost its data.
#[test]
fn changes_of_operators_reach_all_nodes() {
    let mut redis = Redis::started();
    let servers = [(); 2].map(|()| redis.server(LIMITED, &ASKED));
    servers.iter().for_each(until_asked);
    let raise = r#"{"rule":"per-client","key":{"ip":"203.0.113.7"},"limits":["500/h"]}"#;
    let put = |server: &Server, body: &str| {
        server.admin("PUT", "/admin/v1/overrides", "application/json", body)
    };
    let known = |server: &Server| server.admin("GET", "/admin/v1/control", "", "").body;
    assert_eq!(put(&servers[0], raise).status, 200);
    servers[1].until("the other knows", |server| known(server).contains("500/h"));
    let third = redis.server(LIMITED, &ASKED);
    third.until("who starts later knows", |server| known(server).contains("500/h"));
    // Two changes on two nodes: both count, or the second operator is told that the version has changed.
    let other = raise.replace("203.0.113.7", "203.0.113.8");
    let mut told = put(&servers[1], &other).status;
    if told == 412 {
        servers[1].until("it has looked again", |server| known(server).contains("\"version\":1"));
        told = put(&servers[1], &other).status;
    }
    assert_eq!(told, 200);
    for server in [&servers[0], &third] {
        server.until("all know", |server| known(server).contains("203.0.113.8"));
        let passed = server.check_ip("203.0.113.8");
        assert!(passed.body.contains("\"limit\":500"), "{}", passed.body);
    }
    // While the store is unreachable, nothing can be changed, and earlier changes stay in force.
    redis.kill();
    servers[0].until("it is missed", |server| server.get("/ready").body.contains("degraded"));
    let refused = put(&servers[0], &raise.replace("500/h", "700/h"));
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(!known(&servers[0]).contains("700/h"));
    // A store without data gets the document of the nodes.
    redis.start();
    servers.iter().for_each(until_asked);
    let fourth = redis.server(LIMITED, &ASKED);
    fourth.until("it is told", |server| known(server).contains("203.0.113.8"));
}

// === a store that loses changes of operators ===

/// What another program would see of the document in the store.
const DOCUMENT: &str = "{tidegate}control";
const EARLIER: &str = "{tidegate}earlier";

/// Raises the limit of an address, and returns when the server has acknowledged that.
fn raise(server: &Server, ip: &str) {
    let body = format!(r#"{{"rule":"per-client","key":{{"ip":"{ip}"}},"limits":["500/h"]}}"#);
    // Until a server has looked at the store again, a change made on another one makes its own out of date.
    server.until("the change is accepted", |server| {
        let put = server.admin("PUT", "/admin/v1/overrides", "application/json", &body);
        assert!([200, 412].contains(&put.status), "{put:?}");
        put.status == 200
    });
}

/// Whether the limit of an address is raised.
fn is_raised(server: &Server, ip: &str) -> bool {
    let is_raised = server.admin("GET", "/admin/v1/control", "", "").body.contains(ip);
    if is_raised {
        let limit = server.check_ip(ip).body;
        assert!(limit.contains("\"limit\":500"), "{limit}");
    }
    is_raised
}

/// Remembers the document of the store, for [`lose_writes`].
fn remember(redis: &Redis) {
    copy(redis, DOCUMENT, EARLIER);
}

/// What a failover to a replica does that has not seen the last writes.
fn lose_writes(redis: &Redis) {
    copy(redis, EARLIER, DOCUMENT);
}

fn copy(redis: &Redis, from: &str, to: &str) {
    let script = "redis.call('COPY', KEYS[1], KEYS[2], 'REPLACE') return redis.status_reply('OK')";
    redis.tell(&["EVAL", script, "2", from, to]);
}

/// A failover lost the last change, and every node replaced its newer copy by the older document of the store: a customer who was
/// limited got the old limit again. A node that was restarted meanwhile has to know as much.
#[test]
fn a_change_that_the_store_loses_is_written_back() {
    let redis = Redis::started();
    let mut servers = [(); 2].map(|()| redis.server(LIMITED, &ASKED));
    servers.iter().for_each(until_asked);
    raise(&servers[0], "203.0.113.7");
    servers[1].until("the other knows", |server| is_raised(server, "203.0.113.7"));
    remember(&redis);
    raise(&servers[0], "203.0.113.8");
    servers[1].until("the other knows", |server| is_raised(server, "203.0.113.8"));
    let all_know = |servers: &[Server]| {
        let newcomer = redis.server(LIMITED, &ASKED);
        newcomer.until("it is written back", |server| is_raised(server, "203.0.113.8"));
        for server in servers {
            assert!(is_raised(server, "203.0.113.7") && is_raised(server, "203.0.113.8"));
            until_asked(server);
        }
    };
    lose_writes(&redis);
    all_know(&servers);
    // While no node runs, the store loses it again.
    for server in &mut servers {
        server.signal("KILL");
        server.wait();
    }
    lose_writes(&redis);
    let servers = servers.map(|server| redis.server_again(server, &ASKED));
    servers.iter().for_each(until_asked);
    all_know(&servers);
}

/// The store lost its data, and a node that had been cut off was the first to write its document there. It was followed by all
/// others, although theirs was newer.
#[test]
fn a_node_that_was_cut_off_does_not_bring_back_an_older_document() {
    let redis = Redis::started();
    let servers = [(); 3].map(|()| redis.server(LIMITED, &ASKED));
    servers.iter().for_each(until_asked);
    let [first, second, cut_off] = &servers;
    raise(first, "203.0.113.7");
    for server in &servers {
        server.until("all know", |server| is_raised(server, "203.0.113.7"));
    }
    cut_off.stall();
    for ip in ["203.0.113.8", "203.0.113.9"] {
        raise(first, ip);
        second.until("the second knows", |server| is_raised(server, ip));
    }
    first.stall();
    second.stall();
    redis.tell(&["FLUSHALL"]);
    cut_off.signal("CONT");
    cut_off.until("it has written its document", |_| {
        redis.told(&["HGET", DOCUMENT, "version"]) == "1"
    });
    assert!(!is_raised(cut_off, "203.0.113.8"));
    first.signal("CONT");
    second.signal("CONT");
    for server in &servers {
        server.until("all know", |server| is_raised(server, "203.0.113.9"));
        assert!(is_raised(server, "203.0.113.8"));
        until_asked(server);
    }
    assert_eq!(redis.told(&["HGET", DOCUMENT, "version"]), "3");
}

/// The store lost a change, and another one was made before the first could be written back: two documents of one version, neither
/// made from the other. Nodes decided by either for as long as they ran, and `/ready` was `ready`.
#[test]
fn two_documents_of_one_version_are_reported_and_nodes_decide_alike() {
    let redis = Redis::started();
    let [first, second] = [(); 2].map(|()| redis.server(LIMITED, &ASKED));
    until_asked(&first);
    until_asked(&second);
    raise(&first, "203.0.113.7");
    second.until("the other knows", |server| is_raised(server, "203.0.113.7"));
    remember(&redis);
    second.stall();
    raise(&first, "203.0.113.8");
    first.stall();
    lose_writes(&redis);
    second.signal("CONT");
    raise(&second, "203.0.113.9");
    first.signal("CONT");
    let forked = |server: &Server| {
        let ready = server.get("/ready").body;
        let at = ready.find("control-fork-2-")?;
        Some(ready[at..].split_once(".json")?.0.to_owned() + ".json")
    };
    first.until("it is reported", |server| forked(server).is_some());
    for server in [&first, &second] {
        assert_eq!(
            [7, 8, 9].map(|n| is_raised(server, &format!("203.0.113.{n}"))),
            [true, false, true]
        );
    }
    assert_eq!(forked(&second), None);
    let kept = first.data(&forked(&first).unwrap());
    assert!(std::fs::read_to_string(&kept).unwrap().contains("203.0.113.8"));
    // It is reported until an operator has made the change again, or does not want it any more.
    raise(&first, "203.0.113.8");
    second.until("both know", |server| is_raised(server, "203.0.113.8"));
    assert!(forked(&first).is_some());
    std::fs::remove_file(kept).unwrap();
    first.until("it is settled", |server| forked(server).is_none());
    until_asked(&first);
}

/// An older version of the program leaves the lineage of the document before. Its documents are followed, also back.
#[test]
fn documents_of_older_versions_are_followed() {
    let redis = Redis::started();
    let server = redis.server(LIMITED, &ASKED);
    until_asked(&server);
    raise(&server, "203.0.113.7");
    let text = redis.told(&["HGET", DOCUMENT, "text"]);
    let write = |version: u64| {
        let text = text.replace("\"version\":1", &format!("\"version\":{version}"));
        let text = text.replace("203.0.113.7", &format!("203.0.113.{version}"));
        let script = "redis.call('HSET', KEYS[1], 'version', ARGV[1], 'text', ARGV[2]) return redis.status_reply('OK')";
        redis.tell(&["EVAL", script, "1", DOCUMENT, &version.to_string(), &text]);
        server.until("it is followed", |server| is_raised(server, &format!("203.0.113.{version}")));
    };
    write(20);
    server.until("it gets a lineage", |_| {
        redis.told(&["HGET", DOCUMENT, "lineage"]).starts_with("20:")
    });
    write(10);
    until_asked(&server);
}

/// A change that expires ends on every node by itself. One of the nodes removes it from the document for all.
#[test]
fn a_change_that_expires_ends_on_all_nodes() {
    let redis = Redis::started();
    let servers = [(); 2].map(|()| redis.server(LIMITED, &ASKED));
    servers.iter().for_each(until_asked);
    let raise = |seconds: u32| {
        let body = format!(
            r#"{{"rule":"per-client","key":{{"ip":"203.0.113.7"}},"limits":["500/h"],"expires":{seconds}}}"#
        );
        let put = servers[0].admin("PUT", "/admin/v1/overrides", "application/json", &body);
        assert_eq!(put.status, 200, "{put:?}");
    };
    let is_raised = |server: &Server| server.check_ip("203.0.113.7").body.contains("\"limit\":500");
    // It is seen on both nodes before it gets its short time, however slow the machine is.
    raise(3_600);
    servers[1].until("the other knows", is_raised);
    raise(1);
    let get = |server: &Server, what: &str| {
        server.admin("GET", &format!("/admin/v1/{what}"), "", "").json()
    };
    for server in &servers {
        server.until("it has ended", |server| !is_raised(server));
        server.until("it is removed", |server| get(server, "control")["version"] == 3);
        assert_eq!(get(server, "control")["overrides"], serde_json::json!([]));
    }
    // If both nodes tried at the same time, the second has noted that it did not succeed.
    let lines = |what: &str| {
        let of = |server: &Server| {
            let lines = get(server, "audit");
            lines.as_array().unwrap().iter().filter(|line| line["what"] == what).count()
        };
        servers.iter().map(of).sum::<usize>()
    };
    assert_eq!(lines("expired"), 1 + lines("abandoned"));
}

/// Another program's data under the key of the control document is reported, once in the log, and the changes in
/// force stay in force.
#[test]
fn foreign_data_in_the_place_of_changes_is_reported() {
    let redis = Redis::started();
    let server = redis.server(LIMITED, &[]);
    until_asked(&server);
    redis.tell(&["SET", "{tidegate}control", "nonsense"]);
    server.until("it is reported", |server| {
        server.get("/ready").body.contains("changes made on other nodes are not in force here")
    });
    assert_eq!(by(&server.check_ip("203.0.113.7")), "store");
    redis.tell(&["RENAME", "{tidegate}control", "elsewhere"]);
    until_asked(&server);
    let log = server.log();
    assert_eq!(log.matches("are not in force here").count(), 1, "{log}");
}

/// Some engines do not let scripts read the time. The server reports that. With `--redis-clock node` it uses its own
/// clock, and still counts exactly.
#[test]
fn a_store_whose_scripts_cannot_read_the_time() {
    let redis = Redis::started();
    redis.tell(&["ACL", "SETUSER", "tg", "on", ">hush", "~*", "+@all", "-time"]);
    let url = format!("{}?user=tg&pass=hush", redis.url());
    let by_server = redis.server_at(&url, LIMITED, &ASKED);
    by_server.until("it says why", |server| server.get("/ready").body.contains("can't run this"));
    assert_eq!(by(&by_server.check_ip("203.0.113.7")), "fallback");
    let mut flags = ASKED.to_vec();
    flags.extend(["--redis-clock", "node"]);
    let servers = [(); 2].map(|()| redis.server_at(&url, LIMITED, &flags));
    servers.iter().for_each(until_asked);
    let passed =
        |server: &Server| (0..10).filter(|_| server.check_ip("203.0.113.8").status == 200).count();
    assert_eq!(servers.iter().map(passed).sum::<usize>(), 10);
}

/// A store with TLS and users. Our user may run scripts and access its own keys, and nothing else.
#[test]
fn a_store_may_speak_tls_and_know_its_users() {
    let (folder, address) = (folder("tls-store"), own_address());
    let authority = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let own = params.self_signed(&authority).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(params, authority);
    let of_server = rcgen::CertificateParams::new([address.ip().to_string()]).unwrap();
    let signed = of_server.signed_by(&key, &issuer).unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).to_str().unwrap().to_owned()
    };
    let authority = write("authority.pem", own.pem());
    let (certificate, key) =
        (write("server.pem", signed.pem()), write("server.key", key.serialize_pem()));
    let child = Command::new("redis-server")
        .args(["--port", "0", "--tls-port", &address.port().to_string()])
        .args(["--bind", &address.ip().to_string()])
        .args(["--tls-cert-file", &certificate, "--tls-key-file", &key])
        .args(["--tls-ca-cert-file", &authority, "--save", "", "--dir"])
        .arg(&folder)
        // Clients need no certificate here.
        .args(["--tls-auth-clients", "no"])
        .args(["--user", "default", "off", "--user", "tg", "on", ">hush", "~{*"])
        .args(MAY.split(' ').map(|command| format!("+{command}")))
        .stdout(Stdio::null())
        .spawn();
    let redis = Redis { folder, child: Some(child.unwrap()) };
    let url = format!("rediss://tg:hush@{address}/");
    let mut flags = ASKED.to_vec();
    flags.extend(["--redis-ca-file", &authority]);
    let server = redis.server_at(&url, LIMITED, &flags);
    until_asked(&server);
    assert_eq!(by(&server.check_ip("203.0.113.7")), "store");
    // A node that does not trust that CA does not connect to the store, and says why.
    let stranger = redis.server_at(&url, LIMITED, &ASKED);
    assert_eq!(by(&stranger.check_ip("203.0.113.7")), "fallback");
    stranger.until("it says why", |server| server.get("/ready").body.contains("certificate"));
}

/// Redis decides by its own clock, so a node whose clock is 400 days fast must compute its calendars for the time of
/// Redis. Once it computed them for its own time: everything before them was one window, and refusals lasted for a
/// year.
#[tokio::test]
async fn a_node_whose_clock_is_wrong_has_the_calendar_of_the_store() {
    let redis = Redis::started();
    redis.tell(&["CONFIG", "SET", "maxmemory", "0"]); // as soon as it is reachable
    let secret = Secret::new([7; 32]);
    let store = tidegate_store::Redis::open(&settings::redis(&redis.url()), &secret).await.unwrap();
    let right = Clock::system();
    let wrong = Clock::borrowed(move || {
        let Now { steady, calendar } = right.now();
        Now { steady, calendar: calendar.after(Span::from_secs(400 * 86_400)).unwrap() }
    });
    let rule = "{ name: plan, key: [ip], on_store_error: deny, limits: [3/calendar-month] }";
    let policy = Policy::parse(format!("{{ version: 1, rules: [{rule}] }}")).unwrap();
    let limiter = Limiter::new(policy, store, secret, wrong).unwrap();
    let client = Attributes::new().with("ip", "203.0.113.7").unwrap();
    for asked in 0.. {
        let verdict = limiter.check(&Check::new(&client)).await.unwrap();
        assert_ne!(verdict.decided_by, DecidedBy::Fallback);
        if !verdict.allowed() {
            let wait = verdict.retry_after().unwrap();
            assert!(wait <= Span::from_secs(31 * 86_400), "wait {wait}");
            break;
        }
        // Three in this month, and three more if the next month begins right now.
        assert!(asked < 6);
    }
}

/// The permissions that the store's user needs.
const MAY: &str = "fcall function|load evalsha eval script|load get getrange set del expire pexpire time ping role hget hset hgetall hdel";

/// A loopback address that belongs to this process: connections of other processes come from 127.0.0.1, so none of
/// them can take its port first.
fn own_address() -> std::net::SocketAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    std::net::SocketAddr::from(([127, a | 128, b, c], 20_000))
}

/// A hot key is spent from what the server holds of its limit. Operators see how much that is, and a server that stops gives it
/// back.
#[test]
fn a_hot_key_is_leased_and_what_is_left_is_given_back() {
    let redis = Redis::started();
    let rule = "{ name: hot, key: [ip], limits: [{ rate: 1000000/week, algorithm: fixed_window }], consistency: { lease: { interval: 1s } } }";
    let mut server = redis.server(rule, &[]);
    let other = redis.server(rule, &[]);
    until_asked(&server);
    until_asked(&other);
    let batch = vec![r#"{"attributes":{"ip":"203.0.113.7"}}"#; 50].join(",");
    let mut passed = 0;
    server.until("requests are spent from a lease", |server| {
        let told = server.post("/v1/check", &format!("[{batch}]")).json();
        let told = told.as_array().unwrap();
        assert!(told.iter().all(|told| told["allowed"] == true), "{told:?}");
        passed += told.len();
        told.iter().any(|told| told["decided_by"] == "lease")
    });
    server.until("operators see what is held", |server| {
        let leases = server.admin("GET", "/admin/v1/leases", "", "").json();
        let rule = &leases["rules"][0];
        assert_eq!((&rule["rule"], &rule["overshoot_bound"]), (&"hot".into(), &0.into()));
        let sum =
            |names: &[&str]| names.iter().map(|name| rule[*name].as_u64().unwrap()).sum::<u64>();
        let parts = sum(&["held", "spent", "returned", "drained", "lost"]);
        sum(&["asks"]) > 0 && sum(&["spent"]) > 0 && sum(&["granted"]) == parts
    });
    assert!(server.metric("tidegate_lease_spent_total{rule=\"hot\"}") > 0);
    assert_eq!(server.metric("tidegate_lease_overshoot_bound{rule=\"hot\"}"), 0);
    server.signal("TERM");
    assert!(server.wait().success());
    other.until("what was held is given back", |other| {
        left(other, "203.0.113.7") == 1_000_000 - passed
    });
}

/// What a node knows of the nodes: how many they are, and the hash of the policy on each.
fn nodes(server: &Server) -> (u64, Vec<String>) {
    let told = server.admin("GET", "/admin/v1/nodes", "", "").json();
    let hashes = told["nodes"].as_array().unwrap().iter();
    let mut hashes: Vec<String> =
        hashes.map(|node| node["policy_hash"].as_str().unwrap().to_owned()).collect();
    hashes.sort();
    (told["count"].as_u64().unwrap(), hashes)
}

/// The top keys of all nodes, as one of them shows them: the scope, the number of nodes, and the counts by address.
fn top_keys(server: &Server) -> (String, u64, Vec<(String, u64)>) {
    let told = server.admin("GET", "/admin/v1/top?by=used", "", "").json();
    let keys =
        told["rules"].as_array().unwrap().iter().flat_map(|rule| rule["keys"].as_array().unwrap());
    let key = |key: &serde_json::Value| {
        (key["key"]["ip"].as_str().unwrap().to_owned(), key["count"].as_u64().unwrap())
    };
    let scope = told["scope"].as_str().unwrap().to_owned();
    (scope, told["nodes"].as_u64().unwrap(), keys.map(key).collect())
}

#[test]
fn top_keys_are_those_of_all_nodes() {
    let mut redis = Redis::started();
    let servers = [(); 3].map(|()| redis.server(LIMITED, &ASKED));
    servers.iter().for_each(until_asked);
    for (server, times) in servers.iter().zip([3, 2, 1]) {
        (0..times).for_each(|_| _ = server.check_ip("203.0.113.7"));
    }
    servers[2].check_ip("203.0.113.8");
    let all = vec![("203.0.113.7".to_owned(), 6), ("203.0.113.8".to_owned(), 1)];
    let expected = ("all nodes".to_owned(), 3, all);
    for server in &servers {
        server.until("the counts of all nodes", |server| top_keys(server) == expected);
    }
    redis.kill();
    let own = vec![("203.0.113.7".to_owned(), 3)];
    assert_eq!(top_keys(&servers[0]), ("this node".to_owned(), 1, own));
}

fn hash(server: &Server) -> String {
    server.get("/ready").json()["policy_hash"].as_str().unwrap().to_owned()
}

/// `policy_version` counts what a node has loaded, so nodes with one policy had different versions, and operators could not see
/// whether a new policy had reached all of them. The hash depends only on the rules in force.
#[test]
fn nodes_that_decide_by_the_same_rules_show_the_same_hash() {
    let redis = Redis::started();
    let first = redis.server(LIMITED, &ASKED);
    until_asked(&first);
    let path = redis.folder.join("policy.yaml");
    let original = std::fs::read_to_string(&path).unwrap();
    let version = |server: &Server| {
        server.admin("GET", "/admin/v1/status", "", "").json()["policy_version"].as_u64().unwrap()
    };
    let before = hash(&first);
    for (text, expected) in [(original.replace("10/9600h", "20/9600h"), 2), (original, 3)] {
        std::fs::write(&path, text).unwrap();
        first.until("it is read", |first| version(first) == expected);
        assert_eq!(hash(&first) == before, expected == 3);
    }
    let second = redis.server(LIMITED, &ASKED);
    until_asked(&second);
    assert_eq!((version(&first), version(&second)), (3, 1));
    assert_eq!((hash(&first), before.len()), (hash(&second), 12));
    for server in [&first, &second] {
        server.until("each knows the hash of both", |server| {
            nodes(server).1 == [before.clone(), before.clone()]
        });
        let status = server.admin("GET", "/admin/v1/status", "", "").json();
        assert_eq!(status["policy_hash"], before);
        assert_eq!(server.metric(&format!("tidegate_policy_info{{hash=\"{before}\"}}")), 1);
    }
    // A change of an operator is in force on both, and is part of the hash.
    let off = r#"{"rule":"per-client","enabled":false}"#;
    assert_eq!(second.admin("PUT", "/admin/v1/rules", "application/json", off).status, 200);
    let changed = hash(&second);
    assert_ne!(changed, before);
    for server in [&first, &second] {
        server.until("the change is in force everywhere", |server| {
            hash(server) == changed && nodes(server).1 == [changed.clone(), changed.clone()]
        });
    }
    let back = r#"{"rule":"per-client","enabled":null}"#;
    assert_eq!(first.admin("PUT", "/admin/v1/rules", "application/json", back).status, 200);
    assert_eq!(hash(&first), before);
}

/// `tidegate_cluster_nodes` was 3 for more than ten minutes after one of two servers had been restarted.
#[test]
fn a_restart_does_not_change_the_number_of_nodes() {
    let redis = Redis::started();
    let first = redis.server(LIMITED, &ASKED);
    let mut second = redis.server(LIMITED, &ASKED);
    for server in [&first, &second] {
        server.until("both are counted", |server| server.metric("tidegate_cluster_nodes") == 2);
    }
    let known = |first: &Server| nodes(first).1;
    for signal in ["KILL", "TERM"] {
        second.signal(signal);
        second.wait();
        let folder = second.folder.clone();
        // The folder must not be removed with the server.
        std::mem::forget(second);
        // Another policy, so that the first node shows when it has seen the new process.
        let policy = folder.join("policy.yaml");
        let rules = LIMITED.replace("per-client", &format!("after-{signal}"));
        std::fs::write(&policy, format!("version: 1\nrules: [{rules}]\n")).unwrap();
        let secret = redis.folder.join("secret");
        let [secret, policy] = [secret, policy].map(|path| path.to_str().unwrap().to_owned());
        let url = redis.url();
        let flags = ["--store", &url, "--secret-file", &secret, "--policy", &policy];
        second = Server::start_in(folder, &[&flags, &ASKED[..]].concat());
        let new = hash(&second);
        first.until("the new process is seen", |first| {
            assert!(first.metric("tidegate_cluster_nodes") <= 2);
            known(first).contains(&new)
        });
        assert_eq!((known(&first).len(), nodes(&first).0), (2, 2), "{signal}");
    }
    second.signal("TERM");
    assert!(second.wait().success());
    first.until("a node that stopped is not counted", |first| nodes(first).0 == 1);
}
