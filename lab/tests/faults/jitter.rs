//! Replies take 35 to 60 ms and the timeout is 50 ms. So the store decides some requests and the fallback
//! others, in random order.
//!
//! The bug this guards against: each answer of the store reset the fallback's counters. 123 requests passed
//! in 15 s where the limit was 30.

use crate::support::crowd::{about, ask, others};
use crate::support::proxy::{Conditions, Proxy};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use std::time::Duration;

const RULE: &str = "{ name: all, key: [ip], limits: [30/week] }";
const LIMIT: u64 = 30;
const NODES: u64 = 3;
const CEILING: u64 = LIMIT + NODES * LIMIT.div_ceil(NODES);
const REQUESTS: u32 = 3_000;
/// Without the denial cache every request goes to the store, so that it answers as often as possible.
const FLAGS: [&str; 4] = ["--redis-timeout", "50ms", "--redis-denial-cache", "off"];

#[test]
fn occasional_late_replies_do_not_bypass_a_limit() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address);
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &proxy.url(), &FLAGS);
    let others = others(&servers);
    let (delay, jitter) = (Duration::from_millis(35), Duration::from_millis(25));
    proxy.replies(Conditions { delay, jitter, ..Conditions::default() });
    let samples = ask(&servers, REQUESTS, |_| about("203.0.113.7"));
    let admitted = samples.admitted();
    println!("jitter: {}; {admitted} passed, ceiling {CEILING}", samples.summary());
    assert!(samples.by(DecidedBy::Fallback) > 0, "no reply was late");
    assert!((1..=CEILING).contains(&admitted), "{admitted} passed, the ceiling is {CEILING}");
    // After too many late replies the circuit breaker skips the store for a moment, and the server reports
    // that.
    servers.iter().for_each(|server| server.until_degraded_and_logged("did not answer within"));
    drop(others);
    proxy.replies(Conditions::default());
    servers.iter().for_each(Tidegate::until_ready);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}
