//! # Fixed window: a count that starts again
//!
//! ## The idea
//! Divide time into windows and count the hits of each. A hit passes while the count is below the limit. This takes one
//! word per key and one comparison per hit: the cheapest way to allow "20 accounts per day".
//!
//! ```text
//!   3 per minute   ┆ window 0          ┆ window 1          ┆
//!                  ┆                ███┆███                ┆      six hits within two seconds
//!   ───────────────┼───────────────────┼───────────────────┼──►
//!                  0                  60 s               120 s
//! ```
//!
//! ## The formula
//! A hit of cost `n` at `t` passes iff `count(window of t) + n ≤ L`. The window of `t` depends on the alignment:
//! - `align: epoch`: window `⌊t / W⌋`, the same for every key;
//! - `align: first`: the window opens with the key's first hit after the previous window ended. Its start is kept in steps
//!   of `W/1000`, rounded up, so that the window never ends early;
//! - a calendar period: the window of the calendar's table that contains `t`.
//!
//! ## A worked example
//! Two messages per second; `m1`…`m5` arrive at 0.3, 0.4, 1.1, 1.2 and 1.5 s. Only `m5` is one too many:
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
//! One word: the window's number and its count, packed into 64 bits. A count of 0 is the empty state.
//!
//! ## Step
//! *Take* opens the window of now, unless the remembered one is still running, and adds. *Give back* subtracts while that
//! window is running. *After a clock step back*, if the remembered window is ahead of now by more than the tolerance, its
//! count moves to the window of now. (When a calendar's table was renewed, the table of the current request decides.)
//!
//! ## What it does not promise
//! Not `L` in *any* span of length `W`: twice as much fits around a boundary, as in the picture. Where that matters, use a
//! sliding window ([`sliding_log`](super::sliding_log), [`sliding_buckets`](super::sliding_buckets)).

use super::packed::Packed;
use super::{Align, TOLERANCE};
use crate::calendar::Calendar;
use crate::ratio::Ratio;
use crate::state::{State, StateContents};
use crate::time::{Span, Timestamp};

/// With `align: first`, a window's start is kept in steps of this fraction of the period.
const START_STEPS: u64 = 1_000;

/// A limit, compiled for this algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindow {
    windows: Windows,
    packed: Packed,
}

/// How time is divided into windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Windows {
    /// One window in this many nanoseconds.
    Epoch(Ratio),
    /// Starts are counted in steps of this many nanoseconds; a window is `length` nanoseconds long.
    First {
        step: Ratio,
        length: u64,
    },
    Calendar(Calendar),
}

impl FixedWindow {
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

    /// How long a window is; `None` if windows are those of a calendar.
    pub(crate) const fn length(&self) -> Option<Span> {
        match &self.windows {
            Windows::Epoch(ratio) => Some(Span::from_nanos(ratio.den())),
            Windows::First { length, .. } => Some(Span::from_nanos(*length)),
            Windows::Calendar(_) => None,
        }
    }

    /// When the window of an instant ends; `None` if windows begin with their first hit.
    pub(crate) fn running_until(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.windows {
            Windows::First { .. } => None,
            windows @ (Windows::Epoch(_) | Windows::Calendar(_)) => {
                windows.end(windows.opened_by(now))
            }
        }
    }

    /// When a window ends; `None` if it is the last one in the table of a calendar.
    pub(crate) fn end(&self, window: u64) -> Option<Timestamp> {
        self.windows.end(window)
    }

    /// The hits in use, of a state that `old` wrote.
    pub(crate) fn used(&self, old: &Self, state: &State, now: Timestamp) -> u64 {
        self.read(old, state, now).map_or(0, |(_, count)| count)
    }

    /// The time until at most `at_most` hits are in use, of a state that `old` wrote.
    pub(crate) fn wait(
        &self,
        old: &Self,
        state: &State,
        now: Timestamp,
        at_most: u64,
    ) -> Option<Span> {
        match self.read(old, state, now) {
            Some((number, count)) if count > at_most => {
                Some(self.windows_of(old).end(number)?.since(now))
            }
            Some(_) | None => Some(Span::ZERO),
        }
    }

    /// The number of the window of an instant, and how long it still lasts; `None` unless windows are aligned to the epoch.
    #[inline]
    pub(crate) fn number_and_left(&self, now: Timestamp) -> Option<(u64, Span)> {
        let Windows::Epoch(ratio) = &self.windows else { return None };
        let (number, passed) = ratio.floor_and_rest(now.as_nanos());
        Some((number, Span::from_nanos(ratio.den().saturating_sub(passed))))
    }

    /// The hits in use in window `number`, according to a word that this same limit wrote; `None` if the word is of a later
    /// window.
    #[inline]
    pub(crate) fn used_by(&self, word: u64, number: u64) -> Option<u64> {
        let used = self.packed.count(word);
        if used == 0 {
            return Some(0);
        }
        let written = self.packed.number(word, number).filter(|written| *written <= number)?;
        Some(if written == number { used } else { 0 })
    }

