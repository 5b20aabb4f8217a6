//! The conformance suite for stores, and a store that fails on purpose.
//!
//! [`conformance`] checks the contract of [`Store`]. The author of a store calls it from a test, with a closure that builds a
//! store. The suite builds a fresh store for each of its cases.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test suite fails loudly"
)]

mod case_helpers;
mod cases;
mod crashes;
mod crashing_disk;
mod faulty;
mod permit_cases;
mod random;
mod receipt_cases;
mod strange_data;

#[cfg(feature = "redis")]
pub use crate::redis::simulated::{
    Effect, Executed, Network, NetworkFuture, OwnedPart, OwnedTake, SimulatedRedis, SimulatedReply,
    SimulatedRequest,
};
pub use crashes::{CrashTally, play_crashes};
pub use faulty::{Fault, Faulty};
pub use strange_data::open_strange_data;

use crate::Store;
use std::fmt;
#[cfg(feature = "redis")]
use tidegate_core::Limit;
use tidegate_core::Timestamp;

/// Sets the time by which a store decides.
pub type SetTime<S> = Box<dyn Fn(&S, Timestamp) + Send + Sync>;

/// A store under test, and a way to set its clock.
pub struct Rig<S> {
    /// The store.
    pub store: S,
    /// Sets the time by which the store decides.
    pub set_time: SetTime<S>,
    /// What the store does otherwise than most.
    pub declared: Declared,
}

/// What a store declares that it does otherwise than most. The cases of the suite allow it then.
///
/// ```
/// let declared = tidegate_store::testing::Declared::default();
/// assert!(!declared.edits_begin_anew);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Declared {
    /// A state begins anew when the period of its limit is edited, or anything of its bucket.
    pub edits_begin_anew: bool,
    /// The store goes by the present time alone: it does not remember that the clock was further ahead.
    pub forgets_later_times: bool,
}

/// Runs every case of the contract against fresh stores.
///
/// # Panics
///
/// When the store breaks the contract.
///
/// ```
/// # futures_are_ready(async {
/// use tidegate_core::Timestamp;
/// use tidegate_store::testing::{Declared, Rig, conformance};
/// use tidegate_store::{Clock, Memory};
/// let cases = conformance(async || Rig {
///     store: Memory::new(Clock::manual(Timestamp::EPOCH)),
///     set_time: Box::new(|store: &Memory, now| store.clock().set(now)),
///     declared: Declared::default(),
/// })
/// .await;
/// assert!(cases > 10);
/// # });
/// # fn futures_are_ready(future: impl Future<Output = ()>) {
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     assert!(std::pin::pin!(future).poll(&mut context).is_ready());
/// # }
/// ```
pub async fn conformance<S: Store>(make: impl AsyncFn() -> Rig<S>) -> usize {
    cases::all(make).await
}

/// Whether the store on Redis has the same tag for the shapes of two limits, as for one pair in 999. After a loss of its registry
/// of shapes, a state that was written under one of them may be read under the other.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Span};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// assert!(!tidegate_store::testing::share_a_shape_tag(&limit, &limit)); // they are the same
/// ```
#[cfg(feature = "redis")]
#[must_use]
pub fn share_a_shape_tag(one: &Limit, other: &Limit) -> bool {
    crate::redis::share_a_tag(one, other)
}

impl<S> Rig<S> {
    /// Sets the time by which the store decides, in nanoseconds since the epoch.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// use tidegate_store::testing::{Declared, Rig};
    /// use tidegate_store::{Clock, Memory};
    /// let rig = Rig {
    ///     store: Memory::new(Clock::manual(Timestamp::EPOCH)),
    ///     set_time: Box::new(|store: &Memory, now| store.clock().set(now)),
    ///     declared: Declared::default(),
    /// };
    /// rig.at(7);
    /// assert_eq!(rig.store.clock().now().steady, Timestamp::from_nanos(7));
    /// ```
    pub fn at(&self, nanos: u64) {
        (self.set_time)(&self.store, Timestamp::from_nanos(nanos));
    }
}

impl<S: fmt::Debug> fmt::Debug for Rig<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rig").field("store", &self.store).finish_non_exhaustive()
    }
}
