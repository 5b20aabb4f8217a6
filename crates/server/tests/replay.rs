//! `tidegate replay`, run as a user would.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The second of the first request.
const BASE: u64 = 1_795_041_660;
const FORMAT: &str = "$msec $request_time $remote_addr $remote_user \"$request\" $http_x_plan";
const PER_CLIENT: &str = "
version: 1
rules: [{ name: per-client, key: [ip], limits: [{ rate: 5/min, algorithm: sliding_log }] }]";

/// A folder with logs and policies, which is removed at the end.
struct Bench(PathBuf);

impl Bench {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-replay-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, policy: &str, log: impl AsRef<[u8]>, flags: &[&str]) -> Command {
        let (policy, log) = (self.write("policy.yaml", policy), self.write("log", log));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["replay", "--policy", &policy, "--log", &log]).args(flags);
        command
    }

    fn run(&self, policy: &str, log: impl AsRef<[u8]>, flags: &[&str]) -> Output {
        self.command(policy, log, flags).output().unwrap()
    }

    /// The report of a log in [`FORMAT`].
    fn report(&self, policy: &str, log: &str, flags: &[&str]) -> Value {
        let flags = [&["--log-format", FORMAT, "--json"], flags].concat();
        parsed(&self.run(policy, log, &flags))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn parsed(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A line in [`FORMAT`]: when the request ended, in milliseconds after the base, and who sent it.
fn line(ended_ms: u64, ip: &str) -> String {
    let at = BASE * 1_000 + ended_ms;
    format!("{}.{:03} 0.000 {ip} - \"GET /a?b HTTP/1.1\" -\n", at / 1_000, at % 1_000)
}

/// One request of a quiet client, then after the first minute nine of a busy one.
fn busy() -> String {
    let busy = (0..9).map(|number| line(70_000 + number * 1_000, "203.0.113.9"));
    line(0, "203.0.113.1") + &busy.collect::<String>()
}

fn rule<'r>(report: &'r Value, policy: usize, name: &str) -> &'r Value {
    let rules = report["policies"][policy]["rules"].as_array().unwrap();
    rules.iter().find(|rule| rule["rule"] == name).unwrap()
}

// === what is refused ===

#[test]
fn the_report_says_who_would_have_been_refused_by_which_rule() {
    let bench = Bench::new();
    // The busy client is refused from second 75 to 78, and passes again in second 131.
    let log = busy() + &line(131_000, "203.0.113.9");
    let report = bench.report(PER_CLIENT, &log, &[]);
    assert_eq!(report["log"]["requests"], 11);
    assert_eq!(report["log"]["from"], "2026-11-18T22:41:00Z");
    assert_eq!(report["policies"][0]["refused"], json!({ "low": 4, "high": 4 }));
    let rule = rule(&report, 0, "per-client");
    assert_eq!((&rule["applied"], &rule["keys"]["high"]), (&json!(11), &json!(1)));
    let top = json!([{ "key": "ip=203.0.113.9", "refused": 4, "longest_lock_out_ms": 56_000 }]);
    assert_eq!(rule["top"], top);
    assert_eq!(rule["first"].as_array().unwrap().len(), 4);
    let first = json!({ "at": "2026-11-18T22:42:15Z", "limit": "min", "key": "ip=203.0.113.9", "request": "GET /a" });
    assert_eq!(rule["first"][0], first);
    assert_eq!(rule["longest_lock_out"]["ms"], 56_000);
}

