//! Writing a change before it is in force (write-ahead): first its line in the audit log, then the document in the store and in
//! the file.

use super::control_file::ControlFile;
use super::other_nodes::{copy_of, tag_of};
use super::{Rulebook, RulebookError, RulebookState};
use crate::audit::{Actor, AuditEvent, ChainHead, Damage};
use crate::backend::Backend;
use crate::control::{Action, Change, Document, Edition, Event, Override, RefusedChange, Tier};
use serde_json::json;
use std::io;
use tidegate_store::DocumentTag;

/// A change as a line of the audit log.
pub(super) struct AuditLine<'a> {
    pub(super) actor: Actor<'a>,
    pub(super) what: &'static str,
    pub(super) details: serde_json::Value,
    pub(super) reason: Option<String>,
}

impl AuditLine<'_> {
    fn event(&self) -> AuditEvent<'_> {
        let Self { actor, what, details, reason } = self;
        AuditEvent { actor: *actor, what, details, reason: reason.as_deref() }
    }
}

impl<S: Backend> Rulebook<S> {
    /// Runs a change through the [`crate::control`] state machine: its line in the audit log and then the document are written
    /// before the change is in force.
    pub(super) fn write(
        &self,
        change: Change,
        expected: Option<u64>,
        line: &AuditLine<'_>,
    ) -> Result<Document, RulebookError> {
        let old = tag_of(self.lock().control.edition());
        let mut action = self.lock().control.on_event(Event::Requested { change, expected });
        loop {
            let event = match action {
                Action::Refuse(refused) => return Err(refused.into()),
                Action::Install(edition) => return Ok(edition.document),
                // The state is not locked here: a thread that the store needs in order to answer may read it meanwhile.
                Action::Write(edition) => match self.keep(&old, &edition, line) {
                    Ok(()) => Event::Written,
                    Err(why) => Event::NotWritten(why),
                },
            };
            action = self.lock().control.on_event(event);
        }
    }

    /// Writes a line of the audit log and then a document. If the document cannot be written, another line says so.
    fn keep(
        &self,
        old: &DocumentTag,
        edition: &Edition,
        line: &AuditLine<'_>,
    ) -> Result<(), RefusedChange> {
        let version = edition.document.version;
        self.noted(&mut self.lock(), version, line.event())
            .map_err(|_| RefusedChange::NotWritten)?;
        self.keep_document(old, edition).inspect_err(|why| {
            let details = json!({ "abandoned": version, "why": why.to_string() });
            let event = AuditEvent { what: "abandoned", details: &details, ..line.event() };
            let _ = self.noted(&mut self.lock(), old.version, event);
        })
    }

    /// Writes a document where it outlives the process: into the store, if that is shared, and into the file.
    fn keep_document(&self, old: &DocumentTag, edition: &Edition) -> Result<(), RefusedChange> {
        if S::SHARED {
            self.share_document(old, edition)?;
        }
        let head = self.lock().audit.head().clone();
        self.write_file(edition, head).or_else(|error| {
            not_written(&error);
            // A document that the store has accepted is in force.
            if S::SHARED { Ok(()) } else { Err(RefusedChange::NotWritten) }
        })
    }

    /// Replaces the document in the store, if it still is the old one (compare-and-swap).
    fn share_document(&self, old: &DocumentTag, edition: &Edition) -> Result<(), RefusedChange> {
        let new = copy_of(edition).map_err(|error| {
            not_written(&error);
            RefusedChange::NotWritten
        })?;
        let replaced = self.limiter.store().replace_document(old, &new);
        match tokio::runtime::Handle::current().block_on(replaced) {
            Ok(true) => Ok(()),
            Ok(false) => {
                // Another node has changed the document. This node gets that change within a second.
                let (expected, version) = (old.version, old.version.saturating_add(1));
                Err(RefusedChange::Stale { expected, version })
            }
            Err(error) => {
                not_written(&error);
                Err(RefusedChange::StoreGone)
            }
        }
    }

    /// Writes the document in force and the end of the audit log into the control file.
    pub(super) fn save(&self, state: &RulebookState) -> io::Result<()> {
        self.write_file(state.control.edition(), state.audit.head().clone())
    }

    /// Writes the control file. If that fails, `/ready` reports it until it succeeds.
    fn write_file(&self, edition: &Edition, audit: ChainHead) -> io::Result<()> {
        let kept = ControlFile { edition: edition.clone(), audit: Some(audit) };
        let written = kept.write(&self.control_file);
        let problem = written.as_ref().err();
        let problem = problem.map(|error| format!("control.json could not be written: {error}"));
        self.health.set_problem("control file", problem);
        written
    }

    /// Checks the audit log at the start. Reports whether it was tampered with, and adds a line for a change that a crash kept
    /// from being written after its line was.
    pub(super) fn check_audit_log(&self) {
        let mut state = self.lock();
        let (version, lines) = (state.control.document().version, state.audit.head().lines);
        if lines == 0 && !self.control_file.exists() {
            // It exists from the first start on, so that its absence is noticed.
            let _ = self.save(&state);
        }
        if let Some(damage) = state.audit.damage {
            tracing::error!("{damage}");
            self.health.set_problem("audit damage", Some(damage.to_string()));
            if matches!(
                damage,
                Damage::Shortened { .. } | Damage::Moved { .. } | Damage::EndUnknown { .. }
            ) {
                let details = json!({ "damage": damage.to_string() });
                let _ = self.noted(&mut state, version, AuditEvent::of_server("audit", &details));
            }
        }
        // With a shared store, the store may have accepted a document that this node did not write.
        if !S::SHARED && state.audit.version > version {
            let details = json!({ "abandoned": state.audit.version });
            let _ = self.noted(&mut state, version, AuditEvent::of_server("abandoned", &details));
        }
        // The new lines move the end of the log. Otherwise the next start would compare them with the lines that are missing.
        // A log that was changed is compared with the old end until an operator has looked at it.
        if state.audit.head().lines > lines {
            let _ = self.save(&state);
        }
    }

    /// Adds a line to the audit log. If that fails, `/ready` reports it until it succeeds.
    pub(super) fn noted(
        &self,
        state: &mut RulebookState,
        version: u64,
        event: AuditEvent<'_>,
    ) -> io::Result<()> {
        let noted = state.audit.append(&self.secret, &self.clock, version, event);
        let problem = noted.as_ref().err();
        let problem = problem.map(|error| format!("audit.log could not be written: {error}"));
        if let Some(text) = &problem {
            tracing::error!("{text}");
        }
        self.health.set_problem("audit", problem);
        let damage = state.audit.damage.map(|damage| damage.to_string());
        self.health.set_problem("audit damage", damage);
        noted
    }
}

fn not_written(error: &dyn std::fmt::Display) {
    tracing::error!(%error, "the control document could not be written");
}

/// The line for an uploaded policy that a newer policy file replaces.
pub(super) fn withdrawn() -> AuditLine<'static> {
    let details = details(&Change::Policy(None));
    AuditLine { actor: Actor::SERVER, what: "policy", details, reason: None }
}

/// The details of a change for the audit log. Who made it, when and why is elsewhere in the line.
pub(super) fn details(change: &Change) -> serde_json::Value {
    match change {
        Change::Policy(uploaded) => json!({ "uploaded": uploaded.is_some() }),
        Change::Rule(switch) => switch.details(),
        Change::Override(one) => json!(Override { note: one.note.for_audit(), ..one.clone() }),
        Change::Tier(one) => json!(Tier { note: one.note.for_audit(), ..one.clone() }),
        Change::Expired { .. } => serde_json::Value::Null,
    }
}
