//! What a limiter works by at one moment: a policy, the changes made by hand, a version.
//!
//! It is replaced whole and never changed in place. A request takes one and keeps it to its end, so that
//! every answer is of one version, however often somebody reloads meanwhile.

use crate::error::LimiterError;
use crate::stats::RuleCounters;
use std::ops::Range;
use std::sync::Arc;
use tidegate_core::{Algorithm, Span, Timestamp};
use tidegate_policy::{Allowance, Changes, Expression, Mode, OnLimit, Policy, RuleLimit};
use tidegate_store::Store;

/// What a request works by, for as long as it does. Lent, so that requests do not write to one count of holders.
pub(crate) type Lent = arc_swap::Guard<Arc<Live>>;

/// Calendars reach two years ahead, so a day is soon enough.
const RENEWED_EVERY: Span = Span::from_secs(86_400);
/// Calendars begin with the period before the running one, so a clock that is put back by an hour is still inside of them.
const RENEWED_BEFORE: Span = Span::from_secs(3_600);

#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) version: u64,
    pub(crate) policy: Policy,
    pub(crate) changes: Changes,
    /// One for each rule of the policy.
    pub(crate) counters: Vec<Arc<RuleCounters>>,
    /// While the wall clock is in here, its calendars are good; before and after, they are to be laid out again. `None`
    /// without calendars.
    pub(crate) laid_out_for: Option<Range<Timestamp>>,
    /// Whether any of its limits can make a request wait: for its turn in a leaky bucket, or because its rule says so.
    pub(crate) delays: bool,
}

impl Live {
    pub(crate) fn first(policy: Policy, now: Timestamp) -> Self {
        let counters = policy.rules().iter().map(|_| Arc::default()).collect();
        let changes = Changes::default();
        Self { version: 1, policy, changes, counters, laid_out_for: None, delays: false }
            .renewed(now)
    }

    /// The next version, by another policy. Counts go on under the rules' names.
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

    /// The next version, with other changes.
    pub(crate) fn with_changes(&self, changes: Changes, now: Timestamp) -> Self {
        let version = self.version.saturating_add(1);
        let (policy, counters) = (self.policy.clone(), self.counters.clone());
        Self { version, policy, changes, counters, laid_out_for: None, delays: false }.renewed(now)
    }

    /// The same version, with these changes instead.
    pub(crate) fn changed_to(self, changes: Changes, now: Timestamp) -> Self {
        Self { changes, ..self }.renewed(now)
    }

    /// The same, with calendars as of now.
    pub(crate) fn renewed(mut self, now: Timestamp) -> Self {
        let calendars = self.policy.has_calendars() || self.changes.has_calendars();
        self.laid_out_for = calendars.then(|| around(now));
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

    /// Whether a store can count all its limits.
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

    /// The conditions of its elastic rules.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Expression> {
        self.policy.rules().iter().filter_map(|rule| match rule.mode() {
            Mode::Elastic { condition, .. } => Some(condition),
            Mode::Hard | Mode::Soft(_) => None,
        })
    }
}

/// When calendars that were laid out at this instant are good.
fn around(now: Timestamp) -> Range<Timestamp> {
    let from = now.as_nanos().saturating_sub(RENEWED_BEFORE.as_nanos());
    Timestamp::from_nanos(from)..now.after(RENEWED_EVERY).unwrap_or(Timestamp::END)
}
