//! The use of a limit, independent of its state: how much is in use, and until when.
//!
//! A store that runs out of memory drops a state but keeps this summary of it. When the key comes back, the store makes a
//! new state from the summary. The new state may count more than the old one, and for longer, but never less and never
//! shorter:
//!
//! ```text
//!   in use                                   the old state          ▓
//!    4 ┤▓▓▓▓▓▓▓▓▓                            made from the summary  ░
//!    3 ┤▓▓▓▓▓▓▓▓▓░░░░░░░░░░░░
//!    2 ┤▓▓▓▓▓▓▓▓▓░░░░░░░░░░░░▓▓▓▓
//!      └────────┬──────────────┬──────► time
//!            dropped         until
//! ```

use crate::algorithm::{Shape, leaky_bucket::LeakyBucket, token_bucket::TokenBucket};
use crate::calendar::Period;
use crate::limit::Limit;
use crate::state::State;
use crate::time::Timestamp;
use crate::written::Written;

/// How much of a limit is in use, and until when.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
/// let limit = Limit::new(20, Span::from_secs(86_400), Algorithm::FIXED_WINDOW).unwrap();
/// let mut written = Written::empty(&limit);
/// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(3)));
/// let in_use = written.in_use(Timestamp::EPOCH);
/// assert_eq!(in_use.units, 3);
/// let again = limit.with_in_use(Timestamp::EPOCH, in_use);
/// assert_eq!(limit.peek(&again, Timestamp::EPOCH).remaining, 17);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// How much is in use, in costs of 1, rounded up.
    pub units: u64,
    /// When nothing is in use any more.
    pub until: Timestamp,
}

impl Written<'_> {
    /// The use at this instant.
    ///
    /// ```
    /// use tidegate_core::{Limit, Timestamp, Written};
    /// let limit = Limit::unlimited();
    /// assert_eq!(Written::empty(&limit).in_use(Timestamp::EPOCH).units, 0);
    /// ```
    #[must_use]
    pub fn in_use(&self, now: Timestamp) -> Usage {
        let units = self.units_in_use(now);
        let gone = self.shape.wait(self, now, 0);
        Usage { units, until: gone.and_then(|span| now.after(span)).unwrap_or(Timestamp::END) }
    }

    /// How much is in use at this instant, in costs of 1, rounded up.
    ///
    /// ```
    /// use tidegate_core::{Limit, Timestamp, Written};
    /// let limit = Limit::unlimited();
    /// assert_eq!(Written::empty(&limit).units_in_use(Timestamp::EPOCH), 0);
    /// ```
    #[must_use]
    pub fn units_in_use(&self, now: Timestamp) -> u64 {
        self.shape.used(self, now).div_ceil(self.shape.unit())
    }
}

impl Limit {
    /// A state with at least this much in use, for at least as long, as far as this limit can count.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Usage, Limit, Span, Timestamp};
    /// let limit = Limit::new(20, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let second = Timestamp::from_nanos(1_000_000_000);
    /// let all = limit.with_in_use(Timestamp::EPOCH, Usage { units: u64::MAX, until: second });
    /// assert_eq!(limit.peek(&all, Timestamp::EPOCH).remaining, 0);
    /// assert_eq!(limit.peek(&all, second).remaining, 20);
    /// ```
    #[must_use]
    pub fn with_in_use(&self, now: Timestamp, in_use: Usage) -> Written<'_> {
        let mut written = Written::empty(self);
        if in_use.until <= now {
            return written;
        }
        let weight = in_use.units.saturating_mul(self.unit()).min(self.deepest());
        if weight == 0 {
            return written;
        }
        let began = self.began(now, in_use.until);
        self.shape.add(&mut written.state, began, weight);
        if let (
            Shape::TokenBucket(TokenBucket(drain)) | Shape::LeakyBucket(LeakyBucket(drain)),
            State::Word(zero),
        ) = (&self.shape, &mut written.state)
        {
            *zero = drain.at_or_after(in_use.until).min(*zero);
        }
        written
    }

    /// The latest instant at which use that ends at `until` can have begun; `now` if the algorithm does not tell.
    fn began(&self, now: Timestamp, until: Timestamp) -> Timestamp {
        let lasts_a_period = match self.shape {
            Shape::FixedWindow(_) | Shape::SlidingLog(_) | Shape::SlidingBuckets(_) => true,
            Shape::Unlimited
            | Shape::Blocked
            | Shape::SlidingWeighted(_)
            | Shape::TokenBucket(_)
            | Shape::LeakyBucket(_) => false,
        };
        let period = match self.period() {
            Period::Every(period) if lasts_a_period => *period,
            Period::Every(_) | Period::Calendar(_) => return now,
        };
        let began = until.as_nanos().saturating_sub(period.as_nanos());
        now.min(Timestamp::from_nanos(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cost;
    use crate::algorithm::{Algorithm, Align, Refill};
    use crate::decision::Ask;
    use crate::time::Span;
    use proptest::prelude::*;

    fn limits() -> Vec<Limit> {
        let first = Algorithm::FixedWindow { align: Align::First };
        let interval = Algorithm::TokenBucket { burst: None, refill: Refill::Interval };
        let of = |algorithm| Limit::new(20, Span::from_secs(60), algorithm).unwrap();
        Algorithm::ALL.into_iter().chain([first, interval]).map(of).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        /// For random takes, and at every instant after the state was dropped: the state that is made from its summary
        /// counts at least as much as the old state would have.
        #[test]
        fn a_state_made_from_its_use_counts_no_less_and_no_shorter(
            takes in prop::collection::vec((0u64..40_000_000_000, 0u64..6), 1..12),
            forgotten in 0u64..60_000_000_000,
            later in prop::collection::vec(0u64..150_000_000_000, 1..12),
        ) {
            for limit in limits() {
                let mut now = 1_699_999_980_000_000_000u64;
                let mut written = Written::empty(&limit);
                for (gap, cost) in &takes {
                    now += gap;
                    limit.charge(&mut written, &Ask::new(Timestamp::from_nanos(now), Cost::new(*cost)));
                }
                now += forgotten;
                let in_use = written.in_use(Timestamp::from_nanos(now));
                for gap in &later {
                    let back = Timestamp::from_nanos(now + gap);
                    let again = limit.with_in_use(back, in_use);
                    let [left, then] = [&again, &written].map(|written| limit.peek(written, back).remaining);
                    prop_assert!(left <= then, "{} {gap} later: {left} remain, {then} would", limit.algorithm().name());
                    if back >= in_use.until {
                        prop_assert_eq!(&again.state, &State::Empty);
                    }
                }
            }
        }
    }
}
