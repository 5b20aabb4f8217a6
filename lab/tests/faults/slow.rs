//! The network to the store is slow, has jitter or little bandwidth, or breaks again and again. Callers wait
//! at most for the timeout, and get no errors.

use crate::support::load::{Load, Samples};
use crate::support::proxy::{Conditions, Proxy};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use std::time::Duration;

const RULE: &str =
    "{ name: all, key: [ip], limits: [{ rate: 100000000/day, algorithm: fixed_window }] }";
const TIMEOUT: Duration = Duration::from_millis(50);
const OVERHEAD: Duration = Duration::from_millis(5);
const PHASE: Duration = Duration::from_secs(4);
/// How much memory the server may use for requests that wait.
const MORE_KIB: u64 = 16 << 10;

struct SlowStage {
    _redis: Redis,
    proxy: Proxy,
    server: Tidegate,
    _deployment: Deployment,
}

impl SlowStage {
    fn new() -> Self {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.address);
        let deployment = Deployment::new(RULE);
        let server = deployment.server(&proxy.url(), &["--redis-timeout", "50ms"]);
        server.until_ready();
        Self { _redis: redis, proxy, server, _deployment: deployment }
    }

    fn load(&self) -> Samples {
        let load = Load {
            servers: vec![self.server.http],
            per_second: 500,
            connections: 48,
            length: PHASE,
        };
        load.start(|number| format!("\"ip\":\"203.0.113.{}\"", number % 200)).finish()
    }

    /// Runs the load on a good network for comparison, and then on a bad one. Returns the samples of the
    /// latter.
    fn play(&mut self, name: &str, spoil: impl FnOnce(&Proxy)) -> Samples {
        self.server.until_ready();
        let (baseline, resident) = (self.load(), self.server.process.resident_kib());
        spoil(&self.proxy);
        let samples = self.load();
        let grown = self.server.process.resident_kib().saturating_sub(resident);
        println!("slow, {name}\n  before: {}\n  while:  {}", baseline.summary(), samples.summary());
        samples.assert_all_answered();
        assert!(baseline.by(DecidedBy::Fallback) * 100 <= baseline.len(), "{name}: before");
        let most = TIMEOUT + OVERHEAD + baseline.slowest();
        assert!(samples.slowest() <= most, "{name}: {:?} > {most:?}", samples.slowest());
        assert!(grown <= MORE_KIB, "{name}: {grown} KiB more");
        self.server.assert_healthy();
        samples
    }
}

fn late(millis: u64) -> Conditions {
    Conditions { delay: Duration::from_millis(millis), ..Conditions::default() }
}

/// Slower than usual, but within the timeout: the store decides.
#[test]
fn a_network_that_is_slow_but_within_the_timeout() {
    for millis in [5, 20] {
        let samples =
            SlowStage::new().play(&format!("+{millis} ms"), |proxy| proxy.replies(late(millis)));
        samples.assert_all_by_store();
    }
}

/// Slower than the timeout. After a few callers have waited, the circuit breaker opens and no caller waits.
#[test]
fn a_network_that_is_too_slow() {
    let samples = SlowStage::new().play("+100 ms", |proxy| proxy.replies(late(100)));
    assert_eq!(samples.by(DecidedBy::Store), 0);
    let waited = samples.filter(|sample| sample.latency >= TIMEOUT).len();
    println!("  {waited} of {} waited for the timeout", samples.len());
    assert!(waited * 10 <= samples.len(), "{waited} of {} waited for the timeout", samples.len());
}

#[test]
fn a_network_with_jitter() {
    let conditions = Conditions { jitter: Duration::from_millis(40), ..Conditions::default() };
    let samples = SlowStage::new().play("0 to 40 ms", |proxy| proxy.replies(conditions));
    samples.assert_all_by_store();
}

#[test]
fn a_network_that_delivers_single_bytes() {
    let conditions = Conditions { byte_by_byte: true, ..Conditions::default() };
    let samples = SlowStage::new().play("byte by byte", |proxy| proxy.both_directions(conditions));
    samples.assert_all_by_store();
}

#[test]
fn a_network_with_little_bandwidth() {
    let conditions = Conditions { bytes_per_second: Some(8_000), ..Conditions::default() };
    SlowStage::new().play("64 kbit/s", |proxy| proxy.both_directions(conditions));
}

#[test]
fn a_network_that_breaks_after_every_hundred_replies() {
    let samples = SlowStage::new().play("reset every 100", |proxy| proxy.reset_every(Some(100)));
    // Each reset affects a moment, not most of the time.
    assert!(samples.by(DecidedBy::Store) * 2 > samples.len(), "{}", samples.summary());
}
