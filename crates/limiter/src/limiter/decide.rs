//! From a request to a verdict.
//!
//! ```text
//!   rules that apply ──► takes ──► one plan ──► store ──► decisions, receipts ──► entries of a verdict
//!                                               └─ no answer: each rule's `on_store_error`
//! ```
//!
//! A *take* is the request's cost under one limit, for one state. A *plan* is all takes of a request, which the store decides
//! together ([`Plan::take`] is the rule).

use super::planning::{PlannedTake, longest_wait, takes};
use super::{Limiter, STORE_RETRY};
use crate::check::Check;
use crate::error::CheckError;
use crate::live::LiveGuard;
use crate::queue::WaitTargets;
use crate::receipt::Receipt;
use crate::verdict::{CALLER_RULE, DecidedBy, Entry, EntryLimit, QueuePlace, Verdict};
use smallvec::SmallVec;
use tidegate_core::{
    Cost, Decision, InlineVec, Limit, NamedBy, Need, Outcome, Plan, PlanOutcome, Retry, Span, Take,
    Timestamp,
};
use tidegate_policy::{Attributes, RuleLimit};
use tidegate_store::{Answer, LimitName, Store, StoreError};

/// The namespace of states whose limits callers name. It cannot collide with a rule, because names of rules have no slash.
pub(super) const CALLER_NAMESPACE: &str = "/take";

const NANOS_PER_MILLI: u64 = 1_000_000;
/// Within this time after a server is back, every node has charged it the permits of its running requests: nodes notice within
/// half a second that it is back, and each permit looks twice a second whether it was away.
const CHARGED_WITHIN: Span = Span::from_secs(2);

/// The decisions about the takes of a plan, in the same order.
pub(super) struct Decided {
    pub(super) decisions: InlineVec<Decision>,
    pub(super) receipts: InlineVec<Option<tidegate_core::TakeReceipt>>,
    pub(super) at: Timestamp,
    pub(super) by: DecidedBy,
    /// If the fallback decided all takes: this node's shares of their limits.
    pub(super) shares: Option<Vec<Limit>>,
    /// The indices of the takes that the fallback counted on this node.
    pub(super) local_takes: Vec<usize>,
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
        let (entries, by, place) = {
            let attributes = self.concealed(&live, check.attributes);
            let planned = self.planned(&live, &attributes, check);
            let (decisions, by) = match plan(&planned, check)? {
                None => (vec![], DecidedBy::Policy),
                Some(plan) => match self.inner.store.peek(&plan).await {
                    Ok(decisions) => (decisions, DecidedBy::Store),
                    Err(_) => (self.peek_locally(&plan)?, DecidedBy::Fallback),
                },
            };
            (entries(&planned, decisions), by, planned.place)
        };
        Ok(Verdict::fold(live, (entries, place), by, self.inner.clock.now().steady))
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
        if let Some(refused) = self.unreadable(check) {
            return Ok(refused);
        }
        let live = self.live();
        let (entries, at, by, receipt, place) = {
            let attributes = self.concealed(&live, check.attributes);
            let planned = self.planned(&live, &attributes, check);
            let decided = match plan(&planned, check)? {
                None => Decided::by_policy(),
                Some(plan) => self.without_store(&planned, plan.max_wait())?,
            };
            self.owe(&planned, &decided);
            let receipt = self.receipt(&planned, &decided, check, DecideFor::Check);
            (entries(&planned, decided.decisions), decided.at, decided.by, receipt, planned.place)
        };
        let verdict = verdict(live, (entries, place), by, at, receipt);
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
        let (entries, live) = (entries(&planned, decided.decisions), self.live());
        let place = QueuePlace::usual(&live);
        Ok(verdict(live, (entries, place), decided.by, decided.at, None))
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
        let (entries, at, by, receipt, place) = {
            let attributes = self.concealed(&live, check.attributes);
            let planned = self.planned(&live, &attributes, check);
            let decided = self.decided(&planned, check).await?;
            let receipt = self.receipt(&planned, &decided, check, decide_for);
            (entries(&planned, decided.decisions), decided.at, decided.by, receipt, planned.place)
        };
        let mut verdict = verdict(live, (entries, place), by, at, receipt);
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
                .map(|(planned, plan)| self.without_store(planned, plan.max_wait()))
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
        self.without_store(planned, plan.max_wait())
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
    fn by_store(answer: Answer) -> Self {
        let PlanOutcome { decisions, receipts, .. } = answer.done;
        let by = answer.by.into();
        Self { decisions, receipts, at: answer.at, by, shares: None, local_takes: vec![] }
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
        let decisions = vec![refused; planned.len()].into();
        let receipts = vec![None; planned.len()].into();
        Ok(Self { decisions, receipts, ..Self::by_policy() })
    }

    /// The decision if there is nothing to count.
    fn by_policy() -> Self {
        let (decisions, receipts) = (vec![].into(), vec![].into());
        let (at, by) = (Timestamp::EPOCH, DecidedBy::Policy);
        Self { decisions, receipts, at, by, shares: None, local_takes: vec![] }
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

fn verdict(
    live: LiveGuard,
    entries: (SmallVec<[Entry; 2]>, QueuePlace),
    by: DecidedBy,
    at: Timestamp,
    receipt: Option<Receipt>,
) -> Verdict {
    let mut verdict = Verdict::fold(live, entries, by, at);
    verdict.receipt = receipt.filter(|_| verdict.allowed());
    verdict
}

pub(super) fn entries(
    planned: &[PlannedTake<'_>],
    decisions: impl IntoIterator<Item = Decision>,
) -> SmallVec<[Entry; 2]> {
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
