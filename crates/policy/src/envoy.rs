//! The rules of Envoy's reference rate limit service, as they stand in its files.
//!
//! ```text
//!   domain rl ── foo ──┬─ bar           3/minute        a descriptor goes down the tree entry by entry: to the value
//!                      ├─ bar=banned    0/minute        itself, else to the first pattern in the order of the file, else
//!                      └─ bay=a*        unlimited       to the key alone; it is limited where it ends, and nowhere else
//! ```
//!
//! Example: `(foo, x), (bar, banned)` meets `0/minute`, `(foo, x), (bar, y)` meets `3/minute` counted for this very `x` and
//! `y`, and `(foo, x)` meets nothing. This is not the policy language: it says no more than those files can, and says it as
//! their service does, where that was seen, down to what it silently ignores. A policy that a person would have written is what
//! [`import`](Descriptors::import) makes of them.

mod file;
mod import;
mod scalar;

pub use import::Imported;

use crate::allowance::{Allowance, RuleLimit};
use crate::document::{Place, Problem};
use crate::identity::Identity;
use crate::index::Index;
use crate::key::Key;
use crate::overrides::Overrides;
use crate::policy::{Policy, Tiers};
use crate::rule::{Count, Mode, OnLimit, OnStoreError, Rule};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use tidegate_core::{RejectedCost, Span, WhenFull};

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
/// let found = |who| rules.find("rl", &[("user", who)]).unwrap().rule;
/// assert_eq!(found("bob").limit.as_ref().unwrap().limit().amount(), 3);
/// assert!(found("alice").limit.is_none());
/// assert!(rules.find("rl", &[("tenant", "t")]).is_none());
/// ```
#[derive(Debug, Default)]
pub struct Descriptors {
    domains: BTreeMap<Box<str>, Node>,
    /// The names of limits, by the number of their rule; empty for those that have none.
    names: Vec<Box<str>>,
    warnings: Vec<EnvoyProblem>,
}

/// A place in the tree.
#[derive(Debug, Default)]
struct Node {
    rule: Option<DescriptorRule>,
    below: HashMap<Box<str>, Values>,
    /// In the order of the file: the first that fits counts.
    patterns: Vec<(Pattern, Node)>,
}

/// What there is below one key.
#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Box<str>, Node>,
    any: Option<Box<Node>>,
}

/// A key, and a value in which each `*` stands for any text, none included. A star in the key, of which no document of theirs
/// speaks, makes a pattern of key and value joined.
#[derive(Debug)]
struct Pattern {
    key: Box<str>,
    value: Box<str>,
    /// What stands for the value in the name of a counter that all share.
    shared: Option<Box<str>>,
}

/// A `rate_limit` of a file, and what stands beside it.
#[derive(Clone, Debug)]
pub struct DescriptorRule {
    /// The number of its rule in the policy.
    pub number: usize,
    /// How much; `None` is `unlimited`.
    pub limit: Option<RuleLimit>,
    /// Its name; empty if it has none.
    pub name: Box<str>,
    /// The names of rules that step back when this one applies to the same call.
    pub replaces: Vec<Box<str>>,
    /// It only pretends.
    pub shadow: bool,
    /// It refuses only together with all others of this kind.
    pub quota: bool,
    /// What is told to Envoy when it lets a call pass.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
}

/// What a descriptor meets.
#[derive(Debug)]
pub struct Met<'d> {
    /// The rule.
    pub rule: &'d DescriptorRule,
    /// By number of the entry, the pattern that stands for its value in the name of the counter.
    pub shared: SmallVec<[(usize, &'d str); 1]>,
}

/// A rule file.
#[derive(Clone, Copy, Debug)]
pub struct EnvoyFile<'f> {
    /// What it is called in complaints.
    pub name: &'f str,
    /// What it says.
    pub text: &'f [u8],
}

/// Something wrong with a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyProblem {
    /// Which file.
    pub file: String,
    /// What and where.
    pub problem: Problem,
}

