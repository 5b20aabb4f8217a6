//! A person, of whom an operator knows a user name or an address: what applies to them, what they have used, and a reset of all of it.

use super::answers::{
    CountedLimit, Denied, Person, PersonOverride, PersonRule, PersonTier, ResetDone, ResetRule,
    Scope, SeenKey, Uncovered,
};
use super::handler::AdminHandler;
use super::request::{attributes, read, unprocessable};
use super::wire;
use crate::audit::{Actor, AuditEvent};
use crate::backend::Backend;
use crate::control::{ChangeNote, Document, Override, Tier, reason};
use crate::recent_denials::DeniedKey;
use crate::rulebook::Rulebook;
use crate::shown_key::ShownKey;
use crate::web::{Answer, Call};
use http::StatusCode;
use serde_json::json;
use tidegate::{Attributes, CheckError, PersonReport, PersonRuleReport, Policy, UncoveredRule};

/// What is in force when a person is looked up.
struct InForce {
    document: Document,
    policy: Policy,
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
        let is_shared = S::SHARED && report.from_store;
        let rules = report.rules.iter().map(|rule| self.rule_of_person(rule, &in_force));
        let person = Person {
            scope: if is_shared { Scope::AllNodes } else { Scope::ThisNode },
            denials_scope: Scope::ThisNode,
            policy_hash: self.health.policy_hash(),
            tier: in_force.tier(&report),
            complete: report.not_covered.is_empty(),
            rules: rules.collect(),
            seen: report.not_covered.iter().flat_map(|rule| self.seen(rule)).collect(),
            not_covered: report.not_covered.iter().map(Uncovered::from).collect(),
        };
        Ok(Answer::json(StatusCode::OK, &json!(person)))
    }

    fn rule_of_person(&self, rule: &PersonRuleReport, in_force: &InForce) -> PersonRule {
        let from = match rule.origin.split(' ').next() {
            Some("tier") => "tier",
            Some("rule") => "rule",
            _ => "override",
        };
        let only_when = Some(rule.only_when.join("; ")).filter(|text| !text.is_empty());
        PersonRule {
            rule: rule.rule.clone(),
            key: ShownKey(rule.key.clone()),
            key_text: rule.key_text.clone(),
            shadow: rule.shadow,
            enabled: rule.enabled,
            from,
            only_when,
            limits: rule.limits.iter().map(CountedLimit::from).collect(),
            own: (from == "override").then(|| in_force.override_of(rule)),
            denied: self.denied(rule),
        }
    }

    /// Since when, and until when, a rule refuses a key. `None`: it has not refused it lately.
    fn denied(&self, rule: &PersonRuleReport) -> Option<Denied> {
        let found = self.recent.matching(&borrowed(&rule.key));
        // A key can name other alternatives; the ring may also be set not to show keys.
        let same = |found: &&DeniedKey| {
            let names = found.key.iter().map(|(name, _)| name);
            found.rule == rule.rule
                && (found.key.is_empty() || names.eq(rule.key.iter().map(|(name, _)| name)))
        };
        found.iter().filter(same).max_by_key(|found| found.last_ms).map(Denied::from)
    }

    /// Keys of the person under a rule whose key is not known completely, among those that were refused lately.
    fn seen(&self, rule: &UncoveredRule) -> Vec<SeenKey> {
        if rule.known.is_empty() {
            return vec![];
        }
        let found = self.recent.matching(&borrowed(&rule.known)).into_iter();
        let seen = |found: DeniedKey| {
            let denied = Denied::from(&found);
            SeenKey { rule: found.rule, key: ShownKey(found.key), denied }
        };
        found.filter(|found| found.rule == rule.rule).map(seen).collect()
    }

    // === reset ===

    /// Forgets what was counted for a key of a rule, or for a person under all rules. The line of the audit log comes first; without it
    /// nothing is reset, and if there is nothing to reset, there is no line.
    pub(super) async fn reset(&self, call: &Call<'_>, actor: Actor<'_>) -> Result<Answer, Answer> {
        let body: wire::ResetBody = read(call)?;
        let why = reason(body.reason.map(|wire::Reason(text)| text))
            .map_err(|text| wire::invalid(("/reason", text)))?;
        let client = attributes(&body.attributes)?;
        let (mut rules, left_out) = match &body.rule {
            Some(rule) => (vec![self.found(rule, &client).await?], vec![]),
            None => self.found_of_person(&client).await?,
        };
        if !body.dry_run && rules.iter().any(|rule| rule.states > 0) {
            // The audit log keeps the names of attributes and not their values, which may be secrets.
            let by: Vec<&String> = body.attributes.0.keys().collect();
            let states = ResetRule::sum(&rules);
            let details = match &body.rule {
                Some(rule) => json!({ "rule": rule, "by": by, "states": states }),
                None => json!({ "rules": rules, "by": by, "states": states }),
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
        let of_person = body.rule.is_none().then_some((rules, left_out));
        let (rules, not_covered) = of_person.unzip();
        Ok(Answer::json(StatusCode::OK, &json!(ResetDone { states, rules, not_covered })))
    }

    /// What a reset of a person would delete under every rule whose key is known. A rule without a key counts all requests together, so it
    /// is left out.
    async fn found_of_person(
        &self,
        client: &Attributes<'_>,
    ) -> Result<(Vec<ResetRule>, Vec<Uncovered>), Answer> {
        let report = self.limiter.person(client).await.map_err(|error| unanswered(&error))?;
        let (own, common): (Vec<_>, Vec<_>) =
            report.rules.iter().partition(|rule| !rule.key.is_empty());
        let mut rules = Vec::new();
        for rule in own {
            rules.push(self.found(&rule.rule, client).await?);
        }
        let common = common.iter().map(|rule| Uncovered { rule: rule.rule.clone(), needs: vec![] });
        let left_out = report.not_covered.iter().map(Uncovered::from).chain(common);
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
    fn tier(&self, report: &PersonReport) -> Option<PersonTier> {
        let name = report.tier.clone()?;
        let Some((attribute, value)) = report.tier_assigned_to.clone() else {
            return Some(PersonTier { name, from: "policy", note: ChangeNote::default() });
        };
        let subject = Tier { attribute, value, tier: None, note: ChangeNote::default() };
        let entry = self.document.tiers.iter().find(|one| one.is(&subject));
        let note = entry.map(|one| one.note.clone()).unwrap_or_default();
        Some(PersonTier { name, from: "operator", note })
    }

    /// The override that applies: one of the control document, or of the policy.
    fn override_of(&self, rule: &PersonRuleReport) -> PersonOverride {
        let key = rule.override_key.iter().flatten().cloned().collect();
        let (name, note) = (rule.rule.clone(), ChangeNote::default());
        let subject = Override { rule: name, key, limits: None, note };
        let mut known = self.document.overrides.iter();
        let entry = rule.override_key.as_ref();
        let entry = entry.and_then(|_| known.find(|one| one.is(&subject, &self.policy)));
        let rates = || json!(rule.limits.iter().map(|limit| &limit.rate).collect::<Vec<_>>());
        let limits = entry.and_then(|one| one.limits.clone()).unwrap_or_else(rates);
        PersonOverride { limits, note: entry.map(|one| one.note.clone()).unwrap_or_default() }
    }
}

impl ResetRule {
    fn sum(rules: &[Self]) -> usize {
        rules.iter().map(|rule| rule.states).sum()
    }
}

fn borrowed(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
