//! Changes that end by themselves.
//!
//! ```text
//!   expires ──► no effect, on each node by its own clock ──► removed from the document, by one node
//! ```
//!
//! The two steps are separate, so that a change ends in time even if the document cannot be written then, for example because the
//! shared store is unreachable.

use super::writing::AuditLine;
use super::{Rulebook, RulebookError};
use crate::audit::Actor;
use crate::backend::Backend;
use crate::control::{Change, Document};
use std::sync::Arc;
use std::time::Duration;

/// How often a node looks whether a change has expired.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Nodes that share a document wait for up to this time before they remove what has expired, each for another time. So usually
/// the others have seen the document of the first one before they try.
const LONGEST_WAIT_MS: u64 = 5_000;
/// How long to wait after the document could not be written. Each attempt is a line in the audit log.
const RETRY_AFTER_MS: u64 = 60_000;

/// When there is something to do about changes that expire, in milliseconds of Unix time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpiryWatch {
    /// When the next change that is in force expires.
    next_ms: Option<u64>,
    /// When changes that have expired are removed from the document, if it has some.
    remove_ms: Option<u64>,
}

impl ExpiryWatch {
    /// After a document was installed.
    pub(super) fn of<S: Backend>(document: &Document, in_force: &Document, now_ms: u64) -> Self {
        let has_expired = document.first_expiry_ms().is_some_and(|first| first <= now_ms);
        let wait = if S::SHARED { getrandom::u64().unwrap_or(0) % LONGEST_WAIT_MS } else { 0 };
        let remove_ms = has_expired.then(|| now_ms.saturating_add(wait));
        Self { next_ms: in_force.first_expiry_ms(), remove_ms }
    }

    fn is_due(self, now_ms: u64) -> bool {
        [self.next_ms, self.remove_ms].into_iter().flatten().any(|due| due <= now_ms)
    }
}

impl<S: Backend> Rulebook<S> {
    /// Ends changes that have expired; never returns.
    pub(crate) async fn watch_expiry(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.lock().expiry.is_due(self.now_ms()) {
                continue;
            }
            let rulebook = Arc::clone(&self);
            if tokio::task::spawn_blocking(move || rulebook.end_expired()).await.is_err() {
                tracing::error!("a bug in tidegate: ending changes that have expired panicked");
            }
        }
    }

    /// Ends the effect of changes that have expired, and removes them from the document if it is time for that.
    pub(super) fn end_expired(&self) {
        let _turn = self.turn();
        let now_ms = self.now_ms();
        let (is_due, retry_ms) = (|at: u64| at <= now_ms, now_ms.saturating_add(RETRY_AFTER_MS));
        if self.lock().expiry.next_ms.is_some_and(is_due) {
            let mut state = self.lock();
            if let Err(error) = self.install(&mut state) {
                tracing::error!("changes that have expired are still in force: {error}");
                state.expiry.next_ms = Some(retry_ms);
            }
        }
        let removes = self.lock().expiry.remove_ms.is_some_and(is_due);
        if let Some(error) = removes.then(|| self.remove_expired(now_ms).err()).flatten() {
            tracing::warn!("changes that have expired are still in the control document: {error}");
            self.lock().expiry.remove_ms = Some(retry_ms);
        }
    }

    /// Removes changes that have expired from the document.
    fn remove_expired(&self, now_ms: u64) -> Result<(), RulebookError> {
        let ended = self.document().expired(now_ms);
        let line =
            AuditLine { actor: Actor::SERVER, what: "expired", details: ended, reason: None };
        self.write(Change::Expired { now_ms }, None, &line)?;
        self.install(&mut self.lock()).map(|_| ())
    }
}
