//! The store's clock is set while it counts: forward gives each key at most one more allowance, back keeps nobody waiting
//! for longer than a window.

use crate::support::redis::Redis;
use crate::support::shim::Shim;
use crate::support::tidegate::{By, Deployment, Tidegate, Verdict};
use crate::support::{PATIENCE, within};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const LIMIT: u64 = 20;
const WINDOW: Duration = Duration::from_secs(2);
const ALGORITHMS: [&str; 6] = [
    "fixed_window",
    "sliding_log",
    "sliding_buckets",
    "sliding_weighted",
    "token_bucket",
    "leaky_bucket",
];

/// A server with a rule for each algorithm, and the store whose clock is set.
struct Stage {
    redis: Redis,
    server: Tidegate,
    _deployment: Deployment,
}

impl Stage {
    fn new() -> Self {
        let redis = Redis::with_clock(Shim::new());
        let rules = ALGORITHMS.map(|algorithm| {
            format!(
                "{{ name: {name}, match: {{ path: /{algorithm} }}, key: [ip], on_store_error: deny,
                    limits: [{{ rate: {LIMIT}/2s, algorithm: {algorithm} }}] }}",
                name = algorithm.replace('_', "-")
            )
        });
        let deployment = Deployment::new(&rules.join(","));
        let server = deployment.server(&redis.url(), &["--redis-timeout", "1s"]);
        server.until_ready();
        Self { redis, server, _deployment: deployment }
    }

    fn ask(&self, algorithm: &str) -> Verdict {
        let attributes = format!(r#""ip":"203.0.113.7","method":"GET","path":"/{algorithm}""#);
        self.server.check(&attributes)
    }

    /// Asks until the store says no; how often it said yes.
    fn used_up(&self, algorithm: &str) -> u64 {
        let passed = (0..10 * LIMIT).take_while(|_| self.ask(algorithm).status == 200);
        u64::try_from(passed.count()).unwrap()
    }

    /// What is wrong about how long, from an instant on, those wait who were refused. All are asked in turns.
    fn waits(&self, since: Instant) -> Vec<String> {
        let mut passed: BTreeMap<&str, Duration> = BTreeMap::new();
        within(PATIENCE, "all pass again", || {
            for algorithm in ALGORITHMS {
                if !passed.contains_key(algorithm) && self.ask(algorithm).status == 200 {
                    passed.insert(algorithm, since.elapsed());
                }
            }
            passed.len() == ALGORITHMS.len()
        });
        passed.retain(|_, waited| *waited > WINDOW + Duration::from_secs(1));
        passed.iter().map(|(who, waited)| format!("{who} let it pass after {waited:?}")).collect()
    }
}

/// How many pass of those who come at once: of a queue the first, for nobody here waits.
fn at_once(algorithm: &str) -> u64 {
    if algorithm == "leaky_bucket" { 1 } else { LIMIT }
}

#[test]
fn a_store_clock_that_is_set_forward_gives_each_key_one_allowance_more() {
    let (stage, mut wrong) = (Stage::new(), Vec::new());
    for algorithm in ALGORITHMS {
        let start = Instant::now();
        stage.redis.clock().set(0);
        let before = stage.used_up(algorithm);
        stage.redis.clock().set(3_600);
        let after = stage.used_up(algorithm);
        let refused = stage.ask(algorithm);
        // What flows while it is asked comes on top for buckets, a little.
        let flowed = LIMIT * u64::try_from(start.elapsed().as_millis()).unwrap() / 2_000 + 1;
        assert!(before >= at_once(algorithm), "{algorithm}: {before}");
        assert!(refused.status == 429 && refused.by != By::Fallback, "{algorithm}: {refused:?}");
        if before + after > 2 * LIMIT + flowed {
            wrong.push(format!("{algorithm}: {before} passed, and {after} more"));
        }
    }
    // And its keys are as good as any.
    let since = Instant::now();
    wrong.extend(stage.waits(since));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_store_clock_that_is_set_back_keeps_nobody_waiting_longer_than_a_window() {
    let (stage, mut wrong) = (Stage::new(), Vec::new());
    for algorithm in ALGORITHMS {
        let passed = stage.used_up(algorithm);
        assert!(passed >= at_once(algorithm), "{algorithm}: {passed}");
    }
    stage.redis.clock().set(-7_200);
    let since = Instant::now();
    for algorithm in ALGORITHMS {
        let told = stage.ask(algorithm);
        let wait = told.retry_after_ms.map(Duration::from_millis).unwrap_or_default();
        assert_ne!(told.by, By::Fallback, "{algorithm}");
        // One that counts by sixtieths of a window may have to wait for the end of one more; and times are rounded up.
        let more = if algorithm == "sliding_buckets" { WINDOW / 60 } else { Duration::ZERO };
        if wait > WINDOW + more + Duration::from_millis(1) {
            wrong.push(format!("{algorithm} says {wait:?}"));
        }
    }
    wrong.extend(stage.waits(since));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
