//! Changes that operators make on other nodes of a shared store.

use super::{Rulebook, RulebookError};
use crate::backend::Backend;
use crate::control::{Document, Event};
use std::io;

impl<S: Backend> Rulebook<S> {
    /// The version of the control document that is in force here.
    pub(crate) fn version(&self) -> u64 {
        self.document().version
    }

    /// Puts the document of another node in force. If the store has none (version 0), it gets the document of this node.
    pub(crate) fn follow(&self, version: u64, text: &[u8]) -> Result<(), RulebookError> {
        let _turn = self.turn();
        let ours = self.document();
        if version == ours.version {
            return Ok(());
        }
        if version == 0 {
            let text = serde_json::to_vec(&ours).map_err(io::Error::other)?;
            let shown = self.limiter.store().replace_document((0, ours.version), &text);
            // If that fails, the next poll tries again.
            let _ = tokio::runtime::Handle::current().block_on(shown);
            return Ok(());
        }
        self.replace(serde_json::from_slice(text).map_err(io::Error::other)?)
    }

    /// Puts a document in force and keeps it in the control file.
    fn replace(&self, document: Document) -> Result<(), RulebookError> {
        let text = match &document.policy {
            Some(uploaded) => uploaded.text.clone().into_bytes(),
            None => self.lock().file_text.clone(),
        };
        let policy = self.parse(&text)?;
        let mut state = self.lock();
        (state.text, state.policy) = (text, policy);
        let version = document.version;
        let _ = state.control.on_event(Event::Replaced(document));
        self.install(&mut state)?;
        let written = self.save(&state);
        drop(state);
        tracing::info!(version, "another node has changed the rules");
        Ok(written?)
    }
}
