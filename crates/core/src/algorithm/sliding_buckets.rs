//! # Sliding window with sub-windows: one counter for each minute of the hour
//!
//! ## The idea
//! Divide the period into `n` sub-windows and count the hits of each. The hits in use are those of the running sub-window
//! and of the `n` complete ones before it. Together these cover at least the last period, wherever now is within the
//! running sub-window.
//!
//! ```text
//!   n = 4     ┌────┬────┬────┬────┬────┐
//!             │ 2  │ 0  │ 5  │ 1  │ 3 ▸│ now            sum = 11
//!             └────┴────┴────┴────┴────┘
//!               └──────── W ────────┘     at least the last W, at most W and one sub-window
//! ```
//!
//! ## The formula
//! With `i = ⌊t · n / W⌋`, a hit of cost `c` passes iff `Σ counts[i−n ..= i] + c ≤ L`.
//!
//! ## A worked example
//! 500 per hour in 60 sub-windows. All 500 arrive in minute 0. They count until the end of minute 60 and are free again
//! when minute 61 begins:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Retry, Span, Timestamp, Written};
//! let limit = Limit::new(500, Span::from_secs(3600), Algorithm::SLIDING_BUCKETS).unwrap();
//! let minute = |n: u64| Timestamp::from_nanos(n * 60_000_000_000);
//! let mut written = Written::empty(&limit);
//! limit.take(&mut written, &Ask::new(minute(0), Cost::new(500)));
//! let one = limit.decide(&written, &Ask::new(minute(60), Cost::ONE));
//! assert_eq!(one.outcome, Outcome::Deny(Retry::After(Span::from_secs(60))));
//! assert_eq!(limit.peek(&written, minute(61)).remaining, 500);
//! assert_eq!(written.state.bytes(), 16 + 2 * 61); // a hash of 60 counters, as in textbooks, takes 1,600
//! ```
//!
//! ## State
//! The number of the newest sub-window, the sum, and a ring buffer of `n + 1` counters ([`Buckets`]). A counter has two
//! bytes, or four if twice the limit, or the limit with its headroom, exceeds 65,535.
//!
//! ## Step
//! *Take* clears the counters that have left the period and adds to the running one. *Give back* subtracts from the
//! sub-window in which the cost was counted, while that one still counts. *After a clock step back*, if the newest
//! sub-window is ahead of now by more than the tolerance, all counts are added to the running sub-window.
//!
//! ## What it does not promise
//! A client that sends as much as it can gets slightly less than `L` per `W`: a hit is freed up to one sub-window late, so
//! full demand gets `L` per `W · (n+1)/n`. Never more than `L` pass in any `W`.

pub use crate::state::Buckets;

use super::TOLERANCE;
use crate::ratio::Ratio;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// A limit, compiled for this algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingBuckets {
    /// `n` sub-windows in `W` nanoseconds.
    windows: Ratio,
    /// Whether counters need four bytes.
    wide: bool,
}

impl SlidingBuckets {
    pub(crate) fn new(window: u64, buckets: u16, most: u64) -> Option<Self> {
        let windows = Ratio::new(u64::from(buckets), window)?;
        Some(Self { windows, wide: most > u64::from(u16::MAX) })
    }

    /// How long a sub-window is, rounded down.
    pub(crate) fn length(&self) -> Span {
        Span::from_nanos(self.windows.den().checked_div(self.windows.num()).unwrap_or(0))
    }

    /// When a sub-window ends.
    pub(crate) fn end(&self, number: u64) -> Option<Timestamp> {
        self.windows.first(number.checked_add(1)?).map(Timestamp::from_nanos)
    }

    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        let State::Buckets(buckets) = state else { return 0 };
        let gone: u64 = buckets.leaving(self.current(now)).map(|number| buckets.get(number)).sum();
        buckets.sum().saturating_sub(gone)
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, at_most: u64) -> Option<Span> {
        let State::Buckets(buckets) = state else { return Some(Span::ZERO) };
        let mut left = buckets.sum();
        if left <= at_most {
            return Some(Span::ZERO);
        }
        let mut numbers = buckets.oldest()..=buckets.newest();
        let frees_enough = |number: &u64| {
            left = left.saturating_sub(buckets.get(*number));
            left <= at_most
        };
        // For 0, all counts must be gone. The newest count goes last, so search for it from the newest end.
        let number = if at_most == 0 {
            numbers.rfind(|number| buckets.get(*number) > 0)
        } else {
            numbers.find(frees_enough)
        };
        let Some(number) = number else { return Some(Span::ZERO) };
        let freed_by = number.checked_add(self.windows.num())?.checked_add(1)?;
        Some(Timestamp::from_nanos(self.windows.first(freed_by)?).since(now))
    }

    /// Counts hits and returns the number of the sub-window in which they are counted.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, hits: u64) -> u64 {
        let current = self.current(now);
        if !matches!(state, State::Buckets(_)) {
            *state = State::Buckets(Box::new(self.fresh(current)));
        }
        let State::Buckets(buckets) = state else { return current };
        buckets.advance(current);
        buckets.add(hits);
        buckets.newest()
    }

    pub(crate) fn remove(&self, state: &mut State, now: Timestamp, mark: u64, hits: u64) {
        if let State::Buckets(buckets) = state {
            buckets.advance(self.current(now));
            buckets.remove(mark, hits);
        }
        self.settle(state, now);
    }

    /// The state that `old` wrote, converted to this limit. Sub-windows of the same length keep their counts.
    pub(crate) fn adopt(&self, old: &Self, state: &State, now: Timestamp) -> State {
        let State::Buckets(counted) = state else { return State::Empty };
        if self.windows != old.windows {
            let mut adopted = State::Empty;
            self.add(&mut adopted, now, old.used(state, now));
            return adopted;
        }
        let mut counted = counted.clone();
        counted.advance(old.current(now));
        let mut adopted = self.fresh(counted.newest());
        adopted.copy_from(&counted);
        State::Buckets(Box::new(adopted))
    }

    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        if let State::Buckets(buckets) = state {
            buckets.advance(self.current(now));
            if buckets.sum() == 0 {
                *state = State::Empty;
            }
        }
    }

    pub(crate) fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        let State::Buckets(buckets) = state else { return false };
        let start = self.windows.first(buckets.newest()).unwrap_or(u64::MAX);
        Timestamp::from_nanos(start).since(now) > TOLERANCE
    }

    pub(crate) fn mend(&self, state: &mut State, now: Timestamp) {
        let State::Buckets(buckets) = state else { return };
        let sum = buckets.sum();
        *state = State::Empty;
        self.add(state, now, sum);
    }

    /// The state with these counts. Counts outside the ring are dropped.
    pub(crate) fn pack(&self, newest: u64, counts: &[(u64, u64)]) -> State {
        self.fresh(newest).filled_with(counts)
    }

    pub(crate) fn current(&self, now: Timestamp) -> u64 {
        self.windows.floor(now.as_nanos())
    }

    fn fresh(&self, newest: u64) -> Buckets {
        let ring = usize::try_from(self.windows.num()).unwrap_or(0).saturating_add(1);
        Buckets::new(ring, self.wide, newest)
    }
}
