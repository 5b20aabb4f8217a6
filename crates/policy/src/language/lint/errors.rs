//! Errors: rules that are never reached, and requests with too many limits.

use super::witness::{PopularValues, matching, most_limits, witness};
use super::{MOST_COMPARED, is_always_present};
use crate::document::{MOST_PROBLEMS, Problem};
use crate::model::condition::Condition;
use crate::model::policy::Policy;
use crate::model::rule::Rule;
use tidegate_core::Plan;

/// Limits that a store decides together.
const MOST_TAKES: usize = Plan::MOST_TAKES;

/// Rules that are never reached, and requests with too many limits.
pub(crate) fn errors(policy: &Policy) -> Vec<Problem> {
    let mut problems = unreachable(policy);
    problems.extend(too_many_limits(policy).filter(|_| problems.is_empty()));
    problems
}

/// Rules after a rule with `stop` that matches all of their requests.
fn unreachable(policy: &Policy) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    // Most policies have no `stop`.
    let stops = policy.rules.iter().any(|rule| rule.stop);
    let rules = policy.rules.iter().enumerate().filter(|(_, rule)| rule.enabled && stops);
    let mut compared = 0usize;
    for (number, rule) in rules {
        if problems.len() > MOST_PROBLEMS || compared > MOST_COMPARED {
            break;
        }
        let matching = matching(policy, &witness(rule));
        compared = compared.saturating_add(matching.len());
        let mut earlier = matching.iter().filter(|(n, _)| *n < number);
        if let Some((_, stop)) = earlier.find(|(_, stop)| hides(stop, rule)) {
            let text = format!(
                "rule `{}` is never reached: `{}` at {} matches all of its requests and has `stop: true`",
                rule.name, stop.name, stop.place
            );
            problems.push(Problem::new(rule.place, text));
        }
    }
    problems
}

/// Whether a rule with `stop` leaves no requests to a later one.
fn hides(stop: &Rule, rule: &Rule) -> bool {
    stop.stop && stop.when.is_none() && covers(stop, rule) && {
        // It stops only requests that have its key. So each part of its key must be present whenever the other rule applies.
        let theirs: Vec<Vec<&str>> = rule.key.parts().collect();
        let matched = || rule.conditions.iter().map(Condition::attribute);
        stop.key.parts().all(|part| {
            part.iter().any(|name| matched().any(|known| known == *name))
                || theirs.iter().any(|theirs| theirs.iter().all(|name| part.contains(name)))
        })
    }
}

/// Whether every request that matches `narrow` matches `wide` too.
pub(super) fn covers(wide: &Rule, narrow: &Rule) -> bool {
    wide.conditions.iter().all(|wide| narrow.conditions.iter().any(|narrow| wide.covers(narrow)))
}

/// A request with more limits than are decided together.
fn too_many_limits(policy: &Policy) -> Option<Problem> {
    let popular = PopularValues::of(policy);
    let mut compared = 0usize;
    policy.rules.iter().filter(|rule| rule.enabled).find_map(|rule| {
        [witness(rule), popular.witness(rule)].iter().find_map(|request| {
            if compared > MOST_COMPARED {
                return None;
            }
            let matching = matching(policy, request);
            compared = compared.saturating_add(matching.len());
            have_too_many_limits(&matching).then(|| {
                let text = format!(
                    "more than {MOST_TAKES} limits can apply to one request, such as one that matches `{}`; at most {MOST_TAKES} are decided together",
                    rule.name
                );
                Problem::new(rule.place, text)
            })
        })
    })
}

/// Whether rules that match one request have too many limits, up to a rule that certainly stops.
fn have_too_many_limits(rules: &[(usize, &Rule)]) -> bool {
    let mut limits = 0usize;
    for (_, rule) in rules {
        let with = limits.saturating_add(most_limits(rule));
        let stops = rule.stop && rule.when.is_none();
        let always_applies =
            rule.key.parts().all(|part| part.iter().any(|name| is_always_present(name)));
        if with > MOST_TAKES {
            return true;
        }
        match (stops, always_applies) {
            (true, true) => return false,
            // A request that has its key stops here. A request that continues does not count under this rule.
            (true, false) => {}
            (false, _) => limits = with,
        }
    }
    false
}
