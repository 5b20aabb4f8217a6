//! One of three upstream servers fails at 2,000 requests a second: which requests fail with it, and how long the proxy sends
//! it more of them.
//!
//! | fault | what happens | what the proxy may do |
//! |---|---|---|
//! | killed | connections break, new ones are refused | fail what was sent and not answered, nothing else |
//! | refusing | as killed, while no request is in flight | fail nothing: every request can be sent to another server |
//! | hung | the process is stopped (SIGSTOP): connections work, answers do not come | fail what was sent, after `first_byte` |

#![expect(clippy::float_arithmetic, reason = "times, for people")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use super::ProxyOptions;
use super::figures::{Goal, GoalFigure};
use super::numbered::{Exchange, ExchangeLog};
use super::tidegate::{TidegateProxy, upstream};
use crate::http_bench::wire::get;
use crate::rig::process::Process;
use crate::rig::schedule::{Pace, Schedule};
use crate::rig::tally::Tally;
use crate::rig::{self, install};
use crate::rounds::float;
use crate::say;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const RULE: &str = "{ name: per-client, key: [ip], limits: [1000000/s] }";
const GROUP: &str =
    "    timeouts: { connect: 1s, first_byte: 4s }\n    health: { path: /live, every: 1s }\n";
/// 2,000 requests a second. A request may hang for four seconds, so there are connections for the others meanwhile.
const LOAD: Schedule = Schedule {
    connections: 4_000,
    pace: Pace::Open { apart: Duration::from_micros(500) },
    length: Duration::from_secs(8),
};
/// When the fault happens, after the start of the load.
const CALM: Duration = Duration::from_secs(2);
/// What the proxy logs when it ejects a server.
const EJECTED: &str = "gets no requests";
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    Refusing,
    Hung,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Killed, Self::Refusing, Self::Hung];

    const fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Refusing => "refusing",
            Self::Hung => "hung",
        }
    }

    fn happen(self, server: &Process) {
        server.signal(match self {
            Self::Killed | Self::Refusing => Signal::KILL,
            Self::Hung => Signal::STOP,
        });
    }

    /// How long after the start of the load it happens.
    const fn after(self) -> Duration {
        match self {
            Self::Killed | Self::Hung => CALM,
            Self::Refusing => Duration::ZERO,
        }
    }

    /// The most milliseconds until the server is ejected.
    const fn ejected_within(self) -> f64 {
        match self {
            Self::Killed | Self::Refusing => 1_000.0,
            // Three intervals of the health check.
            Self::Hung => 3_000.0,
        }
    }

    const fn most_errors(self) -> Goal {
        match self {
            Self::Refusing => Goal::AtMost(0.0),
            // The requests that were in flight to this server. How many these are depends on the machine.
            Self::Killed | Self::Hung => Goal::None,
        }
    }
}

/// What happened in the course of one fault.
struct Course {
    fault: Fault,
    happened: Instant,
    ejected: Option<Instant>,
    exchanges: Vec<Exchange>,
    tally: Tally,
}

pub(crate) async fn outage(case: &str, options: &ProxyOptions) -> Result<Vec<String>, String> {
    let mut rows = Vec::new();
    for fault in Fault::ALL {
        let course = course(fault, options).await;
        let course = course.map_err(|error| format!("{}: {error}", fault.name()))?;
        let case = format!("{case}-{}", fault.name());
        if !options.rig.json {
            course.tell();
        }
        rows.extend(course.rows(&case, options.rig.json));
    }
    Ok(rows)
}

async fn course(fault: Fault, options: &ProxyOptions) -> Result<Course, String> {
    let program = install::tidegate(options.rig.tidegate.as_deref())?;
    let mut servers = Vec::new();
    for number in 1..=3 {
        servers.push(upstream(&format!("{}-{number}", fault.name())).await?);
    }
    let upstreams: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
    let proxy = TidegateProxy {
        program: &program,
        rule: RULE,
        upstreams: &upstreams,
        group: GROUP,
        admin: None,
        arguments: &[],
    };
    let proxy = proxy.start(&format!("outage-{}", fault.name()), "/").await?;
    let victim = servers.first().ok_or("there is no server")?;
    let (log, request) = (ExchangeLog::default(), get("/########"));
    let logged = log.clone();
    let load = rig::load(proxy.address, LOAD, move |_| logged.client(&request));
    let (tally, (happened, ejected)) = tokio::join!(load, watched(fault, victim, &proxy));
    Ok(Course { fault, happened, ejected, exchanges: log.take(), tally: tally? })
}

/// Lets the fault happen, and waits for the ejection at most as long as the load lasts.
async fn watched(fault: Fault, victim: &Process, proxy: &Process) -> (Instant, Option<Instant>) {
    sleep(fault.after()).await;
    fault.happen(victim);
    let happened = Instant::now();
    while happened.elapsed() < LOAD.length {
        if proxy.log().contains(EJECTED) {
            return (happened, Some(Instant::now()));
        }
        sleep(LOOK_EVERY).await;
    }
    (happened, None)
}

impl Course {
    fn rows(&self, case: &str, json: bool) -> Vec<String> {
        let goal = Goal::AtMost(self.fault.ejected_within());
        let failed = float(u64::try_from(self.failed().count()).unwrap_or(u64::MAX));
        let slowest = self.tally.micros(1.0) / 1e3;
        let figures = [
            ("errors", failed, "", self.fault.most_errors()),
            ("ejected-after", self.ejected_after(), "ms", goal),
            ("last-error-sent-after", self.last_error_after(), "ms", goal),
            ("slowest", slowest, "ms", Goal::None),
        ];
        let print = |(name, value, unit, goal)| {
            GoalFigure { case: &format!("{case}-{name}"), value, unit, goal }.print(json)
        };
        figures.into_iter().map(print).collect()
    }

    /// Milliseconds from the fault, or from the first request after it, to the ejection; infinite if there was none.
    fn ejected_after(&self) -> f64 {
        let sent = self.exchanges.iter().map(|exchange| exchange.sent).min();
        let start = sent.map_or(self.happened, |first| first.max(self.happened));
        self.ejected.map_or(f64::INFINITY, |ejected| millis(start, ejected))
    }

    /// Milliseconds from the fault to the sending of the last request that failed.
    fn last_error_after(&self) -> f64 {
        let last = self.failed().map(|exchange| exchange.sent).max();
        last.map_or(0.0, |last| millis(self.happened, last))
    }

    fn failed(&self) -> impl Iterator<Item = &Exchange> {
        self.exchanges.iter().filter(|exchange| exchange.status != 200)
    }

    fn tell(&self) {
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        for exchange in &self.exchanges {
            let times = statuses.entry(exchange.status).or_default();
            *times = times.saturating_add(1);
        }
        let each = statuses.iter().map(|(status, times)| format!("{times} × {status}"));
        let each: Vec<String> = each.collect();
        say(&format!("{}: {}", self.fault.name(), each.join(", ")));
    }
}

fn millis(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}
