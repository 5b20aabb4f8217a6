//! A person, of whom an operator knows a user name or an address: what applies to them, what they have used, and a reset of all of it.

use super::handler::AdminHandler;
use super::request::{attributes, read, unprocessable};
use super::wire;
use crate::audit::{Actor, AuditEvent};
use crate::backend::Backend;
use crate::control::{ChangeNote, Document, Override, Tier, reason};
use crate::recent_denials::DeniedKey;
use crate::rulebook::Rulebook;
use crate::web::{Answer, Call};
use http::StatusCode;
use serde_json::{Map, Value, json};
use tidegate::{
    Attributes, CheckError, PersonLimit, PersonReport, PersonRuleReport, Policy, UncoveredRule,
};

const ALL_NODES: &str = "all nodes";
const THIS_NODE: &str = "this node";

/// What is in force when a person is looked up.
struct InForce {
    document: Document,
    policy: Policy,
}

/// How many counters of a rule there are to forget, or were forgotten.
struct ResetRule {
    rule: String,
    states: usize,
}

impl<S: Backend> AdminHandler<S> {
    // === who ===

    /// What every rule has counted for a person.
    pub(super) async fn who(&self, call: &Call<'_>) -> Result<Answer, Answer> {
        let body: wire::WhoBody = read(call)?;
        let client = attributes(&body.attributes)?;
        let report = self.limiter.person(&client).await.map_err(|error| unanswered(&error))?;
        let document = self.rulebook.document_in_force();
        let in_force = InForce { document, policy: self.rulebook.policy() };
        let scope = if S::SHARED && report.from_store { ALL_NODES } else { THIS_NODE };
        let rules = report.rules.iter().map(|rule| self.rule_of_person(rule, &in_force));
        let seen = report.not_covered.iter().flat_map(|rule| self.seen(rule));
        let not_covered = report.not_covered.iter().map(not_covered);
        let body = json!({
            "scope": scope,
            "denials_scope": THIS_NODE,
            "policy_hash": self.health.policy_hash(),
            "tier": in_force.tier(&report),
            "complete": report.not_covered.is_empty(),
            "rules": rules.collect::<Vec<_>>(),
            "seen": seen.collect::<Vec<_>>(),
            "not_covered": not_covered.collect::<Vec<_>>(),
        });
        Ok(Answer::json(StatusCode::OK, &body))
    }

    fn rule_of_person(&self, rule: &PersonRuleReport, in_force: &InForce) -> Value {
        let from = match rule.origin.split(' ').next() {
            Some("tier") => "tier",
            Some("rule") => "rule",
            _ => "override",
        };
        let only_when = Some(rule.only_when.join("; ")).filter(|text| !text.is_empty());
        json!({
            "rule": rule.rule,
            "key": object(&rule.key),
            "key_text": rule.key_text,
            "shadow": rule.shadow,
            "enabled": rule.enabled,
            "from": from,
            "only_when": only_when,
            "limits": rule.limits.iter().map(limit).collect::<Vec<_>>(),
            "override": (from == "override").then(|| in_force.override_of(rule)),
            "denied": self.denied(rule),
        })
    }

    /// Since when, and until when, a rule refuses a key. `None`: it has not refused it lately.
    fn denied(&self, rule: &PersonRuleReport) -> Option<Value> {
        let found = self.recent.matching(&borrowed(&rule.key));
        // A key can name other alternatives; the ring may also be set not to show keys.
        let same = |found: &&DeniedKey| {
            let names = found.key.iter().map(|(name, _)| name);
            found.rule == rule.rule
                && (found.key.is_empty() || names.eq(rule.key.iter().map(|(name, _)| name)))
        };
        found.iter().filter(same).max_by_key(|found| found.last_ms).map(denial)
    }

