//! The control document: all changes of operators as one JSON value, and the changes that make its next version.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use tidegate_policy::{Allowance, Attributes, Changes, Identity, Policy};

/// All changes of operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub(crate) version: u64,
    /// An uploaded policy, which is in force instead of the file.
    #[serde(default)]
    pub(crate) policy: Option<Uploaded>,
    #[serde(default)]
    pub(crate) rules: Vec<RuleSwitch>,
    #[serde(default)]
    pub(crate) overrides: Vec<Override>,
    #[serde(default)]
    pub(crate) tiers: Vec<Tier>,
}

/// A policy that an operator uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Uploaded {
    pub(crate) text: String,
    /// The digest of the file that it replaces. A newer file withdraws it.
    pub(crate) over: String,
}

/// A rule that is switched on or off, or to shadow mode. `*` stands for every rule without a switch of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleSwitch {
    pub(crate) rule: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shadow: Option<bool>,
}

/// The limits of one key under a rule, instead of those of the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Override {
    pub(crate) rule: String,
    pub(crate) key: BTreeMap<String, String>,
    /// In the notation of policies; `None` removes the override.
    pub(crate) limits: Option<serde_json::Value>,
}

/// The tier of the requests with an attribute value, such as `user=alice`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tier {
    pub(crate) attribute: String,
    pub(crate) value: String,
    /// `None` removes the assignment.
    pub(crate) tier: Option<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Policy(Option<Uploaded>),
    Rule(RuleSwitch),
    Override(Override),
    Tier(Tier),
}

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RefusedChange {
    #[error(
        "it was made for version {expected}, but the current version is {version}; read it again and repeat the change"
    )]
    Stale { expected: u64, version: u64 },
    #[error("another change is being written; try again")]
    Busy,
    #[error("it could not be written; nothing has changed")]
    NotWritten,
    #[error("the store, which keeps changes for all nodes, cannot be reached; nothing has changed")]
    StoreGone,
    #[error("internal error: no change was being written")]
    NothingPending,
    #[error("there are already {MOST} entries of this kind; remove some")]
    TooMany,
    #[error("{0}")]
    Wrong(String),
}

/// The most entries of each kind: enough for every customer of a small company. More should be tiers in the policy.
const MOST: usize = 10_000;
/// The name that stands for all rules.
const ALL: &str = "*";

impl Document {
    /// The next version.
    pub(crate) fn with(&self, change: &Change) -> Result<Self, RefusedChange> {
        let mut next = self.clone();
        next.version = next.version.saturating_add(1);
        match change {
            Change::Policy(policy) => next.policy = policy.clone(),
            Change::Rule(switch) => {
                let empty = switch.enabled.is_none() && switch.shadow.is_none();
                put(&mut next.rules, switch.clone(), |one| one.rule == switch.rule, empty)?;
            }
            Change::Override(new) => {
                let same = |one: &Override| (&one.rule, &one.key) == (&new.rule, &new.key);
                put(&mut next.overrides, new.clone(), same, new.limits.is_none())?;
            }
            Change::Tier(new) => {
                let same =
                    |one: &Tier| (&one.attribute, &one.value) == (&new.attribute, &new.value);
                put(&mut next.tiers, new.clone(), same, new.tier.is_none())?;
            }
        }
        Ok(next)
    }

    /// Its changes under a policy, and those that do not fit: a change of a rule that was removed waits until the rule is back.
    pub(crate) fn changes(&self, policy: &Policy) -> (Changes, Vec<String>) {
        let mut changes = Changes::default();
        let mut unfit = Vec::new();
        for one in &self.overrides {
            if let Err(error) = one.apply(&mut changes, policy) {
                unfit.push(format!("override of `{}`: {error}", one.rule));
            }
        }
        for one in &self.tiers {
            if let Err(error) = one.apply(&mut changes, policy) {
                unfit.push(format!("tier of {} `{}`: {error}", one.attribute, one.value));
            }
        }
        self.switch(&mut changes, policy, &mut unfit);
        (changes, unfit)
    }

