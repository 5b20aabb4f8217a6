//! Two rules count a user and an address together. A request that one of them refuses leaves nothing counted
//! at the other, also where the two states are on different nodes of a Redis Cluster.

use crate::support::cluster::Cluster;
use crate::support::load::Load;
use crate::support::redis::Redis;
use crate::support::tidegate::{Deployment, Tidegate};
use std::time::{Duration, Instant};

const LIMIT: u64 = 10;
/// A small limit per user, and a large one per address.
const RULES: &str = "
    { name: by-user, key: [user], limits: [{ rate: 10/day, algorithm: fixed_window }] },
    { name: by-address, key: [ip], limits: [{ rate: 1000000/day, algorithm: fixed_window }] }";
const NODES: usize = 4;

/// Sends requests of one user at one address to four nodes at the same time, and returns how many passed.
fn passed(servers: &[Tidegate], user: u32) -> u64 {
    let load = Load {
        servers: servers.iter().map(|server| server.http).collect(),
        per_second: 1_000,
        connections: 32,
        length: Duration::from_secs(2),
    };
    let who = move |_| format!("\"user\":\"u{user}\",\"ip\":\"203.0.113.{user}\"");
    let samples = load.start(who).finish();
    println!("two slots, user {user}: {}", samples.summary());
    samples.assert_all_answered();
    samples.assert_all_by_store();
    samples.admitted_by_store()
}

fn servers(deployment: &Deployment, url: &str) -> Vec<Tidegate> {
    let flags = ["--redis-timeout", "1s"];
    let servers: Vec<_> = (0..NODES).map(|_| deployment.server(url, &flags)).collect();
    servers.iter().for_each(Tidegate::until_ready);
    servers
}

#[test]
fn on_one_redis_all_or_nothing_is_exact() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULES);
    let servers = servers(&deployment, &redis.url());
    assert_eq!(passed(&servers, 1), LIMIT);
    let counts: Vec<u64> = redis.counts().into_values().collect();
    assert_eq!(counts, [LIMIT, LIMIT]);
}

/// Several users, so that the two keys of some are on one node and those of others on two.
#[test]
fn on_a_cluster_refused_takes_are_given_back_within_a_second() {
    const USERS: u32 = 4;
    let cluster = Cluster::start();
    let deployment = Deployment::new(RULES);
    let servers = servers(&deployment, &cluster.url());
    for user in 1..=USERS {
        assert_eq!(passed(&servers, user), LIMIT, "user {user}");
    }
    let expected = vec![LIMIT; usize::try_from(2 * USERS).unwrap()];
    let given_back = Instant::now() + Duration::from_secs(1);
    let mut counts: Vec<u64> = Vec::new();
    while counts != expected && Instant::now() < given_back {
        counts = cluster.counts().into_values().collect();
    }
    assert_eq!(counts, expected, "a second later");
    // The keys were on several nodes; otherwise the test shows nothing.
    assert!(cluster.homes() > 1);
}
