//! 64 tasks that take without pause: takes per second, and what a take costs the server and the node.

use super::raw::{self, PlainBucket, RawBenchmark, RawCommand};
use super::server::{Engine, RedisServer};
use super::tasks::{KEYS, TASKS, TakeLoad};
use super::{connected, limit, settings};
use crate::rig::LoadOptions;
use crate::rounds::{Comparison, median, print_range};
use crate::say;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::Algorithm;

/// The configurations of the peer. Each has 64 commands in flight, and keys of its own, so that all of them
/// find keys of the same age.
const PEERS: [RawBenchmark; 4] = [
    RawBenchmark {
        name: "plain-64c",
        connections: 64,
        depth: 1,
        mark: 'a',
        command: RawCommand::Bucket,
    },
    RawBenchmark {
        name: "plain-8c-8p",
        connections: 8,
        depth: 8,
        mark: 'b',
        command: RawCommand::Bucket,
    },
    RawBenchmark {
        name: "plain-1c-64p",
        connections: 1,
        depth: 64,
        mark: 'c',
        command: RawCommand::Bucket,
    },
    RawBenchmark { name: "incr", connections: 8, depth: 8, mark: 'd', command: RawCommand::Incr },
];

/// A figure of a round: the end of its name, its unit, and its value. `None` if the peer has no such figure.
type TakeFigure = (&'static str, &'static str, fn(&TakeRound) -> Option<f64>);
const FIGURES: [TakeFigure; 3] = [
    ("", "1/s", |round| Some(round.rate)),
    ("-engine", "µs", |round| round.engine_micros),
    ("-client", "µs", |round| round.client_micros),
];

/// One round of tidegate or of a peer.
struct TakeRound {
    /// Takes per second.
    rate: f64,
    /// How long a take occupied the server.
    engine_micros: Option<f64>,
    /// Processor time of the client for a take.
    client_micros: Option<f64>,
}

pub(crate) async fn rows(engine: Engine, options: &LoadOptions) -> Result<Vec<String>, String> {
    let case = format!("{}-take-64t", engine.name());
    if !format!("{case}-engine-client").contains(&options.only) {
        return Ok(Vec::new());
    }
    let (ours, peers) = rounds(engine, options).await?;
    let mut rows = Vec::new();
    for (suffix, unit, value) in FIGURES {
        let values = |rounds: &[TakeRound]| rounds.iter().filter_map(value).collect::<Vec<f64>>();
        let case = &format!("{case}{suffix}");
        let ours = values(&ours);
        if !options.json {
            print_range(&format!("tidegate{suffix}"), &ours, unit);
        }
        // The peers discard the replies, so the processor time of their client says nothing.
        if peers.iter().all(|rounds| values(rounds).is_empty()) {
            let ours = median(ours.clone());
            say(&if options.json {
                format!(
                    "{{\"bench\":\"redis\",\"case\":\"{case}\",\"ours\":{ours:.1},\"unit\":\"{unit}\"}}"
                )
            } else {
                format!("{case:28} {ours:>12.1} {unit}")
            });
            rows.push(format!("| {case} | {ours:.0} {unit} |  |  |  |\n"));
        }
        for (peer, rounds) in PEERS.iter().zip(&peers) {
            let theirs = values(rounds);
            if theirs.is_empty() {
                continue;
            }
            if !options.json {
                print_range(peer.name, &theirs, unit);
            }
            let (ours, peer_name, peer) = (median(ours.clone()), peer.name, median(theirs));
            let row = Comparison { bench: "redis", case, ours, peer, peer_name, unit };
            rows.push(row.print(options.json));
        }
    }
    Ok(rows)
}

/// The rounds of tidegate and of each configuration of the peer, without the first one, which is for warming up.
async fn rounds(
    engine: Engine,
    options: &LoadOptions,
) -> Result<(Vec<TakeRound>, [Vec<TakeRound>; 4]), String> {
    let mut rounds = TakeRounds::start(engine, Duration::from_secs(options.seconds)).await?;
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
    load: TakeLoad,
    bucket: PlainBucket,
    /// How many commands each configuration of the peer sends in its next round. A round of the peer is a number of
    /// commands, so each round determines that number for the next one.
    commands: [u64; 4],
}

impl TakeRounds {
    async fn start(engine: Engine, length: Duration) -> Result<Self, String> {
        let server = RedisServer::start(engine).await?;
        let store = connected(settings(server.address())).await?;
        let limits = Arc::from([limit(100, Algorithm::TOKEN_BUCKET)?]);
        let bucket = PlainBucket::load(&server).await?;
        let load = TakeLoad { store, keys: KEYS, limits, tasks: TASKS, length };
        Ok(Self { server, load, bucket, commands: PEERS.map(|_| raw::FIRST) })
    }

    /// One round of tidegate and of each configuration of the peer.
    async fn run(&mut self, round: u32) -> Result<(TakeRound, Vec<TakeRound>), String> {
        let Self { server, load, bucket, commands } = self;
        let before = server.counts().await?;
        let tally = load.run(round).await?;
        let engine_micros = Some(server.counts().await?.micros_per_take(before, tally.passed)?);
        let client_micros = Some(tally.cpu_micros);
        let ours = TakeRound { rate: tally.rate, engine_micros, client_micros };
        let mut peer_rounds = Vec::new();
        for (peer, commands) in PEERS.iter().zip(commands) {
            let before = server.counts().await?;
            let rate = peer.rate(bucket, server, *commands).await?;
            let engine_micros = match peer.command {
                RawCommand::Bucket => {
                    Some(server.counts().await?.micros_per_take(before, *commands)?)
                }
                RawCommand::Incr => None,
            };
            *commands = raw::commands(rate, load.length);
            peer_rounds.push(TakeRound { rate, engine_micros, client_micros: None });
        }
        Ok((ours, peer_rounds))
    }
}
