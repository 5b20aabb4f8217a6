//! A change is written before it is in force: its line in the audit log, then the document, in the store and in the file.

use super::control_file::ControlFile;
use super::{Rulebook, RulebookError, RulebookState};
use crate::audit::{Actor, AuditEvent, ChainHead, Damage};
use crate::backend::Backend;
use crate::control::{Action, Change, Document, Event, RefusedChange};
use serde_json::json;
use std::io;

/// What the audit log tells of a change.
pub(super) struct AuditLine<'a> {
    pub(super) actor: Actor<'a>,
    pub(super) what: &'static str,
    pub(super) details: serde_json::Value,
}

impl<S: Backend> Rulebook<S> {
    /// Leads a change through the protocol: its line in the audit log and then the document are written before anything is
    /// in force.
    pub(super) fn write(
        &self,
        change: Change,
        expected: Option<u64>,
        line: &AuditLine<'_>,
    ) -> Result<Document, RulebookError> {
        let version = self.document().version;
        let mut action = self.lock().control.on_event(Event::Requested { change, expected });
        loop {
            let event = match action {
                Action::Refuse(refused) => return Err(refused.into()),
                Action::Install(document) => return Ok(document),
                // Nobody may look meanwhile on a thread that the store needs to answer.
                Action::Write(document) => match self.keep(version, &document, line) {
                    Ok(()) => Event::Written,
                    Err(why) => Event::NotWritten(why),
                },
            };
            action = self.lock().control.on_event(event);
        }
    }

    /// Writes a line of the audit log and then a document. If the document could not be written, another line says so.
    fn keep(
        &self,
        version: u64,
        document: &Document,
        line: &AuditLine<'_>,
    ) -> Result<(), RefusedChange> {
        let AuditLine { actor, what, details } = line;
        self.noted(&mut self.lock(), document.version, *actor, what, details)
            .map_err(|_| RefusedChange::NotWritten)?;
        self.keep_document(version, document).inspect_err(|why| {
            let details = json!({ "abandoned": document.version, "why": why.to_string() });
            let _ = self.noted(&mut self.lock(), version, *actor, "abandoned", &details);
        })
    }

    /// Writes a document where it outlives us: into the store, if that is shared, and into the file.
    fn keep_document(&self, version: u64, document: &Document) -> Result<(), RefusedChange> {
        let broken = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "the control document could not be written");
        };
        if S::SHARED {
            let text = serde_json::to_vec(document).map_err(|error| {
                broken(&error);
                RefusedChange::NotWritten
            })?;
            let versions = (version, document.version);
            let replaced = self.limiter.store().replace_document(versions, &text);
            match tokio::runtime::Handle::current().block_on(replaced) {
                Ok(true) => {}
                Ok(false) => {
                    // We hear of it within a second; who changed that document did not know.
                    let (expected, version) = (version, version.saturating_add(1));
                    return Err(RefusedChange::Stale { expected, version });
                }
                Err(error) => {
                    broken(&error);
                    return Err(RefusedChange::StoreGone);
                }
            }
        }
        let head = self.lock().audit.head().clone();
        self.write_file(document, head).or_else(|error| {
            broken(&error);
            // What the store has taken is in force.
            if S::SHARED { Ok(()) } else { Err(RefusedChange::NotWritten) }
        })
    }

    /// Writes the document in force and the end of the audit log.
    pub(super) fn save(&self, state: &RulebookState) -> io::Result<()> {
        self.write_file(state.control.document(), state.audit.head().clone())
    }

    /// Writes the control file; `/ready` tells when that does not work, and until it works again.
    fn write_file(&self, document: &Document, audit: ChainHead) -> io::Result<()> {
        let kept = ControlFile { document: document.clone(), audit: Some(audit) };
        let written = kept.write(&self.control_file);
        let complaint = written.as_ref().err();
        let complaint =
            complaint.map(|error| format!("control.json could not be written: {error}"));
        self.health.set_problem("control file", complaint);
        written
    }

    /// Looks at the audit log that was found: what another program did to it is told, and so is a change that a crash kept
    /// from being written after its line was.
    pub(super) fn check_the_log(&self) {
        let mut state = self.lock();
        let (version, lines) = (state.control.document().version, state.audit.head().lines);
        if let Some(damage) = state.audit.damage {
            tracing::error!("{damage}");
            self.health.set_problem("audit damage", Some(damage.to_string()));
            if matches!(damage, Damage::Shortened { .. }) {
                let details = json!({ "damage": damage.to_string() });
                let _ = self.noted(&mut state, version, Actor::SERVER, "audit", &details);
            }
        }
        // The store may have taken what this node did not write.
        if !S::SHARED && state.audit.version > version {
            let details = json!({ "abandoned": state.audit.version });
            let _ = self.noted(&mut state, version, Actor::SERVER, "abandoned", &details);
        }
        // What was added moves the end of the log. Otherwise the next start would compare the new lines with those that are
        // missing. A log that was changed is compared with the old end until an operator has looked at it.
        if state.audit.head().lines > lines {
            let _ = self.save(&state);
        }
    }

    /// Adds a line to the audit log. `/ready` tells when that does not work, and until it works again.
    pub(super) fn noted(
        &self,
        state: &mut RulebookState,
        version: u64,
        actor: Actor<'_>,
        what: &str,
        details: &serde_json::Value,
    ) -> io::Result<()> {
        let deed = AuditEvent { actor, what, details };
        let noted = state.audit.append(&self.secret, &self.clock, version, deed);
        let complaint = noted.as_ref().err();
        let complaint = complaint.map(|error| format!("audit.log could not be written: {error}"));
        if let Some(text) = &complaint {
            tracing::error!("{text}");
        }
        self.health.set_problem("audit", complaint);
        let damage = state.audit.damage.map(|damage| damage.to_string());
        self.health.set_problem("audit damage", damage);
        noted
    }
}

/// The policy file has taken back the policy that was sent.
pub(super) fn withdrawn() -> AuditLine<'static> {
    let details = details(&Change::Policy(None));
    AuditLine { actor: Actor::SERVER, what: "policy", details }
}

/// A change as the audit log tells it.
pub(super) fn details(change: &Change) -> serde_json::Value {
    match change {
        Change::Policy(uploaded) => json!({ "uploaded": uploaded.is_some() }),
        Change::Rule(switch) => json!(switch),
        Change::Override(one) => json!(one),
        Change::Tier(one) => json!(one),
    }
}
