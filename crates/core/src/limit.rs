//! A limit: how much, per how long, by which algorithm.
//!
//! A [`Limit`] is checked once, when it is built, and compiled into the numbers its algorithm needs.
//! After that nothing can go wrong any more: every decision under it is total.
//!
//! ```text
//!   15 per second, token bucket of 30      Limit::new(15, second, TokenBucket { burst: Some(30), … })
//!   amount 0                               blocks every cost but 0
//!   Limit::unlimited()                     refuses nothing and remembers nothing
//! ```

use crate::algorithm::{Shape, leaky_bucket, token_bucket};
use crate::calendar::Calendar;
use crate::compile::{Measure, SHORTEST_PERIOD, checked_headroom, compile};
use crate::decision::{Bound, Cost};
use crate::time::Span;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicU64, Ordering};

/// How much, per how long, by which [`Algorithm`]; immutable once built.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, LimitError, Span};
/// let limit = Limit::new(500, Span::from_secs(3600), Algorithm::SLIDING_BUCKETS).unwrap();
/// assert_eq!(limit.amount(), 500);
/// let refused = Limit::new(500, Span::from_nanos(1), Algorithm::SLIDING_BUCKETS);
/// assert_eq!(refused, Err(LimitError::PeriodTooShort));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    amount: u64,
    period: Period,
    algorithm: Algorithm,
    headroom: Headroom,
    measure: Measure,
    pub(crate) shape: Shape,
    stamp: Stamp,
}

/// Which limit it is, among all that were built. It says nothing about what the limit says: all stamps are equal.
#[derive(Clone, Copy, Debug)]
struct Stamp(u64);

/// The time over which an amount is granted.
///
/// ```
/// use tidegate_core::{Period, Span};
/// assert_eq!(Period::from(Span::from_secs(1)), Period::Every(Span::from_secs(1)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// Always the same length.
    Every(Span),
    /// From one boundary of a calendar to the next; for fixed windows only.
    Calendar(Calendar),
}

/// The way of counting, with its options. A closed set: each has a chapter in [`crate::algorithm`].
///
/// ```
/// use tidegate_core::{Algorithm, Refill};
/// let bucket = Algorithm::TokenBucket { burst: Some(30), refill: Refill::Continuous };
/// assert_eq!(bucket.name(), "token_bucket");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A count that starts again with every window.
    FixedWindow {
        /// Where windows of equal length begin. A calendar's windows begin at its boundaries.
        align: Align,
    },
    /// Every take of the last period, remembered one by one.
    SlidingLog,
    /// Counts of sub-windows: the running one and as many whole ones as make a period.
    SlidingBuckets {
        /// How many sub-windows make a period.
        buckets: u16,
    },
    /// This window's count, and the last one's by the share that still overlaps.
    SlidingWeighted,
    /// Tokens that come back at the rate, up to a capacity.
    TokenBucket {
        /// The capacity; the amount when not given.
        burst: Option<u64>,
        /// How tokens come back.
        refill: Refill,
    },
    /// A queue that lets one pass at a time, at the rate.
    LeakyBucket {
        /// How many may wait; the amount when not given.
        queue: Option<u64>,
    },
}

/// Where fixed windows begin.
///
/// ```
/// assert_eq!(tidegate_core::Align::default(), tidegate_core::Align::Epoch);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Align {
    /// At whole multiples of the period since the epoch: the same for every key.
    #[default]
    Epoch,
    /// At the key's first take after its last window ended.
    First,
}

/// How the tokens of a token bucket come back.
///
/// ```
/// assert_eq!(tidegate_core::Refill::default(), tidegate_core::Refill::Continuous);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// One by one, evenly.
    #[default]
    Continuous,
    /// The whole amount at once, at whole multiples of the period since the epoch.
    Interval,
}

/// What a limit may grant beyond its amount, in percent; [`Bound`] says when.
///
/// ```
/// use tidegate_core::{Algorithm, Headroom, Limit, LimitError, Span};
/// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// assert!(limit.clone().with_headroom(Headroom::Soft(10)).is_ok());
/// assert_eq!(limit.with_headroom(Headroom::Elastic(99)), Err(LimitError::Headroom));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Headroom {
    /// Nothing.
    #[default]
    None,
    /// So many percent more: windows count further, buckets are larger, the rate stays.
    Soft(u16),
    /// Up to so many percent of the amount, 100 or more: the rate grows too.
    Elastic(u16),
}

/// Why a limit was refused.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, LimitError, Span};
/// let error = Limit::new(20_000, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap_err();
/// assert_eq!(error, LimitError::AmountTooLarge { most: 10_000 });
/// assert!(error.to_string().contains("at most 10000"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The period is shorter than a millisecond.
    PeriodTooShort,
    /// The period is longer than 400 days.
    PeriodTooLong,
    /// More than a thousand million a second.
    TooFast,
    /// The algorithm cannot count this far in this period.
    AmountTooLarge {
        /// The largest amount it takes.
        most: u64,
    },
    /// A token bucket or queue, headroom included, that takes over 100 years to fill or drain.
    TooLongToFill,
    /// A token bucket without room for a single token.
    NoBurst,
    /// Fewer than 2 or more than 1,000 sub-windows.
    Buckets,
    /// Windows that start with the first take need a period of at least a second.
    FirstNeedsSecond,
    /// A calendar needs fixed windows, aligned on its boundaries.
    CalendarNeedsFixedWindow,
    /// Headroom outside 0–900 % more, or elastic outside 100–1,000 %.
    Headroom,
    /// The amount with its headroom is more than the algorithm can count.
    HeadroomTooLarge,
}

