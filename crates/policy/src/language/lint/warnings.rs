//! Warnings: valid policies that probably do not do what their author wants.

use super::errors::covers;
use super::throughput::makes_useless;
use super::witness::{matching, witness};
use super::{ALWAYS_PRESENT, MOST_COMPARED, is_always_present};
use crate::document::{MOST_PROBLEMS, Problem, shortened};
use crate::model::allowance::Allowance;
use crate::model::condition::Condition;
use crate::model::expression::Expression;
use crate::model::identity::Peers;
use crate::model::path::Case;
use crate::model::pattern::Pattern;
use crate::model::policy::Policy;
use crate::model::rule::{Consistency, OnLimit, Rule};
use crate::suggest::nearest;
use std::collections::HashMap;
use tidegate_core::{Limit, RejectedCost};

/// All warnings of a policy, in the order of the file.
pub(crate) fn warnings(policy: &Policy) -> Vec<Problem> {
    let mut problems = identity_warnings(policy);
    let enough = |problems: &Vec<Problem>| problems.len() > MOST_PROBLEMS;
    let mut compared = 0usize;
    for (number, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| rule.enabled) {
        let matching = matching(policy, &witness(rule));
        compared = compared.saturating_add(matching.len());
        if enough(&problems) || compared > MOST_COMPARED {
            break;
        }
        problems.extend(useless_limits(rule));
        problems.extend(uncounted(rule, &matching));
        problems.extend(invented(policy, rule, &matching));
        problems.extend(exempts_from_nothing(policy, number, rule));
        problems.extend(other_algorithm(rule));
        problems.extend(duplicate_rule(&matching, number, rule));
        problems.extend(conflicting_settings(rule));
        problems.extend(misspelt(policy, rule));
        problems.extend(literal_pattern(rule));
        problems.extend(case_variants(rule));
        problems.extend(unknown_tier(policy, rule));
        problems.extend(unreturned_permits(policy, rule));
        problems.extend(stays_exact(rule));
    }
    problems.sort_by_key(|problem| problem.place);
    shortened(problems)
}

/// A limit of a leased rule that two nodes would not lease.
fn stays_exact(rule: &Rule) -> Option<Problem> {
    let Consistency::Lease(terms) = &rule.consistency else { return None };
    let mut limits = rule.allowances().flat_map(Allowance::limits);
    let limit = limits.find(|limit| !limit.limit().is_worth_leasing(terms, 2))?;
    let least = Limit::LEAST_LEASED_PART.saturating_mul(2);
    let why = if limit.limit().capacity() < least.saturating_mul(2) {
        format!("a limit is leased from {least} for each node on")
    } else {
        "its windows must be at least ten intervals of the lease long".to_owned()
    };
    let text = format!(
        "`consistency: lease` has no effect on {}: {why}; until then the store decides each request",
        limit.summary()
    );
    Some(Problem::new(rule.place, text))
}

fn identity_warnings(policy: &Policy) -> Vec<Problem> {
    let identity = &policy.identity;
    let mut problems = Vec::new();
    let mut warn = |text: String| problems.push(Problem::new(identity.place, text));
    // Claims of tokens are read from every peer.
    let mut read = identity
        .sources
        .iter()
        .filter(|(_, source)| source.place.verified().is_none() && source.peers == Peers::Trusted);
    if let Some((name, _)) = read.next().filter(|_| identity.trusted.is_empty()) {
        warn(format!(
            "`identity.{name}` is read from requests, but `trusted` is empty: the attribute will always be absent, and behind a proxy all clients share the proxy's address; list your proxies, or write `{{ from: …, peers: any }}` for a credential that clients send themselves, such as an API key"
        ));
    }
    if identity.everyone {
        warn("`trusted: everyone`: every client that reaches this port can forge these headers; let only your proxies reach it".to_owned());
    }
    if identity.ipv6_prefix > 64 {
        warn(format!(
            "`ipv6_prefix: {}`: a single host has 2⁶⁴ addresses, so it has as many counters; write 64 to count it as one client",
            identity.ipv6_prefix
        ));
    }
    problems
}

/// Limits that have no effect because of another limit of the same rule.
fn useless_limits(rule: &Rule) -> Vec<Problem> {
    let limits = rule.allowance.limits();
    let hidden = limits.iter().enumerate().filter_map(|(at, limit)| {
        let others = limits.iter().enumerate().filter(|(other, _)| *other != at);
        let mut hiding = others.filter(|(_, other)| makes_useless(other.limit(), limit.limit()));
        let (other_at, other) = hiding.next()?;
        // Of two equal limits, only one is useless.
        let mutual = makes_useless(limit.limit(), other.limit()) && other_at > at;
        (!mutual).then(|| {
            let text = format!(
                "rule `{}`: `{}` has no effect, because `{}` is stricter",
                rule.name,
                limit.summary(),
                other.summary()
            );
            Problem::new(rule.place, text)
        })
    });
    hidden.collect()
}

