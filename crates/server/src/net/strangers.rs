//! Strangers: connections to the admin listener that have not shown a valid token yet.
//!
//! ```text
//!   connected ──► stranger ──shows a token──► keeps its place to the end
//!                    └─ the listener is full and another client connects: the oldest stranger is closed
//! ```
//!
//! A client without a token can open as many connections as the caps allow and keep them open, silent, until they time out.
//! Without this rule a few dozen of them lock the operator out. The operator's client sends its token as soon as it is
//! connected. To have its connection closed before that, an attacker has to open as many connections in this moment as the
//! listener has places.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

/// The strangers of a listener, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<VecDeque<Arc<Stranger>>>);

/// One of them.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) source: IpAddr,
    /// Its place is needed.
    dismissed: CancellationToken,
    /// Its place is free.
    gone: CancellationToken,
}

impl Strangers {
    /// Adds a connection that was just accepted.
    pub(super) fn add(&self, source: IpAddr) -> Arc<Stranger> {
        let [dismissed, gone] = [CancellationToken::new(), CancellationToken::new()];
        let stranger = Arc::new(Stranger { source, dismissed, gone });
        self.list().push_back(Arc::clone(&stranger));
        stranger
    }

    /// Dismisses the oldest stranger that `may` leave.
    pub(super) fn dismiss(&self, may: impl Fn(&Stranger) -> bool) -> Option<Arc<Stranger>> {
        let mut list = self.list();
        let oldest = list.iter().position(|stranger| may(stranger))?;
        let stranger = list.remove(oldest)?;
        stranger.dismissed.cancel();
        Some(stranger)
    }

    /// Takes a connection off the list, because it has shown a token or has ended. From here on it is never dismissed. False:
    /// it was dismissed before.
    pub(super) fn remove(&self, stranger: &Arc<Stranger>) -> bool {
        self.list().retain(|one| !Arc::ptr_eq(one, stranger));
        !stranger.dismissed.is_cancelled()
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Arc<Stranger>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stranger {
    /// Waits until its place is needed.
    pub(super) async fn dismissed(&self) {
        self.dismissed.cancelled().await;
    }

    /// Its place is free.
    pub(super) fn leave(&self) {
        self.gone.cancel();
    }

    /// Waits until its place is free.
    pub(super) async fn gone(&self) {
        self.gone.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leaves_and_never_one_that_showed_a_token() {
        let [here, there] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let strangers = Strangers::default();
        let [first, second, third] = [here, there, here].map(|source| strangers.add(source));
        assert!(strangers.remove(&first)); // by a token
        let left = strangers.dismiss(|one| one.source == here).unwrap();
        assert!(Arc::ptr_eq(&left, &third));
        assert!(strangers.dismiss(|one| one.source == here).is_none());
        assert!(Arc::ptr_eq(&strangers.dismiss(|_| true).unwrap(), &second));
        // A token comes too late for one that was told to leave.
        assert!(!strangers.remove(&second) && strangers.remove(&first));
    }
}
