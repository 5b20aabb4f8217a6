//! All rules, compiled and immutable: what a request is asked by.
//!
//! ```text
//!   attributes ──► index: rules that can match ──► match, when ──► key ──► allowance
//!                                                                          │
//!                             run-time override > override > tier > rule ──┘
//! ```
//!
//! A rule applies when its match and condition hold and the request has its key. A rule that says `stop`
//! ends the list only when it applies: a rule about users with `stop` lets anonymous requests go on to the
//! rule about addresses.

use crate::allowance::Allowance;
use crate::attributes::{AttributeError, Attributes};
use crate::document::Problem;
use crate::envoy::Descriptors;
use crate::identity::{Identity, Request};
use crate::index::Index;
use crate::key::KeyValues;
use crate::path::PathError;
use crate::rule::Rule;
use std::fmt;
use std::sync::Arc;
use tidegate_core::Timestamp;

/// All rules of a file.
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
/// assert_eq!(names, ["per-client"]); // no user, so no bucket of a user
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) identity: Identity,
    pub(crate) tiers: Tiers,
    pub(crate) rules: Vec<Rule>,
    pub(crate) ambiguous: Ambiguous,
    pub(crate) index: Index,
    /// For rules that descriptors find, and nothing else.
    pub(crate) descriptors: Option<Arc<Descriptors>>,
}

/// The plans that customers are on.
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

/// What becomes of a request over HTTP whose path servers read in several ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ambiguous {
    /// A rule applies if it does in any reading.
    #[default]
    MatchAny,
    /// The request is refused.
    Reject,
}

/// Where an allowance was written.
///
/// ```
/// assert_eq!(tidegate_policy::Origin::Rule.to_string(), "rule");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'p> {
    /// In the rule itself.
    Rule,
    /// In the rule, for this tier.
    Tier(&'p str),
    /// In the rule, for this customer.
    Override,
    /// At run time, for this customer.
    RunTimeOverride,
}

/// Everything that is wrong with a policy.
///
/// ```
/// let error = tidegate_policy::Policy::parse("version: 2\nrulez: []").unwrap_err();
/// assert_eq!(error.problems().len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    problems: Vec<Problem>,
}

// === impl Policy ===

impl Policy {
    pub(crate) fn new(identity: Identity, tiers: Tiers, rules: Vec<Rule>) -> Self {
        let index = Index::new(&rules);
        let ambiguous = Ambiguous::default();
        Self { identity, tiers, rules, ambiguous, index, descriptors: None }
    }

    /// Reads a policy, or says everything that is wrong with it.
    ///
    /// ```
    /// use tidegate_policy::Policy;
    /// let error = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [ip], limts: [15/s] }]").unwrap_err();
    /// assert_eq!(error.to_string(), "3:31: unknown key `limts`, did you mean `limits`?");
    /// ```
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, PolicyError> {
        crate::file::read(text.as_ref()).map_err(PolicyError::new)
    }

    /// Its rules, in the order of the file.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule of this name, and its number.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<(usize, &Rule)> {
        let number = self.index.named(name)?;
        self.rules.get(number).map(|rule| (number, rule))
    }

    /// How requests become attributes.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What is known of a request over HTTP. `digest` turns a secret into a name for it.
    pub fn attributes<'r>(
        &self,
        request: &Request<'r, '_>,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<Attributes<'r>, AttributeError> {
        let attributes = self.identity.attributes(request, digest)?;
        self.accepts(&attributes)?;
        Ok(attributes)
    }

    /// Whether a request over HTTP with these attributes is decided at all; see `paths.ambiguous`.
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
        match self.ambiguous {
            Ambiguous::Reject if attributes.is_ambiguous() => {
                Err(PathError::SeveralReadings.into())
            }
            Ambiguous::Reject | Ambiguous::MatchAny => Ok(()),
        }
    }

    /// The plans that customers are on.
    #[must_use]
    pub const fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// The rules that apply to a request, in the order of the file, each with whose bucket it draws from.
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
        self.each_applying(request, cost, enabled, |_, rule, values| applying.push((rule, values)));
        applying.into_iter()
    }

    /// Hands over each of them, with its number, among rules that are `enabled`.
    ///
    /// A path that servers read in several ways must not fall out of a rule, so a rule applies if it does in any reading.
    /// Where its key names the path, the request is counted once for each path that the rule applies to. A rule that
    /// says `stop` lets requests off what comes after it, so it stops only if it applies in every reading.
    pub(crate) fn each_applying<'p>(
        &'p self,
        request: &'p Attributes<'_>,
        cost: u64,
        enabled: impl Fn(&Rule) -> bool,
        mut each: impl FnMut(usize, &'p Rule, KeyValues<'p>),
    ) {
        let numbers = self.index.candidates(request).into_iter();
        for number in numbers.filter_map(|number| usize::try_from(number).ok()) {
            let Some(rule) = self.rules.get(number).filter(|rule| enabled(rule)) else { continue };
            let values = rule.values(request.seen(), cost, self.identity.ipv6_prefix);
            if request.is_ambiguous() {
                let (found, every) = self.in_other_readings(rule, request, cost, values);
                found.into_iter().for_each(|values| each(number, rule, values));
                if every && rule.stop {
                    return;
                }
            } else if let Some(values) = values {
                each(number, rule, values);
                if rule.stop {
                    return;
                }
            }
        }
    }

    /// The different values that a rule counts by in all readings of a path, and whether it applies in every one.
    fn in_other_readings<'p>(
        &'p self,
        rule: &'p Rule,
        request: &'p Attributes<'_>,
        cost: u64,
        usual: Option<KeyValues<'p>>,
    ) -> (Vec<KeyValues<'p>>, bool) {
        let mut every = usual.is_some();
        let mut found: Vec<KeyValues<'p>> = usual.into_iter().collect();
        for seen in request.seen_otherwise() {
            match rule.values(seen, cost, self.identity.ipv6_prefix) {
                Some(values) if found.contains(&values) => {}
                Some(values) => found.push(values),
                None => every = false,
            }
        }
        (found, every)
    }

    /// The same policy with calendars as of this instant: two years ahead are known, so once a day is often
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

    /// Whether some limit counts by a calendar, which must be renewed.
    #[must_use]
    pub fn has_calendars(&self) -> bool {
        self.rules.iter().any(|rule| rule.allowances().any(Allowance::has_calendar))
    }

    /// What is legal but surely a mistake.
    ///
    /// ```
    /// let policy = tidegate_policy::Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [user], limits: [1/s] }]").unwrap();
    /// assert!(policy.warnings()[0].text.contains("no rule"));
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<Problem> {
        crate::lint::warnings(self)
    }
}

impl std::str::FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::parse(text)
    }
}

// === impl Rule ===

impl Rule {
    /// What somebody may take under this rule, and where that is written. A tier's `limits` and a customer's
    /// override replace the rule's.
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
    /// Whether there is such a tier.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.known.iter().any(|known| **known == *name)
    }

    /// The tier of those who have none.
    #[must_use]
    pub fn usual(&self) -> Option<&str> {
        self.default.as_deref()
    }

    /// The tier that a name stands for: itself if it is known, else the default.
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

// === impl PolicyError ===

impl PolicyError {
    pub(crate) const fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    /// What is wrong, in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for PolicyError {}
