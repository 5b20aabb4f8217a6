//! Whatever the store replies, callers get a decision: after every error that Redis knows, and after bytes
//! that are not a valid reply.
//!
//! A fake Redis forwards commands to a real one. It forwards correctly at first, then sends the same bad
//! reply to every command while 200 requests arrive, and then forwards correctly again.

use crate::support::fake::{Behaviour, FakeRedis};
use crate::support::load::Http;
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// During a store error one rule denies everything, and the other one counts locally.
const RULES: &str = "
    { name: closed, match: { path: /login }, key: [ip], limits: [{ rate: 1000000/day, algorithm: fixed_window }], on_store_error: deny, stop: true },
    { name: local, key: [ip], limits: [{ rate: 1000000/day, algorithm: fixed_window }], on_store_error: local }";
const LOCAL: &str = r#""ip":"203.0.113.7""#;
const CLOSED: &str = r#""ip":"203.0.113.7","method":"GET","path":"/login""#;
const REQUESTS: u32 = 200;
/// The promise: this long after the store is healthy again it decides again. Checked on an idle machine only.
const BACK: Duration = Duration::from_secs(1);

/// The longest `/ready` answer: enough for any report of an error.
const WORDS: usize = 4 << 10;

/// A tidegate server, the fake Redis that it uses, and the real Redis behind it.
struct ErrorStage {
    _redis: Redis,
    fake: FakeRedis,
    server: Tidegate,
    _deployment: Deployment,
}

impl ErrorStage {
    fn new() -> Self {
        let redis = Redis::start();
        let fake = FakeRedis::start(redis.address);
        let deployment = Deployment::new(RULES);
        let server = deployment.server(&fake.url(), &[]);
        server.until_ready();
        Self { _redis: redis, fake, server, _deployment: deployment }
    }

    /// Plays one kind of bad reply. Returns every broken promise as an error.
    fn play(&self, name: &str, behaviour: Behaviour) -> Result<(), String> {
        let mut http = Http::connect(self.server.http);
        let errors = self.server.metric("tidegate_store_errors_total");
        let said = self.fake.bad_replies();
        self.fake.set(behaviour);
        let mut wrong = Vec::new();
        for number in 0..REQUESTS {
            let closed = number % 2 == 1;
            let verdict = http.check(if closed { CLOSED } else { LOCAL });
            let expected = (if closed { 429 } else { 200 }, DecidedBy::Fallback);
            if (verdict.status, verdict.by) != expected {
                wrong.push(format!("request {number}: {verdict:?}"));
            }
        }
        if self.server.metric("tidegate_store_errors_total") - errors < u64::from(REQUESTS) {
            wrong.push("not all errors were counted".to_owned());
        }
        assert!(self.fake.bad_replies() > said, "{name}: the bad reply was never sent");
        let ready = self.server.get("/ready").1.len();
        if ready > WORDS {
            wrong.push(format!("the answer of /ready has {ready} bytes"));
        }
        self.fake.set(Behaviour::Correct);
        let back = self.server.until_the_store_decides(Instant::now(), LOCAL);
        if crate::QUIET && back > BACK {
            wrong.push(format!("the store decides again after {back:?}"));
        }
        wrong.truncate(3);
        let told = || format!("{name}: {}", wrong.join("; "));
        if wrong.is_empty() { Ok(()) } else { Err(told()) }
    }
}

/// Plays all bad replies (some contain the fake's address), and reports all broken promises together.
fn play_all<const N: usize>(behaviour: impl FnOnce(SocketAddr) -> [(String, Behaviour); N]) {
    let mut stage = ErrorStage::new();
    let played = behaviour(stage.fake.address)
        .into_iter()
        .map(|(name, behaviour)| stage.play(&name, behaviour));
    let wrong: Vec<String> = played.filter_map(Result::err).collect();
    stage.server.assert_healthy();
    let logged = stage.server.log().len();
    assert!(logged <= 64 * WORDS, "the server logged {logged} bytes");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Error replies; each is named after itself.
fn errors<const N: usize>(lines: [&str; N]) -> [(String, Behaviour); N] {
    lines.map(|line| (line.to_owned(), Behaviour::Replies(format!("-{line}\r\n").into_bytes())))
}

#[test]
fn a_store_that_redirects() {
    let elsewhere = Redis::start();
    // Redirects to a server that is running, to one that is not, to the fake itself, and to invalid
    // addresses.
    play_all(|itself| {
        errors([
            &format!("MOVED 3999 {}", elsewhere.address),
            "MOVED 3999 127.0.0.1:1",
            &format!("MOVED 3999 {itself}"),
            "MOVED 3999 :0",
            "MOVED 3999 0.0.0.0:0",
            "MOVED",
            &format!("ASK 3999 {}", elsewhere.address),
            &format!("ASK 3999 {itself}"),
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "CLUSTERDOWN The cluster is down",
        ])
    });
}

#[test]
fn a_store_that_is_temporarily_unable() {
    play_all(|_| {
        errors([
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "READONLY You can't write against a read only replica.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ])
    });
}

#[test]
fn a_store_that_rejects_the_command() {
    play_all(|_| {
        errors([
            "NOSCRIPT No matching script. Please use EVAL.",
            "ERR Function not found",
            "ERR unknown command 'FCALL', with args beginning with: ",
            "NOPERM User tg has no permissions to run the 'fcall' command",
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "NOPERM User tg has no permissions to run the 'evalsha' command",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR unknown command 'EVALSHA', with args beginning with: ",
            "ERR",
            &format!("ERR {}", "x".repeat(1 << 20)),
        ])
    });
}

#[test]
fn a_store_that_replies_with_unexpected_values() {
    let replies = |name: &str, words: &[u8]| (name.to_owned(), Behaviour::Replies(words.to_vec()));
    play_all(|_| {
        [
            replies("nil", b"$-1\r\n"),
            replies("no list", b"*-1\r\n"),
            replies("an empty list", b"*0\r\n"),
            replies("too short a list", b"*2\r\n$4\r\ntake\r\n$16\r\n1700000000000000\r\n"),
            replies(
                "too long a list",
                b"*5\r\n$4\r\ntake\r\n$16\r\n1700000000000000\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n",
            ),
            replies("a number", b":1\r\n"),
            replies("a number as a string", b"$1\r\n1\r\n"),
            replies("a fraction", b",1.5\r\n"),
            replies("too large a number", b":99999999999999999999\r\n"),
            replies(
                "too late a time",
                b"*4\r\n$4\r\ntake\r\n$20\r\n99999999999999999999\r\n:1\r\n$0\r\n\r\n",
            ),
            replies(
                "an invalid state",
                b"*4\r\n$4\r\ntake\r\n$16\r\n1700000000000000\r\n:1\r\n$3\r\n-7x\r\n",
            ),
        ]
    });
}

#[test]
fn a_store_that_does_not_speak_redis() {
    let replies = |name: &str, words: &[u8]| (name.to_owned(), Behaviour::Replies(words.to_vec()));
    let closes =
        |name: &str, words: &[u8]| (name.to_owned(), Behaviour::RepliesAndCloses(words.to_vec()));
    play_all(|_| {
        [
            replies("lists in lists", &b"*1\r\n".repeat(10_000)),
            replies("ten gigabytes announced", b"$9999999999\r\n"),
            replies("half a gigabyte announced", b"$536870912\r\n"),
            replies("a billion parts announced", b"*1000000000\r\n"),
            replies("garbage", b"\x00\xff\x16\x03\x01 garbage\r\n"),
            replies("another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            closes("half a reply", b"*4\r\n$4\r\nta"),
            closes("nothing", b""),
        ]
    });
}
