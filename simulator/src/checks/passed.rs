//! How much passed in every interval of the true time: by all nodes and the store together, and by each fallback.

use super::{Violation, lost_at};
use crate::history::{Answered, Decider, History};
use crate::names;
use crate::scenario::{FaultKind, Scenario};
use tidegate_core::{Algorithm, Limit, Period, Span};

/// The timeout of the store, in nanoseconds.
const PATIENCE: u64 = 50_000_000;
/// Ends of intervals that are checked for one user.
const MAX_STEPS: usize = 150;

/// The first interval in which more passed for a user or tenant than may: by everybody, or by the store and by what nodes held of
/// its limit.
pub(super) fn ceiling(scenario: &Scenario, history: &History, subject: usize) -> Option<Violation> {
    let ceiling = Ceiling::new(scenario, history, subject);
    let passed = history.answered.iter().filter(|answer| answer.is_of(subject) && answer.allowed);
    let by_store = passed.clone().filter(|answer| answer.by != Decider::Fallback);
    let found = excess(passed, subject, |from, to| {
        ceiling.of_store(from, to).max(ceiling.of_all(from, to)) + ceiling.eased(from, to)
    });
    let found = found.or_else(|| {
        excess(by_store, subject, |from, to| ceiling.of_store(from, to) + ceiling.eased(from, to))
    });
    let (passed, ceiling) = found?;
    Some(Violation::Ceiling { user: subject, passed, ceiling })
}

/// The first interval in which a fallback granted a user more than its share. Not checked if tenants have a rule too, because
/// the store may have granted one part.
pub(super) fn shares(scenario: &Scenario, history: &History, user: usize) -> Option<Violation> {
    if scenario.tenants.is_some() {
        return None;
    }
    let nodes = u32::try_from(scenario.clocks.len()).unwrap();
    let shares = scenario.rules.each_ref().map(|rule| rule.share(nodes));
    let of_process = |process: usize| {
        let counts_others = knows_the_others(scenario, history, process);
        let until =
            if counts_others { u64::MAX } else { sees_nothing_until(scenario, history, process) };
        let by_itself = |answer: &&Answered| {
            (answer.process, answer.user) == (process, user)
                && (answer.by == Decider::Fallback && answer.allowed)
                && answer.answered / 1_000_000 < until
        };
        let granted = history.answered.iter().filter(by_itself);
        let (off, drift) = scenario.clocks[history.processes[process].0];
        let share = |from, to| {
            shares.iter().map(|share| of_one(share, from, to, off, drift)).max().unwrap()
        };
        let (granted, share) = excess(granted, user, share)?;
        Some(Violation::Share { process, user, granted, share })
    };
    (0..history.processes.len()).find_map(of_process)
}

/// Whether a process must know how many nodes there are. A process that was restarted without its disk counts the nodes that
/// are announced, and a fault may keep other nodes from being announced.
fn knows_the_others(scenario: &Scenario, history: &History, process: usize) -> bool {
    let (node, began, _) = history.processes[process];
    let allows_announcements = |kind: &FaultKind| match kind {
        FaultKind::Crash(other) => *other == node,
        FaultKind::LoseData
        | FaultKind::ForeignState(_)
        | FaultKind::ForeignShapes
        | FaultKind::WallStep(..)
        | FaultKind::NewPolicy(_) => true,
        FaultKind::RequestDelay(_)
        | FaultKind::ReplyDelay(_)
        | FaultKind::Jitter(_)
        | FaultKind::LoseRequests(_)
        | FaultKind::LoseReplies(_)
        | FaultKind::CutReplies(_)
        | FaultKind::Partition(_)
        | FaultKind::StoreDown { .. }
        | FaultKind::StorePaused
        | FaultKind::ServerDown(_)
        | FaultKind::ServerPaused(_)
        | FaultKind::Failover { .. }
        | FaultKind::NodePaused(_)
        | FaultKind::ForeignNodes
        | FaultKind::ForbidEval => false,
    };
    began == 0
        || scenario.keeps_disk
        || scenario.faults.iter().all(|fault| allows_announcements(&fault.kind))
}

