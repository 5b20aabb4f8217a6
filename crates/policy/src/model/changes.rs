//! Changes at run time: operators add overrides, assign tiers to customers, and enable, disable or shadow rules.
//!
//! ```text
//!   policy (a file)  +  changes (admin API)  ──►  what applies to this request
//! ```
//!
//! Changes are stored by the name of the rule, so that they survive a new version of the file: an override for alice under
//! `create-url` is valid as long as there is a rule of that name with `user` in its key.

use crate::document::shown;
use crate::model::address::parse_address;
use crate::model::allowance::{Allowance, RuleLimitError};
use crate::model::attributes::Attributes;
use crate::model::key::KeyValues;
use crate::model::overrides::{OverrideError, Overrides, spelled};
use crate::model::policy::{ApplyingRule, Origin, Policy};
use crate::model::priority::ClassIndex;
use crate::model::rule::Rule;
use std::collections::HashMap;
use tidegate_core::Timestamp;

/// Changes made at run time.
///
/// ```
/// use tidegate_policy::{Allowance, Attributes, Changes, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: a, key: [user], limits: [1/s] }]").unwrap();
/// let mut changes = Changes::default();
/// changes.set_override(&policy, "a", &[("user", "alice")], Allowance::Unlimited).unwrap();
/// let alice = Attributes::new().with("user", "alice")?;
/// let resolved = policy.resolve(&changes, &alice, 1);
/// assert_eq!(resolved.rules[0].allowance, &Allowance::Unlimited);
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Changes {
    rules: HashMap<Box<str>, RuleChange>,
    /// The tiers of customers, by attribute, then by value.
    tiers: Vec<(Box<str>, TiersByValue)>,
}

type TiersByValue = HashMap<Box<str>, Box<str>>;

#[derive(Clone, Debug, Default)]
struct RuleChange {
    enabled: Option<bool>,
    shadow: Option<bool>,
    overrides: Overrides,
}

/// The tier that an operator assigned to the requests with an attribute value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierAssignment<'c> {
    /// The attribute, such as `user`.
    pub attribute: &'c str,
    /// Its value.
    pub value: &'c str,
    /// The tier.
    pub tier: &'c str,
}

/// Why a change was refused.
///
/// ```
/// use tidegate_policy::{ChangeError, Changes, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s] }] }").unwrap();
/// let error = Changes::default().set_enabled(&policy, "b", Some(true)).unwrap_err();
/// assert_eq!(error, ChangeError::NoRule("b".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no rule with this name.
    #[error("there is no rule `{0}`")]
    NoRule(String),
    /// There is no tier with this name.
    #[error("there is no tier `{name}`{known}")]
    NoTier {
        /// The name.
        name: String,
        /// The tiers that exist, as the end of a sentence.
        known: String,
    },
    /// The override does not fit the rule.
    #[error(transparent)]
    Override(#[from] OverrideError),
    /// The limit does not fit the mode of the rule.
    #[error(transparent)]
    Limit(#[from] RuleLimitError),
}

/// What is known about a request besides its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStanding<'p> {
    /// The tier of the customer.
    pub tier: Option<&'p str>,
    /// Whether the request named a tier that does not exist.
    pub unknown_tier: bool,
    /// Its priority class.
    pub class: ClassIndex,
}

/// Finds the class of a request, rule by rule: the class of the first rule that names one.
///
/// If servers read the path in several ways, it is the lowest class of any reading, so that no client gets a higher class
/// by its spelling of a path.
#[derive(Default)]
struct ClassSearch {
    lowest: Option<ClassIndex>,
    is_over: bool,
}

impl ClassSearch {
    /// A rule that applies names this class.
    fn meets(&mut self, class: ClassIndex, in_every_reading: bool) {
        if !self.is_over {
            self.lowest = self.lowest.max(Some(class));
            self.is_over = in_every_reading;
        }
    }

