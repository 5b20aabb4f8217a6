//! The configuration in force: a policy, the changes made at run time, and a version number.
//!
//! It is immutable and replaced as a whole (an atomic pointer swap). A request takes one and keeps it to its end, so every
//! verdict is of exactly one version, however often operators reload meanwhile.

use crate::error::LimiterError;
use crate::stats::RuleCounters;
use std::ops::Range;
use std::sync::Arc;
use tidegate_core::{Algorithm, Span, Timestamp};
use tidegate_policy::{Allowance, Changes, Expression, Mode, OnLimit, Policy, RuleLimit};
use tidegate_store::Store;

/// The configuration that a request holds while it is decided. A guard instead of an `Arc`, so that requests do not write to
/// one shared reference count.
pub(crate) type LiveGuard = arc_swap::Guard<Arc<Live>>;

/// How long calendars are used before they are laid out again. They reach two years ahead, so once a day is enough.
const RENEWED_EVERY: Span = Span::from_secs(86_400);
/// How far back the clock may go before calendars are laid out again. They begin with the period before the current one, so
/// one hour back is still covered.
const RENEWED_BEFORE: Span = Span::from_secs(3_600);

#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) version: u64,
    pub(crate) policy: Policy,
    pub(crate) changes: Changes,
    /// The statistics of each rule, in the order of the policy.
    pub(crate) counters: Vec<Arc<RuleCounters>>,
    /// The range of the wall clock for which the calendars are valid; outside of it they must be laid out again. `None` if
    /// no limit uses a calendar.
    pub(crate) laid_out_for: Option<Range<Timestamp>>,
    /// Whether any limit can make a request wait: a leaky bucket, or a rule with `on_limit: delay`.
    pub(crate) delays: bool,
}

impl Live {
    /// Version 1.
    pub(crate) fn first(policy: Policy, now: Timestamp) -> Self {
        let counters = policy.rules().iter().map(|_| Arc::default()).collect();
        let changes = Changes::default();
        Self { version: 1, policy, changes, counters, laid_out_for: None, delays: false }
            .renewed(now)
    }

    /// The next version, with another policy. Rules that keep their name keep their statistics.
    pub(crate) fn with_policy(&self, policy: Policy, now: Timestamp) -> Self {
        let counters = policy.rules().iter().map(|rule| {
            let before = self.policy.rule(rule.name()).and_then(|(at, _)| self.counters.get(at));
            before.cloned().unwrap_or_default()
        });
        let counters = counters.collect();
        let version = self.version.saturating_add(1);
        let changes = self.changes.clone();
        Self { version, policy, changes, counters, laid_out_for: None, delays: false }.renewed(now)
    }

    /// The next version, with other run-time changes.
    pub(crate) fn with_changes(&self, changes: Changes, now: Timestamp) -> Self {
        let version = self.version.saturating_add(1);
        let (policy, counters) = (self.policy.clone(), self.counters.clone());
        Self { version, policy, changes, counters, laid_out_for: None, delays: false }.renewed(now)
    }

    /// Replaces the run-time changes. The version stays the same.
    pub(crate) fn changed_to(self, changes: Changes, now: Timestamp) -> Self {
        Self { changes, ..self }.renewed(now)
    }

    /// Lays out the calendars for the time `now`.
    pub(crate) fn renewed(mut self, now: Timestamp) -> Self {
        let calendars = self.policy.has_calendars() || self.changes.has_calendars();
        self.laid_out_for = calendars.then(|| validity(now));
        if calendars {
            self.changes.renew(now);
            self.policy = self.policy.renewed(now);
        }
        self.delays = self.can_delay();
        self
    }

    fn can_delay(&self) -> bool {
        self.policy.rules().iter().any(|rule| {
            let changed = self.changes.allowances_of(rule);
            let mut limits = rule.allowances().chain(changed).flat_map(Allowance::limits);
            let leaky = |limit: &RuleLimit| {
                matches!(limit.limit().algorithm(), Algorithm::LeakyBucket { .. })
            };
            matches!(rule.on_limit(), OnLimit::Delay { .. }) || limits.any(leaky)
        })
    }

    /// Checks that the store can count all limits.
    pub(crate) fn supported_by(&self, store: &impl Store) -> Result<(), LimiterError> {
        for rule in self.policy.rules() {
            let changed = self.changes.allowances_of(rule);
            for limit in rule.allowances().chain(changed).flat_map(Allowance::limits) {
                store.supports(limit.limit()).map_err(|source| LimiterError::Unsupported {
                    rule: rule.name().to_owned(),
                    source,
                })?;
            }
        }
        Ok(())
    }

    /// Logs the warnings of the policy, except those that the policy `before` it had too.
    pub(crate) fn log_warnings(&self, before: Option<&Policy>) {
        // Warnings are compared only if the program logs them.
        if !tracing::enabled!(tracing::Level::WARN) {
            return;
        }
        let known = before.map_or(&[][..], Policy::warnings);
        for warning in self.policy.warnings().iter().filter(|warning| !known.contains(warning)) {
            tracing::warn!("the policy, at {warning}");
        }
    }

    /// The conditions of the elastic rules.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Expression> {
        self.policy.rules().iter().filter_map(|rule| match rule.mode() {
            Mode::Elastic { condition, .. } => Some(condition),
            Mode::Hard | Mode::Soft(_) => None,
        })
    }
}

/// The range of times for which calendars laid out at `now` are valid.
fn validity(now: Timestamp) -> Range<Timestamp> {
    let from = now.as_nanos().saturating_sub(RENEWED_BEFORE.as_nanos());
    Timestamp::from_nanos(from)..now.after(RENEWED_EVERY).unwrap_or(Timestamp::END)
}
