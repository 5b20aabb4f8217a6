//! The virtual time of a simulation. Tokio's clock is stopped and moves only when nothing else can happen; clippy refuses to
//! read it elsewhere (`clippy.toml`).

use std::time::Duration;
use tokio::time::{Instant, Sleep};

#[expect(clippy::disallowed_methods, reason = "the module that reads the virtual clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

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
