//! What a limiter did so far, rule by rule.

use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Requests it would have refused, had it not been a shadow, or let pass marked.
    pub marked: u64,
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

/// Counters of one rule; each is a fact of its own, so none orders another.
#[derive(Debug, Default)]
pub(crate) struct RuleCounters {
    allowed: AtomicU64,
    delayed: AtomicU64,
    denied: AtomicU64,
    marked: AtomicU64,
}

impl RuleCounters {
    pub(crate) fn count(&self, outcome: Outcome, required: bool) {
        let counter = match outcome {
            Outcome::Allow => &self.allowed,
            Outcome::Delay(_) => &self.delayed,
            Outcome::Deny(_) if required => &self.denied,
            Outcome::Deny(_) => &self.marked,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> RuleStats {
        let [allowed, delayed, denied, marked] =
            [&self.allowed, &self.delayed, &self.denied, &self.marked]
                .map(|counter| counter.load(Ordering::Relaxed));
        RuleStats { allowed, delayed, denied, marked }
    }
}
