//! What the server counts, and how operators read it.
//!
//! ```text
//!   worker 0 ── tally ─┐
//!   worker 1 ── tally ─┼──► summed when somebody looks ──► /metrics
//!   admin    ── tally ─┘
//! ```
//!
//! A tally has one writer, so counting a decision is a load and a store, and no line of memory travels
//! between cores. Labels are fixed by the program and by the names of rules: nothing that a client sends can
//! make a new one.

mod encode;
mod tally;

pub(crate) use tally::Tally;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_store::{Gauges, StoreReport};

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Locked when a tally is made and when somebody looks.
    tallies: Mutex<Vec<Arc<Tally>>>,
    refused: [AtomicU64; Refused::ALL.len()],
    reloads: [AtomicU64; Reload::ALL.len()],
    panics: AtomicU64,
    restarts: AtomicU64,
    store_errors: AtomicU64,
    lines_left_out: AtomicU64,
}

/// Why a connection or a request was refused before it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Other protocols, noise.
    NoHttp,
    /// Other protocols where TLS is spoken, clients without a certificate, silence.
    Handshake,
    Malformed,
    TooLarge,
    /// Not finished in time.
    Late,
    /// Ended in the middle of a request.
    CutShort,
    /// An answer that nobody took.
    Unread,
    /// No room for another connection.
    Full,
    /// No room for so many bytes.
    NoRoom,
    /// Not finished when the server had to stop.
    CutOff,
    /// HTTP where Redis clients ask.
    OtherProtocol,
    /// No token, or a wrong one.
    Unauthorized,
    /// A foreign page or host.
    Foreign,
    /// A call of a proxy that no rule can decide.
    Undecided,
}

/// What became of a new policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    Applied,
    Refused,
}

/// What is true at the moment somebody looks.
pub(crate) struct GaugeReadings {
    pub(crate) version: u64,
    /// The version of the rule files, if they decide over gRPC.
    pub(crate) rules_version: Option<u64>,
    pub(crate) memory: Option<Gauges>,
    /// Bytes that are held for clients, and that may be.
    pub(crate) held: (usize, usize),
    /// How the servers of the store are, if it has some.
    pub(crate) store: Option<StoreReport>,
    /// How many nodes share it.
    pub(crate) nodes: u32,
}

impl Metrics {
    pub(crate) fn tally(&self, front: &'static str) -> Arc<Tally> {
        let tally = Arc::new(Tally::new(front));
        self.all_tallies().push(Arc::clone(&tally));
        tally
    }

    pub(crate) fn refused(&self, why: Refused) {
        add(self.refused.get(Refused::ALL.iter().position(|(one, _)| *one == why).unwrap_or(0)));
    }

    pub(crate) fn reloaded(&self, result: Reload) {
        add(self.reloads.get(Reload::ALL.iter().position(|(one, _)| *one == result).unwrap_or(0)));
    }

    pub(crate) fn panicked(&self) {
        add(Some(&self.panics));
    }

    /// A task had to begin anew.
    pub(crate) fn restarted(&self) {
        add(Some(&self.restarts));
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn lines_left_out(&self, count: u64) {
        self.lines_left_out.fetch_add(count, Ordering::Relaxed);
    }

    /// Requests for which the store gave no answer, as the limiter counts them.
    pub(crate) fn set_store_errors(&self, count: u64) {
        self.store_errors.store(count, Ordering::Relaxed);
    }

    /// All of it as text of `OpenMetrics`.
    pub(crate) fn text(&self, moment: &GaugeReadings) -> String {
        encode::text(self, moment)
    }

    fn all_tallies(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Tally>>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(counter: Option<&AtomicU64>) {
    if let Some(counter) = counter {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Refused {
    const ALL: [(Self, &'static str); 14] = [
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
    ];
}

impl Reload {
    const ALL: [(Self, &'static str); 2] = [(Self::Applied, "applied"), (Self::Refused, "refused")];
}
