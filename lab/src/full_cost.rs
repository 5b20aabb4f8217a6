//! A flood of unknown clients, each of which uses up its limit with one request, through a memory budget that
//! holds a tenth of them.
//!
//! Every client takes 20 from a bucket of 20 per day, so all of them have to be remembered for a day. Then
//! *returners*, which are some of these clients, try again: none of them may pass. *Newcomers* send requests
//! until they are refused, under the same rule and under others, and once more a day later.

#![expect(clippy::float_arithmetic, reason = "averages, for people")]

use crate::flood::{key, percentiles, report};
use crate::rounds::float;
use crate::say;
use clap::Args;
use tidegate_core::{Algorithm, Cost, Limit, Span, Take, Timestamp};
use tidegate_store::{Clock, KeyName, LimitName, Memory, Secret};

/// The command-line options of `lab full-cost`.
#[derive(Args)]
pub(crate) struct FullCostOptions {
    /// Number of unknown clients, in millions
    #[arg(long, default_value_t = 8)]
    millions: u64,
    /// The memory budget of the store, in MiB
    #[arg(long, default_value_t = 16)]
    budget: usize,
    /// The cost of each client's one request
    #[arg(long, default_value_t = 20)]
    cost: u64,
    /// Print lines of JSON
    #[arg(long)]
    json: bool,
}

const AMOUNT: u64 = 20;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;
const START: u64 = 1_700_000_000;
const NANOS: u64 = 1_000_000_000;
/// One take of 64 is timed.
const TIMED: u64 = 64;
const RETURNERS: u64 = 10_000;
const NEWCOMERS: u64 = 1_000;

/// A rule of 20 per period.
struct Rule {
    limit: Limit,
    name: LimitName,
}

struct FloodedStore {
    store: Memory,
    secret: Secret,
    key: KeyName,
}

pub(crate) fn run(options: &FullCostOptions) -> Result<(), String> {
    let flooded = FloodedStore::new(options.budget << 20)?;
    let [daily, hourly, secondly] = [DAY, HOUR, 1].map(Rule::new);
    let (daily, hourly, secondly) = (daily?, hourly?, secondly?);
    let clients = options.millions.saturating_mul(1_000_000);
    let times = flooded.flood(&daily, clients, options.cost);
    flooded.describe(options, times);
    flooded.returners(options, &daily, clients);
    flooded.newcomers(options, &daily, "same-rule", 2, [10.0, 50.0]);
    flooded.newcomers(options, &hourly, "hourly-rule", 3, [18.0, 50.0]);
    flooded.newcomers(options, &secondly, "secondly-rule", 4, [18.0, 50.0]);
    flooded.store.clock().set(Timestamp::from_nanos(
        START.saturating_add(DAY).saturating_add(1).saturating_mul(NANOS),
    ));
    flooded.newcomers(options, &daily, "a-day-later", 5, [20.0, 100.0]);
    Ok(())
}

impl Rule {
    fn new(seconds: u64) -> Result<Self, String> {
        let limit = Limit::new(AMOUNT, Span::from_secs(seconds), Algorithm::TOKEN_BUCKET)
            .map_err(|error| error.to_string())?;
        let name = LimitName::new(&format!("per-{seconds}-s"), "s", &limit);
        Ok(Self { limit, name })
    }
}

impl FloodedStore {
    fn new(budget: usize) -> Result<Self, String> {
        let start = Timestamp::from_nanos(START.saturating_mul(NANOS));
        Ok(Self {
            store: Memory::with_budget(Clock::manual(start), budget),
            secret: Secret::random().map_err(|error| error.to_string())?,
            key: KeyName::new(["ip"]),
        })
    }

    /// Prints the latencies of the flood, and what the store holds after it.
    fn describe(&self, options: &FullCostOptions, times: Vec<f64>) {
        let [p50, p99] = percentiles(times, [50, 99]);
        let gauges = self.store.gauges();
        say(&format!(
            "{} M clients take {} of 20 each: p50 {p50:.0} ns, p99 {p99:.0} ns, {} entries, {} KiB, {} demoted, a new client starts with a count of {:.3}",
            options.millions,
            options.cost,
            gauges.entries,
            gauges.bytes >> 10,
            gauges.demotions,
            float(gauges.overcount_thousandths) / 1_000.0
        ));
    }

    /// Reports the most that one client of the flood gets when it tries again.
    fn returners(&self, options: &FullCostOptions, rule: &Rule, clients: u64) {
        let apart = clients.checked_div(RETURNERS).unwrap_or(1).max(1);
        let left = AMOUNT.saturating_sub(options.cost);
        let passes = |n: u64| self.passes(rule, &key(n.saturating_mul(apart), 0), AMOUNT);
        let most = (0..RETURNERS).map(passes).max();
        report(options.json, "returner-most", float(most.unwrap_or(0)), float(left), true);
    }

    fn take(&self, rule: &Rule, key: &[u8; 16], cost: u64) -> bool {
        let state = self.secret.subject_by(self.key, key).state(rule.name);
        self.store.take_one_now(&Take::new(state, &rule.limit, Cost::new(cost))).decision.passes()
    }

    /// How many of `takes` takes of cost 1 pass.
    fn passes(&self, rule: &Rule, key: &[u8; 16], takes: u64) -> u64 {
        (0..takes).map(|_| u64::from(self.take(rule, key, 1))).sum()
    }

    /// Takes once for each client of the flood, and returns the latencies of the timed takes in nanoseconds.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
    fn flood(&self, rule: &Rule, clients: u64, cost: u64) -> Vec<f64> {
        let mut times = Vec::new();
        for n in 0..clients {
            let start = (n % TIMED == 0).then(std::time::Instant::now);
            self.take(rule, &key(n, 0), cost);
            times.extend(start.map(|start| start.elapsed().as_secs_f64() * 1e9));
        }
        times
    }

    /// Reports what new clients get: the average, and the percentage of them that get their whole limit.
    fn newcomers(
        &self,
        options: &FullCostOptions,
        rule: &Rule,
        name: &str,
        kind: u64,
        goals: [f64; 2],
    ) {
        let got: Vec<u64> =
            (0..NEWCOMERS).map(|n| self.passes(rule, &key(n, kind), AMOUNT)).collect();
        let all = u64::try_from(got.iter().filter(|got| **got == AMOUNT).count()).unwrap_or(0);
        let [mean, percent] = [(got.iter().sum(), 1), (all, 100)]
            .map(|(sum, times): (u64, u64)| float(sum.saturating_mul(times)) / float(NEWCOMERS));
        let [mean_goal, percent_goal] = goals;
        report(options.json, &format!("{name}-mean"), mean, mean_goal, false);
        report(options.json, &format!("{name}-all-percent"), percent, percent_goal, false);
    }
}
