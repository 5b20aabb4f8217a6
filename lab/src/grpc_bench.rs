//! A check over gRPC: the call that Envoy makes to a rate limit service, against the corresponding call to
//! `throttlecrab-server`.
//!
//! ```text
//! 50 connections × 10 calls in flight; each answer is followed immediately by another call
//! ```
//!
//! Both servers and the load generator run on this machine. The servers are measured in alternating rounds,
//! and medians count. A server that is not being measured is stopped (SIGSTOP), because even an idle server
//! wakes up ten times a second and disturbs the other. The generator takes processor time from the server
//! under test, about the same amount per call for each server. So the ratios are nearer to 1 than those of
//! the servers alone. To keep that share small, the generator reads and writes HTTP/2 frames itself; it was
//! measured to take a seventh of the time that `throttlecrab-server` takes.
//!
//! With `--address` it measures any other server that implements Envoy's rate limit service.

mod external;
mod failures;
mod frames;
mod hpack;
mod load;
mod message;
mod servers;
mod session;

use crate::rig::{
    self,
    install::Programs,
    launch::Limits,
    schedule::{Pace, Schedule},
    tally::{Figure, Measured, Tally},
    template::Keys,
};
use crate::rounds::{print_range, write_section};
use clap::Args;
use failures::Failures;
use load::GrpcClient;
use servers::{GrpcServer, RunningGrpcServer};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

/// The command-line options of `lab grpc`.
#[derive(Args)]
pub(crate) struct GrpcOptions {
    #[command(flatten)]
    rig: rig::LoadOptions,
    /// Measure only the rate limit service at this HOST:PORT, and print its rate
    #[arg(long, conflicts_with = "write")]
    address: Option<String>,
    /// The domain of the requests
    #[arg(long, requires = "address", default_value = servers::DOMAIN)]
    domain: String,
    /// An entry of the descriptor, as key=value; each # is replaced by a digit of a random number
    #[arg(long, requires = "address", default_values_t = [format!("{}={}", servers::ENTRY, servers::KEY)])]
    descriptor: Vec<String>,
}

/// A client that makes one call at a time to tidegate.
pub(crate) fn check_client(address: SocketAddr, keys: Keys) -> GrpcClient {
    let request = GrpcServer::Tidegate.request(address, Limits::Generous);
    GrpcClient::new(&request, keys, 1, Failures::default())
}

const CONNECTIONS: u32 = 50;

/// One kind of load, and the figures that are reported of it.
struct GrpcCase {
    name: &'static str,
    limits: Limits,
    keys: NonZeroU32,
    /// How many calls each connection has in flight.
    depth: usize,
    pace: Pace,
    figures: &'static [Figure],
}

impl GrpcCase {
    /// Whether it also makes sense with a server whose limits the lab does not choose.
    fn works_with_any_limits(&self) -> bool {
        self.limits == Limits::Generous
    }
}

/// As many keys as `throttlecrab-server` holds by default.
const MANY: NonZeroU32 = NonZeroU32::new(100_000).unwrap();
/// So few keys that each of them uses up its limit early in a round.
const FEW: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

const CASES: [GrpcCase; 3] = [
    GrpcCase {
        name: "grpc-check-50x10",
        limits: Limits::Generous,
        keys: MANY,
        depth: 10,
        pace: Pace::Closed,
        figures: &RATE,
    },
    GrpcCase {
        name: "grpc-refused-50x10",
        limits: Limits::Strict,
        keys: FEW,
        depth: 10,
        pace: Pace::Closed,
        figures: &RATE,
    },
    GrpcCase {
        name: "grpc-open-5000-50c",
        limits: Limits::Generous,
        keys: MANY,
        // Latency counts from the instant at which a call was due, so each call waits for the previous one.
        depth: 1,
        pace: Pace::Open { apart: Duration::from_micros(200) },
        figures: &LATENCIES,
    },
];

