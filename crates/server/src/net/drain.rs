//! The orderly end of the server: no new connections, then time for the open ones to finish, then they are closed.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Tells every connection that the server is stopping, and when its time is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drain {
    /// Cancelled when the drain begins: no new connections, idle ones are closed, the others finish.
    pub(crate) begun: CancellationToken,
    /// Whether the drain has begun: a flag is cheaper to read for every request than `begun`. It is set before that token is cancelled.
    has_begun: Arc<AtomicBool>,
    /// Cancelled a little before the time is over: requests that still wait for their turn are answered now.
    pub(crate) nearly_over: CancellationToken,
    /// Cancelled when the time is over: connections that are still open are closed.
    pub(crate) over: CancellationToken,
}

/// The time for the answers to requests that still wait when the drain is nearly over.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

impl Drain {
    pub(crate) fn has_begun(&self) -> bool {
        // Relaxed is enough: cancelling the token orders this store before everything that a woken task does.
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Begins the drain, waits for `all_done`, and closes connections that have not finished `within` this time.
    pub(crate) async fn end(
        &self,
        within: Duration,
        all_done: impl Future<Output = ()>,
    ) -> io::Result<()> {
        self.has_begun.store(true, Ordering::Relaxed);
        self.begun.cancel();
        let mut all_done = pin!(all_done);
        let last = LAST_ANSWERS.min(within.checked_div(2).unwrap_or_default());
        let mut ended = timeout(within.saturating_sub(last), all_done.as_mut()).await;
        if ended.is_err() {
            self.nearly_over.cancel();
            ended = timeout(last, all_done).await;
        }
        self.over.cancel();
        ended.map_err(|_| io::ErrorKind::TimedOut.into())
    }
}
