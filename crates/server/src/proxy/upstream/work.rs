//! What a request occupies while an upstream server works for it, and for how long after its client has left.
//!
//! A server that was sent a request works on, whether or not the client waits for the answer. If leaving gave the seat and the
//! permits back at once, a client could have any number of requests in the works, each time with a new connection. So they are kept
//! until the server is done:
//!
//! ```text
//!   client leaves ──┬─ HTTP/1: half-close ──► the server closes its side, or has answered ──┬──► seat and permits are free
//!                   │                         or 30 s are over                              │
//!                   └─ HTTP/2: RST_STREAM ──► 30 s are over, since nothing tells when ──────┘
//! ```
//!
//! A client that closes only its sending side looks like one that leaves. So its request goes on, and if the server answers, the
//! answer is sent. The half-close follows after a second: many servers take it for an order to stop.

use super::connection::UpstreamConnection;
use super::group::ServerSeat;
use super::pool::Pool;
use super::seats::HeldSeat;
use super::stream::HalfClose;
use crate::bounds;
use crate::timers;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

/// How long a request may occupy something after its client has left.
pub(crate) const AFTER_LEAVING: Duration = Duration::from_secs(30);
/// When the server learns that the client has closed its sending side.
pub(crate) const UNTIL_HALF_CLOSE: Duration = Duration::from_secs(1);
/// Sockets that one worker keeps open to the servers of a group for clients that have left. Beyond that they are closed, and the
/// seats and permits are kept for as long as they may be.
const MOST_LINGERING: usize = 256;

/// A seat of the group, if its seats are bounded, and the permits of concurrency limits.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) seat: Option<HeldSeat>,
    pub(crate) permits: Option<Box<dyn Any>>,
}

/// A request at an upstream server. If it is dropped before it is over, its client has left.
pub(crate) struct Work {
    pool: Rc<Pool>,
    /// The HTTP/1 connection that carries it; `None` for a stream of an HTTP/2 connection, which has a task of its own.
    connection: Option<Box<UpstreamConnection>>,
    server: Option<ServerSeat>,
    held: Held,
    client: Rc<ClientPresence>,
    is_over: bool,
}

/// Whether the client of a request is still there. Its connection takes note of that, and the request's work looks at it.
#[derive(Default)]
pub(crate) struct ClientPresence {
    /// When the client closed its sending side.
    left: Cell<Option<Instant>>,
    /// The connection to the server.
    carrier: RefCell<Option<HalfClose>>,
    /// The proxy gave the request up by itself: the server is to blame.
    is_released: Cell<bool>,
}

impl Held {
    const fn is_empty(&self) -> bool {
        self.seat.is_none() && self.permits.is_none()
    }
}

// === impl ClientPresence ===

impl ClientPresence {
    /// The client has closed its sending side.
    pub(crate) fn leaves(&self) {
        self.left.set(Some(timers::now()));
    }

    /// Tells the server, if it speaks HTTP/1.
    pub(crate) fn tell_server(&self) {
        self.carrier.borrow().iter().for_each(HalfClose::begin);
    }

    /// The request is given up because of the server: nothing is kept for it.
    pub(crate) fn release(&self) {
        self.is_released.set(true);
    }

    /// Until when something may be kept for it.
    pub(crate) fn kept_until(&self) -> Instant {
        let left = self.left.get().unwrap_or_else(timers::now);
        left.checked_add(AFTER_LEAVING).unwrap_or(left)
    }
}

// === impl Work ===

impl Work {
    pub(super) fn new(
        pool: Rc<Pool>,
        server: ServerSeat,
        held: Held,
        client: Rc<ClientPresence>,
    ) -> Self {
        Self { pool, connection: None, server: Some(server), held, client, is_over: false }
    }

    /// The request is sent over this connection.
    pub(super) fn carry(&mut self, connection: Box<UpstreamConnection>) -> &mut UpstreamConnection {
        *self.client.carrier.borrow_mut() = Some(connection.half_close());
        self.connection.insert(connection)
    }

    pub(super) fn server(&self) -> Option<&ServerSeat> {
        self.server.as_ref()
    }

    /// The seat of the group, while the request has one.
    pub(super) fn seat(&self) -> Option<&HeldSeat> {
        self.held.seat.as_ref()
    }

    /// Frees the seat of the group, because the server is not what the request waits for.
    pub(super) fn free_seat(&mut self) {
        self.held.seat = None;
    }

