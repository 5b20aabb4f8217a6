//! memcached is killed, hangs, is flushed, is full. Every caller is answered, by the rule where the store does
//! not answer; and what memcached does not announce is noticed and counted.

use crate::support::load::{Load, Samples};
use crate::support::memcached::Memcached;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use crate::support::{PATIENCE, pause, within};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const LIMIT: u64 = 50;
const RULE: &str = "{ name: all, key: [ip], limits: [{ rate: 50/day, algorithm: fixed_window }], on_store_error: deny }";
const KEYS: u32 = 200;
/// A loss is noticed within this time. The test looks every few milliseconds.
const NOTICED: Duration = Duration::from_secs(1);
const LOOKS: Duration = Duration::from_millis(100);

fn key(number: u32) -> String {
    format!("\"ip\":\"203.0.113.{}\"", number % KEYS)
}

fn serve(memcached: &Memcached, rule: &str) -> (Deployment, Tidegate) {
    let deployment = Deployment::new(rule);
    let server = deployment.server(&memcached.url(), &["--cluster-nodes", "1"]);
    server.until_ready();
    (deployment, server)
}

fn load(server: &Tidegate, seconds: u64) -> Load {
    let length = Duration::from_secs(seconds);
    Load { servers: vec![server.http], per_second: 2_000, connections: 128, length }
}

/// How long it took until a loss of this kind was counted.
fn until_counted(server: &Tidegate, reason: &str, since: Instant) -> Duration {
    within(PATIENCE, "the loss is counted", || {
        server.metric_with("tidegate_store_losses_total", reason) > 0
    });
    since.elapsed()
}

/// The most that passed of one key.
fn most_of_a_key(samples: &Samples) -> u64 {
    let mut admitted: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in samples.0.iter().filter(|sample| sample.verdict.status == 200) {
        *admitted.entry(sample.number % KEYS).or_default() += 1;
    }
    *admitted.values().max().unwrap()
}

#[test]
fn a_memcached_that_is_killed_and_restarted_grants_each_key_at_most_one_more_allowance() {
    let mut memcached = Memcached::start(&[]);
    let (_deployment, mut server) = serve(&memcached, RULE);
    let load = load(&server, 12).start(key);
    load.reaches(Duration::from_secs(5));
    memcached.kill();
    server.until_degraded_and_logged("Connection refused");
    load.reaches(Duration::from_secs(7));
    memcached.start_again();
    let since = Instant::now();
    let counted = until_counted(&server, "restarted", since);
    let back = server.until_the_store_decides(since, r#""ip":"198.51.100.1""#);
    server.until_degraded_and_logged("it was restarted and lost its counters");
    let samples = load.finish();
    println!("killed: {}; decides after {back:?}, counted after {counted:?}", samples.summary());
    samples.assert_all_answered();
    assert!(samples.by(DecidedBy::Fallback) > 1_000);
    let most = most_of_a_key(&samples);
    assert!(most > LIMIT, "the load was too small to show anything: {most}");
    assert!(most <= 2 * LIMIT, "{most} passed of one key");
    assert!(back <= NOTICED + LOOKS, "{back:?}");
    assert!(counted <= NOTICED + LOOKS, "{counted:?}");
    server.assert_healthy();
}

#[test]
fn a_memcached_that_is_flushed_is_noticed() {
    let memcached = Memcached::start(&[]);
    let (_deployment, mut server) = serve(&memcached, RULE);
    let load = load(&server, 8).start(key);
    load.reaches(Duration::from_secs(5));
    assert_eq!(memcached.command("flush_all"), "OK");
    let since = Instant::now();
    let counted = until_counted(&server, "flushed", since);
    server.until_degraded_and_logged("it was flushed and lost its counters");
    let samples = load.finish();
    println!("flushed: {}; counted after {counted:?}", samples.summary());
    samples.assert_all_answered();
    samples.assert_all_by_store();
    let most = most_of_a_key(&samples);
    assert!(most <= 2 * LIMIT, "{most} passed of one key");
    assert!(counted <= NOTICED + LOOKS, "{counted:?}");
    assert_eq!(server.metric("tidegate_store_losses_total"), 1);
    server.assert_healthy();
}

#[test]
fn a_memcached_that_hangs_delays_callers_by_the_timeout_and_then_not_at_all() {
    let memcached = Memcached::start(&[]);
    let (_deployment, mut server) = serve(&memcached, RULE);
    let load = load(&server, 14).start(key);
    load.reaches(Duration::from_secs(3));
    memcached.process().stop();
    let stopped = Instant::now();
    within(PATIENCE, "degraded", || server.readiness() == "degraded");
    let noticed = stopped.elapsed();
    load.reaches(Duration::from_secs(9));
    memcached.process().resume();
    let went_on = Instant::now();
    let back = server.until_the_store_decides(went_on, r#""ip":"198.51.100.1""#);
    let samples = load.finish();
    let before = samples.between(samples.0[0].due, stopped - Duration::from_millis(100));
    let settled = samples.between(stopped + Duration::from_millis(500), went_on);
    println!(
        "stopped: {}; noticed after {noticed:?}, decides after {back:?}\n  settled: {}",
        samples.summary(),
        settled.summary()
    );
    samples.assert_all_answered();
    assert_eq!(settled.by(DecidedBy::Store), 0);
    let p99 = before.quantile(990) + Duration::from_millis(1);
    assert!(settled.quantile(990) <= p99, "{:?} > {p99:?}", settled.quantile(990));
    let most = before.slowest() + Duration::from_millis(55);
    assert!(samples.slowest() <= most, "{:?} > {most:?}", samples.slowest());
    assert!(noticed <= NOTICED + LOOKS && back <= NOTICED + LOOKS, "{noticed:?}, {back:?}");
    // It kept its data.
    assert_eq!(server.metric("tidegate_store_losses_total"), 0);
    assert!(most_of_a_key(&samples) <= LIMIT);
    server.assert_healthy();
}

/// A full memcached evicts counters, which is counted. With `-M` it refuses new ones, and the rule answers.
#[test]
fn a_full_memcached_evicts_and_is_noticed_or_refuses_and_the_rule_answers() {
    for (flags, refuses) in [(&["-m", "8"][..], false), (&["-m", "8", "-M"], true)] {
        let memcached = Memcached::start(flags);
        let (_deployment, mut server) = serve(&memcached, RULE);
        let load = load(&server, 8).start(|number| {
            let [_, _, high, low] = number.to_be_bytes();
            format!("\"ip\":\"203.0.{high}.{low}\"")
        });
        load.reaches(Duration::from_secs(2));
        let since = Instant::now();
        if refuses {
            memcached.fill(100_000);
            within(PATIENCE, "it refuses", || {
                server.metric_with("tidegate_store_errors_total", "full") > 0
            });
        } else {
            // Values of another program push counters out.
            within(PATIENCE, "the eviction is counted", || {
                memcached.fill(1_000);
                server.metric_with("tidegate_store_losses_total", "evicted") > 0
            });
            server.until_degraded_and_logged("evicts counters");
        }
        let noticed = since.elapsed();
        pause(Duration::from_millis(1));
        let samples = load.finish();
        println!("full, {flags:?}: {}; noticed after {noticed:?}", samples.summary());
        samples.assert_all_answered();
        assert_eq!(samples.by(DecidedBy::Fallback) > 0, refuses, "{}", samples.summary());
        server.assert_healthy();
    }
}
