//! From a request to a verdict.
//!
//! ```text
//!   rules that apply ──► takes ──► one plan ──► store ──► decisions, receipts ──► entries of a verdict
//!                                               └─ no answer: each rule's `on_store_error`
//! ```
//!
//! A *take* is the request's cost under one limit, for one state. A *plan* is all takes of a request, which the store decides
//! together ([`Plan::take`] is the rule).

use super::local::IfAllowed;
use super::planning::{PlannedTake, longest_wait, takes};
use super::{Limiter, STORE_RETRY};
use crate::check::Check;
use crate::error::CheckError;
use crate::live::LiveGuard;
use crate::queue::WaitTargets;
use crate::verdict::{
    CALLER_RULE, DecidedBy, Entries, Entry, EntryLimit, QueuePlace, Ruling, Verdict,
};
use smallvec::SmallVec;
use tidegate_core::{
    Cost, Decision, Limit, NamedBy, Need, Outcome, Plan, Retry, Span, Take, TakeReceipt, Timestamp,
};
use tidegate_policy::{Attributes, RuleLimit};
use tidegate_store::{Answer, LimitName, Store, StoreError};

/// The namespace of states whose limits callers name. It cannot collide with a rule, because names of rules have no slash.
pub(super) const CALLER_NAMESPACE: &str = "/take";

const NANOS_PER_MILLI: u64 = 1_000_000;
/// Within this time after a server is back, every node has charged it the permits of its running requests: nodes notice within
/// half a second that it is back, and each permit looks twice a second whether it was away.
const CHARGED_WITHIN: Span = Span::from_secs(2);

/// What became of the takes of a plan, in their order.
pub(super) struct Decided {
    pub(super) takes: SmallVec<[DecidedTake; 2]>,
    pub(super) at: Timestamp,
    pub(super) by: DecidedBy,
}

/// What became of a take.
pub(super) struct DecidedTake {
    pub(super) decision: Decision,
    /// What was taken, if anything was.
    pub(super) receipt: Option<TakeReceipt>,
    pub(super) counted_in: CountedIn,
}

/// Where a take was counted, if it was.
pub(super) enum CountedIn {
    Store,
    /// In the memory of this node, by the fallback, under this share of its limit.
    Share(Box<Limit>),
    /// The same, for a request of which the store counted a part. Such a take cannot be given back: it counts until its period is over.
    ShareBesideStore,
}

/// The purpose of a decision, which determines what is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecideFor {
    /// A single check: the verdict is added to the statistics.
    Check,
    /// A request that may wait and ask several times: its caller adds the final verdict to the statistics. A delay comes
    /// with a receipt, so that the promised turn can be given back.
    Waiting,
}

// === asking ===

