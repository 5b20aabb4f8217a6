//! The store's clock is set while it counts. Set forward, it gives each key at most one more allowance. Set back, it keeps
//! no client waiting for longer than its limit takes to fill.
//!
//! Windows are a day long and the clock is set in whole days, so the minutes that a busy machine may need for this test
//! change nothing: no time is measured here, only told.

use crate::support::redis::Redis;
use crate::support::shim::Shim;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate, Verdict};
use crate::support::{PATIENCE, within};
use std::time::{SystemTime, UNIX_EPOCH};

const LIMIT: u64 = 20;
const DAY: i64 = 86_400;
/// What a limit gains in the time that this test may take: less than one.
const TURN: i64 = DAY / 20;
const ALGORITHMS: [&str; 6] = [
    "fixed_window",
    "sliding_log",
    "sliding_buckets",
    "sliding_weighted",
    "token_bucket",
    "leaky_bucket",
];

/// A server with a rule for each algorithm, and the store whose clock is set.
struct ClockStage {
    redis: Redis,
    server: Tidegate,
    _deployment: Deployment,
    /// What makes it noon at the store.
    noon: i64,
}

impl ClockStage {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let noon = DAY / 2 - i64::try_from(now).unwrap() % DAY;
        let redis = Redis::with_clock(Shim::wrong_by(noon));
        let rules = ALGORITHMS.map(|algorithm| {
            format!(
                "{{ name: {name}, match: {{ path: /{algorithm} }}, key: [ip], on_store_error: deny,
                    limits: [{{ rate: {LIMIT}/day, algorithm: {algorithm} }}] }}",
                name = algorithm.replace('_', "-")
            )
        });
        let deployment = Deployment::new(&rules.join(","));
        let server = deployment.server(&redis.url(), &["--redis-timeout", "30s"]);
        server.until_ready();
        Self { redis, server, _deployment: deployment, noon }
    }

    /// Sets the store's clock: so many seconds after the noon of today.
    fn set_clock(&self, seconds: i64) {
        self.redis.clock().set(self.noon + seconds);
    }

    /// What the store says. A node remembers a refusal for a moment; this asks until the store itself decides.
    fn ask(&self, algorithm: &str) -> Verdict {
        let attributes = format!(r#""ip":"203.0.113.7","method":"GET","path":"/{algorithm}""#);
        let mut verdict = self.server.check(&attributes);
        within(PATIENCE, "the store decides", || {
            if verdict.by == DecidedBy::Cache {
                verdict = self.server.check(&attributes);
            }
            verdict.by != DecidedBy::Cache
        });
        assert_eq!(verdict.by, DecidedBy::Store, "{algorithm}");
        verdict
    }

    /// Asks until the store refuses, and returns how often it did not.
    fn used_up(&self, algorithm: &str) -> u64 {
        let passed = (0..10 * LIMIT).take_while(|_| self.ask(algorithm).status == 200);
        u64::try_from(passed.count()).unwrap()
    }
}

/// How many pass at once: of a queue the first, because no caller waits here.
fn at_once(algorithm: &str) -> u64 {
    if algorithm == "leaky_bucket" { 1 } else { LIMIT }
}

/// How long a limit takes to fill, in seconds, rounded up. A queue holds the one that passes besides those that wait;
/// sub-windows end a sixtieth later; a log knows times to a millionth of its window.
fn takes_to_fill(algorithm: &str) -> i64 {
    match algorithm {
        "leaky_bucket" => DAY + TURN,
        "sliding_buckets" => DAY + DAY / 60,
        "sliding_log" => DAY + 1,
        _ => DAY,
    }
}

#[test]
fn a_store_clock_that_is_set_forward_gives_each_key_one_allowance_more() {
    let stage = ClockStage::new();
    for (first, algorithm) in (0..).zip(ALGORITHMS) {
        let expected = at_once(algorithm);
        stage.set_clock(5 * DAY * first);
        assert_eq!(stage.used_up(algorithm), expected, "{algorithm}: at first");
        stage.set_clock(5 * DAY * first + 2 * DAY);
        assert_eq!(stage.used_up(algorithm), expected, "{algorithm}: after the step");
        assert_eq!(stage.ask(algorithm).status, 429, "{algorithm}: and no more");
    }
}

#[test]
fn a_store_clock_that_is_set_back_keeps_no_client_waiting_longer_than_its_limit_takes_to_fill() {
    let stage = ClockStage::new();
    for algorithm in ALGORITHMS {
        assert_eq!(stage.used_up(algorithm), at_once(algorithm), "{algorithm}: at first");
    }
    let back = -5 * DAY;
    stage.set_clock(back);
    for algorithm in ALGORITHMS {
        let told = stage.ask(algorithm);
        assert_eq!(told.status, 429, "{algorithm}: the step grants nothing");
        let wait = told.retry_after_ms.unwrap();
        let most = u64::try_from(takes_to_fill(algorithm) * 1_000).unwrap();
        assert!(wait <= most, "{algorithm} says {wait} ms, more than {most}");
    }
    // A second is what the clocks of different nodes may differ by.
    for algorithm in ALGORITHMS {
        stage.set_clock(back + takes_to_fill(algorithm) + 1);
        assert_eq!(stage.ask(algorithm).status, 200, "{algorithm}: when it has filled again");
    }
}
