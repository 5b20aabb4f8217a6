//! The store on Redis against a token bucket as people write it for Redis.
//!
//! ```text
//! ours    64 tasks ─► Redis::take ─► one connection ─► FCALL: up to 32 plans ─► complete answers, computed by the core
//! plain   redis-benchmark ─────────► 64 in flight ───► EVALSHA bucket.lua ────► bytes that are discarded
//! ```
//!
//! The peer computes nothing and reads no clock, so its rate is the most that its script can do on this machine. The
//! rate depends on how its 64 commands in flight are spread over connections, so it runs in three
//! configurations; compare tidegate with the fastest. Both clients have one thread. They share one server,
//! which therefore is never stopped.

mod raw;
mod server;
mod tasks;

use crate::rig::{self, LoadOptions, install};
use crate::rounds::{Comparison, median, print_range, write_section};
use raw::{PlainBucket, RawBenchmark};
use server::{CommandCounts, RedisServer};
use std::sync::Arc;
use std::time::Duration;
use tasks::TakeTally;
use tidegate_core::{Algorithm, Limit, Span};
use tidegate_store::{Redis, RedisSettings, Secret};

/// The configurations of the peer. Each has 64 commands in flight, and keys of its own, so that all of them
/// find keys of the same age.
const PEERS: [RawBenchmark; 3] = [
    RawBenchmark { name: "plain-64c", connections: 64, depth: 1, mark: 'a' },
    RawBenchmark { name: "plain-8c-8p", connections: 8, depth: 8, mark: 'b' },
    RawBenchmark { name: "plain-1c-64p", connections: 1, depth: 64, mark: 'c' },
];

const TAKE: &str = "redis-take-64t";
/// How long a take occupies Redis.
const ENGINE: &str = "redis-take-64t-engine";
/// With the denial cache, and without it.
const REFUSED: [(&str, bool); 2] =
    [("redis-refused-10000", true), ("redis-refused-10000-always-asked", false)];
/// The interval between two requests for the refused key, and the length of the measurement.
const REFUSED_APART: Duration = Duration::from_micros(100);
const REFUSED_FOR: Duration = Duration::from_secs(5);

const TITLE: &str = "The store on Redis";
const TEXT: &str = "\
The store, and a token bucket as people write it for Redis: one `redis-server` that writes no files, one client thread,
a million keys in random order.

- `redis-take-64t`: 64 concurrent tasks each take 1 from a token bucket of 100 per day. Nothing is refused. The peer is
  `redis-benchmark` with a bucket of twelve lines of Lua (`EVALSHA`) and 64 commands in flight: on 64 connections with one
  command each (`64c`), on 8 connections with 8 each (`8c-8p`), or on one connection with 64 (`1c-64p`). The peer only
  discards the replies, so its rate is the most that such a script can do on this machine.
- `-engine` is how long Redis works on a take, by its own count.
- `redis-refused-10000`: one key whose limit is used up is requested 10,000 times a second. The left figure is the
  number of script calls that Redis counts per second, one of which is the store's health check. The right figure is the
  number of requests per second. The first row is with the denial cache, the second (`always-asked`) without it. Here a
  small ratio is good: it is the share of the requests that reach Redis.";

