//! Background tasks that survive their own panics.

use super::timers;
use futures_util::FutureExt as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Pause before a task that panicked is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(400);

/// Runs a task, and starts it again after a pause whenever it panics. `restarts` counts how often; Relaxed, because it is read for
/// metrics.
pub(crate) async fn supervised<F: Future<Output = ()>>(
    restarts: Arc<AtomicU64>,
    task: impl Fn() -> F,
) {
    while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
        restarts.fetch_add(1, Ordering::Relaxed);
        timers::sleep(RESTART_PAUSE).await;
    }
}
