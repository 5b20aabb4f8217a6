//! # Sliding window, sub-windows: a count for each minute of the hour
//!
//! ## The idea
//! Cut the period into `n` sub-windows and count each. Sum the running one and the `n` whole ones
//! before it: together they cover the last period wherever now lies in the running one.
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
//! 500 an hour in 60 sub-windows. All 500 come in minute 0; they count through minute 60 and are free
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
//! assert_eq!(written.state.bytes(), 16 + 2 * 61); // the textbook's hash of 60 counters: 1,600
//! ```
//!
//! ## State
//! The number of the newest sub-window, the sum, and a ring of `n + 1` counters: two bytes each, or
//! four when twice the limit, or the limit with its headroom, exceeds 65,535.
//!
//! ## Step
//! Take: clear the counters that have left the period, then add to the running one. Give back:
//! subtract from the sub-window it was counted in, while that still counts. Counters that lie ahead of
//! now by more than the tolerance are taken together as the running one's.
//!
//! ## What it does not promise
//! Not quite `L` per `W` to a client that always asks: a hit is freed up to one sub-window late, so
//! full demand gets `L` per `W · (n+1)/n`. Never more than `L` in any `W`, though.

use super::TOLERANCE;
use crate::ratio::Ratio;
use crate::state::State;
use crate::state_contents::StateContents;
use crate::time::{Span, Timestamp};
use crate::varint;

/// The counters of one key.
///
/// ```
/// use tidegate_core::algorithm::sliding_buckets::Buckets;
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
/// let limit = Limit::new(9, Span::from_secs(1), Algorithm::SlidingBuckets { buckets: 2 }).unwrap();
/// let mut written = Written::empty(&limit);
/// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
/// let State::Buckets(buckets) = written.state else { panic!() };
/// assert_eq!(buckets.sum(), 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// The number of the newest sub-window.
    newest: u64,
    /// Of all counters; kept so that most decisions need not add them up.
    sum: u64,
    /// Sub-window `i` is at `i mod (n + 1)`.
    counts: Counts,
}

/// Counters as narrow as the limit allows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Counts {
    Narrow(Box<[u16]>),
    Wide(Box<[u32]>),
}

/// What the limit is compiled into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// `n` sub-windows in `W` nanoseconds.
    windows: Ratio,
    wide: bool,
}

impl Shape {
    pub(crate) fn new(window: u64, buckets: u16, most: u64) -> Option<Self> {
        let windows = Ratio::new(u64::from(buckets), window)?;
        Some(Self { windows, wide: most > u64::from(u16::MAX) })
    }

    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        let State::Buckets(buckets) = state else { return 0 };
        let gone: u64 = buckets.leaving(self.current(now)).map(|number| buckets.get(number)).sum();
        buckets.sum.saturating_sub(gone)
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, at_most: u64) -> Option<Span> {
        let State::Buckets(buckets) = state else { return Some(Span::ZERO) };
        let mut left = buckets.sum;
        if left <= at_most {
            return Some(Span::ZERO);
        }
        let mut numbers = buckets.oldest()..=buckets.newest;
        let frees_enough = |number: &u64| {
            left = left.saturating_sub(buckets.get(*number));
            left <= at_most
        };
        // All must be gone: that is when the newest that counts is, and the newest come last.
        let number = if at_most == 0 {
            numbers.rfind(|number| buckets.get(*number) > 0)
        } else {
            numbers.find(frees_enough)
        };
        let Some(number) = number else { return Some(Span::ZERO) };
        let freed_by = number.checked_add(self.windows.num())?.checked_add(1)?;
        Some(Timestamp::from_nanos(self.windows.first(freed_by)?).since(now))
    }

    pub(crate) fn add(&self, state: &mut State, now: Timestamp, hits: u64) -> u64 {
        let current = self.current(now);
        if !matches!(state, State::Buckets(_)) {
            *state = State::Buckets(Box::new(self.fresh(current)));
        }
        let State::Buckets(buckets) = state else { return current };
        buckets.advance(current);
        let number = buckets.newest;
        buckets.set(number, buckets.get(number).saturating_add(hits));
        buckets.sum = buckets.sum.saturating_add(hits);
        number
    }

    pub(crate) fn remove(&self, state: &mut State, now: Timestamp, mark: u64, hits: u64) {
        if let State::Buckets(buckets) = state {
            buckets.advance(self.current(now));
            if (buckets.oldest()..=buckets.newest).contains(&mark) {
                let hits = hits.min(buckets.get(mark));
                buckets.set(mark, buckets.get(mark).saturating_sub(hits));
                buckets.sum = buckets.sum.saturating_sub(hits);
            }
        }
        self.settle(state, now);
    }

    /// The state of another shape, under this one. Equal sub-windows keep their counts.
    pub(crate) fn adopt(&self, other: &Self, state: &State, now: Timestamp) -> State {
        let State::Buckets(old) = state else { return State::Empty };
        if self.windows != other.windows {
            let mut adopted = State::Empty;
            self.add(&mut adopted, now, other.used(state, now));
            return adopted;
        }
        let mut old = old.clone();
        old.advance(other.current(now));
        let mut adopted = self.fresh(old.newest);
        adopted.sum = old.sum;
        for number in old.oldest()..=old.newest {
            adopted.set(number, old.get(number));
        }
        State::Buckets(Box::new(adopted))
    }

    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        if let State::Buckets(buckets) = state {
            buckets.advance(self.current(now));
            if buckets.sum == 0 {
                *state = State::Empty;
            }
        }
    }

    pub(crate) fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        let State::Buckets(buckets) = state else { return false };
        let start = self.windows.first(buckets.newest).unwrap_or(u64::MAX);
        Timestamp::from_nanos(start).since(now) > TOLERANCE
    }

    pub(crate) fn mend(&self, state: &mut State, now: Timestamp) {
        let State::Buckets(buckets) = state else { return };
        let sum = buckets.sum;
        *state = State::Empty;
        self.add(state, now, sum);
    }

    fn current(&self, now: Timestamp) -> u64 {
        self.windows.floor(now.as_nanos())
    }

    fn fresh(&self, newest: u64) -> Buckets {
        let ring = usize::try_from(self.windows.num()).unwrap_or(0).saturating_add(1);
        let counts = if self.wide {
            Counts::Wide(vec![0; ring].into_boxed_slice())
        } else {
            Counts::Narrow(vec![0; ring].into_boxed_slice())
        };
        Buckets { newest, sum: 0, counts }
    }
}

