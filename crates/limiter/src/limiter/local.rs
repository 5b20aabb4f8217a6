//! The fallback: deciding while the store, or a part of it, does not answer. Each rule chooses by `on_store_error`:
//!
//! ```text
//!   deny   the request is denied
//!   allow  the rule is skipped
//!   local  this node counts in its own memory, under its share of the limit: the amount divided by the number of nodes,
//!          at least 1
//! ```
//!
//! A cluster may lose one of its servers. Then only the rules whose states are on that server use the fallback; the others
//! are decided by the store as usual.
//!
//! **Outages do not forgive.** What this node counted stays counted for as long as the limit counts it, whether or not the
//! store answers in between. Otherwise a client whom the store does not answer in time (a short timeout, a slow reply, a key
//! that holds data of another program) would get a fresh share whenever another client is answered. So at most `L + N·S` pass
//! in a window, however often the store fails and recovers: `L` is what the limit lets pass, `N` the number of nodes and `S`
//! what a share lets pass. What was granted here is also reported to the store ([`Store::owe`]), which charges it when it is
//! back.

use super::decide::{CountedIn, Decided, DecidedTake, unread};
use super::planning::PlannedTake;
use super::{Limiter, now};
use crate::error::CheckError;
use crate::verdict::DecidedBy;
use std::sync::atomic::Ordering;
use tidegate_core::{Decision, Limit, Need, Plan, RejectedCost, Span, StateId, Take, Timestamp};
use tidegate_policy::OnStoreError;
use tidegate_store::{Answer, Clock, Memory, Part, Settlement, Store, StoreHealth as _};

/// What this node counts by itself, within the memory budget of an in-process store.
#[derive(Debug)]
pub(super) struct LocalCounters {
    memory: Memory,
}

/// This node's shares of some limits.
struct NodeShares(Vec<Limit>);

/// What `on_store_error: allow` does with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IfAllowed {
    /// The rule is skipped.
    Pass,
    /// The rule counts on this node, as `local` does: there was a panic, which a client may have caused.
    Count,
}

impl LocalCounters {
    pub(super) fn new(clock: Clock) -> Self {
        Self { memory: Memory::new(clock) }
    }

    pub(super) const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Decides takes, each under its share.
    fn take<'l>(
        &self,
        takes: impl Iterator<Item = Take<'l>>,
        shares: &'l NodeShares,
        max_wait: Span,
    ) -> Result<Answer, CheckError> {
        let takes = takes.zip(&shares.0).map(|(take, limit)| Take { limit, ..take });
        let plan = Plan::new(takes.collect::<Vec<_>>(), max_wait)?;
        Ok(self.memory.take_now(&plan))
    }
}

impl NodeShares {
    fn of<'l>(limits: impl Iterator<Item = &'l Limit>, nodes: u32) -> Self {
        Self(limits.map(|limit| limit.divided(nodes)).collect())
    }
}

impl<S: Store> Limiter<S> {
    /// Decides, on this node, a plan that the store did not answer.
    pub(super) fn take_locally(&self, plan: &Plan<'_>) -> Result<Answer, CheckError> {
        self.inner.store_errors.fetch_add(1, Ordering::Relaxed);
        let limits = plan.takes().iter().map(|take| take.limit);
        let shares = NodeShares::of(limits, self.inner.store.nodes());
        let takes = plan.takes().iter().copied();
        let answer = self.inner.local.take(takes, &shares, plan.max_wait())?;
        if answer.done.passes {
            self.inner.store.owe(plan.takes());
        }
        Ok(answer)
    }

