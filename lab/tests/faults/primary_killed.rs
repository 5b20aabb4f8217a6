//! A primary of a Redis Cluster is killed under load. Keys on other primaries are not affected. Until its
//! replica takes over, the other keys are decided by `on_store_error` of their rule.

use crate::support::cluster::{Cluster, NODE_TIMEOUT_MS};
use crate::support::load::{Load, Samples};
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const KEYS: u32 = 100;
/// Large enough that keys are not used up when the primary is killed, and small enough that two allowances
/// are less than the load.
const LIMIT: u64 = 160;
const RULE: &str = "{ name: all, key: [ip], limits: [{ rate: 160/day, algorithm: fixed_window }], on_store_error: deny }";
const SECOND: Duration = Duration::from_secs(1);
/// The promise: twice the node timeout of the cluster, and a margin.
const EXACT_AGAIN: Duration = Duration::from_millis(2 * NODE_TIMEOUT_MS + 3_000);

#[test]
fn a_primary_that_is_killed_is_replaced() {
    play(Replica::CaughtUp);
}

/// What was not replicated is lost: each key gets at most one more allowance.
#[test]
fn a_primary_that_is_killed_before_its_replica_has_caught_up() {
    play(Replica::Behind);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Replica {
    CaughtUp,
    Behind,
}

fn play(replica: Replica) {
    let mut cluster = Cluster::start();
    let deployment = Deployment::new(RULE);
    let mut servers: Vec<_> =
        (0..3).map(|_| deployment.server(&cluster.url(), &["--redis-timeout", "200ms"])).collect();
    servers.iter().for_each(Tidegate::until_ready);
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: 2_000,
        connections: 96,
        length: 20 * SECOND,
    };
    let load = load.start(|number| format!("\"ip\":\"203.0.113.{}\"", number % KEYS));
    load.reaches(3 * SECOND);
    let primary = cluster.primaries()[0];
    let follower = cluster.replica_of(primary);
    if replica == Replica::Behind {
        cluster.nodes[follower].process().stop();
        load.reaches(3 * SECOND + SECOND / 2);
    }
    let killed = Instant::now();
    cluster.nodes[primary].kill();
    if replica == Replica::Behind {
        cluster.nodes[follower].process().resume();
    }
    let samples = load.finish();

    // A request in flight when the primary was killed belongs to the time after.
    let before = samples.filter(|sample| sample.due + sample.latency < killed);
    let after = samples.filter(|sample| sample.due + sample.latency >= killed);
    let of = |samples: &Samples, by: DecidedBy| -> BTreeSet<u32> {
        let those = samples.0.iter().filter(|sample| sample.verdict.by == by);
        those.map(|sample| sample.number % KEYS).collect()
    };
    let missed = of(&after, DecidedBy::Fallback);
    let elsewhere = after.filter(|sample| !missed.contains(&(sample.number % KEYS)));
    let last = after.filter(|sample| sample.verdict.by == DecidedBy::Fallback);
    let dark =
        last.0.last().map_or(Duration::ZERO, |sample| sample.due.saturating_duration_since(killed));
    println!("primary killed\n  before:    {}\n  after:     {}", before.summary(), after.summary());
    println!(
        "  elsewhere: {}\n  {} of {KEYS} keys were missed, for {dark:?}",
        elsewhere.summary(),
        missed.len()
    );
    samples.assert_all_answered();
    before.assert_all_by_store();
    // About a third of all slots.
    let few = usize::try_from(KEYS).unwrap() / 2;
    assert!((1..few).contains(&missed.len()), "{} keys were missed", missed.len());
    let p99 = before.quantile(990) + Duration::from_millis(2);
    assert!(elsewhere.quantile(990) <= p99, "{:?} > {p99:?}", elsewhere.quantile(990));
    assert!(dark <= EXACT_AGAIN, "{dark:?}");
    let mut admitted: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in samples.0.iter().filter(|sample| sample.verdict.status == 200) {
        *admitted.entry(sample.number % KEYS).or_default() += 1;
    }
    println!("  at most {:?} passed of one key", admitted.values().max());
    let over: Vec<_> = admitted.iter().filter(|(_, count)| **count > 2 * LIMIT).collect();
    assert!(over.is_empty(), "{over:?}");
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}
