//! A limit: how much, per how long, by which algorithm.
//!
//! A [`Limit`] is validated once, when it is built, and compiled into the numbers that its algorithm needs. After that no
//! decision can fail.
//!
//! ```text
//!   15 per second, token bucket of 30      Limit::new(15, second, TokenBucket { burst: Some(30), … })
//!   amount 0                               blocks every cost except 0
//!   Limit::unlimited()                     refuses nothing and remembers nothing
//! ```

use crate::algorithm::{
    Algorithm, Shape, Ticks, leaky_bucket::LeakyBucket, token_bucket::TokenBucket,
};
use crate::calendar::Period;
use crate::compile::{LimitError, Measure, SHORTEST_PERIOD, checked_headroom, compile};
use crate::decision::{Bound, Cost};
use crate::headroom::{self, Headroom};
use crate::time::{Now, Span, Timestamp};
use core::hash::{Hash, Hasher};
use std::sync::OnceLock;

/// A state of a concurrency limit has room for at least this many permits beyond the limit.
const MORE_PERMITS: u64 = 1_000;

/// How much, per how long, by which [`Algorithm`]; immutable once built.
///
/// Two limits are equal if they have the same definition, whatever their [serial numbers](Self::serial).
///
/// ```
/// use tidegate_core::{Algorithm, Limit, LimitError, Span};
/// let limit = Limit::new(500, Span::from_secs(3600), Algorithm::SLIDING_BUCKETS).unwrap();
/// assert_eq!(limit.amount(), 500);
/// let refused = Limit::new(500, Span::from_nanos(1), Algorithm::SLIDING_BUCKETS);
/// assert_eq!(refused, Err(LimitError::PeriodTooShort));
/// ```
#[derive(Clone, Debug)]
pub struct Limit {
    amount: u64,
    period: Period,
    algorithm: Algorithm,
    headroom: Headroom,
    measure: Measure,
    pub(crate) shape: Shape,
    /// Assigned by the first store that asks for it. Not part of the definition.
    serial: OnceLock<u64>,
}

// === impl Limit: building ===

impl Limit {
    /// `amount` per `period`, counted by `algorithm`. An amount of 0 blocks.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Retry, Span, Timestamp, Written};
    /// let blocked = Limit::new(0, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let one = Ask::new(Timestamp::EPOCH, Cost::ONE);
    /// let decision = blocked.decide(&Written::empty(&blocked), &one);
    /// assert_eq!(decision.outcome, Outcome::Deny(Retry::Never));
    /// ```
    pub fn new(
        amount: u64,
        period: impl Into<Period>,
        algorithm: Algorithm,
    ) -> Result<Self, LimitError> {
        let period = period.into();
        let headroom = Headroom::None;
        let (measure, shape) = compile(amount, &period, algorithm, headroom)?;
        Ok(Self { amount, period, algorithm, headroom, measure, shape, serial: OnceLock::new() })
    }

    /// No limit: refuses nothing and remembers nothing.
    ///
    /// ```
    /// use tidegate_core::{Ask, Cost, Limit, State, Timestamp, Written};
    /// let limit = Limit::unlimited();
    /// let mut written = Written::empty(&limit);
    /// let decision = limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(u64::MAX))).decision;
    /// assert!(decision.passes() && decision.remaining == u64::MAX);
    /// assert_eq!(written.state, State::Empty);
    /// ```
    #[must_use]
    pub fn unlimited() -> Self {
        Self {
            amount: u64::MAX,
            period: Period::Every(SHORTEST_PERIOD),
            algorithm: Algorithm::TOKEN_BUCKET,
            headroom: Headroom::None,
            measure: Measure::default(),
            shape: Shape::Unlimited,
            serial: OnceLock::new(),
        }
    }

    /// This limit with the given headroom.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Headroom, Limit, Span};
    /// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    /// let soft = limit.with_headroom(Headroom::Soft(10)).unwrap();
    /// assert_eq!((soft.amount(), soft.headroom()), (100, Headroom::Soft(10)));
    /// ```
    pub fn with_headroom(self, headroom: Headroom) -> Result<Self, LimitError> {
        let serial = OnceLock::new();
        if self.is_unlimited() {
            let headroom = checked_headroom(headroom)?;
            return Ok(Self { headroom, serial, ..self });
        }
        let (measure, shape) = compile(self.amount, &self.period, self.algorithm, headroom)?;
        Ok(Self { headroom, measure, shape, serial, ..self })
    }

