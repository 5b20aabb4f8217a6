//! The statistics of a limiter as metrics, through the facade crate [`metrics`](https://docs.rs/metrics). (Feature `metrics`; see the guide
//! [`metrics`](crate::guide::metrics).)
//!
//! ```text
//!   requests ──► counters of each rule ──► MetricsExporter::publish ──► the recorder of the program: Prometheus, StatsD, …
//!                (always counted)          (before each reading)
//! ```
//!
//! A request only adds to the counters that [`Limiter::stats`] reads, whether they are published or not. So metrics cost
//! requests nothing. Labels are names of rules and words of this module. They never contain data of a request.

use crate::limiter::Limiter;
use crate::stats::{RuleStats, Stats};
use crate::timers;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use tidegate_core::Span;
use tidegate_store::{Memory, Store};

const DECISIONS: &str = "tidegate_decisions_total";
const OVER_LIMIT: &str = "tidegate_over_limit_total";
const UNMATCHED: &str = "tidegate_unmatched_requests_total";
const UNKNOWN_TIERS: &str = "tidegate_unknown_tiers_total";
const STORE_ERRORS: &str = "tidegate_store_errors_total";
const POLICY_VERSION: &str = "tidegate_policy_version";

/// Publishes the statistics of a [`Limiter`] to the recorder of the program.
///
/// | metric | labels | counts |
/// |---|---|---|
/// | `tidegate_decisions_total` | `rule`, `outcome`: `allow`, `delay`, `deny`, `would_deny` | decisions; a request to which two rules apply counts once for each |
/// | `tidegate_over_limit_total` | `rule` | requests that exceeded a soft or elastic limit, and passed because of its headroom |
/// | `tidegate_unmatched_requests_total` | | requests to which no rule applied |
/// | `tidegate_unknown_tiers_total` | | requests with a tier that the policy does not know |
/// | `tidegate_store_errors_total` | | requests that the store did not answer, so that the fallback decided |
/// | `tidegate_policy_version` | | gauge: the version of the policy in force |
///
/// Install the recorder first. Several limiters of one program may each have an exporter: their counts are added.
///
/// ```
/// use metrics_util::debugging::{DebugValue, DebuggingRecorder};
/// use tidegate::metrics::MetricsExporter;
/// use tidegate::{Attributes, Check, Limiter, Policy};
///
/// let recorder = DebuggingRecorder::new(); // in a program, the recorder of an exporter crate
/// let snapshotter = recorder.snapshotter();
/// recorder.install()?;
///
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let exporter = MetricsExporter::new(limiter.clone());
/// for _ in 0..3 {
///     limiter.check_now(&Check::new(&Attributes::new()))?;
/// }
/// exporter.publish();
/// let denied = snapshotter.snapshot().into_vec().into_iter().find(|(key, ..)| {
///     key.key().labels().any(|label| (label.key(), label.value()) == ("outcome", "deny"))
/// });
/// assert_eq!(denied.unwrap().3, DebugValue::Counter(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MetricsExporter<S = Memory> {
    limiter: Limiter<S>,
    /// What was published last. Locked while it is compared and replaced, never across an `await`.
    published: Mutex<Stats>,
}

impl<S: Store> MetricsExporter<S> {
    /// An exporter for this limiter. Describes the metrics to the recorder.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        describe();
        Self { limiter, published: Mutex::default() }
    }

    /// Publishes what was counted since the last call. Call it before the metrics are read, or use
    /// [`MetricsExporter::publish_every`].
    pub fn publish(&self) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.limiter.stats();
        let before: HashMap<&str, RuleStats> =
            published.rules.iter().map(|(rule, stats)| (&**rule, *stats)).collect();
        for (rule, stats) in &now.rules {
            publish_rule(rule, stats, &before.get(&**rule).copied().unwrap_or_default());
        }
        for (name, now, before) in [
            (UNMATCHED, now.unmatched, published.unmatched),
            (UNKNOWN_TIERS, now.unknown_tiers, published.unknown_tiers),
            (STORE_ERRORS, now.store_errors, published.store_errors),
        ] {
            counter!(name).increment(growth(now, before));
        }
        let version = u32::try_from(self.limiter.version()).unwrap_or(u32::MAX);
        gauge!(POLICY_VERSION).set(version);
        *published = now;
    }

    /// Publishes at this interval, for exporters that do not say when they are read. It never returns: spawn it as a task.
    ///
    /// ```
    /// use tidegate::metrics::MetricsExporter;
    /// use tidegate::{Limiter, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
    /// let exporter = MetricsExporter::new(Limiter::in_memory(policy)?);
    /// let task = tokio::spawn(exporter.publish_every(Span::from_secs(5)));
    /// assert!(!task.is_finished());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn publish_every(self, interval: Span) -> Infallible {
        loop {
            self.publish();
            timers::sleep(interval).await;
        }
    }
}

fn publish_rule(rule: &str, now: &RuleStats, before: &RuleStats) {
    for (outcome, now, before) in [
        ("allow", now.allowed, before.allowed),
        ("delay", now.delayed, before.delayed),
        ("deny", now.denied, before.denied),
        ("would_deny", now.would_deny, before.would_deny),
    ] {
        // Also if nothing was counted, so that the series exist from the start.
        counter!(DECISIONS, "rule" => rule.to_owned(), "outcome" => outcome)
            .increment(growth(now, before));
    }
    counter!(OVER_LIMIT, "rule" => rule.to_owned()).increment(growth(now.over, before.over));
}

/// How much a count has grown. A count that is smaller than before began again at 0: its rule was removed and came back.
const fn growth(now: u64, before: u64) -> u64 {
    match now.checked_sub(before) {
        Some(growth) => growth,
        None => now,
    }
}

fn describe() {
    describe_counter!(DECISIONS, "Decisions, by rule and outcome");
    describe_counter!(
        OVER_LIMIT,
        "Requests that exceeded a soft or elastic limit, and passed because of its headroom"
    );
    describe_counter!(UNMATCHED, "Requests to which no rule applied");
    describe_counter!(UNKNOWN_TIERS, "Requests with a tier that the policy does not know");
    describe_counter!(STORE_ERRORS, "Requests that the store did not answer");
    describe_gauge!(POLICY_VERSION, "The version of the policy that decides");
}
