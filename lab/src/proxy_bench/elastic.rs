//! When does an elastic limit open and close, if its signal is the pressure that the proxy itself reports?
//!
//! ```text
//!   batch   5/s ──► 100 per minute, up to 200 % while pressure < 0.7 ──┐
//!                                                                      ├──► 8 seats ──► 8 workers, 20 ms
//!   others  0/s for a minute, 600/s for a minute,  ────────────────────┘
//!           then a ramp from 0 to 480/s
//! ```

#![expect(clippy::float_arithmetic, reason = "shares, for people")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use super::ProxyOptions;
use super::class_server::ClassServer;
use super::figures::{Goal, GoalFigure};
use super::plot;
use super::random_load::{self, Outcome, RandomLoad, Rate};
use super::tidegate::TidegateProxy;
use crate::http_bench::load::HttpConnection;
use crate::rig::install;
use crate::rig::process::free_address;
use crate::rounds::float;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

const RULES: &str =
    "{ name: batch, match: { path: /low/* }, key: [path], limits: [{ rate: 100/min, algorithm: sliding_log }],
      mode: { elastic: { up_to: 200%, while: 'pressure < 0.7' } } }";
const GROUP: &str = "    concurrency: 8\n";
const SEATS: f64 = 8.0;
const MINUTE: Duration = Duration::from_secs(60);
/// When the other requests begin, when their ramp begins, and the end.
const BUSY: Duration = MINUTE;
const RAMP: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(180);
/// How long after the begin of the others the headroom may still be used.
const REACTION: Duration = Duration::from_secs(5);
const LIMIT: usize = 100;
const BATCH: usize = 3;
const OTHERS: usize = 2;

/// What the proxy said about itself at one instant.
#[derive(Clone, Copy)]
struct Sample {
    /// Since the start.
    at: Duration,
    /// How much of the headroom is granted, in per cent.
    granted: f64,
    seats_used: f64,
}

pub(crate) async fn elastic(case: &str, options: &ProxyOptions) -> Result<Vec<String>, String> {
    let program = install::tidegate(options.rig.tidegate.as_deref())?;
    let server = ClassServer::start([20; 4]).map_err(|error| format!("upstream: {error}"))?;
    let admin = free_address().map_err(|error| error.to_string())?;
    let proxy = TidegateProxy {
        program: &program,
        rule: RULES,
        upstreams: &[server.address],
        group: GROUP,
        admin: Some(admin),
        arguments: &[],
    };
    let proxy = proxy.start("elastic", "/live").await?;
    let token = proxy.read("data/operator-token").map_err(|error| error.to_string())?;
    let sending = random_load::send(proxy.address, loads());
    let (outcomes, samples) = tokio::join!(sending, look(admin, token.trim()));
    let (outcomes, samples) = (outcomes?, samples?);
    if let Some(folder) = options.plots_folder() {
        draw(&folder, &samples)?;
    }
    let print = |(name, value, goal): (&str, usize, Goal)| {
        let (case, value) = (&format!("{case}-{name}"), float(u64::try_from(value).unwrap_or(0)));
        GoalFigure { case, value, unit: "", goal }.print(options.rig.json)
    };
    let passed = passed(&outcomes);
    let figures = [
        ("idle", passed.iter().filter(|at| **at < MINUTE).count(), Goal::AtLeast(151.0)),
        ("above-later-than-5s", above_the_limit(&passed), Goal::AtMost(0.0)),
        ("changes-on-ramp", changes(&samples), Goal::AtMost(2.0)),
    ];
    Ok(figures.into_iter().map(print).collect())
}

fn loads() -> Vec<RandomLoad> {
    let batch =
        RandomLoad { class: BATCH, path: "/low", users: 1, rate: Rate::Constant(5.0), length: END };
    let rate = Rate::At(|time| match time {
        _ if time < BUSY => 0.0,
        _ if time < RAMP => 600.0,
        _ => time.saturating_sub(RAMP).as_secs_f64() / MINUTE.as_secs_f64() * 480.0,
    });
    vec![batch, RandomLoad { class: OTHERS, path: "/normal", users: 10, rate, length: END }]
}

