//! The answer to a request: the decisions of all its limits, combined into one outcome.
//!
//! ```text
//!   deny > delay > allow       the longest delay wins; the longest retry wins; "never" wins over any retry
//! ```
//!
//! Only required limits take part. A limit in shadow mode, or of a rule that only flags or deprioritizes, is optional: its
//! denial marks the verdict and changes nothing else.

use crate::limit_report::{LimitReport, RuleDecision};
use crate::live::{Live, LiveGuard};
use crate::receipt::Receipt;
use smallvec::SmallVec;
use std::fmt;
use tidegate_core::{Bound, Cost, Decision, Need, Outcome, Retry, Span, StateId, Timestamp};
use tidegate_policy::{
    ClassIndex, Count, OnLimit, PathError, Policy, PriorityClass, Rule, RuleLimit,
};
use tidegate_store::AnsweredBy;

/// The answer of a [`Limiter`](crate::Limiter) to one request.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Outcome, Policy, Span};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: all, key: [], limits: [{ rate: 1/h, algorithm: token_bucket }] }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let request = Attributes::new();
/// let first = limiter.check_now(&Check::new(&request))?;
/// assert_eq!(first.outcome, Outcome::Allow);
/// let second = limiter.check_now(&Check::new(&request))?;
/// assert!(!second.allowed());
/// assert!(second.retry_after().unwrap() <= Span::from_secs(3600));
/// let limit = second.limits().next().unwrap();
/// assert_eq!((limit.rule, limit.limit.amount(), limit.decision.remaining), ("all", 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Verdict {
    /// Whether the request passes now, passes after a delay, or is denied.
    pub outcome: Outcome,
    /// The request passes only because of the headroom of a soft or elastic limit.
    pub over: bool,
    /// The request passes, but a rule in shadow mode would have denied it.
    pub shadow_deny: bool,
    /// The priority class of the request; see [`Verdict::class`].
    pub priority: ClassIndex,
    /// What the decision is based on: the store, a cache, the fallback, and so on.
    pub decided_by: DecidedBy,
    /// When it was decided, by the clock of the store.
    pub decided_at: Timestamp,
    pub(crate) turn_key: u64,
    pub(crate) live: LiveGuard,
    pub(crate) entries: Entries,
    /// Boxed, because few requests have one.
    pub(crate) receipt: Option<Box<Receipt>>,
    /// Whether the caller asked for the receipt.
    pub(crate) receipt_asked: bool,
    pub(crate) unreadable: Option<PathError>,
}

/// Where a request stands among those that wait for a busy upstream: see [`Scheduler::enter`](crate::Scheduler::enter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePlace {
    pub(crate) class: ClassIndex,
    /// A hash of the key by which requests of one class take turns.
    pub(crate) key: u64,
}

/// What was decided about the takes of a request, before it is combined into a verdict.
pub(crate) struct Ruling {
    pub(crate) entries: Entries,
    pub(crate) place: QueuePlace,
    pub(crate) by: DecidedBy,
    pub(crate) at: Timestamp,
    /// Of what was taken. A request that does not pass has none.
    pub(crate) receipt: Option<Receipt>,
}

/// What a decision is based on.
///
/// ```
/// use tidegate::{Attributes, Check, DecidedBy, Limiter, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: logins, match: { path: /login }, key: [], limits: [1/h] }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let login = Attributes::new().with("path", "/login")?;
/// assert_eq!(limiter.check_now(&Check::new(&login))?.decided_by, DecidedBy::Store);
/// let other = Attributes::new().with("path", "/other")?; // no rule applies
/// assert_eq!(limiter.check_now(&Check::new(&other))?.decided_by.name(), "policy");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The counters in the store.
    Store,
    /// The denial cache: this node remembers that the store denied the key, and until when.
    Cache,
    /// A part of the limit that this node holds.
    Lease,
    /// The rules' `on_store_error`, because the store did not answer.
    Fallback,
    /// The policy alone, because there was nothing to count.
    Policy,
}

impl From<AnsweredBy> for DecidedBy {
    fn from(by: AnsweredBy) -> Self {
        match by {
            AnsweredBy::Store => Self::Store,
            AnsweredBy::Cache => Self::Cache,
            AnsweredBy::Lease => Self::Lease,
        }
    }
}

