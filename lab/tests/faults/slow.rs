//! The way to the store is slow, uneven, thin, or breaks again and again: callers wait for the timeout at most, and hear of no
//! error.

use crate::support::load::{Load, Samples};
use crate::support::proxy::{Proxy, Way};
use crate::support::redis::Redis;
use crate::support::tidegate::{By, Deployment, Tidegate};
use std::time::Duration;

const RULE: &str =
    "{ name: all, key: [ip], limits: [{ rate: 100000000/day, algorithm: fixed_window }] }";
const TIMEOUT: Duration = Duration::from_millis(50);
const OURS: Duration = Duration::from_millis(5);
const PHASE: Duration = Duration::from_secs(4);
/// As much memory may be held for what waits.
const MORE_KIB: u64 = 16 << 10;

struct Stage {
    _redis: Redis,
    proxy: Proxy,
    server: Tidegate,
    _deployment: Deployment,
}

impl Stage {
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

    /// What came of a load on a good wire, and then on this one.
    fn play(&mut self, name: &str, spoil: impl FnOnce(&Proxy)) -> Samples {
        self.server.until_ready();
        let (baseline, resident) = (self.load(), self.server.process.resident_kib());
        spoil(&self.proxy);
        let samples = self.load();
        let grown = self.server.process.resident_kib().saturating_sub(resident);
        println!("slow, {name}\n  before: {}\n  while:  {}", baseline.told(), samples.told());
        samples.are_all_answers();
        assert!(baseline.by(By::Fallback) * 100 <= baseline.len(), "{name}: before");
        let most = TIMEOUT + OURS + baseline.slowest();
        assert!(samples.slowest() <= most, "{name}: {:?} > {most:?}", samples.slowest());
        assert!(grown <= MORE_KIB, "{name}: {grown} KiB more");
        self.server.is_sound();
        samples
    }
}

fn late(millis: u64) -> Way {
    Way { delay: Duration::from_millis(millis), ..Way::default() }
}

/// Slower than usual, and in time: the store decides.
#[test]
fn a_way_that_is_slow_but_in_time() {
    for millis in [5, 20] {
        let samples =
            Stage::new().play(&format!("+{millis} ms"), |proxy| proxy.replies(late(millis)));
        samples.are_all_by_store();
    }
}

/// Slower than anybody waits: after a few have found out, nobody waits.
#[test]
fn a_way_that_is_too_slow() {
    let samples = Stage::new().play("+100 ms", |proxy| proxy.replies(late(100)));
    assert_eq!(samples.by(By::Store), 0);
    let waited = samples.filter(|sample| sample.latency >= TIMEOUT).len();
    println!("  {waited} of {} waited in vain", samples.len());
    assert!(waited * 10 <= samples.len(), "{waited} of {} waited in vain", samples.len());
}

#[test]
fn a_way_that_is_uneven() {
    let way = Way { jitter: Duration::from_millis(40), ..Way::default() };
    let samples = Stage::new().play("0 to 40 ms", |proxy| proxy.replies(way));
    samples.are_all_by_store();
}

#[test]
fn a_way_that_takes_a_byte_at_a_time() {
    let way = Way { byte_by_byte: true, ..Way::default() };
    let samples = Stage::new().play("byte by byte", |proxy| proxy.both_ways(way));
    samples.are_all_by_store();
}

#[test]
fn a_way_that_is_thin() {
    let way = Way { bytes_per_second: Some(8_000), ..Way::default() };
    Stage::new().play("64 kbit/s", |proxy| proxy.both_ways(way));
}

#[test]
fn a_way_that_breaks_after_every_hundred_replies() {
    let samples = Stage::new().play("reset every 100", |proxy| proxy.reset_every(Some(100)));
    // It is broken for a moment each time, not most of the time.
    assert!(samples.by(By::Store) * 2 > samples.len(), "{}", samples.told());
}
