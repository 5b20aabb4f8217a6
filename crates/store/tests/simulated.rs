//! The simulated Redis keeps the contract of every store and agrees with every timeline, so the bugs that the simulator finds are
//! not bugs of the simulation. Also: tests that are easier with it than with a real server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test fails loudly, and says how much it tried"
)]

use crate::support;

use std::sync::{Arc, Mutex};
use support::{settings, timelines};
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take, Timestamp};
use tidegate_store::testing::{
    Declared, Network, NetworkFuture, Rig, SimulatedRedis, SimulatedReply, SimulatedRequest,
    conformance,
};
use tidegate_store::{Clock, Redis, RedisSettings, Secret, Store as _};
use tokio::sync::watch;

/// A network without faults.
#[derive(Debug, Default)]
struct Direct(Mutex<SimulatedRedis>);

impl Network for Direct {
    fn connect(&self) -> NetworkFuture<u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn carry(
        &self,
        _connection: u64,
        request: Arc<SimulatedRequest>,
    ) -> NetworkFuture<SimulatedReply> {
        let (reply, _) = self.0.lock().unwrap().execute(Timestamp::EPOCH, &request);
        Box::pin(std::future::ready(Ok(reply)))
    }
}

async fn rig(servers: usize) -> Rig<Redis> {
    let settings = settings::redis("redis://simulated/");
    let clock = Clock::manual(Timestamp::EPOCH);
    let network: Arc<dyn Network> = Arc::new(Direct::default());
    let networks = vec![network; servers];
    let store = Redis::simulated(&settings, &Secret::new([7; 32]), clock, networks).await.unwrap();
    Rig {
        store,
        set_time: Box::new(|store: &Redis, now| store.set_test_time(now)),
        declared: Declared::default(),
    }
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

/// A network that can hold back replies. Requests are executed immediately.
#[derive(Debug)]
struct HoldingReplies {
    server: Mutex<SimulatedRedis>,
    held: watch::Sender<bool>,
}

impl Network for HoldingReplies {
    fn connect(&self) -> NetworkFuture<u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn carry(
        &self,
        _connection: u64,
        request: Arc<SimulatedRequest>,
    ) -> NetworkFuture<SimulatedReply> {
        let (reply, _) = self.server.lock().unwrap().execute(Timestamp::EPOCH, &request);
        let mut held = self.held.subscribe();
        Box::pin(async move {
            let _ = held.wait_for(|held| !held).await;
            Ok(reply)
        })
    }
}

/// A caller may have its own deadline, and drop the future when it passes. By then the store has counted.
#[tokio::test(start_paused = true)]
async fn what_a_dropped_caller_took_is_given_back() {
    let server = Mutex::default();
    let network = Arc::new(HoldingReplies { server, held: watch::channel(false).0 });
    let settings =
        RedisSettings { timeout: Span::from_secs(3_600), ..settings::redis("redis://simulated/") };
    let (secret, clock) = (Secret::new([7; 32]), Clock::manual(Timestamp::EPOCH));
    let wire: Vec<Arc<dyn Network>> = vec![Arc::<HoldingReplies>::clone(&network)];
    let store = Redis::simulated(&settings, &secret, clock, wire).await.unwrap();
    let limit = Limit::new(10, Span::from_secs(86_400), Algorithm::FIXED_WINDOW).unwrap();
    let take = Take::new(StateId(1), &limit, Cost::new(3));
    let plan = [Plan::new(vec![take], Span::ZERO).unwrap()];
    network.held.send_replace(true);
    {
        let mut taking = std::pin::pin!(store.take(&plan));
        let pending = std::future::poll_fn(|context| {
            std::task::Poll::Ready(taking.as_mut().poll(context).is_pending())
        });
        assert!(pending.await, "there is no reply yet");
    }
    network.held.send_replace(false);
    let left = async || store.peek(&plan[0]).await.unwrap()[0].remaining;
    assert_eq!(left().await, 7, "it was counted");
    for _ in 0..1_000 {
        if left().await == 10 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{} are left of 10", left().await);
}
