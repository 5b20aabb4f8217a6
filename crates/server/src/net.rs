//! Listeners and connections: who may come in, on which thread they are served, and how all of it ends.
//!
//! ```text
//!   listener ──accept──► room for one more? ──► a worker, in turn ──► a task for the connection
//!                        └ no: closed, counted
//! ```
//!
//! A worker is a thread with a runtime of its own; a connection stays with its worker, so nothing that
//! belongs to it is shared or locked. Work is handed out in turn, because hashing few connections to few
//! workers leaves one of them idle.

mod budget;
mod door;
mod files;
mod guard;
mod http1;
mod http2;
mod input;
mod line;
mod strangers;
mod stream;
mod turns;
mod worker;

pub(crate) use budget::{Account, Budget, Hold};
pub(crate) use door::{Caps, Door, Trusts};
pub(crate) use files::{Division, Files, kept, raise_limit};
pub(crate) use http1::{HeadError, Most};
pub(crate) use http2::{Held, Untaken, Work, read_over};
pub(crate) use line::{Line, Woken};
pub(crate) use stream::Stream;
pub(crate) use turns::{OpenBatch, PIECE, Turns};
pub(crate) use worker::{Fronts, Workers};

use crate::backend::Backend;
use crate::bounds;
use crate::front::{Front, resp};
use crate::metrics::{Metrics, Refused};
use door::Slot;
use http1::{Connection, First};
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tidegate::Clock;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How long somebody may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// For the TLS handshake.
    pub(crate) handshake: Duration,
    /// For the head of a request, from its first byte.
    pub(crate) head: Duration,
    /// For the body of a request, and for taking an answer.
    pub(crate) body: Duration,
    /// Between requests.
    pub(crate) idle: Duration,
}

/// Which versions of HTTP a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    One,
    OneAndTwo,
}

/// How much a connection of HTTP/2 may have going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    /// At once.
    pub(crate) most: u32,
    /// Given up by the client before they were looked at.
    pub(crate) pending_resets: usize,
    /// All header fields of one.
    pub(crate) head_bytes: usize,
    /// Bytes of each that do not count.
    pub(crate) uncounted: usize,
    /// Bytes on their way, on a stream and in all.
    pub(crate) window: u32,
}

/// What the connections of one listener on one thread share.
pub(crate) struct Place {
    pub(crate) timeouts: Timeouts,
    pub(crate) versions: Versions,
    pub(crate) streams: Streams,
    pub(crate) metrics: Arc<Metrics>,
    /// The queue for long work, which all listeners of a worker share.
    pub(crate) turns: Rc<Turns>,
    budget: Arc<Budget>,
    tls: Option<TlsAcceptor>,
    date: Cell<[u8; DATE]>,
}

/// The end of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drain {
    /// No new connections; idle ones are closed, the others finish.
    pub(crate) begun: CancellationToken,
    /// The same for those who look often. It is set before anybody is woken.
    has_begun: Arc<AtomicBool>,
    /// Whoever is still here is cut off.
    pub(crate) over: CancellationToken,
}

/// The length of `Sun, 06 Nov 1994 08:49:37 GMT`.
const DATE: usize = 29;
/// How often the date in answers is written anew.
const DATE_EVERY: Duration = Duration::from_millis(500);

