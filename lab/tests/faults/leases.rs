//! Nodes hold parts of a limit while something breaks: a node is killed, or sleeps for half a minute and then
//! spends; the store loses its data, or its primary; clocks of nodes are set. No caller gets an error, and
//! never more passes than the stated bound.

use crate::support::cluster::Cluster;
use crate::support::load::{Load, Sample, Samples};
use crate::support::redis::Redis;
use crate::support::shim::Shim;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use crate::support::{PATIENCE, pause, within};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const RATE: u64 = 600;
const BURST: u64 = 600;
/// One bucket for everybody. A node holds at most two shares of a tenth.
const RULE: &str =
    "{ name: all, key: [], limits: [600/s], consistency: lease, on_store_error: deny }";
const NODES: u64 = 3;
const HELD: u64 = NODES * 2 * BURST / 10;
const SECOND: Duration = Duration::from_secs(1);
/// A bucket has refilled, whatever a node held, and the others have noticed.
const BACK: Duration = Duration::from_millis(2_500);

fn everybody(_number: u32) -> String {
    r#""ip":"203.0.113.7""#.to_owned()
}

fn load(servers: &[SocketAddr], length: Duration) -> Load {
    Load { servers: servers.to_vec(), per_second: 1_800, connections: 48, length }
}

fn addresses(servers: &[Tidegate]) -> Vec<SocketAddr> {
    servers.iter().map(|server| server.http).collect()
}

fn servers(deployment: &Deployment, store: &str) -> Vec<Tidegate> {
    let servers = deployment.servers(NODES, store, &["--redis-timeout", "200ms"]);
    servers.iter().for_each(Tidegate::until_ready);
    servers
}

fn holds(server: &Tidegate) -> bool {
    server.metric("tidegate_lease_held") > 0
}

/// Checks that in every span no more passed than a bucket grants, `losses` times more often, and what nodes
/// held besides. A request passed at some time between its arrival and its answer.
fn assert_within_bound(samples: &Samples, losses: u64) -> u64 {
    let mut passed: Vec<&Sample> =
        samples.0.iter().filter(|sample| sample.verdict.status == 200).collect();
    passed.sort_by_key(|sample| sample.due);
    let mut most_over = 0;
    for (first, from) in passed.iter().enumerate().step_by(20) {
        let mut answered: Vec<Instant> =
            passed[first..].iter().map(|sample| sample.due + sample.latency).collect();
        answered.sort_unstable();
        for (count, to) in (1_u64..).zip(&answered) {
            let span = u64::try_from(to.duration_since(from.due).as_micros()).unwrap();
            let grants = BURST + span * RATE / 1_000_000 + 1;
            let bound = grants + losses * (grants.min(2 * BURST) + HELD);
            assert!(count <= bound, "{count} passed within {span} µs, {bound} is the most");
            most_over = most_over.max(count.saturating_sub(grants));
        }
    }
    most_over
}

fn passed(samples: &Samples, from: Instant, to: Instant) -> u64 {
    samples.between(from, to).admitted()
}

/// Checks that nearly the whole rate passes. Callers ask for three times as much.
fn assert_whole_rate(samples: &Samples, from: Instant, to: Instant) {
    let granted = passed(samples, from, to);
    let span = u64::try_from(to.duration_since(from).as_millis()).unwrap();
    let expected = span * RATE / 1_000;
    assert!(granted * 100 >= expected * 90, "{granted} passed in {span} ms of {expected}");
}

#[test]
fn what_a_killed_node_held_is_back_when_the_bucket_has_refilled() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let mut servers = servers(&deployment, &redis.url());
    let all = addresses(&servers);
    let first = load(&all[..1], 3 * SECOND).start(everybody);
    let others = load(&all[1..], 10 * SECOND).start(everybody);
    within(PATIENCE, "the first node holds something", || holds(&servers[0]));
    let before = first.finish();
    let first = servers.remove(0);
    drop(first); // kill -9
    let killed = Instant::now();
    let after = others.finish();
    let end = after.0.iter().map(|sample| sample.due).max().unwrap();
    let both = Samples(before.0.iter().chain(&after.0).copied().collect());
    println!("node killed: {}; {}", before.summary(), after.summary());
    both.assert_all_answered();
    assert_eq!(both.by(DecidedBy::Fallback), 0);
    assert!(before.by(DecidedBy::Lease) > 0 && after.by(DecidedBy::Lease) > 0);
    assert_within_bound(&both, 0);
    assert_whole_rate(&after, killed + BACK, end);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

