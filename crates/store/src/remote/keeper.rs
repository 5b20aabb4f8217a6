//! The keeper of a connection: a background task that connects, probes the server, and closes the circuit breaker when the probe
//! succeeds.
//!
//! ```text
//!   every second, or when a caller reports a failure:
//!     no connection ──► connect ──┬──► probe ──► breaker closed
//!     connection ─────────────────┘
//!   while the breaker is open: again after 50 ms, 100 ms, 200 ms, 400 ms, 400 ms … (exponential backoff)
//! ```

use super::gate::Gate;
use super::timers;
use crate::error::StoreError;
use std::sync::Arc;
use std::time::Duration;

/// A server, as its keeper sees it.
pub(crate) trait Server: Send + Sync + 'static {
    /// A connection that many calls share. Clones are the same connection.
    type Connection: Clone + Send;

    /// How often it is probed while all is well.
    const PROBE_INTERVAL: Duration;

    fn gate(&self) -> &Gate<Self::Connection>;

    /// Connects if there is no connection, and finds out whether the server works.
    fn connect_and_probe(
        &self,
        current: Option<Self::Connection>,
    ) -> impl Future<Output = Result<Self::Connection, StoreError>> + Send;

    /// A connection is new. What was known of the server may be wrong from now on.
    fn connected(&self) {}

    /// A probe failed.
    fn failed(&self) {}

    /// A probe succeeded: there is time for other work.
    fn tidy(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Exponential backoff while the server does not answer: a server that comes back is not flooded with connections.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// Looks after the connection, for ever.
pub(crate) async fn keep<S: Server>(server: Arc<S>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if server.gate().is_open() {
            timers::sleep(pause).await;
        } else {
            server.gate().wait_for_trouble(S::PROBE_INTERVAL).await;
        }
        match update_breaker(&*server).await {
            Ok(()) => {
                pause = FIRST_PAUSE;
                server.tidy().await;
            }
            Err(_) => pause = pause.saturating_mul(2).min(LONGEST_PAUSE),
        }
    }
}

/// Connects if necessary, probes the server, and closes or opens the breaker accordingly.
pub(crate) async fn update_breaker<S: Server>(server: &S) -> Result<(), StoreError> {
    let gate = server.gate();
    let probed = server.connect_and_probe(gate.current()).await;
    match &probed {
        Ok(connection) => gate.works(connection, || server.connected()),
        Err(error) => {
            gate.fails(error);
            server.failed();
        }
    }
    probed.map(drop)
}
