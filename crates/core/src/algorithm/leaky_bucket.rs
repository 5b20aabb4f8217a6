//! # Leaky bucket: a queue that lets one request pass at a time
//!
//! ## The idea
//! Requests wait in a queue and pass one by one, every `T = W / L`. The first passes immediately, up to `queue` more may
//! wait, and after that the queue is full. The output is smooth, whatever the input.
//!
//! ```text
//!   in    ▼▼▼▼         ▼          four together, one later
//!   out   ▼   ▼   ▼   ▼▼           …
//!         │ T │ T │ T │
//! ```
//!
//! ## The formula
//! The state is one instant, `free`: the end of all promised turns. A request of cost `n` at `t`
//!
//! ```text
//!   waits   d = free − t, or 0 if free has passed
//!   passes  iff  d + n·T ≤ (queue + 1)·T  and the caller can wait d;   then  free = t + d + n·T
//! ```
//!
//! It passes when its first turn comes, and it takes `n` turns: the next request passes `n·T` later. A request of cost 0
//! takes no turn, so it does not wait.
//!
//! ## A worked example
//! One message per second, and two may wait. Four arrive together: one passes, two wait, one is refused. A caller that
//! cannot wait is refused and told when to retry:
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
//! One word: the tick of `free`. A tick that has passed means the same as the empty state.
//!
//! ## Step
//! *Take* moves `free` forward. *Give back* frees a place only if it is the last in the queue. Otherwise the turn stays empty,
//! because the requests behind it were promised theirs. *After a clock step back*, if `free` is further ahead than any queue
//! allows, all turns that could be promised count as promised now. *After an edit of the limit*, `free` stays the same
//! instant: promised turns are kept.
//!
//! ## What it does not promise
//! A burst: a client that was idle for a day still passes one request at a time. And not exactly `L` in any span of length
//! `W`: the requests are `T` apart, so the one after `L` others passes exactly `W` after the first, or up to a tick (1 µs)
//! earlier. With requests of cost 1, at most `L + 1` pass in a span of length `W`; with costs up to `n`, at most `L + n`.

use super::drain::Drain;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// A limit, compiled for this algorithm: its rate and bounds in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeakyBucket(pub(crate) Drain);

impl LeakyBucket {
    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        self.0.used(state, now)
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, at_most: u64) -> Option<Span> {
        self.0.wait(state, now, at_most)
    }

    /// Promises turns and returns their end. This mark identifies the last place in the queue.
    pub(crate) fn add(&self, state: &mut State, now: Timestamp, ticks: u64) -> u64 {
        self.0.add(state, now, ticks)
    }

    /// Frees a place if it is the last in the queue. `mark` and `ticks` are in ticks of `taken`, the limit under which the
    /// place was taken.
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

    /// The state that `old` wrote, converted to this limit: `free` stays the same instant.
    pub(crate) fn adopt(&self, old: &Self, state: &State) -> State {
        let free = state.word();
        State::of_word(if self == old || free == 0 { free } else { self.same_instant(old, free) })
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

    /// Converts a tick of `old` to a tick of this limit, rounded up to a microsecond and then to a tick.
    fn same_instant(&self, old: &Self, tick: u64) -> u64 {
        let [_, instant] = old.0.micros_around(tick);
        self.0.at_or_after(instant)
    }
}
