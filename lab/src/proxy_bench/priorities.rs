//! Payments and analytics share an upstream server of eight workers: who gets through when analytics floods it, or becomes slow?
//!
//! ```text
//!   high  100/s ──┐
//!                 ├──► proxy, 8 seats ──► 8 workers, 20 ms on average
//!   low    50/s ──┘
//!
//!   calm    as above
//!   spike   12 times as many requests of low
//!   slow    each request of low takes 2 s on average
//!   all     all four classes send 300/s each
//! ```
//!
//! Requests arrive at random instants (Poisson), and the time that each needs is random too (exponential). The same numbers are
//! simulated in `crates/limiter/src/scheduler/tests/simulation.rs`.

#![expect(clippy::float_arithmetic, reason = "shares and times, for people")]

use super::ProxyOptions;
use super::class_server::ClassServer;
use super::figures::{Goal, GoalFigure};
use super::plot::{self, ClassLine};
use super::random_load::{self, Outcome, RandomLoad, Rate};
use super::tidegate::TidegateProxy;
use crate::rig::install;
use crate::rounds::float;
use crate::say;
use std::path::Path;
use std::time::Duration;

/// The classes, the highest first, and the seats that the default shares reserve of eight.
pub(crate) const CLASSES: [(&str, u32); 4] =
    [("critical", 3), ("high", 2), ("normal", 2), ("low", 1)];
