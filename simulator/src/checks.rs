//! What must be true of every history: the promises of the docs, as bounds over true times.

use crate::history::{Answered, By, History};
use crate::run::state;
use crate::scenario::{Fault, Kind, Scenario};
use std::fmt;
use tidegate_core::{Algorithm, Limit, Period};

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The store, or a node that passed on its answer, did not say what the core says of the same history.
    Replay(String),
    /// More passed than the documented ceiling: what the store may grant, and each node its share without it.
    Ceiling {
        /// Who asked.
        user: usize,
        /// What passed within an interval, and what may.
        passed: u64,
        /// The ceiling.
        ceiling: u64,
    },
    /// The store counted what nobody was granted, beyond what was lost on the way.
    ChargedTooMuch {
        /// Who asked.
        user: usize,
        /// What the store has counted.
        counted: u64,
        /// What may be counted.
        at_most: u64,
    },
    /// The store was never told of what nodes granted without it.
    ChargedTooLittle {
        /// Who asked.
        user: usize,
        /// What the store has counted.
        counted: u64,
        /// What should be.
        at_least: u64,
    },
    /// A caller waited for longer than it wanted to.
    Late {
        /// For how many milliseconds.
        millis: u64,
    },
    /// After everything was healed a node still did not ask the store.
    NotHealed(usize),
    /// Something is wrong for good, and a node does not say so.
    Silent(usize),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replay(what) => write!(f, "replay: {what}"),
            Self::Ceiling { user, passed, ceiling } => {
                write!(f, "ceiling: {passed} passed of user {user}, {ceiling} is the most")
            }
            Self::ChargedTooMuch { user, counted, at_most } => {
                write!(f, "charges: {counted} are counted of user {user}, {at_most} is the most")
            }
            Self::ChargedTooLittle { user, counted, at_least } => {
                write!(f, "charges: {counted} are counted of user {user}, {at_least} is the least")
            }
            Self::Late { millis } => write!(f, "deadline: a caller waited for {millis} ms"),
            Self::NotHealed(node) => write!(f, "healing: node {node} does not ask the store"),
            Self::Silent(node) => write!(f, "honesty: node {node} does not say what is wrong"),
        }
    }
}

/// What is wrong with a history.
#[must_use]
pub fn violations(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut found: Vec<Violation> =
        history.wrong.iter().map(|wrong| Violation::Replay(wrong.clone())).collect();
    let late = history.answered.iter().filter(|answer| answer.answered > answer.deadline);
    found.extend(
        late.map(|answer| Violation::Late { millis: (answer.answered - answer.asked) / 1_000_000 }),
    );
    for user in 0..history.counted.len() {
        found.extend(ceiling(scenario, history, user));
        found.extend(charges(scenario, history, user));
    }
    for (node, by, complaint) in &history.healed {
        if *by != Some(By::Store) {
            found.push(Violation::NotHealed(*node));
        }
        if broken_for_good(scenario) && complaint.is_none() {
            found.push(Violation::Silent(*node));
        }
    }
    found
}

/// Whether another program's data, or a command that is not there, is in the way of nodes or shapes in the end.
fn broken_for_good(scenario: &Scenario) -> bool {
    let broken =
        |kind: &Kind| matches!(kind, Kind::ForeignShapes | Kind::ForeignNodes | Kind::ForbidEval);
    let broken = scenario.faults.iter().filter(|fault| broken(&fault.kind)).map(|fault| fault.at);
    // What loses our data loses theirs.
    let lost = scenario.faults.iter().filter(|fault| fault.kind.loses_data()).map(lost_at);
    broken.max() > lost.max()
}

/// When a fault that loses data does.
const fn lost_at(fault: &Fault) -> u64 {
    if matches!(fault.kind, Kind::StoreDown { .. }) { fault.until } else { fault.at }
}

// === the ceiling ===

/// Ends of intervals that are looked at for one user.
const MOST_STEPS: usize = 150;

/// The first interval in which more of a user passed than may.
fn ceiling(scenario: &Scenario, history: &History, user: usize) -> Option<Violation> {
    let mut passed: Vec<&Answered> =
        history.answered.iter().filter(|answer| answer.user == user && answer.allowed).collect();
    passed.sort_by_key(|answer| answer.decided);
    let limits = scenario.rules.each_ref().map(crate::RuleSpec::limit);
    // All pairs of a few hundred, and of more every few: a ceiling is not passed by one alone for long.
    let stride = passed.len() / MOST_STEPS + 1;
    for (first, start) in passed.iter().enumerate().step_by(stride) {
        let mut sum = 0;
        for (number, end) in passed.iter().enumerate().skip(first) {
            sum += end.cost;
            if !number.is_multiple_of(stride) && number + 1 < passed.len() {
                continue;
            }
            let ceiling = most(scenario, history, &limits, start.decided, end.decided);
            if sum > ceiling {
                return Some(Violation::Ceiling { user, passed: sum, ceiling });
            }
        }
    }
    None
}

