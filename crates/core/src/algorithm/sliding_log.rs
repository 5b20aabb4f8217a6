//! # Sliding log: every take, remembered
//!
//! ## The idea
//! Write down the time and cost of everything that passed. What is older than a period no longer
//! counts; the rest, added up, is what was used. Nothing is estimated.
//!
//! ```text
//!                  └─────────── W ───────────┘ now
//!   ──×───×──────────×────×──×───────────×───┼──►
//!     gone            └── these four count ──┘
//! ```
//!
//! ## The formula
//! A take of cost `n` at `t` passes iff `Σ costs taken in (t − W, t] + n ≤ L`. Refused takes are not
//! written down, so the log has at most `L` entries (twice that in debt), one per take whatever it costs.
//!
//! ## A worked example
//! Two messages a second; `m1`…`m5` come at 0.3, 0.4, 1.1, 1.2 and 1.5 s. `m1` counts until 1.3 s and
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
//! Times are kept to a millionth of the period, rounded up, so that nothing is freed early. An entry
//! is the distance to the one before it, doubled, plus 1 when a cost other than 1 follows; both as
//! numbers of 7 bits a byte. A log of 500 an hour, evenly used, takes two bytes a hit.
//!
//! ```text
//!   first: u64 │ span: u32 │ total: u32 │ entries: [distance·2 + has_cost] [cost] …
//! ```
//!
//! ## Step
//! Take: drop the entries that are a period old, then append. An entry is never written before the
//! newest one, whatever the clock says. Give back: remove the entry of that time and cost. When
//! the newest entry lies ahead of now by more than the tolerance, all that lie ahead become one entry of now.
//!
//! ## What it does not promise
//! Little memory: it grows with the limit, so limits above 10,000 are refused. Nor constant time:
//! a refusal reads the log until enough is freed.

use super::TOLERANCE;
use crate::ratio::Ratio;
use crate::state::State;
use crate::state_contents::StateContents;
use crate::time::{Span, Timestamp};
use crate::varint;

/// Times are kept to this fraction of the period.
const STEPS: u64 = 1_000_000;

/// The takes of one key.
///
/// ```
/// use tidegate_core::algorithm::sliding_log::Log;
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
/// let limit = Limit::new(9, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
/// let mut written = Written::empty(&limit);
/// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
/// let State::Log(log) = written.state else { panic!() };
/// assert_eq!(log.total(), 4);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The step of the oldest entry.
    first: u64,
    /// From the oldest to the newest entry, in steps.
    span: u32,
    /// The sum of all costs.
    total: u32,
    /// The entries, oldest first.
    entries: Vec<u8>,
}

/// One take, as it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// When, in steps.
    step: u64,
    cost: u64,
    /// Where the next entry begins.
    end: usize,
}

/// What the limit is compiled into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// One step in so many nanoseconds: a millionth of the period, rounded up.
    steps: Ratio,
    window: Span,
}

