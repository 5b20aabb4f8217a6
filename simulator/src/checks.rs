//! What must be true of every history: the promises of the docs, as bounds over true times.

mod answers;
mod charges;
mod passed;

use crate::history::{By, History};
use crate::scenario::{Fault, Kind, Scenario};
use std::fmt;

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
    /// A node that counts by itself let pass more than its share.
    Share {
        /// Which process.
        process: usize,
        /// Who asked.
        user: usize,
        /// What it granted by itself within an interval.
        granted: u64,
        /// Its share.
        share: u64,
    },
    /// A node that counts by itself refused a request for which its share had room.
    Stingy {
        /// Which process.
        process: usize,
        /// Who asked.
        user: usize,
        /// What it had granted the user before, and the cost of the request.
        wanted: u64,
        /// Its share.
        share: u64,
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
    /// A caller waited for a store that its node knew to be away.
    Waited {
        /// For how many milliseconds.
        millis: u64,
    },
    /// A caller was never answered.
    Unanswered(usize),
    /// A node decided by itself although nothing was wrong.
    FellBack(usize),
    /// A refusal was remembered for too long: the store would not have refused.
    StaleDenial(usize),
    /// The store counted a request long after its caller had left.
    Counted {
        /// How long it was on its way, in milliseconds.
        millis: u64,
    },
    /// After everything was healed a node still did not ask the store.
    NotHealed(usize),
    /// Something is wrong for good, and a node does not say so.
    Silent(usize),
    /// Nothing is wrong any more, and a node still says so.
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
                "share: process {process} refused user {user}, who has {wanted} with it, {share} is its share"
            ),
            Self::ChargedTooMuch { user, counted, at_most } => {
                write!(f, "charges: {counted} are counted of user {user}, {at_most} is the most")
            }
            Self::ChargedTooLittle { user, counted, at_least } => {
                write!(f, "charges: {counted} are counted of user {user}, {at_least} is the least")
            }
            Self::Late { millis } => write!(f, "deadline: a caller waited for {millis} ms"),
            Self::Waited { millis } => {
                write!(f, "breaker: a caller waited for {millis} ms for a store that was away")
            }
            Self::Unanswered(process) => write!(f, "answers: process {process} left one out"),
            Self::FellBack(process) => {
                write!(f, "fallback: process {process} decided by itself for no reason")
            }
            Self::StaleDenial(user) => {
                write!(f, "denial cache: user {user} was refused, and not by the store")
            }
            Self::Counted { millis } => {
                write!(f, "deadline: a request was counted after {millis} ms")
            }
            Self::NotHealed(node) => write!(f, "healing: node {node} does not ask the store"),
            Self::Silent(node) => write!(f, "honesty: node {node} does not say what is wrong"),
            Self::Alarmed(node) => write!(f, "honesty: node {node} says that something is wrong"),
        }
    }
}

/// What is wrong with a history.
#[must_use]
pub fn violations(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut found: Vec<Violation> =
        history.wrong.iter().map(|wrong| Violation::Replay(wrong.clone())).collect();
    found.extend(history.counted_late.iter().map(|millis| Violation::Counted { millis: *millis }));
    found.extend(answers::violations(scenario, history));
    for user in 0..history.counted.len() {
        found.extend(passed::ceiling(scenario, history, user));
        found.extend(passed::shares(scenario, history, user));
        found.extend(charges::violation(scenario, history, user));
    }
    for (node, by, complaint) in &history.healed {
        if *by != Some(By::Store) {
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

/// Whether another program's data, or a command that is not there, is in the way of nodes or shapes in the end.
fn broken_for_good(scenario: &Scenario) -> bool {
    let broken =
        |kind: &Kind| matches!(kind, Kind::ForeignShapes | Kind::ForeignNodes | Kind::ForbidEval);
    let broken = scenario.faults.iter().filter(|fault| broken(&fault.kind)).map(|fault| fault.at);
    // What loses our data loses theirs.
    let lost = scenario.faults.iter().filter(|fault| fault.kind.loses_data()).map(lost_at);
    broken.max() > lost.max()
}

/// Whether nothing of other programs is left in the end, and no command is missing. A replica may bring back what was lost.
fn nothing_is_left(scenario: &Scenario) -> bool {
    let last = |wanted: fn(&Kind) -> bool| {
        let faults = scenario.faults.iter().filter(move |fault| wanted(&fault.kind));
        faults.map(lost_at).max()
    };
    // A state with foreign data is named for a while after it was last asked for.
    let named = last(|kind| matches!(kind, Kind::ForeignState(_))).is_some();
    let foreign = last(|kind| matches!(kind, Kind::ForeignShapes | Kind::ForeignNodes));
    let fails_over = last(|kind| matches!(kind, Kind::Failover { .. })).is_some();
    let gone = || foreign < last(Kind::loses_data) && !fails_over;
    let forbidden = last(|kind| *kind == Kind::ForbidEval).is_some();
    !named && !forbidden && (foreign.is_none() || gone())
}

/// When a fault that loses data does.
const fn lost_at(fault: &Fault) -> u64 {
    if matches!(fault.kind, Kind::StoreDown { .. }) { fault.until } else { fault.at }
}
