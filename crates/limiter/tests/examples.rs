//! Runs the examples as a reader would, and checks that docs/library.md shows `examples/axum.rs` and its real output.

#![cfg(feature = "tower")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The command of an example that this test run has built.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let target: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples");
    Command::new(target.join(name))
}

fn output(name: &str) -> String {
    let output = example(name).output().unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn in_process() {
    assert_eq!(
        output("in_process"),
        "free: 5 of 40 requests passed\npro: 40 of 40 requests passed\nalice: allowed false, denied by [\"logins\"]\n"
    );
}

#[test]
fn shadow() {
    assert_eq!(
        output("shadow"),
        "shadow: would have denied 40, denied 0\nenforced: would have denied 40, denied 56\n"
    );
}

/// The service says when nothing remains, and the client does not ask it again too early.
#[test]
fn outbound() {
    let text = output("outbound");
    assert_eq!(text, "served 5, denied 0, not sent 3; try again in 12 min\n");
}

#[test]
fn tonic() {
    let text = output("tonic");
    let calls: Vec<&str> = text.lines().collect();
    assert_eq!(calls[..3], ["call 1: served", "call 2: served", "call 3: served"]);
    assert_eq!(calls[3], "call 4: ResourceExhausted, try again in 20 min");
}

/// Two nodes with a limit of 10 in one Redis: together they let 10 requests pass.
#[cfg(feature = "redis")]
#[test]
fn shared() {
    let folder = std::env::temp_dir().join(format!("tidegate-shared-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let socket = folder.join("socket");
    let mut redis = Command::new("redis-server");
    redis.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).stdout(Stdio::null());
    let _redis =
        Running(redis.current_dir(&folder).spawn().expect("`make deps` installs redis-server"));
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    let url = format!("redis+unix://{}", socket.display());
    let output = example("shared").arg(url).current_dir(&folder).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text, "of 20 requests, the first node passed 5, the second 5\n",
        "{:?}",
        output.stderr
    );
}

/// Stops the service when the test ends, also if it fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The first code block of this kind in the page.
fn block<'p>(page: &'p str, kind: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("```{kind}\n")).unwrap();
    rest.split_once("```\n").unwrap().0
}

/// A new project of a reader, in a directory of its own outside of this workspace. Removed at the end.
struct Project {
    folder: PathBuf,
}

impl Drop for Project {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

impl Project {
    /// Runs the first of the page's commands in an empty directory, and pastes what the page shows into the new project.
    fn new(page: &str, command: &str) -> Self {
        // Always the same folder for the same clone, so that cargo does not keep a program for each run.
        let mut clone = DefaultHasher::new();
        env!("CARGO_MANIFEST_DIR").hash(&mut clone);
        let folder = std::env::temp_dir().join(format!("tidegate-readme-{:x}", clone.finish()));
        let _left_by_a_run_that_was_killed = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let project = Self { folder };
        assert!(project.command(command).status().unwrap().success(), "{command}");
        let mine = project.folder.join("mine");
        let manifest = fs::read_to_string(mine.join("Cargo.toml")).unwrap();
        // The reader has the clone beside the project.
        let clone = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let dependencies = block(page, "toml").replace("../tidegate", clone);
        let manifest = manifest.replace("[dependencies]\n", &dependencies);
        fs::write(mine.join("Cargo.toml"), manifest).unwrap();
        fs::write(mine.join("src/main.rs"), block(page, "rust,no_run")).unwrap();
        // The versions of this workspace are in the local cache, so the build works offline.
        fs::copy(format!("{clone}/Cargo.lock"), mine.join("Cargo.lock")).unwrap();
        project
    }

    /// A command of the page. The libraries that it builds are kept for the next run of the tests. (They cannot be those that
    /// the tests are linked with: the features that the workspace enables differ, so what takes long is built once more in any case.)
    fn command(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {line}")]).current_dir(&self.folder);
        shell.env("CARGO_NET_OFFLINE", "true").env("CARGO_TERM_QUIET", "true");
        shell.env("CARGO_PROFILE_DEV_DEBUG", "false"); // as in this workspace: builds faster
        shell.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme"));
        shell
    }
}

/// The page shows the inside of this module: a test as a reader writes it.
#[cfg(feature = "testing")]
mod mails {
    use tidegate::testing::tokio_clock;
    use tidegate::{Attributes, Check, Limiter, Policy, Span, Timestamp};

