//! The short way of the most common takes: a token bucket that is refilled evenly or a window since the epoch, asked
//! under its plain bound, on a state that it wrote itself.
//!
//! It computes what the long way computes, but reads the clock's tick once, divides once, and asks no question of which
//! the answer is known. Whatever is unusual about a take sends it the long way; and the
//! tests below send a million takes both ways.

use super::drain::Drain;
use super::fixed_window;
use super::{Shape, Taken, token_bucket};
use crate::decision::{Ask, Bound, Decision, Outcome, Retry};
use crate::limit::Limit;
use crate::state::{State, TakeReceipt, Written};
use crate::time::Span;

/// Before this instant, in the year 2116, no sum in here comes near 64 bits.
const EARLY: u64 = 1 << 62;

impl Limit {
    /// Takes a cost the short way; `None`, and nothing changed, where only the long way leads on.
    #[inline]
    pub(crate) fn take_fast<'l>(&'l self, written: &mut Written<'l>, ask: &Ask) -> Option<Taken> {
        if !core::ptr::eq(self, written.shape) {
            return None;
        }
        let (word, taken) = self.take_word(written.state.word(), ask)?;
        written.state = if word == 0 { State::Empty } else { State::Word(word) };
        Some(taken)
    }

    /// [`take`](Self::take) for those who keep a state as its bare word, written under this very limit, 0 when empty:
    /// the word as it is then, and the answer. `None` where that is not enough to decide, and [`take`](Self::take) is
    /// to be asked.
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
    #[inline(always)] // its answer is large, and most of it is known where it is asked for
    pub fn take_word(&self, word: u64, ask: &Ask) -> Option<(u64, Taken)> {
        self.prepare(ask)?.take(word)
    }

    /// What takes of one cost at one instant have in common, whatever their states. `None` where only
    /// [`take`](Self::take) leads on.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let ask = Ask::new(Timestamp::from_nanos(7), Cost::new(15));
    /// let ready = limit.prepare(&ask).unwrap();
    /// assert_eq!(ready.take(0), limit.take_word(0, &ask));
    /// ```
    #[must_use]
    #[inline(always)] // as above
    pub fn prepare(&self, ask: &Ask) -> Option<PreparedTake<'_>> {
        if ask.bound != Bound::Plain || ask.now.as_nanos() >= EARLY {
            return None;
        }
        let (counter, mark, weight) = match &self.shape {
            Shape::TokenBucket(token_bucket::Shape(drain)) => {
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

/// What takes of one cost under one limit at one instant have in common. See [`Limit::prepare`].
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp};
/// let limit = Limit::new(2, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let one = limit.prepare(&Ask::new(Timestamp::from_nanos(7), Cost::ONE)).unwrap();
/// let (word, _) = one.take(0).unwrap();
/// assert!(one.passes(0) && one.passes(word)); // somebody new, and who has taken one of two
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PreparedTake<'l> {
    counter: Counter<'l>,
    /// Where a take is counted: the tick of now, or the window's number.
    mark: u64,
    /// What is taken, in the measure of the limit.
    weight: u64,
    /// What there is.
    room: u64,
    /// What may be used before.
    at_most: u64,
}

impl PreparedTake<'_> {
    /// Takes on a state of this word; see [`Limit::take_word`].
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let ready = limit.prepare(&Ask::new(Timestamp::from_nanos(7), Cost::new(15))).unwrap();
    /// let (word, taken) = ready.take(0).unwrap();
    /// assert!(taken.decision.passes() && !ready.take(word).unwrap().1.decision.passes());
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
        let used = if passes { used.saturating_add(weight) } else { used };
        let counted = passes && weight > 0;
        let word = if counted { counter.word(mark, used) } else { word };
        let mark = if counted { mark } else { 0 };
        let decision = Decision {
            outcome,
            over: false,
            remaining: counter.units(room.saturating_sub(used)),
            reset: Some(counter.until(used, 0)),
        };
        Some((word, Taken { decision, receipt: passes.then_some(TakeReceipt { mark, weight }) }))
    }

    /// Whether a take would pass, for less than [`take`](Self::take) costs. What cannot be told does not.
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

/// What counts, and at which instant.
#[derive(Clone, Copy, Debug)]
enum Counter<'l> {
    Tokens {
        drain: &'l Drain,
        /// What the tick leaves of the instant.
        rest: u64,
    },
    Hits {
        shape: &'l fixed_window::Shape,
        /// How long the window lasts yet.
        left: Span,
    },
}

impl Counter<'_> {
    /// How much of the limit is used, by this word; `None` where a clock was put back since it was written.
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

    /// How long until no more than `at_most` of what is used is.
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

    /// The word that says how much is used.
    #[inline(always)] // as above
    fn word(&self, mark: u64, used: u64) -> u64 {
        match self {
            Self::Tokens { .. } => mark.saturating_add(used),
            Self::Hits { shape, .. } => shape.word(mark, used),
        }
    }

    /// How many whole costs of 1 so much measure is.
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
    use crate::decision::Cost;
    use crate::limit::{Algorithm, Align, Headroom, Refill};
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
            "a rate that cannot be counted",
            |(amount, nanos, algorithm)| {
                let limit = Limit::new(amount, Span::from_nanos(nanos), algorithm).ok()?;
                limit.with_headroom(Headroom::Soft(10)).ok()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn both_ways_lead_to_the_same(
            limit in limits(),
            start in prop_oneof![Just(1_800_000_000_000_000_000u64), any::<u64>()],
            steps in prop::collection::vec((0u32..64, any::<u64>(), 0u64..40, any::<bool>(), any::<bool>()), 1..50),
        ) {
            let (mut short, mut long) = (Written::empty(&limit), Written::empty(&limit));
            let mut now = start;
            for (shift, gap, cost, back, headroom) in steps {
                let gap = (gap & 0x3fff_ffff_ffff_ffff) >> shift;
                now = if back && shift > 40 { now.saturating_sub(gap) } else { now.saturating_add(gap) };
                let ask = Ask::new(Timestamp::from_nanos(now), Cost::new(cost));
                let ask = if headroom && cost % 8 == 0 { ask.bounded(Bound::Headroom) } else { ask };
                let passes = limit.prepare(&ask).filter(|ready| ready.take(short.state.word()).is_some())
                    .map(|ready| ready.passes(short.state.word()));
                let taken = limit.take(&mut short, &ask);
                prop_assert_eq!(taken, limit.take_long(&mut long, &ask));
                prop_assert!(passes.is_none_or(|passes| passes == taken.decision.passes()));
                prop_assert_eq!(&short, &long);
            }
        }
    }

    #[test]
    fn the_usual_take_goes_the_short_way() {
        for algorithm in [Algorithm::TOKEN_BUCKET, Algorithm::FIXED_WINDOW] {
            let limit = Limit::new(15, Span::from_secs(1), algorithm).unwrap();
            let mut written = Written::empty(&limit);
            let ask = Ask::new(Timestamp::from_nanos(1_800_000_000_000_000_000), Cost::ONE);
            assert!((0..20).all(|_| limit.take_fast(&mut written, &ask).is_some()));
        }
    }
}
