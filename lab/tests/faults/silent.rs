//! The network to the store delivers nothing for some seconds, without an error, and then delivers everything
//! that was sent. No caller waits longer than the timeout, and what arrives late is not counted.

use crate::support::load::Load;
use crate::support::proxy::{Conditions, Proxy};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const RULE: &str =
    "{ name: all, key: [ip], limits: [{ rate: 100000000/day, algorithm: fixed_window }] }";
const TIMEOUT: Duration = Duration::from_millis(50);
const OVERHEAD: Duration = Duration::from_millis(5);
const BEFORE: Duration = Duration::from_secs(3);
const SILENT: Duration = Duration::from_secs(5);

#[test]
fn requests_that_arrive_after_a_silence_are_not_counted() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address);
    let deployment = Deployment::new(RULE);
    let mut server = deployment.server(&proxy.url(), &[]);
    server.until_ready();
    let phase = Arc::new(AtomicU8::new(1));
    let of = Arc::clone(&phase);
    let load = Load {
        servers: vec![server.http],
        per_second: 1_000,
        connections: 96,
        length: BEFORE + SILENT + BEFORE,
    };
    let name = |phase: u8| format!("\"ip\":\"203.0.113.{phase}\"");
    let load = load.start(move |_| name(of.load(Ordering::SeqCst)));
    load.reaches(BEFORE);
    proxy.both_directions(Conditions { frozen: true, ..Conditions::default() });
    let silent = Instant::now();
    phase.store(2, Ordering::SeqCst);
    load.reaches(BEFORE + SILENT);
    let tries = proxy.accepted(silent, Instant::now());
    phase.store(3, Ordering::SeqCst);
    proxy.both_directions(Conditions::default());
    let healed = Instant::now();
    let back = server.until_the_store_decides(healed, &name(4));
    let samples = load.finish();
    let before = samples.between(samples.0[0].due, silent - TIMEOUT);
    let fault = samples.between(silent - TIMEOUT, healed);
    println!("silent\n  before: {}\n  while:  {}", before.summary(), fault.summary());
    println!("  {tries} attempts to connect; the store decides again after {back:?}");
    samples.assert_all_answered();
    let most = TIMEOUT + OVERHEAD + before.slowest();
    assert!(fault.slowest() <= most, "{:?} > {most:?}", fault.slowest());
    assert!(fault.by(DecidedBy::Fallback) > 0);
    assert!(tries <= 25, "more than five a second: {tries}");
    assert!(back <= Duration::from_secs(2), "{back:?}");
    // Each phase has its own key, and so have the few requests that wait for the store at the end. What was
    // granted meanwhile is charged later; what arrived after its deadline is not.
    let mut counts: Vec<u64> = redis.counts().into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts.len(), 4, "{counts:?}");
    let counted: u64 = counts[1..].iter().sum();
    let granted = samples.admitted();
    assert!(counted <= granted, "{counted} counted of {granted}: {counts:?}");
    server.assert_healthy();
}