pub(crate) fn run(options: &LoadOptions) -> Result<(), String> {
    install::provide("redis-server", "redis-server")?;
    install::provide("redis-benchmark", "redis-tools")?;
    let rows = rig::run(measured(options))?;
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

async fn measured(options: &LoadOptions) -> Result<Vec<String>, String> {
    let mut rows = Vec::new();
    if ENGINE.contains(&options.only) {
        rows.extend(take_rows(options).await?);
    }
    for (case, remember) in REFUSED.into_iter().filter(|(case, _)| case.contains(&options.only)) {
        let (ours, peer) = refused(remember).await?;
        let row = Comparison { bench: "redis", case, ours, peer, peer_name: "asked", unit: "1/s" };
        rows.push(row.print(options.json));
    }
    Ok(rows)
}

// === takes ===

async fn take_rows(options: &LoadOptions) -> Result<Vec<String>, String> {
    let (ours, peers) = rounds(options).await?;
    let mut rows = Vec::new();
    let figures: [TakeFigure; 2] =
        [(TAKE, "1/s", |round| round.rate), (ENGINE, "µs", |round| round.micros)];
    for (case, unit, value) in figures {
        let values = |rounds: &[TakeRound]| rounds.iter().map(value).collect::<Vec<f64>>();
        if !options.json {
            print_range("tidegate", &values(&ours), unit);
            let named = PEERS.iter().zip(&peers);
            named.for_each(|(peer, rounds)| print_range(peer.name, &values(rounds), unit));
        }
        for (peer, rounds) in PEERS.iter().zip(&peers) {
            let (ours, peer_name, peer) =
                (median(values(&ours)), peer.name, median(values(rounds)));
            let row = Comparison { bench: "redis", case, ours, peer, peer_name, unit };
            rows.push(row.print(options.json));
        }
    }
    Ok(rows)
}

/// A figure of a round: its name, its unit, and its value.
type TakeFigure = (&'static str, &'static str, fn(&TakeRound) -> f64);

/// One round of tidegate or of a peer.
struct TakeRound {
    /// Takes per second.
    rate: f64,
    /// How long a take occupied Redis, in microseconds.
    micros: f64,
}

/// The rounds of tidegate and of each configuration of the peer, without the first one, which is for warming up.
async fn rounds(options: &LoadOptions) -> Result<(Vec<TakeRound>, [Vec<TakeRound>; 3]), String> {
    let mut rounds = TakeRounds::start(Duration::from_secs(options.seconds)).await?;
    let (mut ours, mut theirs) = (Vec::new(), PEERS.map(|_| Vec::new()));
    let last = u32::try_from(options.rounds).map_err(|error| error.to_string())?;
    for round in 0..=last {
        let (our_round, peer_rounds) = rounds.run(round).await?;
        if round > 0 {
            ours.push(our_round);
            theirs.iter_mut().zip(peer_rounds).for_each(|(rounds, round)| rounds.push(round));
        }
    }
    Ok((ours, theirs))
}

/// What the rounds share.
struct TakeRounds {
    server: RedisServer,
    store: Arc<Redis>,
    limit: Arc<Limit>,
    bucket: PlainBucket,
    /// How long a round lasts.
    length: Duration,
    /// How many commands each configuration of the peer sends in its next round. A round of the peer is a number of
    /// commands, so each round determines that number for the next one.
    commands: [u64; 3],
}

impl TakeRounds {
    async fn start(length: Duration) -> Result<Self, String> {
        let server = RedisServer::start().await?;
        // Long enough that a busy machine leads to a low rate and not to an error.
        let timeout = Span::from_secs(1);
        let settings = RedisSettings { timeout, ..RedisSettings::new(&server.url()) };
        let (store, limit) = (connected(settings).await?, Arc::new(limit(100)?));
        let bucket = PlainBucket::load(&server).await?;
        let commands = PEERS.map(|_| raw::FIRST);
        Ok(Self { server, store, limit, bucket, length, commands })
    }

    /// One round of tidegate and of each configuration of the peer.
    async fn run(&mut self, round: u32) -> Result<(TakeRound, Vec<TakeRound>), String> {
        let Self { server, store, limit, bucket, length, commands } = self;
        let before = server.counts().await?;
        let TakeTally { passed, rate, .. } = tasks::closed(store, limit, round, *length).await?;
        let micros = server.counts().await?.micros_per_take(before, passed)?;
        let (ours, mut peer_rounds) = (TakeRound { rate, micros }, Vec::new());
        for (peer, commands) in PEERS.iter().zip(commands) {
            let before = server.counts().await?;
            let rate = peer.rate(bucket, server, *commands).await?;
            let micros = server.counts().await?.micros_per_take(before, *commands)?;
            *commands = raw::commands(rate, *length);
            peer_rounds.push(TakeRound { rate, micros });
        }
        Ok((ours, peer_rounds))
    }
}

// === refusals ===

/// The script calls per second that Redis sees, and the requests per second.
async fn refused(remember_refusals: bool) -> Result<(f64, f64), String> {
    let server = RedisServer::start().await?;
    let settings = RedisSettings { remember_refusals, ..RedisSettings::new(&server.url()) };
    let store = connected(settings).await?;
    let limit = Arc::new(limit(1)?);
    tasks::used_up(&store, &limit).await?;
    let before = server.counts().await?;
    let asked = tasks::open(&store, &limit, REFUSED_APART, REFUSED_FOR).await?;
    let CommandCounts { calls, .. } = server.counts().await?.since(before);
    Ok((asked.per_second_of(calls), asked.rate))
}

// === shared ===

async fn connected(settings: RedisSettings) -> Result<Arc<Redis>, String> {
    let store = Redis::connect(&settings, &Secret::new([7; 32])).await;
    store.map(Arc::new).map_err(|error| error.to_string())
}

/// A limit of `amount` per day: within the experiment nothing is refilled and nothing expires.
fn limit(amount: u64) -> Result<Limit, String> {
    let limit = Limit::new(amount, Span::from_secs(86_400), Algorithm::TOKEN_BUCKET);
    limit.map_err(|error| error.to_string())
}
