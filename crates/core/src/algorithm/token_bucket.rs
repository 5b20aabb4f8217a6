//! # Token bucket: save up for a burst, then live on the rate
//!
//! ## The idea
//! A limit grants `L` tokens per `W`, one every `T = W / L`. The bucket holds up to `B` of them (`burst`;
//! `L` when not given). A request of cost `n` takes `n` tokens or is refused. A caller that was quiet may
//! burst; one that is always busy gets the rate.
//!
//! ```text
//!   tokens   B = 4
//!    4 ┤─┐       ┌───
//!    3 ┤ │     ┌─┘        one request took all four;
//!    2 ┤ │   ┌─┘          one is back after T,
//!    1 ┤ │ ┌─┘            all are back after 4·T
//!    0 ┼─└─┘─────────► time
//!        │T│T│T│T│
//! ```
//!
//! ## The formula
//! No timer fills the bucket. We remember what is *used*, not what is there, and what is used comes back
//! by itself. So one instant says it all: `zero`, at which nothing will be used any more. (The literature
//! knows it as the theoretical arrival time of GCRA.)
//!
//! ```text
//!   used(t)   = zero − t, or 0 when zero has passed               tokens there = B − used(t) / T
//!   n passes  iff  used(t) + n·T ≤ B·T;   then  zero = t + used(t) + n·T
//!   remaining = ⌊(B·T − used(t)) / T⌋, read after a take that passed; 0 in debt
//!   retry     = used(t) − (B − n)·T, rounded up to the nanosecond; never when n > B
//!   reset     = used(t)
//! ```
//!
//! Time is counted in ticks. A tick is `T` divided by a power of two and at most 1 µs long, so `T` is a
//! whole number of ticks and no rounding adds up. With `refill: interval` the clock is rounded down
//! to whole `W` since the epoch: `L` tokens come back at once at each of those instants, however recently
//! they were taken. With headroom, soft enlarges `B` and elastic lets a cost weigh less than `n·T`.
//!
//! ## A worked example
//! Two tokens a second, `B = 4`: `T` is half a second. Three are asked for at 10.0 s, one at 10.2 s and
//! two at 10.5 s, when three are in use. By 11.0 s two are, and two more fit:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Refill, Retry, Span, Timestamp, Written};
//! let bucket = Algorithm::TokenBucket { burst: Some(4), refill: Refill::Continuous };
//! let limit = Limit::new(2, Span::from_secs(1), bucket).unwrap();
//! let mut written = Written::empty(&limit); // nothing is used: the bucket is full
//! let mut take = |millis: u64, cost: u64| {
//!     let now = Timestamp::from_nanos(millis * 1_000_000);
//!     limit.take(&mut written, &Ask::new(now, Cost::new(cost))).decision
//! };
//! assert_eq!(take(10_000, 3).remaining, 1);
//! assert_eq!(take(10_200, 1).remaining, 0);
//! let refused = take(10_500, 2);
//! assert_eq!(refused.outcome, Outcome::Deny(Retry::After(Span::from_millis(500))));
//! assert_eq!(refused.remaining, 1);
//! assert_eq!(take(11_000, 2).outcome, Outcome::Allow);
//! ```
//!
//! The textbooks' `TokenBucket(250, MINUTES)`, which is 4 a second there, starts with no token. After a
//! second four of five pass, and after another second four again:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
//! let limit = Limit::new(4, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
//! let at = |secs: u64| Timestamp::from_nanos(secs * 1_000_000_000);
//! let mut written = Written::empty(&limit);
//! limit.charge(&mut written, &Ask::new(at(0), Cost::new(4))); // counts without asking: no token is left
//! for second in [1, 2] {
//!     let five = [(); 5].map(|()| {
//!         limit.take(&mut written, &Ask::new(at(second), Cost::ONE)).decision.passes()
//!     });
//!     assert_eq!(five, [true, true, true, true, false]);
//! }
//! ```
//!
//! ## State
//! One word: the tick of `zero`. One that has passed means that nothing is used and the bucket is full;
//! so does [`State::Empty`].
//!
//! ## Step
//! *Take* moves `zero` forward. *Charge* does so without asking, until `2·B·T` are used: `B` tokens of debt.
//! *Give back* moves it back by what the take still weighs: its ticks, less the time since it. That never
//! refunds what has come back by itself, and sometimes refunds less, when older tokens were still coming
//! back first.
//!
//! *An edited limit* finds the tokens in use still in use. They come back at the rate under which they were
//! taken until a take that passes, or a charge, writes them down under the new one. A smaller `B` may be
//! exceeded then: nothing remains until enough has come back. (Another algorithm is another state.)
//!
//! *A clock put back* makes `zero` lie further ahead, which reads as more use. One further ahead than debt
//! and the tolerance could put it is mended: as much as can be used counts as used now, so that one
//! passes again after `(B + 1)·T`.
//!
//! ## What it does not promise
//! It is no window: in any span `t` up to `B + ⌊t/T⌋` tokens pass, so twice `L` in a `W` that starts with a
//! full bucket of `B = L`. With `refill: interval`, `B + L` pass around a whole multiple of `W`.
//! The clock is read in whole ticks, so a token may be back up to one tick, at most 1 µs, early.
//! A retry reserves nothing: another caller may take the tokens first.

use super::drain::Drain;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// The limit, compiled: its rate and bounds in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape(pub(crate) Drain);

impl Shape {
    /// What is used in a state that `old` wrote, in ticks of this shape, rounded up.
    pub(crate) fn used(&self, old: &Self, state: &State, now: Timestamp) -> u64 {
        self.0.convert_up(&old.0, old.0.used(state, now))
    }

    /// How long until at most `at_most` ticks of this shape are used in a state that `old` wrote.
    pub(crate) fn wait(
        &self,
        old: &Self,
        state: &State,
        now: Timestamp,
        at_most: u64,
    ) -> Option<Span> {
        old.0.wait(state, now, old.0.convert_down(&self.0, at_most))
    }

    /// Adds ticks to what is used; answers the tick of now, from which they come back.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, ticks: u64) -> u64 {
        self.0.add(state, now, ticks);
        self.0.at(now)
    }

    /// Gives back what a take still weighs. `mark` and `ticks` are in ticks of `taken`, the shape it was
    /// taken under. What has come back since then did so at that rate or, if the state was rewritten, at
    /// this one: whichever is more, so that nothing is refunded twice.
    pub(crate) fn remove(
        &self,
        state: &mut State,
        now: Timestamp,
        taken: &Self,
        mark: u64,
        ticks: u64,
    ) {
        let since = taken.0.at(now).saturating_sub(mark);
        let left = self.0.convert_down(&taken.0, ticks.saturating_sub(since));
        if self == taken {
            return self.0.lower(state, now, left);
        }
        let [start, _] = taken.0.micros_around(mark);
        let since = self.0.at(now).saturating_sub(self.0.at(start));
        let left_here = self.0.convert_down(&taken.0, ticks).saturating_sub(since);
        self.0.lower(state, now, left.min(left_here));
    }

    /// The state as this shape would have written it: as many tokens in use, rounded up to a tick.
    pub(crate) fn adopt(&self, old: &Self, state: &State, now: Timestamp) -> State {
        if self == old {
            return state.clone();
        }
        let mut adopted = State::Empty;
        self.0.add(&mut adopted, now, self.used(old, state, now));
        self.settle(&mut adopted, now);
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