    /// The document without the changes that wait for their rule or tier.
    pub(crate) fn fitting(&self, policy: &Policy) -> Self {
        let mut fitting = self.clone();
        let none = Changes::default;
        fitting.rules.retain(|one| one.rule == ALL || policy.rule(&one.rule).is_some());
        fitting.overrides.retain(|one| one.apply(&mut none(), policy).is_ok());
        fitting.tiers.retain(|one| one.apply(&mut none(), policy).is_ok());
        fitting
    }

    /// Applies the switches. A switch of a rule takes precedence over the one for all rules.
    fn switch(&self, changes: &mut Changes, policy: &Policy, unfit: &mut Vec<String>) {
        if self.rules.is_empty() {
            return;
        }
        let own: HashMap<&str, &RuleSwitch> =
            self.rules.iter().map(|switch| (switch.rule.as_str(), switch)).collect();
        let all = own.get(ALL).copied();
        for rule in policy.rules() {
            let own = own.get(rule.name()).copied();
            let said = |what: fn(&RuleSwitch) -> Option<bool>| {
                own.and_then(what).or_else(|| all.and_then(what))
            };
            // The rule exists, so this cannot fail.
            let _ = changes.set_enabled(policy, rule.name(), said(|switch| switch.enabled));
            let _ = changes.set_shadow(policy, rule.name(), said(|switch| switch.shadow));
        }
        let gone = |switch: &&RuleSwitch| switch.rule != ALL && policy.rule(&switch.rule).is_none();
        unfit.extend(
            self.rules
                .iter()
                .filter(gone)
                .map(|switch| format!("there is no rule `{}`", switch.rule)),
        );
    }
}

/// Replaces the entry with the same subject; an empty entry removes it.
fn put<T>(
    list: &mut Vec<T>,
    entry: T,
    same: impl Fn(&T) -> bool,
    empty: bool,
) -> Result<(), RefusedChange> {
    list.retain(|one| !same(one));
    if !empty {
        if list.len() >= MOST {
            return Err(RefusedChange::TooMany);
        }
        list.push(entry);
    }
    Ok(())
}

impl Change {
    /// Checks that it is valid under a policy and together with the changes in force. Old changes may wait for their rule to
    /// come back, but a new change must be valid now.
    pub(crate) fn fits(&self, document: &Document, policy: &Policy) -> Result<(), RefusedChange> {
        // Removing an override cannot contradict another change.
        let taken_back = matches!(self, Self::Override(Override { limits: None, .. }));
        let (mut changes, _) =
            if taken_back { Default::default() } else { document.changes(policy) };
        let fits = match self {
            Self::Policy(_) => Ok(()),
            Self::Rule(switch) if switch.rule == ALL => Ok(()),
            Self::Rule(switch) => changes
                .set_enabled(policy, &switch.rule, switch.enabled)
                .map_err(|error| error.to_string()),
            Self::Override(one) => one.apply(&mut changes, policy),
            Self::Tier(one) => one.apply(&mut changes, policy),
        };
        fits.map_err(RefusedChange::Wrong)
    }

    /// What is valid but probably a mistake: limits that count by another algorithm than those of their rule.
    pub(crate) fn warnings(&self, policy: &Policy) -> Vec<String> {
        let mut changes = Changes::default();
        match self {
            Self::Override(one) if one.apply(&mut changes, policy).is_ok() => {
                changes.warnings(policy)
            }
            Self::Override(_) | Self::Policy(_) | Self::Rule(_) | Self::Tier(_) => vec![],
        }
    }

    /// Checks that requests can have the values that it names. Secret and very long attribute values are counted by their
    /// digests: the plain value would never match, and would be written into files.
    pub(crate) fn can_match(
        &self,
        identity: &Identity,
        digest: &dyn Fn(&str) -> String,
    ) -> Result<(), RefusedChange> {
        let check = |name: &str, value: &str| can_match(name, value, identity, digest);
        match self {
            Self::Policy(_) | Self::Rule(_) => Ok(()),
            Self::Override(new) => new.key.iter().try_for_each(|(name, value)| check(name, value)),
            Self::Tier(new) => check(&new.attribute, &new.value),
        }
        .map_err(RefusedChange::Wrong)
    }