/// Requests that match a rule but lack its key, and that no other rule counts.
fn uncounted(rule: &Rule, matching: &[(usize, &Rule)]) -> Option<Problem> {
    let part = rule.key.parts().find(|part| !part.iter().any(|name| is_always_present(name)))?;
    let counts = |other: &Rule| {
        let always = other.key.parts().all(|part| part.iter().any(|name| is_always_present(name)));
        let demands =
            rule.conditions.iter().filter(|condition| !part.contains(&condition.attribute()));
        let demands: Vec<&Condition> = demands.collect();
        let covers =
            other.conditions.iter().all(|wide| demands.iter().any(|narrow| wide.covers(narrow)));
        always && covers && other.when.is_none() && !other.shadow && !other.counts_nothing()
    };
    let matched = rule.conditions.iter().any(|condition| part.contains(&condition.attribute()));
    if rule.counts_nothing() || matched || matching.iter().any(|(_, other)| counts(other)) {
        return None;
    }
    let names = part.join("|");
    let text = format!(
        "rule `{}`: no rule counts a request without `{names}`; write `{names}|ip`, or add a rule with `key: [ip]`",
        rule.name
    );
    Some(Problem::new(rule.place, text))
}

/// An earlier rule with the same conditions and the same key.
fn duplicate_rule(matching: &[(usize, &Rule)], number: usize, rule: &Rule) -> Option<Problem> {
    let same = |other: &Rule| {
        other.conditions == rule.conditions
            && other.key == rule.key
            && other.when == rule.when
            && (other.shadow, &other.on_limit) == (rule.shadow, &rule.on_limit)
            && (other.count, &other.mode) == (rule.count, &rule.mode)
            && !other.counts_nothing()
            && !rule.counts_nothing()
    };
    let earlier = matching.iter().find(|(n, other)| *n < number && same(other))?;
    let text = format!(
        "rule `{}` has the same conditions and key as `{}` at {}; both apply, so write their limits in one rule",
        rule.name, earlier.1.name, earlier.1.place
    );
    Some(Problem::new(rule.place, text))
}

/// A rule whose key a client can invent, while no rule limits the client by its address.
fn invented(policy: &Policy, rule: &Rule, matching: &[(usize, &Rule)]) -> Option<Problem> {
    let name = rule.key.names().find(|name| policy.identity.lets_clients_invent(name))?;
    let bounds = |other: &Rule| {
        let certain = other.key.names().all(|name| ["ip", "method"].contains(&name));
        certain && covers(other, rule) && other.when.is_none() && !other.counts_nothing()
    };
    let mut bounding = matching.iter().filter(|(_, other)| !other.shadow && bounds(other));
    if rule.counts_nothing() || bounding.next().is_some() {
        return None;
    }
    let text = format!(
        "rule `{}`: `{name}` is read from every peer (`peers: any`), so a client that invents values gets a new counter for each of them; add a rule with `key: [ip]` for the same requests",
        rule.name
    );
    Some(Problem::new(rule.place, text))
}

/// An unlimited rule that changes nothing: it exempts only from later rules, and only with `stop`.
fn exempts_from_nothing(policy: &Policy, number: usize, rule: &Rule) -> Option<Problem> {
    let changes_something = rule.priority.is_some() || !rule.counts_nothing();
    if rule.allowance != Allowance::Unlimited || changes_something {
        return None;
    }
    let mut later = policy.rules.iter().skip(number.saturating_add(1));
    let why = match (rule.stop, later.any(|rule| rule.enabled)) {
        (true, true) => return None,
        (true, false) => {
            "`stop: true` skips only later rules, and there are none; put it above the rules that it exempts from"
        }
        (false, _) => "the other rules still count its requests; add `stop: true`",
    };
    let text = format!("rule `{}`: `limits: unlimited` has no effect: {why}", rule.name);
    Some(Problem::new(rule.place, text))
}

