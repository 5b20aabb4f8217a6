//! The fast path: a take on a state of one word, without the special cases.
//!
//! It applies to the most common takes: a token bucket with continuous refill or a fixed window aligned to the epoch, under
//! the plain bound, on a state that the same limit wrote. It computes exactly what the [slow path](crate::taking) computes,
//! but converts the clock to ticks once, divides once, and skips every question whose answer is known. A take with anything
//! unusual returns `None` and goes to the slow path. The tests below compare both paths on hundreds of thousands of takes.
//!
//! A store uses it in two steps, so that takes of the same cost at the same instant share most of the arithmetic:
//!
//! ```text
//!   limit.prepare(&ask)  ──►  PreparedTake  ──►  .take(word)  ──►  (new word, Taken)      once per state
//!        once per cost and instant
//! ```

use crate::algorithm::drain::Drain;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::{Shape, token_bucket::TokenBucket};
use crate::decision::{Ask, Bound, Decision, Outcome, Retry, TakeReceipt, Taken};
use crate::limit::Limit;
use crate::state::State;
use crate::time::Span;
use crate::written::Written;

/// Before this instant, in the year 2116, no sum in this file can overflow 64 bits. Later takes use the slow path.
const EARLY: u64 = 1 << 62;

impl Limit {
    /// Takes a cost by the fast path. `None`, with nothing changed, if the take needs the slow path.
    #[inline]
    pub(crate) fn take_fast<'l>(&'l self, written: &mut Written<'l>, ask: &Ask) -> Option<Taken> {
        if !core::ptr::eq(self, written.shape) {
            return None;
        }
        let (word, taken) = self.take_word(written.state.word(), ask)?;
        written.state = if word == 0 { State::Empty } else { State::Word(word) };
        Some(taken)
    }

    /// The fast path of [`take`](Self::take) for a store that keeps one-word states as bare words: the new word and the
    /// answer. `word` must have been written under this same limit; 0 is the empty state. `None` if the fast path does not
    /// apply; then call [`take`](Self::take).
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let ask = Ask::new(Timestamp::from_nanos(7), Cost::ONE);
    /// let (word, taken) = limit.take_word(0, &ask).unwrap();
    /// let mut written = Written::empty(&limit);
    /// assert_eq!(limit.take(&mut written, &ask), taken);
    /// assert_eq!(written.state, State::Word(word));
    /// ```
    #[must_use]
    #[inline(always)] // the result is large, and the caller uses only parts of it
    pub fn take_word(&self, word: u64, ask: &Ask) -> Option<(u64, Taken)> {
        self.prepare(ask)?.take(word)
    }

    /// The first half of the fast path: everything about a take of this cost at this instant that does not depend on the
    /// state. `None` if the fast path does not apply; then call [`take`](Self::take).
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let ask = Ask::new(Timestamp::from_nanos(7), Cost::new(15));
    /// let prepared = limit.prepare(&ask).unwrap();
    /// assert_eq!(prepared.take(0), limit.take_word(0, &ask));
    /// ```
    #[must_use]
    #[inline(always)] // as above
    pub fn prepare(&self, ask: &Ask) -> Option<PreparedTake<'_>> {
        if ask.bound != Bound::Plain || ask.now.as_nanos() >= EARLY {
            return None;
        }
        let (counter, mark, weight) = match &self.shape {
            Shape::TokenBucket(TokenBucket(drain)) => {
                let (tick, rest) = drain.tick_and_rest(ask.now)?;
                (Counter::Tokens { drain, rest }, tick, drain.ticks_of(ask.cost.get())?)
            }
            Shape::FixedWindow(shape) => {
                let (number, left) = shape.number_and_left(ask.now)?;
                (Counter::Hits { shape, left }, number, ask.cost.get())
            }
            Shape::Unlimited
            | Shape::Blocked
            | Shape::SlidingLog(_)
            | Shape::SlidingBuckets(_)
            | Shape::SlidingWeighted(_)
            | Shape::LeakyBucket(_) => return None,
        };
        let room = self.room(Bound::Plain);
        let at_most = room.checked_sub(weight)?;
        Some(PreparedTake { counter, mark, weight, room, at_most })
    }
}

