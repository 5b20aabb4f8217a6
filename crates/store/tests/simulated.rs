//! The simulated Redis keeps the contract of every store, and agrees with every timeline: what the simulator finds is not
//! its own doing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test fails loudly, and says how much it tried"
)]

mod support;

use std::sync::{Arc, Mutex};
use support::timelines;
use tidegate_core::Timestamp;
use tidegate_store::testing::{Carried, Network, Reply, Request, Rig, SimulatedRedis, conformance};
use tidegate_store::{Clock, Redis, RedisSettings, Secret};

/// A network without faults.
#[derive(Debug, Default)]
struct Direct(Mutex<SimulatedRedis>);

impl Network for Direct {
    fn connect(&self) -> Carried<u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn carry(&self, _connection: u64, request: Arc<Request>) -> Carried<Reply> {
        let (reply, _) = self.0.lock().unwrap().execute(Timestamp::EPOCH, &request);
        Box::pin(std::future::ready(Ok(reply)))
    }
}

async fn rig(servers: usize) -> Rig<Redis> {
    let settings = RedisSettings::new("redis://simulated/");
    let clock = Clock::manual(Timestamp::EPOCH);
    let network: Arc<dyn Network> = Arc::new(Direct::default());
    let networks = vec![network; servers];
    let store = Redis::simulated(&settings, &Secret::new([7; 32]), clock, networks).await.unwrap();
    Rig { store, set_time: Box::new(|store: &Redis, now| store.set_test_time(now)) }
}

#[tokio::test]
async fn it_keeps_the_contract() {
    assert!(conformance(async || rig(1).await).await >= 22);
}

#[tokio::test]
async fn several_servers_keep_the_contract() {
    assert!(conformance(async || rig(3).await).await >= 22);
}

#[tokio::test]
async fn it_agrees_with_every_timeline_that_redis_supports() {
    let played = timelines::play_all(async || rig(1).await, 1_000).await;
    assert!(played >= 200, "only {played} timelines");
}
