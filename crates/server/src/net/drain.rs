//! The orderly end of the server.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Tells every connection that the server is stopping, and when its time is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drain {
    /// No new connections; idle ones are closed, the others finish.
    pub(crate) begun: CancellationToken,
    /// The same for those who look often. It is set before anybody is woken.
    has_begun: Arc<AtomicBool>,
    /// Whoever is still here is cut off.
    pub(crate) over: CancellationToken,
}

impl Drain {
    pub(crate) fn has_begun(&self) -> bool {
        // Whoever is woken by the token sees what was stored before it: waking orders them.
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Begins to end, and cuts off whoever has not finished after this time.
    pub(crate) async fn end(
        &self,
        within: Duration,
        all_done: impl Future<Output = ()>,
    ) -> io::Result<()> {
        self.has_begun.store(true, Ordering::Relaxed);
        self.begun.cancel();
        let ended = tokio::time::timeout(within, all_done).await;
        self.over.cancel();
        ended.map_err(|_| io::ErrorKind::TimedOut.into())
    }
}