/// A tier or an override that counts by another algorithm than the rule, so that a customer gets a fresh allowance with it.
fn other_algorithm(rule: &Rule) -> Option<Problem> {
    let limits = rule.allowance.limits();
    let of_tier = rule.tiers.iter().find_map(|(tier, allowance)| {
        allowance.departure(limits).map(|text| format!("tier `{tier}`: {text}"))
    });
    let of_override = || {
        let text = rule.overrides.allowances().find_map(|allowance| allowance.departure(limits));
        text.map(|text| format!("an override: {text}"))
    };
    let text = of_tier.or_else(of_override)?;
    Some(Problem::new(rule.place, format!("rule `{}`: {text}", rule.name)))
}

/// Settings that do not work well together.
fn conflicting_settings(rule: &Rule) -> Option<Problem> {
    if rule.count_rejected == RejectedCost::Charged
        && matches!(rule.on_limit, OnLimit::Delay { .. })
    {
        let text = format!(
            "rule `{}`: `count_rejected: true` with `delay` charges a waiting request for every attempt; remove one of them",
            rule.name
        );
        return Some(Problem::new(rule.place, text));
    }
    None
}

/// An attribute that is not known, but nearly spelled like one that is.
fn misspelt(policy: &Policy, rule: &Rule) -> Option<Problem> {
    let known = || {
        let own = policy.identity.sources.iter().map(|(name, _)| &**name);
        own.chain(ALWAYS_PRESENT)
    };
    let in_when = rule
        .when
        .iter()
        .flat_map(Expression::names)
        .filter(|name| !["cost", "tier"].contains(name));
    let matched = rule.conditions.iter().map(Condition::attribute).chain(in_when);
    let mut names = rule.key.names().chain(matched);
    let (name, meant) = names.find_map(|name| {
        let unknown = !known().any(|known| known == name);
        let near = nearest(name, known()).filter(|_| unknown && name.len() > 2)?;
        Some((name, near))
    })?;
    let text = format!(
        "rule `{}`: `{name}` is not an attribute of `identity`; did you mean `{meant}`?",
        rule.name
    );
    Some(Problem::new(rule.place, text))
}

/// A text that would be a pattern in other languages.
fn literal_pattern(rule: &Rule) -> Option<Problem> {
    rule.conditions.iter().find_map(|condition| {
        let text = match condition {
            Condition::Path(patterns) => {
                let segment = patterns.iter().find_map(|pattern| pattern.variable())?;
                format!("`{segment}` is matched literally; write `*` for any one segment")
            }
            Condition::Named(name, values) => {
                let value = values.iter().find(|value| value.contains('*'))?;
                format!(
                    "`{name}: {value}` is compared literally; a star has no special meaning here"
                )
            }
            Condition::Method(_) | Condition::Ip(_) => return None,
        };
        Some(Problem::new(rule.place, format!("rule `{}`: {text}", rule.name)))
    })
}

/// Paths that differ only in case. An author who lists two spellings probably means all of them.
fn case_variants(rule: &Rule) -> Option<Problem> {
    let mut seen: HashMap<String, &Pattern> = HashMap::new();
    let paths = rule.conditions.iter().filter_map(|condition| match condition {
        Condition::Path(patterns) => Some(patterns),
        Condition::Method(_) | Condition::Ip(_) | Condition::Named(..) => None,
    });
    let (first, second) = paths.flatten().find_map(|pattern| {
        let folded = Case::Insensitive.fold(&pattern.to_string()).into_owned();
        let first = *seen.entry(folded).or_insert(pattern);
        (first != pattern).then_some((first, pattern))
    })?;
    let text = format!(
        "rule `{}`: `{first}` and `{second}` differ only in case; `case_insensitive: true` matches every such spelling",
        rule.name
    );
    Some(Problem::new(rule.place, text))
}

/// A rule on a tier that does not exist.
fn unknown_tier(policy: &Policy, rule: &Rule) -> Option<Problem> {
    let tiers = rule.conditions.iter().find(|condition| condition.attribute() == "tier")?;
    let unknown = tiers.values().find(|tier| !policy.tiers.is_known(tier))?;
    let known = policy.tiers.listed();
    let text = format!("rule `{}`: there is no tier `{unknown}`{known}", rule.name);
    Some(Problem::new(rule.place, text))
}

/// A concurrency limit in a policy that forward auth may use: it answers only trusted peers.
fn unreturned_permits(policy: &Policy, rule: &Rule) -> Option<Problem> {
    if policy.identity.trusted.is_empty() || !rule.limits_concurrency() {
        return None;
    }
    let text = format!(
        "rule `{}`: forward auth cannot return the permit; it is held for the whole lease, unless the service behind the proxy reports the receipt",
        rule.name
    );
    Some(Problem::new(rule.place, text))
}
