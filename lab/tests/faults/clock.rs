//! The store's clock is set while it counts: forward gives each key at most one more allowance, back keeps nobody waiting
//! for longer than a window.

use crate::support::redis::Redis;
use crate::support::shim::Shim;
use crate::support::tidegate::{By, Deployment, Tidegate, Verdict};
use crate::support::within;
use std::time::{Duration, Instant};

const LIMIT: u64 = 20;
const WINDOW: Duration = Duration::from_secs(2);
const KEY: &str = r#""ip":"203.0.113.7""#;
const ALGORITHMS: [&str; 6] = [
    "fixed_window",
    "sliding_log",
    "sliding_buckets",
    "sliding_weighted",
    "token_bucket",
    "leaky_bucket",
];

/// A server, and the store whose clock is set.
struct Stage {
    redis: Redis,
    server: Tidegate,
    /// How many pass of those who come at once: of a queue the first, for nobody here waits.
    at_once: u64,
    _deployment: Deployment,
}

impl Stage {
    fn new(algorithm: &str) -> Self {
        let redis = Redis::with_clock(Shim::new());
        let rule = format!(
            "{{ name: all, key: [ip], limits: [{{ rate: {LIMIT}/2s, algorithm: {algorithm} }}], on_store_error: deny }}"
        );
        let deployment = Deployment::new(&rule);
        let server = deployment.server(&redis.url(), &["--redis-timeout", "1s"]);
        server.until_ready();
        let at_once = if algorithm == "leaky_bucket" { 1 } else { LIMIT };
        Self { redis, server, at_once, _deployment: deployment }
    }

    fn ask(&self) -> Verdict {
        self.server.check(KEY)
    }

    /// Whoever was refused passes within a window and a second.
    fn passes_again(&self, algorithm: &str) {
        let most = WINDOW + Duration::from_secs(1);
        within(most, &format!("{algorithm} lets it pass"), || self.ask().status == 200);
    }

    /// Asks until the store says no; how often it said yes.
    fn used_up(&self) -> u64 {
        let passed = (0..10 * LIMIT).take_while(|_| self.ask().status == 200).count();
        u64::try_from(passed).unwrap()
    }
}

#[test]
fn a_store_clock_that_is_set_forward_gives_each_key_one_allowance_more() {
    for algorithm in ALGORITHMS {
        let stage = Stage::new(algorithm);
        let start = Instant::now();
        let before = stage.used_up();
        stage.redis.clock().set(3_600);
        let after = stage.used_up();
        let refused = stage.ask();
        // What flows while it is asked comes on top for buckets, a little.
        let flowed = LIMIT * u64::try_from(start.elapsed().as_millis()).unwrap() / 2_000 + 1;
        assert!(before >= stage.at_once, "{algorithm}: {before}");
        assert!(before + after <= 2 * LIMIT + flowed, "{algorithm}: {before} and {after}");
        assert_eq!((refused.status, refused.by), (429, By::Store), "{algorithm}");
        // And its keys are as good as any.
        stage.passes_again(algorithm);
    }
}

#[test]
fn a_store_clock_that_is_set_back_keeps_nobody_waiting_longer_than_a_window() {
    for algorithm in ALGORITHMS {
        let stage = Stage::new(algorithm);
        assert!(stage.used_up() >= stage.at_once, "{algorithm}");
        stage.redis.clock().set(-7_200);
        let refused = stage.ask();
        let wait = refused.retry_after_ms.map(Duration::from_millis).unwrap_or_default();
        assert_eq!(refused.by, By::Store, "{algorithm}");
        // One that counts by sixtieths of a window may have to wait for the end of one more; and times are rounded up.
        let more = if algorithm == "sliding_buckets" { WINDOW / 60 } else { Duration::ZERO };
        let most = WINDOW + more + Duration::from_millis(1);
        assert!(wait <= most, "{algorithm}: {wait:?}");
        stage.passes_again(algorithm);
    }
}
