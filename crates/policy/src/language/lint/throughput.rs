//! Whether one limit makes another useless: the most that it admits is never too much for the other.

use tidegate_core::{Algorithm, Headroom, Limit, Period, Refill};

/// Whether the requests that `strict` admits never exceed `loose`, so that `loose` has no effect.
pub(super) fn makes_useless(strict: &Limit, loose: &Limit) -> bool {
    if let (Some(strict_lease), Some(loose_lease)) = (strict.lease(), loose.lease()) {
        let is_plain = strict.headroom() == Headroom::None && loose.headroom() == Headroom::None;
        return is_plain && strict_lease >= loose_lease && strict.amount() <= loose.amount();
    }
    let (Some(strict), Some(period)) = (Throughput::of(strict), span(loose)) else { return false };
    if loose.headroom() != Headroom::None || loose.amount() == 0 {
        return false;
    }
    let most = u128::from(loose.amount());
    match loose.algorithm() {
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. } => strict.most_in(period) <= most,
        // Its estimate may count the requests of two windows as one.
        Algorithm::SlidingWeighted => strict.most_in(period.saturating_mul(2)) <= most,
        // How many requests a rate lets pass says nothing about how long they take.
        Algorithm::Concurrent => false,
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => Throughput::of(loose)
            .is_some_and(|loose| strict.burst <= loose.burst && strict.is_no_faster_than(&loose)),
    }
}

/// The most that a limit admits: a burst, and an amount per period.
struct Throughput {
    burst: u128,
    amount: u128,
    period: u128,
}

impl Throughput {
    fn of(limit: &Limit) -> Option<Self> {
        let amount = u128::from(limit.amount());
        let burst = match limit.algorithm() {
            Algorithm::TokenBucket { burst, refill: Refill::Continuous } => {
                burst.map_or(amount, u128::from)
            }
            Algorithm::TokenBucket { burst, refill: Refill::Interval } => {
                burst.map_or(amount, u128::from).saturating_add(amount)
            }
            Algorithm::LeakyBucket { queue } => queue.map_or(amount, u128::from).saturating_add(1),
            Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => amount,
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWeighted => amount.saturating_mul(2),
            Algorithm::Concurrent => return None,
        };
        (limit.headroom() == Headroom::None).then_some(())?;
        Some(Self { burst, amount, period: span(limit)? })
    }

    /// The most that is admitted within a span of time.
    fn most_in(&self, span: u128) -> u128 {
        let refilled = self.amount.saturating_mul(span).div_ceil(self.period.max(1));
        self.burst.saturating_add(refilled)
    }

    fn is_no_faster_than(&self, other: &Self) -> bool {
        self.amount.saturating_mul(other.period) <= other.amount.saturating_mul(self.period)
    }
}

/// The period of a limit in nanoseconds, if it has a constant length.
fn span(limit: &Limit) -> Option<u128> {
    match limit.period() {
        Period::Every(span) => Some(u128::from(span.as_nanos())),
        Period::Calendar(_) => None,
    }
}
