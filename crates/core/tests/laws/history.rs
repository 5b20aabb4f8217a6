//! Random limits, and random sequences of requests to them.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Align, Calendar, Limit, Period, Refill, Span, Timestamp};

/// The algorithms, with the options that change how they count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    FixedEpoch,
    FixedFirst,
    FixedCalendar,
    Log,
    Buckets,
    Weighted,
    Token,
    TokenInterval,
    Leaky,
}

impl Family {
    pub(crate) const ALL: [Self; 9] = [
        Self::FixedEpoch,
        Self::FixedFirst,
        Self::FixedCalendar,
        Self::Log,
        Self::Buckets,
        Self::Weighted,
        Self::Token,
        Self::TokenInterval,
        Self::Leaky,
    ];
}

/// The numbers of a limit, as the model needs them. [`Params::limit`] builds the limit.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) family: Family,
    pub(crate) amount: u64,
    /// In nanoseconds; the length of the calendar's first window for `FixedCalendar`.
    pub(crate) window: u64,
    pub(crate) buckets: u16,
    /// Burst, or queue.
    pub(crate) size: u64,
    /// The first request comes at or after this instant.
    pub(crate) start: u64,
}

impl Params {
    pub(crate) fn limit(&self) -> Limit {
        self.limit_of(self.amount, self.window, self.size)
    }

    /// A limit of this family of algorithms with other numbers.
    pub(crate) fn limit_of(&self, amount: u64, window: u64, size: u64) -> Limit {
        let every = Period::Every(Span::from_nanos(window));
        let (period, algorithm) = match self.family {
            Family::FixedEpoch => (every, Algorithm::FIXED_WINDOW),
            Family::FixedFirst => (every, Algorithm::FixedWindow { align: Align::First }),
            Family::FixedCalendar => (Period::Calendar(self.calendar()), Algorithm::FIXED_WINDOW),
            Family::Log => (every, Algorithm::SLIDING_LOG),
            Family::Buckets => (every, Algorithm::SlidingBuckets { buckets: self.buckets }),
            Family::Weighted => (every, Algorithm::SLIDING_WEIGHTED),
            Family::Token => (every, token(size, Refill::Continuous)),
            Family::TokenInterval => (every, token(size, Refill::Interval)),
            Family::Leaky => (every, Algorithm::LeakyBucket { queue: Some(size) }),
        };
        Limit::new(amount, period, algorithm).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Boundaries in whole minutes, with alternating long and short windows, from the start on.
    pub(crate) fn calendar(&self) -> Calendar {
        let minute = 60_000_000_000;
        let first = self.start / minute;
        let length = (self.window / minute).max(2);
        let boundaries = (0..200u64).map(|n| first + n * length - (n % 2) * (length / 2));
        Calendar::new(boundaries.map(|minutes| Timestamp::from_nanos(minutes * minute))).unwrap()
    }
}

fn token(burst: u64, refill: Refill) -> Algorithm {
    Algorithm::TokenBucket { burst: Some(burst), refill }
}

/// A limit and a sequence of requests.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) params: Params,
    pub(crate) steps: Vec<Step>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Nanoseconds since the previous request.
    pub(crate) gap: u64,
    pub(crate) cost: u64,
    /// How long the caller can wait; used by leaky buckets.
    pub(crate) wait: u64,
    /// A random number for choices within a law.
    pub(crate) dice: u64,
}

/// Cases for one family.
pub(crate) fn cases(family: Family) -> impl Strategy<Value = Case> {
    (params(family), prop::collection::vec(raw_step(), 1..40)).prop_map(|(params, raw)| {
        let steps = raw.into_iter().map(|raw| raw.of(&params)).collect();
        Case { params, steps }
    })
}

fn params(family: Family) -> impl Strategy<Value = Params> {
    let amount = prop_oneof![6 => 1u64..=12, 2 => 1u64..=200, 1 => 1u64..=9_000];
    let window = prop_oneof![
        Just(1_000_000_000u64),
        Just(60_000_000_000),
        Just(3_600_000_000_000),
        Just(86_400_000_000_000),
        1_000_000_000u64..10_000_000_000,
        1_000_000_000u64..100_000_000_000_000,
        // Shorter than a second only where that is allowed.
        1_000_000u64..1_000_000_000,
    ];
    let start =
        prop_oneof![Just(0u64), 0u64..1 << 40, Just(1_700_000_000_000_000_000), 0u64..1 << 61];
    let size = prop_oneof![Just(None), (0u64..30).prop_map(Some)];
    (amount, window, 2u16..70, size, start).prop_map(
        move |(amount, window, buckets, size, start)| {
            let size = size.unwrap_or(amount);
            let window = match family {
                Family::FixedFirst => window.max(1_000_000_000),
                Family::FixedCalendar => window.max(120_000_000_000),
                _ => window.max(amount),
            };
            let size = if family == Family::Leaky { size } else { size.max(1) };
            Params { family, amount, window, buckets, size, start }
        },
    )
}

/// A random request, before it is scaled to a limit.
#[derive(Clone, Copy, Debug)]
struct RawStep {
    gap: (u8, u64),
    cost: (u8, u64),
    wait: (u8, u64),
    dice: u64,
}

fn raw_step() -> impl Strategy<Value = RawStep> {
    let part = || (0u8..8, 0u64..1_000_000_000);
    (part(), part(), part(), any::<u64>()).prop_map(|(gap, cost, wait, dice)| RawStep {
        gap,
        cost,
        wait,
        dice,
    })
}

impl RawStep {
    /// Scales the request to a limit: many gaps of zero, many within a token, some within a window, few of several windows.
    fn of(self, params: &Params) -> Step {
        let capacity = params.amount.max(params.size + 1);
        let token = (params.window / params.amount).max(1);
        let gap = match self.gap {
            (0..=2, _) => 0,
            (3, x) => x % token,
            (4, x) => (x % 4) * token,
            (5, x) => x % params.window,
            (6, _) => params.window - 1,
            (_, x) => x % (params.window * 3),
        };
        let cost = match self.cost {
            (0..=4, _) => 1,
            (5, x) => x % 4,
            (6, x) => x % (capacity + 2),
            (_, x) => x % capacity,
        };
        let wait = match self.wait {
            (0..=2, _) => 0,
            (3..=5, x) => x % (token * 3),
            (_, _) => params.window * 1_000,
        };
        Step { gap, cost, wait, dice: self.dice }
    }
}
