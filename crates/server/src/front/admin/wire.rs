//! JSON bodies that the admin API reads; `answers` has those that it writes. The `OpenAPI` document is written from these types and their
//! comments.

use crate::control::{Change, ChangeNote, Override, SwitchChange, Tier, expiry_ms, reason};
use crate::web::Answer;
use http::StatusCode;
#[cfg(test)]
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
#[cfg(test)]
use serde_json::json;
use std::collections::BTreeMap;

/// A request to inspect.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Peek"))]
#[cfg_attr(test, schemars(example = json!({ "attributes": { "ip": "203.0.113.7" } })))]
pub(super) struct PeekBody {
    pub(super) attributes: AttributesBody,
    #[serde(default = "one")]
    pub(super) cost: u64,
}

/// A person, by the attributes that are known.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Who"))]
#[cfg_attr(test, schemars(example = json!({ "attributes": { "ip": "203.0.113.7" } })))]
pub(super) struct WhoBody {
    pub(super) attributes: AttributesBody,
}

/// What to forget.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Reset"))]
#[cfg_attr(test, schemars(
    example = json!({ "rule": "per-client", "attributes": { "ip": "203.0.113.7" } }),
    example = json!({ "attributes": { "ip": "203.0.113.7" }, "dry_run": true }),
))]
pub(super) struct ResetBody {
    /// Without it, all rules whose key the attributes have.
    pub(super) rule: Option<String>,
    pub(super) attributes: AttributesBody,
    /// With `true`, nothing is reset.
    #[serde(default)]
    pub(super) dry_run: bool,
    pub(super) reason: Option<Reason>,
}

/// `ip`, `method` and `path` have a fixed meaning; all other names are free. At most 32 are not empty.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Attributes"))]
#[cfg_attr(test, schemars(example = json!({ "ip": "203.0.113.7" })))]
pub(super) struct AttributesBody(pub(super) BTreeMap<String, String>);

/// When the change ends: seconds from now, or a time such as `2026-12-24T18:00:00Z`.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema), schemars(extend("anyOf" = [
    { "type": "integer", "minimum": 1, "maximum": 315_360_000 },
    { "type": "string", "format": "date-time" },
])))]
pub(super) struct Expires(Value);

/// Why, for the audit log; at most 256 bytes on one line.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema), schemars(extend("maxLength" = 256)))]
pub(super) struct Reason(pub(super) String);

/// The body of a request that changes the control document.
pub(super) trait ChangeBody: DeserializeOwned {
    /// The change, requested at this time. An error is a JSON pointer and what is wrong there.
    fn change(self, now_ms: u64) -> Result<Change, (&'static str, String)>;
}

/// The switches of a rule. A switch that is absent keeps its value; `null` removes the change, so that the policy decides.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "PutRule"))]
#[cfg_attr(test, schemars(example = json!({ "rule": "per-client", "shadow": true })))]
pub(super) struct PutRuleBody {
    rule: String,
    #[serde(default, deserialize_with = "present")]
    enabled: Option<Option<bool>>,
    #[serde(default, deserialize_with = "present")]
    shadow: Option<Option<bool>>,
    expires: Option<Expires>,
    reason: Option<Reason>,
}

/// Limits of one key; `"limits": null` removes the override.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "PutOverride"))]
#[cfg_attr(test, schemars(
    example = json!({ "rule": "per-client", "key": { "ip": "203.0.113.7" }, "limits": ["100/s"] }),
    example = json!({
        "rule": "per-client", "key": { "ip": "203.0.113.7" }, "limits": ["100/s"],
        "expires": 3_600, "reason": "import until noon",
    }),
))]
pub(super) struct PutOverrideBody {
    rule: String,
    key: BTreeMap<String, String>,
    /// As in a policy.
    #[cfg_attr(test, schemars(extend("anyOf" = [
        { "const": "unlimited" },
        { "type": "array", "items": { "type": ["string", "object"] } },
        { "type": "null" },
    ])))]
    limits: Option<Value>,
    expires: Option<Expires>,
    reason: Option<Reason>,
}

/// The tier of a customer; `"tier": null` removes the assignment.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "PutTier"))]
#[cfg_attr(test, schemars(example = json!({ "attribute": "user", "value": "alice", "tier": "pro" })))]
pub(super) struct PutTierBody {
    attribute: String,
    value: String,
    tier: Option<String>,
    expires: Option<Expires>,
    reason: Option<Reason>,
}

/// Drains a server of the proxy, or brings it back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "PutUpstream"))]
#[cfg_attr(test, schemars(
    example = json!({ "group": "api", "server": "http://10.0.0.1:8080", "drain": true }),
))]
pub(super) struct PutUpstreamBody {
    pub(super) group: String,
    /// Its URL.
    pub(super) server: String,
    pub(super) drain: bool,
}

/// Names of signals and their values.
#[derive(Deserialize)]
#[cfg_attr(test, derive(JsonSchema), schemars(rename = "Signals", extend("maxProperties" = MOST_SIGNALS)))]
#[cfg_attr(test, schemars(example = json!({ "load": 0.4 })))]
pub(super) struct SignalsBody(pub(super) BTreeMap<String, f64>);

pub(super) const MOST_SIGNALS: usize = 64;

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
    expires: Option<&Expires>,
    why: Option<Reason>,
    sets: bool,
    now_ms: u64,
) -> Result<ChangeNote, (&'static str, String)> {
    if expires.is_some() && !sets {
        let text = "this removes a change, so nothing is left that expires".to_owned();
        return Err(("/expires", text));
    }
    let expires_at_ms = expires.map(|Expires(at)| expiry_ms(at, now_ms)).transpose();
    Ok(ChangeNote {
        expires_at_ms: expires_at_ms.map_err(|text| ("/expires", text))?,
        reason: reason(why.map(|Reason(text)| text)).map_err(|text| ("/reason", text))?,
        since_ms: Some(now_ms),
        ..ChangeNote::default()
    })
}

/// An answer about a part of the body that is not valid.
pub(super) fn invalid((pointer, text): (&str, String)) -> Answer {
    Answer::problem_at(StatusCode::BAD_REQUEST, pointer, &text)
}