/// Serves a connection to its end.
pub(crate) async fn serve<S: Backend>(
    stream: TcpStream,
    peer: IpAddr,
    slot: &Slot,
    front: Rc<Front<S>>,
    place: Rc<Place>,
    drain: Drain,
) {
    // A connection that breaks is its client's business, and there is nobody to tell.
    let _: io::Result<()> = async {
        let account = place.account(slot);
        let Some(stream) = opened(stream, &place, &drain).await else { return Ok(()) };
        let web = match &*front {
            Front::Web(web) => web,
            Front::Resp(handler) => {
                return resp::serve(stream, (peer, account), handler, &place, &drain).await;
            }
            Front::Grpc(_) => {
                return http2::serve_grpc(stream, &account, &front, &place, &drain).await;
            }
        };
        let whose = (peer, slot, Rc::clone(&account));
        let mut connection = Connection::new(stream, whose, web, &place, &drain);
        match connection.first().await? {
            First::One => connection.serve().await,
            First::Nothing => Ok(()),
            First::Two if place.versions == Versions::One => {
                place.metrics.refused(Refused::NoHttp);
                Ok(())
            }
            First::Two => {
                let (stream, read) = connection.into_parts();
                http2::serve((stream, read), (peer, &account), &front, &place, &drain).await
            }
        }
    }
    .await;
}

/// The connection as its listener speaks; `None` when the two sides could not agree.
async fn opened(stream: TcpStream, place: &Place, drain: &Drain) -> Option<Stream> {
    let Some(acceptor) = &place.tls else { return Some(Stream::Plain(stream)) };
    let stopped = async {
        drain.begun.cancelled().await;
        sleep(line::LINGER).await;
    };
    tokio::select! {
        opened = Stream::under_tls(stream, acceptor, place.timeouts.handshake) => match opened {
            Ok(stream) => Some(stream),
            Err(_) => {
                place.metrics.refused(Refused::Handshake);
                None
            }
        },
        () = stopped => None,
    }
}

/// So much later than now.
pub(crate) fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now)
}

// === impl Streams ===

impl Streams {
    const OF_STRANGERS: Self = Self {
        most: bounds::STREAMS,
        pending_resets: bounds::PENDING_RESETS,
        head_bytes: bounds::HEADER_BLOCK,
        uncounted: 0,
        window: bounds::WINDOW,
    };
    const OF_PROXIES: Self = Self {
        most: bounds::GRPC_STREAMS,
        pending_resets: bounds::GRPC_PENDING_RESETS,
        head_bytes: bounds::GRPC_HEADER_BLOCK,
        uncounted: bounds::GRPC_UNCOUNTED,
        window: bounds::GRPC_WINDOW,
    };
}

// === impl Place ===

impl Place {
    pub(crate) fn new(
        timeouts: Timeouts,
        versions: Versions,
        (metrics, budget): (Arc<Metrics>, Arc<Budget>),
    ) -> Self {
        let date = Cell::new([b' '; DATE]);
        let (streams, turns) = (Streams::OF_STRANGERS, Rc::new(Turns::new(true)));
        Self { timeouts, versions, streams, metrics, budget, turns, tls: None, date }
    }

    /// The same, with the queue for long work that its worker has.
    pub(crate) fn taking(self, turns: &Rc<Turns>) -> Self {
        Self { turns: Rc::clone(turns), ..self }
    }

    /// What somebody who was let in holds: nothing yet.
    fn account(&self, slot: &Slot) -> Rc<Account> {
        Account::new(Arc::clone(&self.budget), slot.bytes_of_source())
    }

    /// Connections are those of a proxy that asks for many.
    pub(crate) fn for_proxies(self) -> Self {
        Self { streams: Streams::OF_PROXIES, ..self }
    }

    /// Connections are under TLS, if they are to be.
    pub(crate) fn under(self, tls: Option<TlsAcceptor>) -> Self {
        Self { tls, ..self }
    }

    pub(crate) fn date(&self) -> [u8; DATE] {
        self.date.get()
    }

    /// Keeps the date current, for ever.
    pub(crate) async fn keep_date(&self, clock: &Clock) {
        let mut ticks = tokio::time::interval(DATE_EVERY);
        loop {
            // Before the first tick, which takes a moment: no answer is without a date.
            let since = Duration::from_nanos(clock.now().calendar.as_nanos());
            let now = SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH);
            if let Ok(date) = httpdate::fmt_http_date(now).as_bytes().try_into() {
                self.date.set(date);
            }
            ticks.tick().await;
        }
    }
}

// === impl Drain ===

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