/// The time until which a process cannot have reached the store since its start, in milliseconds. It assumes several nodes until
/// then, whatever it may count later.
fn sees_nothing_until(scenario: &Scenario, history: &History, process: usize) -> u64 {
    let (node, began, _) = history.processes[process];
    let keeps_away = |kind: &FaultKind| {
        matches!(kind, FaultKind::StoreDown { .. }) || *kind == FaultKind::Partition(node)
    };
    let faults = scenario.faults.iter();
    let away = faults.filter(|fault| fault.at < began && keeps_away(&fault.kind));
    away.map(|fault| fault.until).max().unwrap_or(0)
}

/// The first interval in which more passed than may: how much passed, and how much may pass.
fn excess<'h>(
    passed: impl Iterator<Item = &'h Answered>,
    subject: usize,
    most: impl Fn(u64, u64) -> u64,
) -> Option<(u64, u64)> {
    let mut passed: Vec<(u64, u64)> =
        passed.map(|answer| (answer.decided_of(subject), answer.kept())).collect();
    passed.sort_by_key(|(decided, _)| *decided);
    // All pairs of up to 150 answers, and a sample of more: a history that exceeds a ceiling soon exceeds it by several.
    let stride = passed.len() / MAX_STEPS + 1;
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

/// How much may pass for one user or tenant.
struct Ceiling<'s> {
    scenario: &'s Scenario,
    /// Of both versions of the policy: the limit, and the share of a node.
    limits: [(Limit, Limit); 2],
    /// When the store lost its counts, in milliseconds.
    losses: Vec<u64>,
    /// How much all nodes together hold at most, and when that may pass in addition, in milliseconds: when the store has lost its
    /// counts or the state, and when the limit is edited.
    held: u64,
    eased: Vec<u64>,
    /// For how long a slice can be spent, in nanoseconds.
    slice_life: u64,
    /// What was taken before the store lost its counts and given back afterwards, and when they were lost, in nanoseconds: the store
    /// cannot know that it has forgotten the take, so the room goes to others. Together with the interval before the loss no more
    /// than the ceiling passes.
    given_back: Vec<(u64, u64)>,
    /// The node of each process, when it began and ended, and from when on it may think that it is alone. Then it grants the whole
    /// limit.
    processes: Vec<(usize, u64, u64, u64)>,
    /// If one server was down, the other may have decided its part some time before the answer.
    earlier: u64,
}

impl<'s> Ceiling<'s> {
    fn new(scenario: &'s Scenario, history: &History, subject: usize) -> Self {
        let nodes = u32::try_from(scenario.clocks.len()).unwrap();
        let limits = scenario.rules_of(subject).map(|rule| (rule.limit(), rule.share(nodes)));
        let lost = scenario.faults.iter().filter(|fault| fault.kind.loses_data());
        let losses: Vec<u64> = lost.map(lost_at).collect();
        let eases = |fault: &&crate::Fault| {
            let edits = matches!(fault.kind, FaultKind::NewPolicy(_) | FaultKind::ForeignState(_));
            fault.kind.loses_data() || edits
        };
        let of_process = |(process, (node, began, ended)): (usize, &(usize, u64, u64))| {
            let alone_from = match knows_the_others(scenario, history, process) {
                true => u64::MAX,
                false => sees_nothing_until(scenario, history, process),
            };
            (*node, *began, *ended, alone_from)
        };
        let life = |(limit, _): &(Limit, Limit)| {
            limit.slice_life().map_or(0, Span::as_nanos) + Span::from_secs(1).as_nanos()
        };
        Self {
            scenario,
            slice_life: life(&limits[0]).max(life(&limits[1])),
            limits,
            given_back: given_back_after_a_loss(scenario, history, subject, &losses),
            losses,
            held: if subject < scenario.users() { scenario.most_held() } else { 0 },
            eased: scenario.faults.iter().filter(eases).map(lost_at).collect(),
            processes: history.processes.iter().enumerate().map(of_process).collect(),
            earlier: if scenario.tenants.is_some() { PATIENCE } else { 0 },
        }
    }

