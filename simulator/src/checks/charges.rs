//! Whether the store has counted in the end exactly what was granted.

use super::Violation;
use crate::history::{Answered, History};
use crate::names::state;
use crate::scenario::{FaultKind, RuleSpec, Scenario};

/// Whether the final count of a user or tenant is wrong. It can be checked only under a limit that forgets nothing during the
/// run, and only if the store lost nothing.
pub(super) fn violation(scenario: &Scenario, history: &History, user: usize) -> Option<Violation> {
    let [rule, _] = scenario.rules_of(user);
    let can_be_checked = rule.seconds >= 3_600
        && rule.algorithm != "leaky_bucket"
        && !scenario.faults.iter().any(|fault| {
            fault.kind.loses_data()
                || matches!(
                    fault.kind,
                    FaultKind::ForeignState(_) | FaultKind::Crash(_) | FaultKind::NewPolicy(_)
                )
        });
    if !can_be_checked {
        return None;
    }
    let of_user = |answer: &&Answered| answer.is_of(user) && answer.allowed;
    let sum = |of: fn(&Answered) -> u64| history.answered.iter().filter(of_user).map(of).sum();
    let granted: u64 = sum(|answer| answer.cost);
    let given_back: (u64, u64) =
        (sum(|answer| answer.given_back.0), sum(|answer| answer.given_back.1));
    let untold = history.untold.get(&state(scenario, user, 0)).copied().unwrap_or(0);
    let counted = history.counted[user];
    let at_most = granted + untold + history.short[user] - given_back.0;
    // A token bucket refills by a few tokens during the run.
    let at_least = granted.min(rule.limit().capacity());
    let at_least = at_least.saturating_sub(refilled(scenario, rule) + given_back.1);
    // A state whose shape cannot be looked up counts as full.
    let unknown =
        |kind: &FaultKind| matches!(kind, FaultKind::ForeignShapes | FaultKind::ForbidEval);
    let may_be_full = scenario.faults.iter().any(|fault| unknown(&fault.kind));
    // What nodes hold counts as if it were spent.
    let is_leased = scenario.lease.is_some() && user < scenario.users();
    if counted > at_most && !may_be_full && !is_leased {
        return Some(Violation::ChargedTooMuch { user, counted, at_most });
    }
    (counted < at_least).then_some(Violation::ChargedTooLittle { user, counted, at_least })
}

/// How many tokens a bucket refills during the run, rounded up.
fn refilled(scenario: &Scenario, rule: &RuleSpec) -> u64 {
    if rule.algorithm == "token_bucket" {
        return (scenario.ends() / 1_000 + 10) * rule.amount / rule.seconds + 1;
    }
    0
}
