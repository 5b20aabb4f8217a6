//! Changes that operators make: switches, overrides, tiers, and uploading a policy.

use super::policy_file::drops;
use super::writing::{AuditLine, details};
use super::{Caution, Difference, Rulebook, RulebookError, digest};
use crate::audit::{Actor, AuditEvent};
use crate::backend::Backend;
use crate::control::{Change, Document, RefusedChange, Uploaded};
use crate::metrics::Reload;
use serde_json::json;
use tidegate_policy::printable;

impl<S: Backend> Rulebook<S> {
    /// Makes a change and puts it in force; with `dry`, only checks it. Returns the document with the change.
    pub(crate) fn change(
        &self,
        change: Change,
        dry: bool,
        expected: Option<u64>,
        actor: Actor<'_>,
    ) -> Result<Document, RulebookError> {
        let _turn = self.turn();
        let change = {
            let state = self.lock();
            let digest = |value: &str| self.secret.digest(value);
            change.can_match(state.policy.identity(), &digest)?;
            let change = change.spelled_as_in(state.control.document(), &state.policy);
            let in_force = state.control.document().in_force(self.now_ms());
            change.fits(&in_force, &state.policy)?;
            let change = change.made_by(actor.who);
            if dry {
                return Ok(in_force.with(&change)?);
            }
            change
        };
        let reason = change.reason().map(str::to_owned);
        let line = AuditLine { actor, what: change.kind(), details: details(&change), reason };
        let warnings = change.warnings(&self.lock().policy);
        let document = self.write(change, expected, &line)?;
        self.install(&mut self.lock())?;
        for warning in warnings {
            tracing::warn!("a change by hand: {}", printable(&warning));
        }
        Ok(document)
    }

    /// Puts an uploaded policy in force instead of the file; with `dry`, only returns what that would change.
    pub(crate) fn upload(
        &self,
        text: &[u8],
        caution: Caution,
        dry: bool,
        expected: Option<u64>,
        actor: Actor<'_>,
    ) -> Result<Difference, RulebookError> {
        let policy = self.parse(text).inspect_err(|_| self.metrics.reloaded(Reload::Refused))?;
        let _turn = self.turn();
        let (difference, over) = {
            let state = self.lock();
            let difference = Difference::between(&state.text, text, policy.warnings().to_vec());
            if dry {
                return Ok(difference);
            }
            drops(&state.policy, &policy, caution)?;
            (difference, digest(&state.file_text))
        };
        // A valid policy is UTF-8, so nothing is lost.
        let sent = String::from_utf8_lossy(text).into_owned();
        let line = AuditLine { actor, what: "policy", details: difference.json(), reason: None };
        self.write(Change::Policy(Some(Uploaded { text: sent, over })), expected, &line)?;
        let mut state = self.lock();
        state.text = text.to_vec();
        state.policy = policy;
        let version = self.install(&mut state)?;
        self.metrics.reloaded(Reload::Applied);
        self.health.set_problem("policy", None);
        tracing::info!(version, "a policy was uploaded");
        Ok(difference)
    }

    /// Withdraws the uploaded policy: the policy of the file is in force again.
    pub(crate) fn withdraw(
        &self,
        expected: Option<u64>,
        actor: Actor<'_>,
    ) -> Result<Difference, RulebookError> {
        let _turn = self.turn();
        let (policy, difference) = {
            let state = self.lock();
            let policy = self.parse(&state.file_text)?;
            let difference =
                Difference::between(&state.text, &state.file_text, policy.warnings().to_vec());
            (policy, difference)
        };
        let line = AuditLine { actor, what: "policy", details: difference.json(), reason: None };
        self.write(Change::Policy(None), expected, &line)?;
        let mut state = self.lock();
        state.text = state.file_text.clone();
        state.policy = policy;
        self.install(&mut state)?;
        Ok(difference)
    }

    /// Writes an action that does not change the document to the audit log, before it is done. If that fails, it must not be done.
    pub(crate) fn note(&self, event: AuditEvent<'_>) -> Result<(), RulebookError> {
        let _turn = self.turn();
        let mut state = self.lock();
        let version = state.control.document().version;
        self.noted(&mut state, version, event).map_err(|_| RefusedChange::NotWritten)?;
        // Lines behind the end that the control file names are not taken for damage.
        let _ = self.save(&state);
        Ok(())
    }

    /// Notes that an action was not done although its line was written.
    pub(crate) fn note_abandoned(&self, actor: Actor<'_>, what: &str, why: &str) {
        let details = json!({ "abandoned": what, "why": why });
        let event = AuditEvent { actor, what: "abandoned", details: &details, reason: None };
        // If it cannot be written, that is logged and reported by `/ready`.
        let _ = self.note(event);
    }
}