    /// This limit divided among `by` nodes that count separately: amount, burst and queue are divided. The amount and the
    /// burst are at least 1.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Refill, Span};
    /// let burst = Algorithm::TokenBucket { burst: Some(10), refill: Refill::Continuous };
    /// let limit = Limit::new(100, Span::from_secs(60), burst).unwrap();
    /// let third = limit.divided(3);
    /// assert_eq!((third.amount(), third.capacity()), (33, 3));
    /// assert_eq!(limit.divided(1_000).amount(), 1);
    /// assert_eq!(limit.divided(1), limit);
    /// ```
    #[must_use]
    pub fn divided(&self, by: u32) -> Self {
        if by <= 1 || self.is_unlimited() || self.amount == 0 {
            return self.clone();
        }
        let part = |amount: u64| amount.checked_div(u64::from(by)).unwrap_or(amount);
        let share = |amount: u64| part(amount).max(1);
        let algorithm = match self.algorithm {
            Algorithm::TokenBucket { burst, refill } => {
                Algorithm::TokenBucket { burst: burst.map(share), refill }
            }
            Algorithm::LeakyBucket { queue } => Algorithm::LeakyBucket { queue: queue.map(part) },
            other @ (Algorithm::FixedWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::SlidingBuckets { .. }
            | Algorithm::SlidingWeighted
            | Algorithm::Concurrent) => other,
        };
        let divided = Self::new(share(self.amount), self.period.clone(), algorithm);
        let divided = divided.and_then(|limit| limit.with_headroom(self.headroom));
        // If a share would take over 100 years to fill, the limit cannot be divided and stays whole.
        divided.unwrap_or_else(|_| self.clone())
    }
}

// === impl Limit: its definition ===

impl Limit {
    /// The amount granted per period; `u64::MAX` if unlimited.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Limit::unlimited().amount(), u64::MAX);
    /// ```
    #[must_use]
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// The period over which the amount is granted.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Period, Span};
    /// let limit = Limit::new(2, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
    /// assert_eq!(limit.period(), &Period::Every(Span::from_secs(1)));
    /// ```
    #[must_use]
    pub const fn period(&self) -> &Period {
        &self.period
    }

    /// The algorithm, with its options.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let limit = Limit::new(2, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
    /// assert_eq!(limit.algorithm(), Algorithm::SlidingLog);
    /// ```
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How long a permit is held that is never given back; `None` if this limit is not one of concurrency.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let lease = |algorithm| Limit::new(20, Span::from_secs(30), algorithm).unwrap().lease();
    /// assert_eq!(lease(Algorithm::Concurrent), Some(Span::from_secs(30)));
    /// assert_eq!(lease(Algorithm::SLIDING_LOG), None);
    /// ```
    #[must_use]
    pub const fn lease(&self) -> Option<Span> {
        match (&self.algorithm, &self.period) {
            (Algorithm::Concurrent, Period::Every(lease)) => Some(*lease),
            (
                Algorithm::FixedWindow { .. }
                | Algorithm::SlidingLog
                | Algorithm::SlidingBuckets { .. }
                | Algorithm::SlidingWeighted
                | Algorithm::TokenBucket { .. }
                | Algorithm::LeakyBucket { .. }
                | Algorithm::Concurrent,
                Period::Every(_) | Period::Calendar(_),
            ) => None,
        }
    }

    /// How far this limit may be exceeded.
    ///
    /// ```
    /// use tidegate_core::{Headroom, Limit};
    /// assert_eq!(Limit::unlimited().headroom(), Headroom::None);
    /// ```
    #[must_use]
    pub const fn headroom(&self) -> Headroom {
        self.headroom
    }

    /// The largest cost that can ever pass in one take under the plain bound.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Refill, Span};
    /// let bucket = Algorithm::TokenBucket { burst: Some(30), refill: Refill::Continuous };
    /// assert_eq!(Limit::new(15, Span::from_secs(1), bucket).unwrap().capacity(), 30);
    /// let queue = Algorithm::LeakyBucket { queue: Some(4) };
    /// assert_eq!(Limit::new(15, Span::from_secs(1), queue).unwrap().capacity(), 5);
    /// ```
    #[must_use]
    pub fn capacity(&self) -> u64 {
        if self.is_unlimited() { u64::MAX } else { self.whole_units(self.measure.plain) }
    }

    /// Whether this limit refuses nothing.
    ///
    /// ```
    /// assert!(tidegate_core::Limit::unlimited().is_unlimited());
    /// ```
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.shape == Shape::Unlimited
    }

    /// The serial number of this limit: a key for caches that would otherwise compare whole definitions.
    ///
    /// The first call assigns the number and later calls return it. A clone has the same number if it was made after that.
    /// `assign` must return a different number for every limit, so a process needs one counter for all its stores. Equal
    /// limits may have different numbers.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let limit = Limit::new(2, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
    /// assert_eq!(limit.serial(|| 7), 7);
    /// assert_eq!(limit.serial(|| 8), 7);
    /// assert_eq!(limit.clone().serial(|| 9), 7);
    /// ```
    #[inline]
    pub fn serial(&self, assign: impl FnOnce() -> u64) -> u64 {
        *self.serial.get_or_init(assign)
    }
}

// === impl Limit: its measure ===

