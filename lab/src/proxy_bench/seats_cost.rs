//! How much processor time the scheduler needs for a request that gets its seat at once: the same proxy with and without
//! `concurrency`, in alternating rounds.
//!
//! Requests come at fixed instants (an open loop). In a closed loop the faster proxy is woken up more often, and so needs more
//! processor time for each request.

#![expect(clippy::float_arithmetic, reason = "times, for people")]

use super::ProxyOptions;
use super::figures::{Rounds, compared};
use super::tidegate::{TidegateProxy, upstream};
use crate::http_bench::load::HttpClient;
use crate::http_bench::wire::get;
use crate::rig::process::Process;
use crate::rig::schedule::{Pace, Schedule};
use crate::rig::template::Keys;
use crate::rig::{self, install};
use crate::rounds::float;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

const RULE: &str = "{ name: per-client, key: [ip], limits: [1000000/s] }";
/// Enough for all connections, so that no request waits.
const SEATS: &str = "    concurrency: 1000\n";
const CONNECTIONS: u32 = 50;
/// 5,000 requests a second: about a sixth of what the proxy can do.
const APART: Duration = Duration::from_micros(200);

/// Processor time per request, with and without seats.
pub(crate) async fn seats_cost(case: &str, options: &ProxyOptions) -> Result<Vec<String>, String> {
    let program = install::tidegate(options.rig.tidegate.as_deref())?;
    let upstream = upstream("seats-upstream").await?;
    let start = async |name: &str, group: &str, program: &Path| {
        let upstreams = &[upstream.address];
        let proxy =
            TidegateProxy { program, rule: RULE, upstreams, group, admin: None, arguments: &[] };
        proxy.start(name, "/").await
    };
    let proxies = [start("seats", SEATS, &program).await?, start("no-seats", "", &program).await?];
    let mut rounds = [Vec::new(), Vec::new()];
    for number in 0..=options.rig.rounds {
        for (proxy, values) in proxies.iter().zip(&mut rounds) {
            let micros = round(proxy, options.rig.seconds).await?;
            if number > 0 {
                values.push(micros);
            }
        }
    }
    let [with, without] = rounds;
    let rounds = [("tidegate", with), ("no seats", without)];
    let rounds = rounds.map(|(name, values)| Rounds { name, values });
    Ok(compared(case, "µs", rounds, options.rig.json))
}

/// The processor time that one request needs, in microseconds.
async fn round(proxy: &Process, seconds: u64) -> Result<f64, String> {
    let group = proxy.group().map_err(|error| error.to_string())?;
    let before = group.cpu();
    let length = Duration::from_secs(seconds);
    let schedule = Schedule { connections: CONNECTIONS, pace: Pace::Open { apart: APART }, length };
    let client = |number| HttpClient::new(get("/"), Keys::new(NonZeroU32::MIN, number));
    let tally = rig::load(proxy.address, schedule, client).await?;
    if tally.refused > 0 || tally.passed == 0 {
        return Err(format!("{} requests passed, {} did not", tally.passed, tally.refused));
    }
    let micros = group.cpu().saturating_sub(before).as_secs_f64() * 1e6;
    Ok(micros / float(tally.passed))
}
