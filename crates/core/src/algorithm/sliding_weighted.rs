//! # Sliding window, weighted: two counts and a proportion
//!
//! ## The idea
//! Keep the counts of this window and of the previous one. Assume that the hits of the previous window were spread evenly:
//! then the part of its count that still matters is the part of the window that overlaps the period ending now.
//!
//! ```text
//!   previous window: prev       this window: cur
//!   ┌───────────────────────┬───────────────────────┐
//!   │               ░░░░░░░░│▓▓▓▓▓▓▓▓▓▓▓▓           │
//!   └───────────────────────┴───────────────────────┘
//!                   └──────── W ────────┘ now
//!                   (W − elapsed) │ elapsed
//! ```
//!
//! ## The formula
//! With `elapsed` the time since this window began, a cost `n` passes iff
//! `cur + ⌊prev · (W − elapsed) / W⌋ + n ≤ L`. For `n = 1` this is the `B + P%·A < N` of the textbooks.
//!
//! ## A worked example
//! 100 per minute. 80 came in the previous minute and 40 so far in this one, of which a quarter has passed. Three quarters
//! of 80 still count, so 40 + 60 are in use and one more is too many:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Retry, Span, Timestamp, Written};
//! let limit = Limit::new(100, Span::from_secs(60), Algorithm::SLIDING_WEIGHTED).unwrap();
//! let at = |secs: u64| Timestamp::from_nanos(secs * 1_000_000_000);
//! let mut written = Written::empty(&limit);
//! limit.take(&mut written, &Ask::new(at(30), Cost::new(80)));
//! limit.take(&mut written, &Ask::new(at(75), Cost::new(40)));
//! let decision = limit.decide(&written, &Ask::new(at(75), Cost::ONE));
//! assert_eq!(decision.remaining, 0);
//! // 80 · (60 − e)/60 falls below 60 just after e = 15 s.
//! assert_eq!(decision.outcome, Outcome::Deny(Retry::After(Span::from_nanos(1))));
//! ```
//!
//! ## State
//! One word, if the window's number and both counts fit: up to 8,191 per second, or about half a million per hour.
//! Otherwise two words: number and count in one, the previous window's count in the other.
//!
//! ## Step
//! *Take* first moves on: when a new window has begun, the current count becomes the previous one (or 0 after two windows).
//! Then it adds. *Give back* subtracts from the window in which the cost was counted, while that one still counts.
//! *After a clock step back*, if the window is ahead of now by more than the tolerance, both counts together become the
//! count of this window, up to the limit.
//!
//! ## What it does not promise
//! Not `L` in any span of length `W`. If all of `prev` came at the end of its window, the estimate is too low by up to
//! `prev · elapsed/W`; if all came at the beginning, it is too high by up to `prev · (1 − elapsed/W)`. A client that
//! exploits this gets up to `2L` through in a span of length `W`.

use super::TOLERANCE;
use super::packed::Packed;
use crate::ratio::Ratio;
use crate::state::{State, StateContents};
use crate::time::{Span, Timestamp};

/// A limit, compiled for this algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWeighted {
    /// One window in `W` nanoseconds.
    windows: Ratio,
    packed: Packed,
    /// The layout with both counts in one word, if the window's number fits beside them.
    narrow: Option<Narrow>,
    /// The amount with its headroom.
    room: u64,
}

/// The layout of a word that holds the window's number and two counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Narrow {
    /// The bits of one count.
    bits: u32,
    both: Packed,
}

/// A state, decoded as of one instant.
#[derive(Clone, Copy)]
struct Reading {
    /// The running window, or a window ahead of now if the state was written there.
    number: u64,
    cur: u64,
    prev: u64,
    /// The time since the window began; 0 if the window is ahead of now.
    elapsed: u64,
}

impl SlidingWeighted {
    pub(crate) fn new(room: u64, window: u64, most: u64) -> Option<Self> {
        let narrow = Narrow::new(window, most);
        Some(Self { windows: Ratio::new(1, window)?, packed: Packed::new(most)?, narrow, room })
    }

