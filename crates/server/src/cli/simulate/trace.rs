//! The traces: the instants of requests over four periods.

use super::Trace;

/// How many periods are drawn.
pub(super) const PERIODS: u64 = 4;

impl Trace {
    /// The instants of all requests, in nanoseconds, in order.
    pub(super) fn requests(self, amount: u64, period: u64) -> Vec<u64> {
        let whole = period.saturating_mul(PERIODS);
        let evenly = |count: u64, from: u64, length: u64| {
            (0..count).map(move |n| {
                let part = u128::from(n).saturating_mul(u128::from(length));
                let part = part.checked_div(u128::from(count)).unwrap_or(0);
                from.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
            })
        };
        let short = period / 20;
        match self {
            Self::Boundary => {
                let edge = period.saturating_mul(2);
                let before = evenly(amount, edge.saturating_sub(short), short);
                before.chain(evenly(amount, edge, short)).collect()
            }
            Self::Steady => {
                let per_period = amount.saturating_add(amount.div_ceil(4));
                evenly(per_period.saturating_mul(PERIODS), 0, whole).collect()
            }
            Self::Burst => {
                let burst = amount.saturating_mul(3);
                let second = period.saturating_mul(2).saturating_add(period / 2);
                evenly(burst, period / 4, short).chain(evenly(burst, second, short)).collect()
            }
            Self::Greedy => {
                evenly(amount.saturating_mul(2).saturating_mul(PERIODS), 0, whole).collect()
            }
        }
    }

    /// Its name on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Boundary => "boundary",
            Self::Steady => "steady",
            Self::Burst => "burst",
            Self::Greedy => "greedy",
        }
    }

    /// What the trace shows, in a sentence.
    pub(super) const fn story(self) -> &'static str {
        match self {
            Self::Boundary => {
                "the whole amount at the end of a window, and again at the start of the next"
            }
            Self::Steady => "requests arrive evenly, a quarter more than the limit",
            Self::Burst => "three times the amount in one burst, then silence, then again",
            Self::Greedy => "twice as many requests as the limit allows, without a pause",
        }
    }
}
