//! What a limiter did so far, rule by rule.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tidegate_core::Outcome;

/// Counts of one rule since it first appeared. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleStats {
    /// Requests it let pass at once.
    pub allowed: u64,
    /// Requests it let pass later.
    pub delayed: u64,
    /// Requests it refused.
    pub denied: u64,
    /// Requests it would have refused, had it not been a shadow, or that passed above a soft limit.
    pub would_deny: u64,
}

/// Counts of a limiter.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let nobody = Attributes::new();
/// for _ in 0..3 {
///     limiter.check_now(&Check::new(&nobody))?;
/// }
/// let stats = limiter.stats();
/// assert_eq!((stats.rules[0].1.allowed, stats.rules[0].1.denied), (1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// By rule, in the order of the policy.
    pub rules: Vec<(String, RuleStats)>,
    /// Requests that no rule had anything to say about.
    pub unmatched: u64,
    /// Requests that named a tier that there is not.
    pub unknown_tiers: u64,
    /// Requests for which the store gave no answer.
    pub store_errors: u64,
}

/// Threads that count at once do so in different places, as long as they are not more than these.
const PLACES: usize = 8;

/// Counters of one rule; each is a fact of its own, so none orders another.
#[derive(Debug, Default)]
pub(crate) struct RuleCounters {
    places: [Counters; PLACES],
}

/// A cache line of its own: whoever counts here takes it from nobody.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counters {
    allowed: AtomicU64,
    delayed: AtomicU64,
    denied: AtomicU64,
    would_deny: AtomicU64,
}

impl RuleCounters {
    pub(crate) fn count(&self, outcome: Outcome, required: bool) {
        let Some(counters) = self.places.get(place()) else { return };
        let counter = match outcome {
            Outcome::Allow => &counters.allowed,
            Outcome::Delay(_) => &counters.delayed,
            Outcome::Deny(_) if required => &counters.denied,
            Outcome::Deny(_) => &counters.would_deny,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> RuleStats {
        self.places.iter().fold(RuleStats::default(), |sum, counters| {
            let [allowed, delayed, denied, would_deny] = [
                (sum.allowed, &counters.allowed),
                (sum.delayed, &counters.delayed),
                (sum.denied, &counters.denied),
                (sum.would_deny, &counters.would_deny),
            ]
            .map(|(sum, counter)| sum.wrapping_add(counter.load(Ordering::Relaxed)));
            RuleStats { allowed, delayed, denied, would_deny }
        })
    }
}

/// Where this thread counts.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PLACES;
    }
    PLACE.with(|place| *place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_count_is_one_sum() {
        let counters = RuleCounters::default();
        std::thread::scope(|scope| {
            for _ in 0..PLACES + 3 {
                scope.spawn(|| {
                    (0..1_000).for_each(|_| counters.count(Outcome::Allow, true));
                    counters.count(Outcome::Deny(tidegate_core::Retry::Never), false);
                });
            }
        });
        let threads = u64::try_from(PLACES + 3).unwrap();
        let expected =
            RuleStats { allowed: threads * 1_000, would_deny: threads, ..RuleStats::default() };
        assert_eq!(counters.read(), expected);
    }
}
