//! The store's clock is changed while it counts. Set forward, it gives each key at most one more allowance.
//! Set back, it makes no client wait longer than its limit takes to fill.
//!
//! Windows are a day long and the clock is set in whole days. So the minutes that a busy machine may need for
//! this test change nothing: the test measures no time, it only sets it.

use crate::support::redis::Redis;
use crate::support::shim::Shim;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate, Verdict};
use crate::support::{PATIENCE, within};
use std::time::{SystemTime, UNIX_EPOCH};

const LIMIT: u64 = 20;
const DAY: i64 = 86_400;
/// The interval in which a limit of 20 per day gains one request; the test is shorter than that.
const TURN: i64 = DAY / 20;
const ALGORITHMS: [&str; 6] = [
    "fixed_window",
    "sliding_log",
    "sliding_buckets",
    "sliding_weighted",
    "token_bucket",
    "leaky_bucket",
];

/// A server with one rule per algorithm, and the store whose clock is set.
struct ClockStage {
    redis: Redis,
    server: Tidegate,
    _deployment: Deployment,
    /// The offset that makes it noon at the store.
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

    /// Sets the store's clock to this many seconds after today's noon.
    fn set_clock(&self, seconds: i64) {
        self.redis.clock().set(self.noon + seconds);
    }

    /// The decision of the store. A node caches a refusal for a moment, so this repeats the request until the
    /// store itself decides.
    fn ask(&self, algorithm: &str) -> Verdict {
        let attributes = format!(r#""ip":"203.0.113.7","method":"GET","path":"/{algorithm}""#);
        let mut verdict = self.server.check(&attributes);
        within(PATIENCE, "the store decides", || {
            if verdict.by == DecidedBy::Cache {
                verdict = self.server.check(&attributes);
            }
            verdict.by != DecidedBy::Cache
        });
        assert_eq!(verdict.by, DecidedBy::Store, "{algorithm}: {verdict:?}");
        verdict
    }

    /// Sends requests until the store refuses, and returns how many passed.
    fn used_up(&self, algorithm: &str) -> u64 {
        let passed = (0..10 * LIMIT).take_while(|_| self.ask(algorithm).status == 200);
        u64::try_from(passed.count()).unwrap()
    }
}

/// How many requests pass immediately. Of a queue (leaky bucket) only the first does, because no caller waits
/// here.
fn immediate(algorithm: &str) -> u64 {
    if algorithm == "leaky_bucket" { 1 } else { LIMIT }
}

/// How long a limit takes to fill, in seconds, rounded up. A leaky bucket also holds the request that passes,
/// besides those that wait. Sub-windows end a sixtieth later. A log stores times with a precision of a
/// millionth of its window.
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
        let expected = immediate(algorithm);
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
        assert_eq!(stage.used_up(algorithm), immediate(algorithm), "{algorithm}: at first");
    }
    let back = -5 * DAY;
    stage.set_clock(back);
    for algorithm in ALGORITHMS {
        let verdict = stage.ask(algorithm);
        assert_eq!(verdict.status, 429, "{algorithm}: the step grants nothing");
        let wait = verdict.retry_after_ms.unwrap();
        let most = u64::try_from(takes_to_fill(algorithm) * 1_000).unwrap();
        assert!(wait <= most, "{algorithm}: retry after {wait} ms, more than {most}");
    }
    // One second more, because the clocks of nodes may differ by that much.
    for algorithm in ALGORITHMS {
        stage.set_clock(back + takes_to_fill(algorithm) + 1);
        assert_eq!(stage.ask(algorithm).status, 200, "{algorithm}: when it has filled again");
    }
}
