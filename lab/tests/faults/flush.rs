//! The store loses its scripts every two seconds, which no caller notices. Then it loses all data, which
//! gives each key at most one more allowance.

use crate::support::load::Load;
use crate::support::redis::Redis;
use crate::support::tidegate::Deployment;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const KEYS: u32 = 200;
const FLUSHES: u32 = 5;
const APART: Duration = Duration::from_secs(2);

fn key(number: u32) -> String {
    format!("\"ip\":\"203.0.113.{}\"", number % KEYS)
}

#[test]
fn scripts_that_the_store_lost_are_loaded_again_once() {
    let redis = Redis::start();
    let deployment = Deployment::new(
        "{ name: all, key: [ip], limits: [{ rate: 100000000/day, algorithm: fixed_window }] }",
    );
    let mut server = deployment.server(&redis.url(), &["--redis-timeout", "1s"]);
    server.until_ready();
    let load = Load {
        servers: vec![server.http],
        per_second: 2_000,
        connections: 64,
        length: APART * (FLUSHES + 1),
    };
    let load = load.start(key);
    let before = redis.calls("script|load");
    for flush in 1..=FLUSHES {
        load.reaches(APART * flush);
        let _: String = redis.tell(&["SCRIPT", "FLUSH"]);
    }
    let samples = load.finish();
    let loaded = redis.calls("script|load") - before;
    // Small scripts that are rarely used are sent with each call.
    let whole = redis.calls("eval");
    println!(
        "flush: {}; the script was loaded {loaded} times, {whole} other scripts were sent",
        samples.summary()
    );
    samples.assert_all_answered();
    samples.assert_all_by_store();
    assert_eq!(redis.counted(), samples.admitted_by_store(), "what was counted");
    // There is one connection, so each flush causes one reload.
    assert!(loaded <= u64::from(FLUSHES), "{loaded} times for {FLUSHES} flushes");
    server.assert_healthy();
}

#[test]
fn a_store_that_restarts_empty_grants_each_key_at_most_one_more_allowance() {
    const LIMIT: u64 = 50;
    let mut redis = Redis::start();
    let deployment = Deployment::new(
        "{ name: all, key: [ip], limits: [{ rate: 50/day, algorithm: fixed_window }], on_store_error: deny }",
    );
    let mut server = deployment.server(&redis.url(), &[]);
    server.until_ready();
    let load = Load {
        servers: vec![server.http],
        per_second: 2_000,
        connections: 128,
        length: Duration::from_secs(16),
    };
    let load = load.start(key);
    load.reaches(Duration::from_secs(6));
    redis.kill();
    load.reaches(Duration::from_secs(8));
    redis.start_again();
    let since = Instant::now();
    let back = server.until_the_store_decides(since, r#""ip":"198.51.100.1""#);
    let samples = load.finish();
    println!("restart: {}; the store decides again after {back:?}", samples.summary());
    samples.assert_all_answered();
    let mut admitted: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in samples.0.iter().filter(|sample| sample.verdict.status == 200) {
        *admitted.entry(sample.number % KEYS).or_default() += 1;
    }
    let most = *admitted.values().max().unwrap();
    assert!(most > LIMIT, "the load was too small to show anything: {most}");
    assert!(most <= 2 * LIMIT, "{most} passed of one key");
    assert!(back <= Duration::from_secs(1), "{back:?}");
    server.assert_healthy();
}