const RATE: [Figure; 1] = [Figure { suffix: "", unit: "1/s", of: Tally::rate }];
const LATENCIES: [Figure; 2] = [
    Figure { suffix: "-p50", unit: "µs", of: |tally| tally.micros(0.5) },
    Figure { suffix: "-p99", unit: "µs", of: |tally| tally.micros(0.99) },
];

const TITLE: &str = "A check over gRPC";
const TEXT: &str = "\
Unary calls on 50 connections. GrpcServer and load generator share the machine.

- `grpc-check`: 100,000 client addresses in random order, each with a limit of a million per second, so that nothing is
  refused. Each connection has 10 calls in flight, and starts another one for each answer (a closed loop).
- `grpc-refused`: 1,000 client addresses that have used up their limits.
- `grpc-open-5000`: 5,000 calls a second at fixed instants (an open loop). Latency is measured from the instant at which
  a call was due.

tidegate serves `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`: one descriptor with `remote_address`, and
a policy with one rule for that address. The peer is `throttlecrab-server` with `throttlecrab.RateLimiter/Throttle`,
whose calls carry the limit.";

pub(crate) fn run(options: &GrpcOptions) -> Result<(), String> {
    if let Some(address) = &options.address {
        return rig::run(external::measured(options, address));
    }
    let options = &options.rig;
    let programs = Programs::found(options)?;
    let rows = rig::run(measured(options, &programs))?;
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

async fn measured(options: &rig::LoadOptions, programs: &Programs) -> Result<Vec<String>, String> {
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
        let [(_, ours), (peer, theirs)] = &tallies(case, options, programs).await?;
        let GrpcCase { name, figures, .. } = case;
        let measured = Measured { bench: "grpc", case: name, figures, ours };
        if !options.json {
            print_ranges(figures, [("tidegate", ours), (peer.name(), theirs)]);
        }
        rows.extend(measured.rows(&[(peer.name(), theirs)], options.json));
    }
    Ok(rows)
}

fn print_ranges(figures: &[Figure], servers: [(&str, &[Tally]); 2]) {
    for figure in figures {
        for (name, tallies) in servers {
            let values: Vec<f64> = tallies.iter().map(figure.of).collect();
            print_range(name, &values, figure.unit);
        }
    }
}

/// The rounds of each server, without the first one, which is for warming up.
async fn tallies(
    case: &GrpcCase,
    options: &rig::LoadOptions,
    programs: &Programs,
) -> Result<[(GrpcServer, Vec<Tally>); 2], String> {
    let mut running = Vec::new();
    for server in GrpcServer::ALL {
        running.push(RunningGrpcServer::start(server, case.limits, programs).await?);
    }
    let mut tallies = GrpcServer::ALL.map(|server| (server, Vec::new()));
    for round in 0..=options.rounds {
        for (running, (_, tallies)) in running.iter().zip(&mut tallies) {
            let with_name = |error| format!("{}: {error}", running.server.name());
            let tally = measure(case, running, options.seconds).await.map_err(with_name)?;
            if round > 0 {
                tallies.push(tally);
            }
        }
    }
    Ok(tallies)
}

/// Measures one server for one round. A call that fails is an error.
async fn measure(
    case: &GrpcCase,
    running: &RunningGrpcServer,
    seconds: u64,
) -> Result<Tally, String> {
    let _resumed = running.process.resume();
    let address = running.process.address;
    let (request, failures) = (running.server.request(address, case.limits), Failures::default());
    let (depth, keys, noted) = (case.depth, case.keys, failures.clone());
    let client =
        move |number| GrpcClient::new(&request, Keys::new(keys, number), depth, noted.clone());
    let tally = rig::load(address, schedule(case, seconds), client).await?;
    failures.summary().map_or(Ok(()), Err)?;
    servers::check_limits(case.limits, &tally)?;
    Ok(tally)
}

fn schedule(case: &GrpcCase, seconds: u64) -> Schedule {
    let length = Duration::from_secs(seconds);
    Schedule { connections: CONNECTIONS, pace: case.pace, length }
}
