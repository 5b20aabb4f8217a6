//! How much a node needs of a limit: a running average over the last few intervals.

use tidegate_core::{Span, Timestamp};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// How much is asked of a limit, in the unit of its algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Since when `count` is counted.
    since: Timestamp,
    count: u64,
    /// The average, per second.
    rate: u64,
}

impl Demand {
    /// The need of a node that asked for `count` during the last interval.
    pub(super) fn new(now: Timestamp, count: u64, interval: Span) -> Self {
        let rate = per_second(count, interval);
        Self { since: now, count: 0, rate }
    }

    /// Counts a request, whether or not it passes.
    pub(super) fn note(&mut self, now: Timestamp, weight: u64, interval: Span) {
        let passed = now.since(self.since);
        if passed >= interval {
            let recent = per_second(self.count, passed);
            // After a long pause only the recent rate counts; otherwise both count half.
            self.rate = if passed.as_nanos() / 4 > interval.as_nanos() {
                recent
            } else {
                self.rate.midpoint(recent)
            };
            (self.since, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(weight);
    }

    /// How much is asked for during a time.
    pub(super) fn during(&self, span: Span) -> u64 {
        let weight = u128::from(self.rate).saturating_mul(u128::from(span.as_nanos()));
        u64::try_from(weight.checked_div(NANOS_PER_SECOND).unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

fn per_second(count: u64, span: Span) -> u64 {
    let scaled = u128::from(count).saturating_mul(NANOS_PER_SECOND);
    let rate = scaled.checked_div(u128::from(span.as_nanos())).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_the_demand_and_forgets_it_after_a_pause() {
        let (interval, at) =
            (Span::from_millis(100), |ms: u64| Timestamp::from_nanos(ms * 1_000_000));
        let mut demand = Demand::new(at(0), 8, interval);
        assert_eq!(demand.during(Span::from_secs(1)), 80);
        for ms in 0..1_000 {
            demand.note(at(ms), 1, interval);
        }
        let rate = demand.during(Span::from_secs(1));
        assert!((900..=1_000).contains(&rate), "{rate}");
        demand.note(at(60_000), 1, interval);
        assert!(demand.during(Span::from_secs(1)) < 10);
    }
}