const PATHS: [&str; 4] = ["/critical", "/high", "/normal", "/low"];
const HIGH: usize = 1;
const LOW: usize = 3;
const SEATS: u32 = 8;
/// One rule for each class. Ten users share the requests of each class. The first request, which shows that the proxy runs, is of a
/// class that is used anyway: a seat is kept free for each class that was used in the last 10 to 20 s.
const RULES: &str =
    "{ name: critical, match: { path: /critical/* }, priority: critical, key: [path] }
  - { name: high, match: { path: /high/* }, priority: high, key: [path] }
  - { name: normal, match: { path: /normal/* }, priority: normal, key: [path] }
  - { name: low, match: { path: /low/* }, priority: low, key: [path] }
  - { name: start, match: { path: /live }, priority: low }";
const GROUP: &str = "    concurrency: 8\n";
/// How long each scenario takes. The first seconds, in which seats that were lent come back, are part of it.
const LENGTH: Duration = Duration::from_secs(30);
const USERS: u64 = 10;

/// What each class sends.
#[derive(Clone, Copy, Default)]
struct ClassLoad {
    per_second: u32,
    /// The mean time that a request needs at the upstream server.
    millis: u32,
}

/// The results of one scenario.
struct Scenario {
    outcomes: Vec<Outcome>,
    /// How many seats each class had on average.
    seats: [f64; 4],
}

pub(crate) async fn priorities(case: &str, options: &ProxyOptions) -> Result<Vec<String>, String> {
    let program = install::tidegate(options.rig.tidegate.as_deref())?;
    let calm = two_classes(1, 20);
    let calm = scenario("calm", &program, calm).await?;
    let spike = scenario("spike", &program, two_classes(12, 20)).await?;
    let slow = scenario("slow", &program, two_classes(1, 2_000)).await?;
    let all = scenario("all", &program, [ClassLoad { per_second: 300, millis: 20 }; CLASSES.len()])
        .await?;
    for (name, scenario) in [("calm", &calm), ("spike", &spike), ("slow", &slow), ("all", &all)] {
        scenario.tell(name, options.rig.json);
    }
    if let Some(folder) = options.plots_folder() {
        spike.plot(&folder, "priorities-spike", "12 times as many requests of low")?;
        slow.plot(&folder, "priorities-slow", "Each request of low takes 2 s")?;
    }
    let print = |(name, value, unit, goal): (String, f64, &str, Goal)| {
        let case = &format!("{case}-{name}");
        GoalFigure { case, value, unit, goal }.print(options.rig.json)
    };
    let figures = figures(&calm, &spike, &slow).into_iter().chain(all.of_all_classes());
    Ok(figures.map(print).collect())
}

fn two_classes(spike: u32, slow: u32) -> [ClassLoad; 4] {
    let none = ClassLoad::default();
    let high = ClassLoad { per_second: 100, millis: 20 };
    let low = ClassLoad { per_second: 50_u32.saturating_mul(spike), millis: slow };
    [none, high, none, low]
}

type Figure = (String, f64, &'static str, Goal);

fn figures(calm: &Scenario, spike: &Scenario, slow: &Scenario) -> Vec<Figure> {
    let calm_p99 = calm.p99(HIGH);
    // The seats that are not reserved for high, the only other class.
    let unreserved = f64::from(SEATS.saturating_sub(2));
    let of_low = spike.seats.get(LOW).copied().unwrap_or(0.0) / unreserved * 100.0;
    vec![
        ("calm-high-p99".to_owned(), calm_p99, "ms", Goal::None),
        ("spike-high-success".to_owned(), spike.success(HIGH), "%", Goal::AtLeast(99.4)),
        ("spike-high-p99".to_owned(), spike.p99(HIGH), "ms", Goal::AtMost(2.0 * calm_p99)),
        ("spike-low-of-unreserved".to_owned(), of_low, "%", Goal::AtLeast(90.0)),
        ("slow-high-success".to_owned(), slow.success(HIGH), "%", Goal::AtLeast(99.4)),
        ("slow-high-p99".to_owned(), slow.p99(HIGH), "ms", Goal::None),
    ]
}

impl Scenario {
    fn of(&self, class: usize) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(move |one| one.class == class)
    }

    /// Requests that were answered with 200, in per cent.
    fn success(&self, class: usize) -> f64 {
        let all = self.of(class).count();
        let good = self.of(class).filter(|one| one.status == 200).count();
        count(good) / count(all).max(1.0) * 100.0
    }

    /// In milliseconds, of the requests that succeeded.
    fn p99(&self, class: usize) -> f64 {
        let good = self.of(class).filter(|one| one.status == 200);
        quantile_99(good.map(|one| one.took).collect()).as_secs_f64() * 1e3
    }

    /// How much of its reserved seats each class had.
    fn of_all_classes(&self) -> Vec<Figure> {
        let seats = CLASSES.iter().zip(self.seats);
        let share = |((name, reserved), seats): (&(&str, u32), f64)| {
            let share = seats / f64::from(*reserved) * 100.0;
            (format!("all-{name}-of-its-seats"), share, "%", Goal::AtLeast(90.0))
        };
        seats.map(share).collect()
    }

    fn tell(&self, name: &str, json: bool) {
        for (class, (label, _)) in CLASSES.iter().enumerate() {
            if json || self.of(class).next().is_none() {
                continue;
            }
            let statuses = |status: u16| self.of(class).filter(|one| one.status == status).count();
            let seats = self.seats.get(class).copied().unwrap_or(0.0);
            say(&format!(
                "{name:6} {label:9} {:>6} sent, {:>6} × 200, {:>6} × 503; p99 {:>5.0} ms; {seats:.2} seats",
                self.of(class).count(),
                statuses(200),
                statuses(503),
                self.p99(class),
            ));
        }
    }

    /// Success and p99 of both classes, second by second.
    fn plot(&self, folder: &Path, name: &str, title: &str) -> Result<(), String> {
        let line = |class: usize| {
            let label = CLASSES.get(class).map_or("", |(label, _)| *label);
            let second = |second: u64| {
                let here = |one: &&Outcome| one.at.as_secs() == second;
                let all: Vec<Outcome> = self.of(class).filter(here).copied().collect();
                let good: Vec<Duration> =
                    all.iter().filter(|one| one.status == 200).map(|one| one.took).collect();
                let success = count(good.len()) / count(all.len()).max(1.0) * 100.0;
                (success, quantile_99(good).as_secs_f64() * 1e3)
            };
            let (success, p99) = (0..LENGTH.as_secs()).map(second).unzip();
            ClassLine { label, success, p99 }
        };
        let lines = [line(HIGH), line(LOW)];
        let write = |kind: &str, picture: String| {
            let path = folder.join(format!("{name}-{kind}.svg"));
            std::fs::write(&path, picture).map_err(|error| format!("{}: {error}", path.display()))
        };
        write("success", plot::success_by_class(title, &lines))?;
        write("p99", plot::p99_by_class(title, &lines))
    }
}

fn quantile_99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let at = times.len().saturating_mul(99).div_euclid(100);
    times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn count(number: usize) -> f64 {
    float(u64::try_from(number).unwrap_or(u64::MAX))
}

// === running a scenario ===

async fn scenario(name: &str, program: &Path, loads: [ClassLoad; 4]) -> Result<Scenario, String> {
    let millis = loads.map(|load| load.millis);
    let server = ClassServer::start(millis).map_err(|error| format!("upstream: {error}"))?;
    let upstreams = &[server.address];
    let proxy = TidegateProxy {
        program,
        rule: RULES,
        upstreams,
        group: GROUP,
        admin: None,
        arguments: &[],
    };
    let proxy = proxy.start(name, "/live").await?;
    let loads = loads.into_iter().enumerate().filter(|(_, load)| load.per_second > 0);
    let load = |(class, load): (usize, ClassLoad)| RandomLoad {
        class,
        path: PATHS.get(class).copied().unwrap_or(""),
        users: USERS,
        rate: Rate::Constant(f64::from(load.per_second)),
        length: LENGTH,
    };
    let outcomes = random_load::send(proxy.address, loads.map(load).collect()).await?;
    Ok(Scenario { outcomes, seats: server.mean_in_flight(LENGTH) })
}
