//! A server cannot learn the number of nodes, because it starts during an outage, or because the key of the
//! node list holds another program's data.
//!
//! The bug this guards against: such a server assumed that it was alone, and granted the whole limit without
//! any report. Now it uses the number that it knew when it last ran, or else assumes 8, and reports that.

use crate::support::crowd::{about, ask};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use crate::support::{PATIENCE, within};
use std::slice;

const RULE: &str = "{ name: all, key: [ip], limits: [72/week] }";
const LIMIT: u64 = 72;
const NODES: u64 = 3;
const ASSUMED: u64 = 8;
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];

/// How many requests a server grants without the store.
fn granted(server: &Tidegate) -> u64 {
    let samples = ask(slice::from_ref(server), 200, |_| about("203.0.113.7"));
    assert_eq!(samples.by(DecidedBy::Fallback), samples.len());
    samples.admitted()
}

/// It has never reached the store.
#[test]
fn a_server_that_starts_during_an_outage_assumes_eight() {
    let mut redis = Redis::start();
    redis.kill();
    let deployment = Deployment::new(RULE);
    let mut server = deployment.server(&redis.url(), &FLAGS);
    let granted = granted(&server);
    println!("newcomer: {granted} of 200 passed, the limit is {LIMIT}");
    assert_eq!(granted, LIMIT / ASSUMED);
    server.until_degraded_and_logged("8 are assumed");
    redis.start_again();
    server.until_ready();
    server.until_nodes(1);
    server.assert_healthy();
}

/// The number of nodes is in its data directory.
#[test]
fn a_server_that_is_restarted_during_an_outage_knows_the_number() {
    let mut redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &redis.url(), &FLAGS);
    let known = Some(NODES.to_string());
    for server in &servers {
        within(PATIENCE, "the number of nodes is saved", || server.nodes_on_disk() == known);
    }
    redis.kill();
    let mut restarted = deployment.restart(servers.pop().unwrap(), &redis.url(), &FLAGS);
    let granted = granted(&restarted);
    println!("restarted: {granted} of 200 passed, the limit is {LIMIT}");
    assert_eq!(granted, LIMIT / NODES);
    restarted.until_degraded_and_logged("store");
    redis.start_again();
    restarted.until_ready();
    restarted.assert_healthy();
}

/// Servers that knew the number of nodes keep using it; a server that starts meanwhile assumes 8.
#[test]
fn a_node_list_with_data_of_another_program() {
    let mut redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &redis.url(), &FLAGS);
    let _: String = redis.tell(&["SET", "{tidegate}nodes", "foreign"]);
    servers.iter().for_each(|server| server.until_degraded_and_logged("3 are assumed"));
    let newcomer = deployment.server(&redis.url(), &FLAGS);
    newcomer.until_degraded_and_logged("8 are assumed");
    // The store still decides.
    ask(&servers, 3, |_| about("198.51.100.1")).assert_all_by_store();
    servers.push(newcomer);

    redis.kill();
    servers.iter().for_each(|server| server.until_degraded("cannot be reached"));
    let granted: Vec<u64> = servers.iter().map(granted).collect();
    println!("foreign list: {granted:?} passed, the limit is {LIMIT}");
    let (share, assumed) = (LIMIT / NODES, LIMIT / ASSUMED);
    assert_eq!(granted, [share, share, share, assumed]);
    redis.start_again();
    servers.iter().for_each(Tidegate::until_ready);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}
