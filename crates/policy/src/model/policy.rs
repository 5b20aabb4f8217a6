//! A policy: all rules, compiled and immutable.
//!
//! ```text
//!   attributes ──► index: rules that can match ──► match, when ──► key ──► allowance
//!                                                                          │
//!                             run-time override > override > tier > rule ──┘
//! ```
//!
//! A rule applies when its `match` and `when` hold and the request has every attribute of its key. A rule with `stop` ends
//! the list only when it applies: a rule on users with `stop` lets anonymous requests continue to the rule on addresses.

use crate::document::{Problem, shown};
use crate::model::allowance::Allowance;
use crate::model::attributes::{AttributeError, Attributes};
use crate::model::descriptors::Descriptors;
use crate::model::identity::{Identity, Request, VerifiedSource};
use crate::model::index::Index;
use crate::model::key::KeyValues;
use crate::model::path::PathError;
use crate::model::priority::Classes;
use crate::model::rule::{OnLimit, Rule};
use std::fmt;
use std::sync::{Arc, OnceLock};
use tidegate_core::Timestamp;

/// All rules of a policy file.
///
/// ```
/// use tidegate_policy::{Attributes, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules:
///   - { name: per-user, key: [user], limits: [2/s, 500/h] }
///   - { name: per-client, key: [ip], limits: [15/s] }
/// ").unwrap();
/// let request = Attributes::new().with("ip", "203.0.113.7")?;
/// let names: Vec<&str> = policy.applying(&request, 1).map(|(rule, _)| rule.name()).collect();
/// assert_eq!(names, ["per-client"]); // the request has no user, so `per-user` does not apply
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) identity: Identity,
    pub(crate) tiers: Tiers,
    pub(crate) rules: Vec<Rule>,
    pub(crate) ambiguous: Ambiguous,
    /// What happens to a request that asks to be taken for one of another method.
    pub(crate) method_overrides: Ambiguous,
    /// Whether a rule distinguishes methods.
    pub(crate) reads_methods: bool,
    pub(crate) classes: Classes,
    pub(crate) index: Index,
    /// Only for a policy that was read from Envoy's rule files: the trees that find its rules.
    pub(crate) descriptors: Option<Arc<Descriptors>>,
    /// See [`Policy::warnings`]. Clones share them.
    pub(crate) warnings: Arc<OnceLock<Vec<Problem>>>,
}

/// The plans (tiers) of customers.
///
/// ```
/// let policy = tidegate_policy::Policy::parse("
/// version: 1
/// tiers: { default: free, known: [free, pro] }
/// rules: [{ name: a, key: [user], limits: [1/s] }]
/// ").unwrap();
/// assert!(policy.tiers().is_known("pro") && !policy.tiers().is_known("prO"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    pub(crate) default: Option<Box<str>>,
    pub(crate) known: Vec<Box<str>>,
}

/// What to do with an HTTP request that servers read in several ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ambiguous {
    /// A rule applies if it applies to any reading.
    #[default]
    MatchAny,
    /// The request is refused with status 400.
    Reject,
}

/// A rule that applies to a request.
pub(crate) struct ApplyingRule<'p> {
    pub(crate) number: usize,
    pub(crate) rule: &'p Rule,
    /// The values of its key.
    pub(crate) values: KeyValues<'p>,
    /// Whether it applies however a server reads the path.
    pub(crate) in_every_reading: bool,
}

/// Where an allowance comes from.
///
/// ```
/// use tidegate_policy::Origin;
/// assert_eq!(Origin::Rule.to_string(), "rule");
/// assert_eq!(Origin::Tier("pro").to_string(), "tier pro");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'p> {
    /// The rule itself.
    Rule,
    /// The rule's entry for this tier.
    Tier(&'p str),
    /// An override in the policy file.
    Override,
    /// An override that an operator set at run time.
    RunTimeOverride,
}

// === impl Policy ===

impl Policy {
    pub(crate) fn new(identity: Identity, tiers: Tiers, rules: Vec<Rule>) -> Self {
        let index = Index::new(&rules);
        let reads_methods = rules.iter().any(|rule| rule.needs("method"));
        Self {
            identity,
            tiers,
            rules,
            ambiguous: Ambiguous::default(),
            method_overrides: Ambiguous::default(),
            reads_methods,
            classes: Classes::default(),
            index,
            descriptors: None,
            warnings: Arc::default(),
        }
    }

