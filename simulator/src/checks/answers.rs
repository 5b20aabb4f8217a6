//! Whether every caller was answered, in time, and by the right decider: the store if it is reachable, the fallback if not.

use super::Violation;
use crate::history::{Answered, Decider, History};
use crate::scenario::{Fault, FaultKind, Scenario};
use std::collections::BTreeMap;

/// How soon after a fault the store is used again, in milliseconds: a keeper pauses for up to 400 ms and waits for a connection
/// for up to 1 s.
const MENDED_WITHIN: u64 = 3_000;
/// Replies that were under way when an outage began have arrived by then, in milliseconds.
const ARRIVED_WITHIN: u64 = 300;
/// The breaker counts a call that waited this long as a failure, in nanoseconds: half of the timeout.
const FAILED_AFTER: u64 = 25 * NANOS_PER_MILLI;
/// The breaker opens after this many failures in a row.
const MAX_FAILURES: usize = 5;
/// How long an answer of the fallback may take, in nanoseconds: timers have a resolution of 1 ms.
const IMMEDIATE: u64 = 3 * NANOS_PER_MILLI;
/// The number that a node assumes before it has counted the others.
const ASSUMED_NODES: u32 = 8;
const NANOS_PER_MILLI: u64 = 1_000_000;

/// The promises that the answers of a history break.
pub(super) fn violations(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut found: Vec<Violation> =
        history.unanswered.iter().map(|process| Violation::Unanswered(*process)).collect();
    for answer in &history.answered {
        if answer.answered > answer.deadline {
            let millis = (answer.answered - answer.asked) / NANOS_PER_MILLI;
            found.push(Violation::Late { millis });
        }
        if answer.by == Decider::Cache && !answer.refused_there {
            found.push(Violation::StaleDenial(answer.user));
        }
        if answer.by == Decider::Fallback && !is_excused(scenario, answer) {
            found.push(Violation::FellBack(answer.process));
        }
    }
    found.extend(waited(scenario, history));
    found.extend(stingy(scenario, history));
    found
}

/// Whether the fallback had a reason: a request with its own timeout, or a fault, also one that has just ended.
fn is_excused(scenario: &Scenario, answer: &Answered) -> bool {
    let (asked, answered) = (answer.asked / NANOS_PER_MILLI, answer.answered / NANOS_PER_MILLI);
    let excuses = |fault: &Fault| match fault.kind {
        FaultKind::ForeignState(user) => user == answer.user && fault.at <= answered,
        // No limit depends on the registries, on earlier counts, or on the wall clock.
        FaultKind::ForeignShapes
        | FaultKind::ForeignNodes
        | FaultKind::ForbidEval
        | FaultKind::WallStep(..)
        | FaultKind::NewPolicy(_)
        | FaultKind::LoseData => false,
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
        | FaultKind::Crash(_)
        | FaultKind::NodePaused(_) => fault.at <= answered && asked <= fault.until + MENDED_WITHIN,
    };
    answer.hurried || scenario.faults.iter().any(excuses)
}

/// Callers that waited for the store although enough calls had failed before to open the breaker. Only with one server: two
/// servers have a breaker each.
fn waited(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for fault in scenario.faults.iter().filter(|_| scenario.servers() == 1) {
        for (process, (node, ..)) in history.processes.iter().enumerate() {
            if fault.kind != FaultKind::Partition(*node) && fault.kind != FaultKind::StorePaused {
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
            let Some(last) = failures.nth(MAX_FAILURES - 1) else { continue };
            let waits =
                |answer: &&Answered| answer.asked > last.answered && took(answer) > IMMEDIATE;
            found.extend(during().filter(waits).map(|answer| Violation::WaitedForDownStore {
                millis: took(answer) / NANOS_PER_MILLI,
            }));
        }
    }
    found
}

/// Refusals of fallbacks whose share had room. The amount in use is at most everything that the fallback ever granted.
fn stingy(scenario: &Scenario, history: &History) -> Vec<Violation> {
    // A leaky bucket makes callers wait for their turns, and these callers do not wait. If tenants have a rule too, the store may
    // have decided one part of the request.
    if scenario.rules[0].algorithm == "leaky_bucket" || scenario.tenants.is_some() {
        return vec![];
    }
    let mut granted: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let mut found = Vec::new();
    for answer in history.answered.iter().filter(|answer| answer.by == Decider::Fallback) {
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

/// The smallest share that a process may use.
fn least_share(scenario: &Scenario, history: &History, process: usize) -> u64 {
    let (node, began, _) = history.processes[process];
    // At the first request a node has counted the others, unless it was restarted or its clock is slow.
    let counted = began == 0 && scenario.clocks[node].1 >= 0;
    // A process that has the disk of the one before it is the same node.
    let identities =
        if scenario.keeps_disk { scenario.clocks.len() } else { history.processes.len() };
    let ever = u32::try_from(identities).unwrap();
    let nodes = if counted { ever } else { ever.max(ASSUMED_NODES) };
    let share = |rule: &crate::RuleSpec| rule.share(nodes).capacity();
    scenario.rules.iter().map(share).min().unwrap()
}