// === impl Buckets ===

impl Buckets {
    /// The sum of all counters.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
    /// let limit = Limit::new(9, Span::from_secs(1), Algorithm::SLIDING_BUCKETS).unwrap();
    /// let mut written = Written::empty(&limit);
    /// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
    /// assert!(matches!(written.state, State::Buckets(buckets) if buckets.sum() == 4));
    /// ```
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    pub(crate) fn bytes(&self) -> usize {
        let counters = match &self.counts {
            Counts::Narrow(counts) => size_of_val::<[u16]>(counts),
            Counts::Wide(counts) => size_of_val::<[u32]>(counts),
        };
        counters.saturating_add(16) // newest and sum
    }

    pub(crate) fn remembered(&self) -> StateContents {
        let counts = (self.oldest()..=self.newest).map(|number| (number, self.get(number)));
        StateContents::Buckets {
            newest: self.newest,
            counts: counts.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// The counters that say this; none that the ring or a counter has no room for.
    pub(crate) fn remember(shape: &Shape, newest: u64, counts: &[(u64, u64)]) -> State {
        let mut buckets = shape.fresh(newest);
        let oldest = buckets.oldest();
        for (number, count) in
            counts.iter().filter(|(number, _)| (oldest..=newest).contains(number))
        {
            buckets.set(*number, *count);
            buckets.sum = buckets.sum.saturating_add(buckets.get(*number));
        }
        if buckets.sum == 0 { State::Empty } else { State::Buckets(Box::new(buckets)) }
    }

    /// As bytes: the counters in the order of the ring, their sum not.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let wide = matches!(self.counts, Counts::Wide(_));
        varint::encode(bytes, u64::from(wide));
        varint::encode(bytes, self.newest);
        match &self.counts {
            Counts::Narrow(counts) => {
                counts.iter().for_each(|count| varint::encode(bytes, u64::from(*count)));
            }
            Counts::Wide(counts) => {
                counts.iter().for_each(|count| varint::encode(bytes, u64::from(*count)));
            }
        }
    }

    /// What [`write`](Self::write) wrote.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (wide, at) = varint::decode(bytes, 0)?;
        let (newest, mut at) = varint::decode(bytes, at)?;
        let mut sum = 0u64;
        let mut next = || {
            let (count, end) = varint::decode(bytes, at)?;
            (at, sum) = (end, sum.saturating_add(count));
            Some(u32::try_from(count).unwrap_or(u32::MAX))
        };
        let counts = if wide == 1 {
            Counts::Wide(core::iter::from_fn(next).collect())
        } else {
            let narrow = || next().map(|count| u16::try_from(count).unwrap_or(u16::MAX));
            Counts::Narrow(core::iter::from_fn(narrow).collect())
        };
        Some(Self { newest, sum, counts })
    }

    /// The oldest sub-window that the ring remembers.
    fn oldest(&self) -> u64 {
        self.newest.saturating_sub(self.ring().saturating_sub(1))
    }

    /// The sub-windows that no longer count when `current` is the running one.
    fn leaving(&self, current: u64) -> impl Iterator<Item = u64> + use<> {
        let first_kept = current.saturating_sub(self.ring().saturating_sub(1));
        self.oldest()..first_kept.min(self.newest.saturating_add(1))
    }

    /// Makes `current` the newest sub-window, unless a newer one is.
    fn advance(&mut self, current: u64) {
        for number in self.leaving(current) {
            self.sum = self.sum.saturating_sub(self.get(number));
            self.set(number, 0);
        }
        self.newest = self.newest.max(current);
    }

    fn ring(&self) -> u64 {
        let ring = match &self.counts {
            Counts::Narrow(counts) => counts.len(),
            Counts::Wide(counts) => counts.len(),
        };
        u64::try_from(ring).unwrap_or(u64::MAX)
    }

    fn place(&self, number: u64) -> usize {
        usize::try_from(number.checked_rem(self.ring()).unwrap_or(0)).unwrap_or(0)
    }

    fn get(&self, number: u64) -> u64 {
        let place = self.place(number);
        match &self.counts {
            Counts::Narrow(counts) => counts.get(place).map_or(0, |count| u64::from(*count)),
            Counts::Wide(counts) => counts.get(place).map_or(0, |count| u64::from(*count)),
        }
    }

    /// Counts above the limit's `most` are never written, so the narrowing never saturates.
    fn set(&mut self, number: u64, count: u64) {
        let place = self.place(number);
        match &mut self.counts {
            Counts::Narrow(counts) => {
                if let Some(slot) = counts.get_mut(place) {
                    *slot = u16::try_from(count).unwrap_or(u16::MAX);
                }
            }
            Counts::Wide(counts) => {
                if let Some(slot) = counts.get_mut(place) {
                    *slot = u32::try_from(count).unwrap_or(u32::MAX);
                }
            }
        }
    }
}