/// Everything that is wrong with rule files.
///
/// ```
/// use tidegate_policy::{EnvoyFile, Policy};
/// let file = EnvoyFile { name: "a.yaml", text: b"domain: a\ndescriptors: [{ kee: x }]" };
/// let error = Policy::from_envoy(&[file], false).unwrap_err();
/// assert!(error.to_string().starts_with("a.yaml:2:17: unknown key `kee`, did you mean `key`?"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyError {
    problems: Vec<EnvoyProblem>,
}

/// A period of those files, by the numbers of their protocol.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_policy::Unit;
/// assert_eq!(Unit::named("Minute"), Some(Unit::Minute));
/// assert_eq!(Unit::of(Span::from_secs(60)), Some(Unit::Minute));
/// assert_eq!(Unit::Month.span(), Span::from_secs(30 * 86_400));
/// assert_eq!(Unit::numbered(99), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 1
    Second,
    /// 2
    Minute,
    /// 3
    Hour,
    /// 4
    Day,
    /// 5: thirty days, counted from 1970
    Month,
    /// 6: 365 days, counted from 1970
    Year,
    /// 7: from Thursday to Thursday, as 1970 began with one
    Week,
}

// === impl Descriptors ===

impl Descriptors {
    /// The rule that a descriptor meets.
    #[must_use]
    pub fn find<V: AsRef<str>>(&self, domain: &str, entries: &[(&str, V)]) -> Option<Met<'_>> {
        let mut shared = SmallVec::new();
        let mut node = self.domains.get(domain)?;
        for (number, (key, value)) in entries.iter().enumerate() {
            let value = value.as_ref();
            let values = node.below.get(*key);
            let exact = values.and_then(|values| values.exact.get(value));
            let any = || values.and_then(|values| values.any.as_deref());
            let pattern = || node.patterns.iter().find(|(pattern, _)| pattern.fits(key, value));
            node = match exact {
                Some(node) => node,
                None => match pattern() {
                    Some((pattern, node)) => {
                        if let Some(counted) = &pattern.shared
                            && **counted != *value
                        {
                            shared.push((number, &**counted));
                        }
                        node
                    }
                    None => any()?,
                },
            };
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

    /// What is legal but surely a mistake, or means something else here than there.
    #[must_use]
    pub fn warnings(&self) -> &[EnvoyProblem] {
        &self.warnings
    }
}

impl Policy {
    /// Reads rule files of Envoy's reference rate limit service, or says everything that is wrong with them. Two files about
    /// one domain are a mistake, unless they are to be merged.
    pub fn from_envoy(files: &[EnvoyFile<'_>], merge_domains: bool) -> Result<Self, EnvoyError> {
        let (descriptors, rules) = file::read(files, merge_domains)?;
        let mut policy = Self::new(Identity::default(), Tiers::default(), rules);
        // Their rules are found by descriptors, and by nothing else.
        policy.index = Index::default();
        policy.descriptors = Some(Arc::new(descriptors));
        Ok(policy)
    }

    /// The trees of its rules, if it was read from files of Envoy's reference service.
    #[must_use]
    pub fn descriptors(&self) -> Option<&Descriptors> {
        self.descriptors.as_deref()
    }
}

impl Rule {
    /// What stands where no rule has a say: for limits that callers name themselves.
    #[must_use]
    pub fn of_callers() -> Self {
        rule(String::new(), Place { line: 1, column: 1 }, None, false)
    }
}

/// A rule as the limiter wants it; which descriptors it is about, the tree knows.
fn rule(name: String, place: Place, limit: Option<RuleLimit>, shadow: bool) -> Rule {
    Rule {
        name: name.into(),
        place,
        conditions: vec![],
        when: None,
        key: Key::default(),
        allowance: limit.map_or(Allowance::Unlimited, |limit| Allowance::Limits(vec![limit])),
        tiers: vec![],
        overrides: Overrides::default(),
        mode: Mode::Hard,
        on_limit: OnLimit::Reject,
        count_rejected: RejectedCost::Charged,
        count: Count::All,
        on_store_error: OnStoreError::Local,
        when_full: WhenFull::Shared,
        shadow,
        enabled: true,
        stop: false,
    }
}

// === impl Pattern ===

impl Pattern {
    fn fits(&self, key: &str, value: &str) -> bool {
        if self.key.contains('*') {
            let joined = |key: &str, value: &str| format!("{key}_{value}");
            let pattern = match self.value.is_empty() {
                true => self.key.to_string(),
                false => joined(&self.key, &self.value),
            };
            return fits(&pattern, &joined(key, value));
        }
        *self.key == *key && fits(&self.value, value)
    }
}

/// Whether a text fits a pattern: it begins and ends as the pattern does, and has what is between the stars in order.
fn fits(pattern: &str, text: &str) -> bool {
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

// === impl Unit ===

impl Unit {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Year, Self::Week];

    /// Its name in rule files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
            Self::Week => "week",
        }
    }

