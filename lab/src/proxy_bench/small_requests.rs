//! Small requests and answers through each proxy: how many per second, how much processor time each needs, and how much
//! later the answer comes than without a proxy.

#![expect(clippy::float_arithmetic, reason = "rates and times, for people")]

use super::ProxyOptions;
use super::figures::{Rounds, compared};
use super::proxies::{ProxyPrograms, ProxyServer, RunningProxy};
use super::tidegate::upstream;
use crate::http_bench::load::HttpClient;
use crate::http_bench::wire::get;
use crate::rig::process::Process;
use crate::rig::schedule::{Pace, Schedule};
use crate::rig::tally::Tally;
use crate::rig::template::Keys;
use crate::rig::{self, usage::ProcessGroup};
use crate::rounds::float;
use std::num::NonZeroU32;
use std::time::Duration;

const CONNECTIONS: u32 = 50;
/// 2,000 requests a second.
const CALM: Pace = Pace::Open { apart: Duration::from_micros(500) };

/// The rounds of one proxy.
struct Measurement {
    server: ProxyServer,
    rounds: Vec<Round>,
}

/// One round of one proxy.
struct Round {
    tally: Tally,
    /// Processor time of the proxy per request, in microseconds.
    cpu: f64,
}

/// Requests per second, and processor time per request.
pub(crate) async fn throughput(
    case: &str,
    options: &ProxyOptions,
    programs: &ProxyPrograms,
) -> Result<Vec<String>, String> {
    let measured = measured(Pace::Closed, options, programs).await?;
    let values = |of: fn(&Round) -> f64| {
        measured.iter().map(move |Measurement { server, rounds }| Rounds {
            name: server.name(),
            values: rounds.iter().map(of).collect(),
        })
    };
    let json = options.rig.json;
    let mut rows = compared(case, "1/s", values(|round| round.tally.rate()), json);
    let with_process = values(|round| round.cpu).filter(|rounds| rounds.name != "direct");
    rows.extend(compared(&format!("{case}-cpu"), "µs", with_process, json));
    Ok(rows)
}

/// How much later answers come than without a proxy, at a rate that all proxies can bear.
pub(crate) async fn latency(
    case: &str,
    options: &ProxyOptions,
    programs: &ProxyPrograms,
) -> Result<Vec<String>, String> {
    let measured = measured(CALM, options, programs).await?;
    let Some((direct, proxies)) = measured.split_last() else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        let added = |rounds: &[Round]| {
            let pairs = rounds.iter().zip(&direct.rounds);
            let added = pairs.map(|(round, direct)| {
                round.tally.micros(quantile) - direct.tally.micros(quantile)
            });
            added.collect()
        };
        let values = proxies.iter().map(|Measurement { server, rounds }| Rounds {
            name: server.name(),
            values: added(rounds),
        });
        rows.extend(compared(&format!("{case}-{name}-added"), "µs", values, options.rig.json));
    }
    Ok(rows)
}

/// The rounds of each proxy, without the first one, which is for warming up.
async fn measured(
    pace: Pace,
    options: &ProxyOptions,
    programs: &ProxyPrograms,
) -> Result<Vec<Measurement>, String> {
    let upstream = upstream("upstream").await?;
    let mut running = Vec::new();
    for server in ProxyServer::ALL {
        running.push(RunningProxy::start(server, upstream.address, programs).await?);
    }
    let measurement =
        |running: &RunningProxy| Measurement { server: running.server, rounds: Vec::new() };
    let mut measured: Vec<Measurement> = running.iter().map(measurement).collect();
    for number in 0..=options.rig.rounds {
        for (running, measurement) in running.iter().zip(&mut measured) {
            let round = round(running, pace, options.rig.seconds).await;
            let round = round.map_err(|error| format!("{}: {error}", running.server.name()))?;
            if number > 0 {
                measurement.rounds.push(round);
            }
        }
    }
    Ok(measured)
}

/// Measures one proxy for one round. Every request must pass.
async fn round(running: &RunningProxy, pace: Pace, seconds: u64) -> Result<Round, String> {
    let _resumed = running.resume();
    let group = running.process.as_ref().map(Process::group).transpose();
    let group = group.map_err(|error| error.to_string())?;
    let before = group.as_ref().map(ProcessGroup::cpu).unwrap_or_default();
    let schedule =
        Schedule { connections: CONNECTIONS, pace, length: Duration::from_secs(seconds) };
    let client = |number| HttpClient::new(get("/"), Keys::new(NonZeroU32::MIN, number));
    let tally = rig::load(running.address, schedule, client).await?;
    if tally.refused > 0 || tally.passed == 0 {
        return Err(format!("{} requests passed, {} did not", tally.passed, tally.refused));
    }
    let after = group.as_ref().map(ProcessGroup::cpu).unwrap_or_default();
    let micros = after.saturating_sub(before).as_secs_f64() * 1e6;
    let cpu = micros / float(tally.passed);
    Ok(Round { tally, cpu })
}
