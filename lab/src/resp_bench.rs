//! A check over RESP, against what people use today: `throttlecrab-server`, a Lua script in Redis, and the
//! cheapest commands of Redis itself.
//!
//! All servers and the load generator run on this machine. The servers are measured in alternating rounds,
//! and medians count. A server that is not being measured is stopped (SIGSTOP), because even an idle server
//! wakes up ten times a second and disturbs the others. The generator takes processor time from the server
//! under test, about the same amount per command for each server. So the ratios are nearer to 1 than those of
//! the servers alone.

pub(crate) mod load;
mod servers;
pub(crate) mod wire;

use crate::rig::{
    self, LoadOptions,
    install::{self, Programs},
    schedule::{Pace, Schedule},
    tally::{Figure, Measured, Tally},
    template::Keys,
};
use crate::rounds::write_section;
use load::RespClient;
use servers::{RespServer, RunningRespServer};
use std::num::NonZeroU32;
use std::time::Duration;

const CONNECTIONS: u32 = 50;
const KEYS: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

/// One kind of load, and the figures that are reported of it.
struct RespCase {
    name: &'static str,
    /// How many commands are sent together (pipelining).
    depth: u32,
    pace: Pace,
    peers: [RespServer; 3],
    figures: &'static [Figure],
}

const CASES: [RespCase; 3] = [
    RespCase {
        name: "resp-pipe64-50c",
        depth: 64,
        pace: Pace::Closed,
        peers: [RespServer::RedisIncr, RespServer::Throttlecrab, RespServer::RedisLua],
        figures: &RATE,
    },
    RespCase {
        name: "resp-single-50c",
        depth: 1,
        pace: Pace::Closed,
        peers: [RespServer::RedisGet, RespServer::Throttlecrab, RespServer::RedisLua],
        figures: &RATE,
    },
    RespCase {
        name: "resp-open-20000-50c",
        depth: 1,
        pace: Pace::Open { apart: Duration::from_micros(50) },
        peers: [RespServer::RedisGet, RespServer::Throttlecrab, RespServer::RedisLua],
        figures: &LATENCIES,
    },
];

const RATE: [Figure; 1] = [Figure { suffix: "", unit: "1/s", of: Tally::rate }];
const LATENCIES: [Figure; 2] = [
    Figure { suffix: "-p50", unit: "µs", of: |tally| tally.micros(0.5) },
    Figure { suffix: "-p99", unit: "µs", of: |tally| tally.micros(0.99) },
];

const TITLE: &str = "A check over RESP";
const TEXT: &str = "\
Checks over the Redis protocol, on 50 connections, with a million keys in random order. RespServer and load generator share
the machine.

- `resp-pipe64`: each connection sends 64 commands, reads 64 replies, and sends the next 64 (pipelining).
- `resp-single`: each connection sends one command at a time.
- `resp-open-20000`: 20,000 commands a second at fixed instants (an open loop). Latency is measured from the instant at
  which a command was due.

tidegate runs `CL.THROTTLE`, and every key has a limit of a million per second, so that nothing is refused. The peers:

- `throttlecrab` is `throttlecrab-server` with `THROTTLE` and the same limit.
- `redis-lua` is a token bucket in Redis, called by `EVALSHA`, with the same limit.
- `redis-incr` and `redis-get` limit nothing. They are the least work that Redis does for a command that writes, or
  reads, one key. Redis writes no files.";

pub(crate) fn run(options: &LoadOptions) -> Result<(), String> {
    let programs = Programs::found(options)?;
    install::provide("redis-server", "redis-server")?;
    let rows = rig::run(measured(options, &programs))?;
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

async fn measured(options: &LoadOptions, programs: &Programs) -> Result<Vec<String>, String> {
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
        let (ours, peers) = &tallies(case, options, programs).await?;
        let names = case.peers.iter().map(|server| server.name());
        let peers: Vec<_> = names.zip(peers.iter().map(Vec::as_slice)).collect();
        let RespCase { name, figures, .. } = case;
        let measured = Measured { bench: "resp", case: name, figures, ours };
        rows.extend(measured.rows(&peers, options.json));
    }
    Ok(rows)
}

/// The rounds of tidegate and of each peer, without the first one, which is for warming up.
async fn tallies(
    case: &RespCase,
    options: &LoadOptions,
    programs: &Programs,
) -> Result<(Vec<Tally>, [Vec<Tally>; 3]), String> {
    let ours = RunningRespServer::start(RespServer::Tidegate, programs, KEYS.get()).await?;
    let mut peers = Vec::new();
    for server in case.peers {
        peers.push(RunningRespServer::start(server, programs, KEYS.get()).await?);
    }
    let (mut our_tallies, mut tallies) = (Vec::new(), case.peers.map(|_| Vec::new()));
    for round in 0..=options.rounds {
        let each = [(&ours, &mut our_tallies)].into_iter().chain(peers.iter().zip(&mut tallies));
        for (running, tallies) in each {
            let tally = measure(case, running, options.seconds).await?;
            if round > 0 {
                tallies.push(tally);
            }
        }
    }
    Ok((our_tallies, tallies))
}

/// Measures one server for one round.
async fn measure(
    case: &RespCase,
    running: &RunningRespServer,
    seconds: u64,
) -> Result<Tally, String> {
    let _resumed = running.process.resume();
    let schedule = Schedule {
        connections: CONNECTIONS,
        pace: case.pace,
        length: Duration::from_secs(seconds),
    };
    let pipeline = running.pipeline(case.depth);
    let client = move |number| RespClient::new(pipeline.clone(), Keys::new(KEYS, number));
    let with_name = |error| format!("{}: {error}", running.server.name());
    let tally = rig::load(running.process.address, schedule, client).await.map_err(with_name)?;
    running.check_limits(&tally).map_err(with_name)?;
    Ok(tally)
}