    /// Keys of the person under a rule whose key is not known completely, among those that were refused lately.
    fn seen(&self, rule: &UncoveredRule) -> Vec<Value> {
        if rule.known.is_empty() {
            return vec![];
        }
        let found = self.recent.matching(&borrowed(&rule.known));
        let found = found.iter().filter(|found| found.rule == rule.rule);
        found
            .map(|found| json!({ "rule": found.rule, "key": object(&found.key), "denied": denial(found) }))
            .collect()
    }

    // === reset ===

    /// Forgets what was counted for a key of a rule, or for a person under all rules. The line of the audit log comes first; without it
    /// nothing is reset, and if there is nothing to reset, there is no line.
    pub(super) async fn reset(&self, call: &Call<'_>, actor: Actor<'_>) -> Result<Answer, Answer> {
        let body: wire::ResetBody = read(call)?;
        let why = reason(body.reason).map_err(|text| wire::invalid(("/reason", text)))?;
        let client = attributes(&body.attributes)?;
        let (mut rules, left_out) = match &body.rule {
            Some(rule) => (vec![self.found(rule, &client).await?], vec![]),
            None => self.found_of_person(&client).await?,
        };
        if !body.dry_run && rules.iter().any(|rule| rule.states > 0) {
            // The audit log keeps the names of attributes and not their values, which may be secrets.
            let by: Vec<&String> = body.attributes.keys().collect();
            let states = ResetRule::sum(&rules);
            let details = match &body.rule {
                Some(rule) => json!({ "rule": rule, "by": by, "states": states }),
                None => json!({ "rules": ResetRule::list(&rules), "by": by, "states": states }),
            };
            let note = move |rulebook: &Rulebook<S>, actor: Actor<'_>| {
                let (what, reason) = ("reset", why.as_deref());
                rulebook.note(AuditEvent { actor, what, details: &details, reason })
            };
            self.on_blocking_thread(actor, note).await?;
            for rule in rules.iter_mut().filter(|rule| rule.states > 0) {
                match self.limiter.reset(&rule.rule, &client).await {
                    Ok(states) => rule.states = states,
                    Err(error) => {
                        self.note_abandoned(actor, error.to_string()).await?;
                        return Err(unanswered(&error));
                    }
                }
            }
        }
        let states = ResetRule::sum(&rules);
        let answer = match &body.rule {
            Some(_) => json!({ "states": states }),
            None => json!({
                "states": states, "rules": ResetRule::list(&rules), "not_covered": left_out,
            }),
        };
        Ok(Answer::json(StatusCode::OK, &answer))
    }

    /// What a reset of a person would delete under every rule whose key is known. A rule without a key counts all requests together, so it
    /// is left out.
    async fn found_of_person(
        &self,
        client: &Attributes<'_>,
    ) -> Result<(Vec<ResetRule>, Vec<Value>), Answer> {
        let report = self.limiter.person(client).await.map_err(|error| unanswered(&error))?;
        let (own, common): (Vec<_>, Vec<_>) =
            report.rules.iter().partition(|rule| !rule.key.is_empty());
        let mut rules = Vec::new();
        for rule in own {
            rules.push(self.found(&rule.rule, client).await?);
        }
        let common = common.iter().map(|rule| json!({ "rule": rule.rule, "needs": [] }));
        let left_out = report.not_covered.iter().map(not_covered).chain(common);
        Ok((rules, left_out.collect()))
    }

    async fn found(&self, rule: &str, client: &Attributes<'_>) -> Result<ResetRule, Answer> {
        let states = self.limiter.in_use(rule, client).await.map_err(|error| unanswered(&error))?;
        Ok(ResetRule { rule: rule.to_owned(), states })
    }

    async fn note_abandoned(&self, actor: Actor<'_>, why: String) -> Result<(), Answer> {
        let note = move |rulebook: &Rulebook<S>, actor: Actor<'_>| {
            rulebook.note_abandoned(actor, "reset", &why);
            Ok(())
        };
        self.on_blocking_thread(actor, note).await
    }
}

