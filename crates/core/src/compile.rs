//! Compiles the definition of a limit into the numbers that its algorithm needs, and refuses limits that cannot be counted.
//!
//! ```text
//!   15 per second, burst 30   ──►   Measure { unit: 2¹⁷ ticks, plain: 30 units, … }   Shape::TokenBucket(…)
//! ```

use crate::algorithm::{
    Algorithm, Align, Refill, Shape, drain::Drain, fixed_window::FixedWindow,
    leaky_bucket::LeakyBucket, sliding_buckets::SlidingBuckets, sliding_log::SlidingLog,
    sliding_weighted::SlidingWeighted, token_bucket::TokenBucket,
};
use crate::calendar::{Calendar, Period};
use crate::headroom::Headroom;
use crate::time::Span;
use core::fmt;

/// The sizes of a limit in the unit of its algorithm: hits for windows, ticks for buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Measure {
    /// The weight of a cost of 1.
    pub(crate) unit: u64,
    /// How much fits under the plain bound.
    pub(crate) plain: u64,
    /// How much fits with headroom.
    pub(crate) stretched: u64,
}

/// Why a limit cannot be built.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, LimitError, Span};
/// let error = Limit::new(20_000, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap_err();
/// assert_eq!(error, LimitError::AmountTooLarge { most: 10_000 });
/// assert!(error.to_string().contains("at most 10000"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The period is shorter than 1 ms.
    PeriodTooShort,
    /// The period is longer than 400 days.
    PeriodTooLong,
    /// The rate is above 1,000,000,000 per second.
    TooFast,
    /// The amount is more than the algorithm can count in this period.
    AmountTooLarge {
        /// The largest amount that the algorithm accepts.
        most: u64,
    },
    /// A concurrency limit of more than 10,000.
    TooManyPermits,
    /// A token bucket or queue, including headroom, takes over 100 years to fill or drain.
    TooLongToFill,
    /// A token bucket cannot hold a single token.
    NoBurst,
    /// The number of sub-windows is not between 2 and 1,000.
    Buckets,
    /// With `align: first` the period must be at least 1 s.
    FirstNeedsSecond,
    /// A calendar period works only with fixed windows, which then begin at the calendar's boundaries.
    CalendarNeedsFixedWindow,
    /// Soft headroom is not between 0 and 900 %, or elastic headroom is not between 100 and 1,000 %.
    Headroom,
    /// The amount with its headroom is more than the algorithm can count.
    HeadroomTooLarge,
}

pub(crate) const SHORTEST_PERIOD: Span = Span::from_millis(1);
/// A leap year and a month: "per year" and "13 months" fit, and a period in microseconds fits 53 bits.
const LONGEST_PERIOD: Span = Span::from_secs(400 * 86_400);
/// Elastic headroom up to ten times the amount. Counters are sized for it.
const MOST_STRETCH_PERCENT: u16 = 1_000;
/// A log has one entry per take. For larger amounts sub-windows are nearly as exact and much smaller.
const MOST_IN_LOG: u64 = 10_000;
/// Twice this still fits a counter of four bytes.
const MOST_IN_BUCKETS: u64 = 1 << 30;
/// Twice this (ten times this with headroom) fits one word beside a start in thousandths of the period.
const MOST_FROM_FIRST: u64 = 1_000_000;
/// Twice this fits one word beside a start in minutes.
const MOST_IN_CALENDAR: u64 = 1 << 34;
/// No caller waits longer. And ticks, including debt and headroom, fit 64 bits.
const HUNDRED_YEARS: Span = Span::from_secs(100 * 31_557_600);

/// The measure and the shape of a limit. An amount of 0 blocks with every algorithm.
pub(crate) fn compile(
    amount: u64,
    period: &Period,
    algorithm: Algorithm,
    headroom: Headroom,
) -> Result<(Measure, Shape), LimitError> {
    let headroom = checked_headroom(headroom)?;
    let (measure, shape) = match (period, algorithm) {
        (Period::Every(span), algorithm) => {
            of_span(amount, checked_rate(amount, *span)?, algorithm, headroom)?
        }
        (Period::Calendar(calendar), Algorithm::FixedWindow { align: Align::Epoch }) => {
            of_calendar(amount, calendar, headroom)?
        }
        (Period::Calendar(_), _) => return Err(LimitError::CalendarNeedsFixedWindow),
    };
    match (amount, shape) {
        (0, _) => Ok((measure, Shape::Blocked)),
        (_, Some(shape)) => Ok((measure, shape)),
        (_, None) => Err(LimitError::TooFast),
    }
}

