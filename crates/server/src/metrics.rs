//! Metrics: what the server counts, and their text for Prometheus.
//!
//! ```text
//!   worker 0 ── tally ─┐
//!   worker 1 ── tally ─┼──► summed when /metrics is read
//!   admin    ── tally ─┘
//! ```
//!
//! A tally has one writer, so counting a decision is a load and a store, and no cache line moves between cores. The values of
//! labels are fixed by the program, by the names of rules and by the routes file, so a client cannot create new ones.
//! [`Families`] declares each metric once.

mod families;
mod group_tally;
mod single_writer;
mod tally;

pub(crate) use families::Families;
pub(crate) use group_tally::{GroupTally, ProxyAnswer};
pub(crate) use tally::Tally;

use prometheus_client::metrics::counter::Counter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// All counters of the server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Locked when a tally is created and when the metrics are read.
    tallies: Mutex<Vec<Arc<Tally>>>,
    /// The tallies of the proxy's groups, locked as rarely. A tally is gone when its group has left the routes.
    groups: Mutex<Vec<Weak<GroupTally>>>,
    refused: [Counter; Refused::ALL.len()],
    reloads: [Counter; Reload::ALL.len()],
    panics: Counter,
    /// How often a background task panicked and was restarted.
    pub(crate) restarts: Counter,
    pub(crate) lines_left_out: Counter,
    pub(crate) access_lines_dropped: Counter,
    pub(crate) denials_left_out: Counter,
    pub(crate) denial_lines_dropped: Counter,
    pub(crate) recorded_lines: Counter,
    pub(crate) recorded_lines_dropped: Counter,
    /// One for each listener that is open.
    listeners: Mutex<Vec<Arc<ConnectionCount>>>,
}

/// How many connections a listener has, and may have.
#[derive(Debug)]
pub(crate) struct ConnectionCount {
    listener: &'static str,
    most: usize,
    open: AtomicUsize,
}

/// Why a connection or a request was refused before it was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not HTTP.
    NoHttp,
    /// A failed TLS handshake: another protocol, a client without a certificate, or a timeout.
    Handshake,
    Malformed,
    TooLarge,
    /// The request did not arrive in time.
    Late,
    /// The client closed the connection in the middle of a request.
    CutShort,
    /// The client did not read its answer in time.
    Unread,
    /// Too many connections.
    Full,
    /// The connection budget is used up.
    NoRoom,
    /// Not finished when the drain timeout ended.
    CutOff,
    /// HTTP on the RESP listener.
    OtherProtocol,
    /// No token, or a wrong one.
    Unauthorized,
    /// A request to the admin listener from a foreign web page or for a foreign host.
    Foreign,
    /// A gRPC call that no rule can decide.
    Undecided,
    /// No route of the proxy leads to the host and path of the request.
    NoRoute,
    /// A connection without a valid PROXY header, or from a peer that may not send one.
    ProxyHeader,
}

/// The result of loading a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    Applied,
    Refused,
}

impl Metrics {
    pub(crate) fn tally(&self, front: &'static str) -> Arc<Tally> {
        let tally = Arc::new(Tally::new(front));
        self.all_tallies().push(Arc::clone(&tally));
        tally
    }

