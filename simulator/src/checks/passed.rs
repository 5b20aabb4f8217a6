//! What passed, in every interval of the true time: of all nodes and the store together, and of each node by itself.

use super::{Violation, lost_at};
use crate::history::{Answered, By, History};
use crate::scenario::{Kind, Scenario};
use tidegate_core::{Algorithm, Limit, Period};

/// How long the store may take, in nanoseconds.
const PATIENCE: u64 = 50_000_000;
/// Ends of intervals that are looked at for one user.
const MOST_STEPS: usize = 150;

/// The first interval in which more of a user or tenant passed than may.
pub(super) fn ceiling(scenario: &Scenario, history: &History, subject: usize) -> Option<Violation> {
    let passed = history.answered.iter().filter(|answer| answer.is_of(subject) && answer.allowed);
    let nodes = u32::try_from(scenario.clocks.len()).unwrap();
    let limits = scenario.rules_of(subject).map(|rule| (rule.limit(), rule.share(nodes)));
    // Where a server was away, the other may have decided its part some time before the answer.
    let earlier = if scenario.tenants.is_some() { PATIENCE } else { 0 };
    let ceiling =
        |from: u64, to| most(scenario, history, &limits, from.saturating_sub(earlier), to);
    let (passed, ceiling) = excess(passed, subject, ceiling)?;
    Some(Violation::Ceiling { user: subject, passed, ceiling })
}

/// The first interval in which a process granted a user more by itself than its share. Where tenants have a rule, too, the
/// store may have granted its part.
pub(super) fn shares(scenario: &Scenario, history: &History, user: usize) -> Option<Violation> {
    if scenario.tenants.is_some() {
        return None;
    }
    let nodes = u32::try_from(scenario.clocks.len()).unwrap();
    let shares = scenario.rules.each_ref().map(|rule| rule.share(nodes));
    let of_process = |process: usize| {
        let by_itself = |answer: &&Answered| {
            (answer.process, answer.user) == (process, user)
                && (answer.by == By::Fallback && answer.allowed)
        };
        let granted = history.answered.iter().filter(by_itself);
        let (off, drift) = scenario.clocks[history.processes[process].0];
        let share = |from, to| {
            shares.iter().map(|share| of_one(share, from, to, off, drift)).max().unwrap()
        };
        let (granted, share) = excess(granted, user, share)?;
        Some(Violation::Share { process, user, granted, share })
    };
    let processes = 0..history.processes.len();
    processes.filter(|process| knows_the_others(scenario, history, *process)).find_map(of_process)
}

/// Whether a process must know how many nodes there are. One that was restarted and kept nothing counts those that call,
/// which others may be kept from.
fn knows_the_others(scenario: &Scenario, history: &History, process: usize) -> bool {
    let (node, began, _) = history.processes[process];
    let keeps_nobody = |kind: &Kind| match kind {
        Kind::Crash(other) => *other == node,
        Kind::LoseData
        | Kind::ForeignState(_)
        | Kind::ForeignShapes
        | Kind::WallStep(..)
        | Kind::NewPolicy(_) => true,
        Kind::RequestDelay(_)
        | Kind::ReplyDelay(_)
        | Kind::Jitter(_)
        | Kind::LoseRequests(_)
        | Kind::LoseReplies(_)
        | Kind::CutReplies(_)
        | Kind::Partition(_)
        | Kind::StoreDown { .. }
        | Kind::StorePaused
        | Kind::ServerDown(_)
        | Kind::ServerPaused(_)
        | Kind::Failover { .. }
        | Kind::NodePaused(_)
        | Kind::ForeignNodes
        | Kind::ForbidEval => false,
    };
    began == 0
        || scenario.keeps_disk
        || scenario.faults.iter().all(|fault| keeps_nobody(&fault.kind))
}

/// What passed in the first interval in which it is more than the most that may, and that.
fn excess<'h>(
    passed: impl Iterator<Item = &'h Answered>,
    subject: usize,
    most: impl Fn(u64, u64) -> u64,
) -> Option<(u64, u64)> {
    let mut passed: Vec<(u64, u64)> =
        passed.map(|answer| (answer.decided_of(subject), answer.kept())).collect();
    passed.sort_by_key(|(decided, _)| *decided);
    // All pairs of a few hundred, and of more every few: a ceiling is not passed by one alone for long.
    let stride = passed.len() / MOST_STEPS + 1;
    for (first, (start, _)) in passed.iter().enumerate().step_by(stride) {
        let mut sum = 0;
        for (number, (end, cost)) in passed.iter().enumerate().skip(first) {
            sum += cost;
            if !number.is_multiple_of(stride) && number + 1 < passed.len() {
                continue;
            }
            let most = most(*start, *end);
            if sum > most {
                return Some((sum, most));
            }
        }
    }
    None
}

/// What may pass of one user within an interval: of the store once, and once more each time that it lost what it counted;
/// and of every process its share.
fn most(
    scenario: &Scenario,
    history: &History,
    limits: &[(Limit, Limit); 2],
    from: u64,
    to: u64,
) -> u64 {
    let by = |(limit, share): &(Limit, Limit)| {
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
        let of_process = |(node, began, ended): &(usize, u64, u64)| {
            let lives = *began <= millis(to) && millis(from) <= *ended;
            let (off, drift) = scenario.clocks[*node];
            if lives { of_one(share, from, to, off, drift) } else { 0 }
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
