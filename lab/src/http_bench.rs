//! A check over HTTP, against the servers that people run for it today: `throttlecrab-server`, and nginx with
//! `limit_req`.
//!
//! All servers and the load generator run on this machine. The servers are measured in alternating rounds,
//! and medians count. A server that is not being measured is stopped (SIGSTOP), because even an idle server
//! wakes up ten times a second and disturbs the others. The generator takes processor time from the server
//! under test, about the same amount per request for each server. So the ratios are nearer to 1 than those of
//! the servers alone.

pub(crate) mod bare;
pub(crate) mod load;
mod servers;
pub(crate) mod wire;

use crate::rig::{
    self, LoadOptions,
    install::{self, Programs},
    launch::Limits,
    schedule::{Pace, Schedule},
    tally::{Figure, Measured, Tally},
    template::Keys,
};
use crate::rounds::write_section;
use load::HttpClient;
use servers::{HttpServer, RunningHttpServer};
use std::num::NonZeroU32;
use std::time::Duration;

const CONNECTIONS: u32 = 50;

/// One kind of load, and the figures that are reported of it.
struct HttpCase {
    name: &'static str,
    limits: Limits,
    keys: NonZeroU32,
    pace: Pace,
    figures: &'static [Figure],
}

/// As many keys as `throttlecrab-server` holds by default.
const MANY: NonZeroU32 = NonZeroU32::new(100_000).unwrap();
/// So few keys that each of them uses up its limit early in a round.
const FEW: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

const CASES: [HttpCase; 3] = [
    HttpCase {
        name: "http-check-50c",
        limits: Limits::Generous,
        keys: MANY,
        pace: Pace::Closed,
        figures: &RATE,
    },
    HttpCase {
        name: "http-refused-50c",
        limits: Limits::Strict,
        keys: FEW,
        pace: Pace::Closed,
        figures: &RATE,
    },
    HttpCase {
        name: "http-open-5000-50c",
        limits: Limits::Generous,
        keys: MANY,
        pace: Pace::Open { apart: Duration::from_micros(200) },
        figures: &LATENCIES,
    },
];

const RATE: [Figure; 1] = [Figure { suffix: "", unit: "1/s", of: Tally::rate }];
const LATENCIES: [Figure; 3] = [
    Figure { suffix: "-p50", unit: "µs", of: |tally| tally.micros(0.5) },
    Figure { suffix: "-p99", unit: "µs", of: |tally| tally.micros(0.99) },
    Figure { suffix: "-p99.9", unit: "µs", of: |tally| tally.micros(0.999) },
];

const TITLE: &str = "A check over HTTP";
const TEXT: &str = "\
Complete checks over HTTP/1.1, on 50 keep-alive connections. HttpServer and load generator share the machine.

- `http-check`: 100,000 client addresses in random order, each with a limit of a million per second, so that nothing is
  refused. Each connection sends its next request when it has its answer (a closed loop).
- `http-refused`: 1,000 client addresses that have used up their limits, so nearly every request is refused.
- `http-open-5000`: 5,000 requests a second at fixed instants (an open loop). Latency is measured from the instant at
  which a request was due, so that a stall of the server is not hidden.

The peers:

- `throttlecrab` is `throttlecrab-server` with `POST /throttle`. Like tidegate's `POST /v1/check`, it reads and writes
  JSON.
- `nginx` is `GET /?key=…` with `limit_req` and an empty 204 answer. It parses no body, and returns neither what remains
  nor when to retry.
- `bare` answers every request with the same bytes, as many as tidegate sends, on one thread per core, and does nothing
  else. The distance of this ratio from 1 is all that could still be gained.";

pub(crate) fn run(options: &LoadOptions) -> Result<(), String> {
    let programs = Programs::found(options)?;
    install::provide("nginx", "nginx-light")?;
    let rows = rig::run(measured(options, &programs))?;
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

async fn measured(options: &LoadOptions, programs: &Programs) -> Result<Vec<String>, String> {
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
        let [(_, ours), peers @ ..] = &tallies(case, options, programs).await?;
        let peers = peers.each_ref().map(|(server, tallies)| (server.name(), &tallies[..]));
        let HttpCase { name, figures, .. } = case;
        let measured = Measured { bench: "http", case: name, figures, ours };
        rows.extend(measured.rows(&peers, options.json));
    }
    Ok(rows)
}

/// The rounds of each server, without the first one, which is for warming up.
async fn tallies(
    case: &HttpCase,
    options: &LoadOptions,
    programs: &Programs,
) -> Result<[(HttpServer, Vec<Tally>); 4], String> {
    let mut running = Vec::new();
    for server in HttpServer::ALL {
        running.push(RunningHttpServer::start(server, case.limits, programs).await?);
    }
    let mut tallies = HttpServer::ALL.map(|server| (server, Vec::new()));
    for round in 0..=options.rounds {
        for (running, (_, tallies)) in running.iter().zip(&mut tallies) {
            let tally = measure(case, running, options.seconds).await?;
            if round > 0 {
                tallies.push(tally);
            }
        }
    }
    Ok(tallies)
}

/// Measures one server for one round.
async fn measure(
    case: &HttpCase,
    running: &RunningHttpServer,
    seconds: u64,
) -> Result<Tally, String> {
    let _resumed = running.process.resume();
    let schedule = Schedule {
        connections: CONNECTIONS,
        pace: case.pace,
        length: Duration::from_secs(seconds),
    };
    let (request, keys) = (running.server.request(case.limits), case.keys);
    let client = move |number| HttpClient::new(request.clone(), Keys::new(keys, number));
    let tally = rig::load(running.process.address, schedule, client).await;
    let tally = tally.map_err(|error| format!("{}: {error}", running.server.name()))?;
    running.server.check_limits(case.limits, &tally)?;
    Ok(tally)
}