    /// The class, if in some reading no rule names one: the lower of what was found and `otherwise`.
    fn found_or(self, otherwise: impl FnOnce() -> ClassIndex) -> ClassIndex {
        match self.lowest {
            Some(class) if self.is_over => class,
            Some(class) => class.max(otherwise()),
            None => otherwise(),
        }
    }
}

/// The rules that apply to a request, with their allowances.
#[derive(Debug)]
pub struct Resolved<'p> {
    /// The tier of the customer.
    pub tier: Option<&'p str>,
    /// Whether the request named a tier that does not exist.
    pub unknown_tier: bool,
    /// Its priority class.
    pub class: ClassIndex,
    /// The rules, in the order of the file.
    pub rules: Vec<ResolvedRule<'p>>,
}

/// A rule that applies to a request, with its allowance.
#[derive(Debug)]
pub struct ResolvedRule<'p> {
    /// The number of the rule in the policy.
    pub number: usize,
    /// The rule.
    pub rule: &'p Rule,
    /// The values of its key, which select the counter.
    pub values: KeyValues<'p>,
    /// The allowance.
    pub allowance: &'p Allowance,
    /// Where the allowance comes from.
    pub origin: Origin<'p>,
    /// Shadow mode: the rule counts and reports, but denies nothing.
    pub shadow: bool,
}

// === impl Changes ===

impl Changes {
    /// Sets an override: an allowance for the customers with these values of the rule's key. A limit that says only its rate
    /// counts like the limit of the rule that it replaces.
    ///
    /// ```
    /// use tidegate_policy::{Allowance, Attributes, Changes, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [user], limits: [{ rate: 3/min, algorithm: sliding_log }] }]").unwrap();
    /// let mut changes = Changes::default();
    /// let four = Allowance::parse("[4/min]").unwrap();
    /// changes.set_override(&policy, "a", &[("user", "alice")], four).unwrap();
    /// let alice = Attributes::new().with("user", "alice")?;
    /// let resolved = policy.resolve(&changes, &alice, 1);
    /// let limit = resolved.rules[0].allowance.limits()[0].limit();
    /// assert_eq!((limit.amount(), limit.algorithm().name()), (4, "sliding_log"));
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn set_override(
        &mut self,
        policy: &Policy,
        rule: &str,
        who: &[(&str, &str)],
        allowance: Allowance,
    ) -> Result<(), ChangeError> {
        let rule = find(policy, rule)?;
        let limits = rule.allowance().limits();
        let allowance = allowance.in_place_of(limits, rule.mode().headroom())?;
        let overrides = &mut self.rule(rule.name()).overrides;
        overrides.insert(rule.key(), policy.identity().ipv6_prefix(), who, allowance)?;
        Ok(())
    }

    /// Removes an override. Returns whether it existed.
    pub fn remove_override(
        &mut self,
        policy: &Policy,
        rule: &str,
        who: &[(&str, &str)],
    ) -> Result<bool, ChangeError> {
        let rule = find(policy, rule)?;
        let overrides = &mut self.rule(rule.name()).overrides;
        Ok(overrides.remove(rule.key(), policy.identity().ipv6_prefix(), who)?)
    }

    /// Enables or disables a rule; `None` restores the setting of the file.
    pub fn set_enabled(
        &mut self,
        policy: &Policy,
        rule: &str,
        enabled: Option<bool>,
    ) -> Result<(), ChangeError> {
        self.rule(find(policy, rule)?.name()).enabled = enabled;
        Ok(())
    }

    /// Switches the shadow mode of a rule on or off; `None` restores the setting of the file.
    pub fn set_shadow(
        &mut self,
        policy: &Policy,
        rule: &str,
        shadow: Option<bool>,
    ) -> Result<(), ChangeError> {
        self.rule(find(policy, rule)?.name()).shadow = shadow;
        Ok(())
    }