    /// The unit of this name, in capitals or not.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let name = name.to_uppercase();
        Self::ALL.into_iter().find(|unit| unit.name().to_uppercase() == name)
    }

    /// Its number in the protocol.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Second => 1,
            Self::Minute => 2,
            Self::Hour => 3,
            Self::Day => 4,
            Self::Month => 5,
            Self::Year => 6,
            Self::Week => 7,
        }
    }

    /// The unit of this number.
    #[must_use]
    pub fn numbered(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| u64::from(unit.number()) == number)
    }

    /// How long it is.
    #[must_use]
    pub const fn span(self) -> Span {
        Span::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
            Self::Week => 7 * 86_400,
        })
    }

    /// The unit of this length.
    #[must_use]
    pub fn of(span: Span) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.span() == span)
    }

    /// How our rates write it.
    const fn period(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Minute => "min",
            Self::Hour => "h",
            Self::Day => "day",
            Self::Month => "30day",
            Self::Year => "365day",
            Self::Week => "week",
        }
    }

    /// So many of these, in a fixed window.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::Unit::Hour.limit(7).unwrap().limit().amount(), 7);
    /// ```
    #[must_use]
    pub fn limit(self, amount: u32) -> Option<RuleLimit> {
        let rate = format!("{amount}/{}", self.period()).parse().ok()?;
        let window = tidegate_core::Algorithm::FIXED_WINDOW;
        RuleLimit::new(Some(self.name()), rate, window, tidegate_core::Headroom::None).ok()
    }
}

// === impl EnvoyError ===

impl EnvoyError {
    /// What is wrong, file by file.
    #[must_use]
    pub fn problems(&self) -> &[EnvoyProblem] {
        &self.problems
    }
}

impl fmt::Display for EnvoyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for EnvoyError {}

impl fmt::Display for EnvoyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_what_their_stars_leave_open() {
        for (pattern, value, fits) in [
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*", "", true),
            ("*z", "xyz", true),
            ("/api/*/action", "/api/1/action", true),
            ("/api/*/action", "/api/1/other", false),
            ("ab*ba", "aba", false), // beginning and end do not overlap
            ("ab*ba", "abba", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-c", false),
            ("a*b*b*c", "a-b-c", false),
            ("a**c", "ac", true),
            ("ab", "ab", true),
        ] {
            assert_eq!(super::fits(pattern, value), fits, "{pattern} {value}");
        }
    }

    #[test]
    fn units_are_what_the_protocol_says() {
        for unit in Unit::ALL {
            assert_eq!(Unit::numbered(unit.number().into()), Some(unit));
            assert_eq!(Unit::of(unit.span()), Some(unit));
            let limit = unit.limit(3).unwrap();
            assert_eq!(limit.limit().period(), &tidegate_core::Period::Every(unit.span()));
        }
    }
}
