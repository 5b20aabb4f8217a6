//! A leaky bucket of 100 per second in the proxy, under ten times as many requests: when each request reaches the upstream
//! server.
//!
//! ```text
//!   1,000/s ──► proxy ──► 100/s, one every 10 ms, in order ──► recorder
//!                 └─► 900/s get 429 at once
//! ```

#![expect(clippy::float_arithmetic, reason = "times, for people")]

use super::ProxyOptions;
use super::conformance::{Arrivals, quantile};
use super::figures::{Goal, GoalFigure};
use super::numbered::{Exchange, ExchangeLog};
use super::plot;
use super::recorder::{Arrival, Recorder};
use super::tidegate::TidegateProxy;
use crate::http_bench::wire::get;
use crate::rig::schedule::{Pace, Schedule};
use crate::rig::{self, install};
use crate::rounds::float;
use crate::say;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const RULE: &str = "{ name: shaped, match: { path: /n/** }, key: [ip], limits: [{ rate: 100/s, algorithm: leaky_bucket, queue: 100 }] }";
/// The distance of turns.
const TURN: Duration = Duration::from_millis(10);
/// By how much a timer of tokio may be late: it counts in whole milliseconds.
const TIMER_ERROR: Duration = Duration::from_millis(1);
/// 1,000 requests a second for ten seconds. A request waits for up to a second, so there are enough connections for two.
const OFFERED: Schedule = Schedule {
    connections: 2_000,
    pace: Pace::Open { apart: Duration::from_millis(1) },
    length: Duration::from_secs(10),
};

/// What was offered, and what arrived.
struct Shaped {
    /// How many requests were sent.
    sent: u32,
    exchanges: Vec<Exchange>,
    arrivals: Vec<Arrival>,
}

