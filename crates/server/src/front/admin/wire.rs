//! What operators send and get.

use crate::control::{Override, RuleSwitch, Tier};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidegate::{AttributeError, Attributes, Changes, Policy, RuleStats, Stats};
use tidegate_policy::{AppliedRule, Explanation, Rule, RuleExplanation};

/// `POST /admin/v1/peek` and `/explain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    pub(super) attributes: BTreeMap<String, String>,
    #[serde(default = "one")]
    pub(super) cost: u64,
}

/// `POST /admin/v1/reset`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reset {
    pub(super) rule: String,
    pub(super) attributes: BTreeMap<String, String>,
}

/// `PUT /admin/v1/rules`: a switch that is not named stays as it is, and `null` gives it back to the policy.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    rule: String,
    #[serde(default, deserialize_with = "said")]
    enabled: Option<Option<bool>>,
    #[serde(default, deserialize_with = "said")]
    shadow: Option<Option<bool>>,
}

/// `PUT /admin/v1/signals`: names and numbers.
pub(super) type PutSignalsBody = BTreeMap<String, f64>;

/// `PUT /admin/v1/overrides`: `"limits": null` takes the override away.
pub(super) type PutOverride = Override;

/// `PUT /admin/v1/tiers`: `"tier": null` takes the assignment away.
pub(super) type PutTier = Tier;

const fn one() -> u64 {
    1
}

/// Tells `null` from silence.
fn said<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<bool>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl Switch {
    /// With what was said before in the place of what was not said now.
    pub(super) fn over(self, before: &[RuleSwitch]) -> RuleSwitch {
        let known = before.iter().find(|switch| switch.rule == self.rule);
        RuleSwitch {
            enabled: self.enabled.unwrap_or_else(|| known.and_then(|switch| switch.enabled)),
            shadow: self.shadow.unwrap_or_else(|| known.and_then(|switch| switch.shadow)),
            rule: self.rule,
        }
    }
}

/// Attributes as a policy knows them.
pub(super) fn attributes(
    pairs: &BTreeMap<String, String>,
) -> Result<Attributes<'_>, (String, AttributeError)> {
    let mut attributes = Attributes::new();
    for (name, value) in pairs {
        attributes
            .set(name.as_str(), value.as_str())
            .map_err(|error| (format!("/attributes/{name}"), error))?;
    }
    Ok(attributes)
}

// === what they get ===

/// How often each rule decided what.
pub(super) fn counts(stats: &Stats) -> Vec<Value> {
    let count = |(rule, stats): &(String, RuleStats)| {
        json!({
            "rule": rule, "allowed": stats.allowed, "delayed": stats.delayed,
            "denied": stats.denied, "would_deny": stats.would_deny,
        })
    };
    stats.rules.iter().map(count).collect()
}

/// A rule, and how it is switched.
pub(super) fn described(rule: &Rule, policy: &Policy, changes: &Changes) -> Value {
    let limits = rule.allowance().limits().iter().map(|limit| {
        json!({
            "id": limit.id(),
            "rate": limit.rate().to_string(),
            "algorithm": limit.limit().algorithm().name(),
        })
    });
    json!({
        "rule": rule.name(),
        "key": rule.key().to_string(),
        "limits": limits.collect::<Vec<_>>(),
        "enabled": policy.is_enabled(changes, rule),
        "shadow": policy.is_shadow(changes, rule),
    })
}

/// What every rule makes of a request; `tidegate policy explain --json` prints the same.
pub(crate) fn explanation(explanation: &Explanation) -> Value {
    let rule = |rule: &RuleExplanation| match &rule.outcome {
        Ok(AppliedRule { key, limits, origin, notes }) => json!({
            "rule": rule.rule, "applies": true, "key": key, "limits": limits, "from": origin,
            "unlimited": limits.is_empty(), "notes": notes,
        }),
        Err(skipped) => json!({ "rule": rule.rule, "applies": false, "why": skipped.to_string() }),
    };
    let rules: Vec<Value> = explanation.rules.iter().map(rule).collect();
    json!({
        "tier": explanation.tier, "unknown_tier": explanation.unknown_tier,
        "readings": explanation.readings, "rules": rules,
    })
}
