//! Tasks that go on whatever happens in them.

use crate::metrics::Metrics;
use futures_util::FutureExt as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// A task that fails at once does not keep the machine busy with it.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs a task on this thread until it ends by itself. When it meets a mistake of ours it begins anew, and that is counted.
pub(crate) fn supervised<F: Future<Output = ()>>(
    name: &'static str,
    metrics: Arc<Metrics>,
    task: impl Fn() -> F + 'static,
) {
    tokio::task::spawn_local(async move {
        while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
            metrics.restarted();
            tracing::error!("{name} met a mistake of ours and begins anew");
            tokio::time::sleep(PAUSE).await;
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
    async fn a_task_that_panics_begins_anew_and_that_is_counted() {
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
        assert_eq!((tries.get(), metrics.restarts()), (3, 2));
    }
}
