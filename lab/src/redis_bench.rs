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
//!
//! | module | question |
//! |---|---|
//! | `saturated` | how many takes a second, and what does each cost the server and the node? |
//! | `kinds` | how long does a take of each algorithm occupy the server, alone and together with others? |
//! | `lone` | how long does a take last when nothing else happens? |
//! | `distance` | does a round trip of a millisecond cost throughput? |
//! | `bystander` | how long do other clients of the server wait meanwhile? |
//! | `primaries` | what does a take cost in a cluster, where only plans of one slot share a call? |

mod bystander;
mod distance;
mod kinds;
mod lone;
mod primaries;
mod raw;
mod saturated;
pub(crate) mod server;
pub(crate) mod tasks;

use crate::rig::{self, LoadOptions, install};
use crate::rounds::{Comparison, write_section};
use crate::say;
use server::{CommandCounts, Engine, RedisServer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Algorithm, Limit, Span};
use tidegate_store::{Redis, RedisSettings, Secret};

/// A key that is always refused: with the denial cache, and without it.
const REFUSED: [(&str, bool); 2] =
    [("redis-refused-10000", true), ("redis-refused-10000-always-asked", false)];
/// The interval between two requests for the refused key, and the length of the measurement.
const REFUSED_APART: Duration = Duration::from_micros(100);
const REFUSED_FOR: Duration = Duration::from_secs(5);

const TITLE: &str = "The store on Redis";
const TEXT: &str = "\
The store, and a token bucket as people write it for Redis: one `redis-server` (or `valkey-server`) that writes no files, one
client thread, a million keys in random order.

- `redis-take-64t`: 64 concurrent tasks each take 1 from a token bucket of 100 per day. Nothing is refused. The peer is
  `redis-benchmark` with a bucket of twelve lines of Lua (`EVALSHA`) and 64 commands in flight: on 64 connections with one
  command each (`64c`), on 8 connections with 8 each (`8c-8p`), or on one connection with 64 (`1c-64p`). The peer only
  discards the replies, so its rate is the most that such a script can do on this machine. `incr` is a plain INCR instead of
  the script, on 8 connections.
- `-engine` is how long Redis works on a take, by its own count. `-client` is the processor time of the node for a take.
- `redis-alone-…` and `redis-batch-…` are the same engine time for each algorithm: of a take in a call of its own, and of takes
  of 64 tasks, which share calls. `two` is a plan with two limits. The peer is the plain bucket, on one connection.
- `redis-lone`: one take every millisecond, against the plain bucket called in the same way by the same client library.
- `redis-1ms`: 1,024 tasks, with a relay that adds a millisecond to the round trip, against the same relay without delay.
- `redis-bystander`: the latency of another client's `GET`, 1,000 a second, while 64 tasks take without pause, against what
  `redis-benchmark` with the plain bucket on 64 connections causes.
- `redis-3-primaries`: the 64 tasks on a cluster of three primaries, against one server. Here only plans of the same slot share
  a call. `-cpu` is the processor time of all servers for a take. All of them share the two cores, so the rates say little.
- `redis-refused-10000`: one key whose limit is used up is requested 10,000 times a second. The left figure is the
  number of script calls that Redis counts per second, one of which is the store's health check. The right figure is the
  number of requests per second. The first row is with the denial cache, the second (`always-asked`) without it; then
  requests that wait share calls. Here a small ratio is good.";

pub(crate) fn run(options: &LoadOptions) -> Result<(), String> {
    install::provide("redis-server", "redis-server")?;
    install::provide("redis-benchmark", "redis-tools")?;
    let rows = rig::run(measured(options))?;
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

async fn measured(options: &LoadOptions) -> Result<Vec<String>, String> {
    let mut rows = Vec::new();
    for engine in [Engine::Redis, Engine::Valkey] {
        if engine == Engine::Valkey && !engine.program().exists() {
            say("there is no Valkey; `make deps` installs it");
            continue;
        }
        rows.extend(saturated::rows(engine, options).await?);
        rows.extend(kinds::rows(engine, options).await?);
    }
    rows.extend(lone::rows(options).await?);
    rows.extend(distance::rows(options).await?);
    rows.extend(bystander::rows(options).await?);
    rows.extend(primaries::rows(options).await?);
    for (case, remember) in REFUSED.into_iter().filter(|(case, _)| case.contains(&options.only)) {
        let (ours, peer) = refused(remember).await?;
        let row = Comparison { bench: "redis", case, ours, peer, peer_name: "asked", unit: "1/s" };
        rows.push(row.print(options.json));
    }
    Ok(rows)
}

/// The script calls per second that Redis sees, and the requests per second.
async fn refused(remember_refusals: bool) -> Result<(f64, f64), String> {
    let server = RedisServer::start(Engine::Redis).await?;
    let settings = RedisSettings { remember_refusals, ..settings(server.address()) };
    let store = connected(settings).await?;
    let limits = Arc::from([limit(1, Algorithm::TOKEN_BUCKET)?]);
    tasks::used_up(&store, &limits).await?;
    let before = server.counts().await?;
    let asked = tasks::open(&store, &limits, REFUSED_APART, REFUSED_FOR).await?;
    let CommandCounts { calls, .. } = server.counts().await?.since(before);
    Ok((asked.per_second_of(calls), asked.rate))
}

// === shared ===

/// The settings of a store. The timeout is so long that a busy machine leads to a low rate and not to an error.
pub(crate) fn settings(server: SocketAddr) -> RedisSettings {
    RedisSettings { timeout: Span::from_secs(1), ..RedisSettings::new(&server::url(server)) }
}

pub(crate) async fn connected(settings: RedisSettings) -> Result<Arc<Redis>, String> {
    let store = Redis::connect(&settings, &Secret::new([7; 32])).await;
    store.map(Arc::new).map_err(|error| error.to_string())
}

/// A limit of `amount` per day: within the experiment nothing is refilled and nothing expires.
pub(crate) fn limit(amount: u64, algorithm: Algorithm) -> Result<Limit, String> {
    let limit = Limit::new(amount, Span::from_secs(86_400), algorithm);
    limit.map_err(|error| error.to_string())
}