/// The unit of time of a bucket: a fraction of its period, of which a token is a whole number.
///
/// ```
/// use tidegate_core::Ticks;
/// let ticks = Ticks { per_period: 8, token: 4, believed: 20 };
/// assert_eq!(ticks.per_period / ticks.token, 2); // two tokens a period
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Ticks in a period.
    pub per_period: u64,
    /// Ticks of one token or turn: a power of two.
    pub token: u64,
    /// The most ticks in use that are believed; more were written by a clock since put back.
    pub believed: u64,
}

// === impl Limit ===

impl Limit {
    /// `amount` per `period`, counted by `algorithm`; an amount of 0 blocks.
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
        Ok(Self { amount, period, algorithm, headroom, measure, shape, stamp: Stamp::next() })
    }

    /// No limit at all: refuses nothing, remembers nothing.
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
            stamp: Stamp::next(),
        }
    }

    /// The same limit with this headroom.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Headroom, Limit, Span};
    /// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    /// let soft = limit.with_headroom(Headroom::Soft(10)).unwrap();
    /// assert_eq!((soft.amount(), soft.headroom()), (100, Headroom::Soft(10)));
    /// ```
    pub fn with_headroom(self, headroom: Headroom) -> Result<Self, LimitError> {
        if self.is_unlimited() {
            let headroom = checked_headroom(headroom)?;
            return Ok(Self { headroom, stamp: Stamp::next(), ..self });
        }
        let (measure, shape) = compile(self.amount, &self.period, self.algorithm, headroom)?;
        Ok(Self { headroom, measure, shape, stamp: Stamp::next(), ..self })
    }

    /// The share of one of several who count apart: the amount, and what may come at once, by their number, at least 1.
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
            | Algorithm::SlidingWeighted) => other,
        };
        let divided = Self::new(share(self.amount), self.period.clone(), algorithm);
        let divided = divided.and_then(|limit| limit.with_headroom(self.headroom));
        // A limit that cannot be divided, because a share of it would take a century to fill, is kept whole.
        divided.unwrap_or_else(|_| self.clone())
    }

    /// A number that no other limit of this process has, except clones of this one. Limits that say the same may
    /// have different ones: it is a short cut for whoever looks up the same limit often.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let limit = Limit::new(2, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
    /// assert_eq!(limit.clone().stamp(), limit.stamp());
    /// assert_ne!(Limit::unlimited().stamp(), limit.stamp());
    /// ```
    #[must_use]
    pub const fn stamp(&self) -> u64 {
        self.stamp.0
    }

    /// The amount granted per period; the largest number when unlimited.
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

    /// The way of counting.
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

    /// What it may grant beyond its amount.
    ///
    /// ```
    /// use tidegate_core::{Headroom, Limit};
    /// assert_eq!(Limit::unlimited().headroom(), Headroom::None);
    /// ```
    #[must_use]
    pub const fn headroom(&self) -> Headroom {
        self.headroom
    }

    /// The largest cost that can ever pass at once under the plain bound.
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

    /// Whether it refuses nothing.
    ///
    /// ```
    /// assert!(tidegate_core::Limit::unlimited().is_unlimited());
    /// ```
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.shape == Shape::Unlimited
    }

    /// How much fits under a bound, in the measure of the algorithm: hits, or ticks.
    ///
    /// For stores that count elsewhere, as are [`deepest`](Self::deepest), [`weight`](Self::weight) and
    /// [`ticks`](Self::ticks).
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Bound, Headroom, Limit, Span};
    /// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    /// assert_eq!(limit.with_headroom(Headroom::Soft(10)).unwrap().room(Bound::Headroom), 110);
    /// ```
    #[must_use]
    pub const fn room(&self, bound: Bound) -> u64 {
        match bound {
            Bound::Plain => self.measure.plain,
            Bound::Headroom => self.measure.stretched,
        }
    }

    /// How deep a charge may go: one capacity into debt, or as far as headroom goes anyway.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    /// assert_eq!(limit.deepest(), 200);
    /// ```
    #[must_use]
    pub const fn deepest(&self) -> u64 {
        self.measure.most()
    }

    /// What a cost weighs under a bound, in the measure of the algorithm; `None` past 64 bits.
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
            (Headroom::None | Headroom::Soft(_) | Headroom::Elastic(_), _) => weight,
        };
        u64::try_from(weight).ok()
    }

    /// The ticks in which a bucket counts; none for windows.
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
            Shape::TokenBucket(token_bucket::Shape(drain))
            | Shape::LeakyBucket(leaky_bucket::Shape(drain)) => Some(drain.public()),
            Shape::Unlimited
            | Shape::Blocked
            | Shape::FixedWindow(_)
            | Shape::SlidingLog(_)
            | Shape::SlidingBuckets(_)
            | Shape::SlidingWeighted(_) => None,
        }
    }

    /// How many whole costs of 1 so much measure is, rounded down.
    pub(crate) fn whole_units(&self, measure: u64) -> u64 {
        measure.checked_div(self.measure.unit).unwrap_or(0)
    }
}