    /// The rules, in the order of the file.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule with this name, and its number.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<(usize, &Rule)> {
        let number = self.index.named(name)?;
        self.rules.get(number).map(|rule| (number, rule))
    }

    /// How HTTP requests are turned into attributes.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The attributes of an HTTP request. `digest` returns the digest of a secret, which is kept in its place.
    pub fn attributes<'r>(
        &self,
        request: &Request<'r, '_>,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<Attributes<'r>, AttributeError> {
        let mut attributes = self.identity.attributes(request, digest)?;
        self.find_overrides(request, &mut attributes)?;
        self.accepts(&attributes)?;
        Ok(attributes)
    }

    /// The attributes of an HTTP request, for a caller that [verifies](Identity::attributes_verified) tokens. `digest` returns the
    /// digest of a secret, which is kept in its place.
    pub fn attributes_verified<'r>(
        &self,
        request: &Request<'r, '_>,
        verified: &dyn Fn(VerifiedSource<'_>) -> Option<String>,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<Attributes<'r>, AttributeError> {
        let mut attributes = self.identity.attributes_verified(request, verified, digest)?;
        self.find_overrides(request, &mut attributes)?;
        self.accepts(&attributes)?;
        Ok(attributes)
    }

    /// Adds the methods that a request asks servers to take it for, if that can make a difference.
    fn find_overrides(
        &self,
        request: &Request<'_, '_>,
        attributes: &mut Attributes<'_>,
    ) -> Result<(), AttributeError> {
        if self.reads_methods || self.method_overrides == Ambiguous::Reject {
            return request.add_overrides(attributes);
        }
        Ok(())
    }

    /// Refuses an HTTP request whose path is ambiguous, if the policy says `paths: { ambiguous: reject }`, and one that asks to be
    /// taken for one of another method, if it says `methods: { overrides: reject }`.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// paths: { ambiguous: reject }
    /// rules: [{ name: a, key: [ip], limits: [1/s] }]").unwrap();
    /// assert!(policy.accepts(&Attributes::new().with("path", "/a/b")?).is_ok());
    /// assert!(policy.accepts(&Attributes::new().with("path", "/a/../b")?).is_err());
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn accepts(&self, attributes: &Attributes<'_>) -> Result<(), AttributeError> {
        if self.ambiguous == Ambiguous::Reject && attributes.has_ambiguous_path() {
            return Err(PathError::SeveralReadings.into());
        }
        match (self.method_overrides, attributes.other_method()) {
            (Ambiguous::Reject, Some(other)) => Err(AttributeError::Override(shown(other))),
            (Ambiguous::Reject, None) | (Ambiguous::MatchAny, _) => Ok(()),
        }
    }

    /// The plans (tiers) of customers.
    #[must_use]
    pub const fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// The priority classes of requests, the highest first.
    #[must_use]
    pub const fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Whether a rule gives requests a priority class, or the policy lists classes of its own.
    #[must_use]
    pub fn uses_priorities(&self) -> bool {
        let names_a_class = |rule: &Rule| {
            rule.priority.is_some() || matches!(rule.on_limit, OnLimit::Deprioritize(_))
        };
        self.classes != Classes::default() || self.rules.iter().any(names_a_class)
    }

    /// The rules that apply to a request, in the order of the file, each with the values of its key.
    ///
    /// ```
    /// # use tidegate_policy::{Attributes, Policy};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s] }] }").unwrap();
    /// assert_eq!(policy.applying(&Attributes::new(), 1).count(), 1);
    /// ```
    pub fn applying<'p>(
        &'p self,
        request: &'p Attributes<'_>,
        cost: u64,
    ) -> impl Iterator<Item = (&'p Rule, KeyValues<'p>)> {
        let enabled = |rule: &Rule| rule.enabled();
        let mut applying = Vec::new();
        self.each_applying(request, cost, enabled, |found| {
            applying.push((found.rule, found.values));
        });
        applying.into_iter()
    }

    /// Calls `each` for every rule that applies and is `enabled`.
    ///
    /// Servers may read a path in several ways or take a request for one of another method, and it must not escape a rule by that. So a rule applies if it
    /// applies to any reading. If its key contains the path, the request is counted once for each path that the rule applies
    /// to. `stop` exempts a request from the later rules, so a rule stops only if it applies to every reading.
    pub(crate) fn each_applying<'p>(
        &'p self,
        request: &'p Attributes<'_>,
        cost: u64,
        enabled: impl Fn(&Rule) -> bool,
        mut each: impl FnMut(ApplyingRule<'p>),
    ) {
        let numbers = self.index.candidates(request).into_iter();
        for number in numbers.filter_map(|number| usize::try_from(number).ok()) {
            let Some(rule) = self.rules.get(number).filter(|rule| enabled(rule)) else { continue };
            let values = rule.values(request.canonical(), cost, self.identity.ipv6_prefix);
            if request.is_ambiguous() {
                let (found, every) = self.in_all_readings(rule, request, cost, values);
                for values in found {
                    each(ApplyingRule { number, rule, values, in_every_reading: every });
                }
                if every && rule.stop {
                    return;
                }
            } else if let Some(values) = values {
                each(ApplyingRule { number, rule, values, in_every_reading: true });
                if rule.stop {
                    return;
                }
            }
        }
    }

    /// The different key values of a rule in all readings of a request, and whether the rule applies to every reading.
    fn in_all_readings<'p>(
        &'p self,
        rule: &'p Rule,
        request: &'p Attributes<'_>,
        cost: u64,
        canonical: Option<KeyValues<'p>>,
    ) -> (Vec<KeyValues<'p>>, bool) {
        let mut every = canonical.is_some();
        let mut found: Vec<KeyValues<'p>> = canonical.into_iter().collect();
        for reading in request.other_readings() {
            match rule.values(reading, cost, self.identity.ipv6_prefix) {
                Some(values) if found.contains(&values) => {}
                Some(values) => found.push(values),
                None => every = false,
            }
        }
        (found, every)
    }

    /// Recomputes the boundaries of all calendar windows. They reach two years ahead, so renewing them once a day is often
    /// enough.
    ///
    /// ```
    /// use tidegate_core::{Period, Timestamp};
    /// use tidegate_policy::Policy;
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [], limits: [9/calendar-day] }]").unwrap();
    /// let now = Timestamp::from_nanos(1_800_000_000_000_000_000);
    /// let policy = policy.renewed(now);
    /// let Period::Calendar(days) = policy.rules()[0].allowance().limits()[0].limit().period() else {
    ///     panic!()
    /// };
    /// assert!(days.window(now).1.is_some()); // the end of today is known
    /// ```
    #[must_use]
    pub fn renewed(mut self, now: Timestamp) -> Self {
        for rule in &mut self.rules {
            rule.allowances_mut().for_each(|allowance| allowance.renew(now));
            rule.overrides.renew(now);
        }
        self
    }

    /// Whether a limit uses a calendar window, whose boundaries must be renewed.
    #[must_use]
    pub fn has_calendars(&self) -> bool {
        self.rules.iter().any(|rule| rule.allowances().any(Allowance::has_calendar))
    }
}

