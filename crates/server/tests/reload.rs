//! Policies that change while the server decides. A valid policy takes effect at one instant. An invalid one changes
//! nothing, and is reported by the log, the metrics and `/ready`.

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
use crate::support::client;

use client::{Client, Operator};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use support::{Server, folder, pause, project};
use tidegate_policy::Policy;

// === requests meanwhile ===

/// `used-up` is refused from its third request on; all others pass.
const GOOD: &str = "
version: 1
rules:
  - { name: few, match: { user: used-up }, key: [user], limits: [{ rate: 2/h, algorithm: sliding_log }] }
  - { name: many, key: [user], limits: [1000000/h] }
";

/// A client that sends about a thousand requests a second and keeps every answer.
struct Load {
    enough: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Value>>,
}

impl Load {
    fn on(address: SocketAddr, users: &'static [&'static str]) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        let thread = std::thread::spawn(move || {
            let (mut client, mut answers) = (Client::of(address), Vec::new());
            for user in users.iter().cycle() {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                answers.push(check(&mut client, user));
                pause(Duration::from_millis(1));
            }
            answers
        });
        Self { enough, thread }
    }

    fn stop(self) -> Vec<Value> {
        self.enough.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn check(client: &mut Client, user: &str) -> Value {
    client.post("/v1/check", &format!("{{\"attributes\":{{\"user\":\"{user}\"}}}}")).json()
}

/// The outcome of a verdict and its limits: `1 deny few=2 many=1000000`.
fn summary(verdict: &Value) -> String {
    let limits = verdict["limits"].as_array().unwrap().iter();
    let limits: String =
        limits.map(|one| format!(" {}={}", one["rule"].as_str().unwrap(), one["limit"])).collect();
    format!("{} {}{limits}", verdict["policy_version"], verdict["outcome"].as_str().unwrap())
}

// === invalid policies ===

/// Two hundred texts, none of which is a valid policy.
fn broken() -> Vec<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = [no_text(), no_yaml(), wrong_values()].concat();
    let whole = fs::read(project("docs/policy.yaml")).unwrap();
    let cuts = (1..whole.len()).step_by(7).map(|at| whole[..at].to_vec());
    let rest = 200 - texts.len();
    texts.extend(cuts.filter(|text| Policy::parse(text).is_err()).step_by(3).take(rest));
    assert!(texts.iter().all(|text| Policy::parse(text).is_err()));
    assert_eq!(texts.len(), 200);
    texts
}

fn no_text() -> Vec<Vec<u8>> {
    let good = GOOD.as_bytes();
    let spoiled = |bytes: &[u8]| [good, bytes].concat();
    vec![
        vec![],
        b"\n\n\n".to_vec(),
        b"# to be written\n".to_vec(),
        b"\xef\xbb\xbf".to_vec(),
        vec![0; 4_096],
        b"\x7fELF\x02\x01\x01\0".to_vec(),
        spoiled(b"\0"),
        spoiled(b"# \x1b[31m\n"),
        spoiled(b"# \xff\n"),
        spoiled(b"# \xc3"),
        spoiled(b"# \xed\xa0\x80\n"),
        GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        GOOD.encode_utf16().flat_map(u16::to_be_bytes).collect(),
    ]
}

fn no_yaml() -> Vec<Vec<u8>> {
    let bomb: String = ('b'..'z')
        .zip('a'..'y')
        .map(|(to, from)| format!("{to}: &{to} [{}]\n", vec![format!("*{from}"); 9].join(",")))
        .collect();
    let texts = [
        format!("a: &a [x, x, x]\n{bomb}"),
        format!("{GOOD}---\n{GOOD}"),
        format!("{GOOD}version: 1\n"),
        format!("{GOOD}? [a]\n: 1\n"),
        GOOD.replace("  - ", "\t- "),
        GOOD.replace(" }\n", "\n"),
        GOOD.replace("few", "\"few"),
        GOOD.replace("few", "&few few"),
        GOOD.replace("few", "!!str few"),
        GOOD.replace("few", "many"),
        GOOD.replace("version: 1\n", ""),
        GOOD.replace("rules:", "rule:"),
        format!("version: 1\nrules: {}", "[".repeat(10_000)),
        format!("version: 1\nrules: {}", "{a: ".repeat(10_000)),
        format!("version: 1\nrules: [{}", "a,".repeat(200_000)),
        "x".repeat(1_000_000),
        "{\"version\": 1, \"rules\": [}".to_owned(),
        "<html><body>502 Bad Gateway</body></html>".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "42".to_owned(),
    ];
    texts.into_iter().map(String::into_bytes).collect()
}

