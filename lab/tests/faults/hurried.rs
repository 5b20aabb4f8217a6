//! Callers with a short `timeout_ms`, while the store is healthy and busy with others.
//!
//! Once, a server forgot what it had counted by itself whenever the store answered anybody. So a caller whose deadline was too
//! short for the store got a fresh share each time: 900 of 900 requests passed where the limit was 30. A deadline must not be a
//! way around a limit: patient and hurried callers together stay within the ceiling.

use crate::support::crowd::{about, ask, hurried, others};
use crate::support::load::{Http, Samples};
use crate::support::proxy::{Conditions, Proxy};
use crate::support::redis::Redis;
use crate::support::tidegate::{DecidedBy, Deployment, Tidegate};
use crate::support::{PATIENCE, within};
use std::time::Duration;

const RULE: &str = "{ name: all, key: [ip], limits: [30/week] }";
const LIMIT: u64 = 30;
const NODES: u64 = 3;
/// What the limit allows, and the share of every server.
const CEILING: u64 = LIMIT + NODES * LIMIT.div_ceil(NODES);
/// Of ten requests nine are hurried: 900 of these.
const REQUESTS: u32 = 1_000;
/// A patient caller gets the store's own answer, however busy the machine is.
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];

/// The store gets none of so short a time, so these callers are never counted by it.
#[test]
fn a_deadline_too_short_for_the_store_is_no_way_around_a_limit() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &redis.url(), &FLAGS);
    let _others = others(&servers);
    for timeout_ms in [1, 2] {
        play(&servers, timeout_ms);
    }
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

/// The store counts these callers, and its replies come too late for them.
#[test]
fn a_reply_that_comes_too_late_is_no_way_around_a_limit() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.address);
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &proxy.url(), &FLAGS);
    let _others = others(&servers);
    proxy.replies(Conditions { delay: Duration::from_millis(20), ..Conditions::default() });
    play(&servers, 10);
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

fn play(servers: &[Tidegate], timeout_ms: u32) {
    let ip = format!("203.0.113.{timeout_ms}");
    let is_patient = |number: u32| number.is_multiple_of(10);
    let samples = ask(servers, REQUESTS, |number| {
        if is_patient(number) { about(&ip) } else { hurried(&ip, timeout_ms) }
    });
    let hurried = samples.filter(|sample| !is_patient(sample.number));
    let (all, of_hurried) = (samples.admitted(), hurried.admitted());
    println!("hurried, {timeout_ms} ms: {}", samples.summary());
    println!("  {all} of {REQUESTS} passed, {of_hurried} of them hurried; ceiling {CEILING}");
    assert!((LIMIT..=CEILING).contains(&all), "{all} passed, the ceiling is {CEILING}");
    assert_eq!(hurried.by(DecidedBy::Store), 0, "some callers were not hurried enough");
    is_honest(servers, &samples, timeout_ms);
}

/// Metrics tell how many were decided without the store, and `/ready` that it happens, for as long as it does.
fn is_honest(servers: &[Tidegate], samples: &Samples, timeout_ms: u32) {
    let counted: u64 = servers.iter().map(decided_by_fallback).sum();
    assert!(counted >= u64::try_from(samples.by(DecidedBy::Fallback)).unwrap(), "{counted}");
    for server in servers {
        within(PATIENCE, "it is told", || {
            Http::connect(server.http).check_body(&hurried("203.0.113.9", timeout_ms));
            server.readiness() == "degraded"
        });
        server.until_ready();
    }
}

fn decided_by_fallback(server: &Tidegate) -> u64 {
    server.metric_with("tidegate_decisions_total", "decided_by=\"fallback\"")
}
