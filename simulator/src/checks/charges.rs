//! Whether the store has counted in the end what was granted, no more and no less.

use super::Violation;
use crate::history::{Answered, History};
use crate::run::state;
use crate::scenario::{Kind, RuleSpec, Scenario};

/// What is wrong with the counts of a user in the end. Only where that can be told: under a limit that forgets
/// nothing meanwhile, by a store that lost nothing.
pub(super) fn violation(scenario: &Scenario, history: &History, user: usize) -> Option<Violation> {
    let [rule, _] = scenario.rules_of(user);
    let told_apart = rule.seconds >= 3_600
        && rule.algorithm != "leaky_bucket"
        && !scenario.faults.iter().any(|fault| {
            fault.kind.loses_data()
                || matches!(fault.kind, Kind::ForeignState(_) | Kind::Crash(_) | Kind::NewPolicy(_))
        });
    if !told_apart {
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
    // A bucket's tokens come back, a few within a history.
    let at_least = granted.min(rule.limit().capacity());
    let at_least = at_least.saturating_sub(refilled(scenario, rule) + given_back.1);
    // A state whose shape cannot be looked up counts as full.
    let unknown = |kind: &Kind| matches!(kind, Kind::ForeignShapes | Kind::ForbidEval);
    let may_be_full = scenario.faults.iter().any(|fault| unknown(&fault.kind));
    if counted > at_most && !may_be_full {
        return Some(Violation::ChargedTooMuch { user, counted, at_most });
    }
    (counted < at_least).then_some(Violation::ChargedTooLittle { user, counted, at_least })
}

/// What comes back of a bucket within a history, rounded up.
fn refilled(scenario: &Scenario, rule: &RuleSpec) -> u64 {
    if rule.algorithm == "token_bucket" {
        return (scenario.ends() / 1_000 + 10) * rule.amount / rule.seconds + 1;
    }
    0
}
