//! The answer to a request: everything that its limits said, folded into one.
//!
//! ```text
//!   deny > delay > allow       the longest delay, the longest retry; never, if one of them says never
//! ```

use crate::live::{Lent, Live};
use crate::receipt::Receipt;
use smallvec::SmallVec;
use std::fmt;
use tidegate_core::{Cost, Decision, Limit, Need, Outcome, Retry, Span, Timestamp};
use tidegate_policy::{OnLimit, PathError, Rule, RuleLimit};

/// The answer to a request.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Outcome, Policy, Retry, Span};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: all, key: [], limits: [{ rate: 1/h, algorithm: token_bucket }] }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let nobody = Attributes::new();
/// let first = limiter.check_now(&Check::new(&nobody))?;
/// assert_eq!(first.outcome, Outcome::Allow);
/// let second = limiter.check_now(&Check::new(&nobody))?;
/// assert!(second.retry_after().unwrap() <= Span::from_secs(3600));
/// let limit = second.limits().next().unwrap();
/// assert_eq!((limit.rule, limit.limit.amount(), limit.decision.remaining), ("all", 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Verdict {
    /// Pass now, pass later, or not.
    pub outcome: Outcome,
    /// It passes by the headroom of a soft or elastic limit.
    pub over: bool,
    /// A rule in shadow would have refused it.
    pub shadow_deny: bool,
    /// Whether others should be served first.
    pub priority: Priority,
    /// Who decided.
    pub decided_by: DecidedBy,
    /// When, by the clock of the store.
    pub decided_at: Timestamp,
    pub(crate) live: Lent,
    pub(crate) entries: SmallVec<[Entry; 2]>,
    pub(crate) receipt: Option<Receipt>,
    pub(crate) unreadable: Option<PathError>,
}

/// In which order requests should be served.
///
/// ```
/// assert_eq!(tidegate::Priority::default(), tidegate::Priority::Normal);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// As usual.
    #[default]
    Normal,
    /// After the others.
    Low,
}

/// Who decided.
///
/// ```
/// assert_eq!(tidegate::DecidedBy::Store.name(), "store");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The store.
    Store,
    /// A refusal that this node remembers.
    Cache,
    /// A share of the limit that this node holds.
    Lease,
    /// The shared sketch of a store that is full.
    Sketch,
    /// What the rules say for a store that is gone.
    Fallback,
    /// The policy alone: there was nothing to count.
    Policy,
}

/// What one limit said.
#[derive(Clone, Copy, Debug)]
pub struct LimitReport<'v> {
    /// The number of the rule, in the order of the policy.
    pub number: usize,
    /// The rule it belongs to.
    pub rule: &'v str,
    /// Its name within the rule.
    pub id: &'v str,
    /// The limit.
    pub limit: &'v Limit,
    /// What was asked for.
    pub cost: Cost,
    /// Its answer.
    pub decision: Decision,
    /// Whether its refusal refuses the request.
    pub need: Need,
    /// Whether it only pretends.
    pub shadow: bool,
}

/// Instead of the number of a rule, where a caller names the limit.
pub(crate) const OF_CALLER: usize = usize::MAX;

/// A limit of the plan and its answer.
pub(crate) struct Entry {
    /// The number of its rule, or [`OF_CALLER`].
    pub(crate) rule: usize,
    pub(crate) limit: LimitOf,
    pub(crate) need: Need,
    pub(crate) shadow: bool,
    pub(crate) cost: Cost,
    pub(crate) decision: Decision,
}

/// Where a limit stands. A rule's own is known by its number: were it held, all requests would write to the count of its
/// holders, and wait for each other.
pub(crate) enum LimitOf {
    /// Of the rule.
    Own(usize),
    /// Of a tier, an override, or whoever asks.
    Given(RuleLimit),
}

impl Entry {
    /// The limit, by what the verdict was decided by.
    pub(crate) fn limit<'v>(&'v self, live: &'v Live) -> Option<&'v RuleLimit> {
        match &self.limit {
            LimitOf::Own(at) => live.policy.rules().get(self.rule)?.allowance().limits().get(*at),
            LimitOf::Given(limit) => Some(limit),
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// Folds answers into one.
    pub(crate) fn fold(
        live: Lent,
        entries: SmallVec<[Entry; 2]>,
        decided_by: DecidedBy,
        decided_at: Timestamp,
    ) -> Self {
        let required = || entries.iter().filter(|entry| entry.need == Need::Required);
        let outcome =
            required().fold(Outcome::Allow, |so_far, entry| worse(so_far, entry.decision.outcome));
        let over = outcome.passes() && required().any(|entry| entry.decision.over);
        // A request that is refused anyway is marked by nobody.
        let marked = |entry: &&Entry| {
            outcome.passes() && entry.need == Need::Optional && !entry.decision.passes()
        };
        let shadow_deny = entries.iter().filter(marked).any(|entry| entry.shadow);
        let on_limit =
            |entry: &Entry| live.policy.rules().get(entry.rule).map(Rule::on_limit).cloned();
        let low = entries
            .iter()
            .filter(marked)
            .any(|entry| !entry.shadow && matches!(on_limit(entry), Some(OnLimit::Deprioritize)));
        let priority = if low { Priority::Low } else { Priority::Normal };
        Self {
            outcome,
            over,
            shadow_deny,
            priority,
            decided_by,
            decided_at,
            live,
            entries,
            receipt: None,
            unreadable: None,
        }
    }

    /// A request that is refused because its path cannot be read: no rule can be held against it.
    pub(crate) fn of_unreadable(live: Lent, reason: PathError, decided_at: Timestamp) -> Self {
        let verdict = Self::fold(live, SmallVec::new(), DecidedBy::Policy, decided_at);
        Self { outcome: Outcome::Deny(Retry::Never), unreadable: Some(reason), ..verdict }
    }

    /// Whether it passes, at once or later.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.outcome.passes()
    }

    /// How long to wait before passing.
    #[must_use]
    pub const fn delay(&self) -> Span {
        match self.outcome {
            Outcome::Delay(span) => span,
            Outcome::Allow | Outcome::Deny(_) => Span::ZERO,
        }
    }

    /// When this cost would pass: at once when it does, `None` when never.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Span> {
        match self.outcome {
            Outcome::Deny(Retry::After(span)) => Some(span),
            Outcome::Deny(Retry::Never) => None,
            Outcome::Allow | Outcome::Delay(_) => Some(Span::ZERO),
        }
    }