pub(crate) async fn shaping(case: &str, options: &ProxyOptions) -> Result<Vec<String>, String> {
    let shaped = measured(options).await?;
    if let Some(folder) = options.plots_folder() {
        shaped.plot(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    shaped.tell_order(options.rig.json);
    let print = |(name, value, unit, goal): (&str, f64, &str, Goal)| {
        let case = &format!("{case}-{name}");
        GoalFigure { case, value, unit, goal }.print(options.rig.json)
    };
    Ok(shaped.figures().into_iter().map(print).collect())
}

async fn measured(options: &ProxyOptions) -> Result<Shaped, String> {
    let recorder = Recorder::start().map_err(|error| format!("recorder: {error}"))?;
    let program = install::tidegate(options.rig.tidegate.as_deref())?;
    let upstreams = &[recorder.address];
    let proxy = TidegateProxy {
        program: &program,
        rule: RULE,
        upstreams,
        group: "",
        admin: None,
        arguments: &[],
    };
    let proxy = proxy.start("shaping", "/live").await?;
    let (log, request) = (ExchangeLog::default(), get("/n/########"));
    let logged = log.clone();
    rig::load(proxy.address, OFFERED, move |_| logged.client(&request)).await?;
    Ok(Shaped { sent: log.sent(), exchanges: log.take(), arrivals: recorder.arrivals() })
}

impl Shaped {
    fn figures(&self) -> [(&'static str, f64, &'static str, Goal); 10] {
        let at = self.arrived_after(self.start());
        let arrivals = Arrivals { at: &at, turn: nanos(TURN) };
        let gaps = arrivals.gaps();
        let gap = |thousandths| micros(quantile(&gaps, thousandths));
        let lateness = arrivals.lateness();
        let closest = micros(nanos(TURN.saturating_sub(TIMER_ERROR)));
        [
            ("arrived", count(at.len()), "", Goal::AtLeast(990.0)),
            ("gap-least", gap(0), "µs", Goal::AtLeast(closest)),
            ("gap-p1", gap(10), "µs", Goal::None),
            ("gap-p50", gap(500), "µs", Goal::None),
            ("gap-p99", gap(990), "µs", Goal::None),
            ("lateness", micros(lateness), "µs", Goal::None),
            ("windows-above", count(arrivals.windows_above(lateness)), "", Goal::AtMost(0.0)),
            (
                "slack",
                micros(arrivals.least_slack()),
                "µs",
                Goal::AtMost(micros(nanos(TIMER_ERROR))),
            ),
            ("out-of-order", count(self.out_of_order().len()), "", Goal::AtMost(0.0)),
            ("not-answered-once", count(self.not_answered_once()), "", Goal::AtMost(0.0)),
        ]
    }

    /// Neighbours at the upstream server of which the second was sent by its client first.
    fn out_of_order(&self) -> Vec<(u32, u32)> {
        let numbers = self.arrivals.iter().map(|arrival| arrival.number);
        let pairs = numbers.clone().zip(numbers.skip(1));
        pairs.filter(|(one, next)| next < one).collect()
    }

    /// Requests without an answer, with another answer than 200 and 429, or whose answer does not fit to what arrived: each 200
    /// must have arrived once, and nothing else.
    fn not_answered_once(&self) -> usize {
        let answered = u32::try_from(self.exchanges.len()).unwrap_or(u32::MAX);
        let missing = usize::try_from(self.sent.abs_diff(answered)).unwrap_or(usize::MAX);
        let strange =
            self.exchanges.iter().filter(|exchange| ![200, 429].contains(&exchange.status));
        let passed: BTreeSet<u32> =
            self.exchanges.iter().filter(|e| e.status == 200).map(|e| e.number).collect();
        let arrived: BTreeSet<u32> = self.arrivals.iter().map(|arrival| arrival.number).collect();
        let twice = self.arrivals.len().saturating_sub(arrived.len());
        let differing = passed.symmetric_difference(&arrived).count();
        [missing, strange.count(), twice, differing].into_iter().fold(0, usize::saturating_add)
    }

    /// Says how close together the requests were sent that arrived in another order.
    fn tell_order(&self, json: bool) {
        let sent = |number: u32| {
            self.exchanges.iter().find(|exchange| exchange.number == number).map(|found| found.sent)
        };
        let apart =
            |(one, next): (u32, u32)| Some(sent(one)?.saturating_duration_since(sent(next)?));
        let most = self.out_of_order().into_iter().filter_map(apart).max();
        if let (Some(most), false) = (most, json) {
            say(&format!("requests that changed their order were sent up to {most:?} apart"));
        }
    }

    // === the plots ===

    fn start(&self) -> Option<Instant> {
        self.exchanges.iter().map(|exchange| exchange.sent).min()
    }

    /// Nanoseconds from the first request of a client to each arrival.
    fn arrived_after(&self, start: Option<Instant>) -> Vec<u64> {
        let Some(start) = start else { return Vec::new() };
        let after = |arrival: &Arrival| nanos(arrival.at.saturating_duration_since(start));
        self.arrivals.iter().map(after).collect()
    }

    fn plot(&self, folder: &Path) -> std::io::Result<()> {
        let Some(start) = self.start() else { return Ok(()) };
        let seconds = |at: Instant| at.saturating_duration_since(start).as_secs_f64();
        let mut offered: Vec<f64> = self.exchanges.iter().map(|e| seconds(e.sent)).collect();
        offered.sort_by(f64::total_cmp);
        let arrived: Vec<f64> = self.arrivals.iter().map(|arrival| seconds(arrival.at)).collect();
        let at = self.arrived_after(Some(start));
        let gaps = Arrivals { at: &at, turn: nanos(TURN) }.gaps();
        let gaps: Vec<f64> = gaps.into_iter().map(|gap| micros(gap) / 1e3).collect();
        fs::create_dir_all(folder)?;
        fs::write(folder.join("shaping-cumulative.svg"), plot::cumulative(&offered, &arrived))?;
        let middle = TURN.as_secs_f64() * 1e3;
        fs::write(folder.join("shaping-gaps.svg"), plot::histogram(&gaps, middle))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(nanos: u64) -> f64 {
    float(nanos) / 1e3
}

fn count(many: usize) -> f64 {
    float(u64::try_from(many).unwrap_or(u64::MAX))
}
