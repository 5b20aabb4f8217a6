//! The gate to one server: lets calls through to its connection while the circuit breaker is closed and a permit is free.
//!
//! ```text
//!   callers ──► connection() ──► a reply or an error ──► answered(), lost() ┬──► circuit breaker
//!                                no reply in time ─────► timed_out_after() ─┘        │ opens: notifies the keeper
//!   keeper  ◄────────────────────────────────────────────────────────────────────────┘
//! ```

use super::breaker::Breaker;
use crate::clock::Clock;
use crate::error::StoreError;
use crate::sync::{Mutex, lock};
use std::time::Duration;
use tidegate_core::{Span, Timestamp};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// What the callers of a server and the keeper of its connection share.
pub(crate) struct Gate<C> {
    /// The address of the server, for people.
    pub(crate) name: String,
    /// How long a decision may take.
    timeout: Span,
    clock: Clock,
    /// Locked to look or to replace, never across an await.
    state: Mutex<GateState<C>>,
    /// One permit for each call that waits for its reply.
    in_flight: Semaphore,
    /// Notified when the keeper has something to repair.
    wake_keeper: Notify,
}

struct GateState<C> {
    connection: Option<C>,
    /// How many connections there have been. [`Gate::lost`] compares it, so that the end of an old connection does not end the
    /// current one. Nothing else is compared: replies and timeouts of an old connection count for the current one, and a mixed-up
    /// reply ends it.
    generation: u64,
    breaker: Breaker,
    /// The breaker was opened since it was last closed, or the connection ended.
    was_away: bool,
    /// When the server was back after it had been away.
    back_at: Option<Timestamp>,
    /// The last error.
    last_error: StoreError,
}

impl<C: Clone> Gate<C> {
    pub(crate) fn new(name: String, timeout: Span, in_flight: usize, clock: Clock) -> Self {
        Self {
            name,
            timeout,
            clock,
            state: Mutex::new(GateState {
                connection: None,
                generation: 0,
                breaker: Breaker::open(),
                was_away: false,
                back_at: None,
                last_error: StoreError::Unavailable("not connected yet".into()),
            }),
            in_flight: Semaphore::new(in_flight),
            wake_keeper: Notify::new(),
        }
    }

    /// The time by this node's monotonic clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now().steady
    }

    /// Time left until a deadline.
    pub(crate) fn left(&self, until: Timestamp) -> Span {
        until.since(self.now())
    }

    // === for callers ===

    /// A permit for one more call, unless too many wait already.
    pub(crate) fn enter(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        self.in_flight.try_acquire().map_err(|_full| StoreError::Overloaded)
    }

    /// The connection and its generation, if the breaker is closed.
    pub(crate) fn connection(&self) -> Result<(C, u64), StoreError> {
        let state = lock(&self.state);
        match &state.connection {
            Some(connection) if !state.breaker.is_open() => {
                Ok((connection.clone(), state.generation))
            }
            _ => Err(state.last_error.not_sent()),
        }
    }

    /// Why the server is not called at the moment; `None` while the breaker is closed.
    pub(crate) fn complaint(&self) -> Option<String> {
        let state = lock(&self.state);
        state.breaker.is_open().then(|| state.last_error.to_string())
    }

    /// For how long the server is back, if it was away before.
    #[cfg(feature = "redis")]
    pub(crate) fn back_for(&self) -> Option<Span> {
        let back_at = lock(&self.state).back_at?;
        Some(self.now().since(back_at))
    }

    /// The server takes the place of another one, which was away.
    #[cfg(feature = "redis")]
    pub(crate) fn succeeds_another(&self) {
        lock(&self.state).was_away = true;
    }

    /// A reply arrived, perhaps an error.
    pub(crate) fn answered(&self) {
        lock(&self.state).breaker.answered();
    }

    /// The connection of this generation cannot be used further. Returns whether it was the current one.
    pub(crate) fn lost(&self, generation: u64, why: &StoreError) -> bool {
        let mut state = lock(&self.state);
        let is_current = state.generation == generation;
        if is_current {
            state.lose(why);
            self.wake_keeper.notify_one();
        }
        is_current
    }

    /// No reply on the current connection can be trusted from now on.
    pub(crate) fn distrust(&self, why: &StoreError) {
        lock(&self.state).lose(why);
        self.wake_keeper.notify_one();
    }

    /// A caller has waited for its whole patience, and no reply arrived. The breaker counts that only if the patience was between
    /// half of the store's timeout and all of it. After a shorter wait the server may just be a little slow. A longer wait, like
    /// that of a refund, began so long ago that the server may have recovered since. Returns whether the breaker is open.
    pub(crate) fn timed_out_after(&self, patience: Span) -> bool {
        let mut state = lock(&self.state);
        let timeout = self.timeout.as_nanos();
        if (timeout / 2..=timeout).contains(&patience.as_nanos()) {
            state.breaker.failed(self.now());
        }
        let is_open = state.breaker.is_open();
        if is_open {
            state.was_away = true;
            state.last_error = StoreError::TimedOut(self.timeout);
            self.wake_keeper.notify_one();
        }
        is_open
    }

    // === for the keeper ===

    pub(super) fn is_open(&self) -> bool {
        lock(&self.state).breaker.is_open()
    }

    pub(super) fn current(&self) -> Option<C> {
        lock(&self.state).connection.clone()
    }

    /// Waits until something must be repaired, for this time at most.
    pub(super) async fn wait_for_trouble(&self, time: Duration) {
        let _ = tokio::time::timeout(time, self.wake_keeper.notified()).await;
    }

    /// The server works. `connected` is called first if the connection is new.
    pub(super) fn works(&self, connection: &C, connected: impl FnOnce()) {
        let mut state = lock(&self.state);
        if state.connection.is_none() {
            connected();
            state.connection = Some(connection.clone());
            state.generation = state.generation.saturating_add(1);
        }
        if state.breaker.is_open() {
            state.breaker.close(self.now());
        }
        if std::mem::take(&mut state.was_away) {
            state.back_at = Some(self.now());
        }
    }

    /// The server does not work.
    pub(super) fn fails(&self, why: &StoreError) {
        lock(&self.state).lose(why);
    }
}

impl<C> GateState<C> {
    /// Drops the connection and opens the breaker.
    fn lose(&mut self, why: &StoreError) {
        self.connection = None;
        self.breaker.lost();
        self.was_away = true;
        self.last_error = why.not_sent();
    }
}
