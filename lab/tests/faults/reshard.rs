//! Slots of a Redis Cluster move from one node to another under load. The limits hold exactly, and callers
//! notice nothing.

use crate::support::cluster::Cluster;
use crate::support::load::Load;
use crate::support::tidegate::{Deployment, Tidegate};
use crate::support::{PATIENCE, within};
use std::collections::BTreeMap;
use std::time::Duration;

const KEYS: u32 = 500;
const LIMIT: u64 = 10;
const RULE: &str = "{ name: all, key: [ip], limits: [{ rate: 10/day, algorithm: fixed_window }] }";
const SLOTS: u32 = 300;

#[test]
fn slots_that_move_under_load_lose_nothing() {
    let cluster = Cluster::start();
    let deployment = Deployment::new(RULE);
    let flags = ["--redis-timeout", "1s"];
    let mut servers: Vec<_> = (0..2).map(|_| deployment.server(&cluster.url(), &flags)).collect();
    servers.iter().for_each(Tidegate::until_ready);
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: 1_000,
        connections: 64,
        length: Duration::from_secs(20),
    };
    let key = |number| (number % KEYS, number % KEYS / 250);
    let load = load.start(move |number| {
        let (key, net) = key(number);
        format!("\"ip\":\"203.0.{net}.{}\"", key % 250)
    });
    load.reaches(Duration::from_secs(2));
    let primaries = cluster.primaries();
    // Two moves: the second one affects a node that has just received slots.
    cluster.reshard(primaries[0], primaries[1], SLOTS);
    cluster.reshard(primaries[1], primaries[2], SLOTS);
    let samples = load.finish();
    let redirected = ["MOVED", "ASK", "TRYAGAIN"].map(|word| cluster.errors(word));
    println!("reshard: {}; MOVED, ASK, TRYAGAIN: {redirected:?}", samples.summary());
    samples.assert_all_answered();
    samples.assert_all_by_store();
    assert!(redirected[0] > 0, "no request was redirected, so the test shows nothing");
    let mut admitted: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in samples.0.iter().filter(|sample| sample.verdict.status == 200) {
        *admitted.entry(sample.number % KEYS).or_default() += 1;
    }
    let wrong: Vec<_> = admitted.iter().filter(|(_, count)| **count != LIMIT).collect();
    assert!(admitted.len() == usize::try_from(KEYS).unwrap() && wrong.is_empty(), "{wrong:?}");
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

/// Checks the test cluster itself: it can be resharded and survives the loss of a primary. Otherwise the
/// tests with it prove nothing.
#[test]
fn a_cluster_moves_slots_and_replaces_a_primary() {
    let mut cluster = Cluster::start();
    let primaries = cluster.primaries();
    let [first, second, third] = primaries.as_slice() else { panic!("{primaries:?}") };
    cluster.reshard(*first, *second, 20);
    let replica = cluster.replica_of(*third);
    cluster.nodes[*third].kill();
    within(PATIENCE, "its replica is the primary", || cluster.is_primary(replica));
    assert_eq!(cluster.primaries().len(), 3);
}
