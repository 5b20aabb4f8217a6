//! How long a request must wait at least that comes behind others in a queue.
//!
//! It is computed from the peeked decision of a limit and the number of requests ahead, each of which takes at least 1. So a
//! request that cannot be served in time is refused immediately, not after it has waited in vain.
//!
//! ```text
//!   2/s, token bucket, empty, 5 ahead      this is the 6th token from now: 3 s
//!   10/min, fixed window, full, 25 ahead   10 pass when the window ends, 10 a minute later, this one two minutes later
//! ```

use crate::verdict::Verdict;
use tidegate_core::{
    Algorithm, Cost, Decision, Headroom, Limit, Need, Outcome, Period, Refill, Retry, Span,
};

/// The shortest time until a request can pass that has `ahead(i)` requests before it at its `i`-th required limit.
pub(crate) fn shortest_wait(peek: &Verdict, ahead: impl Fn(usize) -> usize) -> Span {
    let required = peek.entries.iter().filter(|entry| entry.need == Need::Required);
    let waits = required.enumerate().filter_map(|(index, entry)| {
        let limit = entry.limit(&peek.live)?.limit();
        let ahead = u64::try_from(ahead(index)).unwrap_or(u64::MAX);
        Some(shortest_at(limit, &entry.decision, ahead, entry.cost))
    });
    waits.max().unwrap_or(Span::ZERO)
}

/// The shortest time until a limit lets a request pass after those ahead of it.
fn shortest_at(limit: &Limit, decision: &Decision, ahead: u64, cost: Cost) -> Span {
    let alone = match decision.outcome {
        Outcome::Deny(Retry::After(retry)) => retry,
        Outcome::Allow | Outcome::Delay(_) | Outcome::Deny(Retry::Never) => Span::ZERO,
    };
    let missing = ahead.saturating_add(cost.get()).saturating_sub(decision.remaining);
    let Period::Every(period) = limit.period() else { return alone };
    if limit.lease().is_some() {
        return Span::ZERO; // a permit may be returned at any moment
    }
    if missing == 0 || limit.is_unlimited() || limit.headroom() != Headroom::None {
        return alone;
    }
    // Each period lets no more than the amount pass; the first of those ahead passes when this one would, if it costs as little.
    let periods = missing.saturating_sub(1).checked_div(limit.amount()).unwrap_or(0);
    let first = if cost == Cost::ONE { alone } else { Span::ZERO };
    let behind = match limit.algorithm() {
        Algorithm::TokenBucket { refill: Refill::Continuous, .. } if decision.passes() => {
            // A part of the next token may be there already.
            times(*period, missing.saturating_sub(1), limit.amount())
        }
        Algorithm::TokenBucket { refill: Refill::Continuous, .. } => {
            plus(alone, times(*period, ahead, limit.amount()))
        }
        Algorithm::TokenBucket { refill: Refill::Interval, .. }
        | Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. } => plus(first, times(*period, periods, 1)),
        // What passes at the end of a window and at the beginning of the next may lie close together.
        Algorithm::SlidingWeighted => plus(first, times(*period, periods.saturating_sub(1), 1)),
        // It promises every turn itself.
        Algorithm::LeakyBucket { .. } => alone,
        Algorithm::Concurrent => Span::ZERO,
    };
    behind.max(alone)
}

/// `count` of `parts` of a span.
fn times(span: Span, count: u64, parts: u64) -> Span {
    let nanos = u128::from(span.as_nanos()).saturating_mul(u128::from(count));
    let part = nanos.checked_div(u128::from(parts)).unwrap_or(0);
    Span::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
}

const fn plus(a: Span, b: Span) -> Span {
    Span::from_nanos(a.as_nanos().saturating_add(b.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Ask, Timestamp, Written};

    /// The wait behind this many requests of cost 1 at a limit of 2 per 10 s from which `taken` were taken at its epoch.
    fn wait(algorithm: Algorithm, taken: u64, ahead: u64) -> u64 {
        let limit = Limit::new(2, Span::from_secs(10), algorithm).unwrap();
        let mut written = Written::empty(&limit);
        for _ in 0..taken {
            limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::ONE));
        }
        let decision = limit.decide(&written, &Ask::new(Timestamp::EPOCH, Cost::ONE));
        shortest_at(&limit, &decision, ahead, Cost::ONE).as_nanos() / 1_000_000_000
    }

    #[test]
    fn those_ahead_take_their_share_first() {
        // The bucket refills one token in 5 s.
        let ahead =
            |taken| [0, 1, 2, 3, 4].map(|ahead| wait(Algorithm::TOKEN_BUCKET, taken, ahead));
        assert_eq!(ahead(2), [5, 10, 15, 20, 25]);
        assert_eq!(ahead(0), [0, 0, 0, 5, 10]);
        for windows in [Algorithm::FIXED_WINDOW, Algorithm::SlidingLog] {
            let ahead = |taken| [0, 1, 2, 3, 4].map(|ahead| wait(windows, taken, ahead));
            assert_eq!(ahead(2), [10, 10, 20, 20, 30], "{windows:?}");
            assert_eq!(ahead(0)[..2], [0, 0], "{windows:?}");
        }
    }

    /// The wait is never longer than what those ahead and this one would really wait.
    #[test]
    fn the_wait_is_a_lower_bound() {
        let algorithms = [
            Algorithm::TOKEN_BUCKET,
            Algorithm::FIXED_WINDOW,
            Algorithm::SlidingLog,
            Algorithm::SLIDING_BUCKETS,
            Algorithm::SlidingWeighted,
        ];
        for (algorithm, start) in algorithms.into_iter().flat_map(|a| [(a, 0), (a, 7_300)]) {
            let limit = Limit::new(3, Span::from_secs(10), algorithm).unwrap();
            let mut written = Written::empty(&limit);
            let at = |ms: u64| Ask::new(Timestamp::from_nanos(ms * 1_000_000), Cost::ONE);
            let mut take = |ms| limit.take(&mut written, &at(ms)).decision;
            take(start);
            take(start.saturating_add(1_700));
            let mut now = start.saturating_add(2_500);
            let peeked = limit.decide(&written, &at(now));
            for ahead in 0..12_u64 {
                let bound = shortest_at(&limit, &peeked, ahead, Cost::ONE);
                while !limit.take(&mut written, &at(now)).decision.passes() {
                    now = now.saturating_add(10);
                }
                let waited = Span::from_millis(now.saturating_sub(start.saturating_add(2_490)));
                assert!(
                    bound <= waited,
                    "{algorithm:?} from {start}, {ahead}: {bound:?} > {waited:?}"
                );
            }
        }
    }
}