impl<S: Store> Limiter<S> {
    /// Answers what [`Limiter::check`] would answer now, without counting anything.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// for _ in 0..3 {
    ///     assert!(limiter.peek(&Check::new(&request)).await?.allowed());
    /// }
    /// assert!(limiter.check(&Check::new(&request)).await?.allowed());
    /// assert!(!limiter.peek(&Check::new(&request)).await?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn peek(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        if let Some(refused) = self.unreadable(check) {
            return Ok(refused);
        }
        let live = self.live();
        let ruling = {
            let attributes = self.concealed(&live, check.attributes);
            let planned = self.planned(&live, &attributes, check);
            let (decisions, by) = match plan(&planned, check)? {
                None => (vec![], DecidedBy::Policy),
                Some(plan) => match self.inner.store.peek(&plan).await {
                    Ok(decisions) => (decisions, DecidedBy::Store),
                    Err(_) => (self.peek_locally(&plan)?, DecidedBy::Fallback),
                },
            };
            let at = self.inner.clock.now().steady;
            let entries = entries(&planned, decisions);
            Ruling { entries, place: planned.place, by, at, receipt: None }
        };
        Ok(Verdict::fold(live, ruling))
    }

    /// Decides and counts a request without the store, by the `on_store_error` of each rule.
    ///
    /// [`Limiter::check`] does this by itself when the store returns an error. Use this if the store failed in another way,
    /// for example if it did not answer within your own timeout.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, DecidedBy, Limiter, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: all, key: [], limits: [9/s], on_store_error: deny }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let verdict = limiter.check_without_store(&Check::new(&Attributes::new()))?;
    /// assert!(!verdict.allowed() && verdict.decided_by == DecidedBy::Fallback);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_without_store(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        self.check_by_fallback(check, IfAllowed::Pass)
    }

    /// Decides and counts a request whose first decision ended in a panic.
    ///
    /// A panic is a bug, and a client may have found out how to cause it. So unlike in [`Limiter::check_without_store`] no rule lets the
    /// request pass without counting it: `on_store_error: allow` counts on this node, as `local` does.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: all, key: [], limits: [1/h], on_store_error: allow }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// assert!(limiter.check_after_panic(&Check::new(&request))?.allowed());
    /// assert!(!limiter.check_after_panic(&Check::new(&request))?.allowed());
    /// assert!(limiter.check_without_store(&Check::new(&request))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_after_panic(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        self.check_by_fallback(check, IfAllowed::Count)
    }

    fn check_by_fallback(
        &self,
        check: &Check<'_>,
        if_allowed: IfAllowed,
    ) -> Result<Verdict, CheckError> {
        if let Some(refused) = self.unreadable(check) {
            return Ok(refused);
        }
        let live = self.live();
        let ruling = {
            let attributes = self.concealed(&live, check.attributes);
            let planned = self.planned(&live, &attributes, check);
            let decided = match plan(&planned, check)? {
                None => Decided::by_policy(),
                Some(plan) => self.without_store(&planned, plan.max_wait(), if_allowed)?,
            };
            self.owe(&planned, &decided);
            let receipt = self.receipt(&planned, &decided, check, DecideFor::Check);
            Ruling { receipt, ..decided.ruling(&planned, planned.place) }
        };
        let verdict = Verdict::fold(live, ruling);
        self.count(&verdict);
        Ok(verdict)
    }

    /// Counts `key` under a limit that the caller provides, independently of the policy.
    ///
    /// The counters are separate from those of rules. In the verdict, the name of the rule is empty.
    ///
    /// ```
    /// use tidegate::{Cost, Limiter, Policy, RuleLimit, Span};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let limit = RuleLimit::from_rate("1/h")?;
    /// assert!(limiter.take("job:7", &limit, Cost::ONE, Span::ZERO).await?.allowed());
    /// assert!(!limiter.take("job:7", &limit, Cost::ONE, Span::ZERO).await?.allowed());
    /// assert!(limiter.take("job:8", &limit, Cost::ONE, Span::ZERO).await?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn take(
        &self,
        key: &str,
        limit: &RuleLimit,
        cost: Cost,
        max_wait: Span,
    ) -> Result<Verdict, CheckError> {
        let name = LimitName::new(CALLER_NAMESPACE, "", limit.limit());
        let state = self.inner.secret.subject(&[(CALLER_NAMESPACE, key)]).state(name);
        self.admit_limit(limit.limit())?;
        let take = Take { named_by: NamedBy::Caller, ..Take::new(state, limit.limit(), cost) };
        let rule = &self.inner.callers;
        let planned =
            [PlannedTake { number: CALLER_RULE, rule, limit, own: None, take, shadow: false }];
        let nothing = Attributes::new();
        let decided = self.decided(&planned, &Check::new(&nothing).waiting(max_wait)).await?;
        let live = self.live();
        let ruling = decided.ruling(&planned, QueuePlace::usual(&live));
        Ok(Verdict::fold(live, ruling))
    }

    /// What a request may have to wait for.
    pub(crate) fn wait_targets(&self, check: &Check<'_>) -> WaitTargets {
        let live = self.live();
        let attributes = self.concealed(&live, check.attributes);
        let planned = self.planned(&live, &attributes, check);
        let required = planned.iter().filter(|planned| planned.take.need == Need::Required);
        WaitTargets {
            states: required.map(|planned| planned.take.state).collect(),
            max_wait: longest_wait(check, &planned),
        }
    }

    /// Decides a request by one version of the configuration.
    pub(crate) async fn decide(
        &self,
        live: LiveGuard,
        check: &Check<'_>,
        decide_for: DecideFor,
    ) -> Result<Verdict, CheckError> {
        if let Some(refused) = self.unreadable(check) {
            if decide_for == DecideFor::Check {
                self.count(&refused);
            }
            return Ok(refused);
        }
        let ruling = {
            let attributes = self.concealed(&live, check.attributes);
            let planned = self.planned(&live, &attributes, check);
            let decided = self.decided(&planned, check).await?;
            let receipt = self.receipt(&planned, &decided, check, decide_for);
            Ruling { receipt, ..decided.ruling(&planned, planned.place) }
        };
        let mut verdict = Verdict::fold(live, ruling);
        verdict.receipt_asked = check.receipt;
        if decide_for == DecideFor::Check {
            self.count(&verdict);
        }
        Ok(verdict)
    }

    /// The denial of a request whose path is malformed, because it is unknown which rules apply to it.
    fn unreadable(&self, check: &Check<'_>) -> Option<Verdict> {
        let reason = check.attributes.unreadable()?;
        Some(Verdict::of_unreadable(self.live(), reason, self.inner.clock.now().steady))
    }

    /// Decides takes by the store, or by the fallback if the store or a part of it does not answer.
    pub(super) async fn decided(
        &self,
        planned: &[PlannedTake<'_>],
        check: &Check<'_>,
    ) -> Result<Decided, CheckError> {
        let plan = match plan(planned, check) {
            Err(error) => return Decided::too_many(planned, check, error),
            Ok(None) => return Ok(Decided::by_policy()),
            Ok(Some(plan)) => plan,
        };
        let answer = match self.awaits_permits(planned) {
            false => self.inner.store.take_one(&plan).await,
            true => Err(StoreError::Unavailable("permits are being charged again".into())),
        };
        match answer {
            Ok(answer) => Ok(Decided::by_store(answer)),
            // The fallback's future is large and rare. On the heap, it does not enlarge the future of every request.
            Err(error) => {
                let decided = Box::pin(self.decided_without(planned, &plan, error)).await?;
                self.owe(planned, &decided);
                Ok(decided)
            }
        }
    }

    /// Decides several lists of takes, each as a plan of its own, in one call to the store.
    pub(super) async fn decided_each<'a, 'l: 'a>(
        &self,
        lists: impl Iterator<Item = &'a [PlannedTake<'l>]> + Clone,
        check: &Check<'_>,
    ) -> Result<Vec<Decided>, CheckError> {
        let plans = lists.clone().filter_map(|planned| plan(planned, check).transpose());
        let plans: Vec<Plan<'_>> = plans.collect::<Result<_, _>>()?;
        if lists.clone().any(|planned| self.awaits_permits(planned)) {
            let lists = lists.zip(&plans);
            return lists
                .map(|(planned, plan)| {
                    self.without_store(planned, plan.max_wait(), IfAllowed::Pass)
                })
                .collect();
        }
        let answers = self.inner.store.take(&plans).await;
        let mut all = Vec::with_capacity(plans.len());
        for ((planned, plan), answer) in lists.zip(&plans).zip(answers) {
            all.push(match answer {
                Ok(answer) => Decided::by_store(answer),
                Err(error) => self.decided_without(planned, plan, error).await?,
            });
        }
        Ok(all)
    }

    /// Decides a plan that the store did not answer, or only a part of.
    async fn decided_without(
        &self,
        planned: &[PlannedTake<'_>],
        plan: &Plan<'_>,
        error: StoreError,
    ) -> Result<Decided, CheckError> {
        // What the fallback counts beside the store has no receipt. A permit needs one, to be held while its request runs.
        if let StoreError::Partly(missing) = error
            && !planned.iter().any(takes_permit)
        {
            return self.without_a_part(planned, &missing, plan).await;
        }
        self.without_store(planned, plan.max_wait(), IfAllowed::Pass)
    }

    /// Whether a request would take a permit of a server that is back for so short a time that the nodes may not have charged it
    /// yet what runs. Then this node decides under its share, as it did while the server was away.
    fn awaits_permits(&self, planned: &[PlannedTake<'_>]) -> bool {
        planned.iter().any(|planned| self.awaits_permit(planned))
    }

    pub(super) fn awaits_permit(&self, planned: &PlannedTake<'_>) -> bool {
        let back_for = || self.inner.store.back_for(planned.take.state);
        takes_permit(planned) && back_for().is_some_and(|back| back < CHARGED_WITHIN)
    }
}

// === helpers ===

impl Decided {
    pub(super) fn by_store(answer: Answer) -> Self {
        let takes = answer.done.decisions.into_iter().zip(answer.done.receipts);
        let takes = takes.map(|(decision, receipt)| DecidedTake::in_store(decision, receipt));
        Self { takes: takes.collect(), at: answer.at, by: answer.by.into() }
    }

    /// More limits apply than one plan can have. Usually that is a mistake in the policy, so it is an error that the operator
    /// sees. But if the path has several readings, which multiply the takes, the client caused it: then the request is denied.
    fn too_many(
        planned: &[PlannedTake<'_>],
        check: &Check<'_>,
        error: CheckError,
    ) -> Result<Self, CheckError> {
        if !check.attributes.is_ambiguous() {
            return Err(error);
        }
        let outcome = Outcome::Deny(Retry::Never);
        let refused = Decision { outcome, over: false, remaining: 0, reset: None };
        let takes = planned.iter().map(|_| DecidedTake::in_store(refused, None));
        Ok(Self { takes: takes.collect(), ..Self::by_policy() })
    }

    /// The decision if there is nothing to count.
    fn by_policy() -> Self {
        Self { takes: SmallVec::new(), at: Timestamp::EPOCH, by: DecidedBy::Policy }
    }

    /// Whether the fallback of this node decided all takes.
    pub(super) fn is_local(&self) -> bool {
        self.takes.iter().any(|take| matches!(take.counted_in, CountedIn::Share(_)))
    }

    /// What a verdict is made of. It has no receipt yet.
    pub(super) fn ruling(&self, planned: &[PlannedTake<'_>], place: QueuePlace) -> Ruling {
        let entries = entries(planned, self.takes.iter().map(|take| take.decision));
        Ruling { entries, place, by: self.by, at: self.at, receipt: None }
    }
}

impl DecidedTake {
    pub(super) const fn in_store(decision: Decision, receipt: Option<TakeReceipt>) -> Self {
        Self { decision, receipt, counted_in: CountedIn::Store }
    }

    /// This node's share of the limit, if the fallback counted under it.
    pub(super) fn share(&self) -> Option<&Limit> {
        match &self.counted_in {
            CountedIn::Share(share) => Some(share),
            CountedIn::Store | CountedIn::ShareBesideStore => None,
        }
    }
}

/// The plan of all takes of a request; `None` if no limit applies to it.
fn plan<'l>(
    planned: &[PlannedTake<'l>],
    check: &Check<'_>,
) -> Result<Option<Plan<'l>>, CheckError> {
    if planned.is_empty() {
        return Ok(None);
    }
    let plan = Plan::new(takes(planned), longest_wait(check, planned))?;
    Ok(Some(match check.timeout {
        Some(timeout) => plan.within(store_timeout(timeout)),
        None => plan,
    }))
}

/// The store's part of the caller's timeout: 80 %, leaving at least 2 ms. Of 20 ms the store gets 16 ms, of 5 ms it gets
/// 3 ms. The rest is for noticing the timeout (the timer counts milliseconds), for the fallback, and for the way back.
fn store_timeout(timeout: Span) -> Span {
    let rest = timeout.as_nanos().checked_div(5).unwrap_or(0).max(2 * NANOS_PER_MILLI);
    Span::from_nanos(timeout.as_nanos().saturating_sub(rest))
}

pub(super) fn entries(
    planned: &[PlannedTake<'_>],
    decisions: impl IntoIterator<Item = Decision>,
) -> Entries {
    let entry = |(planned, decision): (&PlannedTake<'_>, Decision)| Entry {
        rule: planned.number,
        limit: match planned.own {
            Some(at) => EntryLimit::OfRule(at),
            None => EntryLimit::Given(planned.limit.clone()),
        },
        need: planned.take.need,
        shadow: planned.shadow,
        cost: planned.take.cost,
        bound: planned.take.bound,
        state: planned.take.state,
        decision,
    };
    planned.iter().zip(decisions).map(entry).collect()
}

fn takes_permit(planned: &PlannedTake<'_>) -> bool {
    planned.take.limit.lease().is_some()
}

/// A decision about a state that could not be read.
pub(super) fn unread(planned: &PlannedTake<'_>, passes: bool) -> Decision {
    let outcome = if passes { Outcome::Allow } else { Outcome::Deny(Retry::After(STORE_RETRY)) };
    let remaining = if passes { planned.limit.limit().capacity() } else { 0 };
    Decision { outcome, over: false, remaining, reset: None }
}