    /// How long a window is.
    pub(crate) const fn length(&self) -> Span {
        Span::from_nanos(self.windows.den())
    }

    /// The number of the window of an instant.
    pub(crate) fn running(&self, now: Timestamp) -> u64 {
        self.windows.floor(now.as_nanos())
    }

    /// When a window ends.
    pub(crate) fn end(&self, window: u64) -> Option<Timestamp> {
        self.start(window.checked_add(1)?)
    }

    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        let reading = self.read(state, now);
        reading.cur.saturating_add(self.share(reading.prev, reading.elapsed))
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, at_most: u64) -> Option<Span> {
        if self.used(state, now) <= at_most {
            return Some(Span::ZERO);
        }
        let Reading { number, cur, prev, .. } = self.read(state, now);
        // In this window `cur` stays and the share of `prev` falls. In the next window the share of `cur` falls.
        let in_this_window =
            at_most.checked_sub(cur).and_then(|room| self.faded(number, prev, room));
        let instant = match in_this_window {
            Some(instant) => instant,
            None => match self.faded(number.checked_add(1)?, cur, at_most) {
                Some(instant) => instant,
                None => self.start(number.checked_add(2)?)?,
            },
        };
        Some(instant.since(now))
    }

    /// Counts hits and returns the number of the window in which they are counted.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, hits: u64) -> u64 {
        let reading = self.read(state, now);
        self.put(state, Reading { cur: reading.cur.saturating_add(hits), ..reading });
        reading.number
    }

    pub(crate) fn remove(&self, state: &mut State, now: Timestamp, mark: u64, hits: u64) {
        let mut reading = self.read(state, now);
        if mark == reading.number {
            reading.cur = reading.cur.saturating_sub(hits);
        } else if mark.checked_add(1) == Some(reading.number) {
            reading.prev = reading.prev.saturating_sub(hits);
        }
        self.put(state, reading);
    }

    /// The state that `old` wrote, converted to this limit. Windows of the same length keep their counts.
    pub(crate) fn adopt(&self, old: &Self, state: &State, now: Timestamp) -> State {
        let reading = if self.windows == old.windows {
            old.read(state, now)
        } else {
            Reading { cur: old.used(state, now), ..self.read(&State::Empty, now) }
        };
        let mut adopted = State::Empty;
        self.put(&mut adopted, reading);
        adopted
    }

    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        let reading = self.read(state, now);
        self.put(state, reading);
    }

    pub(crate) fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        let start = self.start(self.read(state, now).number).unwrap_or(Timestamp::END);
        start.since(now) > TOLERANCE
    }

    pub(crate) fn mend(&self, state: &mut State, now: Timestamp) {
        let ahead = self.read(state, now);
        let both = ahead.cur.saturating_add(ahead.prev).min(self.room);
        self.put(state, Reading { cur: both.max(ahead.cur), ..self.read(&State::Empty, now) });
    }

    pub(crate) fn contents(&self, state: &State, now: Timestamp) -> Option<StateContents> {
        let (number, cur, prev) = self.unpack(state, self.windows.floor(now.as_nanos()))?;
        Some(StateContents::Windows { number, cur, prev })
    }

    pub(crate) fn pack(&self, number: u64, cur: u64, prev: u64) -> State {
        let mut state = State::Empty;
        if self.packed.fits(cur) {
            self.put(&mut state, Reading { number, cur, prev, elapsed: 0 });
        }
        state
    }

    fn read(&self, state: &State, now: Timestamp) -> Reading {
        let current = self.windows.floor(now.as_nanos());
        let start = current.saturating_mul(self.windows.den());
        let elapsed = now.as_nanos().saturating_sub(start);
        let empty = Reading { number: current, cur: 0, prev: 0, elapsed };
        let Some((number, cur, prev)) = self.unpack(state, current) else { return empty };
        match current.checked_sub(number) {
            None => Reading { number, cur, prev, elapsed: 0 },
            Some(0) => Reading { cur, prev, ..empty },
            Some(1) => Reading { prev: cur, ..empty },
            Some(_) => empty,
        }
    }

    fn put(&self, state: &mut State, reading: Reading) {
        *state = match reading {
            Reading { cur: 0, prev: 0, .. } => State::Empty,
            Reading { number, cur, prev, .. } => {
                let narrow = self.narrow.and_then(|narrow| narrow.pack(number, cur, prev));
                narrow.map_or(State::Pair([self.packed.pack(number, cur), prev]), State::Word)
            }
        };
    }

    /// The window's number, its count, and the count of the window before it.
    fn unpack(&self, state: &State, current: u64) -> Option<(u64, u64, u64)> {
        match (state, self.narrow) {
            (State::Word(word), Some(narrow)) => narrow.unpack(*word, current),
            (State::Pair([word, prev]), _) => {
                Some((self.packed.number(*word, current)?, self.packed.count(*word), *prev))
            }
            (State::Empty | State::Word(_) | State::Buckets(_) | State::Log(_), _) => None,
        }
    }

    /// `⌊prev · (W − elapsed) / W⌋`.
    fn share(&self, prev: u64, elapsed: u64) -> u64 {
        if prev == 0 {
            return 0;
        }
        let left = self.windows.den().saturating_sub(elapsed);
        let share = u128::from(prev).saturating_mul(u128::from(left));
        u64::try_from(share.checked_div(u128::from(self.windows.den())).unwrap_or(0))
            .unwrap_or(u64::MAX)
    }

    /// The first instant of window `number` at which the share of `prev` is at most `room`.
    ///
    /// `⌊prev · left / W⌋ ≤ room` iff `prev · left < (room + 1) · W` iff `left < ⌈(room + 1) · W / prev⌉`.
    fn faded(&self, number: u64, prev: u64, room: u64) -> Option<Timestamp> {
        let window = u128::from(self.windows.den());
        let most_left = if prev == 0 {
            window
        } else {
            let bound = u128::from(room).saturating_add(1).saturating_mul(window);
            bound.div_ceil(u128::from(prev)).saturating_sub(1).min(window)
        };
        let elapsed = u64::try_from(window.saturating_sub(most_left)).unwrap_or(u64::MAX);
        if elapsed == self.windows.den() {
            return None; // not before the end of the window
        }
        self.start(number)?.after(Span::from_nanos(elapsed))
    }

    fn start(&self, number: u64) -> Option<Timestamp> {
        self.windows.first(number).map(Timestamp::from_nanos)
    }
}

// === impl Narrow ===

impl Narrow {
    fn new(window: u64, most: u64) -> Option<Self> {
        let bits = 64u32.saturating_sub(most.leading_zeros());
        let number_bits = 64u32.checked_sub(bits.checked_mul(2)?)?;
        let kept = u128::from(window).checked_shl(number_bits)?;
        let both = Packed::new(1u64.checked_shl(bits.checked_mul(2)?)?.checked_sub(1)?)?;
        // Require that window numbers never repeat within 64 bits of time: a clock may be set back by decades.
        (kept > u128::from(u64::MAX)).then_some(Self { bits, both })
    }

    /// The word, if both counts fit. The previous window's count may not fit if the limit was larger before an edit.
    fn pack(&self, number: u64, cur: u64, prev: u64) -> Option<u64> {
        let fits = (cur | prev) >> self.bits == 0;
        fits.then(|| self.both.pack(number, (cur << self.bits) | prev))
    }

    fn unpack(&self, word: u64, current: u64) -> Option<(u64, u64, u64)> {
        let both = self.both.count(word);
        let cur = both >> self.bits;
        Some((self.both.number(word, current)?, cur, both ^ (cur << self.bits)))
    }
}