    /// The same change in the spelling that the document already uses. An address can be written in several ways, and a second
    /// entry for it could not be removed.
    pub(crate) fn spelled_as_in(mut self, document: &Document, policy: &Policy) -> Self {
        match &mut self {
            Self::Policy(_) | Self::Rule(_) => {}
            Self::Override(new) => {
                if let Some(known) = document.overrides.iter().find(|one| one.is(new, policy)) {
                    new.key.clone_from(&known.key);
                }
            }
            Self::Tier(new) => {
                if let Some(known) = document.tiers.iter().find(|one| one.is(new)) {
                    new.value.clone_from(&known.value);
                }
            }
        }
        self
    }

    /// Its kind, for the audit log.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Policy(_) => "policy",
            Self::Rule(_) => "rule",
            Self::Override(_) => "override",
            Self::Tier(_) => "tier",
        }
    }
}

/// Addresses, methods and paths may be written in several ways, and are checked elsewhere.
fn can_match(
    name: &str,
    value: &str,
    identity: &Identity,
    digest: &dyn Fn(&str) -> String,
) -> Result<(), String> {
    if ["ip", "method", "path"].contains(&name) {
        return Ok(());
    }
    let request = Attributes::new().with(name.to_owned(), value.to_owned());
    let request = request.map_err(|error| error.to_string())?;
    if request.get(name).is_none() {
        return Err(format!("`{name}` is empty; no request has an empty value"));
    }
    if identity.reveals(&request) {
        let digest = digest(value);
        return Err(format!(
            "requests are known by the digest of `{name}`; write `{digest}` instead"
        ));
    }
    Ok(())
}

impl Override {
    /// Whether it has the same subject as another: removing the other one would remove this one.
    fn is(&self, other: &Self, policy: &Policy) -> bool {
        let (mut changes, any) = (Changes::default(), Allowance::Unlimited);
        self.rule == other.rule
            && changes.set_override(policy, &self.rule, &self.who(), any).is_ok()
            && changes.remove_override(policy, &other.rule, &other.who()) == Ok(true)
    }

    fn who(&self) -> Vec<(&str, &str)> {
        self.key.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    fn apply(&self, changes: &mut Changes, policy: &Policy) -> Result<(), String> {
        let who = self.who();
        let done = match &self.limits {
            None => changes.remove_override(policy, &self.rule, &who).map(|_| ()),
            Some(limits) => {
                // A single word is YAML as it is. Everything else is written as JSON, which is YAML too.
                let text = limits.as_str().map_or_else(|| limits.to_string(), str::to_owned);
                let allowance = Allowance::parse(&text).map_err(|error| {
                    let texts: Vec<&str> =
                        error.problems().iter().map(|problem| problem.text.as_str()).collect();
                    format!("`limits`: {}", texts.join("; "))
                })?;
                changes.set_override(policy, &self.rule, &who, allowance)
            }
        };
        done.map_err(|error| error.to_string())
    }
}

impl Tier {
    /// Whether it has the same subject as another, compared as in requests.
    fn is(&self, other: &Self) -> bool {
        let in_a_request = |tier: &Self| {
            let request =
                Attributes::new().with(tier.attribute.clone(), tier.value.clone()).ok()?;
            request.get(&tier.attribute).map(std::borrow::Cow::into_owned)
        };
        self.attribute == other.attribute
            && in_a_request(self).is_some_and(|mine| Some(mine) == in_a_request(other))
    }

