//! JSON bodies of the admin API, in and out.

use crate::control::{Override, RuleSwitch, Tier};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidegate::{AttributeError, Attributes, Changes, Policy, RuleStats, Stats};
use tidegate_policy::{AppliedRule, Explanation, Rule, RuleExplanation};

/// `POST /admin/v1/peek` and `/explain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeekBody {
    pub(super) attributes: BTreeMap<String, String>,
    #[serde(default = "one")]
    pub(super) cost: u64,
}

/// `POST /admin/v1/reset`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetBody {
    pub(super) rule: String,
    pub(super) attributes: BTreeMap<String, String>,
}

/// `PUT /admin/v1/rules`. A switch that is absent keeps its value; `null` removes the change, so that the policy decides.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutRuleBody {
    rule: String,
    #[serde(default, deserialize_with = "present")]
    enabled: Option<Option<bool>>,
    #[serde(default, deserialize_with = "present")]
    shadow: Option<Option<bool>>,
}

/// `PUT /admin/v1/upstreams`: drains a server of the proxy, or brings it back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutUpstreamBody {
    pub(super) group: String,
    /// Its URL.
    pub(super) server: String,
    pub(super) drain: bool,
}

/// `PUT /admin/v1/signals`: names and numbers.
pub(super) type PutSignalsBody = BTreeMap<String, f64>;

/// `PUT /admin/v1/overrides`: `"limits": null` removes the override.
pub(super) type PutOverride = Override;

/// `PUT /admin/v1/tiers`: `"tier": null` removes the assignment.
pub(super) type PutTier = Tier;

const fn one() -> u64 {
    1
}

/// Tells `null` (`Some(None)`) from an absent field (`None`).
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<bool>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl PutRuleBody {
    /// The switches after this change: those that the body does not name keep their value from `before`.
    pub(super) fn over(self, before: &[RuleSwitch]) -> RuleSwitch {
        let known = before.iter().find(|switch| switch.rule == self.rule);
        RuleSwitch {
            enabled: self.enabled.unwrap_or_else(|| known.and_then(|switch| switch.enabled)),
            shadow: self.shadow.unwrap_or_else(|| known.and_then(|switch| switch.shadow)),
            rule: self.rule,
        }
    }
}

/// Checked attributes; an error comes with the JSON pointer of the attribute.
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

// === responses ===

/// How many requests each rule allowed, delayed and denied.
pub(super) fn rule_counts(stats: &Stats) -> Vec<Value> {
    let count = |(rule, stats): &(String, RuleStats)| {
        json!({
            "rule": rule, "allowed": stats.allowed, "delayed": stats.delayed,
            "denied": stats.denied, "would_deny": stats.would_deny, "over": stats.over,
        })
    };
    stats.rules.iter().map(count).collect()
}

/// A rule with its limits, and whether it is enabled and in shadow mode.
pub(super) fn rule(rule: &Rule, policy: &Policy, changes: &Changes) -> Value {
    let limits = rule.allowance().limits().iter().map(|limit| {
        json!({
            "id": limit.id(),
            "rate": limit.summary(),
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

/// How every rule applies to a request; `tidegate policy explain --json` prints the same.
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
        "priority": explanation.priority,
        "readings": explanation.readings, "rules": rules,
    })
}