/// What may pass of one user within an interval: of the store once, and once more each time that it lost what it counted;
/// and of every process its share.
fn most(scenario: &Scenario, history: &History, limits: &[Limit; 2], from: u64, to: u64) -> u64 {
    let nodes = u32::try_from(scenario.clocks.len()).unwrap();
    let by = |limit: &Limit| {
        let millis = |nanos: u64| nanos / 1_000_000;
        // What a failover has not seen was counted up to its lag earlier.
        let losses = scenario.faults.iter().filter(|fault| {
            let lost_at = lost_at(fault);
            fault.kind.loses_data() && millis(from) <= lost_at + 1 && lost_at <= millis(to) + 1
        });
        let of_store = of_one(limit, from, to, scenario.store_clock, 0);
        let of_store = of_store * (1 + u64::try_from(losses.count()).unwrap());
        if scenario.is_healthy() {
            return of_store;
        }
        let share = limit.divided(nodes);
        let of_process = |(node, began, ended): &(usize, u64, u64)| {
            let lives = *began <= millis(to) && millis(from) <= *ended;
            let (off, drift) = scenario.clocks[*node];
            if lives { of_one(&share, from, to, off, drift) } else { 0 }
        };
        of_store + history.processes.iter().map(of_process).sum::<u64>()
    };
    by(&limits[0]).max(by(&limits[1]))
}

/// The most that one exact counter grants within an interval, by a clock that is off and drifts.
fn of_one(limit: &Limit, from: u64, to: u64, off_millis: i64, drift_ppm: i64) -> u64 {
    let Period::Every(period) = limit.period() else { return u64::MAX };
    let period = period.as_nanos();
    let at = |nanos: u64| crate::network::shifted(nanos, off_millis, drift_ppm).as_nanos();
    // Timers and scripts count whole milliseconds and microseconds.
    let (from, to) = (at(from).saturating_sub(1_000_000), at(to) + 1_000_000);
    let lasts = to - from;
    let times = |n: u64| limit.amount() * n;
    match limit.algorithm() {
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            let refilled = u128::from(lasts) * u128::from(limit.amount()) / u128::from(period);
            limit.capacity() + u64::try_from(refilled).unwrap() + 1
        }
        Algorithm::FixedWindow { .. } | Algorithm::SlidingWeighted => {
            times(to / period - from / period + 1)
        }
        Algorithm::SlidingLog => times(lasts / period + 1),
        Algorithm::SlidingBuckets { buckets } => {
            times(lasts / (period - period / u64::from(buckets)) + 1)
        }
    }
}

// === charges ===

/// Whether the store has counted in the end what was granted. Only where that can be told: under a limit that forgets
/// nothing meanwhile, by a store that lost nothing.
fn charges(scenario: &Scenario, history: &History, user: usize) -> Option<Violation> {
    let rule = &scenario.rules[0];
    let told_apart = rule.seconds >= 3_600
        && rule.algorithm != "leaky_bucket"
        && !scenario.faults.iter().any(|fault| {
            fault.kind.loses_data()
                || matches!(fault.kind, Kind::ForeignState(_) | Kind::Crash(_) | Kind::NewPolicy(_))
        });
    if !told_apart {
        return None;
    }
    let of_user = |answer: &&Answered| answer.user == user && answer.allowed;
    let granted: u64 = history.answered.iter().filter(of_user).map(|answer| answer.cost).sum();
    let untold = history.untold.get(&state(scenario, user, 0)).copied().unwrap_or(0);
    let counted = history.counted[user];
    let at_most = granted + untold;
    // A bucket's tokens come back, a few within a history.
    let at_least = granted.min(rule.limit().capacity()).saturating_sub(refilled(scenario));
    // A state whose shape cannot be looked up counts as full.
    let unknown = |kind: &Kind| matches!(kind, Kind::ForeignShapes | Kind::ForbidEval);
    let may_be_full = scenario.faults.iter().any(|fault| unknown(&fault.kind));
    if counted > at_most && !may_be_full {
        return Some(Violation::ChargedTooMuch { user, counted, at_most });
    }
    (counted < at_least).then_some(Violation::ChargedTooLittle { user, counted, at_least })
}

/// What comes back of a bucket within a history, rounded up.
fn refilled(scenario: &Scenario) -> u64 {
    let rule = &scenario.rules[0];
    if rule.algorithm == "token_bucket" {
        return (scenario.ends() / 1_000 + 10) * rule.amount / rule.seconds + 1;
    }
    0
}
