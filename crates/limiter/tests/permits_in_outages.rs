//! Concurrency limits on a simulated Redis that goes away, comes back and loses its data, in virtual time. While a request runs, its
//! permit is counted somewhere.
//!
//! ```text
//!   3 nodes, each with requests of 60 s ──► Line: cut by the test ──► one simulated Redis
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test fails loudly, and its instants come from the paused clock of the runtime"
)]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::{
    Attributes, Check, Clock, DecidedBy, Limiter, Permit, Policy, Secret, Span, Timestamp,
};
use tidegate_store::testing::{
    Network, NetworkFuture, SimulatedRedis, SimulatedReply, SimulatedRequest,
};
use tidegate_store::{Redis, RedisSettings};
use tokio::sync::watch;
use tokio::time::{Instant, sleep as virtual_time_passes};

const START: u64 = 1_000_000_000_000;
/// The limit, the nodes, and the share of each.
const LIMIT: usize = 6;
const NODES: usize = 3;
const SHARE: usize = 2;
const LEASE: Duration = Duration::from_secs(3);
/// How long each request runs.
const RUNS: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(100);

fn paused_clock() -> Clock {
    let start = Instant::now();
    Clock::borrowed(move || {
        let passed = u64::try_from(start.elapsed().as_nanos()).unwrap();
        tidegate_core::Now::at(Timestamp::from_nanos(START + passed))
    })
}

/// The way of one node to the server.
#[derive(Debug)]
struct Line {
    server: Arc<Mutex<SimulatedRedis>>,
    clock: Clock,
    is_cut: watch::Sender<bool>,
}

impl Line {
    fn new(server: &Arc<Mutex<SimulatedRedis>>, clock: &Clock) -> Self {
        let is_cut = watch::channel(false).0;
        Self { server: Arc::clone(server), clock: clock.clone(), is_cut }
    }

    fn refused(&self) -> Option<io::Error> {
        self.is_cut.borrow().then(|| io::ErrorKind::ConnectionRefused.into())
    }
}

impl Network for Line {
    fn connect(&self) -> NetworkFuture<u64> {
        Box::pin(std::future::ready(self.refused().map_or(Ok(0), Err)))
    }

    fn carry(
        &self,
        _connection: u64,
        request: Arc<SimulatedRequest>,
    ) -> NetworkFuture<SimulatedReply> {
        if let Some(error) = self.refused() {
            return Box::pin(std::future::ready(Err(error)));
        }
        let (reply, _) = self.server.lock().unwrap().execute(self.clock.now().steady, &request);
        Box::pin(std::future::ready(Ok(reply)))
    }
}

/// A limiter on one server, or on several that divide the states.
async fn limiter_over(lines: &[Arc<Line>], clock: &Clock, rules: &str) -> Limiter<Redis> {
    let settings = RedisSettings {
        nodes: Some(u32::try_from(NODES).unwrap()),
        timeout: Span::from_secs(5),
        ..RedisSettings::new("redis://simulated/")
    };
    let secret = Secret::new([7; 32]);
    let networks = lines.iter().map(|line| -> Arc<dyn Network> { Arc::<Line>::clone(line) });
    let store = Redis::simulated(&settings, &secret, clock.clone(), networks.collect()).await;
    let policy = Policy::parse(format!("{{ version: 1, rules: {rules} }}")).unwrap();
    Limiter::new(policy, store.unwrap(), secret, clock.clone()).unwrap()
}

struct Node {
    limiter: Limiter<Redis>,
    /// To the only server, or the first of several.
    line: Arc<Line>,
    running: Vec<(Permit<Redis>, Instant)>,
}

impl Node {
    async fn new(server: &Arc<Mutex<SimulatedRedis>>, clock: &Clock, on_error: &str) -> Self {
        let line = Arc::new(Line::new(server, clock));
        let rules = format!(
            "[{{ name: jobs, key: [], limits: [{{ concurrent: {LIMIT}, lease: 3s }}], on_store_error: {on_error} }}]"
        );
        let limiter = limiter_over(&[Arc::clone(&line)], clock, &rules).await;
        Self { limiter, line, running: vec![] }
    }

    /// Asks for a permit, and holds it. Who granted it, if it was granted.
    async fn take(&mut self) -> Option<DecidedBy> {
        let mut verdict = self.limiter.check(&Check::new(&Attributes::new())).await.unwrap();
        let permit = self.limiter.hold(&mut verdict)?;
        self.running.push((permit, Instant::now()));
        Some(verdict.decided_by)
    }
}

struct Deployment {
    server: Arc<Mutex<SimulatedRedis>>,
    nodes: Vec<Node>,
    most: usize,
    /// A single node is away at times. The store cannot know what that node grants meanwhile.
    some_away: bool,
}

impl Deployment {
    async fn new(on_error: &str) -> Self {
        let (server, clock) = (Arc::default(), paused_clock());
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(Node::new(&server, &clock, on_error).await);
        }
        Self { server, nodes, most: 0, some_away: false }
    }

    fn cut(&self, is_cut: bool) {
        self.nodes.iter().for_each(|node| _ = node.line.is_cut.send_replace(is_cut));
    }

    fn in_flight(&self) -> usize {
        self.nodes.iter().map(|node| node.running.len()).sum()
    }

    /// Lets this time pass. All nodes ask for permits all the time, and the store must grant none while as many requests run as the
    /// limit says.
    async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            for number in 0..NODES {
                let node = &mut self.nodes[number];
                node.running.retain(|(_, began)| began.elapsed() < RUNS);
                node.limiter.given_back().await;
                loop {
                    let before = self.in_flight();
                    let Some(by) = self.nodes[number].take().await else { break };
                    let by_store = by != DecidedBy::Fallback && !self.some_away;
                    assert!(!by_store || before < LIMIT, "{before} are running");
                }
            }
            self.most = self.most.max(self.in_flight());
            virtual_time_passes(STEP).await;
        }
    }
}

