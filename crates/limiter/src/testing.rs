//! Helpers for the tests of programs that embed a limiter: a clock that follows tokio's paused time, stores that fail on
//! purpose, and the conformance suite for stores. (Feature `testing`; see the guide [`testing`](crate::guide::testing).)
//!
//! ```text
//!   tokio: paused ──► tokio_clock ──► limiter: waits 12 min by tokio's timers ──► the test goes on at once
//! ```

use crate::timers;
use tidegate_core::{Now, Timestamp};
use tidegate_store::Clock;

pub use tidegate_store::testing::{Fault, Faulty, Rig, SetTime, conformance};

/// A clock that begins at `start` and follows the time of tokio's runtime. If that time is paused (`start_paused = true`),
/// [`Limiter::acquire`](crate::Limiter::acquire) waits in virtual time: whenever all tasks wait, tokio sets its time
/// forward to the next timer.
///
/// Create and use it inside the runtime. It cannot be [set](Clock::set); use `tokio::time::advance` instead.
///
/// ```
/// use tidegate::testing::tokio_clock;
/// use tidegate::{Attributes, Check, Limiter, Policy, Span, Timestamp};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// let policy = Policy::parse("{ version: 1, rules: [{ name: mails, key: [], limits: [5/h] }] }")?;
/// let limiter = Limiter::in_memory_with(policy, tokio_clock(Timestamp::EPOCH))?;
/// let start = tokio::time::Instant::now();
/// let mail = Attributes::new();
/// for _ in 0..6 {
///     let check = Check::new(&mail).waiting(Span::from_secs(3600));
///     assert!(limiter.acquire(&check).await?.allowed());
/// }
/// assert_eq!(start.elapsed().as_secs(), 720); // the sixth mail waited for 12 minutes
/// # Ok(()) })
/// # }
/// ```
#[must_use]
pub fn tokio_clock(start: Timestamp) -> Clock {
    let began = timers::now();
    Clock::borrowed(move || Now::at(start.after(timers::since(began)).unwrap_or(Timestamp::END)))
}