/// A take on the fast path, prepared for one limit, one cost and one instant. It works with any state. Made by
/// [`Limit::prepare`].
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp};
/// let limit = Limit::new(2, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let one = limit.prepare(&Ask::new(Timestamp::from_nanos(7), Cost::ONE)).unwrap();
/// let (word, _) = one.take(0).unwrap();
/// assert!(one.passes(0) && one.passes(word)); // a new client, and a client that has taken one of two
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PreparedTake<'l> {
    counter: Counter<'l>,
    /// Where a take is counted: the tick of now, or the window's number.
    mark: u64,
    /// The weight of the cost, in the unit of the limit.
    weight: u64,
    /// How much fits under the plain bound.
    room: u64,
    /// How much may be in use so that the cost still passes: `room − weight`.
    at_most: u64,
}

impl PreparedTake<'_> {
    /// The second half of the fast path: takes from the state in this word, and returns the new word and the answer.
    /// `None` if the state needs the slow path, [`Limit::take`]. See [`Limit::take_word`].
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let prepared = limit.prepare(&Ask::new(Timestamp::from_nanos(7), Cost::new(15))).unwrap();
    /// let (word, taken) = prepared.take(0).unwrap();
    /// assert!(taken.decision.passes() && !prepared.take(word).unwrap().1.decision.passes());
    /// ```
    #[must_use]
    #[inline(always)] // as above
    pub fn take(&self, word: u64) -> Option<(u64, Taken)> {
        let Self { counter, mark, weight, room, at_most } = *self;
        let used = counter.used(word, mark)?;
        let passes = used <= at_most;
        let outcome = if passes {
            Outcome::Allow
        } else {
            Outcome::Deny(Retry::After(counter.until(used, at_most)))
        };
        // No overflow: `used ≤ room − weight` if it passes.
        let used = if passes { used.wrapping_add(weight) } else { used };
        let counted = passes && weight > 0;
        let word = if counted { counter.word(mark, used) } else { word };
        let mark = if counted { mark } else { 0 };
        let decision = Decision {
            outcome,
            over: false,
            remaining: counter.units(room.saturating_sub(used)),
            reset: Some(counter.until(used, 0)),
        };
        Some((
            word,
            Taken {
                decision,
                receipt: passes.then_some(TakeReceipt { mark, weight, is_slot: false }),
            },
        ))
    }

    /// Whether a take would pass; cheaper than [`take`](Self::take). `false` if the state needs the slow path.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// assert!(limit.prepare(&Ask::new(Timestamp::from_nanos(7), Cost::new(15))).unwrap().passes(0));
    /// ```
    #[must_use]
    #[inline]
    pub fn passes(&self, word: u64) -> bool {
        self.counter.used(word, self.mark).is_some_and(|used| used <= self.at_most)
    }
}

/// The algorithm, and where within its tick or window the instant is.
#[derive(Clone, Copy, Debug)]
enum Counter<'l> {
    Tokens {
        drain: &'l Drain,
        /// The remainder of converting the instant to ticks.
        rest: u64,
    },
    Hits {
        shape: &'l FixedWindow,
        /// How long the window still lasts.
        left: Span,
    },
}

