//! How long a take of each algorithm occupies the server, by its own count: in a call of its own, and in calls with others.

use super::raw::{self, PlainBucket, RawBenchmark, RawCommand};
use super::server::{Engine, RedisServer};
use super::tasks::{KEYS, TASKS, TakeLoad};
use super::{connected, limit, settings};
use crate::rig::LoadOptions;
use crate::rounds::{Comparison, median};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{Algorithm, Align, Limit};

const PEER: RawBenchmark = RawBenchmark {
    name: "plain-1c",
    connections: 1,
    depth: 1,
    mark: 'k',
    command: RawCommand::Bucket,
};

/// One kind of plan.
struct PlanKind {
    name: &'static str,
    limits: Arc<[Limit]>,
}

fn kinds() -> Result<[PlanKind; 5], String> {
    let buckets = Algorithm::SlidingBuckets { buckets: 10 };
    let window = Algorithm::FixedWindow { align: Align::Epoch };
    let kind = |name, algorithms: &[Algorithm]| {
        let limits = algorithms.iter().map(|algorithm| limit(1_000_000, *algorithm));
        Ok::<_, String>(PlanKind { name, limits: limits.collect::<Result<_, _>>()? })
    };
    Ok([
        kind("token-bucket", &[Algorithm::TOKEN_BUCKET])?,
        kind("fixed-window", &[window])?,
        kind("sliding-weighted", &[Algorithm::SlidingWeighted])?,
        kind("sliding-buckets", &[buckets])?,
        kind("two", &[Algorithm::TOKEN_BUCKET, window])?,
    ])
}

pub(crate) async fn rows(engine: Engine, options: &LoadOptions) -> Result<Vec<String>, String> {
    let case = |tasks: u32, kind: &PlanKind| {
        let way = if tasks == 1 { "alone" } else { "batch" };
        format!("{}-{way}-{}", engine.name(), kind.name)
    };
    let (mut rows, kinds) = (Vec::new(), kinds()?);
    for tasks in [1, TASKS] {
        for kind in kinds.iter().filter(|kind| case(tasks, kind).contains(&options.only)) {
            let (ours, peer) = measured(engine, kind, tasks, options).await?;
            let (case, peer_name) = (&case(tasks, kind), PEER.name);
            let row = Comparison { bench: "redis", case, ours, peer, peer_name, unit: "µs" };
            rows.push(row.print(options.json));
        }
    }
    Ok(rows)
}

/// The medians of tidegate and of the peer, in microseconds.
async fn measured(
    engine: Engine,
    kind: &PlanKind,
    tasks: u32,
    options: &LoadOptions,
) -> Result<(f64, f64), String> {
    let server = RedisServer::start(engine).await?;
    let store = connected(settings(server.address())).await?;
    let bucket = PlainBucket::load(&server).await?;
    let length = Duration::from_secs(options.seconds);
    let load = TakeLoad { store, keys: KEYS, limits: Arc::clone(&kind.limits), tasks, length };
    let (mut ours, mut theirs, mut commands) = (Vec::new(), Vec::new(), raw::FIRST);
    for round in 0..=u32::try_from(options.rounds).unwrap_or(u32::MAX) {
        let before = server.counts().await?;
        let tally = load.run(round).await?;
        let our_micros = server.counts().await?.micros_per_take(before, tally.passed)?;
        let before = server.counts().await?;
        let rate = PEER.rate(&bucket, &server, commands).await?;
        let their_micros = server.counts().await?.micros_per_take(before, commands)?;
        commands = raw::commands(rate, length);
        if round > 0 {
            ours.push(our_micros);
            theirs.push(their_micros);
        }
    }
    Ok((median(ours), median(theirs)))
}
