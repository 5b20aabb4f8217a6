//! The control document: all changes of operators as one JSON value, and the changes that make its next version.

use super::change::{Change, RefusedChange, SwitchChange};
use super::note::ChangeNote;
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use tidegate_policy::{Allowance, Attributes, Changes, Policy};

/// All changes of operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Control"))]
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
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Uploaded {
    pub(crate) text: String,
    /// The digest of the file that it replaces. A newer file withdraws it.
    pub(crate) over: String,
}

/// A rule that is switched on or off, or to shadow mode. `*` stands for every rule without a switch of its own. A rule has two
/// entries if its two switches were set by different requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct RuleSwitch {
    pub(crate) rule: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shadow: Option<bool>,
    #[serde(flatten)]
    pub(crate) note: ChangeNote,
}

/// The limits of one key under a rule, instead of those of the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Override {
    pub(crate) rule: String,
    pub(crate) key: BTreeMap<String, String>,
    /// In the notation of policies. Without them, the override is removed.
    pub(crate) limits: Option<Value>,
    #[serde(flatten)]
    pub(crate) note: ChangeNote,
}

/// The tier of the requests with an attribute value, such as `user=alice`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Tier {
    pub(crate) attribute: String,
    pub(crate) value: String,
    /// Without it, the assignment is removed.
    pub(crate) tier: Option<String>,
    #[serde(flatten)]
    pub(crate) note: ChangeNote,
}

/// The most entries of each kind: enough for every customer of a small company. More should be tiers in the policy.
pub(super) const MOST: usize = 10_000;
/// The name that stands for all rules.
pub(super) const ALL: &str = "*";

impl Document {
    /// The next version.
    pub(crate) fn with(&self, change: &Change) -> Result<Self, RefusedChange> {
        let mut next = self.clone();
        next.version = next.version.saturating_add(1);
        match change {
            Change::Policy(policy) => next.policy = policy.clone(),
            Change::Rule(switch) => put_switch(&mut next.rules, switch)?,
            Change::Override(new) => {
                let same = |one: &Override| (&one.rule, &one.key) == (&new.rule, &new.key);
                put(&mut next.overrides, new.clone(), same, new.limits.is_none())?;
            }
            Change::Tier(new) => {
                let same =
                    |one: &Tier| (&one.attribute, &one.value) == (&new.attribute, &new.value);
                put(&mut next.tiers, new.clone(), same, new.tier.is_none())?;
            }
            Change::Expired { now_ms } => next.retain_unexpired(*now_ms),
        }
        Ok(next)
    }

    // === expiry ===

    /// The document without the entries that have expired.
    pub(crate) fn in_force(&self, now_ms: u64) -> Self {
        let mut document = self.clone();
        document.retain_unexpired(now_ms);
        document
    }

    fn retain_unexpired(&mut self, now_ms: u64) {
        self.rules.retain(|one| !one.note.has_expired(now_ms));
        self.overrides.retain(|one| !one.note.has_expired(now_ms));
        self.tiers.retain(|one| !one.note.has_expired(now_ms));
    }

    /// When the first of its entries expires.
    pub(crate) fn first_expiry_ms(&self) -> Option<u64> {
        self.notes().filter_map(|note| note.expires_at_ms).min()
    }

    fn notes(&self) -> impl Iterator<Item = &ChangeNote> {
        let rules = self.rules.iter().map(|one| &one.note);
        let overrides = self.overrides.iter().map(|one| &one.note);
        rules.chain(overrides).chain(self.tiers.iter().map(|one| &one.note))
    }

    /// The entries that have expired, for the audit log.
    pub(crate) fn expired(&self, now_ms: u64) -> Value {
        fn of<T: Serialize>(entries: &[T], note: fn(&T) -> &ChangeNote, now_ms: u64) -> Value {
            entries
                .iter()
                .filter(|one| note(one).has_expired(now_ms))
                .map(|one| json!(one))
                .collect()
        }
        json!({
            "rules": of(&self.rules, |one| &one.note, now_ms),
            "overrides": of(&self.overrides, |one| &one.note, now_ms),
            "tiers": of(&self.tiers, |one| &one.note, now_ms),
        })
    }

    // === what it means ===

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

