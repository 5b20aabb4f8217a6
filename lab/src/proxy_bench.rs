//! tidegate as a reverse proxy: how fast it is beside nginx, Caddy and Envoy, how exactly it delays, what waiting requests cost,
//! and what clients see when an upstream server fails.
//!
//! Client, proxy and upstream server share this machine. Where proxies are compared, their rounds alternate, each has one worker,
//! and a proxy that is not being measured is stopped (SIGSTOP).
//!
//! | experiment | file | question |
//! |---|---|---|
//! | throughput, latency | `small_requests` | what does a hop cost? |
//! | body | `bodies` | do large bodies pass at full speed and without being stored? |
//! | shaping | `shaping` | when does each request leave a leaky bucket? |
//! | waiting | `waiting` | what do thousands of waiting requests cost, and do they all get an answer? |
//! | outage | `outage` | which requests fail when an upstream server fails? |
//! | seats | `seats_cost` | how much processor time does the scheduler need for a request that gets its seat at once? |
//! | priorities | `priorities` | who gets through when an upstream server has more requests than it can serve? |
//! | elastic | `elastic` | when does an elastic limit open and close? |

mod bodies;
mod body_server;
mod class_server;
mod conformance;
mod crowd;
mod elastic;
mod figures;
mod numbered;
mod outage;
mod plot;
mod priorities;
mod proxies;
mod random_load;
mod recorder;
mod seats_cost;
mod shaping;
mod small_requests;
mod tidegate;
mod waiting;

use crate::rig::{self, LoadOptions, install};
use crate::root;
use crate::rounds::write_section;
use clap::Args;
use proxies::ProxyPrograms;
use std::path::PathBuf;

/// The command-line options of `lab proxy`.
#[derive(Args)]
#[command(after_help = "\
The experiments, of which --only selects some:
  throughput  requests a second and processor time per request, 50 connections
  latency     what the proxy adds at 2,000 requests a second
  body        one large body in each direction: rate and memory
  shaping     a leaky bucket of 100/s under 1,000 requests a second (10 s)
  waiting     10,000 waiting requests: memory, clients that leave, SIGTERM
  outage      one of three upstream servers is killed, refuses or hangs (8 s each)
  seats       processor time per request with `concurrency` and without
  priorities  two or four classes share 8 seats: a spike, a slow class, all overloaded (30 s each)
  elastic     a limit that grows while the upstream server is idle: idle, busy, a ramp (1 min each)
--rounds applies to the first three and to seats, --seconds to the first two and to seats.")]
pub(crate) struct ProxyOptions {
    #[command(flatten)]
    rig: LoadOptions,
    /// The Envoy binary; by default the one that `make deps` installs
    #[arg(long)]
    envoy: Option<PathBuf>,
    /// Size of the large bodies, in MiB
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Number of requests that wait at the same time
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(2..=10_000))]
    waiting: u16,
    /// Directory for the plots of shaping, priorities and elastic; with --write it is docs/plots by default
    #[arg(long)]
    plots: Option<PathBuf>,
}

impl ProxyOptions {
    /// Where the plots go, if they are wanted.
    fn plots_folder(&self) -> Option<PathBuf> {
        match (&self.plots, self.rig.write) {
            (Some(folder), _) => Some(folder.clone()),
            (None, true) => Some(root().join("docs/plots")),
            (None, false) => None,
        }
    }
}

const TITLE: &str = "The reverse proxy";
const TEXT: &str = "\
Client, proxy and upstream server share the machine. Each proxy has one worker and keeps its connections to the upstream server
open. tidegate has one rule with `key: [ip]` that refuses nothing, `nginx` has `limit_req`, `envoy` its local rate limit;
`caddy` has no limiter of its own. `direct` is the upstream server without a proxy. Rows with a goal instead of a peer
concern tidegate alone.

- `proxy-throughput-50c`: 50 connections, of which each sends its next request when it has its answer (a closed loop). `-cpu` is
  the processor time that the proxy needs for one request.
- `proxy-latency-2000`: 2,000 requests a second at fixed instants (an open loop); how much later the answer comes than without a
  proxy.
