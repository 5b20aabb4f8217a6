//! What a policy says about a person of whom only some attributes are known, such as a user name.
//!
//! Which rules apply to a request follows from its attributes: user, address, method, path. An operator asks about a person by name or
//! by address, without a method or a path. So the policy lists two kinds of rules:
//!
//! - rules whose *key* is known from that, with the conditions that are still open;
//! - all other rules, with the attributes that are missing for their keys.

use crate::model::attributes::Attributes;
use crate::model::changes::{Changes, ResolvedRule, TierAssignment};
use crate::model::key::{KeyValue, PartialKey};
use crate::model::policy::{Origin, Policy};
use crate::model::rule::Rule;

/// A person under a policy.
#[derive(Debug)]
pub struct Person<'p> {
    /// The tier, as far as it is known: requests may name another.
    pub tier: Option<&'p str>,
    /// How an operator assigned that tier, if one did.
    pub assigned: Option<TierAssignment<'p>>,
    /// All rules, in the order of the file.
    pub rules: Vec<PersonRule<'p>>,
}

/// A rule and a person.
#[derive(Debug)]
pub struct PersonRule<'p> {
    /// The rule.
    pub rule: &'p Rule,
    /// Whether it is enabled.
    pub enabled: bool,
    /// The known values of its key.
    pub known: Vec<(&'p str, KeyValue<'p>)>,
    /// The parts of its key of which no value is known, such as `device`.
    pub lacking: Vec<String>,
    /// The rule as it applies to the person; `None` if its key is not known.
    pub resolved: Option<ResolvedRule<'p>>,
    /// The attributes that the run-time override names, if one applies.
    pub override_key: Option<Vec<(&'p str, &'p str)>>,
    /// Under which conditions the rule applies to requests of the person, in words.
    pub only_when: Vec<String>,
}

impl Policy {
    /// What the policy says about a person of whom these attributes are known.
    ///
    /// ```
    /// use tidegate_policy::{Attributes, Changes, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules:
    ///   - { name: a, match: { method: POST }, key: [user], limits: [1/s] }
    ///   - { name: b, key: [user, device], limits: [1/s] }").unwrap();
    /// let alice = Attributes::new().with("user", "alice")?;
    /// let changes = Changes::default();
    /// let person = policy.person(&changes, &alice);
    /// assert_eq!(person.rules[0].resolved.as_ref().unwrap().values.to_string(), "user=alice");
    /// assert_eq!(person.rules[0].only_when, ["method is POST"]);
    /// assert_eq!(person.rules[1].lacking, ["device"]);
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    #[must_use]
    pub fn person<'p>(&'p self, changes: &'p Changes, who: &'p Attributes<'_>) -> Person<'p> {
        let (tier, _) = self.tier_of(changes, who);
        let assigned = changes.assignment(who).filter(|assigned| tier == Some(assigned.tier));
        let mut stops: Vec<&str> = vec![];
        let rules = self.rules().iter().enumerate().map(|(number, rule)| {
            let mut found = self.person_rule((number, rule), (changes, tier), who);
            found
                .only_when
                .extend(stops.iter().map(|name| format!("rule `{name}` does not apply")));
            if found.resolved.is_some() && found.enabled && rule.stop {
                stops.push(rule.name());
            }
            found
        });
        let rules = rules.collect();
        Person { tier, assigned, rules }
    }