    /// Every limit of every rule that applies, in the order of the policy.
    pub fn limits(&self) -> impl Iterator<Item = LimitReport<'_>> {
        self.entries.iter().filter_map(|entry| {
            let limit = entry.limit(&self.live)?;
            Some(LimitReport {
                number: entry.rule,
                rule: self.live.policy.rules().get(entry.rule).map_or("", Rule::name),
                id: limit.id(),
                limit: limit.limit(),
                cost: entry.cost,
                decision: entry.decision,
                need: entry.need,
                shadow: entry.shadow,
            })
        })
    }

    /// The limits that refuse it.
    pub fn refusing(&self) -> impl Iterator<Item = LimitReport<'_>> {
        self.limits().filter(|limit| limit.need == Need::Required && !limit.decision.passes())
    }

    /// Words that rules marked it with, such as `challenge`; each rule's once.
    pub fn flags(&self) -> impl Iterator<Item = &str> {
        let marked = |entry: &&Entry| {
            self.allowed()
                && !entry.shadow
                && entry.need == Need::Optional
                && !entry.decision.passes()
        };
        let entries = self.entries.chunk_by(|a, b| a.rule == b.rule);
        let rules = entries.filter_map(move |limits| limits.iter().find(marked));
        rules.filter_map(|entry| match self.live.policy.rules().get(entry.rule)?.on_limit() {
            OnLimit::Flag(flag) => Some(&**flag),
            OnLimit::Reject | OnLimit::Delay { .. } | OnLimit::Deprioritize => None,
        })
    }

    /// The names of all rules of the policy it was decided by, in the order of their numbers.
    pub fn rule_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.live.policy.rules().iter().map(Rule::name)
    }

    /// The version of the policy it was decided by.
    #[must_use]
    pub fn policy_version(&self) -> u64 {
        self.live.version
    }

    /// The proof of what was taken, when somebody wants to settle it later.
    #[must_use]
    pub const fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Why the path of the request could not be read, if that is why it is refused.
    #[must_use]
    pub const fn unreadable(&self) -> Option<PathError> {
        self.unreadable
    }

    /// The same, refused because others are before it. When they will be done nobody knows; when all that
    /// is used will be free again, is.
    pub(crate) fn refused_behind_others(mut self) -> Self {
        let required = self.entries.iter().filter(|entry| entry.need == Need::Required);
        let reset = required.filter_map(|entry| entry.decision.reset).max().unwrap_or(Span::ZERO);
        self.outcome = worse(Outcome::Deny(Retry::After(reset)), self.outcome);
        self
    }
}

/// The worse of two outcomes; of two alike, the longer.
pub(crate) fn worse(a: Outcome, b: Outcome) -> Outcome {
    match (a, b) {
        (Outcome::Deny(Retry::Never), _) | (_, Outcome::Deny(Retry::Never)) => {
            Outcome::Deny(Retry::Never)
        }
        (Outcome::Deny(Retry::After(a)), Outcome::Deny(Retry::After(b))) => {
            Outcome::Deny(Retry::After(a.max(b)))
        }
        (Outcome::Delay(a), Outcome::Delay(b)) => Outcome::Delay(a.max(b)),
        (deny @ Outcome::Deny(_), _) | (_, deny @ Outcome::Deny(_)) => deny,
        (delay @ Outcome::Delay(_), Outcome::Allow)
        | (Outcome::Allow, delay @ Outcome::Delay(_)) => delay,
        (Outcome::Allow, Outcome::Allow) => Outcome::Allow,
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdict")
            .field("outcome", &self.outcome)
            .field("decided_by", &self.decided_by)
            .field("policy_version", &self.policy_version())
            .field("limits", &self.limits().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

// === impl DecidedBy ===

impl DecidedBy {
    /// Its name in answers and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cache => "cache",
            Self::Lease => "lease",
            Self::Sketch => "sketch",
            Self::Fallback => "fallback",
            Self::Policy => "policy",
        }
    }
}