    /// The word for window `number` with this many hits.
    #[inline]
    pub(crate) fn word(&self, number: u64, used: u64) -> u64 {
        self.packed.pack(number, used)
    }

    /// Counts hits and returns the number of the window in which they are counted.
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

    /// The state that `old` wrote, converted to this limit.
    pub(crate) fn adopt(&self, old: &Self, state: &State, now: Timestamp) -> State {
        let mut adopted = State::Empty;
        if let Some((number, count)) = self.read(old, state, now) {
            let kept = self.windows_of(old) == &self.windows;
            self.put(&mut adopted, if kept { number } else { self.windows.opened_by(now) }, count);
        }
        adopted
    }

    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        if self.used(self, state, now) == 0 {
            *state = State::Empty;
        }
    }

    /// Whether a state that `old` wrote is ahead of now by more than the tolerance.
    pub(crate) fn is_ahead(&self, old: &Self, state: &State, now: Timestamp) -> bool {
        let windows = self.windows_of(old);
        self.read(old, state, now).is_some_and(|(number, _)| {
            let start = windows.start(number).unwrap_or(Timestamp::END);
            start.since(now) > windows.tolerance()
        })
    }

    /// Moves the count of a state that `old` wrote to the window of now. A count above `most`, the most that this limit can
    /// count to, was written under a larger limit and becomes `most`.
    pub(crate) fn mend(&self, old: &Self, most: u64, state: &mut State, now: Timestamp) {
        let count = old.packed.count(state.word()).min(most);
        self.put(state, self.windows.opened_by(now), count);
    }

    /// Whether the window of an instant is known. It is not if the instant is before the first boundary of a calendar.
    pub(crate) fn knows(&self, now: Timestamp) -> bool {
        match &self.windows {
            Windows::Epoch(_) | Windows::First { .. } => true,
            Windows::Calendar(calendar) => calendar.begins_by(now),
        }
    }

    /// Whether both limits have a calendar. Then a state is mended with the table of the current limit, because the table
    /// under which it was written may come from the same wrong clock.
    pub(crate) fn both_have_calendars(&self, old: &Self) -> bool {
        matches!((&self.windows, &old.windows), (Windows::Calendar(_), Windows::Calendar(_)))
    }

    pub(crate) fn contents(&self, word: u64, now: Timestamp) -> Option<StateContents> {
        let number = self.packed.number(word, self.windows.opened_by(now))?;
        Some(StateContents::Window { number, count: self.packed.count(word) })
    }

    pub(crate) fn pack(&self, number: u64, count: u64) -> State {
        let mut state = State::Empty;
        self.put(&mut state, number, if self.packed.fits(count) { count } else { 0 });
        state
    }

    /// The number and count of the remembered window; `None` if it has ended or its count is 0.
    fn read(&self, old: &Self, state: &State, now: Timestamp) -> Option<(u64, u64)> {
        let count = old.packed.count(state.word());
        if count == 0 {
            return None;
        }
        let windows = self.windows_of(old);
        let current = windows.opened_by(now);
        let number = old.packed.number(state.word(), current)?;
        (!windows.has_ended(number, current, now)).then_some((number, count))
    }

    /// The windows for reading a state that `old` wrote: those of `old`, unless both have calendars. A calendar's table is
    /// renewed while its windows run, and windows are identified by their start, so the current table applies.
    fn windows_of<'s>(&'s self, old: &'s Self) -> &'s Windows {
        match (&self.windows, &old.windows) {
            (Windows::Calendar(_), Windows::Calendar(_)) => &self.windows,
            (_, windows) => windows,
        }
    }

    fn put(&self, state: &mut State, number: u64, count: u64) {
        *state =
            if count == 0 { State::Empty } else { State::Word(self.packed.pack(number, count)) };
    }
}

// === impl Windows ===

impl Windows {
    /// The number of the window that a hit at `now` would open.
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

    /// The end of a window; `None` if it is past the end of time or past the last boundary of the calendar.
    fn end(&self, number: u64) -> Option<Timestamp> {
        match self {
            Self::Epoch(ratio) => ratio.first(number.checked_add(1)?).map(Timestamp::from_nanos),
            Self::First { length, .. } => self.start(number)?.after(Span::from_nanos(*length)),
            Self::Calendar(calendar) => calendar.end(number),
        }
    }

    /// Whether a window has ended. `current` is the number of the window that a hit at `now` would open.
    fn has_ended(&self, number: u64, current: u64, now: Timestamp) -> bool {
        match self {
            Self::Epoch(_) | Self::Calendar(_) => number < current,
            Self::First { .. } => self.end(number).is_some_and(|end| end <= now),
        }
    }

    /// How far ahead of now a remembered start may be: the tolerance, plus the rounding up of the start.
    fn tolerance(&self) -> Span {
        match self {
            Self::Epoch(_) | Self::Calendar(_) => TOLERANCE,
            Self::First { step, .. } => {
                Span::from_nanos(TOLERANCE.as_nanos().saturating_add(step.den()))
            }
        }
    }
}