impl Limit {
    /// How much fits under a bound, in the unit of the algorithm: hits or ticks.
    ///
    /// This method is for stores that count elsewhere, as are [`deepest`](Self::deepest), [`weight`](Self::weight) and
    /// [`ticks`](Self::ticks).
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Bound, Headroom, Limit, Span};
    /// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    /// assert_eq!(limit.with_headroom(Headroom::Soft(10)).unwrap().room(Bound::Headroom), 110);
    /// ```
    #[must_use]
    pub fn room(&self, bound: Bound) -> u64 {
        match bound {
            Bound::Plain => self.measure.plain,
            Bound::Headroom => self.measure.stretched,
            Bound::Part(percent) => self.measure.partly_stretched(percent),
        }
    }

    /// How much can be in use after a charge: one capacity of debt, or the room with headroom if that is more.
    ///
    /// Under a concurrency limit it is four times the room with headroom, or at least 1,000 more than the room. After an outage
    /// more than the limit may run, granted by the nodes without the store, and all permits may be renewed at the same time: a
    /// renewal charges the new permit before it gives back the old one. A permit that has no room would not be counted.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    /// assert_eq!(limit.deepest(), 200);
    /// ```
    #[must_use]
    pub const fn deepest(&self) -> u64 {
        match self.lease() {
            Some(_) if self.measure.stretched == 0 => 0,
            Some(_) => {
                let deep = self.measure.stretched.saturating_mul(4);
                let least = self.measure.stretched.saturating_add(MORE_PERMITS);
                if deep < least { least } else { deep }
            }
            None => self.measure.most(),
        }
    }

    /// The weight of a cost under a bound, in the unit of the algorithm; `None` if it exceeds 64 bits.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Bound, Cost, Limit, Span};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// assert_eq!(limit.weight(Cost::new(2), Bound::Plain), Some(2 * limit.ticks().unwrap().token));
    /// ```
    #[must_use]
    pub fn weight(&self, cost: Cost, bound: Bound) -> Option<u64> {
        let weight = u128::from(cost.get()).saturating_mul(u128::from(self.measure.unit));
        let weight = match (self.headroom, bound) {
            (Headroom::Elastic(percent), Bound::Headroom) if self.ticks().is_some() => {
                weight.saturating_mul(100).div_ceil(u128::from(percent))
            }
            (Headroom::Elastic(percent), Bound::Part(part)) if self.ticks().is_some() => {
                let percent = headroom::partly(percent, part);
                weight.saturating_mul(100).div_ceil(u128::from(percent))
            }
            (
                Headroom::None | Headroom::Soft(_) | Headroom::Elastic(_),
                Bound::Plain | Bound::Headroom | Bound::Part(_),
            ) => weight,
        };
        u64::try_from(weight).ok()
    }

    /// The ticks in which a bucket counts; `None` for windows.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let ticks = limit.ticks().unwrap();
    /// assert_eq!((ticks.per_period, ticks.token), (15 << 17, 1 << 17));
    /// ```
    #[must_use]
    pub const fn ticks(&self) -> Option<Ticks> {
        match &self.shape {
            Shape::TokenBucket(TokenBucket(drain)) | Shape::LeakyBucket(LeakyBucket(drain)) => {
                Some(drain.public())
            }
            Shape::Unlimited
            | Shape::Blocked
            | Shape::FixedWindow(_)
            | Shape::SlidingLog(_)
            | Shape::SlidingBuckets(_)
            | Shape::SlidingWeighted(_) => None,
        }
    }

    /// The weight of a cost of 1 under the plain bound.
    pub(crate) fn unit(&self) -> u64 {
        self.measure.unit.max(1)
    }

    /// How many whole costs of 1 this much measure is, rounded down.
    pub(crate) fn whole_units(&self, measure: u64) -> u64 {
        measure.checked_div(self.measure.unit).unwrap_or(0)
    }
}

// === equality: by definition ===

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        let Self { amount, period, algorithm, headroom, measure, shape, serial: _ } = self;
        (amount, algorithm, headroom) == (&other.amount, &other.algorithm, &other.headroom)
            && (period, measure, shape) == (&other.period, &other.measure, &other.shape)
    }
}

impl Eq for Limit {}

impl Hash for Limit {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { amount, period, algorithm, headroom, measure: _, shape: _, serial: _ } = self;
        (amount, period, algorithm, headroom).hash(hasher);
    }
}

// === impl Now ===

impl Now {
    /// The time by the clock that a limit uses.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Calendar, Limit, Now, Timestamp};
    /// let daily = Limit::new(9, Calendar::new([Timestamp::EPOCH]).unwrap(), Algorithm::FIXED_WINDOW).unwrap();
    /// let now = Now { steady: Timestamp::from_nanos(1), calendar: Timestamp::from_nanos(2) };
    /// assert_eq!(now.of(&daily), now.calendar);
    /// ```
    #[must_use]
    pub const fn of(&self, limit: &Limit) -> Timestamp {
        match limit.period() {
            Period::Every(_) => self.steady,
            Period::Calendar(_) => self.calendar,
        }
    }
}