/// After each outage that was longer than the lease, another full limit ran: 6, 12, 18, 24, 30. They never fell.
#[tokio::test(start_paused = true)]
async fn four_outages_let_no_more_run_than_the_limit_and_the_shares() {
    for (on_error, ceiling) in [("local", LIMIT + NODES * SHARE), ("deny", LIMIT)] {
        let mut deployment = Deployment::new(on_error).await;
        deployment.pass(LEASE).await;
        assert_eq!(deployment.in_flight(), LIMIT);
        for outage in 1..=4 {
            deployment.cut(true);
            deployment.pass(LEASE * 2).await;
            deployment.cut(false);
            deployment.pass(LEASE * 2).await;
            assert!(deployment.most <= ceiling, "{on_error}, outage {outage}: {}", deployment.most);
        }
        // Later only the store decides, and as many run as the limit says.
        deployment.pass(RUNS * 2).await;
        assert_eq!((deployment.in_flight(), deployment.most), (LIMIT, ceiling), "{on_error}");
    }
}

/// The nodes lose the store one after another, and for less than a lease.
#[tokio::test(start_paused = true)]
async fn short_outages_of_single_nodes_let_no_more_run_than_the_limit_and_the_shares() {
    let mut deployment = Deployment::new("local").await;
    deployment.some_away = true;
    for round in 0..30 {
        let line = Arc::clone(&deployment.nodes[round % NODES].line);
        line.is_cut.send_replace(true);
        deployment.pass(LEASE / 2).await;
        line.is_cut.send_replace(false);
        deployment.pass(LEASE).await;
    }
    assert!(deployment.most <= LIMIT + NODES * SHARE, "{}", deployment.most);
    deployment.pass(RUNS * 2).await;
    assert_eq!(deployment.in_flight(), LIMIT);
}

/// The store cannot know what it has lost. But what ran before is counted again, so no third full limit passes.
#[tokio::test(start_paused = true)]
async fn when_the_store_loses_its_data_one_more_limit_passes_and_no_more() {
    let mut deployment = Deployment::new("local").await;
    deployment.pass(LEASE).await;
    deployment.server.lock().unwrap().lose_data();
    let mut passed = 0;
    for number in (0..NODES).cycle().take(10 * LIMIT) {
        passed += usize::from(deployment.nodes[number].take().await.is_some());
    }
    assert_eq!(passed, LIMIT, "the server is empty");
    deployment.pass(RUNS / 2).await;
    assert_eq!(deployment.most, 2 * LIMIT);
    deployment.pass(RUNS * 2).await;
    assert_eq!(deployment.in_flight(), LIMIT);
}

/// One of two servers is away. What the fallback counted beside the other server had no receipt, so the permits of such requests
/// were not held: after a lease they were free while the requests ran.
#[tokio::test(start_paused = true)]
async fn permits_are_held_also_if_only_a_part_of_the_store_is_away() {
    let clock = paused_clock();
    let lines = [(); 2].map(|()| Arc::new(Line::new(&Arc::default(), &clock)));
    let rules = "[{ name: jobs, key: [user], limits: [{ concurrent: 1, lease: 3s }] },
                  { name: all, key: [session], limits: [1000/h] }]";
    let limiter = limiter_over(&lines, &clock, rules).await;
    lines[0].is_cut.send_replace(true);
    let users: Vec<String> = (0..40).map(|number| format!("user {number}")).collect();
    let check = async |user: &str| {
        let session = format!("session of {user}");
        let user = Attributes::new().with("user", user.to_owned()).unwrap();
        let user = user.with("session", session).unwrap();
        limiter.check(&Check::new(&user)).await.unwrap()
    };
    let mut held = Vec::new();
    for user in &users {
        let mut verdict = check(user).await;
        held.push(limiter.hold(&mut verdict).unwrap_or_else(|| panic!("{user} holds nothing")));
    }
    virtual_time_passes(LEASE * 3).await;
    for user in &users {
        assert!(!check(user).await.allowed(), "the request of {user} is running");
    }
}

/// A permit that is dropped after it has moved, or while the store is away, is given back where it is counted.
#[tokio::test(start_paused = true)]
async fn permits_are_given_back_where_they_are_counted() {
    let mut deployment = Deployment::new("local").await;
    let free = async |node: &Node| {
        let nothing = Attributes::new();
        let peek = node.limiter.peek(&Check::new(&nothing).cost(0)).await.unwrap();
        peek.limits().next().unwrap().decision.remaining
    };
    for (take_while_cut, drop_while_cut) in [(true, true), (true, false), (false, true)] {
        deployment.cut(take_while_cut);
        virtual_time_passes(Duration::from_millis(10)).await;
        assert!(deployment.nodes[0].take().await.is_some());
        virtual_time_passes(LEASE * 2).await;
        deployment.cut(drop_while_cut);
        virtual_time_passes(LEASE * 2).await;
        deployment.nodes[0].running.clear();
        deployment.nodes[0].limiter.given_back().await;
        deployment.cut(false);
        virtual_time_passes(LEASE * 2).await;
        let [first, second] = [&deployment.nodes[0], &deployment.nodes[1]];
        assert_eq!((free(first).await, free(second).await), (6, 6));
    }
}