impl Counter<'_> {
    /// How much of the limit is in use, according to this word; `None` if the clock was set back since it was written.
    #[inline(always)] // as above
    fn used(&self, word: u64, mark: u64) -> Option<u64> {
        match self {
            Self::Tokens { drain, .. } => {
                let used = word.saturating_sub(mark);
                (used <= drain.highest()).then_some(used)
            }
            Self::Hits { shape, .. } => shape.used_by(word, mark),
        }
    }

    /// The time until at most `at_most` of `used` is in use.
    #[inline(always)] // as above
    fn until(&self, used: u64, at_most: u64) -> Span {
        match self {
            Self::Tokens { drain, rest } => drain.span_until(used.saturating_sub(at_most), *rest),
            Self::Hits { left, .. } => {
                if used > at_most {
                    *left
                } else {
                    Span::ZERO
                }
            }
        }
    }

    /// The word for a state with this much in use.
    #[inline(always)] // as above
    fn word(&self, mark: u64, used: u64) -> u64 {
        match self {
            Self::Tokens { .. } => mark.saturating_add(used),
            Self::Hits { shape, .. } => shape.word(mark, used),
        }
    }

    /// How many whole costs of 1 this much measure is.
    #[inline(always)] // as above
    fn units(&self, measure: u64) -> u64 {
        match self {
            Self::Tokens { drain, .. } => drain.whole_units(measure),
            Self::Hits { .. } => measure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Align, Refill};
    use crate::decision::Cost;
    use crate::headroom::Headroom;
    use crate::time::Timestamp;
    use proptest::prelude::*;

    fn limits() -> impl Strategy<Value = Limit> {
        let amount = (0u32..20, 1u64..1 << 20).prop_map(|(shift, n)| (n >> shift).max(1));
        let nanos = prop_oneof![
            Just(1_000_000_000),
            Just(60_000_000_000),
            Just(3_600_000_000_000),
            1_000_000u64..1 << 54
        ];
        let refill = prop_oneof![4 => Just(Refill::Continuous), 1 => Just(Refill::Interval)];
        let bucket = (prop::option::of(1u64..1_000), refill)
            .prop_map(|(burst, refill)| Algorithm::TokenBucket { burst, refill });
        let align = prop_oneof![4 => Just(Align::Epoch), 1 => Just(Align::First)];
        let window = align.prop_map(|align| Algorithm::FixedWindow { align });
        (amount, nanos, prop_oneof![bucket, window]).prop_filter_map(
            "the limit is not valid",
            |(amount, nanos, algorithm)| {
                let limit = Limit::new(amount, Span::from_nanos(nanos), algorithm).ok()?;
                limit.with_headroom(Headroom::Soft(10)).ok()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn fast_and_slow_path_give_the_same_answers(
            limit in limits(),
            start in prop_oneof![Just(1_800_000_000_000_000_000u64), any::<u64>()],
            steps in prop::collection::vec((0u32..64, any::<u64>(), 0u64..40, any::<bool>(), any::<bool>()), 1..50),
        ) {
            let (mut fast, mut slow) = (Written::empty(&limit), Written::empty(&limit));
            let mut now = start;
            for (shift, gap, cost, back, headroom) in steps {
                let gap = (gap & 0x3fff_ffff_ffff_ffff) >> shift;
                now = if back && shift > 40 { now.saturating_sub(gap) } else { now.saturating_add(gap) };
                let ask = Ask::new(Timestamp::from_nanos(now), Cost::new(cost));
                let ask = if headroom && cost % 8 == 0 { ask.bounded(Bound::Headroom) } else { ask };
                let passes = limit.prepare(&ask).filter(|prepared| prepared.take(fast.state.word()).is_some())
                    .map(|prepared| prepared.passes(fast.state.word()));
                let taken = limit.take(&mut fast, &ask);
                prop_assert_eq!(taken, limit.take_slow(&mut slow, &ask));
                prop_assert!(passes.is_none_or(|passes| passes == taken.decision.passes()));
                prop_assert_eq!(&fast, &slow);
            }
        }
    }

    #[test]
    fn common_takes_use_the_fast_path() {
        for algorithm in [Algorithm::TOKEN_BUCKET, Algorithm::FIXED_WINDOW] {
            let limit = Limit::new(15, Span::from_secs(1), algorithm).unwrap();
            let mut written = Written::empty(&limit);
            let ask = Ask::new(Timestamp::from_nanos(1_800_000_000_000_000_000), Cost::ONE);
            assert!((0..20).all(|_| limit.take_fast(&mut written, &ask).is_some()));
        }
    }
}
