//! # Fixed window: a count that starts again
//!
//! ## The idea
//! Time is cut into windows; each has a count, and a hit passes while the count is below the limit.
//! One word per key, one comparison per hit. It is the cheapest way to say "20 accounts a day".
//!
//! ```text
//!   3 a minute     ┆ window 0          ┆ window 1          ┆
//!                  ┆                ███┆███                ┆      six within two seconds
//!   ───────────────┼───────────────────┼───────────────────┼──►
//!                  0                  60 s               120 s
//! ```
//!
//! ## The formula
//! A hit of cost `n` at `t` passes iff `count(window of t) + n ≤ L`. The window of `t` is
//! - `align: epoch`: `⌊t / W⌋`, the same for every key;
//! - `align: first`: it opens with the key's first hit after the last one ended; its start is kept to
//!   `W/1000`, rounded up, so that it never ends early;
//! - a calendar period: the one of the table that holds `t`.
//!
//! ## A worked example
//! Two messages a second; `m1`…`m5` come at 0.3, 0.4, 1.1, 1.2 and 1.5 s. Only `m5` is one too many:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Retry, Span, Timestamp, Written};
//! let limit = Limit::new(2, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
//! let mut written = Written::empty(&limit);
//! let outcomes = [300, 400, 1_100, 1_200, 1_500].map(|millis| {
//!     let now = Timestamp::from_nanos(millis * 1_000_000);
//!     limit.take(&mut written, &Ask::new(now, Cost::ONE)).decision.outcome
//! });
//! let [m1, m2, m3, m4, m5] = outcomes;
//! assert_eq!([m1, m2, m3, m4], [Outcome::Allow; 4]);
//! assert_eq!(m5, Outcome::Deny(Retry::After(Span::from_millis(500))));
//! ```
//!
//! ## State
//! One word: the window's number and its count ([`packed`](super)). A count of 0 is an empty state.
//!
//! ## Step
//! Take: open the window of now unless the remembered one still runs, then add. Give back: subtract,
//! while that window runs. A remembered window that lies ahead of now by more than the tolerance was
//! written by a clock since put back; its count moves to the window of now. (Of two tables of a calendar, the one that asks says which.)
//!
//! ## What it does not promise
//! Not `L` in *any* span of length `W`: twice that fits around a boundary, as in the picture. When
//! that matters, slide ([`sliding_log`](super::sliding_log), [`sliding_buckets`](super::sliding_buckets)).

use super::TOLERANCE;
use super::packed::Packed;
use crate::calendar::Calendar;
use crate::limit::Align;
use crate::ratio::Ratio;
use crate::state::State;
use crate::state_contents::StateContents;
use crate::time::{Span, Timestamp};

/// Windows that open with the first hit keep their start to this fraction of the period.
const START_STEPS: u64 = 1_000;

/// What the limit is compiled into.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    windows: Windows,
    packed: Packed,
}

/// How time is cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Windows {
    /// One window in so many nanoseconds.
    Epoch(Ratio),
    /// Starts are counted in steps of so many nanoseconds; the window is `length` long.
    First {
        step: Ratio,
        length: u64,
    },
    Calendar(Calendar),
}

impl Shape {
    pub(crate) fn new(align: Align, window: u64, most: u64) -> Option<Self> {
        let windows = match align {
            Align::Epoch => Windows::Epoch(Ratio::new(1, window)?),
            Align::First => {
                let step = Ratio::new(1, window.div_ceil(START_STEPS))?;
                Windows::First { step, length: window }
            }
        };
        Some(Self { windows, packed: Packed::new(most)? })
    }

    pub(crate) fn of_calendar(calendar: Calendar, most: u64) -> Option<Self> {
        Some(Self { windows: Windows::Calendar(calendar), packed: Packed::new(most)? })
    }

    /// What is used in a state that `other` wrote.
    pub(crate) fn used(&self, other: &Self, state: &State, now: Timestamp) -> u64 {
        self.read(other, state, now).map_or(0, |(_, count)| count)
    }

    /// Until no more than `at_most` is used in a state that `other` wrote.
    pub(crate) fn wait(
        &self,
        other: &Self,
        state: &State,
        now: Timestamp,
        at_most: u64,
    ) -> Option<Span> {
        match self.read(other, state, now) {
            Some((number, count)) if count > at_most => {
                Some(self.windows_of(other).end(number)?.since(now))
            }
            Some(_) | None => Some(Span::ZERO),
        }
    }

    /// The window of an instant, and how long it lasts yet; `None` unless windows follow each other from the epoch.
    #[inline]
    pub(crate) fn number_and_left(&self, now: Timestamp) -> Option<(u64, Span)> {
        let Windows::Epoch(ratio) = &self.windows else { return None };
        let (number, passed) = ratio.floor_and_rest(now.as_nanos());
        Some((number, Span::from_nanos(ratio.den().saturating_sub(passed))))
    }

    /// What is used in a window, by a word of this very shape; `None` where it is of a window to come.
    #[inline]
    pub(crate) fn used_by(&self, word: u64, number: u64) -> Option<u64> {
        let used = self.packed.count(word);
        if used == 0 {
            return Some(0);
        }
        let written = self.packed.number(word, number).filter(|written| *written <= number)?;
        Some(if written == number { used } else { 0 })
    }

    /// The word for a window in which so much is used.
    #[inline]
    pub(crate) fn word(&self, number: u64, used: u64) -> u64 {
        self.packed.pack(number, used)
    }

