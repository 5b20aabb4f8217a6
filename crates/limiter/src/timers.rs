//! The only module of the limiter that sleeps; clippy refuses it elsewhere (`clippy.toml`). The length of every wait is
//! computed from the clock of the store.

use std::time::Duration;
use tidegate_core::Span;
use tokio::time::Sleep;

#[expect(clippy::disallowed_methods, reason = "the module that sleeps")]
pub(crate) fn sleep(span: Span) -> Sleep {
    tokio::time::sleep(Duration::from_nanos(span.as_nanos()))
}
