//! The short way of the most common takes: a token bucket that is refilled evenly or a window since the epoch, asked
//! under its plain bound, on a state that it wrote itself.
//!
//! It computes what the long way computes, but reads the clock's tick once, divides once, and asks no question of which
//! the answer is known. Whatever is unusual about a take sends it the long way; and the
//! tests below send a million takes both ways.

use super::drain::Drain;
use super::fixed_window::{self, Glance};
use super::{Shape, Taken, token_bucket};
use crate::decision::{Ask, Bound, Decision, Outcome, Retry};
use crate::limit::Limit;
use crate::state::{Receipt, State, Written};
use crate::time::Span;

/// Before this instant, in the year 2116, no sum in here comes near 64 bits.
const EARLY: u64 = 1 << 62;

impl Limit {
    /// Takes a cost the short way; `None`, and nothing changed, where only the long way leads on.
    #[inline]
    pub(crate) fn take_short<'l>(&'l self, written: &mut Written<'l>, ask: &Ask) -> Option<Taken> {
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
    #[inline]
    pub fn take_word(&self, word: u64, ask: &Ask) -> Option<(u64, Taken)> {
        if ask.bound != Bound::Plain || ask.now.as_nanos() >= EARLY {
            return None;
        }
        match &self.shape {
            Shape::TokenBucket(token_bucket::Shape(drain)) => self.take_tokens(drain, word, ask),
            Shape::FixedWindow(shape) => self.take_hits(shape, word, ask),
            Shape::Unlimited
            | Shape::Blocked
            | Shape::SlidingLog(_)
            | Shape::SlidingBuckets(_)
            | Shape::SlidingWeighted(_)
            | Shape::LeakyBucket(_) => None,
        }
    }

    #[inline(always)] // its answer is large, and most of it is known where it is asked for
    fn take_tokens(&self, drain: &Drain, word: u64, ask: &Ask) -> Option<(u64, Taken)> {
        let (tick, rest) = drain.tick_and_rest(ask.now)?;
        let mut used = word.saturating_sub(tick);
        let weight = drain.ticks_of(ask.cost.get())?;
        let plain = self.room(Bound::Plain);
        let at_most = plain.checked_sub(weight)?;
        if used > drain.highest() {
            return None; // a clock was put back
        }
        let (mut word, mut receipt) = (word, None);
        let outcome = if used <= at_most {
            let mut mark = 0;
            used = used.saturating_add(weight);
            if weight > 0 {
                (word, mark) = (tick.saturating_add(used), tick);
            }
            receipt = Some(Receipt { mark, weight });
            Outcome::Allow
        } else {
            let too_many = used.saturating_sub(at_most);
            Outcome::Deny(Retry::After(drain.span_until(too_many, rest)))
        };
        let remaining = drain.whole_units(plain.saturating_sub(used));
        let reset = Some(drain.span_until(used, rest));
        let decision = Decision { outcome, over: false, remaining, reset };
        Some((word, Taken { decision, receipt }))
    }

    #[inline]
    fn take_hits(&self, shape: &fixed_window::Shape, word: u64, ask: &Ask) -> Option<(u64, Taken)> {
        let Glance { number, mut used, left } = shape.glance(word, ask.now)?;
        let (weight, plain) = (ask.cost.get(), self.room(Bound::Plain));
        let at_most = plain.checked_sub(weight)?;
        let (mut word, mut receipt) = (word, None);
        let outcome = if used <= at_most {
            let mut mark = 0;
            used = used.saturating_add(weight);
            if weight > 0 {
                (word, mark) = (shape.word(number, used), number);
            }
            receipt = Some(Receipt { mark, weight });
            Outcome::Allow
        } else {
            Outcome::Deny(Retry::After(left))
        };
        let remaining = plain.saturating_sub(used);
        let reset = Some(if used == 0 { Span::ZERO } else { left });
        let decision = Decision { outcome, over: false, remaining, reset };
        Some((word, Taken { decision, receipt }))
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
                prop_assert_eq!(limit.take(&mut short, &ask), limit.take_long(&mut long, &ask));
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
            assert!((0..20).all(|_| limit.take_short(&mut written, &ask).is_some()));
        }
    }
}