/// The value of [`Entry::rule`] if the caller named the limit.
pub(crate) const CALLER_RULE: usize = usize::MAX;

/// The limits of a decided request. Most requests have one, so there is room for one without an allocation. Room for a second one would
/// enlarge every verdict, and a verdict is moved several times on its way to the front end.
pub(crate) type Entries = SmallVec<[Entry; 1]>;

/// One limit of a decided request, with its decision.
pub(crate) struct Entry {
    /// The index of its rule, or [`CALLER_RULE`].
    pub(crate) rule: usize,
    pub(crate) limit: EntryLimit,
    pub(crate) need: Need,
    pub(crate) shadow: bool,
    pub(crate) cost: Cost,
    pub(crate) bound: Bound,
    pub(crate) state: StateId,
    pub(crate) decision: Decision,
}

/// Where the limit of an entry is found.
///
/// A rule's own limit is kept as an index into the policy. Cloning its `Arc` instead would make all requests write to the
/// same reference count, and contend for its cache line.
pub(crate) enum EntryLimit {
    /// The index among the rule's own limits.
    OfRule(usize),
    /// A limit of a tier, of an override, or one that the caller named.
    Given(RuleLimit),
}

impl Entry {
    /// The limit, looked up in the policy that decided the verdict.
    pub(crate) fn limit<'v>(&'v self, live: &'v Live) -> Option<&'v RuleLimit> {
        match &self.limit {
            EntryLimit::OfRule(at) => {
                live.policy.rules().get(self.rule)?.allowance().limits().get(*at)
            }
            EntryLimit::Given(limit) => Some(limit),
        }
    }

    /// Under a concurrency limit, replaces the end of the oldest lease, which is all that a store knows, by an estimate of when
    /// a permit is returned.
    fn estimate_permit(&mut self, live: &Live) {
        if self.limit(live).is_none_or(|limit| limit.limit().lease().is_none()) {
            return;
        }
        self.decision.reset = None;
        if let (Outcome::Deny(Retry::After(wait)), Some(counters)) =
            (&mut self.decision.outcome, live.counters.get(self.rule))
        {
            *wait = counters.hold_time.expected();
        }
    }

    /// Whether it would have denied a request, but only marks it.
    fn marks(&self) -> bool {
        self.need == Need::Optional && !self.decision.passes()
    }
}

// === impl Verdict ===

impl Verdict {
    /// Combines the decisions of all limits into one verdict.
    pub(crate) fn fold(live: LiveGuard, ruling: Ruling) -> Self {
        let Ruling { mut entries, place, by, at, receipt } = ruling;
        entries.iter_mut().for_each(|entry| entry.estimate_permit(&live));
        let required = || entries.iter().filter(|entry| entry.need == Need::Required);
        let outcome =
            required().fold(Outcome::Allow, |so_far, entry| worse(so_far, entry.decision.outcome));
        let over = outcome.passes() && required().any(|entry| entry.decision.over);
        // A request that is denied anyway gets no marks.
        let marking = || entries.iter().filter(|entry| outcome.passes() && entry.marks());
        let shadow_deny = marking().any(|entry| entry.shadow);
        let lowered = marking().filter(|entry| !entry.shadow).filter_map(|entry| {
            match live.policy.rules().get(entry.rule)?.on_limit() {
                OnLimit::Deprioritize(class) => Some(*class),
                OnLimit::Reject | OnLimit::Delay { .. } | OnLimit::Flag(_) => None,
            }
        });
        let priority = lowered.fold(place.class, ClassIndex::max);
        Self {
            outcome,
            over,
            shadow_deny,
            priority,
            decided_by: by,
            decided_at: at,
            turn_key: place.key,
            live,
            entries,
            receipt: receipt.filter(|_| outcome.passes()).map(Box::new),
            receipt_asked: false,
            unreadable: None,
        }
    }

