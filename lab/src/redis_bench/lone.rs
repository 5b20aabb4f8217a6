//! The latency of one take when nothing else happens, against the plain bucket called by the same client library.

#![expect(clippy::disallowed_methods, reason = "a load generator measures time")]

use super::raw::PlainBucket;
use super::server::{Engine, RedisServer};
use super::tasks::{self, KEYS};
use super::{connected, limit, settings};
use crate::rig::LoadOptions;
use crate::rig::tally::Tally;
use crate::rig::template::Keys;
use crate::rounds::{Comparison, median};
use std::time::{Duration, Instant};
use tidegate_core::Algorithm;
use tokio::time::{MissedTickBehavior, interval};

const CASE: &str = "redis-lone";
const EVERY: Duration = Duration::from_millis(1);
const QUANTILES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

pub(crate) async fn rows(options: &LoadOptions) -> Result<Vec<String>, String> {
    if !format!("{CASE}-p50-p99").contains(&options.only) {
        return Ok(Vec::new());
    }
    let server = RedisServer::start(Engine::Redis).await?;
    let store = connected(settings(server.address())).await?;
    let limits = [limit(100, Algorithm::TOKEN_BUCKET)?];
    let bucket = PlainBucket::load(&server).await?;
    let length = Duration::from_secs(options.seconds);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for seed in 0..u32::try_from(options.rounds).unwrap_or(u32::MAX) {
        let (mut our_keys, mut their_keys) = (Keys::new(KEYS, seed), Keys::new(KEYS, seed));
        let take = async || {
            tasks::take(&*store, &limits, tasks::random_state(&mut our_keys)).await.map(drop)
        };
        ours.push(timed(length, take).await?);
        let take =
            async || bucket.take(&server, &format!("l:{}", their_keys.draw())).await.map(drop);
        theirs.push(timed(length, take).await?);
    }
    let mut rows = Vec::new();
    for (name, quantile) in QUANTILES {
        let middle =
            |rounds: &[Tally]| median(rounds.iter().map(|round| round.micros(quantile)).collect());
        let (case, peer_name, unit) = (&format!("{CASE}-{name}"), "plain", "µs");
        let (ours, peer) = (middle(&ours), middle(&theirs));
        let row = Comparison { bench: "redis", case, ours, peer, peer_name, unit };
        rows.push(row.print(options.json));
    }
    Ok(rows)
}

/// Takes once every millisecond.
async fn timed(
    length: Duration,
    mut take: impl AsyncFnMut() -> Result<(), String>,
) -> Result<Tally, String> {
    let (mut tally, start, mut ticks) = (Tally::new()?, Instant::now(), interval(EVERY));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while start.elapsed() < length {
        ticks.tick().await;
        let sent = Instant::now();
        take().await?;
        tally.note(1, 0, sent.elapsed());
    }
    Ok(tally)
}
