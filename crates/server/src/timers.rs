//! The only module of the server that reads tokio's clock and sleeps; clippy refuses both elsewhere (`clippy.toml`).
//!
//! These times only bound how long the server waits for others, and measure how long it took. Limits are decided by the
//! [clock of the store](tidegate_store::Clock).

use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The time on tokio's clock, which a test can stop.
#[expect(clippy::disallowed_methods, reason = "the module that reads tokio's clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The time since then.
pub(crate) fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

#[expect(clippy::disallowed_methods, reason = "the module that sleeps")]
pub(crate) fn sleep(time: Duration) -> Sleep {
    tokio::time::sleep(time)
}

#[expect(clippy::disallowed_methods, reason = "the module that sleeps")]
pub(crate) fn sleep_until(end: Instant) -> Sleep {
    tokio::time::sleep_until(end)
}