    /// The denial of a request whose path is malformed, so that it is unknown which rules apply.
    pub(crate) fn of_unreadable(live: LiveGuard, reason: PathError, decided_at: Timestamp) -> Self {
        let nothing = Ruling {
            entries: SmallVec::new(),
            place: QueuePlace::usual(&live),
            by: DecidedBy::Policy,
            at: decided_at,
            receipt: None,
        };
        let verdict = Self::fold(live, nothing);
        Self { outcome: Outcome::Deny(Retry::Never), unreadable: Some(reason), ..verdict }
    }

    /// Whether the request passes, now or after [a delay](Verdict::delay).
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.outcome.passes()
    }

    /// How long the request must wait before it passes. Zero unless the outcome is a delay.
    #[must_use]
    pub const fn delay(&self) -> Span {
        match self.outcome {
            Outcome::Delay(span) => span,
            Outcome::Allow | Outcome::Deny(_) => Span::ZERO,
        }
    }

    /// How long until a request of this cost could pass. `Some(Span::ZERO)` if this one passes, and `None` if it never can, because
    /// its cost exceeds what a limit allows at a time (the `burst` of a token bucket).
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy, Span};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [{ rate: 9/h, burst: 3 }] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// let wait = |cost: u64| limiter.check_now(&Check::new(&request).cost(cost)).unwrap().retry_after();
    /// assert_eq!(wait(3), Some(Span::ZERO)); // passes
    /// assert!(wait(3).is_some_and(|wait| wait > Span::ZERO)); // refused: the bucket is empty
    /// assert_eq!(wait(4), None); // can never pass
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn retry_after(&self) -> Option<Span> {
        match self.outcome {
            Outcome::Deny(Retry::After(span)) => Some(span),
            Outcome::Deny(Retry::Never) => None,
            Outcome::Allow | Outcome::Delay(_) => Some(Span::ZERO),
        }
    }

    /// The decisions of all limits that apply to the request, in the order of the policy.
    pub fn limits(&self) -> impl Iterator<Item = LimitReport<'_>> {
        self.entries.iter().filter_map(|entry| self.report(entry))
    }

    /// What each rule that applies decided about the request, in the order of the policy.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: api, key: [], limits: [9/s, 2/h] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// for speaks in ["s", "s", "h"] {
    ///     let verdict = limiter.check_now(&Check::new(&request))?;
    ///     assert_eq!(verdict.by_rule().map(|rule| rule.limit.id).collect::<Vec<_>>(), [speaks]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn by_rule(&self) -> impl Iterator<Item = RuleDecision<'_>> {
        let rules = self.entries.chunk_by(|a, b| a.rule == b.rule);
        rules.filter_map(|limits| self.rule_decision(limits.iter()))
    }

    /// What the rule with these limits decided.
    pub(crate) fn rule_decision<'v>(
        &'v self,
        mut limits: impl Iterator<Item = &'v Entry> + Clone,
    ) -> Option<RuleDecision<'v>> {
        let limit = self.report(worst(limits.clone())?)?;
        Some(RuleDecision { limit, first_state: limits.next()?.state })
    }

    /// The entry of each rule that speaks for it.
    pub(crate) fn entries_by_rule(&self) -> impl Iterator<Item = &Entry> {
        self.entries.chunk_by(|a, b| a.rule == b.rule).filter_map(|limits| worst(limits.iter()))
    }

    fn report<'v>(&'v self, entry: &'v Entry) -> Option<LimitReport<'v>> {
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
            bound: entry.bound,
            state: entry.state,
            written: limit,
        })
    }

    /// The limits that deny the request.
    pub fn refusing(&self) -> impl Iterator<Item = LimitReport<'_>> {
        self.limits().filter(LimitReport::refuses)
    }

    /// The limits that the request exceeds, and passes only because of their headroom: soft limits, and elastic ones that are open.
    pub fn exceeded(&self) -> impl Iterator<Item = LimitReport<'_>> {
        self.limits()
            .filter(|limit| self.over && limit.decision.over && limit.need == Need::Required)
    }

    /// The flags that rules with `on_limit: { flag: … }` set, such as `challenge`; one for each rule over its limit.
    pub fn flags(&self) -> impl Iterator<Item = &str> {
        let marked = |entry: &&Entry| self.allowed() && !entry.shadow && entry.marks();
        self.entries_by_rule().filter(marked).filter_map(|entry| {
            match self.live.policy.rules().get(entry.rule)?.on_limit() {
                OnLimit::Flag(flag) => Some(&**flag),
                OnLimit::Reject | OnLimit::Delay { .. } | OnLimit::Deprioritize(_) => None,
            }
        })
    }

    /// The priority class of the request. It is that of the first rule with a `priority`; else the one that the attribute
    /// `priority` names; else `normal`. Rules with `on_limit: { deprioritize: … }` that are over their limit lower it.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: exports, priority: high, key: [], limits: [1/h], on_limit: { deprioritize: low } }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// for class in ["high", "low"] { // the second request is above the limit
    ///     let verdict = limiter.check_now(&Check::new(&request))?;
    ///     assert!(verdict.allowed() && verdict.class().name() == class);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn class(&self) -> &PriorityClass {
        self.live.policy.classes().get(self.priority)
    }

    /// The policy that decided the request.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.live.policy
    }

    /// The name of the priority class, unless it is the usual one.
    #[must_use]
    pub fn unusual_class(&self) -> Option<&str> {
        let usual = self.live.policy.classes().usual();
        (self.priority != usual).then(|| self.class().name())
    }

    /// The key by which requests of one class take turns at a busy upstream: a hash of the key of the rule with the
    /// `priority`, or else of the first rule that applies and has a key. See [`Scheduler::enter`](crate::Scheduler::enter).
    #[must_use]
    pub const fn turn_key(&self) -> u64 {
        self.turn_key
    }

    /// The names of all rules of the policy that decided the request; [`LimitReport::number`] indexes them.
    pub fn rule_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.live.policy.rules().iter().map(Rule::name)
    }

    /// The version of the policy that decided the request; see [`Limiter::version`](crate::Limiter::version).
    #[must_use]
    pub fn policy_version(&self) -> u64 {
        self.live.version
    }

    /// The receipt of what was taken, with which the caller can [report](crate::Limiter::report) the outcome. Present if the
    /// request passes, and the caller [asked for it](crate::Check::with_receipt), a rule counts outcomes, or the request holds a
    /// permit of a concurrency limit.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_deref()
    }

    /// The same, but only if a rule counts outcomes and so needs a report.
    #[must_use]
    pub fn receipt_to_report(&self) -> Option<&Receipt> {
        self.receipt().filter(|_| self.counts_outcomes())
    }

    /// Whether a rule counts outcomes.
    pub(crate) fn counts_outcomes(&self) -> bool {
        let rules =
            self.entries.iter().filter_map(|entry| self.live.policy.rules().get(entry.rule));
        rules.into_iter().any(|rule| rule.count() != Count::All)
    }

    /// Why the path of the request is malformed, if the request was denied for that reason.
    #[must_use]
    pub const fn unreadable(&self) -> Option<PathError> {
        self.unreadable
    }

    /// Denies the request because older requests wait before it, with the shortest time until those can have been served. It is
    /// at least a millisecond, so that a client that obeys it does not try again in a loop.
    pub(crate) fn refused_behind_others(mut self, wait: Span) -> Self {
        let wait = wait.max(Span::from_millis(1));
        self.outcome = worse(Outcome::Deny(Retry::After(wait)), self.outcome);
        self
    }
}

impl QueuePlace {
    /// The place of a request about which nothing is known.
    pub(crate) fn usual(live: &Live) -> Self {
        Self { class: live.policy.classes().usual(), key: 0 }
    }
}

/// The entry that speaks for the limits of a rule; see [`RuleDecision::limit`].
fn worst<'v>(entries: impl Iterator<Item = &'v Entry>) -> Option<&'v Entry> {
    let severity = |entry: &Entry| match entry.decision.outcome {
        Outcome::Allow => 0,
        Outcome::Delay(_) => 1,
        Outcome::Deny(_) => 2,
    };
    entries.reduce(|so_far, next| if severity(next) > severity(so_far) { next } else { so_far })
}

/// The worse of two outcomes; of two of the same kind, the longer one.
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
    /// The name used in responses and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cache => "cache",
            Self::Lease => "lease",
            Self::Fallback => "fallback",
            Self::Policy => "policy",
        }
    }
}