    fn apply(&self, changes: &mut Changes, policy: &Policy) -> Result<(), String> {
        let who = (self.attribute.as_str(), self.value.as_str());
        changes.assign_tier(policy, who, self.tier.as_deref()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy() -> Policy {
        Policy::parse(
            "
version: 1
tiers: { default: free, known: [free, pro] }
rules:
  - { name: a, key: [user], limits: [1/s], tiers: { pro: { scale: 10 } } }
  - { name: b, key: [user], limits: [2/s] }
",
        )
        .unwrap()
    }

    fn limit_of(document: &Document, user: &str) -> Vec<(String, Option<u64>, bool)> {
        let policy = policy();
        let (changes, unfit) = document.changes(&policy);
        assert_eq!(unfit, Vec::<String>::new());
        let request = Attributes::new().with("user", user).unwrap();
        let resolved = policy.resolve(&changes, &request, 1);
        let of = |rule: &tidegate_policy::ResolvedRule<'_>| {
            let limit = rule.allowance.limits().first().map(|limit| limit.limit().amount());
            (rule.rule.name().to_owned(), limit, rule.shadow)
        };
        resolved.rules.iter().map(of).collect()
    }

    fn alice(limits: Option<serde_json::Value>) -> Change {
        let key = BTreeMap::from([("user".to_owned(), "alice".to_owned())]);
        Change::Override(Override { rule: "a".to_owned(), key, limits })
    }

    #[test]
    fn changes_can_be_made_and_removed() {
        let document = Document::default().with(&alice(Some(json!(["7/s"])))).unwrap();
        assert_eq!(limit_of(&document, "alice")[0].1, Some(7));
        let document = document.with(&alice(Some(json!("unlimited")))).unwrap();
        assert_eq!((limit_of(&document, "alice")[0].1, document.overrides.len()), (None, 1));
        let document = document.with(&alice(None)).unwrap();
        assert_eq!((limit_of(&document, "alice")[0].1, document.version), (Some(1), 3));
        let tier = |tier: Option<&str>| {
            let (attribute, value) = ("user".to_owned(), "bob".to_owned());
            Change::Tier(Tier { attribute, value, tier: tier.map(str::to_owned) })
        };
        let document = document.with(&tier(Some("pro"))).unwrap();
        assert_eq!(limit_of(&document, "bob")[0].1, Some(10));
        assert_eq!(limit_of(&document.with(&tier(None)).unwrap(), "bob")[0].1, Some(1));
    }

    #[test]
    fn a_switch_of_a_rule_overrides_the_switch_for_all_rules() {
        let switch = |rule: &str, enabled, shadow| {
            Change::Rule(RuleSwitch { rule: rule.to_owned(), enabled, shadow })
        };
        let off = Document::default().with(&switch("*", Some(false), None)).unwrap();
        assert_eq!(limit_of(&off, "x"), []);
        let but_b = off.with(&switch("b", Some(true), None)).unwrap();
        assert_eq!(limit_of(&but_b, "x"), [("b".to_owned(), Some(2), false)]);
        let shadow = Document::default().with(&switch("*", None, Some(true))).unwrap();
        assert!(limit_of(&shadow, "x").iter().all(|(_, _, shadow)| *shadow));
        let on_again = off.with(&switch("*", None, None)).unwrap();
        assert_eq!((limit_of(&on_again, "x").len(), on_again.rules.len()), (2, 0));
    }

    #[test]
    fn a_new_change_that_does_not_fit_is_refused_and_an_old_one_waits() {
        let stranger =
            Change::Rule(RuleSwitch { rule: "c".to_owned(), enabled: Some(false), shadow: None });
        assert_eq!(
            stranger.fits(&Document::default(), &policy()),
            Err(RefusedChange::Wrong("there is no rule `c`".to_owned()))
        );
        let document = Document::default().with(&stranger).unwrap();
        assert_eq!(document.changes(&policy()).1, ["there is no rule `c`"]);
        let bad = alice(Some(json!(["7/fortnight"])));
        let fits = |change: &Change| change.fits(&document, &policy());
        assert!(fits(&bad).unwrap_err().to_string().contains("`limits`: "));
        assert!(fits(&alice(Some(json!(["7/s"])))).is_ok());
    }

    #[test]
    fn it_survives_a_round_trip_through_json() {
        let document = Document::default().with(&alice(Some(json!(["7/s"])))).unwrap();
        let text = serde_json::to_string(&document).unwrap();
        assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), document);
        assert!(serde_json::from_str::<Document>("{\"version\":1,\"extra\":2}").is_err());
    }
}
