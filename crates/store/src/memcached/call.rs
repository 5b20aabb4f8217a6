//! Calls to a server, each with a permit and a deadline.

use super::connection::MetaConnection;
use super::counters::{Counter, CounterShape};
use super::meta::{self, Reply};
use super::server::{Failed, MemcachedServer, error_of, unexpected};
use crate::error::StoreError;
use crate::remote::ErrorClass;
use tidegate_core::{Span, Timestamp};
use tokio::sync::{SemaphorePermit, oneshot};

/// A call to a server that is under way.
pub(super) struct Call<'s> {
    server: &'s MemcachedServer,
    pub(super) connection: MetaConnection,
    pub(super) generation: u64,
    /// How long its caller waits.
    left: Span,
    _permit: SemaphorePermit<'s>,
}

impl<'s> Call<'s> {
    pub(super) fn begin(server: &'s MemcachedServer, until: Timestamp) -> Result<Self, Failed> {
        let (connection, generation) = server.connection()?;
        Self::over(server, connection, generation, until)
    }

    /// Over a connection that was used before.
    pub(super) fn over(
        server: &'s MemcachedServer,
        connection: MetaConnection,
        generation: u64,
        until: Timestamp,
    ) -> Result<Self, Failed> {
        let full = |error| Failed(ErrorClass::Overloaded, error);
        let permit = server.gate().enter().map_err(full)?;
        let left = server.left(until);
        if left == Span::ZERO {
            // The caller would not wait for the reply, so nothing is sent and nothing is counted.
            return Err(server.timed_out());
        }
        Ok(Self { server, connection, generation, left, _permit: permit })
    }

    pub(super) async fn reply(
        &self,
        reply: &mut oneshot::Receiver<Reply>,
    ) -> Result<Reply, Failed> {
        let replied = tokio::time::timeout(self.left.into(), self.connection.reply(reply)).await;
        match replied {
            Ok(Ok(Reply::Error(text))) => {
                self.server.answered();
                Err(error_of(&text))
            }
            Ok(Ok(reply)) => {
                self.server.answered();
                Ok(reply)
            }
            Ok(Err(error)) => {
                self.server.lost(self.generation, &error);
                Err(Failed(ErrorClass::Disconnected, error))
            }
            Err(_late) => {
                self.server.gate().timed_out_after(self.left);
                Err(self.server.timed_out())
            }
        }
    }

    pub(super) fn not_sent(&self, error: StoreError) -> Failed {
        if matches!(error, StoreError::Overloaded) {
            return Failed(ErrorClass::Overloaded, error);
        }
        self.server.lost(self.generation, &error);
        Failed(ErrorClass::Disconnected, error)
    }

    pub(super) fn unexpected(&self, reply: &Reply) -> Failed {
        Failed(ErrorClass::Wrong, unexpected(reply))
    }
}

/// What was added to a window by a caller that gave up, because of its deadline or because its future was dropped, is taken back. The
/// server executes that right after what was added, whenever that is. In a bucket it stays, because the
/// bucket may have been drained when it was added; it drains away by itself.
pub(super) struct Abandoned<'c> {
    pub(super) call: &'c Call<'c>,
    pub(super) counter: &'c Counter,
    pub(super) added: u64,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if self.added > 0 && !matches!(self.counter.shape, CounterShape::Bucket { .. }) {
            let subtract = meta::subtract(&self.counter.key, self.added);
            let _ = self.call.connection.send_only(&subtract);
        }
    }
}