impl Shape {
    pub(crate) fn new(window: u64) -> Option<Self> {
        let steps = Ratio::new(1, window.div_ceil(STEPS))?;
        Some(Self { steps, window: Span::from_nanos(window) })
    }

    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        let State::Log(log) = state else { return 0 };
        let gone: u64 = log.before(self.first_kept(now)).map(|entry| entry.cost).sum();
        u64::from(log.total).saturating_sub(gone)
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, at_most: u64) -> Option<Span> {
        let State::Log(log) = state else { return Some(Span::ZERO) };
        let mut left = u64::from(log.total);
        if left <= at_most {
            return Some(Span::ZERO);
        }
        if at_most == 0 {
            // All must be gone: that is when the newest is, and no need to read the others.
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

    /// The state of another shape, under this one. Equal periods keep their entries.
    pub(crate) fn adopt(&self, other: &Self, state: &State, now: Timestamp) -> State {
        if self == other {
            return state.clone();
        }
        let mut adopted = State::Empty;
        match other.used(state, now) {
            0 => {}
            used => _ = self.add(&mut adopted, now, used),
        }
        adopted
    }

    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        if let State::Log(log) = state {
            log.drop_before(self.first_kept(now));
            if log.entries.is_empty() {
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

    /// The step that a take now is written under, rounded up.
    fn step(&self, now: Timestamp) -> u64 {
        now.as_nanos().div_ceil(self.steps.den())
    }

    /// The first instant of a step.
    fn start(&self, step: u64) -> Option<Timestamp> {
        self.steps.first(step).map(Timestamp::from_nanos)
    }

    /// The oldest step that still counts: an entry at `s` is free from `s + W` on.
    fn first_kept(&self, now: Timestamp) -> u64 {
        match now.as_nanos().checked_sub(self.window.as_nanos()) {
            Some(horizon) => self.steps.floor(horizon).saturating_add(1),
            None => 0,
        }
    }
}

// === impl Log ===

impl Log {
    /// The sum of all costs that are written down.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
    /// let limit = Limit::new(9, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
    /// let mut written = Written::empty(&limit);
    /// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
    /// assert!(matches!(written.state, State::Log(log) if log.total() == 4));
    /// ```
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.len().saturating_add(16) // first, span and total
    }

    pub(crate) fn remembered(&self) -> StateContents {
        StateContents::Log(self.entries().map(|entry| (entry.step, entry.cost)).collect())
    }

    /// The log that says this.
    pub(crate) fn remember(entries: &[(u64, u64)]) -> State {
        let mut log = Self::default();
        for (step, cost) in entries {
            log.append(*step, *cost);
        }
        if log.entries.is_empty() { State::Empty } else { State::Log(Box::new(log)) }
    }

    /// As bytes; the entries already are.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        for number in [self.first, u64::from(self.span), u64::from(self.total)] {
            varint::encode(bytes, number);
        }
        bytes.extend_from_slice(&self.entries);
    }

    /// What [`write`](Self::write) wrote.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (first, at) = varint::decode(bytes, 0)?;
        let (span, at) = varint::decode(bytes, at)?;
        let (total, at) = varint::decode(bytes, at)?;
        let entries = bytes.get(at..)?.to_vec();
        Some(Self {
            first,
            span: u32::try_from(span).ok()?,
            total: u32::try_from(total).ok()?,
            entries,
        })
    }

    fn newest(&self) -> u64 {
        self.first.saturating_add(u64::from(self.span))
    }

    /// Writes a take down, not before the newest one; answers the step it is written under.
    fn append(&mut self, step: u64, cost: u64) -> u64 {
        if self.entries.is_empty() {
            self.first = step;
        }
        let distance = u32::try_from(step.saturating_sub(self.newest())).unwrap_or(u32::MAX);
        encode(&mut self.entries, u64::from(distance), cost);
        self.span = self.span.saturating_add(distance);
        self.total = self.total.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        self.newest()
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        let mut step = self.first;
        let mut at = 0;
        core::iter::from_fn(move || {
            let (head, cost_at) = varint::decode(&self.entries, at)?;
            step = step.saturating_add(head >> 1);
            let (cost, end) =
                if head & 1 == 0 { (1, cost_at) } else { varint::decode(&self.entries, cost_at)? };
            at = end;
            Some(Entry { step, cost, end })
        })
    }

    /// The entries older than a step.
    fn before(&self, step: u64) -> impl Iterator<Item = Entry> {
        self.entries().take_while(move |entry| entry.step < step)
    }

    /// Forgets the entries older than a step.
    fn drop_before(&mut self, step: u64) {
        if self.first >= step {
            return;
        }
        let Some(next) = self.entries().find(|entry| entry.step >= step) else {
            *self = Self::default();
            return;
        };
        let gone: u64 = self.before(step).map(|entry| entry.cost).sum();
        let mut entries = Vec::with_capacity(self.entries.len());
        encode(&mut entries, 0, next.cost);
        entries.extend_from_slice(self.entries.get(next.end..).unwrap_or_default());
        *self = Self {
            first: next.step,
            span: u32::try_from(self.newest().saturating_sub(next.step)).unwrap_or(u32::MAX),
            total: self.total.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX)),
            entries,
        };
    }

    /// Takes a cost out of the entries of one step, the newest first. They expire together, so it does not matter which of them
    /// it was. If they have less than the cost, the take that is given back is not among them, and nothing is removed.
    fn remove(&mut self, step: u64, cost: u64) {
        let of_step = self.entries().filter(|entry| entry.step == step).map(|entry| entry.cost);
        let Some(mut stays) = of_step.sum::<u64>().checked_sub(cost) else { return };
        let mut rest = Self::default();
        for entry in self.entries() {
            let kept = if entry.step == step { entry.cost.min(stays) } else { entry.cost };
            if entry.step == step {
                stays = stays.saturating_sub(kept);
            }
            if kept > 0 {
                rest.append(entry.step, kept);
            }
        }
        *self = rest;
    }
}

fn encode(entries: &mut Vec<u8>, distance: u64, cost: u64) {
    let has_cost = u64::from(cost != 1);
    varint::encode(entries, (distance << 1) | has_cost);
    if cost != 1 {
        varint::encode(entries, cost);
    }
}
