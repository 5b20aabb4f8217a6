//! Redis is killed and restarted four times, and keeps its data. The ceiling holds over all four outages
//! together.
//!
//! The bug this guards against: local grants were forgotten when an outage ended, so 999 more requests passed
//! after each one where the limit was 1,000.

use crate::support::crowd::{about, ask};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};

const RULE: &str = "{ name: all, key: [ip], limits: [1000/week] }";
const LIMIT: u64 = 1_000;
const NODES: u64 = 3;
const CEILING: u64 = LIMIT + NODES * LIMIT.div_ceil(NODES);
const OUTAGES: u32 = 4;
/// More than the limit, and for each server more than its share.
const REQUESTS: u32 = 1_500;
/// With these flags every answer comes from the store, even on a busy machine.
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];

#[test]
fn local_grants_of_four_outages_are_not_forgotten() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"], None);
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &redis.url(), &FLAGS);
    let flood = || ask(&servers, REQUESTS, |_| about("203.0.113.7"));
    let mut admitted = flood().admitted();
    assert_eq!(admitted, LIMIT);
    for outage in 1..=OUTAGES {
        redis.kill();
        servers.iter().for_each(|server| server.until_degraded_and_logged("store"));
        let without = flood();
        assert_eq!(without.by(DecidedBy::Fallback), without.len());
        redis.start_again();
        servers.iter().for_each(Tidegate::until_ready);
        let with = flood();
        with.assert_all_by_store();
        admitted += without.admitted() + with.admitted();
        println!(
            "outage {outage}: {} passed while it lasted, {} after it; {admitted} in all, ceiling {CEILING}",
            without.admitted(),
            with.admitted(),
        );
        assert!(admitted <= CEILING, "{admitted} passed, the ceiling is {CEILING}");
    }
    // The servers did decide locally; otherwise the test shows nothing.
    assert!(admitted > LIMIT);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}