/// Every part of a policy, with values that are not valid.
fn wrong_values() -> Vec<Vec<u8>> {
    let versions = ["2", "0", "-1", "one", "1.5", "[1]", "{}", "", "99999999999999999999999"];
    let versions =
        versions.iter().map(|value| GOOD.replace("version: 1", &format!("version: {value}")));
    let names = [
        "name",
        "key",
        "limits",
        "match",
        "when",
        "tiers",
        "overrides",
        "mode",
        "on_limit",
        "count_rejected",
        "count",
        "consistency",
        "on_store_error",
        "when_full",
        "shadow",
        "enabled",
        "stop",
        "nonsense",
    ];
    let values = ["-1", "{ a: { b: c } }", "[[[]]]", "18446744073709551616/s", "'1/fortnight'"];
    let settings = names.iter().flat_map(|name| values.iter().map(move |value| (name, value)));
    let settings = settings.map(|(name, value)| {
        let known = ["name: z, ", "key: [ip], ", "limits: [1/s], "];
        let rule: String =
            known.into_iter().filter(|one| !one.starts_with(&format!("{name}:"))).collect();
        format!("{GOOD}  - {{ {rule}{name}: {value} }}\n")
    });
    let texts = versions.chain(settings).map(String::into_bytes);
    texts.filter(|text| Policy::parse(text).is_err()).collect()
}

// === ways to change a file ===

/// Replaces a file atomically.
fn rename_over(path: &Path, bytes: impl AsRef<[u8]>) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(&new, path).unwrap();
}

/// Writes into the existing file, as an editor may.
fn write_into(path: &Path, bytes: impl AsRef<[u8]>) {
    File::create(path).unwrap().write_all(bytes.as_ref()).unwrap();
}

fn ready(server: &Server) -> (String, String) {
    let reply = server.get("/ready");
    assert_eq!(reply.status, 200, "{reply:?}");
    let reply = reply.json();
    (reply["status"].as_str().unwrap().to_owned(), reply["reasons"].to_string())
}

fn until_ready(server: &Server, word: &str, reason: &str) {
    server.until(&format!("{word}: {reason}"), |server| {
        let (status, reasons) = ready(server);
        status == word && reasons.contains(reason)
    });
}

fn version(server: &Server) -> u64 {
    server.check_ip("203.0.113.7").json()["policy_version"].as_u64().unwrap()
}

fn until_version(server: &Server, expected: u64) {
    server.until(&format!("version {expected}"), |server| version(server) == expected);
}

fn policy_file(server: &Server) -> PathBuf {
    server.folder.join("policy.yaml")
}

/// A policy of rules with these names, each with this amount an hour.
fn rules(names: &[&str], amount: u32) -> String {
    let rule = |name: &&str| {
        format!(
            "  - {{ name: {name}, match: {{ path: /{name} }}, key: [ip], limits: [{amount}/h] }}\n"
        )
    };
    format!("version: 1\nrules:\n{}", names.iter().map(rule).collect::<String>())
}

// === tests ===

