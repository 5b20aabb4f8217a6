//! What the connections of one listener share on one thread: timeouts, bounds, the budget of bytes, TLS and the date.

use super::budget::{Account, Budget};
use super::door::Slot;
use super::turns::Turns;
use crate::bounds;
use crate::metrics::Metrics;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidegate::Clock;
use tokio_rustls::TlsAcceptor;

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
    pub(super) tls: Option<TlsAcceptor>,
    date: Cell<[u8; DATE]>,
}

/// The length of `Sun, 06 Nov 1994 08:49:37 GMT`.
const DATE: usize = 29;
/// How often the date in answers is written anew.
const DATE_EVERY: Duration = Duration::from_millis(500);

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
    pub(super) fn account(&self, slot: &Slot) -> Rc<Account> {
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
