//! Listeners and connections: which connections are accepted, which thread serves each one, and how they end.
//!
//! ```text
//!   listener ──accept──► below its caps? ──► the next worker, round robin ──► a task for the connection
//!                        └ no: closed and counted
//! ```
//!
//! A worker is a thread with its own single-threaded runtime. A connection stays on its worker, so the state of a connection
//! is neither shared nor locked. Connections are handed out round robin: hashing a few connections to a few workers would
//! leave some workers idle.
//!
//! This module knows nothing about HTTP, gRPC or RESP. A protocol implements [`Protocol`] in a layer above.

mod budget;
mod buffered;
mod caps;
mod certificate_set;
mod context;
mod drain;
mod listener;
mod long_work;
mod open_files;
mod proxy_protocol;
mod read_buffer;
mod stream;
pub(crate) mod tls;
mod together;
mod unauthenticated;
mod worker;

#[cfg(test)]
pub(crate) use budget::SourceBytes;
pub(crate) use budget::{Account, Budget, HeldBytes, POLL_EVERY, Reservation};
pub(crate) use buffered::{BufferedConnection, LINGER, Woken};
pub(crate) use caps::Caps;
pub(crate) use context::{ListenerContext, Timeouts, Versions};
pub(crate) use drain::Drain;
pub(crate) use listener::{BoundedListener, IsTrustedProxy, Listener, ListenerPlan, Slot, source};
pub(crate) use long_work::{LongWorkQueue, OpenBatch, PIECE};
pub(crate) use open_files::{FileQuotas, raise_limit, reserved};
pub(crate) use read_buffer::{ReadBuffer, USUAL};
pub(crate) use stream::Stream;
pub(crate) use tls::{Certificate, CertificateFiles, TlsFiles, client_tls};
pub(crate) use together::Together;
pub(crate) use worker::{AcceptedConnection, Protocol, Protocols, Workers};

use crate::timers;
use std::time::Duration;
use tokio::time::Instant;

/// The instant that is `time` from now, by the runtime's clock.
pub(crate) fn after(time: Duration) -> Instant {
    let now = timers::now();
    now.checked_add(time).unwrap_or(now)
}
