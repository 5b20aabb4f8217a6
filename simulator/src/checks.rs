//! The promises that every history must keep: those of `docs/outages.md`, as bounds over intervals of the true time.

mod answers;
mod charges;
mod passed;

use crate::history::{Decider, History};
use crate::scenario::{Fault, FaultKind, Scenario};
use std::fmt;

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The store, or a node that passed on its answer, decided differently from the core on the same history.
    Replay(String),
    /// More passed than the documented ceiling: what the store may grant, plus the share of each fallback.
    Ceiling {
        /// The user or tenant.
        user: usize,
        /// How much passed within an interval.
        passed: u64,
        /// How much may pass.
        ceiling: u64,
    },
    /// A fallback granted more than its share.
    Share {
        /// The process.
        process: usize,
        /// The user.
        user: usize,
        /// How much the fallback granted within an interval.
        granted: u64,
        /// Its share.
        share: u64,
    },
    /// A fallback refused a request although its share had room.
    Stingy {
        /// The process.
        process: usize,
        /// The user.
        user: usize,
        /// How much it had granted the user before, plus the cost of the request.
        wanted: u64,
        /// Its share.
        share: u64,
    },
    /// The store counted more than was granted, beyond the costs of lost replies.
    ChargedTooMuch {
        /// The user or tenant.
        user: usize,
        /// How much the store has counted.
        counted: u64,
        /// How much it may count.
        at_most: u64,
    },
    /// The store was never charged for what fallbacks granted.
    ChargedTooLittle {
        /// The user or tenant.
        user: usize,
        /// How much the store has counted.
        counted: u64,
        /// How much it must count.
        at_least: u64,
    },
    /// A caller waited longer than its timeout.
    Late {
        /// How long, in milliseconds.
        millis: u64,
    },
    /// A caller waited for a store that its node knew to be down.
    WaitedForDownStore {
        /// How long, in milliseconds.
        millis: u64,
    },
    /// A process left a caller without an answer.
    Unanswered(usize),
    /// A process used its fallback although nothing was wrong.
    FellBack(usize),
    /// A denial cache refused a user whom the store would not have refused.
    StaleDenial(usize),
    /// The store counted a request long after its caller had given up.
    CountedLate {
        /// How long the request was under way, in milliseconds.
        millis: u64,
    },
    /// A node still does not use the store after all faults are over.
    NotHealed(usize),
    /// Something is wrong for good, and a node does not complain.
    Silent(usize),
    /// Nothing is wrong any more, and a node still complains.
    Alarmed(usize),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replay(what) => write!(f, "replay: {what}"),
            Self::Ceiling { user, passed, ceiling } => {
                write!(f, "ceiling: {passed} passed of user {user}, {ceiling} is the most")
            }
            Self::Share { process, user, granted, share } => {
                write!(
                    f,
                    "share: process {process} granted {granted} to user {user}, {share} is its share"
                )
            }
            Self::Stingy { process, user, wanted, share } => write!(
                f,
                "share: process {process} refused user {user} {wanted} in all, {share} is its share"
            ),
            Self::ChargedTooMuch { user, counted, at_most } => {
                write!(f, "charges: {counted} are counted of user {user}, {at_most} is the most")
            }
            Self::ChargedTooLittle { user, counted, at_least } => {
                write!(f, "charges: {counted} are counted of user {user}, {at_least} is the least")
            }
            Self::Late { millis } => write!(f, "deadline: a caller waited for {millis} ms"),
            Self::WaitedForDownStore { millis } => {
                write!(f, "breaker: a caller waited {millis} ms for a store that was down")
            }
            Self::Unanswered(process) => {
                write!(f, "answers: process {process} left a request without an answer")
            }
            Self::FellBack(process) => {
                write!(f, "fallback: process {process} used its fallback for no reason")
            }
            Self::StaleDenial(user) => {
                write!(f, "denial cache: user {user} was refused, but not by the store")
            }
            Self::CountedLate { millis } => {
                write!(f, "deadline: a request was counted after {millis} ms")
            }
            Self::NotHealed(node) => write!(f, "healing: node {node} does not use the store"),
            Self::Silent(node) => write!(f, "honesty: node {node} does not say what is wrong"),
            Self::Alarmed(node) => {
                write!(f, "honesty: node {node} complains, and nothing is wrong")
            }
        }
    }
}

/// The promises that a history breaks.
#[must_use]
pub fn violations(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut found: Vec<Violation> =
        history.wrong.iter().map(|wrong| Violation::Replay(wrong.clone())).collect();
    found.extend(
        history.counted_late.iter().map(|millis| Violation::CountedLate { millis: *millis }),
    );
    found.extend(answers::violations(scenario, history));
    for user in 0..history.counted.len() {
        found.extend(passed::ceiling(scenario, history, user));
        found.extend(passed::shares(scenario, history, user));
        found.extend(charges::violation(scenario, history, user));
    }
    for (node, by, complaint) in &history.healed {
        if *by != Some(Decider::Store) {
            found.push(Violation::NotHealed(*node));
        }
        if broken_for_good(scenario) && complaint.is_none() {
            found.push(Violation::Silent(*node));
        }
        if nothing_is_left(scenario) && complaint.is_some() {
            found.push(Violation::Alarmed(*node));
        }
    }
    found
}

/// Whether another program's data, or a forbidden command, still prevents counting nodes or registering shapes in the end.
fn broken_for_good(scenario: &Scenario) -> bool {
    let broken = |kind: &FaultKind| {
        matches!(kind, FaultKind::ForeignShapes | FaultKind::ForeignNodes | FaultKind::ForbidEval)
    };
    let broken = scenario.faults.iter().filter(|fault| broken(&fault.kind)).map(|fault| fault.at);
    // A fault that loses tidegate's data also loses the other program's data.
    let lost = scenario.faults.iter().filter(|fault| fault.kind.loses_data()).map(lost_at);
    broken.max() > lost.max()
}

/// Whether no data of other programs is left in the end, and no command is forbidden. A failover may restore such data.
fn nothing_is_left(scenario: &Scenario) -> bool {
    let last = |wanted: fn(&FaultKind) -> bool| {
        let faults = scenario.faults.iter().filter(move |fault| wanted(&fault.kind));
        faults.map(lost_at).max()
    };
    // A state with foreign data is named for 10 s after its last failure.
    let named = last(|kind| matches!(kind, FaultKind::ForeignState(_))).is_some();
    let foreign = last(|kind| matches!(kind, FaultKind::ForeignShapes | FaultKind::ForeignNodes));
    let fails_over = last(|kind| matches!(kind, FaultKind::Failover { .. })).is_some();
    let gone = || foreign < last(FaultKind::loses_data) && !fails_over;
    let forbidden = last(|kind| *kind == FaultKind::ForbidEval).is_some();
    !named && !forbidden && (foreign.is_none() || gone())
}

/// When a fault loses data: a store that is down loses it when it starts again.
const fn lost_at(fault: &Fault) -> u64 {
    if matches!(fault.kind, FaultKind::StoreDown { .. }) { fault.until } else { fault.at }
}
