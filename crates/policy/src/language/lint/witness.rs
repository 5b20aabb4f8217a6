//! Witnesses: requests that satisfy the `match` of a rule.

use crate::model::attributes::Attributes;
use crate::model::policy::Policy;
use crate::model::rule::Rule;
use std::borrow::Cow;
use std::collections::HashMap;

/// A request that the `match` of a rule accepts.
pub(super) fn witness(rule: &Rule) -> Attributes<'static> {
    let mut request = Attributes::new();
    for condition in &rule.conditions {
        if let Some(value) = condition.values().next() {
            set(&mut request, condition.attribute(), &value);
        }
    }
    request
}

/// The enabled rules whose `match` a request satisfies, with their numbers.
pub(super) fn matching<'p>(policy: &'p Policy, request: &Attributes<'_>) -> Vec<(usize, &'p Rule)> {
    let candidates = policy.index.candidates(request).into_iter();
    let rules = candidates.filter_map(|number| {
        let number = usize::try_from(number).ok()?;
        Some((number, policy.rules.get(number)?))
    });
    rules.filter(|(_, rule)| rule.enabled && rule.matches(request)).collect()
}

/// The values that the most limits have as a condition. A request with these values matches as many of them as possible.
pub(super) struct PopularValues<'p> {
    /// How many limits have this value of this attribute as a condition.
    counts: HashMap<(&'p str, Cow<'p, str>), usize>,
    /// A request with the most popular value of every attribute.
    request: Attributes<'static>,
}

impl<'p> PopularValues<'p> {
    pub(super) fn of(policy: &'p Policy) -> Self {
        let mut counts = HashMap::new();
        for rule in policy.rules.iter().filter(|rule| rule.enabled) {
            for condition in &rule.conditions {
                for value in condition.values() {
                    let count: &mut usize =
                        counts.entry((condition.attribute(), value)).or_default();
                    *count = count.saturating_add(most_limits(rule));
                }
            }
        }
        let request = most_popular(&counts);
        Self { counts, request }
    }

    /// A request that the `match` of a rule accepts, and that has the most popular values otherwise.
    pub(super) fn witness(&self, rule: &Rule) -> Attributes<'static> {
        let mut request = self.request.clone();
        for condition in &rule.conditions {
            let count = |value: &Cow<'_, str>| {
                self.counts.get(&(condition.attribute(), value.clone())).copied()
            };
            if let Some(value) = condition.values().max_by_key(count) {
                set(&mut request, condition.attribute(), &value);
            }
        }
        request
    }
}

fn most_popular(counts: &HashMap<(&str, Cow<'_, str>), usize>) -> Attributes<'static> {
    let mut best: HashMap<&str, (usize, &str)> = HashMap::new();
    for ((attribute, value), count) in counts {
        let better = (*count, &**value);
        let known = best.entry(attribute).or_insert(better);
        *known = (*known).max(better);
    }
    let mut request = Attributes::new();
    for (attribute, (_, value)) in best {
        set(&mut request, attribute, value);
    }
    request
}

/// The most limits that a rule has for any customer.
pub(super) fn most_limits(rule: &Rule) -> usize {
    rule.allowances().map(|allowance| allowance.limits().len()).max().unwrap_or(0)
}

/// Sets an attribute to a value of a policy. Values were checked when they were read, so an error cannot matter here. A star
/// of a path becomes a segment that no real path has.
fn set(request: &mut Attributes<'static>, name: &str, value: &str) {
    let value = if name == "path" {
        value.replace("**", "*").replace('*', "\u{2022}")
    } else {
        value.to_owned()
    };
    let _ = request.set(name.to_owned(), value);
}
