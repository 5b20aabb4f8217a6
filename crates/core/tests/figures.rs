//! Figures that the core promises: no drift over a day, the sizes of states, and extreme limits.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "tests run with overflow checks and fail loudly"
)]

use tidegate_core::{
    Algorithm, Ask, Calendar, Cost, Headroom, Limit, LimitError, Outcome, Refill, Retry, Span,
    TakeReceipt, Timestamp, Written,
};

const DAY: u64 = 86_400_000_000_000;
/// A whole minute in November 2023, at which a tick begins.
const NOW: u64 = 1_699_999_980_000_000_000;

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn limit(amount: u64, period: Span, algorithm: Algorithm) -> Limit {
    Limit::new(amount, period, algorithm).unwrap()
}

/// Takes 1 whenever 1 can pass, for a day from `NOW`, and returns how many passed.
fn greedy_day(limit: &Limit) -> u64 {
    let mut written = Written::empty(limit);
    let (mut now, mut passed) = (NOW, 0);
    while now < NOW + DAY {
        match limit.take(&mut written, &Ask::new(at(now), Cost::ONE)).decision.outcome {
            Outcome::Allow => passed += 1,
            Outcome::Deny(Retry::After(wait)) => now += wait.as_nanos(),
            Outcome::Delay(_) | Outcome::Deny(Retry::Never) => {
                panic!("every refusal must have a retry time")
            }
        }
    }
    passed
}

#[test]
fn seven_per_minute_lose_nothing_over_a_day() {
    // Seven together, then 7 · 1,440 over the day, minus the one that comes back at the end of the day.
    let bucket = limit(7, Span::from_secs(60), Algorithm::TOKEN_BUCKET);
    assert_eq!(greedy_day(&bucket), 7 + 7 * 1_440 - 1);
}

#[test]
fn three_hundred_million_and_one_per_second_lose_nothing_over_a_day() {
    let bucket = limit(300_000_001, Span::from_secs(1), Algorithm::TOKEN_BUCKET);
    let mut written = Written::empty(&bucket);
    let mut passed = 0;
    // Take everything every half second. A full second would refill the whole bucket and hide a loss.
    for half in 0..=2 * 86_400u64 {
        let now = at(NOW + half * 500_000_000);
        let remaining = bucket.peek(&written, now).remaining;
        assert!(bucket.take(&mut written, &Ask::new(now, Cost::new(remaining))).decision.passes());
        passed += remaining;
    }
    assert_eq!(passed, 300_000_001 + 300_000_001 * 86_400);
}

#[test]
fn states_have_the_promised_sizes() {
    let full = |algorithm| {
        let limit = limit(500, Span::from_secs(3_600), algorithm);
        let mut written = Written::empty(&limit);
        for n in 0..500 {
            let taken = limit.take(&mut written, &Ask::new(at(NOW + n * 7_199_000_000), Cost::ONE));
            assert!(taken.decision.passes() || limit.algorithm() == Algorithm::LEAKY_BUCKET);
        }
        written.state.bytes()
    };
    assert_eq!(full(Algorithm::FIXED_WINDOW), 8);
    assert_eq!(full(Algorithm::TOKEN_BUCKET), 8);
    assert_eq!(full(Algorithm::LEAKY_BUCKET), 8);
    assert_eq!(full(Algorithm::SLIDING_WEIGHTED), 8);
    assert_eq!(full(Algorithm::SLIDING_BUCKETS), 16 + 2 * 61);
    assert!(full(Algorithm::SLIDING_LOG) <= 16 + 2 * 500);
}

#[test]
fn two_counts_take_a_second_word_only_when_they_do_not_fit_one() {
    let bytes = |amount, secs| {
        let limit = limit(amount, Span::from_secs(secs), Algorithm::SLIDING_WEIGHTED);
        let mut written = Written::empty(&limit);
        limit.take(&mut written, &Ask::new(at(NOW), Cost::ONE));
        written.state.bytes()
    };
    assert_eq!((bytes(8_191, 1), bytes(8_192, 1)), (8, 16));
    assert_eq!((bytes(524_287, 3_600), bytes(524_288, 3_600)), (8, 16));
}

#[test]
fn counters_take_four_bytes_only_when_two_are_too_few() {
    let bytes = |amount, headroom| {
        let limit = limit(amount, Span::from_secs(3_600), Algorithm::SLIDING_BUCKETS);
        let limit = limit.with_headroom(headroom).unwrap();
        let mut written = Written::empty(&limit);
        limit.take(&mut written, &Ask::new(at(NOW), Cost::ONE));
        written.state.bytes()
    };
    assert_eq!(bytes(32_767, Headroom::None), 16 + 2 * 61);
    assert_eq!(bytes(32_768, Headroom::None), 16 + 4 * 61);
    assert_eq!(bytes(20_000, Headroom::Elastic(327)), 16 + 2 * 61);
    assert_eq!(bytes(20_000, Headroom::Elastic(328)), 16 + 4 * 61);
}

#[test]
fn a_state_fits_three_words() {
    assert!(size_of::<tidegate_core::State>() <= 24);
}

