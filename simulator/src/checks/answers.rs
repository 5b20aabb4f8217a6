//! Whether every caller was answered, in time, and by the one who should: the store where it can be asked, the node's
//! share where it cannot.

use super::Violation;
use crate::history::{Answered, By, History};
use crate::scenario::{Fault, Kind, Scenario};
use std::collections::BTreeMap;

/// How soon after a fault is over the store is asked again, in milliseconds: a keeper pauses for 400 ms and waits for
/// a connection for a second.
const MENDED_WITHIN: u64 = 3_000;
/// Replies that were on their way when an outage began have arrived by then, in milliseconds.
const ARRIVED_WITHIN: u64 = 300;
/// A caller that waited for so long is a failure of the store, in nanoseconds: half of its timeout.
const FAILED_AFTER: u64 = 25 * NANOS_PER_MILLI;
/// So many failures in a row, and the store is not asked any more.
const MOST_FAILURES: usize = 5;
/// What an answer without the store may take, in nanoseconds: timers count milliseconds.
const AT_ONCE: u64 = 3 * NANOS_PER_MILLI;
/// What a node assumes that has not counted the others.
const ASSUMED_NODES: u32 = 8;
const NANOS_PER_MILLI: u64 = 1_000_000;

/// What is wrong with the answers of a history.
pub(super) fn violations(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut found: Vec<Violation> =
        history.unanswered.iter().map(|process| Violation::Unanswered(*process)).collect();
    for answer in &history.answered {
        if answer.answered > answer.deadline {
            let millis = (answer.answered - answer.asked) / NANOS_PER_MILLI;
            found.push(Violation::Late { millis });
        }
        if answer.by == By::Cache && !answer.refused_there {
            found.push(Violation::StaleDenial(answer.user));
        }
        if answer.by == By::Fallback && !is_excused(scenario, answer) {
            found.push(Violation::FellBack(answer.process));
        }
    }
    found.extend(waited(scenario, history));
    found.extend(stingy(scenario, history));
    found
}

/// Whether there is a reason that the store was not asked, or did not answer: a caller in a hurry, or a fault, also one that
/// is just over.
fn is_excused(scenario: &Scenario, answer: &Answered) -> bool {
    let (asked, answered) = (answer.asked / NANOS_PER_MILLI, answer.answered / NANOS_PER_MILLI);
    let excuses = |fault: &Fault| match fault.kind {
        Kind::ForeignState(user) => user == answer.user && fault.at <= answered,
        // No limit depends on registries, on what was counted before, or on the wall clock.
        Kind::ForeignShapes
        | Kind::ForeignNodes
        | Kind::ForbidEval
        | Kind::WallStep(..)
        | Kind::NewPolicy(_)
        | Kind::LoseData => false,
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
        | Kind::Crash(_)
        | Kind::NodePaused(_) => fault.at <= answered && asked <= fault.until + MENDED_WITHIN,
    };
    answer.hurried || scenario.faults.iter().any(excuses)
}

/// Callers that waited for a store although it had let down enough others before them. Of one server: of two, each is given up
/// for itself.
fn waited(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for fault in scenario.faults.iter().filter(|_| scenario.servers() == 1) {
        for (process, (node, ..)) in history.processes.iter().enumerate() {
            if fault.kind != Kind::Partition(*node) && fault.kind != Kind::StorePaused {
                continue;
            }
            let from = (fault.at + ARRIVED_WITHIN) * NANOS_PER_MILLI;
            let until = fault.until * NANOS_PER_MILLI;
            let during = || {
                history.answered.iter().filter(move |answer| {
                    let patient = answer.process == process && !answer.hurried;
                    patient && from <= answer.asked && answer.answered < until
                })
            };
            let took = |answer: &Answered| answer.answered - answer.asked;
            let mut failures = during().filter(|answer| took(answer) >= FAILED_AFTER);
            let Some(last) = failures.nth(MOST_FAILURES - 1) else { continue };
            let waits = |answer: &&Answered| answer.asked > last.answered && took(answer) > AT_ONCE;
            found.extend(
                during()
                    .filter(waits)
                    .map(|answer| Violation::Waited { millis: took(answer) / NANOS_PER_MILLI }),
            );
        }
    }
    found
}

/// Refusals of nodes that counted by themselves and had room: whatever has come back meanwhile, no more is used than was
/// ever granted.
fn stingy(scenario: &Scenario, history: &History) -> Vec<Violation> {
    // Callers of a leaky bucket wait for their turns, and these do not wait. Where tenants have a rule, too, the store may have
    // refused, or granted, its part.
    if scenario.rules[0].algorithm == "leaky_bucket" || scenario.tenants.is_some() {
        return vec![];
    }
    let mut granted: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let mut found = Vec::new();
    for answer in history.answered.iter().filter(|answer| answer.by == By::Fallback) {
        let (process, user) = (answer.process, answer.user);
        let before = granted.entry((process, user)).or_default();
        if answer.allowed {
            *before += answer.cost;
            continue;
        }
        let (wanted, share) = (*before + answer.cost, least_share(scenario, history, process));
        if wanted <= share {
            found.push(Violation::Stingy { process, user, wanted, share });
        }
    }
    found
}

/// The smallest share that a process may take for its own.
fn least_share(scenario: &Scenario, history: &History, process: usize) -> u64 {
    let (node, began, _) = history.processes[process];
    // By the time of the first request a node has counted the others, unless it was restarted or its clock is slow.
    let counted = began == 0 && scenario.clocks[node].1 >= 0;
    let ever = u32::try_from(history.processes.len()).unwrap();
    let nodes = if counted { ever } else { ever.max(ASSUMED_NODES) };
    let share = |rule: &crate::RuleSpec| rule.share(nodes).capacity();
    scenario.rules.iter().map(share).min().unwrap()
}