    /// Keeps only what decides requests: changes without notes, and one entry for each rule.
    pub(crate) fn without_notes(mut self) -> Self {
        let switches = self.switches().into_iter().map(|(rule, (enabled, shadow))| RuleSwitch {
            rule: rule.to_owned(),
            enabled,
            shadow,
            note: ChangeNote::default(),
        });
        self.rules = switches.collect();
        self.overrides.iter_mut().for_each(|one| one.note = ChangeNote::default());
        self.tiers.iter_mut().for_each(|one| one.note = ChangeNote::default());
        self
    }

    /// The two switches of each rule: whether it is enabled, and whether it is in shadow mode.
    fn switches(&self) -> HashMap<&str, (Option<bool>, Option<bool>)> {
        let mut switches: HashMap<&str, (Option<bool>, Option<bool>)> = HashMap::new();
        for one in &self.rules {
            let (enabled, shadow) = switches.entry(&one.rule).or_default();
            *enabled = one.enabled.or(*enabled);
            *shadow = one.shadow.or(*shadow);
        }
        switches
    }

    /// Applies the switches. A switch of a rule takes precedence over the one for all rules.
    fn switch(&self, changes: &mut Changes, policy: &Policy, unfit: &mut Vec<String>) {
        if self.rules.is_empty() {
            return;
        }
        let switches = self.switches();
        let (all_enabled, all_shadow) = switches.get(ALL).copied().unwrap_or_default();
        for rule in policy.rules() {
            let (enabled, shadow) = switches.get(rule.name()).copied().unwrap_or_default();
            // The rule exists, so this cannot fail.
            let _ = changes.set_enabled(policy, rule.name(), enabled.or(all_enabled));
            let _ = changes.set_shadow(policy, rule.name(), shadow.or(all_shadow));
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

/// Removes the switches that a change names from the entries of its rule, and adds an entry with those that it sets.
fn put_switch(list: &mut Vec<RuleSwitch>, change: &SwitchChange) -> Result<(), RefusedChange> {
    for entry in list.iter_mut().filter(|entry| entry.rule == change.rule) {
        entry.enabled = entry.enabled.filter(|_| change.enabled.is_none());
        entry.shadow = entry.shadow.filter(|_| change.shadow.is_none());
    }
    list.retain(|entry| entry.enabled.is_some() || entry.shadow.is_some());
    let Some(entry) = change.entry() else { return Ok(()) };
    if list.len() >= MOST {
        return Err(RefusedChange::TooMany);
    }
    list.push(entry);
    Ok(())
}

impl Override {
    /// Whether it has the same subject as another: removing the other one would remove this one.
    pub(crate) fn is(&self, other: &Self, policy: &Policy) -> bool {
        let (mut changes, any) = (Changes::default(), Allowance::Unlimited);
        self.rule == other.rule
            && changes.set_override(policy, &self.rule, &self.who(), any).is_ok()
            && changes.remove_override(policy, &other.rule, &other.who()) == Ok(true)
    }

    pub(crate) fn who(&self) -> Vec<(&str, &str)> {
        self.key.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    pub(super) fn apply(&self, changes: &mut Changes, policy: &Policy) -> Result<(), String> {
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
    pub(crate) fn is(&self, other: &Self) -> bool {
        let in_a_request = |tier: &Self| {
            let request =
                Attributes::new().with(tier.attribute.clone(), tier.value.clone()).ok()?;
            request.get(&tier.attribute).map(std::borrow::Cow::into_owned)
        };
        self.attribute == other.attribute
            && in_a_request(self).is_some_and(|mine| Some(mine) == in_a_request(other))
    }

    pub(super) fn apply(&self, changes: &mut Changes, policy: &Policy) -> Result<(), String> {
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

    fn until(expires_at_ms: Option<u64>) -> ChangeNote {
        ChangeNote { expires_at_ms, ..ChangeNote::default() }
    }

    fn switch(rule: &str, enabled: Option<Option<bool>>, shadow: Option<Option<bool>>) -> Change {
        Change::Rule(SwitchChange { rule: rule.to_owned(), enabled, shadow, note: until(None) })
    }

    fn alice(limits: Option<Value>) -> Change {
        let key = BTreeMap::from([("user".to_owned(), "alice".to_owned())]);
        Change::Override(Override { rule: "a".to_owned(), key, limits, note: until(None) })
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
            Change::Tier(Tier {
                attribute,
                value,
                tier: tier.map(str::to_owned),
                note: until(None),
            })
        };
        let document = document.with(&tier(Some("pro"))).unwrap();
        assert_eq!(limit_of(&document, "bob")[0].1, Some(10));
        assert_eq!(limit_of(&document.with(&tier(None)).unwrap(), "bob")[0].1, Some(1));
    }

    #[test]
    fn a_switch_of_a_rule_overrides_the_switch_for_all_rules() {
        let off = Document::default().with(&switch("*", Some(Some(false)), None)).unwrap();
        assert_eq!(limit_of(&off, "x"), []);
        let but_b = off.with(&switch("b", Some(Some(true)), None)).unwrap();
        assert_eq!(limit_of(&but_b, "x"), [("b".to_owned(), Some(2), false)]);
        let shadow = Document::default().with(&switch("*", None, Some(Some(true)))).unwrap();
        assert!(limit_of(&shadow, "x").iter().all(|(_, _, shadow)| *shadow));
        let on_again = off.with(&switch("*", Some(None), None)).unwrap();
        assert_eq!((limit_of(&on_again, "x").len(), on_again.rules.len()), (2, 0));
    }

    #[test]
    fn a_new_change_that_does_not_fit_is_refused_and_an_old_one_waits() {
        let stranger = switch("c", Some(Some(false)), None);
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

    /// A document that an older version wrote has entries without notes. One with notes that this version does not know is
    /// refused, because ignoring them would change what is in force.
    #[test]
    fn entries_may_lack_notes_and_have_no_others() {
        let plain = json!({ "rule": "a", "key": { "user": "alice" }, "limits": ["7/s"] });
        let read: Override = serde_json::from_value(plain.clone()).unwrap();
        assert_eq!((&read.note, json!(read)), (&until(None), plain));
        let noted = json!({ "rule": "a", "shadow": true, "expires_at_ms": 7, "reason": "r", "by": "eve", "since_ms": 5 });
        let read: RuleSwitch = serde_json::from_value(noted.clone()).unwrap();
        assert_eq!(json!(read), noted);
        let unknown = json!({ "attribute": "user", "value": "x", "tier": "pro", "until": 7 });
        assert!(serde_json::from_value::<Tier>(unknown).is_err());
    }

    #[test]
    fn an_entry_is_in_force_until_it_expires() {
        let mut change = alice(Some(json!(["7/s"])));
        if let Change::Override(one) = &mut change {
            one.note = until(Some(1_000));
        }
        let document = Document::default().with(&change).unwrap();
        assert_eq!(document.first_expiry_ms(), Some(1_000));
        assert_eq!(limit_of(&document.in_force(999), "alice")[0].1, Some(7));
        assert_eq!(limit_of(&document.in_force(1_000), "alice")[0].1, Some(1));
        assert_eq!(document.expired(999)["overrides"], json!([]));
        assert_eq!(document.expired(1_000)["overrides"][0]["key"]["user"], "alice");
        let rest = document.with(&Change::Expired { now_ms: 1_000 }).unwrap();
        assert_eq!((rest.overrides.len(), rest.version, rest.first_expiry_ms()), (0, 2, None));
    }

    /// Each switch of a rule ends at its own time.
    #[test]
    fn switching_a_rule_off_does_not_prolong_its_shadow_mode() {
        let shadow = SwitchChange {
            rule: "a".to_owned(),
            enabled: None,
            shadow: Some(Some(true)),
            note: until(Some(1_000)),
        };
        let document = Document::default().with(&Change::Rule(shadow)).unwrap();
        let document = document.with(&switch("a", Some(Some(false)), None)).unwrap();
        let switches = |document: &Document| document.switches().get("a").copied();
        assert_eq!(switches(&document), Some((Some(false), Some(true))));
        assert_eq!(switches(&document.in_force(1_000)), Some((Some(false), None)));
        let document = document.with(&switch("a", None, Some(Some(false)))).unwrap();
        assert_eq!((document.rules.len(), document.first_expiry_ms()), (2, None));
        let document = document.with(&switch("a", Some(None), Some(None))).unwrap();
        assert_eq!(document.rules, []);
    }
}