    /// A tally for one group of the proxy on one worker.
    pub(crate) fn group_tally(&self, group: &str) -> Arc<GroupTally> {
        let tally = Arc::new(GroupTally::new(group));
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(&tally));
        tally
    }

    pub(crate) fn refused(&self, why: Refused) {
        count(&Refused::ALL, &self.refused, &why);
    }

    pub(crate) fn reloaded(&self, result: Reload) {
        count(&Reload::ALL, &self.reloads, &result);
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }

    /// The count of connections of a listener that may have at most so many.
    pub(crate) fn connections(&self, listener: &'static str, most: usize) -> Arc<ConnectionCount> {
        let count = Arc::new(ConnectionCount { listener, most, open: AtomicUsize::new(0) });
        let mut all = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::clone(&count));
        count
    }

    /// What was counted here, apart from the proxy. Those who know other values add theirs.
    pub(crate) fn families(&self) -> Families {
        let mut families = Families::default();
        tally::declare(&self.all_tallies(), &mut families);
        self.declare_refusals(&mut families);
        self.declare_lost_lines(&mut families);
        self.declare_connections(&mut families);
        families
    }

    /// What was counted about the proxy.
    pub(crate) fn declare_proxy(&self, families: &mut Families) {
        group_tally::declare(&self.group_tallies(), families);
        families.counter(
            "tidegate_access_log_lines_dropped",
            "Lines of the access log that were not written, because the disk or the reader of the log was too slow or failed",
            self.access_lines_dropped.get(),
        );
    }

    fn declare_refusals(&self, families: &mut Families) {
        let names = Refused::ALL.iter().map(|(_, name)| [*name]);
        families.counters(
            "tidegate_refused",
            "Connections and requests that were refused before a decision",
            ["reason"],
            names.zip(self.refused.iter().map(Counter::get)),
        );
        let names = Reload::ALL.iter().map(|(_, name)| [*name]);
        families.counters(
            "tidegate_reload",
            "Policies that were loaded or uploaded after the start, by result",
            ["result"],
            names.zip(self.reloads.iter().map(Counter::get)),
        );
        families.counter(
            "tidegate_panics",
            "Requests that failed because of a bug in tidegate (a panic)",
            self.panics.get(),
        );
    }

    fn declare_lost_lines(&self, families: &mut Families) {
        families.counter(
            "tidegate_log_lines_left_out",
            "Log lines that were not written because there were too many of the same kind",
            self.lines_left_out.get(),
        );
        families.counter(
            "tidegate_denial_log_left_out",
            "Refusals without a line in the denial log, because too many keys were refused in their minute",
            self.denials_left_out.get(),
        );
        families.counter(
            "tidegate_denial_log_lines_dropped",
            "Lines of the denial log that were not written, because the disk or the reader of the log was too slow or failed",
            self.denial_lines_dropped.get(),
        );
        families.counter(
            "tidegate_recorded_lines",
            "Decisions that were written to the recording",
            self.recorded_lines.get(),
        );
        families.counter(
            "tidegate_recorded_lines_dropped",
            "Decisions that are missing in the recording, because the disk was too slow or failed",
            self.recorded_lines_dropped.get(),
        );
    }

    fn declare_connections(&self, families: &mut Families) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |one: &Arc<ConnectionCount>| ([one.listener], one.open.load(Ordering::Relaxed));
        families.gauges(
            "tidegate_connections",
            "Open connections of a listener",
            ["listener"],
            listeners.iter().map(open),
        );
        families.gauges(
            "tidegate_max_connections",
            "Connections that a listener may have at most, if enough files may be open",
            ["listener"],
            listeners.iter().map(|one| ([one.listener], one.most)),
        );
    }

    fn all_tallies(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Tally>>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The heads of answers of a group, and the time until them in nanoseconds, over all workers.
    pub(crate) fn first_bytes(&self, group: &str) -> (u64, u64) {
        group_tally::first_bytes(&self.group_tallies(), group)
    }

    fn group_tallies(&self) -> Vec<Arc<GroupTally>> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().filter_map(Weak::upgrade).collect()
    }
}

impl ConnectionCount {
    pub(crate) fn set(&self, open: usize) {
        self.open.store(open, Ordering::Relaxed);
    }
}

/// Counts one of the events that `all` lists in the order of their counters.
fn count<E: PartialEq>(all: &[(E, &str)], counters: &[Counter], event: &E) {
    let known = all.iter().zip(counters).find(|((one, _), _)| one == event);
    debug_assert!(known.is_some(), "an event that has no counter");
    if let Some((_, counter)) = known {
        counter.inc();
    }
}

impl Refused {
    pub(crate) const ALL: [(Self, &'static str); 16] = [
        (Self::NoHttp, "no_http"),
        (Self::Handshake, "handshake"),
        (Self::Malformed, "malformed"),
        (Self::TooLarge, "too_large"),
        (Self::Late, "late"),
        (Self::CutShort, "cut_short"),
        (Self::Unread, "unread"),
        (Self::Full, "full"),
        (Self::NoRoom, "no_room"),
        (Self::CutOff, "cut_off"),
        (Self::OtherProtocol, "other_protocol"),
        (Self::Unauthorized, "unauthorized"),
        (Self::Foreign, "foreign"),
        (Self::Undecided, "undecided"),
        (Self::NoRoute, "no_route"),
        (Self::ProxyHeader, "proxy_header"),
    ];
}

impl Reload {
    const ALL: [(Self, &'static str); 2] = [(Self::Applied, "applied"), (Self::Refused, "refused")];
}
