//! Turns that are being given back in the background, because their requests stopped waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// How many turns are being given back.
#[derive(Clone, Debug, Default)]
pub(crate) struct GiveBacks(Arc<Underway>);

#[derive(Debug, Default)]
struct Underway {
    count: AtomicUsize,
    none: Notify,
}

/// One turn that is being given back, until it is dropped.
#[derive(Debug)]
pub(crate) struct GiveBack(GiveBacks);

impl GiveBacks {
    pub(crate) fn start(&self) -> GiveBack {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        GiveBack(self.clone())
    }

    /// Waits until none is underway, for at most this time.
    pub(crate) async fn none_within(&self, time: Duration) {
        let none = async {
            loop {
                // Created before the count is read, so that no notification is missed.
                let notified = self.0.none.notified();
                if self.0.count.load(Ordering::Acquire) == 0 {
                    return;
                }
                notified.await;
            }
        };
        let _: Result<(), _> = timeout(time, none).await;
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        if self.0.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.none.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_last_or_with_the_time() {
        let give_backs = GiveBacks::default();
        give_backs.none_within(Duration::from_secs(1)).await;
        let (first, second) = (give_backs.start(), give_backs.start());
        let waiting = tokio::spawn({
            let give_backs = give_backs.clone();
            async move { give_backs.none_within(Duration::MAX).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.unwrap();
        let _third = give_backs.start();
        // The paused clock jumps to the end of the time.
        give_backs.none_within(Duration::from_secs(1)).await;
    }
}