    pub(crate) fn add(&self, state: &mut State, now: Timestamp, hits: u64) -> u64 {
        let opened = (self.windows.opened_by(now), 0);
        let (number, count) = self.read(self, state, now).unwrap_or(opened);
        *state = State::of_word(self.packed.pack(number, count.saturating_add(hits)));
        number
    }

    pub(crate) fn remove(&self, state: &mut State, now: Timestamp, mark: u64, hits: u64) {
        if let Some((number, count)) = self.read(self, state, now)
            && number == mark
        {
            self.put(state, mark, count.saturating_sub(hits));
        }
    }

    /// The state of another shape, under this one.
    pub(crate) fn adopt(&self, other: &Self, state: &State, now: Timestamp) -> State {
        let mut adopted = State::Empty;
        if let Some((number, count)) = self.read(other, state, now) {
            let kept = self.windows_of(other) == &self.windows;
            self.put(&mut adopted, if kept { number } else { self.windows.opened_by(now) }, count);
        }
        adopted
    }

    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        if self.used(self, state, now) == 0 {
            *state = State::Empty;
        }
    }

    /// Whether a state that `other` wrote lies ahead of now.
    pub(crate) fn is_ahead(&self, other: &Self, state: &State, now: Timestamp) -> bool {
        let windows = self.windows_of(other);
        self.read(other, state, now).is_some_and(|(number, _)| {
            let start = windows.start(number).unwrap_or(Timestamp::END);
            start.since(now) > windows.tolerance()
        })
    }

    /// The count of a state that `other` wrote, in the window of now.
    pub(crate) fn mend(&self, other: &Self, state: &mut State, now: Timestamp) {
        self.put(state, self.windows.opened_by(now), other.packed.count(state.word()));
    }

    /// Whether this shape knows in which window an instant lies; a calendar that begins after it does not.
    pub(crate) fn knows(&self, now: Timestamp) -> bool {
        match &self.windows {
            Windows::Epoch(_) | Windows::First { .. } => true,
            Windows::Calendar(calendar) => calendar.begins_by(now),
        }
    }

    /// Whether both count by calendars. Such a state is mended by the table that asks, because the table it was written under
    /// may be of the same wrong time.
    pub(crate) fn shares_calendar(&self, other: &Self) -> bool {
        matches!((&self.windows, &other.windows), (Windows::Calendar(_), Windows::Calendar(_)))
    }

    pub(crate) fn remembered(&self, word: u64, now: Timestamp) -> Option<StateContents> {
        let number = self.packed.number(word, self.windows.opened_by(now))?;
        Some(StateContents::Window { number, count: self.packed.count(word) })
    }

    pub(crate) fn remember(&self, number: u64, count: u64) -> State {
        let mut state = State::Empty;
        self.put(&mut state, number, if self.packed.fits(count) { count } else { 0 });
        state
    }

    /// The remembered window and its count, unless it has ended or holds nothing.
    fn read(&self, other: &Self, state: &State, now: Timestamp) -> Option<(u64, u64)> {
        let count = other.packed.count(state.word());
        if count == 0 {
            return None;
        }
        let windows = self.windows_of(other);
        let current = windows.opened_by(now);
        let number = other.packed.number(state.word(), current)?;
        (!windows.has_ended(number, current, now)).then_some((number, count))
    }

    /// The windows by which a state that `other` wrote is read: its own, but for a calendar, whose
    /// tables are renewed while its windows run and which knows them by their start.
    fn windows_of<'s>(&'s self, other: &'s Self) -> &'s Windows {
        match (&self.windows, &other.windows) {
            (Windows::Calendar(_), Windows::Calendar(_)) => &self.windows,
            (_, theirs) => theirs,
        }
    }

    fn put(&self, state: &mut State, number: u64, count: u64) {
        *state =
            if count == 0 { State::Empty } else { State::Word(self.packed.pack(number, count)) };
    }
}

// === impl Windows ===

impl Windows {
    /// The number of the window that a hit now would open.
    fn opened_by(&self, now: Timestamp) -> u64 {
        match self {
            Self::Epoch(ratio) => ratio.floor(now.as_nanos()),
            Self::First { step, .. } => now.as_nanos().div_ceil(step.den()),
            Self::Calendar(calendar) => calendar.id(now),
        }
    }

    fn start(&self, number: u64) -> Option<Timestamp> {
        match self {
            Self::Epoch(ratio) => ratio.first(number).map(Timestamp::from_nanos),
            Self::First { step, .. } => step.first(number).map(Timestamp::from_nanos),
            Self::Calendar(_) => Some(Calendar::start(number)),
        }
    }

    /// Where a window ends; `None` past the end of time or of the calendar.
    fn end(&self, number: u64) -> Option<Timestamp> {
        match self {
            Self::Epoch(ratio) => ratio.first(number.checked_add(1)?).map(Timestamp::from_nanos),
            Self::First { length, .. } => self.start(number)?.after(Span::from_nanos(*length)),
            Self::Calendar(calendar) => calendar.end(number),
        }
    }

    /// Whether a window is over, given the number that a hit now would open.
    fn has_ended(&self, number: u64, current: u64, now: Timestamp) -> bool {
        match self {
            Self::Epoch(_) | Self::Calendar(_) => number < current,
            Self::First { .. } => self.end(number).is_some_and(|end| end <= now),
        }
    }

    /// How far ahead of now a remembered start may lie: the disorder of clocks, and our rounding up.
    fn tolerance(&self) -> Span {
        match self {
            Self::Epoch(_) | Self::Calendar(_) => TOLERANCE,
            Self::First { step, .. } => {
                Span::from_nanos(TOLERANCE.as_nanos().saturating_add(step.den()))
            }
        }
    }
}
