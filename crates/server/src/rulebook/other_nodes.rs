//! Changes that operators make on other nodes of a shared store.
//!
//! The document of the store is followed if it was made from that of this node. A store can also lose documents: a failover loses
//! the last writes, and a node that was cut off can be the first to write into an empty store. Then the document of the store is
//! older than that of a node, and that node writes its own back. If both were changed, see [`super::forks`].

use super::{Rulebook, RulebookError};
use crate::backend::Backend;
use crate::control::{Document, DocumentStanding, Edition, Event, Lineage};
use std::io;
use tidegate_store::{DocumentCopy, DocumentTag};

impl<S: Backend> Rulebook<S> {
    /// Which control document is in force here.
    pub(crate) fn tag(&self) -> DocumentTag {
        tag_of(self.lock().control.edition())
    }

    /// Puts the document of the store in force, or writes the document of this node back.
    pub(crate) fn follow(&self, shared: &DocumentCopy) -> Result<(), RulebookError> {
        let _turn = self.turn();
        let ours = self.lock().control.edition().clone();
        let theirs = edition_of(shared).map_err(io::Error::other)?;
        match ours.lineage.standing(&theirs.lineage) {
            DocumentStanding::Same if shared.tag() == tag_of(&ours) => Ok(()),
            // The store has the same document without its lineage, or an older document.
            DocumentStanding::Same | DocumentStanding::WriteBack => {
                self.write_back(&shared.tag(), &ours)
            }
            DocumentStanding::Follow => self.replace(theirs),
            // Only their ids differ.
            DocumentStanding::Fork if theirs.document == ours.document => self.replace(theirs),
            DocumentStanding::Fork => {
                self.keep_fork(&ours, theirs.lineage.version())?;
                self.replace(theirs)
            }
        }
    }

    /// Gives the store the document of this node. If that fails, the next poll tries again.
    fn write_back(&self, old: &DocumentTag, ours: &Edition) -> Result<(), RulebookError> {
        let copy = copy_of(ours).map_err(io::Error::other)?;
        let replaced = self.limiter.store().replace_document(old, &copy);
        let replaced = tokio::runtime::Handle::current().block_on(replaced);
        let (found, version) = (old.version, copy.version);
        if matches!(replaced, Ok(true)) && found != version {
            tracing::info!(
                found,
                version,
                "the store had an older control document than this node"
            );
        }
        Ok(())
    }

    /// Puts a document in force and keeps it in the control file.
    fn replace(&self, edition: Edition) -> Result<(), RulebookError> {
        let text = match &edition.document.policy {
            Some(uploaded) => uploaded.text.clone().into_bytes(),
            None => self.lock().file_text.clone(),
        };
        let policy = self.parse(&text)?;
        let mut state = self.lock();
        (state.text, state.policy) = (text, policy);
        let version = edition.document.version;
        let _ = state.control.on_event(Event::Replaced(edition));
        self.install(&mut state)?;
        let written = self.save(&state);
        drop(state);
        tracing::info!(version, "another node has changed the rules");
        Ok(written?)
    }
}

// === documents as the store has them ===

pub(super) fn tag_of(edition: &Edition) -> DocumentTag {
    let id = edition.lineage.id().map(ToString::to_string).unwrap_or_default();
    DocumentTag { version: edition.document.version, id }
}

pub(super) fn copy_of(edition: &Edition) -> serde_json::Result<DocumentCopy> {
    let Edition { document, lineage } = edition;
    let text = serde_json::to_vec(document)?;
    Ok(DocumentCopy { version: document.version, lineage: lineage.to_string(), text })
}

fn edition_of(shared: &DocumentCopy) -> serde_json::Result<Edition> {
    if shared.version == 0 {
        return Ok(Edition::default());
    }
    let document: Document = serde_json::from_slice(&shared.text)?;
    let lineage = Lineage::read(&shared.lineage, document.version);
    let lineage = lineage.filter(|lineage| {
        // Older programs replace the document and leave the lineage of the one before.
        lineage.id().is_some_and(|id| id.to_string() == shared.tag().id)
    });
    let lineage = lineage.unwrap_or_else(|| Lineage::unknown(&document));
    Ok(Edition { document, lineage })
}