    /// Assigns a tier to a customer, whatever the requests say; `None` removes the assignment.
    pub fn assign_tier(
        &mut self,
        policy: &Policy,
        (attribute, value): (&str, &str),
        tier: Option<&str>,
    ) -> Result<(), ChangeError> {
        if let Some(tier) = tier.filter(|tier| !policy.tiers().is_known(tier)) {
            let known = policy.tiers().listed();
            return Err(ChangeError::NoTier { name: shown(tier), known });
        }
        // Values have the form that requests have: a whole address, or the digest of a secret.
        let address = Some(value).filter(|_| attribute == "ip").and_then(parse_address);
        let value = match address {
            Some(address) => address.to_string(),
            None => spelled(attribute, value, 128)?,
        };
        let value = value.as_str();
        let at = self.tiers.iter().position(|(known, _)| **known == *attribute);
        let at = at.unwrap_or_else(|| {
            self.tiers.push((attribute.into(), HashMap::new()));
            self.tiers.len().saturating_sub(1)
        });
        if let Some((_, customers)) = self.tiers.get_mut(at) {
            match tier {
                Some(tier) => _ = customers.insert(value.into(), tier.into()),
                None => _ = customers.remove(value),
            }
        }
        self.tiers.retain(|(_, customers)| !customers.is_empty());
        Ok(())
    }

    /// Recomputes the boundaries of calendar windows.
    pub fn renew(&mut self, now: Timestamp) {
        self.rules.values_mut().for_each(|change| change.overrides.renew(now));
    }

    /// Whether an override uses a calendar window, whose boundaries must be renewed.
    #[must_use]
    pub fn has_calendars(&self) -> bool {
        let mut overrides = self.rules.values().flat_map(|change| change.overrides.allowances());
        overrides.any(Allowance::has_calendar)
    }

    /// Overrides that are valid but probably a mistake: their limits count by another algorithm than the rule's, so what was
    /// counted is lost.
    ///
    /// ```
    /// use tidegate_policy::{Allowance, Changes, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: a, key: [user], limits: [{ rate: 3/min, algorithm: sliding_log }] }]").unwrap();
    /// let mut changes = Changes::default();
    /// let other = Allowance::parse("[{ rate: 4/min, algorithm: token_bucket }]").unwrap();
    /// changes.set_override(&policy, "a", &[("user", "alice")], other).unwrap();
    /// assert!(changes.warnings(&policy)[0].contains("fresh allowance"));
    /// ```
    #[must_use]
    pub fn warnings(&self, policy: &Policy) -> Vec<String> {
        let warning = |rule: &Rule| {
            let limits = rule.allowance().limits();
            let text =
                self.allowances_of(rule).find_map(|allowance| allowance.departure(limits))?;
            Some(format!("rule `{}`: an override: {text}", rule.name()))
        };
        policy.rules().iter().filter_map(warning).collect()
    }

    /// Every allowance that was set at run time under a rule.
    pub fn allowances_of(&self, rule: &Rule) -> impl Iterator<Item = &Allowance> {
        self.of(rule).into_iter().flat_map(|change| change.overrides.allowances())
    }

    fn rule(&mut self, name: &str) -> &mut RuleChange {
        self.rules.entry(name.into()).or_default()
    }

    fn of(&self, rule: &Rule) -> Option<&RuleChange> {
        // Most of the time there are no changes, and no lookup is needed.
        if self.rules.is_empty() { None } else { self.rules.get(rule.name()) }
    }

    fn tier(&self, request: &Attributes<'_>) -> Option<&str> {
        self.assignment(request).map(|assigned| assigned.tier)
    }

