//! JSON bodies of the admin API, in and out.

use crate::control::{Change, ChangeNote, Override, SwitchChange, Tier, expiry_ms, reason};
use crate::web::Answer;
use http::StatusCode;
use serde::de::DeserializeOwned;
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

/// `POST /admin/v1/who`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhoBody {
    pub(super) attributes: BTreeMap<String, String>,
}

/// `POST /admin/v1/reset`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetBody {
    /// `None`: of all rules whose key the attributes have.
    pub(super) rule: Option<String>,
    pub(super) attributes: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) dry_run: bool,
    pub(super) reason: Option<String>,
}

/// The body of a request that changes the control document.
pub(super) trait ChangeBody: DeserializeOwned {
    /// The change, requested at this time. An error is a JSON pointer and what is wrong there.
    fn change(self, now_ms: u64) -> Result<Change, (&'static str, String)>;
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
    expires: Option<Value>,
    reason: Option<String>,
}

/// `PUT /admin/v1/overrides`: `"limits": null` removes the override.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutOverrideBody {
    rule: String,
    key: BTreeMap<String, String>,
    limits: Option<Value>,
    expires: Option<Value>,
    reason: Option<String>,
}

/// `PUT /admin/v1/tiers`: `"tier": null` removes the assignment.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutTierBody {
    attribute: String,
    value: String,
    tier: Option<String>,
    expires: Option<Value>,
    reason: Option<String>,
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

const fn one() -> u64 {
    1
}

/// Tells `null` (`Some(None)`) from an absent field (`None`).
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<bool>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl ChangeBody for PutRuleBody {
    fn change(self, now_ms: u64) -> Result<Change, (&'static str, String)> {
        let Self { rule, enabled, shadow, .. } = self;
        let sets = enabled.flatten().is_some() || shadow.flatten().is_some();
        let note = note(self.expires.as_ref(), self.reason, sets, now_ms)?;
        Ok(Change::Rule(SwitchChange { rule, enabled, shadow, note }))
    }
}

impl ChangeBody for PutOverrideBody {
    fn change(self, now_ms: u64) -> Result<Change, (&'static str, String)> {
        let Self { rule, key, limits, .. } = self;
        let note = note(self.expires.as_ref(), self.reason, limits.is_some(), now_ms)?;
        Ok(Change::Override(Override { rule, key, limits, note }))
    }
}

impl ChangeBody for PutTierBody {
    fn change(self, now_ms: u64) -> Result<Change, (&'static str, String)> {
        let Self { attribute, value, tier, .. } = self;
        let note = note(self.expires.as_ref(), self.reason, tier.is_some(), now_ms)?;
        Ok(Change::Tier(Tier { attribute, value, tier, note }))
    }
}

/// The note of a change. `sets`: whether the change sets something, which may then expire.
fn note(
    expires: Option<&Value>,
    why: Option<String>,
    sets: bool,
    now_ms: u64,
) -> Result<ChangeNote, (&'static str, String)> {
    if expires.is_some() && !sets {
        let text = "this removes a change, so nothing is left that expires".to_owned();
        return Err(("/expires", text));
    }
    let expires_at_ms = expires.map(|expires| expiry_ms(expires, now_ms)).transpose();
    Ok(ChangeNote {
        expires_at_ms: expires_at_ms.map_err(|text| ("/expires", text))?,
        reason: reason(why).map_err(|text| ("/reason", text))?,
        since_ms: Some(now_ms),
        ..ChangeNote::default()
    })
}

/// An answer about a part of the body that is not valid.
pub(super) fn invalid((pointer, text): (&str, String)) -> Answer {
    Answer::problem_at(StatusCode::BAD_REQUEST, pointer, &text)
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
