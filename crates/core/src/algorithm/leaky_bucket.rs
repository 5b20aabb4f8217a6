//! # Leaky bucket: a queue that lets one pass at a time
//!
//! ## The idea
//! Requests stand in a queue and pass one by one, every `T = W / L`. The first one passes at once;
//! `queue` more may wait; after that the queue is full. What comes out is smooth whatever goes in.
//!
//! ```text
//!   in    ▼▼▼▼         ▼          four at once, one later
//!   out   ▼   ▼   ▼   ▼▼           …
//!         │ T │ T │ T │
//! ```
//!
//! ## The formula
//! Only the instant `free` matters at which all promised turns are over. A request of cost `n` at `t`:
//!
//! ```text
//!   waits  d = free − t, or 0 when free has passed
//!   passes iff  d + n·T ≤ (queue + 1)·T  and the caller can wait d;   then  free = t + d + n·T
//! ```
//!
//! It passes when its first turn comes and takes `n` turns: the next one passes `n·T` later.
//! A cost of nothing takes no turn, so it waits for none.
//!
//! ## A worked example
//! One message a second, two may wait. Four come at once: one passes, two wait, one is refused. A
//! caller that cannot wait is told when to come back instead:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Retry, Span, Timestamp, Written};
//! let limit = Limit::new(1, Span::from_secs(1), Algorithm::LeakyBucket { queue: Some(2) }).unwrap();
//! let mut written = Written::empty(&limit);
//! let one = Ask::new(Timestamp::EPOCH, Cost::ONE);
//! let patient = one.waiting(Span::from_secs(60));
//! let four = [(); 4].map(|()| limit.take(&mut written, &patient).decision.outcome);
//! assert_eq!(four[0], Outcome::Allow);
//! assert_eq!(four[1], Outcome::Delay(Span::from_secs(1)));
//! assert_eq!(four[2], Outcome::Delay(Span::from_secs(2)));
//! assert_eq!(four[3], Outcome::Deny(Retry::After(Span::from_secs(1))));
//! let hasty = limit.decide(&written, &one).outcome;
//! assert_eq!(hasty, Outcome::Deny(Retry::After(Span::from_secs(3))));
//! ```
//!
//! ## State
//! One word: the tick of `free`. A tick that has passed is an empty state.
//!
//! ## Step
//! Take: move `free`. Give back: the place only if it is the last in the queue; otherwise the turn stays
//! empty, since those behind it were promised theirs. A `free` further ahead than any queue could put it
//! was written by a clock since put back: all turns that could be promised count as promised now.
//!
//! When the limit was edited, `free` stays the same instant: a promise is a promise.
//!
//! ## What it does not promise
//! No burst, ever: who was quiet for a day still passes one at a time.

use super::drain::Drain;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// What the limit is compiled into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape(pub(crate) Drain);

impl Shape {
    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        self.0.used(state, now)
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, at_most: u64) -> Option<Span> {
        self.0.wait(state, now, at_most)
    }

    /// Promises turns and answers their end: the mark by which the last in the queue is known.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, ticks: u64) -> u64 {
        self.0.add(state, now, ticks)
    }

    /// Gives back a place if it is the last in the queue.
    pub(crate) fn remove(
        &self,
        state: &mut State,
        now: Timestamp,
        taken: &Self,
        mark: u64,
        ticks: u64,
    ) {
        let (mark, ticks) = if self == taken {
            (mark, ticks)
        } else {
            let start = mark.saturating_sub(ticks);
            let (end, start) = (self.same_instant(taken, mark), self.same_instant(taken, start));
            (end, end.saturating_sub(start))
        };
        if state.word() == mark {
            self.0.lower(state, now, ticks);
        } else {
            self.settle(state, now);
        }
    }

    /// The state of another shape, under this one: `free` stays the same instant.
    pub(crate) fn adopt(&self, other: &Self, state: &State, _now: Timestamp) -> State {
        let free = state.word();
        State::of_word(if self == other || free == 0 {
            free
        } else {
            self.same_instant(other, free)
        })
    }

    pub(crate) fn settle(&self, state: &mut State, now: Timestamp) {
        self.0.settle(state, now);
    }

    pub(crate) fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        self.0.is_ahead(state, now)
    }

    pub(crate) fn mend(&self, state: &mut State, now: Timestamp) {
        self.0.mend(state, now);
    }

    /// A tick of another shape as a tick of this one, rounded up to a microsecond and a tick.
    fn same_instant(&self, other: &Self, tick: u64) -> u64 {
        let [_, instant] = other.0.micros_around(tick);
        self.0.at_or_after(instant)
    }
}
