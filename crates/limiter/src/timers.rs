//! The only module of the limiter that sleeps; clippy refuses it elsewhere (`clippy.toml`). The length of every wait is
//! computed from the clock of the store.

use std::time::Duration;
use tidegate_core::Span;
use tokio::time::{Instant, Sleep};

#[expect(clippy::disallowed_methods, reason = "the module that sleeps")]
pub(crate) fn sleep(span: Span) -> Sleep {
    tokio::time::sleep(Duration::from_nanos(span.as_nanos()))
}

#[expect(clippy::disallowed_methods, reason = "the module that sleeps")]
pub(crate) fn sleep_until(instant: Instant) -> Sleep {
    tokio::time::sleep_until(instant)
}

/// The time by which timers fire.
#[expect(clippy::disallowed_methods, reason = "the module that sleeps")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long ago an instant was.
pub(crate) fn since(instant: Instant) -> Span {
    let passed = now().saturating_duration_since(instant).as_nanos();
    Span::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX))
}

/// The instant at which a span from now is over.
pub(crate) fn after(span: Span) -> Instant {
    let (now, span) = (now(), Duration::from_nanos(span.as_nanos()));
    now.checked_add(span).unwrap_or(now)
}