/// An editor, a script or a deployment writes a file that is not a valid policy. Whatever it contains and however it
/// is written, all requests are decided by the previous policy, unchanged.
#[test]
fn two_hundred_broken_policies_change_nothing() {
    let server = Server::with_policy(GOOD, &[]);
    let (path, mut operator) = (policy_file(&server), Operator::of(&server));
    let mut client = Client::of(server.http);
    (0..2).for_each(|_| _ = check(&mut client, "used-up"));
    let load = Load::on(server.http, &["used-up", "free"]);
    let texts = broken();

    for text in &texts {
        let refused = operator.put_policy("", text);
        let problem = &refused.json()["problems"][0];
        let place = |name: &str| problem[name].as_u64().filter(|number| *number > 0);
        let told = refused.status == 400 && place("line").is_some() && place("column").is_some();
        assert!(told, "{refused:?} to {:?}", String::from_utf8_lossy(text));
    }
    assert_eq!(ready(&server), ("ready".to_owned(), "[]".to_owned()));

    let refusals = "tidegate_reload_total{result=\"refused\"}";
    for text in &texts {
        let before = operator.metric(refusals);
        rename_over(&path, text);
        server.signal("HUP");
        server.until("a broken file was read", |_| operator.metric(refusals) > before);
        assert_eq!(ready(&server).0, "degraded");
    }

    for (number, text) in texts.iter().step_by(25).enumerate() {
        let before = operator.metric(refusals);
        if number % 2 == 0 {
            rename_over(&path, text);
        } else {
            write_into(&path, text);
        }
        server.until("a broken file was noticed", |_| operator.metric(refusals) > before);
        assert_eq!(ready(&server).0, "degraded");
    }

    let answers: BTreeSet<String> = load.stop().iter().map(summary).collect();
    let expected = ["1 deny few=2 many=1000000", "1 allow many=1000000"].map(str::to_owned);
    assert_eq!(answers, BTreeSet::from(expected));
    assert!(ready(&server).1.contains("policy.yaml"), "{:?}", ready(&server));
    assert_eq!(operator.metric("tidegate_reload_total{result=\"applied\"}"), 0);
    assert_eq!(operator.get("/admin/v1/audit").json(), serde_json::json!([]));

    rename_over(&path, GOOD.replace("2/h", "3/h"));
    until_version(&server, 2);
    until_ready(&server, "ready", "[]");
    let third = check(&mut client, "used-up");
    assert_eq!(summary(&third), "2 allow few=3 many=1000000");
}

/// An operator breaks the file and then restores it. The server once saw that the text was the one in force, did
/// nothing, and reported the broken file for ever.
#[test]
fn a_file_that_is_put_back_ends_the_complaint() {
    let server = Server::with_policy(GOOD, &[]);
    rename_over(&policy_file(&server), "rules: [");
    until_ready(&server, "degraded", "policy.yaml");
    rename_over(&policy_file(&server), GOOD);
    until_ready(&server, "ready", "[]");
    assert_eq!(version(&server), 1);
}

/// The log said that the file was broken, and nothing when it was valid again. So an operator who read the log could not see that
/// the repair had worked.
#[test]
fn a_file_that_is_repaired_is_logged() {
    let server = Server::with_policy(GOOD, &[]);
    let path = policy_file(&server);
    for (text, said) in [
        (GOOD.to_owned(), "its policy was in force all the time"),
        (GOOD.replace("many", "others"), "its policy is in force"),
    ] {
        rename_over(&path, "rules: [");
        until_ready(&server, "degraded", "policy.yaml");
        rename_over(&path, text);
        let line = format!("the policy file is valid again; {said}");
        server.until(&line, |server| server.log().contains(&line));
    }
    assert_eq!(server.log().matches("is valid again").count(), 2, "{}", server.log());
}

/// Kubernetes mounts a file as a link to a link, and swaps the link in the middle. Neither the file nor its directory
/// is ever written.
#[test]
fn a_link_that_is_swapped_on_the_way_is_a_new_file() {
    let server = {
        let folder = folder("mounted");
        for (name, text) in
            [("..1", rules(&["a"], 1)), ("..2", rules(&["a"], 2)), ("..3", "rules: [".to_owned())]
        {
            fs::create_dir(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("policy.yaml"), text).unwrap();
        }
        symlink("..1", folder.join("..data")).unwrap();
        symlink("..data/policy.yaml", folder.join("policy.yaml")).unwrap();
        let path = folder.join("policy.yaml");
        Server::start_in(folder, &["--policy", path.to_str().unwrap()])
    };
    let swap = |to: &str| {
        let new = server.folder.join("..data_tmp");
        symlink(to, &new).unwrap();
        fs::rename(&new, server.folder.join("..data")).unwrap();
    };
    swap("..2");
    until_version(&server, 2);
    swap("..3");
    until_ready(&server, "degraded", "policy.yaml");
    swap("..1");
    until_version(&server, 3);
    until_ready(&server, "ready", "[]");
}

/// Creates something at a path that is not a regular file.
type NoFile = fn(&Path);

const NO_FILES: [(NoFile, &str); 5] = [
    (
        |at| assert!(Command::new("mkfifo").arg(at).status().unwrap().success()),
        "not a regular file",
    ),
    (|at| fs::create_dir(at).unwrap(), "not a regular file"),
    (|at| symlink("/dev/zero", at).unwrap(), "not a regular file"),
    (|at| symlink("policy.yaml", at).unwrap(), "symbolic link"),
    (|at| File::create(at).unwrap().set_len(100_000_000).unwrap(), "more than 4194304 bytes"),
];