// === impl Rule ===

impl Rule {
    /// Whether the rule counts no request: it only sets a priority class, or its requests are unlimited.
    pub(crate) fn counts_nothing(&self) -> bool {
        self.allowances().all(|allowance| allowance.limits().is_empty())
    }

    /// The allowance of a customer under this rule, and where it comes from. A tier's `limits` and an override replace the
    /// limits of the rule.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Origin, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// tiers: { default: free, known: [free, pro] }
    /// rules: [{ name: a, key: [user], limits: [1/s], tiers: { pro: { scale: 10 } } }]").unwrap();
    /// let request = Attributes::new().with("user", "alice")?;
    /// let (rule, values) = policy.applying(&request, 1).next().unwrap();
    /// let (allowance, origin) = rule.allowance_of(&values, Some("pro"));
    /// assert_eq!(allowance.limits()[0].limit().amount(), 10);
    /// assert_eq!(origin, Origin::Tier("pro"));
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    #[must_use]
    pub fn allowance_of<'r>(
        &'r self,
        values: &KeyValues<'_>,
        tier: Option<&str>,
    ) -> (&'r Allowance, Origin<'r>) {
        if let Some(allowance) = self.overrides.find(values) {
            return (allowance, Origin::Override);
        }
        let tier = tier.and_then(|tier| self.tiers.iter().find(|(known, _)| **known == *tier));
        match tier {
            Some((name, allowance)) => (allowance, Origin::Tier(name)),
            None => (&self.allowance, Origin::Rule),
        }
    }
}

// === impl Tiers ===

impl Tiers {
    /// Whether a tier with this name exists.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.known.iter().any(|known| **known == *name)
    }

    /// The tier of customers that have none.
    #[must_use]
    pub fn usual(&self) -> Option<&str> {
        self.default.as_deref()
    }

    /// All tiers, as the end of a sentence: `; the tiers are …`.
    pub(crate) fn listed(&self) -> String {
        let names: Vec<String> = self.known.iter().map(|tier| format!("`{tier}`")).collect();
        match names.as_slice() {
            [] => "; list the tiers above the rules: `tiers: { default: free, known: [free, …] }`"
                .to_owned(),
            names => format!("; the tiers are {}", names.join(", ")),
        }
    }

    /// The tier with this name if it is known, else the default tier.
    #[must_use]
    pub fn of<'t>(&'t self, name: Option<&str>) -> Option<&'t str> {
        let known = name.and_then(|name| self.known.iter().find(|known| ***known == *name));
        known.map(|known| &**known).or(self.usual())
    }
}

// === impl Origin ===

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule => f.write_str("rule"),
            Self::Tier(name) => write!(f, "tier {name}"),
            Self::Override => f.write_str("override"),
            Self::RunTimeOverride => f.write_str("run-time override"),
        }
    }
}
