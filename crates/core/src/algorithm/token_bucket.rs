//! # Token bucket: a burst first, then the rate
//!
//! ## The idea
//! A limit grants `L` tokens per `W`, one every `T = W / L`. The bucket holds up to `B` tokens (`burst`, by default `L`).
//! A request of cost `n` takes `n` tokens or is refused. A caller that was idle may send a burst; a caller that is always
//! busy gets the rate.
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
//! This is GCRA, the generic cell rate algorithm. No timer fills the bucket. The state records what is *used*, not what is
//! left, and used tokens come back as time passes. So a single instant is enough: `zero`, at which nothing will be in use
//! any more. GCRA calls it the theoretical arrival time.
//!
//! ```text
//!   used(t)   = zero − t, or 0 if zero has passed                 tokens left = B − used(t) / T
//!   n passes  iff  used(t) + n·T ≤ B·T;   then  zero = t + used(t) + n·T
//!   remaining = ⌊(B·T − used(t)) / T⌋, computed after a take that passed; 0 in debt
//!   retry     = used(t) − (B − n)·T, rounded up to the nanosecond; never if n > B
//!   reset     = used(t)
//! ```
//!
//! Time is counted in ticks. A tick is `T` divided by a power of two and at most 1 µs long, so `T` is a whole number of
//! ticks and rounding errors do not add up. With `refill: interval` the clock is rounded down to whole multiples of `W`
//! since the epoch: at each of those instants `L` tokens come back together, however recently they were taken. A soft
//! headroom enlarges `B`; an elastic headroom makes a cost weigh less than `n·T`.
//!
//! ## A worked example
//! Two tokens per second and `B = 4`, so `T` is half a second. Requests take three tokens at 10.0 s and one at 10.2 s. At
//! 10.5 s three tokens are in use, so a request for two is refused. At 11.0 s two are in use, and two more fit:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Refill, Retry, Span, Timestamp, Written};
//! let bucket = Algorithm::TokenBucket { burst: Some(4), refill: Refill::Continuous };
//! let limit = Limit::new(2, Span::from_secs(1), bucket).unwrap();
//! let mut written = Written::empty(&limit); // nothing is in use: the bucket is full
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
//! A well-known textbook example, `TokenBucket(250, MINUTES)`, allows 4 per second and starts without a token. After one
//! second four of five requests pass, and after another second four again:
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
//! let limit = Limit::new(4, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
//! let at = |secs: u64| Timestamp::from_nanos(secs * 1_000_000_000);
//! let mut written = Written::empty(&limit);
//! limit.charge(&mut written, &Ask::new(at(0), Cost::new(4))); // counts unconditionally: no token is left
//! for second in [1, 2] {
//!     let five = [(); 5].map(|()| {
//!         limit.take(&mut written, &Ask::new(at(second), Cost::ONE)).decision.passes()
//!     });
//!     assert_eq!(five, [true, true, true, true, false]);
//! }
//! ```
//!
//! ## State
//! One word: the tick of `zero`. If it has passed, nothing is in use and the bucket is full, as with [`State::Empty`].
//!
//! ## Step
//! *Take* moves `zero` forward. *Charge* does so unconditionally, until `2·B·T` are in use: `B` tokens of debt.
//! *Give back* moves `zero` back by what the take still weighs: its ticks minus the time since the take. So it never refunds
//! tokens that have come back by themselves. It refunds less than that when older tokens were still coming back first.
//!
//! *After an edit of the limit*, the tokens in use are still in use. They come back at the rate under which they were taken,
//! until a take that passes, or a charge, writes them under the new rate. With a smaller `B`, more than `B` may be in use:
//! then nothing remains until enough tokens have come back. (Another algorithm has another state.)
//!
//! *After a clock step back*, `zero` is further ahead, which reads as more use. If it is further ahead than debt and the
//! tolerance allow, the state is mended: the bucket counts as empty now, so a request of cost 1 passes again within
//! `(B + 1)·T`.
//!
//! ## What it does not promise
//! It is not a window: in any span `t` up to `B + ⌊t/T⌋` tokens pass, so `2L` in a `W` that begins with a full bucket of
//! `B = L`. With `refill: interval`, `B + L` tokens can pass around a whole multiple of `W`.
//! The clock is read in whole ticks, so a token may come back up to one tick, at most 1 µs, early.
//! A retry time reserves nothing: another caller may take the tokens first.

use super::drain::Drain;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// A limit, compiled for this algorithm: its rate and bounds in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenBucket(pub(crate) Drain);

impl TokenBucket {
    /// What is in use, of a state that `old` wrote, in ticks of this limit, rounded up.
    pub(crate) fn used(&self, old: &Self, state: &State, now: Timestamp) -> u64 {
        self.0.convert_up(&old.0, old.0.used(state, now))
    }

    /// The time until at most `at_most` ticks of this limit are in use, of a state that `old` wrote.
    pub(crate) fn wait(
        &self,
        old: &Self,
        state: &State,
        now: Timestamp,
        at_most: u64,
    ) -> Option<Span> {
        old.0.wait(state, now, old.0.convert_down(&self.0, at_most))
    }

    /// Adds ticks to what is in use, and returns the tick of now, from which on they come back.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, ticks: u64) -> u64 {
        self.0.add(state, now, ticks);
        self.0.at(now)
    }

    /// Gives back what a take still weighs. `mark` and `ticks` are in ticks of `taken`, the limit under which the cost was
    /// taken. Since then tokens came back at that limit's rate or, if the state was rewritten, at this one's. The larger of
    /// the two is assumed, so that nothing is refunded twice.
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

    /// The state that `old` wrote, converted to this limit: as many tokens in use, rounded up to a tick.
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