#[test]
fn a_node_that_sleeps_for_half_a_minute_spends_nothing_that_has_passed() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let mut servers = servers(&deployment, &redis.url());
    let all = addresses(&servers);
    let length = 40 * SECOND;
    let others = load(&all[1..], length).start(everybody);
    let first = load(&all[..1], 2 * SECOND).start(everybody);
    within(PATIENCE, "the first node holds something", || holds(&servers[0]));
    let before = first.finish();
    servers[0].process.stop();
    pause(30 * SECOND);
    servers[0].process.resume();
    let woken = load(&all[..1], 3 * SECOND).start(everybody).finish();
    let after = others.finish();
    let both = Samples(before.0.iter().chain(&after.0).chain(&woken.0).copied().collect());
    println!("node stopped: {}; {}; {}", before.summary(), after.summary(), woken.summary());
    both.assert_all_answered();
    assert!(before.by(DecidedBy::Lease) > 0);
    assert_within_bound(&both, 0);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

#[test]
fn a_store_that_loses_its_data_lets_what_nodes_held_pass_once_more() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let mut servers = servers(&deployment, &redis.url());
    let load = load(&addresses(&servers), 10 * SECOND).start(everybody);
    load.reaches(4 * SECOND);
    let _: String = redis.tell(&["FLUSHALL"]);
    let samples = load.finish();
    let over = assert_within_bound(&samples, 1);
    println!("FLUSHALL: {}; at most {over} more than the limit passed", samples.summary());
    samples.assert_all_answered();
    assert!(samples.by(DecidedBy::Lease) > 0);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

#[test]
fn a_primary_that_is_killed_ends_the_leases_on_it() {
    let mut cluster = Cluster::start();
    let deployment = Deployment::new(RULE);
    let mut servers = servers(&deployment, &cluster.url());
    let load = load(&addresses(&servers), 20 * SECOND).start(everybody);
    load.reaches(4 * SECOND);
    let counted = |number: &usize| cluster.nodes[*number].counted() > 0;
    let primary = cluster.primaries().into_iter().find(counted).unwrap();
    let killed = Instant::now();
    cluster.nodes[primary].kill();
    let samples = load.finish();
    let over = assert_within_bound(&samples, 1);
    let fallback = samples.filter(|sample| sample.verdict.by == DecidedBy::Fallback);
    let back = fallback.0.iter().map(|sample| sample.due).max();
    let dark = back.map_or(Duration::ZERO, |back| back.saturating_duration_since(killed));
    println!("primary killed: {}; dark for {dark:?}, {over} over", samples.summary());
    samples.assert_all_answered();
    assert!(samples.by(DecidedBy::Lease) > 0);
    let end = samples.0.iter().map(|sample| sample.due).max().unwrap();
    assert_whole_rate(&samples, killed + dark + BACK, end);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

/// The time of a node decides nothing: what it holds is placed by the time of the store.
pub(crate) fn clocks_of_nodes_that_are_set() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let clocks = [-5, 0, 5].map(Shim::wrong_by);
    let flags = ["--redis-timeout", "1s"];
    let mut servers =
        clocks.each_ref().map(|clock| deployment.server_by(clock, &redis.url(), &flags));
    servers.iter().for_each(Tidegate::until_ready);
    let load = load(&addresses(&servers), 9 * SECOND).start(everybody);
    for (second, seconds) in [(3, [3_600, -3_600, -5]), (5, [0, 0, 0]), (7, [-1, 1, 86_400])] {
        load.reaches(second * SECOND);
        clocks.iter().zip(seconds).for_each(|(clock, seconds)| clock.set(seconds));
    }
    let samples = load.finish();
    assert_within_bound(&samples, 0);
    println!("node clocks set: {}", samples.summary());
    samples.assert_all_answered();
    assert!(samples.by(DecidedBy::Lease) > 0);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}
