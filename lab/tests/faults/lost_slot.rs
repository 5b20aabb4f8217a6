//! A cluster loses the servers with the slot of our own keys, the primary and its replica: users whose states lie there are
//! decided by the fallback, all others by the store.
//!
//! Once, every token bucket needed the registry of limits, which has one slot: all 60 users fell back where the states of 18 lay
//! on the lost servers.

use crate::support::cluster::Cluster;
use crate::support::crowd::{about, ask};
use crate::support::tidegate::{By, Deployment, Tidegate};
use std::collections::BTreeSet;

const RULE: &str = "{ name: all, key: [ip], limits: [{ rate: 30/week, algorithm: token_bucket }] }";
const LIMIT: u64 = 30;
const NODES: u64 = 3;
const CEILING: u64 = LIMIT + NODES * LIMIT.div_ceil(NODES);
const USERS: u32 = 60;
/// So often every user asks at every server: more than its share, and in all more than the limit.
const TIMES: u32 = 15;
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];

/// Each user asks every server in turn.
fn user(number: u32) -> u32 {
    number / u32::try_from(NODES).unwrap() % USERS
}

fn ask_all(servers: &[Tidegate], times: u32) -> crate::support::load::Samples {
    let nodes = u32::try_from(NODES).unwrap();
    ask(servers, USERS * nodes * times, |number| about(&format!("203.0.113.{}", user(number))))
}

#[test]
fn only_users_on_the_lost_servers_fall_back() {
    let mut cluster = Cluster::start();
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &cluster.url(), &FLAGS);
    ask_all(&servers, 1).are_all_by_store();
    let primary = cluster.home_of("{tidegate}shapes");
    let there = cluster.nodes[primary].state_keys().len();
    let replica = cluster.replica_of(primary);
    cluster.nodes[replica].kill();
    cluster.nodes[primary].kill();
    servers.iter().for_each(|server| server.until_degraded_and_logged("store"));

    let samples = ask_all(&servers, TIMES);
    let fell_back = samples.filter(|sample| sample.verdict.by == By::Fallback);
    let users: BTreeSet<u32> = fell_back.0.iter().map(|sample| user(sample.number)).collect();
    println!(
        "lost slot: {} of {USERS} users fell back, the states of {there} lay there",
        users.len()
    );
    assert_eq!(users.len(), there);
    assert!((1..usize::try_from(USERS).unwrap()).contains(&there), "nothing was shown");
    for one in 0..USERS {
        let own = samples.filter(|sample| user(sample.number) == one);
        let most = if users.contains(&one) {
            assert_eq!(own.by(By::Fallback), own.len(), "user {one}");
            CEILING
        } else {
            own.are_all_by_store();
            LIMIT
        };
        assert!(own.admitted() + NODES <= most, "user {one}: {} passed", own.admitted());
    }
    cluster.nodes[primary].start_again();
    servers.iter().for_each(Tidegate::until_ready);
    servers.iter_mut().for_each(Tidegate::is_sound);
}