    /// The tier that an operator assigned to the customer of a request.
    pub(crate) fn assignment(&self, request: &Attributes<'_>) -> Option<TierAssignment<'_>> {
        // A tier may grant more, and it is unknown which path a server makes of an ambiguous one. So the path does not count, nor
        // does the method.
        let is_known = |name: &str| !["path", "method"].contains(&name) || !request.is_ambiguous();
        let mut known = self.tiers.iter().filter(|(attribute, _)| is_known(attribute));
        known.find_map(|(attribute, customers)| {
            let (value, tier) = customers.get_key_value(&*request.get(attribute)?)?;
            Some(TierAssignment { attribute, value, tier })
        })
    }

    /// The attributes that the run-time override for these values names, if there is one.
    pub(crate) fn override_key(
        &self,
        rule: &Rule,
        values: &KeyValues<'_>,
    ) -> Option<Vec<(&str, &str)>> {
        self.of(rule)?.overrides.key_of(values)
    }

    /// The allowance of a customer under a rule, and where it comes from.
    pub(crate) fn allowance_of<'p>(
        &'p self,
        rule: &'p Rule,
        values: &KeyValues<'_>,
        tier: Option<&str>,
    ) -> (&'p Allowance, Origin<'p>) {
        match self.of(rule).and_then(|change| change.overrides.find(values)) {
            Some(allowance) => (allowance, Origin::RunTimeOverride),
            None => rule.allowance_of(values, tier),
        }
    }
}

fn find<'p>(policy: &'p Policy, rule: &str) -> Result<&'p Rule, ChangeError> {
    let found = policy.rule(rule).map(|(_, rule)| rule);
    found.ok_or_else(|| ChangeError::NoRule(shown(rule)))
}

// === impl Policy ===

impl Policy {
    /// The rules and allowances for a request. A run-time override takes precedence over an override in the file, that over a
    /// tier, and that over the rule.
    ///
    /// ```
    /// # use tidegate_policy::{Attributes, Changes, Policy};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s] }] }").unwrap();
    /// let mut changes = Changes::default();
    /// assert_eq!(policy.resolve(&changes, &Attributes::new(), 1).rules.len(), 1);
    /// changes.set_enabled(&policy, "a", Some(false)).unwrap();
    /// assert_eq!(policy.resolve(&changes, &Attributes::new(), 1).rules.len(), 0);
    /// ```
    #[must_use]
    pub fn resolve<'p>(
        &'p self,
        changes: &'p Changes,
        request: &'p Attributes<'_>,
        cost: u64,
    ) -> Resolved<'p> {
        let mut rules = Vec::new();
        let RequestStanding { tier, unknown_tier, class } =
            self.resolve_each(changes, request, cost, |resolved| rules.push(resolved));
        Resolved { tier, unknown_tier, class, rules }
    }

    /// Calls `each` for every rule that applies to a request, with the allowance that is in force: see [`resolve`](Self::resolve),
    /// which collects them.
    pub fn resolve_each<'p>(
        &'p self,
        changes: &'p Changes,
        request: &'p Attributes<'_>,
        cost: u64,
        mut each: impl FnMut(ResolvedRule<'p>),
    ) -> RequestStanding<'p> {
        let (tier, unknown_tier) = self.tier_of(changes, request);
        let enabled = |rule: &Rule| self.is_enabled(changes, rule);
        let mut class = ClassSearch::default();
        self.each_applying(request, cost, enabled, |found| {
            let ApplyingRule { number, rule, values, in_every_reading } = found;
            let (allowance, origin) = changes.allowance_of(rule, &values, tier);
            let shadow = self.is_shadow(changes, rule);
            if let Some(named) = rule.priority.filter(|_| !shadow) {
                class.meets(named, in_every_reading);
            }
            each(ResolvedRule { number, rule, values, allowance, origin, shadow });
        });
        let class = class.found_or(|| self.class_of_request(request));
        RequestStanding { tier, unknown_tier, class }
    }

    /// The class that the request itself names, or the usual one.
    fn class_of_request(&self, request: &Attributes<'_>) -> ClassIndex {
        let named = request.named("priority").and_then(|name| self.classes.find(name));
        named.unwrap_or(self.classes.usual())
    }

    /// Whether a rule is enabled, by a change or by the file.
    #[must_use]
    pub fn is_enabled(&self, changes: &Changes, rule: &Rule) -> bool {
        changes.of(rule).and_then(|change| change.enabled).unwrap_or(rule.enabled)
    }

    /// Whether a rule is in shadow mode, by a change or by the file.
    #[must_use]
    pub fn is_shadow(&self, changes: &Changes, rule: &Rule) -> bool {
        changes.of(rule).and_then(|change| change.shadow).unwrap_or(rule.shadow)
    }

    /// The tier of a request, and whether the request named a tier that does not exist.
    pub(crate) fn tier_of<'p>(
        &'p self,
        changes: &'p Changes,
        request: &Attributes<'_>,
    ) -> (Option<&'p str>, bool) {
        let named = request.named("tier");
        if self.tiers.known.is_empty() {
            return (None, false);
        }
        let assigned = changes.tier(request).filter(|tier| self.tiers.is_known(tier));
        let unknown = named.is_some_and(|named| !self.tiers.is_known(named));
        (assigned.or_else(|| self.tiers.of(named)), unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::allowance::RuleLimit;

    const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro, enterprise] }
