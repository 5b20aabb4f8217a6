//! Callers with a short `timeout_ms`, while the store is healthy and serves other callers.
//!
//! The bug this guards against: a server reset its local counters whenever the store answered any caller. So
//! a caller whose deadline was too short for the store got a fresh share each time: 900 of 900 requests
//! passed where the limit was 30. A deadline must not be a way around a limit: patient and hurried callers
//! together stay within the ceiling.

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
/// The limit, plus the local share of every server.
const CEILING: u64 = LIMIT + NODES * LIMIT.div_ceil(NODES);
/// Nine of ten requests are hurried: 900 of these.
const REQUESTS: u32 = 1_000;
/// With a long timeout a patient caller gets the store's answer even on a busy machine.
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];

/// Such a deadline leaves no time for the store, so it never counts these callers.
#[test]
fn a_deadline_too_short_for_the_store_does_not_bypass_a_limit() {
    let redis = Redis::start();
    let deployment = Deployment::new(RULE);
    let mut servers = deployment.servers(NODES, &redis.url(), &FLAGS);
    let _others = others(&servers);
    for timeout_ms in [1, 2] {
        play(&servers, timeout_ms);
    }
    servers.iter_mut().for_each(Tidegate::assert_healthy);
}

/// The store counts these callers, but its replies arrive after their deadline.
#[test]
fn a_reply_after_the_deadline_does_not_bypass_a_limit() {
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
    assert_reported(servers, &samples, timeout_ms);
}

/// The metrics show how many requests were decided without the store, and `/ready` says `degraded` while that
/// happens.
fn assert_reported(servers: &[Tidegate], samples: &Samples, timeout_ms: u32) {
    let counted: u64 = servers.iter().map(decided_by_fallback).sum();
    assert!(counted >= u64::try_from(samples.by(DecidedBy::Fallback)).unwrap(), "{counted}");
    for server in servers {
        within(PATIENCE, "the server is degraded", || {
            Http::connect(server.http).check_body(&hurried("203.0.113.9", timeout_ms));
            server.readiness() == "degraded"
        });
        server.until_ready();
    }
}

fn decided_by_fallback(server: &Tidegate) -> u64 {
    server.metric_with("tidegate_decisions_total", "decided_by=\"fallback\"")
}
