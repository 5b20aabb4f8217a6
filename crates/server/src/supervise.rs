//! Contains panics: a panic while answering fails only that request, and a background task that panics is restarted.

use crate::metrics::Metrics;
use crate::timers;
use futures_util::FutureExt as _;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The pause before a task is restarted, so that one that always panics does not occupy a core.
const PAUSE: Duration = Duration::from_millis(500);

/// A future panicked: a bug in tidegate.
pub(crate) struct Panicked;

/// Calls a function and catches its panic.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    // Unwind safety: as below.
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Panicked)
}

/// Polls a future and catches its panic. The future is large, so it is pinned where it is.
pub(crate) async fn contained<T>(
    mut future: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Panicked> {
    poll_fn(|context| {
        // Unwind safety: state that requests share is either atomic or behind a lock that ignores poisoning.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}

/// Runs a task on this thread until it returns. If it panics, the panic is counted and the task is restarted.
pub(crate) fn supervised<F: Future<Output = ()>>(
    name: &'static str,
    metrics: Arc<Metrics>,
    task: impl Fn() -> F + 'static,
) {
    tokio::task::spawn_local(async move {
        while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
            metrics.restarts.inc();
            tracing::error!("a bug in tidegate: {name} panicked and is restarted");
            timers::sleep(PAUSE).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use tokio::sync::Notify;
    use tokio::task::LocalSet;

    #[tokio::test]
    async fn a_task_that_panics_is_restarted_and_counted() {
        let (metrics, done) = (Arc::new(Metrics::default()), Rc::new(Notify::new()));
        let tries = Rc::new(Cell::new(0));
        LocalSet::new()
            .run_until(async {
                supervised("a test", Arc::clone(&metrics), {
                    let (done, tries) = (Rc::clone(&done), Rc::clone(&tries));
                    move || {
                        let (done, tries) = (Rc::clone(&done), Rc::clone(&tries));
                        async move {
                            tries.set(tries.get() + 1);
                            assert!(tries.get() > 2, "the first two fail");
                            done.notify_one();
                        }
                    }
                });
                done.notified().await;
            })
            .await;
        assert_eq!((tries.get(), metrics.restarts.get()), (3, 2));
    }
}