/// When the requests of the batch that passed were sent, in order.
fn passed(outcomes: &[Outcome]) -> Vec<Duration> {
    let passed = outcomes.iter().filter(|one| one.class == BATCH && one.status == 200);
    let mut passed: Vec<Duration> = passed.map(|one| one.at).collect();
    passed.sort_unstable();
    passed
}

/// How many requests passed above the limit while the others had been there for a while.
fn above_the_limit(passed: &[Duration]) -> usize {
    let busy = BUSY.saturating_add(REACTION)..RAMP;
    let before = |at: Duration| {
        let minute = at.saturating_sub(MINUTE)..=at;
        passed.iter().filter(|one| minute.contains(one)).count()
    };
    passed.iter().filter(|at| busy.contains(*at) && before(**at) > LIMIT).count()
}

/// How often the limit opened or closed on the ramp.
fn changes(samples: &[Sample]) -> usize {
    let open: Vec<bool> =
        samples.iter().filter(|one| one.at >= RAMP).map(|one| one.granted > 0.0).collect();
    open.windows(2).filter(|pair| pair.first() != pair.last()).count()
}

/// Seats in use and the granted headroom, as means of each second.
fn draw(folder: &Path, samples: &[Sample]) -> Result<(), String> {
    let mean = |second: u64, value: fn(&Sample) -> f64| {
        let here = || samples.iter().filter(|one| one.at.as_secs() == second);
        let many = float(u64::try_from(here().count()).unwrap_or(0));
        here().map(value).sum::<f64>() / many.max(1.0)
    };
    let line = |value| (0..END.as_secs()).map(|second| mean(second, value)).collect();
    let lines = [
        ("headroom granted", line(|one: &Sample| one.granted)),
        ("seats in use", line(|one: &Sample| one.seats_used / SEATS * 100.0)),
    ];
    let path = folder.join("elastic.svg");
    let picture = plot::percentages("An elastic limit: idle, busy, and a ramp", &lines);
    std::fs::write(&path, picture).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads the metrics ten times a second.
async fn look(admin: SocketAddr, token: &str) -> Result<Vec<Sample>, String> {
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let (start, mut samples) = (Instant::now(), Vec::new());
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = HttpConnection::open(admin).await?;
    loop {
        ticks.tick().await;
        let at = start.elapsed();
        if at >= END {
            return Ok(samples);
        }
        let answer = connection.exchange(request.as_bytes()).await?;
        if answer.status != 200 {
            return Err(format!("the metrics answer {}", answer.status));
        }
        let text = str::from_utf8(connection.body(&answer)).map_err(|error| error.to_string())?;
        let granted = sum(text, "tidegate_elastic_granted_percent{");
        let seats_used = sum(text, "tidegate_scheduler_in_flight{");
        samples.push(Sample { at, granted, seats_used });
    }
}

/// The sum of all series of a metric.
fn sum(metrics: &str, name: &str) -> f64 {
    let series = metrics.lines().filter(|line| line.starts_with(name));
    series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_above_the_limit_count_only_while_the_others_are_there() {
        let every = |millis: u64| (0..END.as_secs() * 1_000 / millis).map(move |n| n * millis);
        let at = |millis: u64| every(millis).map(Duration::from_millis).collect::<Vec<_>>();
        assert_eq!(above_the_limit(&at(610)), 0);
        // 120 a minute, from second 65 to 120.
        assert_eq!(above_the_limit(&at(500)), 110);
    }

    #[test]
    fn changes_of_the_last_minute_are_counted() {
        let sample =
            |(at, granted)| Sample { at: Duration::from_secs(at), granted, seats_used: 0.0 };
        let samples =
            [(60, 0.0), (70, 100.0), (120, 0.0), (125, 10.0), (130, 50.0), (150, 0.0)].map(sample);
        assert_eq!(changes(&samples), 2);
    }

    #[test]
    fn series_are_added_up() {
        let text = "# HELP a_b x\na_b{class=\"x\"} 3\na_b{class=\"y\"} 4\na_bc{} 9\n";
        assert!((sum(text, "a_b{") - 7.0).abs() < 1e-9);
    }
}