#[test]
fn extreme_limits_work() {
    let year = Span::from_secs(365 * 86_400);
    for algorithm in Algorithm::ALL {
        let yearly = limit(1, year, algorithm);
        let mut written = Written::empty(&yearly);
        let one = Ask::new(at(NOW), Cost::ONE);
        assert!(yearly.take(&mut written, &one).decision.passes(), "{}", algorithm.name());
        assert!(!yearly.take(&mut written, &one).decision.passes(), "{}", algorithm.name());
        let all = Ask::new(at(NOW), Cost::new(u64::MAX));
        assert_eq!(yearly.decide(&written, &all).outcome, Outcome::Deny(Retry::Never));
    }
    for algorithm in [Algorithm::FIXED_WINDOW, Algorithm::SLIDING_WEIGHTED, Algorithm::TOKEN_BUCKET]
    {
        let fast = limit(1_000_000_000, Span::from_secs(1), algorithm);
        let mut written = Written::empty(&fast);
        let all = Ask::new(at(NOW), Cost::new(1_000_000_000));
        assert!(fast.take(&mut written, &all).decision.passes());
        assert_eq!(fast.peek(&written, at(NOW)).remaining, 0);
    }
}

#[test]
fn limits_that_cannot_be_counted_are_refused_with_the_reason() {
    let second = Span::from_secs(1);
    let new = |amount, period, algorithm| Limit::new(amount, period, algorithm).unwrap_err();
    let bucket = |burst| Algorithm::TokenBucket { burst: Some(burst), refill: Refill::Continuous };
    let first = Algorithm::FixedWindow { align: tidegate_core::Align::First };
    let cases = [
        (new(1, Span::from_nanos(999_999), Algorithm::TOKEN_BUCKET), LimitError::PeriodTooShort),
        (
            new(1, Span::from_secs(400 * 86_400 + 1), Algorithm::TOKEN_BUCKET),
            LimitError::PeriodTooLong,
        ),
        (new(1_000_000_001, second, Algorithm::TOKEN_BUCKET), LimitError::TooFast),
        (new(10_001, second, Algorithm::SLIDING_LOG), LimitError::AmountTooLarge { most: 10_000 }),
        (
            new((1 << 30) + 1, Span::from_secs(86_400), Algorithm::SLIDING_BUCKETS),
            LimitError::AmountTooLarge { most: 1 << 30 },
        ),
        (new(1, second, Algorithm::SlidingBuckets { buckets: 1 }), LimitError::Buckets),
        (new(1, second, Algorithm::SlidingBuckets { buckets: 1_001 }), LimitError::Buckets),
        (new(1, Span::from_secs(86_400), bucket(36_526)), LimitError::TooLongToFill),
        (new(1, second, bucket(0)), LimitError::NoBurst),
        (
            new(1, second, Algorithm::LeakyBucket { queue: Some(u64::MAX) }),
            LimitError::TooLongToFill,
        ),
        (new(1, Span::from_millis(999), first), LimitError::FirstNeedsSecond),
        (new(1_000_001, second, first), LimitError::AmountTooLarge { most: 1_000_000 }),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
    let calendar = Calendar::new([Timestamp::EPOCH]).unwrap();
    let error = Limit::new(1, calendar, Algorithm::TOKEN_BUCKET).unwrap_err();
    assert_eq!(error, LimitError::CalendarNeedsFixedWindow);
    for headroom in [Headroom::Soft(901), Headroom::Elastic(99), Headroom::Elastic(1_001)] {
        let refused = limit(1, second, Algorithm::TOKEN_BUCKET).with_headroom(headroom);
        assert_eq!(refused, Err(LimitError::Headroom));
    }
}

/// Two takes of 3 and 4 in one step of a sliding log cost only 1 and 0 in the end. Once 2 were taken out of the 4, no entry had 4
/// any more, and the second give-back removed nothing: 5 stayed counted for a week instead of 1.
#[test]
fn takes_of_one_step_are_given_back_whatever_is_left_of_each() {
    let limit = Limit::new(632, Span::from_secs(604_800), Algorithm::SlidingLog).unwrap();
    let mut written = Written::empty(&limit);
    let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
    let three = limit.take(&mut written, &Ask::new(at(11_657), Cost::new(3))).receipt.unwrap();
    let four = limit.take(&mut written, &Ask::new(at(11_718), Cost::new(4))).receipt.unwrap();
    let now = at(12_598);
    assert_eq!(three.mark, four.mark, "one step");
    written.give_back(now, &limit, &TakeReceipt { weight: 2, ..three });
    written.give_back(now, &limit, &four);
    assert_eq!(written.units_in_use(now), 1);
    // A take that is not among the entries of its step is not given back out of others.
    written.give_back(now, &limit, &four);
    assert_eq!(written.units_in_use(now), 1);
}

/// The clock was a day ahead and was corrected, and meanwhile the limit was lowered: what was counted under the larger limit still
/// fills the smaller one. (Its count did not fit into the bits of the smaller limit, and its upper bits were lost.)
#[test]
fn a_count_of_a_larger_calendar_limit_fills_a_smaller_one_after_the_clock_was_set_back() {
    let day = |day: u64| Timestamp::from_nanos(day * 86_400_000_000_000);
    let limit = |amount| {
        let days = Calendar::new((0..10).map(day)).unwrap();
        Limit::new(amount, days, Algorithm::FIXED_WINDOW).unwrap()
    };
    let (large, small) = (limit(64), limit(3));
    let mut written = Written::empty(&large);
    assert!(large.take(&mut written, &Ask::new(day(6), Cost::new(64))).decision.passes());
    assert!(!small.take(&mut written, &Ask::new(day(4), Cost::ONE)).decision.passes());
    assert!(small.take(&mut written, &Ask::new(day(5), Cost::ONE)).decision.passes());
}
