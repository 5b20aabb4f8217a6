//! One busy key on several nodes, with leases: how much passes, and how many calls the store gets.
//!
//! The nodes run the real store over a simulated server, in virtual time. The same requests go to an exact limiter that answers
//! at once. Requests are made once a millisecond, the resolution of the timers; a call takes one millisecond.

use crate::history::EPOCH;
use crate::names::secret;
use crate::random::Random;
use crate::timers;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_core::{
    Ask, Cost, Freshness, LeaseTerms, Limit, Now, Plan, Span, StateId, Take, Timestamp, Written,
};
use tidegate_store::testing::{
    Network, NetworkFuture, SimulatedRedis, SimulatedReply, SimulatedRequest,
};
use tidegate_store::{Clock, Redis, RedisSettings, Store as _};
use tokio::time::Instant;

/// A limit and the requests to it.
#[derive(Clone, Debug)]
pub struct Load {
    /// The limit.
    pub limit: Limit,
    /// How it is leased; `None` if each request is decided by the store.
    pub terms: Option<LeaseTerms>,
    /// How many requests each node gets in a second.
    pub requests: Vec<u64>,
    /// How long they come, in milliseconds.
    pub millis: u64,
    /// The seed of what is random: which requests come in which millisecond.
    pub seed: u64,
}

/// What became of the requests.
#[derive(Clone, Debug, Default)]
pub struct LoadResult {
    /// How many requests each node got.
    pub asked: Vec<u64>,
    /// How many of them passed.
    pub passed: Vec<u64>,
    /// How many an exact limiter lets pass.
    pub exact: u64,
    /// How many calls the store got: takes, asks and what was given back.
    pub calls: u64,
    /// How many of them were asks.
    pub asks: u64,
}

/// A server, and how many calls it got.
#[derive(Debug)]
struct CountingServer {
    server: Mutex<SimulatedRedis>,
    start: Instant,
    calls: AtomicU64,
    asks: AtomicU64,
}

/// The way to it, which takes a millisecond.
#[derive(Debug)]
struct SlowWire(Arc<CountingServer>);

/// Before requests come, nodes have counted each other.
const BEFORE: Duration = Duration::from_millis(2_500);

impl Network for SlowWire {
    fn connect(&self) -> NetworkFuture<u64> {
        Box::pin(std::future::ready(Ok(0)))
    }

    fn carry(
        &self,
        _connection: u64,
        request: Arc<SimulatedRequest>,
    ) -> NetworkFuture<SimulatedReply> {
        let server = Arc::clone(&self.0);
        Box::pin(async move {
            timers::sleep(Duration::from_millis(1)).await;
            let now = since(server.start);
            match request.name() {
                "take" if !request.is_canary() => server.calls.fetch_add(1, Ordering::Relaxed),
                "grant" => {
                    server.calls.fetch_add(1, Ordering::Relaxed);
                    server.asks.fetch_add(1, Ordering::Relaxed)
                }
                "give_back" => server.calls.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
            Ok(server.server.lock().unwrap().execute(now, &request).0)
        })
    }
}

fn since(start: Instant) -> Timestamp {
    EPOCH.after(Span::from_nanos(u64::try_from(timers::since(start).as_nanos()).unwrap())).unwrap()
}

/// Plays a load.
#[must_use]
pub fn play_load(load: &Load) -> LoadResult {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let result = runtime.block_on(play(Arc::new(load.clone())));
    runtime.shutdown_background();
    result
}

async fn play(load: Arc<Load>) -> LoadResult {
    let start = timers::now();
    let server = Arc::new(CountingServer {
        server: Mutex::default(),
        start,
        calls: AtomicU64::new(0),
        asks: AtomicU64::new(0),
    });
    let mut nodes = Vec::new();
    for _ in &load.requests {
        let clock = Clock::borrowed(move || Now::at(since(start)));
        let wire: Arc<dyn Network> = Arc::new(SlowWire(Arc::clone(&server)));
        let settings = RedisSettings::new("redis://simulated/");
        let store = Redis::simulated(&settings, &secret(), clock, vec![wire]).await;
        nodes.push(Arc::new(store.expect("a store")));
    }
    timers::sleep(BEFORE).await;
    let (before, asks) =
        (server.calls.load(Ordering::Relaxed), server.asks.load(Ordering::Relaxed));
    let passed: Arc<[AtomicU64]> = nodes.iter().map(|_| AtomicU64::new(0)).collect();
    let mut result = LoadResult { asked: vec![0; nodes.len()], ..LoadResult::default() };
    let mut exact = Written::empty(&load.limit);
    let mut random = Random::new(load.seed);
    for _ in 0..load.millis {
        timers::sleep(Duration::from_millis(1)).await;
        for (number, per_second) in load.requests.iter().enumerate() {
            for _ in 0..arrivals(&mut random, *per_second) {
                result.asked[number] += 1;
                let ask = Ask::new(since(start), Cost::ONE);
                result.exact += u64::from(load.limit.take(&mut exact, &ask).decision.passes());
                let (load, store) = (Arc::clone(&load), Arc::clone(&nodes[number]));
                let passed = Arc::clone(&passed);
                tokio::spawn(async move {
                    let freshness = load.terms.as_ref().map_or(Freshness::Exact, Freshness::Lease);
                    let take = Take { freshness, ..Take::new(StateId(7), &load.limit, Cost::ONE) };
                    let answer = store.take_one(&Plan::from(take)).await.expect("an answer");
                    passed[number].fetch_add(u64::from(answer.done.passes), Ordering::Relaxed);
                });
            }
        }
    }
    timers::sleep(Duration::from_millis(20)).await;
    result.calls = server.calls.load(Ordering::Relaxed) - before;
    result.asks = server.asks.load(Ordering::Relaxed) - asks;
    result.passed = passed.iter().map(|passed| passed.load(Ordering::Relaxed)).collect();
    result
}

/// How many requests come in one millisecond: half of them regularly, half of them at random.
fn arrivals(random: &mut Random, per_second: u64) -> u64 {
    let (whole, rest) = (per_second / 1_000, per_second % 1_000);
    let certain = whole / 2;
    let more = random.within(0, 2 * (whole - certain));
    certain + more + u64::from(random.happens(rest))
}