/// Reading something that is not a regular file could wait for ever, or never end.
#[test]
fn what_is_no_file_is_refused_and_nothing_hangs() {
    let server = Server::with_policy(&rules(&["a"], 1), &[]);
    let path = policy_file(&server);
    for (number, (make, reason)) in (1..).zip(NO_FILES) {
        fs::remove_file(&path).unwrap();
        make(&path);
        server.signal("HUP");
        until_ready(&server, "degraded", reason);
        assert_eq!(version(&server), number);
        if fs::remove_dir(&path).is_ok() {
            fs::write(&path, "").unwrap();
        }
        rename_over(&path, rules(&["a"], 1 + u32::try_from(number).unwrap()));
        server.signal("HUP");
        until_version(&server, number + 1);
        until_ready(&server, "ready", "[]");
    }
}

/// Between the check that the path is a regular file and its opening, the file was replaced by a pipe. Opening a pipe
/// waits for a writer: the policy was never read again, and the server could not stop in good order.
#[test]
fn a_pipe_that_comes_at_the_worst_moment_keeps_nobody_waiting() {
    let mut server = Server::with_policy(&rules(&["a"], 1), &[]);
    let (path, done) = (policy_file(&server), Arc::new(AtomicBool::new(false)));
    let swapping = {
        let (path, done) = (path.clone(), Arc::clone(&done));
        std::thread::spawn(move || {
            let [pipe, file] = ["pipe", "file"].map(|name| path.with_extension(name));
            assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            fs::write(&file, rules(&["a"], 1)).unwrap();
            let spare = path.with_extension("spare");
            while !done.load(Ordering::Relaxed) {
                for next in [&pipe, &file] {
                    fs::hard_link(next, &spare).unwrap();
                    fs::rename(&spare, &path).unwrap();
                }
            }
        })
    };
    for _ in 0..200 {
        server.signal("HUP");
    }
    done.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    rename_over(&path, rules(&["a"], 2));
    server.signal("HUP");
    until_version(&server, 2);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// Reading a policy takes a moment. If its file was replaced in that moment, the server was not watching it yet, and
/// did not read it until it changed once more.
#[test]
fn a_file_that_changes_while_the_server_starts_is_read() {
    let folder = folder("starting");
    let path = folder.join("policy.yaml");
    let names: Vec<String> = (0..10_000).map(|number| format!("r{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fs::write(&path, rules(&names, 1)).unwrap();
    let (secret, replaced) = (folder.join("data").join("secret"), path.clone());
    let second = rules(&names, 2);
    let replacing = std::thread::spawn(move || {
        // The secret is created before the policy is read, and reading the policy takes most of a second.
        while !secret.exists() {
            pause(Duration::from_millis(1));
        }
        pause(Duration::from_millis(100));
        rename_over(&replaced, second);
    });
    let server = Server::start_in(folder, &["--policy", path.to_str().unwrap()]);
    replacing.join().unwrap();
    let asked = "{\"attributes\":{\"ip\":\"203.0.113.7\",\"path\":\"/r7\"}}";
    server.until("the second file is in force", |server| {
        server.post("/v1/check", asked).json()["limits"][0]["limit"] == 2
    });
}

/// A file exists as soon as its first half is written. Half a policy is either not valid, or has only some of its
/// rules.
#[test]
fn half_a_file_is_no_policy() {
    let all = ["a", "b", "c", "d", "e"];
    let server = Server::with_policy(&rules(&all, 1), &[]);
    let path = policy_file(&server);
    for (number, cut) in (1..).zip(["  - { name: c, match", "  - { name: c"]) {
        let whole = rules(&all, 1 + u32::try_from(number).unwrap());
        let mut at = whole.find(cut).unwrap();
        if number == 1 {
            at += cut.len(); // in the middle of a rule
        }
        let mut file = File::create(&path).unwrap();
        file.write_all(&whole.as_bytes()[..at]).unwrap();
        file.flush().unwrap();
        until_ready(&server, "degraded", "policy.yaml");
        assert_eq!(version(&server), number);
        file.write_all(&whole.as_bytes()[at..]).unwrap();
        drop(file);
        until_version(&server, number + 1);
        until_ready(&server, "ready", "[]");
    }
}

/// A file that drops most of the rules may be intended, but needs a confirmation.
#[test]
fn a_policy_that_drops_most_rules_needs_a_word() {
    let server = Server::with_policy(&rules(&["a", "b", "c", "d"], 1), &[]);
    let (path, mut operator) = (policy_file(&server), Operator::of(&server));
    let few = rules(&["a"], 1);

    let refused = operator.put_policy("", &few);
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.body.contains("3 of 4 rules: b, c, d; if that is meant, add `?force=true`"));
    assert_eq!(operator.put_policy("?force=false", &few).status, 409);
    assert_eq!((version(&server), ready(&server).0), (1, "ready".to_owned()));
    assert_eq!(operator.put_policy("?force=true", &few).status, 200);
    assert_eq!(operator.ask("DELETE", "/admin/v1/policy", &[], "").status, 200);
    assert_eq!(version(&server), 3);

    rename_over(&path, &few);
    until_ready(&server, "degraded", "3 of 4 rules: b, c, d; if this is intended, send SIGHUP");
    assert_eq!(version(&server), 3);
    server.signal("HUP");
    until_version(&server, 4);
    until_ready(&server, "ready", "[]");

    // Dropping half of the rules, or most of three, is not suspicious.
    for (number, names) in
        (5..).zip([&["a", "b", "c", "d"][..], &["a", "b"], &["a", "x", "y"], &["z"]])
    {
        rename_over(&path, rules(names, 1));
        until_version(&server, number);
    }
}

/// An answer names the version of the policy that decided it. While policies are uploaded and read, every answer has
/// the limits of the version that it names, and rules that stay keep their counts.
#[test]
fn every_answer_is_of_one_version() {
    let with = |amount: u32| GOOD.replace("1000000/h", &format!("{amount}/h"));
    let amounts = [1_000_000, 2_000_000];
    let server = Server::with_policy(&with(amounts[0]), &[]);
    let (path, mut operator) = (policy_file(&server), Operator::of(&server));
    let loads = [&["used-up", "alice"][..], &["bob", "used-up", "carol"]];
    let loads = loads.map(|users| Load::on(server.http, users));
    let mut limits = BTreeMap::from([(1, amounts[0])]);
    for (number, amount) in (2..52).zip([amounts[1], amounts[0]].into_iter().cycle()) {
        if number % 2 == 0 {
            let sent = operator.put_policy("", with(amount));
            assert_eq!((sent.status, sent.json()["policy_version"].as_u64()), (200, Some(number)));
        } else {
            // The text differs each time; otherwise it would be the same as the last one that was read, and nothing
            // would change.
            rename_over(&path, format!("{}# {number}\n", with(amount)));
            server.signal("HUP");
            until_version(&server, number);
        }
        limits.insert(number, amount);
    }

    let answers: Vec<Value> = loads.into_iter().flat_map(Load::stop).collect();
    let mut versions = BTreeSet::new();
    for answer in &answers {
        let version = answer["policy_version"].as_u64().unwrap();
        let of = |rule: &str| {
            let mut limits = answer["limits"].as_array().unwrap().iter();
            limits.find(|limit| limit["rule"] == rule).map(|limit| limit["limit"].clone())
        };
        assert_eq!(of("many"), Some(limits[&version].into()), "{answer}");
        versions.insert(version);
    }
    assert!(versions.len() > 10, "the load saw only {versions:?}");

    let passed =
        |outcome: &str| answers.iter().filter(|answer| answer["outcome"] == outcome).count();
    let few = answers.iter().filter(|answer| answer["limits"][0]["rule"] == "few");
    assert_eq!(
        (passed("deny") + 2, passed("allow")),
        (few.clone().count(), answers.len() + 2 - few.count())
    );
    let counted = |operator: &mut Operator, rule: &str, outcome: &str| {
        let labels =
            format!("protocol=\"http\",rule=\"{rule}\",outcome=\"{outcome}\",decided_by=\"store\"");
        operator.metric(&format!("tidegate_decisions_total{{{labels}}}"))
    };
    assert_eq!(counted(&mut operator, "few", "allow"), 2);
    assert_eq!(counted(&mut operator, "few", "deny"), u64::try_from(passed("deny")).unwrap());
}
