//! What all links and background tasks of one store share.

use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::key::Secret;
use crate::remote::ErrorCounts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidegate_core::Timestamp;
use tokio::sync::Notify;

/// What all links and background tasks of one store share.
pub(super) struct StoreContext {
    pub(super) settings: RedisSettings,
    /// Hash of the secret. A server must hold this value or none: the states of two secrets never mix.
    pub(super) verifier: String,
    /// This node's clock.
    pub(super) clock: Clock,
    /// Whether the store is a cluster, whose servers may redirect us to each other.
    pub(super) is_cluster: bool,
    pub(super) error_counts: ErrorCounts,
    /// Notified when a server turned out to be other than the topology says: the topology is refreshed now.
    pub(super) topology_stale: Notify,
    /// How often a connection to other data was opened, or a slot changed its owner; see [`LeaseMoment`](crate::leases::LeaseMoment). Release and
    /// Acquire: who uses a new connection sees its epoch.
    pub(super) epoch: AtomicU64,
    /// The store has started: a server that joins from now on takes the place of another one. Relaxed: it is set once.
    pub(super) is_running: AtomicBool,
    /// How often a background task panicked and was restarted. Relaxed: for metrics.
    pub(super) restarts: Arc<AtomicU64>,
}

impl StoreContext {
    pub(super) fn new(
        settings: &RedisSettings,
        secret: &Secret,
        clock: Clock,
        is_cluster: bool,
    ) -> Self {
        Self {
            settings: settings.clone(),
            verifier: format!("{:032x}", secret.verifier()),
            clock,
            is_cluster,
            error_counts: ErrorCounts::default(),
            topology_stale: Notify::new(),
            epoch: AtomicU64::new(0),
            is_running: AtomicBool::new(false),
            restarts: Arc::default(),
        }
    }

    /// From now on, what was known of the servers may be wrong: a connection leads to other data, or a slot has another owner.
    pub(super) fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The time by this node's monotonic clock.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now().steady
    }

    /// The deadline of a background query that begins now.
    pub(super) fn background_deadline(&self) -> Timestamp {
        self.now().after(self.settings.longest_timeout()).unwrap_or(Timestamp::END)
    }
}