/// The headroom, if it is within its bounds.
pub(crate) const fn checked_headroom(headroom: Headroom) -> Result<Headroom, LimitError> {
    match headroom {
        Headroom::Soft(percent) if percent > MOST_STRETCH_PERCENT - 100 => {
            Err(LimitError::Headroom)
        }
        Headroom::Elastic(percent) if percent < 100 || percent > MOST_STRETCH_PERCENT => {
            Err(LimitError::Headroom)
        }
        Headroom::None | Headroom::Soft(_) | Headroom::Elastic(_) => Ok(headroom),
    }
}

/// The period in nanoseconds, if the period and the rate are within their bounds.
fn checked_rate(amount: u64, period: Span) -> Result<u64, LimitError> {
    if period < SHORTEST_PERIOD {
        Err(LimitError::PeriodTooShort)
    } else if period > LONGEST_PERIOD {
        Err(LimitError::PeriodTooLong)
    } else if amount > period.as_nanos() {
        Err(LimitError::TooFast)
    } else {
        Ok(period.as_nanos())
    }
}

/// A measure, and the shape if the numbers allow one.
type Compiled = (Measure, Option<Shape>);

fn of_span(
    amount: u64,
    window: u64,
    algorithm: Algorithm,
    headroom: Headroom,
) -> Result<Compiled, LimitError> {
    match algorithm {
        Algorithm::FixedWindow { align } => {
            let measure = counting(amount, headroom, most_in_fixed_window(align, window)?)?;
            let shape = FixedWindow::new(align, window, measure.most());
            Ok((measure, shape.map(Shape::FixedWindow)))
        }
        Algorithm::Concurrent if amount > MOST_IN_LOG => Err(LimitError::TooManyPermits),
        Algorithm::SlidingLog | Algorithm::Concurrent => {
            let measure = counting(amount, headroom, MOST_IN_LOG)?;
            Ok((measure, SlidingLog::new(window).map(Shape::SlidingLog)))
        }
        Algorithm::SlidingBuckets { buckets } => of_buckets(amount, window, buckets, headroom),
        Algorithm::SlidingWeighted => {
            let measure = counting(amount, headroom, u64::MAX)?;
            let shape = SlidingWeighted::new(measure.stretched, window, measure.most());
            Ok((measure, shape.map(Shape::SlidingWeighted)))
        }
        Algorithm::TokenBucket { burst: Some(0), .. } if amount > 0 => Err(LimitError::NoBurst),
        Algorithm::TokenBucket { burst, refill } => {
            let burst = burst.unwrap_or(amount);
            let (measure, drain) =
                draining(amount, window, refill, burst, headroom.of_bucket(burst))?;
            Ok((measure, drain.map(|drain| Shape::TokenBucket(TokenBucket(drain)))))
        }
        Algorithm::LeakyBucket { queue } => {
            let queue = queue.unwrap_or(amount);
            // One more than may wait: the request that passes immediately.
            let (size, more) = (queue.saturating_add(1), headroom.of_bucket(queue));
            let (measure, drain) = draining(amount, window, Refill::Continuous, size, more)?;
            Ok((measure, drain.map(|drain| Shape::LeakyBucket(LeakyBucket(drain)))))
        }
    }
}

fn of_calendar(
    amount: u64,
    calendar: &Calendar,
    headroom: Headroom,
) -> Result<Compiled, LimitError> {
    let measure = counting(amount, headroom, MOST_IN_CALENDAR)?;
    let shape = FixedWindow::of_calendar(calendar.clone(), measure.most());
    Ok((measure, shape.map(Shape::FixedWindow)))
}

