//! Unauthenticated connections: those to the admin listener that have not sent a valid token yet.
//!
//! ```text
//!   connected ──► unauthenticated ──valid token──► keeps its slot until it ends
//!                    └─ the listener is full and another client connects: the oldest one is evicted
//! ```
//!
//! An attacker without a token can open as many connections as the caps allow and leave them silent until they time out. A few
//! dozen such connections would lock the operator out. So when the listener is full, the oldest unauthenticated connection is
//! closed. The operator's client sends its token as soon as it is connected. To have that connection evicted first, an
//! attacker would have to open as many connections as the listener has slots in the same instant.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

/// The unauthenticated connections of a listener, the oldest first.
#[derive(Debug, Default)]
pub(super) struct UnauthenticatedList(Mutex<VecDeque<Arc<Unauthenticated>>>);

/// One unauthenticated connection.
#[derive(Debug)]
pub(super) struct Unauthenticated {
    pub(super) source: IpAddr,
    /// Cancelled when the listener needs its slot.
    evicted: CancellationToken,
    /// Cancelled when its slot is free.
    closed: CancellationToken,
}

impl UnauthenticatedList {
    /// Adds a connection that was just accepted.
    pub(super) fn add(&self, source: IpAddr) -> Arc<Unauthenticated> {
        let [evicted, closed] = [CancellationToken::new(), CancellationToken::new()];
        let connection = Arc::new(Unauthenticated { source, evicted, closed });
        self.list().push_back(Arc::clone(&connection));
        connection
    }

    /// Evicts the oldest connection that `matches`: takes it off the list and tells its task to close it.
    pub(super) fn evict_oldest(
        &self,
        matches: impl Fn(&Unauthenticated) -> bool,
    ) -> Option<Arc<Unauthenticated>> {
        let mut list = self.list();
        let oldest = list.iter().position(|connection| matches(connection))?;
        let connection = list.remove(oldest)?;
        connection.evicted.cancel();
        Some(connection)
    }

    /// Takes a connection off the list because it has sent a valid token or has ended. From here on it is never evicted.
    /// Returns false if it was evicted before.
    pub(super) fn remove(&self, connection: &Arc<Unauthenticated>) -> bool {
        self.list().retain(|one| !Arc::ptr_eq(one, connection));
        !connection.evicted.is_cancelled()
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Arc<Unauthenticated>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unauthenticated {
    /// Waits until the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Announces that its slot is free.
    pub(super) fn mark_closed(&self) {
        self.closed.cancel();
    }

    /// Waits until its slot is free.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_evicted_but_never_one_that_sent_a_token() {
        let [here, there] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
        let unauthenticated = UnauthenticatedList::default();
        let [first, second, third] = [here, there, here].map(|source| unauthenticated.add(source));
        assert!(unauthenticated.remove(&first)); // by a token
        let left = unauthenticated.evict_oldest(|one| one.source == here).unwrap();
        assert!(Arc::ptr_eq(&left, &third));
        assert!(unauthenticated.evict_oldest(|one| one.source == here).is_none());
        assert!(Arc::ptr_eq(&unauthenticated.evict_oldest(|_| true).unwrap(), &second));
        // A token is too late for a connection that was evicted.
        assert!(!unauthenticated.remove(&second) && unauthenticated.remove(&first));
    }
}