    /// What there is no room for in the counters that this node keeps for itself while the store does not answer.
    ///
    /// ```
    /// use tidegate::{Limiter, Policy};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// assert_eq!(Limiter::in_memory(policy)?.local_shortage(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_shortage(&self) -> Option<&'static str> {
        self.inner.local.memory().shortage()
    }

    /// Answers what [`Limiter::take_locally`] would decide, without counting.
    pub(super) fn peek_locally(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, CheckError> {
        let limits = plan.takes().iter().map(|take| take.limit);
        let shares = NodeShares::of(limits, self.inner.store.nodes());
        let takes = plan.takes().iter().zip(&shares.0);
        let takes = takes.map(|(take, limit)| Take { limit, ..*take }).collect::<Vec<_>>();
        Ok(self.inner.local.memory().peek_now(&Plan::new(takes, plan.max_wait())?))
    }

    /// In which states of a plan this node has counted something by itself. The takes cost nothing.
    pub(super) fn counted_locally(&self, plan: &Plan<'_>) -> Result<Vec<bool>, CheckError> {
        let nodes = self.inner.store.nodes();
        let decisions = self.peek_locally(plan)?.into_iter().zip(plan.takes());
        let counted = decisions
            .map(|(decision, take)| decision.remaining < take.limit.divided(nodes).capacity());
        Ok(counted.collect())
    }

    /// Reports to the store what was granted on this node, so that the store charges it when it is back.
    pub(super) fn owe(&self, planned: &[PlannedTake<'_>], decided: &Decided) {
        let passes = |(planned, take): (&PlannedTake<'_>, &DecidedTake)| {
            planned.take.need == Need::Optional || take.decision.passes()
        };
        let both = || planned.iter().zip(&decided.takes);
        if !both().all(passes) {
            return;
        }
        let counted_here = both().filter(|(_, take)| match take.counted_in {
            CountedIn::Store => false,
            CountedIn::Share(_) => take.receipt.is_some(),
            CountedIn::ShareBesideStore => true,
        });
        // A server that awaits permits can be reached: permits that are held are charged to it one by one.
        let owed = counted_here.filter(|(planned, _)| !self.awaits_permit(planned));
        let owed: Vec<Take<'_>> = owed.map(|(planned, _)| planned.take).collect();
        if !owed.is_empty() {
            self.inner.store.owe(&owed);
        }
    }

    /// Decides all takes by the fallback.
    pub(super) fn without_store(
        &self,
        planned: &[PlannedTake<'_>],
        max_wait: Span,
        if_allowed: IfAllowed,
    ) -> Result<Decided, CheckError> {
        self.inner.store_errors.fetch_add(1, Ordering::Relaxed);
        self.by_rules(&planned.iter().collect::<Vec<_>>(), max_wait, if_allowed)
    }

    /// Decides takes of which the store can decide only some. The fallback decides those that are `missing`. If it lets the
    /// request pass, the store decides the others; if the store then denies, what the fallback counted is given back.
    pub(super) async fn without_a_part(
        &self,
        planned: &[PlannedTake<'_>],
        missing: &[usize],
        whole: &Plan<'_>,
    ) -> Result<Decided, CheckError> {
        self.inner.store_errors.fetch_add(1, Ordering::Relaxed);
        let part = |is_missing: bool| -> Vec<&PlannedTake<'_>> {
            let numbered = planned.iter().enumerate();
            let part = numbered.filter(|(number, _)| missing.contains(number) == is_missing);
            part.map(|(_, planned)| planned).collect()
        };
        let (unreachable, reachable) = (part(true), part(false));
        let local = self.by_rules(&unreachable, whole.max_wait(), IfAllowed::Pass)?;
        let plan = reachable_plan(&reachable, whole)?;
        let passes = unreachable
            .iter()
            .zip(&local.takes)
            .all(|(planned, one)| planned.take.need == Need::Optional || one.decision.passes());
        let remote = if passes {
            match self.take_reachable(&plan, &unreachable, &local).await {
                Some(remote) => remote,
                None => {
                    let all: Vec<_> = planned.iter().collect();
                    return self.by_rules(&all, whole.max_wait(), IfAllowed::Pass);
                }
            }
        } else {
            self.peek_reachable(&plan, &reachable, local.at).await
        };
        Ok(merged(planned, missing, local, remote))
    }

    /// Takes from the part of the store that answers; `None` if it does not answer either. What the fallback counted is given
    /// back unless the store lets the request pass.
    async fn take_reachable(
        &self,
        plan: &Plan<'_>,
        unreachable: &[&PlannedTake<'_>],
        local: &Decided,
    ) -> Option<Decided> {
        let answer = self.inner.store.take_one(plan).await.ok();
        if answer.as_ref().is_none_or(|answer| !answer.done.passes) {
            self.undo(unreachable, local);
        }
        answer.map(Decided::by_store)
    }

    /// Reads the part of the store that answers, for a request that the fallback denies.
    async fn peek_reachable(
        &self,
        plan: &Plan<'_>,
        reachable: &[&PlannedTake<'_>],
        at: Timestamp,
    ) -> Decided {
        let decisions = match self.inner.store.peek(plan).await {
            Ok(decisions) => decisions,
            Err(_) => reachable.iter().map(|planned| unread(planned, true)).collect(),
        };
        let takes = decisions.into_iter().map(|decision| DecidedTake::in_store(decision, None));
        Decided { takes: takes.collect(), at, by: DecidedBy::Store }
    }

    /// Decides takes by the `on_store_error` of their rules.
    fn by_rules(
        &self,
        planned: &[&PlannedTake<'_>],
        max_wait: Span,
        if_allowed: IfAllowed,
    ) -> Result<Decided, CheckError> {
        let nodes = self.inner.store.nodes();
        let denied = planned.iter().any(|planned| denies_without_store(planned));
        // Nothing is counted for a request that is denied anyway.
        let counts = |planned: &PlannedTake<'_>| {
            !denied
                && match planned.rule.on_store_error() {
                    OnStoreError::Local => true,
                    OnStoreError::Allow => if_allowed == IfAllowed::Count,
                    OnStoreError::Deny => false,
                }
        };
        let counted = || planned.iter().filter(|planned| counts(planned)).map(|one| one.take);
        let shares = NodeShares::of(counted().map(|take| take.limit), nodes);
        let answer = self.inner.local.take(counted(), &shares, max_wait)?;
        let mut answers = answer.done.decisions.into_iter().zip(answer.done.receipts);
        let decide = |planned: &&PlannedTake<'_>| {
            let answer = if counts(planned) { answers.next() } else { None };
            let (decision, receipt) =
                answer.unwrap_or_else(|| (unread(planned, !denies_without_store(planned)), None));
            let share = Box::new(planned.take.limit.divided(nodes));
            DecidedTake { decision, receipt, counted_in: CountedIn::Share(share) }
        };
        let takes = planned.iter().map(decide).collect();
        Ok(Decided { takes, at: answer.at, by: DecidedBy::Fallback })
    }

    /// Gives back what the fallback counted for a request that is denied elsewhere. What a rule counts also when denied
    /// (`count_rejected`) stays.
    fn undo(&self, planned: &[&PlannedTake<'_>], local: &Decided) {
        let parts: Vec<Part<'_>> = planned
            .iter()
            .zip(&local.takes)
            .filter(|(planned, _)| planned.take.refused == RejectedCost::Free)
            .filter_map(|(planned, one)| {
                let state = planned.take.state;
                Some(Part { state, limit: one.share()?, receipt: one.receipt? })
            })
            .collect();
        let id = self.next_receipt_id();
        let until = local.at.after(Span::from_secs(1)).unwrap_or(local.at);
        let settlement = Settlement { id, until, parts: &parts };
        // An in-process store answers immediately and does not fail.
        let _ = now(self.inner.local.memory().give_back(&settlement));
    }

    /// Gives back what the fallback counted for a call that another of its plans denies, and updates the decisions.
    pub(super) fn take_back_locally(&self, planned: &[PlannedTake<'_>], local: &mut Decided) {
        self.undo(&planned.iter().collect::<Vec<_>>(), local);
        let takes = planned.iter().zip(&local.takes).filter_map(|(planned, one)| {
            let limit = one.share()?;
            Some(Take { limit, ..planned.take })
        });
        let Ok(plan) = Plan::new(takes.collect::<Vec<_>>(), Span::ZERO) else { return };
        let after = self.inner.local.memory().peek_now(&plan);
        for ((planned, one), after) in planned.iter().zip(&mut local.takes).zip(after) {
            if one.receipt.is_some() && planned.take.refused == RejectedCost::Free {
                one.decision = after;
            }
        }
    }

    /// Resets states in the memory of this node, too.
    pub(super) fn reset_locally(&self, states: &[StateId]) {
        self.inner.local.memory().reset_now(states);
    }
}

// === helpers ===

/// Whether a take denies its request because the store does not answer.
fn denies_without_store(planned: &PlannedTake<'_>) -> bool {
    planned.take.need == Need::Required && planned.rule.on_store_error() == OnStoreError::Deny
}

/// The plan of the takes that the store can decide. Nothing was taken yet, so the caller's timeout starts anew.
fn reachable_plan<'l>(
    reachable: &[&PlannedTake<'l>],
    whole: &Plan<'_>,
) -> Result<Plan<'l>, CheckError> {
    let takes = reachable.iter().map(|planned| planned.take).collect::<Vec<_>>();
    let plan = Plan::new(takes, whole.max_wait())?;
    let plan = whole.patience().map_or(plan.clone(), |patience| plan.within(patience));
    Ok(plan)
}

/// Puts the decisions of the fallback and of the store back into the order of the plan.
fn merged(
    planned: &[PlannedTake<'_>],
    missing: &[usize],
    local: Decided,
    remote: Decided,
) -> Decided {
    let mut of_fallback = local.takes.into_iter().map(|one| {
        let was_counted = one.receipt.is_some();
        let counted_in = if was_counted { CountedIn::ShareBesideStore } else { CountedIn::Store };
        DecidedTake { receipt: None, counted_in, ..one }
    });
    let mut of_store = remote.takes.into_iter();
    let in_order = planned.iter().enumerate().map(|(number, planned)| {
        let one = if missing.contains(&number) { of_fallback.next() } else { of_store.next() };
        one.unwrap_or_else(|| {
            debug_assert!(false, "each take is decided by one of the two");
            DecidedTake::in_store(unread(planned, false), None)
        })
    });
    Decided { takes: in_order.collect(), at: remote.at, by: DecidedBy::Fallback }
}