// === impl Stamp ===

impl Stamp {
    fn next() -> Self {
        /// Relaxed: nothing but the number itself is told by it.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl PartialEq for Stamp {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Stamp {}

impl Hash for Stamp {
    fn hash<H: Hasher>(&self, _hasher: &mut H) {}
}

// === impl Period ===

impl From<Span> for Period {
    fn from(span: Span) -> Self {
        Self::Every(span)
    }
}

impl From<Calendar> for Period {
    fn from(calendar: Calendar) -> Self {
        Self::Calendar(calendar)
    }
}

// === impl Algorithm ===

impl Algorithm {
    /// `fixed_window` on epoch boundaries.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Align};
    /// assert_eq!(Algorithm::FIXED_WINDOW, Algorithm::FixedWindow { align: Align::Epoch });
    /// ```
    pub const FIXED_WINDOW: Self = Self::FixedWindow { align: Align::Epoch };

    /// `sliding_log`.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Algorithm::SLIDING_LOG.name(), "sliding_log");
    /// ```
    pub const SLIDING_LOG: Self = Self::SlidingLog;

    /// `sliding_buckets` with 60 sub-windows: a minute each for an hour.
    ///
    /// ```
    /// use tidegate_core::Algorithm;
    /// assert_eq!(Algorithm::SLIDING_BUCKETS, Algorithm::SlidingBuckets { buckets: 60 });
    /// ```
    pub const SLIDING_BUCKETS: Self = Self::SlidingBuckets { buckets: 60 };

    /// `sliding_weighted`.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Algorithm::SLIDING_WEIGHTED.name(), "sliding_weighted");
    /// ```
    pub const SLIDING_WEIGHTED: Self = Self::SlidingWeighted;

    /// `token_bucket` as large as the amount, refilled continuously.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Refill};
    /// let long = Algorithm::TokenBucket { burst: None, refill: Refill::Continuous };
    /// assert_eq!(Algorithm::TOKEN_BUCKET, long);
    /// ```
    pub const TOKEN_BUCKET: Self = Self::TokenBucket { burst: None, refill: Refill::Continuous };

    /// `leaky_bucket` with a queue as long as the amount.
    ///
    /// ```
    /// use tidegate_core::Algorithm;
    /// assert_eq!(Algorithm::LEAKY_BUCKET, Algorithm::LeakyBucket { queue: None });
    /// ```
    pub const LEAKY_BUCKET: Self = Self::LeakyBucket { queue: None };

    /// All six with their defaults, in the order of the chapters.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Algorithm::ALL.len(), 6);
    /// ```
    pub const ALL: [Self; 6] = [
        Self::FIXED_WINDOW,
        Self::SLIDING_LOG,
        Self::SLIDING_BUCKETS,
        Self::SLIDING_WEIGHTED,
        Self::TOKEN_BUCKET,
        Self::LEAKY_BUCKET,
    ];

    /// Its name in configuration, metrics and answers.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Algorithm::FIXED_WINDOW.name(), "fixed_window");
    /// ```
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FixedWindow { .. } => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingBuckets { .. } => "sliding_buckets",
            Self::SlidingWeighted => "sliding_weighted",
            Self::TokenBucket { .. } => "token_bucket",
            Self::LeakyBucket { .. } => "leaky_bucket",
        }
    }
}

// === impl LimitError ===

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeriodTooShort => write!(f, "the period is shorter than 1 ms"),
            Self::PeriodTooLong => write!(f, "the period is longer than 400 days"),
            Self::TooFast => write!(f, "the rate is above 1000000000 a second"),
            Self::AmountTooLarge { most } => {
                write!(
                    f,
                    "this algorithm counts at most {most} per period; use a smaller amount or sliding_weighted or token_bucket"
                )
            }
            Self::TooLongToFill => {
                write!(
                    f,
                    "burst or queue, headroom included, takes over 100 years to fill; use a smaller one"
                )
            }
            Self::NoBurst => write!(f, "burst 0 lets nothing pass; use an amount of 0 to block"),
            Self::Buckets => write!(f, "buckets must be 2 to 1000"),
            Self::FirstNeedsSecond => write!(f, "align: first needs a period of at least 1 s"),
            Self::CalendarNeedsFixedWindow => {
                write!(f, "calendar periods need fixed_window, and align has no place there")
            }
            Self::Headroom => write!(f, "soft takes 0 to 900 %, elastic 100 to 1000 %"),
            Self::HeadroomTooLarge => {
                write!(
                    f,
                    "the amount with its headroom is more than this algorithm counts; use less headroom"
                )
            }
        }
    }
}

impl core::error::Error for LimitError {}
