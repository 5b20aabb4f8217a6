//! # Sliding log: every take is remembered
//!
//! ## The idea
//! Write down the time and cost of everything that passed. Entries older than a period no longer count. The sum of the
//! others is what is in use. Nothing is estimated.
//!
//! ```text
//!                  └─────────── W ───────────┘ now
//!   ──×───×──────────×────×──×───────────×───┼──►
//!     expired         └── these four count ──┘
//! ```
//!
//! ## The formula
//! A take of cost `n` at `t` passes iff `Σ costs taken in (t − W, t] + n ≤ L`. Refused takes are not written down, so the
//! log has at most `L` entries (`2L` in debt): one per take, whatever its cost.
//!
//! ## A worked example
//! Two messages per second; `m1`…`m5` arrive at 0.3, 0.4, 1.1, 1.2 and 1.5 s. `m1` counts until 1.3 s and
//! `m2` until 1.4 s, so `m3` and `m4` are refused and `m5` passes:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
//! let limit = Limit::new(2, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
//! let mut written = Written::empty(&limit);
//! let passes = [300, 400, 1_100, 1_200, 1_500].map(|millis| {
//!     let now = Timestamp::from_nanos(millis * 1_000_000);
//!     limit.take(&mut written, &Ask::new(now, Cost::ONE)).decision.passes()
//! });
//! assert_eq!(passes, [true, true, false, false, true]);
//! ```
//!
//! ## State
//! The entries, delta-encoded ([`Log`]). Times are kept in steps of a millionth of the period, rounded up, so that nothing
//! is freed early. An evenly used log of 500 per hour takes two bytes per hit.
//!
//! ## Step
//! *Take* drops the entries that are a period old and appends one. An entry is never written before the newest one,
//! whatever the clock says. *Give back* removes the entry with that time and cost. *After a clock step back*, if the newest
//! entry is ahead of now by more than the tolerance, all entries ahead of now are merged into one entry at now.
//!
//! ## What it does not promise
//! Little memory: the log grows with the limit, so limits above 10,000 are refused. Nor constant time: a refusal reads the
//! log until it finds when enough is freed.

pub use crate::state::Log;

use super::TOLERANCE;
use crate::ratio::Ratio;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// Times are kept in steps of this fraction of the period.
const STEPS: u64 = 1_000_000;

/// A limit, compiled for this algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingLog {
    /// One step in this many nanoseconds: a millionth of the period, rounded up.
    steps: Ratio,
    window: Span,
}

impl SlidingLog {
    pub(crate) fn new(window: u64) -> Option<Self> {
        let steps = Ratio::new(1, window.div_ceil(STEPS))?;
        Some(Self { steps, window: Span::from_nanos(window) })
    }

    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        let State::Log(log) = state else { return 0 };
        let gone: u64 = log.before(self.first_kept(now)).map(|entry| entry.cost).sum();
        u64::from(log.total()).saturating_sub(gone)
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, at_most: u64) -> Option<Span> {
        let State::Log(log) = state else { return Some(Span::ZERO) };
        let mut left = u64::from(log.total());
        if left <= at_most {
            return Some(Span::ZERO);
        }
        if at_most == 0 {
            // For 0, all entries must expire. The newest expires last, so the others need not be read.
            return Some(self.start(log.newest())?.after(self.window)?.since(now));
        }
        for entry in log.entries() {
            left = left.saturating_sub(entry.cost);
            if left <= at_most {
                return Some(self.start(entry.step)?.after(self.window)?.since(now));
            }
        }
        Some(Span::ZERO)
    }

    /// Appends an entry and returns the step under which it is written.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, cost: u64) -> u64 {
        self.settle(state, now);
        let step = self.step(now);
        if let State::Log(log) = state {
            return log.append(step, cost);
        }
        let mut log = Log::default();
        log.append(step, cost);
        *state = State::Log(Box::new(log));
        step
    }

    pub(crate) fn remove(&self, state: &mut State, now: Timestamp, mark: u64, cost: u64) {
        self.settle(state, now);
        if let State::Log(log) = state {
            log.remove(mark, cost);
        }
        self.settle(state, now);
    }

    /// The state that `old` wrote, converted to this limit. With the same period it keeps its entries.
    pub(crate) fn adopt(&self, old: &Self, state: &State, now: Timestamp) -> State {
        if self == old {
            return state.clone();
        }
        let mut adopted = State::Empty;
        match old.used(state, now) {
            0 => {}
            used => _ = self.add(&mut adopted, now, used),
        }
        adopted
    }

    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        if let State::Log(log) = state {
            log.drop_before(self.first_kept(now));
            if log.is_empty() {
                *state = State::Empty;
            }
        }
    }

    pub(crate) fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        let State::Log(log) = state else { return false };
        let tolerance = TOLERANCE.as_nanos().saturating_add(self.steps.den());
        let newest = self.start(log.newest()).unwrap_or(Timestamp::END);
        newest.since(now) > Span::from_nanos(tolerance)
    }

    pub(crate) fn mend(&self, state: &mut State, now: Timestamp) {
        let State::Log(log) = state else { return };
        let step = self.step(now);
        let mut mended = Log::default();
        let mut ahead = 0u64;
        for entry in log.entries() {
            if entry.step < step {
                mended.append(entry.step, entry.cost);
            } else {
                ahead = ahead.saturating_add(entry.cost);
            }
        }
        mended.append(step, ahead);
        **log = mended;
    }

    /// The step under which a take at `now` is written, rounded up.
    fn step(&self, now: Timestamp) -> u64 {
        now.as_nanos().div_ceil(self.steps.den())
    }

    /// The first instant of a step.
    fn start(&self, step: u64) -> Option<Timestamp> {
        self.steps.first(step).map(Timestamp::from_nanos)
    }

    /// The oldest step that still counts. An entry at `s` is free from `s + W` on.
    fn first_kept(&self, now: Timestamp) -> u64 {
        match now.as_nanos().checked_sub(self.window.as_nanos()) {
            Some(horizon) => self.steps.floor(horizon).saturating_add(1),
            None => 0,
        }
    }
}