rules:
  - name: a
    key: [user]
    limits: [{ rate: 10/s, burst: 20 }]
    tiers:
      pro: { scale: 2.5 }
      enterprise: unlimited
    overrides: [{ key: { user: alice }, limits: [1000/s] }]
";

    fn what(changes: &Changes, user: &str, tier: &str) -> (Option<u64>, String) {
        let policy = Policy::parse(POLICY).unwrap();
        let request = Attributes::new().with("user", user).unwrap().with("tier", tier).unwrap();
        let resolved = policy.resolve(changes, &request, 1);
        let rule = &resolved.rules[0];
        let amount = rule.allowance.limits().first().map(|limit| limit.limit().amount());
        (amount, rule.origin.to_string())
    }

    #[test]
    fn precedence_of_overrides_tiers_and_rules() {
        let policy = Policy::parse(POLICY).unwrap();
        let mut changes = Changes::default();
        let is = |amount, origin: &str| (amount, origin.to_owned());
        assert_eq!(what(&changes, "bob", ""), is(Some(10), "rule"));
        assert_eq!(what(&changes, "bob", "pro"), is(Some(25), "tier pro"));
        assert_eq!(what(&changes, "bob", "enterprise"), is(None, "tier enterprise"));
        assert_eq!(what(&changes, "bob", "platinum"), is(Some(10), "rule"));
        assert_eq!(what(&changes, "alice", "pro"), is(Some(1000), "override"));
        changes.assign_tier(&policy, ("user", "bob"), Some("pro")).unwrap();
        assert_eq!(what(&changes, "bob", "enterprise"), is(Some(25), "tier pro"));
        let limits = Allowance::Limits(vec![RuleLimit::from_rate("7/s").unwrap()]);
        changes.set_override(&policy, "a", &[("user", "alice")], limits).unwrap();
        assert_eq!(what(&changes, "alice", "pro"), is(Some(7), "run-time override"));
        assert_eq!(changes.remove_override(&policy, "a", &[("user", "alice")]), Ok(true));
        changes.assign_tier(&policy, ("user", "bob"), None).unwrap();
        assert_eq!(what(&changes, "bob", "enterprise"), is(None, "tier enterprise"));
        assert!(changes.assign_tier(&policy, ("api_key", "s3cr3t"), Some("pro")).is_err());
        changes.assign_tier(&policy, ("ip", "::ffff:203.0.113.7"), Some("pro")).unwrap();
        let request = Attributes::new().with("ip", "203.0.113.7").unwrap();
        assert_eq!(policy.resolve(&changes, &request, 1).tier, Some("pro"));
        let refused = changes.assign_tier(&policy, ("user", "bob"), Some("gold")).unwrap_err();
        let expected = "there is no tier `gold`; the tiers are `free`, `pro`, `enterprise`";
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn an_unknown_tier_is_reported() {
        let policy = Policy::parse(POLICY).unwrap();
        let request = Attributes::new().with("tier", "platinum").unwrap();
        assert!(policy.resolve(&Changes::default(), &request, 1).unknown_tier);
    }
}
