//! The store loses its data while two versions of a policy are in use: 70 and 100 per week for the same
//! users. With the data it loses the registry, which says under which limit a bucket was written.
//!
//! The bug this guards against: a server read a bucket of an unknown limit as one of its own, and cached
//! that. Of requests that alternated between the two versions 2,000 of 2,000 passed; in another run one of
//! the servers admitted nothing. Now a bucket whose limit is unknown counts as full, and the servers that use
//! a lost registry write it again.

use crate::support::crowd::{about, ask};
use crate::support::redis::Redis;
use crate::support::tidegate::{Deployment, Tidegate};
use crate::support::{PATIENCE, within};

const OLD: &str = "{ name: all, key: [ip], limits: [{ rate: 70/week, algorithm: token_bucket }] }";
const NEW: &str = "{ name: all, key: [ip], limits: [{ rate: 100/week, algorithm: token_bucket }] }";
/// Both versions together admit what the larger limit allows.
const LIMIT: u64 = 100;
const REQUESTS: u32 = 2_000;
/// With these flags every answer comes from the store, even on a busy machine.
const FLAGS: [&str; 4] = ["--redis-timeout", "10s", "--redis-denial-cache", "off"];
const USER: &str = "203.0.113.7";

struct VersionStage {
    redis: Redis,
    old: Deployment,
}

impl VersionStage {
    fn new() -> Self {
        Self { redis: Redis::start(), old: Deployment::new(OLD) }
    }

    /// A server with the first version of the policy.
    fn first(&self) -> Tidegate {
        started(&self.old, &self.redis)
    }

    /// A server with the second version of the policy.
    fn second(&self) -> Tidegate {
        started(&self.old.revised(NEW), &self.redis)
    }

    fn lose_data(&self) {
        let _: String = self.redis.tell(&["FLUSHALL"]);
    }
}

fn started(deployment: &Deployment, redis: &Redis) -> Tidegate {
    let server = deployment.server(&redis.url(), &FLAGS);
    server.until_ready();
    server
}

/// Alternates between two servers, and returns how many requests passed at each.
fn alternate(servers: &[Tidegate; 2]) -> [u64; 2] {
    let samples = ask(servers, REQUESTS, |_| about(USER));
    samples.assert_all_by_store();
    let passed =
        [0, 1].map(|server| samples.filter(|sample| sample.number % 2 == server).admitted());
    println!("versions: {passed:?} of {REQUESTS} passed");
    assert!(passed.iter().sum::<u64>() <= LIMIT, "{passed:?} passed, the limit is {LIMIT}");
    assert!(servers.iter().all(|server| server.readiness() == "ready"));
    passed
}

/// Neither server knows the limit of the other. Until the first one has noticed the loss, it writes buckets
/// that the second one cannot read. They count as full, which may refuse too much but never too little.
#[test]
fn versions_that_do_not_know_the_limits_of_each_other() {
    let stage = VersionStage::new();
    let servers = [stage.first(), stage.second()];
    for (server, ip) in servers.iter().zip(["198.51.100.1", "198.51.100.2"]) {
        assert!(server.check(&format!("\"ip\":\"{ip}\"")).is_admitted_by_store());
    }
    stage.lose_data();
    alternate(&servers);
}

/// The second version starts after the first has registered its limit again.
#[test]
fn a_version_that_starts_after_the_loss() {
    let stage = VersionStage::new();
    let first = stage.first();
    assert!(first.check(&format!("\"ip\":\"{USER}\"")).is_admitted_by_store());
    stage.lose_data();
    within(PATIENCE, "the limit is registered again", || {
        first.check("\"ip\":\"198.51.100.1\"");
        stage.redis.tell::<u64>(&["HLEN", "{tidegate}shapes"]) > 1
    });
    let passed = alternate(&[first, stage.second()]);
    assert!(passed.iter().all(|passed| *passed > 0), "{passed:?}");
}

/// Each server has read the limit of the other before the loss.
#[test]
fn versions_that_know_the_limits_of_each_other() {
    let stage = VersionStage::new();
    let servers = [stage.first(), stage.second()];
    for server in servers.iter().chain(&servers) {
        assert!(server.check(&format!("\"ip\":\"{USER}\"")).is_admitted_by_store());
    }
    stage.lose_data();
    let passed = alternate(&servers);
    assert!(passed.iter().all(|passed| *passed > 0), "{passed:?}");
}
