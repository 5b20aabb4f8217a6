//! Limits as bytes: the shapes under which the states of a frame were written.
//!
//! ```text
//!   amount             varint
//!   period             0, nanoseconds                 a fixed length
//!                      1, count, minutes …            boundaries of a calendar, each as the difference to the one before
//!   algorithm          a byte, then its options       see `ALGORITHMS` in docs/data-format.md
//!   headroom           0 │ 1, percent (soft) │ 2, percent (elastic)
//! ```
//!
//! All numbers are varints (LEB128).

use tidegate_core::{
    Algorithm, Align, Calendar, Headroom, Limit, Period, Refill, Span, Timestamp, varint,
};

const NANOS_PER_MINUTE: u64 = 60_000_000_000;

/// Boundaries that are read back at most: a table of days for a century.
const MOST_BOUNDARIES: u64 = 40_000;

/// Appends a limit.
pub(super) fn write(limit: &Limit, bytes: &mut Vec<u8>) {
    let mut number = |number: u64| varint::encode(bytes, number);
    number(limit.amount());
    match limit.period() {
        Period::Every(span) => [0, span.as_nanos()].into_iter().for_each(&mut number),
        Period::Calendar(calendar) => {
            let boundaries = calendar.boundaries();
            number(1);
            number(u64::try_from(boundaries.len()).unwrap_or(0));
            let mut last = 0;
            for boundary in boundaries {
                let minute = boundary.as_nanos() / NANOS_PER_MINUTE;
                number(minute.saturating_sub(last));
                last = minute;
            }
        }
    }
    let optional = |kind: u64, option: Option<u64>| match option {
        None => [Some(kind), None],
        Some(option) => [Some(kind.saturating_add(1)), Some(option)],
    };
    let algorithm = match limit.algorithm() {
        Algorithm::FixedWindow { align: Align::Epoch } => [Some(1), None],
        Algorithm::FixedWindow { align: Align::First } => [Some(2), None],
        Algorithm::SlidingLog => [Some(3), None],
        Algorithm::SlidingBuckets { buckets } => [Some(4), Some(u64::from(buckets))],
        Algorithm::SlidingWeighted => [Some(5), None],
        Algorithm::TokenBucket { burst, refill: Refill::Continuous } => optional(6, burst),
        Algorithm::TokenBucket { burst, refill: Refill::Interval } => optional(8, burst),
        Algorithm::LeakyBucket { queue } => optional(10, queue),
        Algorithm::Concurrent => [Some(12), None],
    };
    algorithm.into_iter().flatten().for_each(&mut number);
    match limit.headroom() {
        Headroom::None => number(0),
        Headroom::Soft(percent) => [1, u64::from(percent)].into_iter().for_each(&mut number),
        Headroom::Elastic(percent) => [2, u64::from(percent)].into_iter().for_each(&mut number),
    }
}

/// Reads a limit; `None` when the bytes are not exactly one limit.
pub(super) fn read(bytes: &[u8]) -> Option<Limit> {
    let mut at = 0;
    let mut number = || {
        let number;
        (number, at) = varint::decode(bytes, at)?;
        Some(number)
    };
    let amount = number()?;
    let period = match number()? {
        0 => Period::Every(Span::from_nanos(number()?)),
        1 => {
            let count = number().filter(|count| *count <= MOST_BOUNDARIES)?;
            let mut minute = 0u64;
            let boundaries = (0..count).map(|_| {
                minute = minute.checked_add(number()?)?;
                Some(Timestamp::from_nanos(minute.checked_mul(NANOS_PER_MINUTE)?))
            });
            Period::Calendar(Calendar::new(boundaries.collect::<Option<Vec<_>>>()?).ok()?)
        }
        _ => return None,
    };
    let algorithm = match number()? {
        1 => Algorithm::FixedWindow { align: Align::Epoch },
        2 => Algorithm::FixedWindow { align: Align::First },
        3 => Algorithm::SlidingLog,
        4 => Algorithm::SlidingBuckets { buckets: u16::try_from(number()?).ok()? },
        5 => Algorithm::SlidingWeighted,
        6 => Algorithm::TokenBucket { burst: None, refill: Refill::Continuous },
        7 => Algorithm::TokenBucket { burst: Some(number()?), refill: Refill::Continuous },
        8 => Algorithm::TokenBucket { burst: None, refill: Refill::Interval },
        9 => Algorithm::TokenBucket { burst: Some(number()?), refill: Refill::Interval },
        10 => Algorithm::LeakyBucket { queue: None },
        11 => Algorithm::LeakyBucket { queue: Some(number()?) },
        12 => Algorithm::Concurrent,
        _ => return None,
    };
    let headroom = match number()? {
        0 => Headroom::None,
        1 => Headroom::Soft(u16::try_from(number()?).ok()?),
        2 => Headroom::Elastic(u16::try_from(number()?).ok()?),
        _ => return None,
    };
    let limit = Limit::new(amount, period, algorithm).ok()?.with_headroom(headroom).ok()?;
    (at == bytes.len()).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits() -> Vec<Limit> {
        let minutes = |minutes: u64| Timestamp::from_nanos(minutes * NANOS_PER_MINUTE);
        let calendar = Calendar::new([0, 1_440, 2_820].map(minutes)).unwrap();
        let algorithms = [
            Algorithm::FixedWindow { align: Align::Epoch },
            Algorithm::FixedWindow { align: Align::First },
            Algorithm::SlidingLog,
            Algorithm::SlidingBuckets { buckets: 60 },
            Algorithm::SlidingWeighted,
            Algorithm::TokenBucket { burst: None, refill: Refill::Continuous },
            Algorithm::TokenBucket { burst: Some(7), refill: Refill::Continuous },
            Algorithm::TokenBucket { burst: None, refill: Refill::Interval },
            Algorithm::TokenBucket { burst: Some(300), refill: Refill::Interval },
            Algorithm::LeakyBucket { queue: None },
            Algorithm::LeakyBucket { queue: Some(9) },
            Algorithm::Concurrent,
        ];
        let limit = |algorithm| Limit::new(500, Span::from_secs(3_600), algorithm).unwrap();
        let mut limits: Vec<Limit> = algorithms.into_iter().map(limit).collect();
        limits.push(Limit::new(20, calendar, Algorithm::FIXED_WINDOW).unwrap());
        let more = [Headroom::Soft(10), Headroom::Elastic(150)];
        let windows =
            more.map(|headroom| limit(Algorithm::FIXED_WINDOW).with_headroom(headroom).unwrap());
        limits.extend(windows);
        limits
    }

    #[test]
    fn every_limit_is_read_back() {
        for limit in limits() {
            let mut bytes = vec![];
            write(&limit, &mut bytes);
            assert_eq!(read(&bytes), Some(limit.clone()), "{limit:?}");
            assert_eq!(read(&bytes[..bytes.len() - 1]), None, "{limit:?}, a byte short");
            bytes.push(0);
            assert_eq!(read(&bytes), None, "{limit:?}, a byte too long");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_limit_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(limit) = read(&bytes) {
                let mut again = vec![];
                write(&limit, &mut again);
                prop_assert_eq!(read(&again), Some(limit));
            }
        }
    }
}
