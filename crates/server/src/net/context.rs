//! The context of a listener on one worker: what its connections there share. Timeouts, bounds, the connection budget, TLS,
//! the queue for long work and the current `date`.

use super::budget::{Account, Budget};
use super::listener::{IsTrustedProxy, Slot};
use super::long_work::LongWorkQueue;
use crate::bounds;
use crate::metrics::Metrics;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidegate::Clock;
use tokio_rustls::TlsAcceptor;

/// How long a client may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// For the TLS handshake.
    pub(crate) handshake: Duration,
    /// For the head of a request, from its first byte.
    pub(crate) head: Duration,
    /// For the body of a request, and for reading an answer.
    pub(crate) body: Duration,
    /// Until the next request begins.
    pub(crate) idle: Duration,
}

/// Which versions of HTTP a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    One,
    OneAndTwo,
}

/// The bounds of an HTTP/2 connection and its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    /// Concurrent streams.
    pub(crate) most: u32,
    /// Streams that the client has reset before the server looked at them.
    pub(crate) pending_resets: usize,
    /// Bytes of all header fields of one request.
    pub(crate) head_bytes: usize,
    /// Bytes of each stream that do not count against the connection budget.
    pub(crate) uncounted: usize,
    /// The flow control window, of a stream and of the connection.
    pub(crate) window: u32,
}

/// What the connections of one listener share on one worker.
pub(crate) struct ListenerContext {
    pub(crate) timeouts: Timeouts,
    pub(crate) versions: Versions,
    pub(crate) streams: Streams,
    pub(crate) metrics: Arc<Metrics>,
    /// The queue for long work, which all listeners of a worker share.
    pub(crate) long_work: Rc<LongWorkQueue>,
    budget: Arc<Budget>,
    pub(super) tls: Option<TlsAcceptor>,
    /// Which peers may begin with a PROXY header. `None`: no connection begins with one.
    pub(super) load_balancers: Option<IsTrustedProxy>,
    date: Cell<[u8; DATE]>,
}

/// The length of `Sun, 06 Nov 1994 08:49:37 GMT`.
const DATE: usize = 29;
/// How often the date in answers is updated.
const DATE_EVERY: Duration = Duration::from_millis(500);

// === impl Streams ===

impl Streams {
    const OF_CLIENTS: Self = Self {
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

// === impl ListenerContext ===

impl ListenerContext {
    pub(crate) fn new(
        timeouts: Timeouts,
        versions: Versions,
        (metrics, budget): (Arc<Metrics>, Arc<Budget>),
    ) -> Self {
        let date = Cell::new([b' '; DATE]);
        let (streams, long_work) = (Streams::OF_CLIENTS, Rc::new(LongWorkQueue::new(true)));
        Self {
            timeouts,
            versions,
            streams,
            metrics,
            budget,
            long_work,
            tls: None,
            load_balancers: None,
            date,
        }
    }

    /// Uses the worker's queue for long work.
    pub(crate) fn with_queue(self, long_work: &Rc<LongWorkQueue>) -> Self {
        Self { long_work: Rc::clone(long_work), ..self }
    }

    /// A new account for an accepted connection.
    pub(super) fn account(&self, slot: &Slot) -> Rc<Account> {
        Account::new(Arc::clone(&self.budget), slot.bytes_of_source())
    }

    /// Uses the bounds for proxies, which send the requests of many clients over one connection.
    pub(crate) fn for_proxies(self) -> Self {
        Self { streams: Streams::OF_PROXIES, ..self }
    }

    /// Uses TLS if an acceptor is given.
    pub(crate) fn with_tls(self, tls: Option<TlsAcceptor>) -> Self {
        Self { tls, ..self }
    }

    /// Requires a PROXY header of every connection, which only these peers may send.
    pub(crate) fn behind(self, load_balancers: Option<IsTrustedProxy>) -> Self {
        Self { load_balancers, ..self }
    }

    pub(crate) fn date(&self) -> [u8; DATE] {
        self.date.get()
    }

    /// Keeps the date current; never returns.
    pub(crate) async fn keep_date(&self, clock: &Clock) {
        let mut ticks = tokio::time::interval(DATE_EVERY);
        loop {
            // Set before the first tick is awaited, so that every answer has a date.
            let since = Duration::from_nanos(clock.now().calendar.as_nanos());
            let now = SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH);
            if let Ok(date) = httpdate::fmt_http_date(now).as_bytes().try_into() {
                self.date.set(date);
            }
            ticks.tick().await;
        }
    }
}