    /// Lets the HTTP/1 connection read and write.
    pub(super) fn poll_connection(&mut self, context: &mut Context<'_>) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        connection.poll(context);
        true
    }

    /// Nothing was sent: returns what the request holds.
    pub(super) fn not_begun(mut self) -> Held {
        self.is_over = true;
        std::mem::take(&mut self.held)
    }

    /// The server has failed, or has answered completely. The permits are held until the answer is sent; the seat is free.
    pub(super) fn over(&mut self) {
        self.is_over = true;
        self.free_seat();
    }

    /// The server has failed, or has answered completely: see [`over`](Self::over). Keeps the connection if another request can be sent
    /// over it.
    pub(super) fn over_with(&mut self, context: &mut Context<'_>) {
        self.over();
        let (Some(mut connection), Some(server)) = (self.connection.take(), &self.server) else {
            return;
        };
        if connection.is_ready(context) {
            self.pool.keep(server.server(), *connection);
        }
    }

    /// After a 101: the connection, and what is held as long as it is used. The seat of the group is free: a switched protocol may
    /// last for days.
    pub(super) fn switched(mut self) -> Option<(Box<UpstreamConnection>, impl Sized)> {
        self.over();
        let connection = self.connection.take()?;
        Some((connection, (self.server.take(), std::mem::take(&mut self.held))))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.is_over || self.held.is_empty() || self.client.is_released.get() {
            return;
        }
        let kept = (std::mem::take(&mut self.held), self.server.take());
        let until = self.client.kept_until();
        let lingering = Lingering::one_more(&self.pool.lingering);
        let stream = self.connection.take().filter(|_| lingering.is_some());
        tokio::task::spawn_local(async move {
            match stream {
                Some(connection) => {
                    let (stream, _) = connection.into_stream();
                    let left = until.saturating_duration_since(timers::now());
                    // Over it, nothing more can be sent or read.
                    let _late = timeout(left, server_is_done(stream)).await;
                }
                None => timers::sleep_until(until).await,
            }
            drop((kept, lingering));
        });
    }
}

/// A request that is kept after its client has left, while there are not too many.
struct Lingering(Rc<Cell<usize>>);

impl Lingering {
    fn one_more(count: &Rc<Cell<usize>>) -> Option<Self> {
        let more = Some(count.get().saturating_add(1)).filter(|more| *more <= MOST_LINGERING)?;
        count.set(more);
        Some(Self(Rc::clone(count)))
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// Half-closes a connection, and waits until the server has closed its side. What it sends meanwhile is discarded, up to a bound: a
/// server that is still writing then learns at its next write that the connection is closed.
async fn server_is_done(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let (mut left, mut piece) = (bounds::LINGER_BYTES, [0; 1024]);
    while left > 0 {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(read) => left = left.saturating_sub(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::after;
    use tokio::io::duplex;

    /// The server works for seven seconds after the client has left, and then closes its side.
    #[tokio::test(start_paused = true)]
    async fn a_server_is_done_when_it_closes_its_side() {
        let (ours, mut server) = duplex(64);
        let start = timers::now();
        let serving = async {
            assert_eq!(server.read(&mut [0; 9]).await.unwrap(), 0, "it sees the half-close");
            timers::sleep(Duration::from_secs(7)).await;
            server.write_all(&[b'x'; 1_000]).await.unwrap();
            drop(server);
        };
        tokio::join!(server_is_done(ours), serving);
        assert_eq!(timers::since(start).as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_goes_on_writing_is_not_read_for_ever() {
        let (ours, mut server) = duplex(1024);
        let writing = async {
            let mut written = 0;
            while server.write_all(&[b'x'; 1024]).await.is_ok() {
                written += 1024;
            }
            written
        };
        let ((), written) = tokio::join!(server_is_done(ours), writing);
        assert!((bounds::LINGER_BYTES..bounds::LINGER_BYTES + 4 * 1024).contains(&written));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_kept_for_30_seconds_after_the_client_left() {
        let client = ClientPresence::default();
        client.leaves();
        timers::sleep(Duration::from_secs(4)).await;
        assert_eq!(client.kept_until(), after(Duration::from_secs(26)));
        let still_there = ClientPresence::default();
        assert_eq!(still_there.kept_until(), after(AFTER_LEAVING));
    }
}
