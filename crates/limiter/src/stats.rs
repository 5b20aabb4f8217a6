//! Statistics of a limiter, rule by rule, in counters that are sharded by thread.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tidegate_core::{Outcome, Span};

/// The counts of one rule since it was first loaded. They only grow.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: strict, key: [], limits: [1/h], shadow: true }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// for _ in 0..3 {
///     assert!(limiter.check_now(&Check::new(&request))?.allowed()); // a rule in shadow mode never denies
/// }
/// let (_, strict) = limiter.stats().rules[0].clone();
/// assert_eq!((strict.allowed, strict.denied, strict.would_deny), (1, 0, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleStats {
    /// Requests that the rule allowed without delay.
    pub allowed: u64,
    /// Requests that the rule allowed after a delay.
    pub delayed: u64,
    /// Requests that the rule denied.
    pub denied: u64,
    /// Requests that were over the limit of a rule that does not deny: a rule in shadow mode, or one that flags or
    /// deprioritizes.
    pub would_deny: u64,
    /// Requests that exceeded the limit and passed because of its headroom. They are counted as allowed too.
    pub over: u64,
}

/// The counts of a limiter since it was built; see [`Limiter::stats`](crate::Limiter::stats).
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// for _ in 0..3 {
///     limiter.check_now(&Check::new(&request))?;
/// }
/// let stats = limiter.stats();
/// assert_eq!((stats.rules[0].1.allowed, stats.rules[0].1.denied), (1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The name and counts of each rule, in the order of the policy.
    pub rules: Vec<(String, RuleStats)>,
    /// Requests to which no rule applied.
    pub unmatched: u64,
    /// Requests with a tier that the policy does not know.
    pub unknown_tiers: u64,
    /// Requests that the store did not answer, so that the fallback decided.
    pub store_errors: u64,
}

/// The number of shards. Up to this many threads count without contention.
const SHARDS: usize = 8;

/// The counters of one rule. They are independent of each other, so relaxed ordering is enough.
#[derive(Debug, Default)]
pub(crate) struct RuleCounters {
    shards: [CounterShard; SHARDS],
    /// Of the permits of this rule that were returned on this node.
    pub(crate) hold_time: HoldTime,
}

/// How long permits are held, as an exponentially smoothed mean: each permit counts an eighth.
///
/// It is the advice to a client that a concurrency limit refuses: when to try again. The store cannot know that. All that it
/// knows is when the oldest lease ends, and a permit is nearly always returned long before.
#[derive(Debug, Default)]
pub(crate) struct HoldTime {
    /// In nanoseconds; 0 until the first permit was returned. Relaxed: a mean that misses a permit is still an estimate.
    mean: AtomicU64,
}

/// Counters of some threads, on a cache line of their own to avoid false sharing.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterShard {
    allowed: AtomicU64,
    delayed: AtomicU64,
    denied: AtomicU64,
    would_deny: AtomicU64,
    over: AtomicU64,
}

impl RuleCounters {
    pub(crate) fn count(&self, outcome: Outcome, required: bool) {
        let Some(counters) = self.shards.get(shard()) else { return };
        let counter = match outcome {
            Outcome::Allow => &counters.allowed,
            Outcome::Delay(_) => &counters.delayed,
            Outcome::Deny(_) if required => &counters.denied,
            Outcome::Deny(_) => &counters.would_deny,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that passed only because of the headroom.
    pub(crate) fn count_over(&self) {
        if let Some(counters) = self.shards.get(shard()) {
            counters.over.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> RuleStats {
        self.shards.iter().fold(RuleStats::default(), |sum, counters| {
            let [allowed, delayed, denied, would_deny, over] = [
                (sum.allowed, &counters.allowed),
                (sum.delayed, &counters.delayed),
                (sum.denied, &counters.denied),
                (sum.would_deny, &counters.would_deny),
                (sum.over, &counters.over),
            ]
            .map(|(sum, counter)| sum.wrapping_add(counter.load(Ordering::Relaxed)));
            RuleStats { allowed, delayed, denied, would_deny, over }
        })
    }
}

impl HoldTime {
    /// The shortest advice. A client that tries again sooner than this only adds load.
    const LEAST: Span = Span::from_secs(1);

    /// Adds a permit that was held for this long.
    pub(crate) fn add(&self, held: Span) {
        let held = held.as_nanos().max(1);
        let smoothed = |mean: u64| match mean {
            0 => held,
            mean => mean.saturating_sub(mean / 8).saturating_add(held / 8).max(1),
        };
        let _ = self
            .mean
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |mean| Some(smoothed(mean)));
    }

    /// How long to wait for a permit: the mean, and at least a second.
    pub(crate) fn expected(&self) -> Span {
        Span::from_nanos(self.mean.load(Ordering::Relaxed)).max(Self::LEAST)
    }
}

/// The index of the shard of the current thread.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hold_time_is_a_smoothed_mean_of_at_least_a_second() {
        let hold = HoldTime::default();
        assert_eq!(hold.expected(), Span::from_secs(1)); // nothing is known
        hold.add(Span::from_secs(8));
        assert_eq!(hold.expected(), Span::from_secs(8));
        hold.add(Span::from_secs(16));
        assert_eq!(hold.expected(), Span::from_secs(9));
        (0..100).for_each(|_| hold.add(Span::from_millis(5)));
        assert_eq!(hold.expected(), Span::from_secs(1));
        hold.add(Span::from_nanos(u64::MAX));
        assert!(hold.expected() > Span::from_secs(1));
    }

    #[test]
    fn counts_of_many_threads_add_up() {
        let counters = RuleCounters::default();
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 3 {
                scope.spawn(|| {
                    (0..1_000).for_each(|_| counters.count(Outcome::Allow, true));
                    counters.count(Outcome::Deny(tidegate_core::Retry::Never), false);
                });
            }
        });
        let threads = u64::try_from(SHARDS + 3).unwrap();
        let expected =
            RuleStats { allowed: threads * 1_000, would_deny: threads, ..RuleStats::default() };
        assert_eq!(counters.read(), expected);
    }
}