fn of_buckets(
    amount: u64,
    window: u64,
    buckets: u16,
    headroom: Headroom,
) -> Result<Compiled, LimitError> {
    if !(2..=1_000).contains(&buckets) {
        return Err(LimitError::Buckets);
    }
    let measure = counting(amount, headroom, MOST_IN_BUCKETS)?;
    if measure.most() > u64::from(u32::MAX) {
        return Err(LimitError::HeadroomTooLarge);
    }
    let shape = SlidingBuckets::new(window, buckets, measure.most());
    Ok((measure, shape.map(Shape::SlidingBuckets)))
}

const fn most_in_fixed_window(align: Align, window: u64) -> Result<u64, LimitError> {
    match align {
        Align::Epoch => Ok(u64::MAX),
        Align::First if window < Span::from_secs(1).as_nanos() => Err(LimitError::FirstNeedsSecond),
        Align::First => Ok(MOST_FROM_FIRST),
    }
}

/// The measure of an algorithm that counts hits.
fn counting(amount: u64, headroom: Headroom, most: u64) -> Result<Measure, LimitError> {
    if amount > most {
        return Err(LimitError::AmountTooLarge { most });
    }
    Ok(Measure { unit: 1, plain: amount, stretched: headroom.of_window(amount) })
}

/// The measure of an algorithm that drains, and its drain. A blocked limit has no drain.
fn draining(
    amount: u64,
    window: u64,
    refill: Refill,
    size: u64,
    more: u64,
) -> Result<(Measure, Option<Drain>), LimitError> {
    if amount == 0 {
        return Ok((Measure { unit: 1, plain: 0, stretched: 0 }, None));
    }
    let drain = Drain::new(amount, window, refill).ok_or(LimitError::TooFast)?;
    let ticks = |size: u64| {
        let ticks = size.checked_mul(drain.unit());
        ticks
            .filter(|ticks| drain.lasts_at_most(*ticks, HUNDRED_YEARS))
            .ok_or(LimitError::TooLongToFill)
    };
    let (plain, stretched) = (ticks(size)?, ticks(size.saturating_add(more))?);
    let measure = Measure { unit: drain.unit(), plain, stretched };
    Ok((measure, Some(drain.bounded(stretched, measure.most()))))
}

// === impl Measure ===

impl Measure {
    /// The largest level that is ever written: twice the capacity when in debt, or the capacity with headroom.
    pub(crate) const fn most(&self) -> u64 {
        let debt = self.plain.saturating_mul(2);
        if debt > self.stretched { debt } else { self.stretched }
    }

    /// The capacity with this many per cent of the headroom, rounded down.
    pub(crate) fn partly_stretched(&self, percent: u8) -> u64 {
        if percent >= 100 {
            return self.stretched;
        }
        let more = u128::from(self.stretched.saturating_sub(self.plain));
        let part = more.saturating_mul(u128::from(percent)) / 100;
        self.plain.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

// === impl LimitError ===

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeriodTooShort => f.write_str("the period is shorter than 1 ms"),
            Self::PeriodTooLong => f.write_str("the period is longer than 400 days"),
            Self::TooFast => f.write_str("the rate is above 1000000000 a second"),
            Self::AmountTooLarge { most } => write!(
                f,
                "this algorithm counts at most {most} per period; use a smaller amount or sliding_weighted or token_bucket"
            ),
            Self::TooManyPermits => f.write_str("a concurrency limit is at most 10000"),
            Self::TooLongToFill => f.write_str(
                "burst or queue, headroom included, takes over 100 years to fill; use a smaller one",
            ),
            Self::NoBurst => {
                f.write_str("a burst of 0 lets nothing pass; to block, use an amount of 0")
            }
            Self::Buckets => f.write_str("buckets must be between 2 and 1000"),
            Self::FirstNeedsSecond => f.write_str("align: first needs a period of at least 1 s"),
            Self::CalendarNeedsFixedWindow => {
                f.write_str("calendar periods need fixed_window without align")
            }
            Self::Headroom => {
                f.write_str("soft must be between 0 and 900 %, elastic between 100 and 1000 %")
            }
            Self::HeadroomTooLarge => f.write_str(
                "the amount with its headroom is more than this algorithm can count; use less headroom",
            ),
        }
    }
}

impl core::error::Error for LimitError {}
