//! The rules of Envoy's reference rate limit service, as one tree for each domain.
//!
//! ```text
//!   domain rl ── foo ──┬─ bar           3/minute
//!                      ├─ bar=banned    0/minute
//!                      └─ bay=a*        unlimited
//! ```
//!
//! A descriptor is a list of entries, each with a key and a value. It walks down the tree, one level for each entry: to the
//! exact value, else to the first wildcard in the order of the file that matches, else to the key without a value. Only the
//! node where it ends limits it.
//!
//! Example: `(foo, x), (bar, banned)` finds `0/minute`. `(foo, x), (bar, y)` finds `3/minute`, counted for this pair of `x`
//! and `y`. `(foo, x)` finds nothing.

use crate::document::Problem;
use crate::model::allowance::RuleLimit;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// The rules of all files: a tree for each domain.
///
/// ```
/// use tidegate_policy::{EnvoyFile, Policy};
/// let text = b"
/// domain: rl
/// descriptors:
///   - key: user
///     rate_limit: { unit: minute, requests_per_unit: 3 }
///   - key: user
///     value: alice
///     rate_limit: { unlimited: true }";
/// let policy = Policy::from_envoy(&[EnvoyFile { name: "rl.yaml", text }], false).unwrap();
/// let rules = policy.descriptors().unwrap();
/// let found = |user| rules.find("rl", &[("user", user)]).unwrap().rule;
/// assert_eq!(found("bob").limit.as_ref().unwrap().limit().amount(), 3);
/// assert!(found("alice").limit.is_none());
/// assert!(rules.find("rl", &[("tenant", "t")]).is_none());
/// ```
#[derive(Debug, Default)]
pub struct Descriptors {
    pub(crate) domains: BTreeMap<Box<str>, DescriptorNode>,
    /// The names of limits, by the number of their rule; empty for a limit without a name.
    pub(crate) names: Vec<Box<str>>,
    pub(crate) warnings: Vec<EnvoyProblem>,
}

/// A node of the tree.
#[derive(Debug, Default)]
pub(crate) struct DescriptorNode {
    pub(crate) rule: Option<DescriptorRule>,
    pub(crate) below: HashMap<Box<str>, ValueNodes>,
    /// In the order of the file: the first one that matches counts.
    pub(crate) wildcards: Vec<(Wildcard, DescriptorNode)>,
}

/// The nodes below one key.
#[derive(Debug, Default)]
pub(crate) struct ValueNodes {
    pub(crate) exact: HashMap<Box<str>, DescriptorNode>,
    pub(crate) any: Option<Box<DescriptorNode>>,
}

/// A key and a value in which each `*` stands for any text, including none.
///
/// The reference service also accepts a star in the key, although its documentation does not mention that. It then matches
/// `key_value` as one text.
#[derive(Debug)]
pub(crate) struct Wildcard {
    pub(crate) key: Box<str>,
    pub(crate) value: Box<str>,
    /// With `share_threshold`, all matching values share one counter, which has this text in place of the value.
    pub(crate) shared: Option<Box<str>>,
}

/// A `rate_limit` of a file, with the settings beside it.
#[derive(Clone, Debug)]
pub struct DescriptorRule {
    /// The number of its rule in the policy.
    pub number: usize,
    /// The limit; `None` means `unlimited`.
    pub limit: Option<RuleLimit>,
    /// The name of the limit; empty if it has none.
    pub name: Box<str>,
    /// The names of limits that are ignored when this one applies to the same call.
    pub replaces: Vec<Box<str>>,
    /// Shadow mode: it counts and reports, but denies nothing.
    pub shadow: bool,
    /// Quota mode: the call is denied only if all limits in quota mode deny it.
    pub quota: bool,
    /// Metadata that Envoy receives when the call is allowed.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
}

/// The rule that a descriptor finds.
#[derive(Debug)]
pub struct Met<'d> {
    /// The rule.
    pub rule: &'d DescriptorRule,
    /// By the index of the entry: the wildcard that replaces its value in the name of a shared counter.
    pub shared: SmallVec<[(usize, &'d str); 1]>,
}

/// Something that is wrong with a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyProblem {
    /// The name of the file.
    pub file: String,
    /// The position and the text.
    pub problem: Problem,
}

// === impl Descriptors ===

impl Descriptors {
    /// The rule that a descriptor finds.
    #[must_use]
    pub fn find<V: AsRef<str>>(&self, domain: &str, entries: &[(&str, V)]) -> Option<Met<'_>> {
        let mut shared = SmallVec::new();
        let mut node = self.domains.get(domain)?;
        for (number, (key, value)) in entries.iter().enumerate() {
            let value = value.as_ref();
            let (next, counter) = node.next(key, value)?;
            shared.extend(counter.filter(|counter| **counter != *value).map(|c| (number, c)));
            node = next;
        }
        Some(Met { rule: node.rule.as_ref()?, shared })
    }

    /// Whether there are rules for this domain.
    #[must_use]
    pub fn has(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The name that a limit has in its file, by the number of its rule.
    #[must_use]
    pub fn name(&self, number: usize) -> Option<&str> {
        self.names.get(number).map(|name| &**name).filter(|name| !name.is_empty())
    }

    /// What is valid but probably a mistake, or has another meaning here than in the reference service.
    #[must_use]
    pub fn warnings(&self) -> &[EnvoyProblem] {
        &self.warnings
    }
}

// === impl DescriptorNode ===

impl DescriptorNode {
    /// The node for an entry, and the name of the shared counter if the node has one.
    fn next(&self, key: &str, value: &str) -> Option<(&Self, Option<&str>)> {
        let values = self.below.get(key);
        if let Some(exact) = values.and_then(|values| values.exact.get(value)) {
            return Some((exact, None));
        }
        let wildcard = self.wildcards.iter().find(|(wildcard, _)| wildcard.matches(key, value));
        match wildcard {
            Some((wildcard, node)) => Some((node, wildcard.shared.as_deref())),
            None => Some((values?.any.as_deref()?, None)),
        }
    }
}

// === impl Wildcard ===

impl Wildcard {
    fn matches(&self, key: &str, value: &str) -> bool {
        if self.key.contains('*') {
            let joined = |key: &str, value: &str| format!("{key}_{value}");
            let pattern = match self.value.is_empty() {
                true => self.key.to_string(),
                false => joined(&self.key, &self.value),
            };
            return matches_stars(&pattern, &joined(key, value));
        }
        *self.key == *key && matches_stars(&self.value, value)
    }
}

/// Whether a text begins and ends as the pattern does, and contains the parts between the stars in order.
fn matches_stars(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let between = text.strip_prefix(first).and_then(|text| text.strip_suffix(last));
    let Some(mut between) = between else { return false };
    middle.split('*').all(|part| match between.split_once(part) {
        Some((_, after)) => {
            between = after;
            true
        }
        None => false,
    })
}

impl fmt::Display for EnvoyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, value, expected) in [
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*", "", true),
            ("*z", "xyz", true),
            ("/api/*/action", "/api/1/action", true),
            ("/api/*/action", "/api/1/other", false),
            ("ab*ba", "aba", false), // beginning and end must not overlap
            ("ab*ba", "abba", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-c", false),
            ("a*b*b*c", "a-b-c", false),
            ("a**c", "ac", true),
            ("ab", "ab", true),
        ] {
            assert_eq!(matches_stars(pattern, value), expected, "{pattern} {value}");
        }
    }
}