    /// The limit of the store, once more for each time that it lost its counts. A failover loses the counts of its replication lag.
    fn of_store(&self, from: u64, to: u64) -> u64 {
        let from = from.saturating_sub(self.earlier);
        let losses = 1 + count_within(&self.losses, from, to);
        let of = |(limit, _): &(Limit, Limit)| {
            of_one(limit, from, to, self.scenario.store_clock, 0) * losses
        };
        of(&self.limits[0]).max(of(&self.limits[1]))
    }

    /// What may pass at most between two instants: what the store lets pass, and the share of every process.
    fn of_all(&self, from: u64, to: u64) -> u64 {
        let of_store = self.of_store(from, to);
        if self.scenario.is_healthy() {
            return of_store;
        }
        let from = from.saturating_sub(self.earlier);
        let millis = |nanos: u64| nanos / 1_000_000;
        let by = |(limit, share): &(Limit, Limit)| {
            let of_process = |(node, began, ended, alone_from): &(usize, u64, u64, u64)| {
                let lives = *began <= millis(to) && millis(from) <= *ended;
                let (off, drift) = self.scenario.clocks[*node];
                let share = if *alone_from < millis(to) { limit } else { share };
                if lives { of_one(share, from, to, off, drift) } else { 0 }
            };
            self.processes.iter().map(of_process).sum::<u64>()
        };
        of_store + by(&self.limits[0]).max(by(&self.limits[1]))
    }

    /// What may pass in addition, because something was lost or edited.
    fn eased(&self, from: u64, to: u64) -> u64 {
        let earlier = self.given_back.iter().filter(|(lost, _)| *lost <= from);
        let given_back: u64 = earlier.map(|(_, amount)| amount).sum();
        // What was held then can be spent for as long as a slice lives.
        let from = from.saturating_sub(self.slice_life);
        self.held * count_within(&self.eased, from, to) + given_back
    }
}

/// How many of these times, in milliseconds, are within an interval.
fn count_within(times: &[u64], from: u64, to: u64) -> u64 {
    let (from, to) = (from / 1_000_000, to / 1_000_000);
    let within = times.iter().filter(|at| from <= **at + 1 && **at <= to + 1);
    u64::try_from(within.count()).unwrap()
}

/// What was taken before the store lost its counts, and reported or undone afterwards, each with the time of the first such loss.
fn given_back_after_a_loss(
    scenario: &Scenario,
    history: &History,
    subject: usize,
    losses: &[u64],
) -> Vec<(u64, u64)> {
    let of = |answer: &Answered| {
        let (taken, settled) = (answer.decided_of(subject), answer.settled);
        let losses = losses.iter().map(|lost| lost * 1_000_000);
        let between = losses.filter(|lost| taken <= *lost + 1_000_000 && *lost <= settled);
        Some((between.min()?, answer.given_back.1))
    };
    let passed = history.answered.iter().filter(|answer| answer.is_of(subject) && answer.allowed);
    let states = [0, 1].map(|version| names::state(scenario, subject, version));
    let undone = history.undone_after_loss.iter().filter(|(_, state, _)| states.contains(state));
    let undone = undone.map(|(lost, _, cost)| (*lost, *cost));
    passed.filter_map(of).chain(undone).collect()
}

/// The most that one exact counter grants within an interval, by a clock that is off and drifts.
fn of_one(limit: &Limit, from: u64, to: u64, off_millis: i64, drift_ppm: i64) -> u64 {
    let Period::Every(period) = limit.period() else { return u64::MAX };
    let period = period.as_nanos();
    let at = |nanos: u64| crate::network::shifted(nanos, off_millis, drift_ppm).as_nanos();
    // Timers have a resolution of 1 ms, scripts of 1 µs.
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
        Algorithm::SlidingLog | Algorithm::Concurrent => times(lasts / period + 1),
        Algorithm::SlidingBuckets { buckets } => {
            times(lasts / (period - period / u64::from(buckets)) + 1)
        }
    }
}