    fn person_rule<'p>(
        &'p self,
        (number, rule): (usize, &'p Rule),
        (changes, tier): (&'p Changes, Option<&str>),
        who: &'p Attributes<'_>,
    ) -> PersonRule<'p> {
        let prefix = self.identity().ipv6_prefix();
        let PartialKey { known, lacking, preferred } = rule.key().partial(who, prefix);
        let values = rule.key().of(who, prefix);
        let override_key = values.as_ref().and_then(|values| changes.override_key(rule, values));
        let resolved = values.map(|values| {
            let (allowance, origin) = changes.allowance_of(rule, &values, tier);
            let shadow = self.is_shadow(changes, rule);
            ResolvedRule { number, rule, values, allowance, origin, shadow }
        });
        PersonRule {
            rule,
            enabled: self.is_enabled(changes, rule),
            known,
            lacking,
            override_key: override_key.filter(|_| {
                resolved.as_ref().is_some_and(|rule| rule.origin == Origin::RunTimeOverride)
            }),
            resolved,
            only_when: open_conditions(rule, who, &preferred),
        }
    }
}

/// The conditions of a rule that the known attributes do not satisfy already.
fn open_conditions(rule: &Rule, who: &Attributes<'_>, preferred: &[&str]) -> Vec<String> {
    let open = rule.conditions.iter().filter(|condition| !condition.holds(who.canonical()));
    let conditions = open.map(|condition| format!("{} is {condition}", condition.attribute()));
    let when = rule.when.iter().map(|when| format!("when {}", when.as_str()));
    let absent = preferred.iter().map(|name| format!("the request has no `{name}`"));
    conditions.chain(when).chain(absent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::allowance::Allowance;

    const POLICY: &str = "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: exempt, match: { tenant: acme }, key: [user], limits: [9/s], stop: true }
  - { name: paths, match: { path: [/a, /b], method: POST }, when: 'cost > 5', key: [user], limits: [1/s], tiers: { pro: { scale: 10 } } }
  - { name: either, key: [device|ip], limits: [2/s] }
  - { name: all, key: [], limits: [3/s] }
  - { name: three, key: [user, ip, device|token], limits: [3/s], enabled: false }
";

    #[test]
    fn rules_are_listed_by_what_is_known() {
        let policy = Policy::parse(POLICY).unwrap();
        let mut changes = Changes::default();
        changes.assign_tier(&policy, ("ip", "::ffff:203.0.113.7"), Some("pro")).unwrap();
        let who = Attributes::new().with("user", "alice").unwrap();
        let who = who.with("ip", "203.0.113.7").unwrap();
        let person = policy.person(&changes, &who);
        let assigned = TierAssignment { attribute: "ip", value: "203.0.113.7", tier: "pro" };
        assert_eq!((person.tier, person.assigned), (Some("pro"), Some(assigned)));
        let only_when: Vec<Vec<String>> =
            person.rules.iter().map(|rule| rule.only_when.clone()).collect();
        let stop = "rule `exempt` does not apply";
        assert_eq!(
            only_when,
            [
                vec!["tenant is acme"],
                vec!["path is /a or /b", "method is POST", "when cost > 5", stop],
                vec!["the request has no `device`", stop],
                vec![stop],
                vec![stop],
            ]
        );
        let paths = person.rules[1].resolved.as_ref().unwrap();
        assert_eq!(paths.origin, Origin::Tier("pro"));
        let three = &person.rules[4];
        assert!(three.resolved.is_none() && !three.enabled);
        let known: Vec<&str> = three.known.iter().map(|(name, _)| *name).collect();
        assert_eq!((known, &three.lacking), (vec!["user", "ip"], &vec!["device|token".to_owned()]));
    }

    #[test]
    fn the_override_that_applies_is_named() {
        let policy = Policy::parse(POLICY).unwrap();
        let mut changes = Changes::default();
        let any = Allowance::Unlimited;
        changes.set_override(&policy, "either", &[("ip", "::ffff:203.0.113.7")], any).unwrap();
        let key = |ip: &'static str| {
            let who = Attributes::new().with("ip", ip).unwrap();
            let person = policy.person(&changes, &who);
            person.rules[2].override_key.clone().map(|key| format!("{key:?}"))
        };
        assert_eq!(key("203.0.113.7").as_deref(), Some("[(\"ip\", \"203.0.113.7\")]"));
        assert_eq!(key("203.0.113.8"), None);
    }
}