#[test]
fn the_report_is_a_table_for_people() {
    let bench = Bench::new();
    let report = text(&bench.run(PER_CLIENT, busy(), &["--log-format", FORMAT]));
    for part in [
        "10 requests from 2026-11-18T22:41:00Z to 2026-11-18T22:42:18Z (1 min 18 s)",
        "4 of 9 requests refused (44.445 %)",
        "ip=203.0.113.9        4",
        "longest lock-out: ip=203.0.113.9 for 3 s from 2026-11-18T22:42:15Z, until its last request",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

/// A replay starts with empty counters. What a limit refuses in its first period would be too little, and is not counted.
#[test]
fn refusals_in_the_first_period_of_a_limit_are_not_counted() {
    let bench = Bench::new();
    let log: String = (0..9).map(|number| line(number * 1_000, "203.0.113.9")).collect();
    let log = log + &line(61_000, "203.0.113.1");
    let report = bench.report(PER_CLIENT, &log, &[]);
    assert_eq!(report["policies"][0]["refused"]["high"], 0);
    assert_eq!(rule(&report, 0, "per-client")["refused_early"], 4);
    assert_eq!(report["policies"][0]["counted"], 1);
    let report = bench.report(PER_CLIENT, &log, &["--count-first-period"]);
    assert_eq!(report["policies"][0]["refused"]["high"], 4);
}

#[test]
fn two_policies_are_compared_side_by_side() {
    let bench = Bench::new();
    let other = bench.write("other.yaml", PER_CLIENT.replace("5/min", "7/min"));
    let flags = ["--against", &other];
    let report = bench.report(PER_CLIENT, &busy(), &flags);
    let refused = |policy: usize| report["policies"][policy]["refused"]["high"].clone();
    assert_eq!((refused(0), refused(1)), (json!(4), json!(2)));
    assert_eq!(report["difference"], json!({ "only_first_refuses": 2, "only_second_refuses": 0 }));
    let flags = [&["--log-format", FORMAT], &flags[..]].concat();
    let table = text(&bench.run(PER_CLIENT, busy(), &flags));
    let row = table.lines().find(|line| line.trim_start().starts_with("per-client")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert!(words.contains(&"4") && words.contains(&"2"), "{row}");
}

#[test]
fn a_delay_is_not_a_refusal() {
    let policy = "
version: 1
rules:
  - { name: paced, key: [ip], on_limit: { delay: { max_wait: 2s } }, limits: [{ rate: 60/min, algorithm: leaky_bucket }] }";
    let bench = Bench::new();
    // After the first two minutes, five at once: one passes, two wait, two would wait for more than two seconds.
    let burst = (0..5).map(|_| line(130_000, "203.0.113.9"));
    let report = bench.report(policy, &(line(0, "::1") + &burst.collect::<String>()), &[]);
    assert_eq!(
        (&report["policies"][0]["refused"]["high"], &report["policies"][0]["delayed"]),
        (&json!(2), &json!(2))
    );
}

// === time ===

/// nginx logs a request when it ends. A slow request that arrived first must be counted first.
#[test]
fn requests_are_counted_when_they_arrived() {
    let bench = Bench::new();
    let policy = "
version: 1
rules: [{ name: one, key: [], limits: [{ rate: 1/s, algorithm: sliding_log }] }]";
    let slow = format!("{}.500 2.500 ::1 - \"GET /slow HTTP/1.1\" -\n", BASE + 12);
    let fast = format!("{}.400 0.000 ::1 - \"GET /fast HTTP/1.1\" -\n", BASE + 10);
    let log = line(0, "::1") + &fast + &slow;
    let report = bench.report(policy, &log, &[]);
    assert_eq!(rule(&report, 0, "one")["first"][0]["request"], "GET /fast");
}

/// A log with whole seconds does not say whether five requests of a second were one burst.
#[test]
fn whole_seconds_give_a_range() {
    let bench = Bench::new();
    let policy = "
version: 1
rules: [{ name: bursts, key: [ip], limits: [{ rate: 2/s, algorithm: token_bucket }] }]";
    let second = |second: u64| {
        format!(
            "::1 - - [18/Nov/2026:22:41:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        )
    };
    let log: String = [0].into_iter().chain([10; 4]).map(second).collect();
    let report = parsed(&bench.run(policy, &log, &["--json"]));
    // At once, two of four pass. Spread evenly, the bucket gains one token and a half meanwhile.
    assert_eq!(report["policies"][0]["refused"], json!({ "low": 1, "high": 2 }));
    let notes = report["log"]["notes"].to_string();
    assert!(notes.contains("whole seconds") && notes.contains("when they ended"), "{notes}");
}

#[test]
fn lines_that_are_too_late_are_counted_at_the_end_and_named() {
    let bench = Bench::new();
    let log = line(0, "::1") + &line(200_000, "::1") + &line(300_000, "::1") + &line(5_000, "::1");
    let report = bench.report(PER_CLIENT, &log, &[]);
    assert_eq!(report["log"]["requests"], 4);
    assert!(
        report["log"]["notes"].to_string().contains("1 lines were more than 60 s out of order")
    );
}

// === logs ===

#[test]
fn gzip_and_the_standard_input_are_read() {
    let bench = Bench::new();
    let mut gzip = GzEncoder::new(vec![], Compression::default());
    gzip.write_all(busy().as_bytes()).unwrap();
    let packed = gzip.finish().unwrap();
    let flags = ["--log-format", FORMAT, "--json"];
    let report = parsed(&bench.run(PER_CLIENT, &packed, &flags));
    assert_eq!(report["policies"][0]["refused"]["high"], 4);

    let policy = bench.write("policy.yaml", PER_CLIENT);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["replay", "--policy", &policy, "--log", "-"]).args(flags);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&packed).unwrap();
    assert_eq!(parsed(&child.wait_with_output().unwrap()), report);
}

#[test]
fn several_files_are_one_log() {
    let bench = Bench::new();
    let whole = busy();
    let (first, second) = whole.split_at(whole.len() / 2 + 16);
    let second = bench.write("second", second);
    // The second file begins in the middle of a line of the first, so both have a bad line.
    let report = bench.report(PER_CLIENT, first, &["--log", &second]);
    assert_eq!((&report["log"]["requests"], &report["log"]["bad_lines"]), (&json!(9), &json!(2)));
}

#[test]
fn bad_lines_are_counted_and_shown_and_too_many_are_an_error() {
    let bench = Bench::new();
    let log = busy() + "\nnonsense \u{1b}[31m\n" + &"x\n".repeat(7);
    let report = bench.report(PER_CLIENT, &log, &[]);
    assert_eq!((&report["log"]["bad_lines"], &report["log"]["requests"]), (&json!(8), &json!(10)));
    let first = &report["log"]["first_bad_lines"][0];
    assert_eq!(
        (&first["line"], first["problem"].as_str().unwrap()),
        (&json!(12), "msec `nonsense` is not a time")
    );
    let output = bench.run(PER_CLIENT, &log, &["--log-format", FORMAT, "--max-bad-lines", "7"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("more than 7 lines") && said.contains(":12: ") && !said.contains('\u{1b}'),
        "{said}"
    );
    let flags = ["--log-format", FORMAT, "--max-bad-lines", "any"];
    assert!(bench.run(PER_CLIENT, &log, &flags).status.success());
}

#[test]
fn json_logs_of_caddy_need_no_flags() {
    let bench = Bench::new();
    let at = |at: u64| {
        let request = json!({ "client_ip": "203.0.113.9", "method": "GET", "uri": "/a?b" });
        json!({ "ts": BASE + at, "request": request, "duration": 0.25, "status": 200 }).to_string()
            + "\n"
    };
    let log: String = [0].into_iter().chain(70..79).map(at).collect();
    let report = parsed(&bench.run(PER_CLIENT, &log, &["--format", "json", "--json"]));
    assert_eq!(report["log"]["from"], "2026-11-18T22:40:59.75Z");
    assert_eq!(report["policies"][0]["refused"]["high"], 4);
}

#[test]
fn attributes_come_from_the_identity_of_the_policy_and_from_flags() {
    let bench = Bench::new();
    let policy = "
version: 1
identity: { tier: 'header:x-plan' }
tiers: { default: free, known: [free, pro] }
rules:
  - { name: per-user, key: [user], limits: [{ rate: 1/min, algorithm: sliding_log }], tiers: { pro: { scale: 3 } } }
  - { name: per-tenant, key: [tenant], limits: [5/min] }";
    let line = |second: u64, user: &str, plan: &str| {
        format!("{}.000 0.000 ::1 {user} \"GET / HTTP/1.1\" {plan}\n", BASE + second)
    };
    let mut log = line(0, "-", "-");
    for second in 61..65 {
        log += &line(second, "alice", "pro");
        log += &line(second, "bob", "-");
    }
    let report = bench.report(policy, &log, &[]);
    let rule_of = |name| rule(&report, 0, name);
    let top = rule_of("per-user")["top"].as_array().unwrap();
    let top: Vec<_> = top.iter().map(|key| (&key["key"], &key["refused"])).collect();
    assert_eq!(top, [(&json!("user=bob"), &json!(3)), (&json!("user=alice"), &json!(1))]);
    let why = rule_of("per-tenant")["not_evaluated"].as_str().unwrap();
    assert!(why.contains("no `tenant`") && why.contains("--attribute"), "{why}");
    assert_eq!(rule_of("per-user")["not_evaluated"], Value::Null);

    let report = bench.report(policy, &log, &["--attribute", "tenant=remote_user"]);
    assert_eq!(rule(&report, 0, "per-tenant")["not_evaluated"], Value::Null);
}

/// What a log cannot tell is not guessed.
#[test]
fn rules_that_need_more_than_a_log_are_named() {
    let bench = Bench::new();
    let policy = "
version: 1
rules:
  - { name: logins, key: [ip], count: failures, limits: [1/min] }
  - { name: busy, key: [ip], limits: [{ concurrent: 1 }] }
  - { name: plain, key: [ip], limits: [1000/min] }";
    let report = bench.report(policy, &busy(), &[]);
    let why = |name| rule(&report, 0, name)["not_evaluated"].as_str().unwrap_or("").to_owned();
    assert!(why("logins").contains("counts outcomes") && why("busy").contains("in flight"));
    assert_eq!(
        (why("plain"), report["policies"][0]["refused"]["high"].clone()),
        (String::new(), json!(0))
    );
}

// === suggestions and CI ===

#[test]
fn suggestions_are_the_worst_windows_with_a_reserve() {
    let bench = Bench::new();
    let report = bench.report(PER_CLIENT, &busy(), &["--suggest"]);
    let suggestion = &rule(&report, 0, "per-client")["suggestions"][0];
    let expected = json!([
        { "share": "p99", "worst_window": 9, "proposed": 20 },
        { "share": "p99.9", "worst_window": 9, "proposed": 20 },
        { "share": "max", "worst_window": 9, "proposed": 20 },
    ]);
    assert_eq!((&suggestion["needs"], &suggestion["keys_above"]), (&expected, &json!(1)));
    let table = text(&bench.run(PER_CLIENT, busy(), &["--log-format", FORMAT, "--suggest"]));
    for part in
        ["suggestions per min", "11.25", "20 per min", "1 of 2 keys have a worst window above 5"]
    {
        assert!(table.contains(part), "{part}\n{table}");
    }
}

#[test]
fn the_exit_code_says_whether_too_much_is_refused() {
    let bench = Bench::new();
    let code = |log: &str, share: &str| {
        let flags = ["--log-format", FORMAT, "--fail-over", share];
        bench.run(PER_CLIENT, log, &flags).status.code()
    };
    // 4 of 9 requests after the first minute.
    assert_eq!(code(&busy(), "44.4%"), Some(1));
    assert_eq!(code(&busy(), "44.5%"), Some(0));
    assert_eq!(code(&busy(), "0.5"), Some(2));
    assert_eq!(code(&busy(), "101%"), Some(2));
    // A log that is shorter than the first period says nothing.
    assert_eq!(code(&line(0, "::1"), "0%"), Some(2));
}

// === the page ===

#[test]
fn the_page_needs_no_network_and_escapes_what_clients_sent() {
    let bench = Bench::new();
    let page = bench.0.join("report.html");
    let policy = "
version: 1
rules: [{ name: per-user, key: [user], limits: [{ rate: 1/min, algorithm: sliding_log }] }]";
    let hostile = |second: u64| {
        format!("{}.000 0 ::1 <script>alert(1)</script> \"GET /<b> HTTP/1.1\" -\n", BASE + second)
    };
    let log: String = [0, 61, 62, 63].into_iter().map(hostile).collect();
    bench.report(policy, &log, &["--html", page.to_str().unwrap()]);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("user=&lt;script&gt;") && !page.contains("<script"), "{page}");
    assert!(!page.contains("http:") && !page.contains("https:") && page.contains("<svg"), "{page}");
}

// === interruption ===

/// Ctrl-C ends the reading, and what is known so far is printed.
#[test]
fn an_interrupted_replay_prints_what_it_knows() {
    let bench = Bench::new();
    let policy = bench.write("policy.yaml", PER_CLIENT);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["replay", "--policy", &policy, "--log", "-", "--json", "--log-format", FORMAT]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // More than a pipe holds, so the program has read a part when this returns.
    let log: String = (0..20_000).map(|number| line(number, "203.0.113.9")).collect();
    input.write_all(log.as_bytes()).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let report = parsed(&child.wait_with_output().unwrap());
    assert_eq!(report["log"]["interrupted"], true);
    assert!(report["log"]["requests"].as_u64().unwrap() > 1_000);
    drop(input);
}

// === the documentation ===

/// The commands of docs/replay.md print what the page shows.
#[test]
fn the_worked_example_prints_what_the_page_shows() {
    let page = include_str!("../../../docs/replay.md");
    let (_, example) = page.split_once("## A worked example").unwrap();
    let (example, _) = example.split_once("\n## ").unwrap();
    let bench = Bench::new();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_tidegate"));
    let path =
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let run = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(&bench.0).env("PATH", &path).output().unwrap()
    };
    let mut commands = 0;
    for block in example.split("```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').unwrap();
        match kind {
            "yaml" => drop(bench.write("new.yaml", text)),
            "sh" => assert!(run(text).status.success(), "{text}"),
            _ => {
                for part in text.split("$ ").skip(1) {
                    let (command, shown) = part.split_once('\n').unwrap();
                    let printed = String::from_utf8(run(command).stdout).unwrap();
                    let (printed, shown) = (printed.trim(), shown.trim());
                    let end = shown.strip_suffix('…').unwrap_or(shown).trim_end();
                    assert!(printed.starts_with(end), "{command}\n{printed}");
                    assert!(shown.ends_with('…') || printed == shown, "{command}\n{printed}");
                    commands += 1;
                }
            }
        }
    }
    assert_eq!(commands, 4);
}

// === mistakes ===

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let bench = Bench::new();
    for (flags, said) in [
        (&["--log", "/nowhere/access.log"][..], "/nowhere/access.log: "),
        (&["--log", "/"], "it is a directory"),
        (&["--attribute", "tenant"], "write it like `tenant=http_x_tenant`"),
        (&["--attribute", "ip=remote_addr"], "use --ip-field"),
        (&["--user-field", "http_x_none"], "the log format has no $http_x_none"),
        (&["--log-format", "$remote_addr"], "--time-field"),
        (&["--format", "json"], "the first line is not valid JSON"),
        (&["--max-wait", "soon"], "--max-wait: "),
        (&["--memory", "much"], "--memory: "),
        (&["--max-bad-lines", "few"], "--max-bad-lines: "),
        (&["--against", "/nowhere/policy.yaml"], "/nowhere/policy.yaml: "),
    ] {
        let output = bench.run(PER_CLIENT, busy(), flags);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?} {error}");
        assert!(error.contains(said), "{flags:?} {error}");
    }
}
