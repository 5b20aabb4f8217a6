//! A Redis Cluster loses the primary and the replica that own the slot of tidegate's own keys. Users whose
//! states are on these servers are decided by the fallback, all others by the store.
//!
//! The bug this guards against: a token bucket could not be counted before its limit was in the registry,
//! which is in one slot. So all 60 users fell back, where only 18 had their states on the lost servers.

use crate::support::cluster::Cluster;
use crate::support::crowd::ask;
use crate::support::load::Samples;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use std::collections::BTreeSet;

/// All states of a user are in one slot. The windows rule shows which; the limit of the buckets rule is not
/// registered yet when the servers are killed.
const RULES: &str = "
    { name: windows, match: { path: /windows }, key: [ip], limits: [{ rate: 1000/week, algorithm: fixed_window }], stop: true },
    { name: buckets, key: [ip], limits: [{ rate: 30/week, algorithm: token_bucket }] }";
const LIMIT: u64 = 30;
const NODES: u32 = 3;
/// Nothing was taken from the store before, so a user who falls back gets the local share of every server.
const SHARES: u64 = 30;
const USERS: u32 = 60;
/// Requests per user and server: more than the server's share, and in total more than the limit.
const TIMES: u32 = 15;
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];

/// Each user sends requests to one server after another.
fn user(number: u32) -> u32 {
    number / NODES % USERS
}

fn ask_all(servers: &[Tidegate], times: u32, path: &str) -> Samples {
    ask(servers, USERS * NODES * times, |number| {
        let ip = format!("203.0.113.{}", user(number));
        format!(r#"{{"attributes":{{"ip":"{ip}","method":"GET","path":"{path}"}}}}"#)
    })
}

#[test]
fn only_users_on_the_lost_servers_fall_back() {
    let mut cluster = Cluster::start();
    let deployment = Deployment::new(RULES);
    let mut servers = deployment.servers(NODES.into(), &cluster.url(), &FLAGS);
    ask_all(&servers, 1, "/windows").assert_all_by_store();
    let primary = cluster.home_of("{tidegate}nodes");
    let there = cluster.nodes[primary].state_keys().len();
    let replica = cluster.replica_of(primary);
    cluster.nodes[replica].kill();
    cluster.nodes[primary].kill();
    servers.iter().for_each(|server| server.until_degraded_and_logged("store"));

    let samples = ask_all(&servers, TIMES, "/buckets");
    let fell_back = samples.filter(|sample| sample.verdict.by == DecidedBy::Fallback);
    let users: BTreeSet<u32> = fell_back.0.iter().map(|sample| user(sample.number)).collect();
    println!(
        "lost slot: {} of {USERS} users fell back, {there} have their states there",
        users.len()
    );
    assert_eq!(users.len(), there);
    assert!((1..usize::try_from(USERS).unwrap()).contains(&there), "the test shows nothing");
    for one in 0..USERS {
        let own = samples.filter(|sample| user(sample.number) == one);
        let most = if users.contains(&one) {
            assert_eq!(own.by(DecidedBy::Fallback), own.len(), "user {one}");
            SHARES
        } else {
            own.assert_all_by_store();
            LIMIT
        };
        assert!(own.admitted() <= most, "user {one}: {} passed", own.admitted());
    }
    cluster.nodes[primary].start_again();
    servers.iter().for_each(Tidegate::until_ready);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}
