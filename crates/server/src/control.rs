//! What operators have changed while the server ran: one versioned document.
//!
//! ```text
//!   asked ──► next version ──► written ──► installed, audited        not written: nothing happened
//! ```
//!
//! The document is a value: a change makes the next one of it and touches nothing. [`Control`] is the
//! protocol around it, a state machine without I/O: what happened goes in, what is to be done comes out. The
//! rest, files and limiter, is [`crate::rulebook`]'s.

mod document;

pub(crate) use document::{Change, Document, Override, RefusedChange, RuleSwitch, Tier, Uploaded};

/// The document that is in force, and the one that is being written.
#[derive(Debug)]
pub(crate) struct Control {
    document: Document,
    pending: Option<Document>,
}

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// Somebody wants a change; made under this version, if they say so.
    Requested { change: Change, expected: Option<u64> },
    /// What was to be written is written.
    Written,
    /// It could not be written, and why.
    NotWritten(RefusedChange),
    /// Another node has made this one of it.
    Replaced(Document),
}

/// Something to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Write this document in the place of the one in force.
    Write(Document),
    /// This document is in force now.
    Install(Document),
    /// Tell whoever asked that nothing changed.
    Refuse(RefusedChange),
}

impl Control {
    pub(crate) const fn new(document: Document) -> Self {
        Self { document, pending: None }
    }

    /// The document in force.
    pub(crate) const fn document(&self) -> &Document {
        &self.document
    }

    pub(crate) fn on_event(&mut self, event: Event) -> Action {
        match event {
            Event::Requested { change, expected } => self.asked(&change, expected),
            Event::Written => match self.pending.take() {
                Some(document) => {
                    self.document = document.clone();
                    Action::Install(document)
                }
                None => Action::Refuse(RefusedChange::NothingPending),
            },
            Event::NotWritten(why) => {
                self.pending = None;
                Action::Refuse(why)
            }
            Event::Replaced(document) => {
                self.pending = None;
                self.document = document.clone();
                Action::Install(document)
            }
        }
    }

    fn asked(&mut self, change: &Change, expected: Option<u64>) -> Action {
        if self.pending.is_some() {
            return Action::Refuse(RefusedChange::Busy);
        }
        let version = self.document.version;
        if let Some(expected) = expected.filter(|expected| *expected != version) {
            return Action::Refuse(RefusedChange::Stale { expected, version });
        }
        match self.document.with(change) {
            Ok(next) => {
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
        Change::Rule(RuleSwitch { rule: rule.to_owned(), enabled: Some(false), shadow: None })
    }

    #[test]
    fn a_change_counts_when_it_is_written_and_not_before() {
        let mut control = Control::new(Document::default());
        let Action::Write(next) =
            control.on_event(Event::Requested { change: switch("a"), expected: Some(0) })
        else {
            panic!()
        };
        assert_eq!((next.version, control.document().version), (1, 0));
        let busy = control.on_event(Event::Requested { change: switch("b"), expected: None });
        assert_eq!(busy, Action::Refuse(RefusedChange::Busy));
        assert_eq!(control.on_event(Event::Written), Action::Install(next.clone()));
        assert_eq!(control.document(), &next);
    }

    #[test]
    fn what_could_not_be_written_did_not_happen() {
        let mut control = Control::new(Document::default());
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
    fn what_another_node_has_made_of_it_counts() {
        let mut control = Control::new(Document::default());
        control.on_event(Event::Requested { change: switch("a"), expected: None });
        let theirs = Document { version: 7, ..Document::default() };
        assert_eq!(
            control.on_event(Event::Replaced(theirs.clone())),
            Action::Install(theirs.clone())
        );
        assert_eq!(control.document(), &theirs);
        assert_eq!(control.on_event(Event::Written), Action::Refuse(RefusedChange::NothingPending));
    }

    #[test]
    fn of_two_changes_made_under_one_version_one_is_told() {
        let mut control = Control::new(Document::default());
        control.on_event(Event::Requested { change: switch("a"), expected: Some(0) });
        control.on_event(Event::Written);
        let second = control.on_event(Event::Requested { change: switch("b"), expected: Some(0) });
        assert_eq!(second, Action::Refuse(RefusedChange::Stale { expected: 0, version: 1 }));
    }
}