    #[tokio::test(start_paused = true)] // while all tasks wait, tokio's time jumps to the next timer
    async fn ten_mails_are_sent_and_the_eleventh_waits() -> Result<(), Box<dyn std::error::Error>> {
        let policy = "{ version: 1, rules: [{ name: mails, key: [], limits: [10/min] }] }";
        let clock = tokio_clock(Timestamp::EPOCH); // the time at which the test begins
        let limiter = Limiter::in_memory_with(Policy::parse(policy)?, clock.clone())?;
        let mail = Attributes::new();
        for _ in 0..11 {
            let check = Check::new(&mail).waiting(Span::from_secs(60));
            assert!(limiter.acquire(&check).await?.allowed());
        }
        let passed = clock.now().steady.since(Timestamp::EPOCH);
        assert_eq!(passed, Span::from_secs(6)); // by the clock; the test took no time
        Ok(())
    }
}

#[test]
fn the_page_shows_the_test_of_mails() {
    let (_, module) = include_str!("examples.rs").split_once("\nmod mails {\n").unwrap();
    let (module, _) = module.split_once("\n}\n").unwrap();
    let lines =
        module.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n");
    let page = include_str!("../../../docs/library.md");
    assert_eq!(block(page, "rust,ignore"), lines.collect::<String>());
}

/// A new user who follows the page about the library gets, with three commands, a limited endpoint that answers 429 with the headers shown.
#[test]
fn the_page_makes_a_limited_endpoint() {
    let (_, code) = include_str!("../examples/axum.rs").split_once("\n\n").unwrap();
    let page = include_str!("../../../docs/library.md");
    assert_eq!(block(page, "rust,no_run"), code, "the page shows examples/axum.rs");
    let commands: Vec<&str> = block(page, "sh").lines().collect();
    let [new, run, ask] = commands[..] else { panic!("not three commands: {commands:?}") };

    let project = Project::new(page, new);
    // A free port instead of port 3000, which another program may use.
    let mut program = project.command(&format!("{run} 127.0.0.1:0"));
    let child = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    shows_what_the_page_shows(page, address);

    // The bucket of 100 per hour cannot refill while the command runs, so it denies some of 120 requests on the slowest machine.
    assert!(ask.contains("http://127.0.0.1:3000/?[1-120]"), "{ask}");
    let output = project.command(&ask.replace("127.0.0.1:3000", address)).output().unwrap();
    let statuses = String::from_utf8(output.stdout).unwrap();
    assert!(statuses.ends_with("429 "), "{ask}: {statuses}");
}

fn shows_what_the_page_shows(page: &str, address: &str) {
    let answers = pipelined(address, 60);
    for answer in &answers[..5] {
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello\n"),
            "{answer}"
        );
        assert!(answer.contains(
            "\r\nratelimit-policy: \"per-client/s\";q=5;w=1, \"per-client/h\";q=100;w=3600\r\n"
        ));
    }
    // The denial has the header fields that the page shows. There 5 requests passed before it. A slow machine may let more
    // pass, because a token is refilled every 200 ms: then as many fewer remain of the 100 per hour.
    let shown = block(page, "text\n$ curl -i http://127.0.0.1:3000/");
    let passed = answers.iter().position(|answer| answer.starts_with("HTTP/1.1 429")).unwrap();
    let refused = &answers[passed];
    for line in shown.lines().take_while(|line| !line.is_empty()) {
        let line = line.replace("r=95;", &format!("r={};", 100 - passed));
        assert!(refused.contains(&format!("{line}\r\n")), "{line} is not in {refused}");
    }
    let detail = "per-client/s allows 5 per second; try again in 1 s.";
    assert!(shown.contains(detail) && refused.contains(detail), "{refused}");
    assert!(refused.contains("\"violated-policies\":[\"per-client/s\"]"), "{refused}");
}

/// The responses to requests that are sent in one write: many more than the 5 that pass in a second, so that some is denied
/// also on a slow machine.
fn pipelined(address: &str, requests: usize) -> Vec<String> {
    let mut stream = TcpStream::connect(address).unwrap();
    let all = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(requests - 1)
        + "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(all.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers.split("HTTP/1.1 ").skip(1).map(|answer| format!("HTTP/1.1 {answer}")).collect()
}
