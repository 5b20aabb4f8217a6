//! Listeners and connections: which connections are accepted, on which thread each is served, and how all of them end.
//!
//! ```text
//!   listener ──accept──► room for one more? ──► the next worker, round robin ──► a task for the connection
//!                        └ no: closed and counted
//! ```
//!
//! A worker is a thread with a runtime of its own. A connection stays with its worker, so nothing that belongs to it is
//! shared or locked. Connections are handed out round robin: hashing few connections to few workers would leave a worker
//! idle.
//!
//! What is said on a connection is not decided here: [`Protocol`] is the seam to the layers above.

mod budget;
mod caps;
mod door;
mod drain;
mod files;
mod input;
mod line;
mod place;
mod strangers;
mod stream;
pub(crate) mod tls;
mod turns;
mod worker;

#[cfg(test)]
pub(crate) use budget::OfSource;
pub(crate) use budget::{Account, Budget, Hold};
pub(crate) use caps::Caps;
pub(crate) use door::{Door, Slot, Trusts};
pub(crate) use drain::Drain;
pub(crate) use files::{Division, Files, kept, raise_limit};
pub(crate) use input::Input;
pub(crate) use line::{LINGER, Line, Woken};
pub(crate) use place::{Place, Timeouts, Versions};
pub(crate) use stream::Stream;
pub(crate) use tls::{Certificate, TlsFiles};
pub(crate) use turns::{OpenBatch, PIECE, Turns};
pub(crate) use worker::{Opened, Protocol, Protocols, Workers};

use std::time::Duration;
use tokio::time::Instant;

/// The instant that is `time` from now.
pub(crate) fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now)
}
