//! The store is killed while more clients are active than any bounded table of a node holds. Every caller is answered, as quickly
//! as before.
//!
//! The bug this guards against: the list of what is charged to the store later holds 16,384 keys. When it was full, every grant to
//! a further key looked through all of it, and a node fell from 2,000 answers a second to 231.

use crate::support::crowd::{about, ask};
use crate::support::load::{Load, Samples};
use crate::support::memcached::Memcached;
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use crate::support::{PATIENCE, within};
use std::time::{Duration, Instant};

const RULE: &str = "{ name: all, key: [ip], limits: [{ rate: 1000/h, algorithm: token_bucket }], on_store_error: local }";
const KEYS: u32 = 60_000;
const MEASURED: Duration = Duration::from_secs(5);
/// The median during the outage is at most this many times that before it. (The p99 of a busy machine says little.)
const SLOWER: u32 = 3;
/// Of two latencies below this nothing is said.
const LEAST: Duration = Duration::from_millis(2);

fn ip(number: u32) -> String {
    let [_, a, b, c] = (number % KEYS).to_be_bytes();
    format!("10.{a}.{b}.{c}")
}

fn measured(server: &Tidegate) -> Samples {
    let (per_second, connections) = (2_000, 64);
    let load = Load { servers: vec![server.http], per_second, connections, length: MEASURED };
    // Numbers with gaps, so that most keys are others than a moment ago.
    let samples =
        load.start(|number| format!("\"ip\":\"{}\"", ip(number.wrapping_mul(7)))).finish();
    samples.assert_all_answered();
    samples
}

/// Kills the store with `kill`, starts it again with `start`, and compares what clients see.
fn outage_of_a_store_with_many_keys(url: &str, name: &str, kill_and_start: [&mut dyn FnMut(); 2]) {
    let [kill, start] = kill_and_start;
    let deployment = Deployment::new(RULE);
    // With this flag the answers come from the store, even on a busy machine.
    let flags = ["--cluster-nodes", "1", "--redis-timeout", "10s"];
    let mut server = deployment.server(url, &flags);
    server.until_ready();
    let servers = std::slice::from_mut(&mut server);
    ask(servers, KEYS, |number| about(&ip(number)));
    let before = measured(&servers[0]);
    kill();
    servers[0].until_degraded_and_logged("refused");
    let without = ask(servers, KEYS, |number| about(&ip(number)));
    assert_eq!(
        (without.by(DecidedBy::Fallback), without.admitted()),
        (without.len(), u64::from(KEYS))
    );
    servers[0].until_degraded("what is granted to other keys without the store is not charged");
    let during = measured(&servers[0]);
    println!("{name}, before: {}; without it: {}", before.summary(), during.summary());
    let [quick, slow] = [&before, &during].map(|samples| samples.quantile(500).max(LEAST));
    assert!(slow <= quick * SLOWER, "{slow:?} instead of {quick:?}");
    start();
    let began = Instant::now();
    within(PATIENCE, "all debts are charged", || {
        !servers[0].get("/ready").1.contains("not charged")
    });
    println!("{name}: 16,384 debts were charged within {:?}", began.elapsed());
    server.until_ready();
    server.assert_healthy();
}

#[test]
fn an_outage_of_redis_with_more_clients_than_the_ledger_holds() {
    let redis = std::cell::RefCell::new(Redis::start());
    let url = redis.borrow().url();
    let [mut kill, mut start] = [true, false].map(|kills| {
        let redis = &redis;
        move || if kills { redis.borrow_mut().kill() } else { redis.borrow_mut().start_again() }
    });
    outage_of_a_store_with_many_keys(&url, "Redis", [&mut kill, &mut start]);
}

#[test]
fn an_outage_of_memcached_with_more_clients_than_the_ledger_holds() {
    let memcached = std::cell::RefCell::new(Memcached::start(&["-m", "256"]));
    let url = memcached.borrow().url();
    let [mut kill, mut start] = [true, false].map(|kills| {
        let memcached = &memcached;
        move || {
            let mut memcached = memcached.borrow_mut();
            if kills { memcached.kill() } else { memcached.start_again() }
        }
    });
    outage_of_a_store_with_many_keys(&url, "memcached", [&mut kill, &mut start]);
}
