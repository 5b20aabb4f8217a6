//! From what a limit says to the numbers that its algorithm needs; whatever cannot be counted is refused here.
//!
//! ```text
//!   15 per second, burst 30   ──►   Measure { unit: 2¹⁷ ticks, plain: 30 units, … }   Shape::TokenBucket(…)
//! ```

use crate::algorithm::{
    Shape, drain::Drain, fixed_window, leaky_bucket, sliding_buckets, sliding_log,
    sliding_weighted, token_bucket,
};
use crate::calendar::Calendar;
use crate::limit::{Algorithm, Align, Headroom, LimitError, Period, Refill};
use crate::time::Span;

/// What the algorithm counts in: hits for windows, ticks for buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Measure {
    /// What a cost of 1 weighs.
    pub(crate) unit: u64,
    /// How much fits under the plain bound.
    pub(crate) plain: u64,
    /// How much fits with headroom.
    pub(crate) stretched: u64,
}

pub(crate) const SHORTEST_PERIOD: Span = Span::from_millis(1);
/// A leap year and a month: "per year" and "13 months" fit, and a period in microseconds fits 53 bits.
const LONGEST_PERIOD: Span = Span::from_secs(400 * 86_400);
/// Elastic to ten times the amount; counters are sized for it.
const MOST_STRETCH_PERCENT: u16 = 1_000;
/// An entry each: a log of more is a table, and sub-windows count as exactly for less.
const MOST_IN_LOG: u64 = 10_000;
/// Twice this still fits the four bytes of a counter.
const MOST_IN_BUCKETS: u64 = 1 << 30;
/// Twice this, ten times this with headroom, and a start to a thousandth of the period share a word.
const MOST_FROM_FIRST: u64 = 1_000_000;
/// Twice this and a start in minutes share a word.
const MOST_IN_CALENDAR: u64 = 1 << 34;
/// Nobody waits longer; and ticks, debt and headroom included, fit 64 bits.
const HUNDRED_YEARS: Span = Span::from_secs(100 * 31_557_600);

/// The numbers of a limit, and its algorithm's; amount 0 blocks whatever the algorithm.
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

/// Headroom within its bounds.
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

/// The period in nanoseconds, if a decision can be computed for this rate at all.
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

/// A measure, and the shape if there is one for such numbers.
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
            let shape = fixed_window::Shape::new(align, window, measure.most());
            Ok((measure, shape.map(Shape::FixedWindow)))
        }
        Algorithm::SlidingLog => {
            let measure = counting(amount, headroom, MOST_IN_LOG)?;
            Ok((measure, sliding_log::Shape::new(window).map(Shape::SlidingLog)))
        }
        Algorithm::SlidingBuckets { buckets } => of_buckets(amount, window, buckets, headroom),
        Algorithm::SlidingWeighted => {
            let measure = counting(amount, headroom, u64::MAX)?;
            let shape = sliding_weighted::Shape::new(measure.stretched, window, measure.most());
            Ok((measure, shape.map(Shape::SlidingWeighted)))
        }
        Algorithm::TokenBucket { burst: Some(0), .. } if amount > 0 => Err(LimitError::NoBurst),
        Algorithm::TokenBucket { burst, refill } => {
            let burst = burst.unwrap_or(amount);
            let (measure, drain) =
                draining(amount, window, refill, burst, headroom.of_bucket(burst))?;
            Ok((measure, drain.map(|drain| Shape::TokenBucket(token_bucket::Shape(drain)))))
        }
        Algorithm::LeakyBucket { queue } => {
            let queue = queue.unwrap_or(amount);
            // One more than may wait: the one that passes at once.
            let (size, more) = (queue.saturating_add(1), headroom.of_bucket(queue));
            let (measure, drain) = draining(amount, window, Refill::Continuous, size, more)?;
            Ok((measure, drain.map(|drain| Shape::LeakyBucket(leaky_bucket::Shape(drain)))))
        }
    }
}

fn of_calendar(
    amount: u64,
    calendar: &Calendar,
    headroom: Headroom,
) -> Result<Compiled, LimitError> {
    let measure = counting(amount, headroom, MOST_IN_CALENDAR)?;
    let shape = fixed_window::Shape::of_calendar(calendar.clone(), measure.most());
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
    let shape = sliding_buckets::Shape::new(window, buckets, measure.most());
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

/// The measure of an algorithm that drains, and its drain; a blocked one has none.
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
    /// The most that is ever written down: twice the capacity in debt, or the capacity stretched.
    pub(crate) const fn most(&self) -> u64 {
        let debt = self.plain.saturating_mul(2);
        if debt > self.stretched { debt } else { self.stretched }
    }
}

// === impl Headroom ===

impl Headroom {
    /// What a window may count to: both kinds of headroom let it count further.
    fn of_window(self, amount: u64) -> u64 {
        match self {
            Self::None => amount,
            Self::Soft(percent) => amount.saturating_add(percent_of(amount, percent)),
            Self::Elastic(percent) => percent_of(amount, percent),
        }
    }

    /// What more a bucket may hold: elastic grows its rate, not its size.
    fn of_bucket(self, size: u64) -> u64 {
        match self {
            Self::None | Self::Elastic(_) => 0,
            Self::Soft(percent) => percent_of(size, percent),
        }
    }
}

/// `⌊n · percent / 100⌋`.
fn percent_of(n: u64, percent: u16) -> u64 {
    let share = u128::from(n).saturating_mul(u128::from(percent)) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}