- `proxy-body-1gib`: one body of 1 GiB. `-memory` is by how much the resident memory of the proxy grows meanwhile.
- `proxy-shaping`: a leaky bucket of 100 per second gets 1,000 requests a second for ten seconds. The gaps are those between
  requests that arrive at the upstream server. `lateness` is the `e` in the bound ⌊(w + e) / 10 ms⌋ + 1 on the arrivals within
  any time w, `windows-above` is how many windows exceed this bound, and `slack` is the smallest `e` for which none does.
  [The plots](docs/reverse-proxy.md#requests-that-wait) show the same run.
- `proxy-waiting-10000`: 10,000 requests that wait at the same time, each on its own connection. `connection-bytes` is the
  resident memory of one idle connection, `request-bytes` what a waiting request adds to it. Then half of the clients leave
  (`left`), as many others take their places, and the server gets SIGTERM.
- `proxy-outage`: one of three upstream servers fails at 2,000 requests a second. It is killed; or it is killed while no
  request is in flight (`refusing`); or it is stopped and does not answer (`hung`; health checks every second).
- `proxy-seats-50c-cpu`: processor time per request of a group with `concurrency: 1000`, and of one without (`no seats`), at 5,000
  requests a second over 50 connections. There are more seats than connections, so every request gets its seat at once.
- `proxy-priorities`: an upstream server of 8 workers, 20 ms for each request on average, and a group with `concurrency: 8`. The
  class high sends 100 requests a second and low 50 (`calm`); low sends 12 times as many (`spike`); each request of low takes 2 s
  (`slow`); all four classes send 300 a second (`all`). Each scenario takes 30 seconds, its beginning included. In
  `spike`, low cannot get more than 91 % of the 6 seats that are not reserved for high: high needs 2 on average, sometimes more,
  and a reserved seat stays free when it needs fewer (8 − E[max(2, N)] = 5.46, for a number N with a Poisson distribution).
- `proxy-elastic`: a limit of 100 per minute that grows to 200 while `pressure < 0.7`, and a client that asks 5 times a second.
  The upstream server of 8 workers is idle for a minute, gets 600 other requests a second for a minute, and then ever more of
  them, up to 480 a second. `above-later-than-5s` are requests that pass above 100 per minute although the others began more than
  5 s ago. `changes-on-ramp` is how often the limit opens or closes in the last minute.";

pub(crate) fn run(options: &ProxyOptions) -> Result<(), String> {
    let rows = rig::run(measured(options))?;
    if options.rig.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

async fn measured(options: &ProxyOptions) -> Result<Vec<String>, String> {
    let selected = |case: &str| case.contains(&options.rig.only);
    let mut rows = compared(options, selected).await?;
    if selected("proxy-shaping") {
        rows.extend(shaping::shaping("proxy-shaping", options).await?);
    }
    let case = format!("proxy-waiting-{}", options.waiting);
    if selected(&case) {
        rows.extend(waiting::waiting(&case, options).await?);
    }
    if selected("proxy-outage") {
        rows.extend(outage::outage("proxy-outage", options).await?);
    }
    if selected("proxy-seats-50c-cpu") {
        rows.extend(seats_cost::seats_cost("proxy-seats-50c-cpu", options).await?);
    }
    if selected("proxy-priorities") {
        rows.extend(priorities::priorities("proxy-priorities", options).await?);
    }
    if selected("proxy-elastic") {
        rows.extend(elastic::elastic("proxy-elastic", options).await?);
    }
    if rows.is_empty() {
        return Err(format!("no experiment has `{}` in its name", options.rig.only));
    }
    Ok(rows)
}

/// The experiments that compare proxies.
async fn compared(
    options: &ProxyOptions,
    selected: impl Fn(&str) -> bool,
) -> Result<Vec<String>, String> {
    let (throughput, latency) = ("proxy-throughput-50c", "proxy-latency-2000");
    let body = match options.mib {
        1024 => "proxy-body-1gib".to_owned(),
        mib => format!("proxy-body-{mib}mib"),
    };
    let mut rows = Vec::new();
    if ![throughput, latency, &body].into_iter().any(&selected) {
        return Ok(rows);
    }
    let programs = programs(options)?;
    if selected(throughput) {
        rows.extend(small_requests::throughput(throughput, options, &programs).await?);
    }
    if selected(latency) {
        rows.extend(small_requests::latency(latency, options, &programs).await?);
    }
    if selected(&body) {
        rows.extend(bodies::bodies(&body, options, &programs).await?);
    }
    Ok(rows)
}

fn programs(options: &ProxyOptions) -> Result<ProxyPrograms, String> {
    install::provide("nginx", "nginx-light")?;
    install::provide("caddy", "caddy")?;
    let tidegate = install::tidegate(options.rig.tidegate.as_deref())?;
    Ok(ProxyPrograms { tidegate, envoy: install::envoy(options.envoy.as_deref())? })
}
