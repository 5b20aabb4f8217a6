//! The changes that operators make while the server runs: one versioned control document.
//!
//! ```text
//!   requested ──► next version ──► written ──► installed        not written: nothing has changed
//! ```
//!
//! The document is an immutable value: a change makes the next version. [`Control`] is the protocol around it, a state machine
//! without I/O: an [`Event`] goes in, an [`Action`] comes out. [`crate::rulebook`] does the I/O. Nodes that share a document
//! tell from its [`Lineage`] which of two is newer.

mod change;
mod document;
mod lineage;
mod note;

pub(crate) use change::{Change, RefusedChange, SwitchChange};
#[cfg(test)]
pub(crate) use document::RuleSwitch;
pub(crate) use document::{Document, Override, Tier, Uploaded};
pub(crate) use lineage::{DocumentStanding, Lineage};
pub(crate) use note::{ChangeNote, expiry_ms, reason};

/// A document and those from which it was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Edition {
    pub(crate) document: Document,
    pub(crate) lineage: Lineage,
}

/// The document that is in force, and the one that is being written.
#[derive(Debug)]
pub(crate) struct Control {
    current: Edition,
    pending: Option<Edition>,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// An operator requests a change, optionally only if the document still has this version.
    Requested { change: Change, expected: Option<u64> },
    /// The document of [`Action::Write`] is written.
    Written,
    /// It could not be written, for this reason.
    NotWritten(RefusedChange),
    /// Another node has replaced the document with this one.
    Replaced(Edition),
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Write this document.
    Write(Edition),
    /// Put this document in force.
    Install(Edition),
    /// Tell the operator that nothing has changed.
    Refuse(RefusedChange),
}

impl Control {
    pub(crate) const fn new(current: Edition) -> Self {
        Self { current, pending: None }
    }

    /// The document in force.
    pub(crate) const fn document(&self) -> &Document {
        &self.current.document
    }

    /// The document in force, and those from which it was made.
    pub(crate) const fn edition(&self) -> &Edition {
        &self.current
    }

    pub(crate) fn on_event(&mut self, event: Event) -> Action {
        match event {
            Event::Requested { change, expected } => self.asked(&change, expected),
            Event::Written => match self.pending.take() {
                Some(edition) => self.install(edition),
                None => Action::Refuse(RefusedChange::NothingPending),
            },
            Event::NotWritten(why) => {
                self.pending = None;
                Action::Refuse(why)
            }
            Event::Replaced(edition) => self.install(edition),
        }
    }

    fn install(&mut self, edition: Edition) -> Action {
        self.pending = None;
        self.current = edition.clone();
        Action::Install(edition)
    }

    fn asked(&mut self, change: &Change, expected: Option<u64>) -> Action {
        if self.pending.is_some() {
            return Action::Refuse(RefusedChange::Busy);
        }
        let Edition { document, lineage } = &self.current;
        let version = document.version;
        if let Some(expected) = expected.filter(|expected| *expected != version) {
            return Action::Refuse(RefusedChange::Stale { expected, version });
        }
        match document.with(change) {
            Ok(document) => {
                let next = Edition { lineage: lineage.then(&document), document };
                self.pending = Some(next.clone());
                Action::Write(next)
            }
            Err(refused) => Action::Refuse(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(rule: &str) -> Change {
        let (rule, note) = (rule.to_owned(), ChangeNote::default());
        Change::Rule(SwitchChange { rule, enabled: Some(Some(false)), shadow: None, note })
    }

    #[test]
    fn a_change_is_in_force_only_after_it_is_written() {
        let mut control = Control::new(Edition::default());
        let Action::Write(next) =
            control.on_event(Event::Requested { change: switch("a"), expected: Some(0) })
        else {
            panic!()
        };
        assert_eq!((next.document.version, control.document().version), (1, 0));
        let busy = control.on_event(Event::Requested { change: switch("b"), expected: None });
        assert_eq!(busy, Action::Refuse(RefusedChange::Busy));
        assert_eq!(control.on_event(Event::Written), Action::Install(next.clone()));
        assert_eq!(control.edition(), &next);
    }

    #[test]
    fn a_change_that_cannot_be_written_changes_nothing() {
        let mut control = Control::new(Edition::default());
        control.on_event(Event::Requested { change: switch("a"), expected: None });
        let refused = control.on_event(Event::NotWritten(RefusedChange::StoreGone));
        assert_eq!(refused, Action::Refuse(RefusedChange::StoreGone));
        assert_eq!(control.document(), &Document::default());
        assert_eq!(control.on_event(Event::Written), Action::Refuse(RefusedChange::NothingPending));
        assert!(matches!(
            control.on_event(Event::Requested { change: switch("a"), expected: Some(0) }),
            Action::Write(_)
        ));
    }

    #[test]
    fn a_document_of_another_node_is_in_force() {
        let mut control = Control::new(Edition::default());
        control.on_event(Event::Requested { change: switch("a"), expected: None });
        let document = Document { version: 7, ..Document::default() };
        let theirs = Edition { lineage: Lineage::unknown(&document), document };
        assert_eq!(
            control.on_event(Event::Replaced(theirs.clone())),
            Action::Install(theirs.clone())
        );
        assert_eq!(control.edition(), &theirs);
        assert_eq!(control.on_event(Event::Written), Action::Refuse(RefusedChange::NothingPending));
    }

    #[test]
    fn the_second_of_two_changes_to_the_same_version_is_refused() {
        let mut control = Control::new(Edition::default());
        control.on_event(Event::Requested { change: switch("a"), expected: Some(0) });
        control.on_event(Event::Written);
        let second = control.on_event(Event::Requested { change: switch("b"), expected: Some(0) });
        assert_eq!(second, Action::Refuse(RefusedChange::Stale { expected: 0, version: 1 }));
    }
}
