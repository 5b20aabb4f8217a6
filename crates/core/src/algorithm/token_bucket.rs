//! # Token bucket: save up for a burst, then live on the rate
//!
//! ## The idea
//! A bucket holds `B` tokens. A request of cost `n` takes `n` of them or is refused; tokens come back
//! at `L` per `W`, never above `B`. Who was quiet may burst; who is always busy gets the rate.
//!
//! ```text
//!   tokens   B = 4, one token back every T
//!    4 ┤─┐      ┌────
//!    3 ┤ │    ┌─┘         one request took all four;
//!    2 ┤ │  ┌─┘           after 4·T the bucket is full again
//!    1 ┤ │┌─┘
//!    0 ┼─└┘──────────► time
//! ```
//!
//! ## The formula
//! Nobody needs to fill the bucket. What is *used* drains by itself, so it is enough to remember the
//! instant `zero` at which nothing will be used any more (the literature's theoretical arrival time):
//!
//! ```text
//!   used(t)   = zero − t, or 0 when zero has passed                  T = W / L
//!   n passes  iff  used(t) + n·T ≤ B·T                               and then  zero = t + used(t) + n·T
//!   remaining = ⌊(B·T − used(t)) / T⌋
//!   retry     : when used has fallen to B·T − n·T
//! ```
//!
//! All of it in [ticks](super), of which `T` is a whole number, so that no rounding adds up.
//! `refill: interval` is the same arithmetic with a clock that only moves at whole multiples of `W`.
//!
//! ## A worked example
//! The `TokenBucket(250, MINUTES)` of a Java textbook divides 250 by 60 and gets 4 a second. It starts
//! empty; after a second four of five pass, and after another second four again:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
//! let limit = Limit::new(4, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
//! let at = |secs: u64| Timestamp::from_nanos(secs * 1_000_000_000);
//! let mut written = Written::empty(&limit);
//! limit.charge(&mut written, &Ask::new(at(0), Cost::new(4))); // starts empty
//! for second in [1, 2] {
//!     let five = [(); 5].map(|()| {
//!         limit.take(&mut written, &Ask::new(at(second), Cost::ONE)).decision.passes()
//!     });
//!     assert_eq!(five, [true, true, true, true, false]);
//! }
//! ```
//!
//! ## State
//! One word: the tick of `zero`. A tick that has passed is an empty state.
//!
//! ## Step
//! Take: move `zero`. Give back: move it back by what the take still weighs, its ticks less those since
//! it, so that nothing is refunded that has already come back by itself. A `zero` further ahead than
//! any use could put it was written by a clock since put back: all that could be used counts as used now.
//!
//! When the limit was edited, the *tokens* in use stay in use. They come back at the rate under which
//! they were taken, until the next take writes them down under the new one.
//!
//! ## What it does not promise
//! Not a window: in any span `t` up to `B + ⌊t/T⌋` pass, so twice `L` in the first `W` when `B = L`.
//! Times count in whole ticks: a token may come back up to one tick (at most 1 µs) before its `T` is
//! over to the nanosecond.

use super::drain::Drain;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// What the limit is compiled into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(pub(crate) Drain);

impl Shape {
    /// What is used in a state that `other` wrote, in ticks of this shape, rounded up.
    pub(crate) fn used(&self, other: &Self, state: &State, now: Timestamp) -> u64 {
        self.0.units_from(&other.0, other.0.used(state, now))
    }

    /// Until a state that `other` wrote is drained to `at_most` ticks of this shape.
    pub(crate) fn wait(
        &self,
        other: &Self,
        state: &State,
        now: Timestamp,
        at_most: u64,
    ) -> Option<Span> {
        other.0.wait(state, now, self.0.units_in(&other.0, at_most))
    }

    /// Takes ticks and answers when: the mark from which they drain.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, ticks: u64) -> u64 {
        self.0.add(state, now, ticks);
        self.0.at(now)
    }

    /// Gives back what a take still weighs, in whole tokens' ticks of its own shape.
    pub(crate) fn remove(
        &self,
        state: &mut State,
        now: Timestamp,
        taken: &Self,
        mark: u64,
        ticks: u64,
    ) {
        let since = taken.0.at(now).saturating_sub(mark);
        let left = taken.0.units_in(&self.0, ticks.saturating_sub(since));
        self.0.lower(state, now, left);
    }

    /// The tokens in use of another shape, under this one.
    pub(crate) fn adopt(&self, other: &Self, state: &State, now: Timestamp) -> State {
        if self == other {
            return state.clone();
        }
        let mut adopted = State::Empty;
        match self.used(other, state, now) {
            0 => {}
            used => _ = self.0.add(&mut adopted, now, used),
        }
        adopted
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
}