/// A store that does not answer may answer later; the rest is wrong in the request.
fn unanswered(error: &CheckError) -> Answer {
    match error {
        CheckError::Store(error) => {
            Answer::problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
        }
        CheckError::TooManyLimits(_)
        | CheckError::NoRule(_)
        | CheckError::NoKey { .. }
        | CheckError::NoTimer => unprocessable(&error.to_string()),
    }
}

impl InForce {
    /// The tier of a person, and where it comes from.
    fn tier(&self, report: &PersonReport) -> Option<Value> {
        let name = report.tier.as_ref()?;
        let Some((attribute, value)) = &report.tier_assigned_to else {
            return Some(json!({ "name": name, "from": "policy" }));
        };
        let (attribute, value) = (attribute.clone(), value.clone());
        let subject = Tier { attribute, value, tier: None, note: ChangeNote::default() };
        let entry = self.document.tiers.iter().find(|one| one.is(&subject));
        Some(with_note(json!({ "name": name, "from": "operator" }), entry.map(|one| &one.note)))
    }

    /// The override that applies: one of the control document, or of the policy.
    fn override_of(&self, rule: &PersonRuleReport) -> Value {
        let key = rule.override_key.iter().flatten().cloned().collect();
        let (name, note) = (rule.rule.clone(), ChangeNote::default());
        let subject = Override { rule: name, key, limits: None, note };
        let mut known = self.document.overrides.iter();
        let entry = rule.override_key.as_ref();
        let entry = entry.and_then(|_| known.find(|one| one.is(&subject, &self.policy)));
        let rates = || json!(rule.limits.iter().map(|limit| &limit.rate).collect::<Vec<_>>());
        let limits = entry.and_then(|one| one.limits.clone()).unwrap_or_else(rates);
        with_note(json!({ "limits": limits }), entry.map(|one| &one.note))
    }
}

/// Adds who made a change, why, when, and until when. The policy itself has no such note.
fn with_note(mut value: Value, note: Option<&ChangeNote>) -> Value {
    let note = note.cloned().unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("expires_at_ms".to_owned(), json!(note.expires_at_ms));
        fields.insert("reason".to_owned(), json!(note.reason));
        fields.insert("by".to_owned(), json!(note.by));
        fields.insert("since_ms".to_owned(), json!(note.since_ms));
    }
    value
}

impl ResetRule {
    fn list(rules: &[Self]) -> Vec<Value> {
        rules.iter().map(|one| json!({ "rule": one.rule, "states": one.states })).collect()
    }

    fn sum(rules: &[Self]) -> usize {
        rules.iter().map(|rule| rule.states).sum()
    }
}

fn limit(limit: &PersonLimit) -> Value {
    let is_concurrent = limit.rate.ends_with("concurrent");
    let rate = if is_concurrent {
        limit.rate.clone()
    } else {
        format!("{} {}", limit.rate, limit.algorithm)
    };
    json!({
        "id": limit.id,
        "rate": rate,
        "used": limit.used,
        "limit": limit.limit,
        "remaining": limit.remaining,
        "reset_ms": limit.reset.map(tidegate::Span::as_millis_ceil),
        "allowed": limit.allowed,
        "retry_after_ms": limit.retry_after.map(tidegate::Span::as_millis_ceil),
    })
}

fn denial(found: &DeniedKey) -> Value {
    json!({
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
        "denials": found.denials,
        "retry_after_ms": found.retry_after_ms,
        "would_deny": found.would_deny,
    })
}

fn not_covered(rule: &UncoveredRule) -> Value {
    json!({ "rule": rule.rule, "needs": rule.needs })
}

fn object(pairs: &[(String, String)]) -> Value {
    let pairs = pairs.iter().map(|(name, value)| (name.clone(), json!(value)));
    pairs.collect::<Map<String, Value>>().into()
}

fn borrowed(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
