//! The only module of the stores that sleeps; clippy refuses it elsewhere (`clippy.toml`). Background tasks pause between
//! two attempts; no decision depends on how long.

use std::time::Duration;
use tokio::time::Sleep;

#[expect(clippy::disallowed_methods, reason = "the module that sleeps")]
pub(crate) fn sleep(time: Duration) -> Sleep {
    tokio::time::sleep(time)
}
