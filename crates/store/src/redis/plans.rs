//! Deciding a plan: one call, or one call for each slot that its takes are in.
//!
//! ```text
//!   denial cache refuses ──► answer without a call
//!   all in one slot      ──► one script call: decided at one instant, all or none
//!   several slots        ──► one call each, at the same time ──► all pass: an answer
//!                                                            └─► one refuses: what the others took is refunded
//! ```
//!
//! Over several slots a plan is not decided at one instant. It never passes when one of its limits refuses. But until the
//! refund, other callers may find a cost charged that is then given back.

use super::Redis;
use super::denial_cache::CachedState;
use super::late_replies::LateReplyGuard;
use super::refunds::OwnedReceipt;
use super::script::{ScriptCall, ScriptReply, unexpected_reply};
use super::stored_state::StoredState;
use super::wire::{Verb, whole_micros};
use crate::error::StoreError;
use crate::store::{Answer, AnsweredBy};
use futures_util::future::join_all;
use tidegate_core::{
    Ask, Decision, Freshness, Now, Plan, PlanOutcome, RejectedCost, StateId, Take, TakeReceipt,
    Timestamp, Written,
};

/// The takes of a plan that are in one slot.
struct SlotGroup<'l> {
    slot: u16,
    /// The indices of these takes in the plan.
    indices: Vec<usize>,
    plan: Plan<'l>,
}

/// Whether a call decides a whole plan, or only the takes of one slot while other slots may refuse it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlanScope {
    Whole,
    OneSlot,
}

/// The outcome of the takes of one slot.
struct GroupOutcome {
    at: Timestamp,
    done: PlanOutcome,
    /// The decision on each take as if nothing were counted, if the group passes: the answer after a refund.
    undone: Vec<Decision>,
    /// The state of each take after a refund, if the group passes.
    refunded: Vec<(StateId, CachedState)>,
}

impl Redis {
    /// Decides one plan, by the denial cache or the store.
    pub(super) async fn decide_exactly(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        if let Some(answer) = self.cached_denial(plan)? {
            return Ok(answer);
        }
        let until = self.deadline_within(plan.patience());
        let takes = plan.takes();
        let slot = takes.first().map_or(0, |take| self.router.slot(take.state));
        if takes.iter().all(|take| self.router.slot(take.state) == slot) {
            let taken = self.take_in_slot(slot, until, plan, PlanScope::Whole).await;
            let taken = taken.inspect_err(|error| self.note_foreign(takes, error))?;
            return Ok(Answer { at: taken.at, done: taken.done, by: AnsweredBy::Store });
        }
        self.take_across_slots(plan, until).await
    }

    /// The takes of a plan, grouped by slot.
    fn groups<'l>(&self, plan: &Plan<'l>) -> Result<Vec<SlotGroup<'l>>, StoreError> {
        let takes = plan.takes().iter().copied().enumerate();
        let group = |(slot, takes): (u16, Vec<(usize, Take<'l>)>)| {
            let (indices, takes): (Vec<usize>, Vec<Take<'l>>) = takes.into_iter().unzip();
            let plan = Plan::new(takes, plan.max_wait()).map_err(super::invalid_plan)?;
            Ok(SlotGroup { slot, indices, plan })
        };
        self.by_slot(takes, |(_, take)| take.state).into_iter().map(group).collect()
    }

    /// Decides takes that are in one slot, by one script call.
    async fn take_in_slot(
        &self,
        slot: u16,
        until: Timestamp,
        plan: &Plan<'_>,
        scope: PlanScope,
    ) -> Result<GroupOutcome, StoreError> {
        let (takes, max_wait) = (plan.takes(), whole_micros(plan.max_wait()));
        let guard = LateReplyGuard::new(self, takes, max_wait);
        let late = Some(guard.slot());
        let call = ScriptCall { late, ..ScriptCall::of_takes(Verb::Take, takes, max_wait) };
        let reply = self.call(slot, until, call).await?;
        let ScriptReply::Found { now, passes, values } = reply else {
            return Err(unexpected_reply());
        };
        let found = self.parse_states(takes.iter().map(|take| take.limit), &values)?;
        let mut states: Vec<Written<'_>> = found.iter().map(StoredState::written).collect();
        let plan = Plan::new(takes.to_vec(), max_wait).map_err(super::invalid_plan)?;
        let mut done = plan.take(Now::at(now), &mut states);
        name_slots(takes, &mut done, &states);
        if done.passes != passes {
            return Err(StoreError::Broken(format!(
                "the script says passes = {passes}, the core {} at {now:?} for {values:?}",
                done.passes
            )));
        }
        let undo = |(take, found): (&Take<'_>, &StoredState<'_>)| {
            take.limit.decide(&found.written(), &plan.ask(take, Now::at(now)))
        };
        let (mut undone, mut refunded) = (vec![], vec![]);
        if passes && scope == PlanScope::OneSlot {
            undone = takes.iter().zip(&found).map(undo).collect();
            let before = found.iter().map(StoredState::written);
            refunded = self.refunded_states(takes, before.zip(&states));
        }
        if self.test_time().is_none() {
            self.denials.note(&plan, &done, &states, self.router.now());
        }
        Ok(GroupOutcome { at: now, done, undone, refunded })
    }

    /// The states of takes after a refund: those before the take, if its refusal is free, and those after it otherwise.
    fn refunded_states<'w>(
        &self,
        takes: &[Take<'_>],
        states: impl Iterator<Item = (Written<'w>, &'w Written<'w>)>,
    ) -> Vec<(StateId, CachedState)> {
        let now = self.router.now();
        let state = |(take, (before, after)): (&Take<'_>, (Written<'w>, &Written<'w>))| {
            let kept = if take.refused == RejectedCost::Free { &before } else { after };
            (take.state, CachedState::new(kept, now))
        };
        takes.iter().zip(states).map(state).collect()
    }

    /// Decides takes that are in several slots. If some of the slots are unreachable, nothing is taken.
    async fn take_across_slots(
        &self,
        plan: &Plan<'_>,
        until: Timestamp,
    ) -> Result<Answer, StoreError> {
        let groups = self.groups(plan)?;
        let unreachable = groups.iter().filter(|group| !self.router.is_reachable(group.slot));
        let unreachable: Vec<usize> =
            unreachable.flat_map(|group| group.indices.iter().copied()).collect();
        if !unreachable.is_empty() && unreachable.len() < plan.takes().len() {
            return Err(StoreError::Partly(unreachable));
        }
        let taking = groups
            .iter()
            .map(|group| self.take_in_slot(group.slot, until, &group.plan, PlanScope::OneSlot));
        let taken = join_all(taking).await;
        for (group, taken) in groups.iter().zip(&taken) {
            if let Err(error) = taken {
                self.note_foreign(group.plan.takes(), error);
            }
        }
        let passes = taken.iter().all(|taken| taken.as_ref().is_ok_and(|taken| taken.done.passes));
        if !passes {
            self.refund_groups(&groups, &taken, until).await;
        }
        let mut merged = MergedAnswer::new(plan.takes().len(), passes);
        for (group, taken) in groups.iter().zip(taken) {
            let taken = taken?;
            if !passes && self.test_time().is_none() {
                // The slots that refuse have noted their states already.
                self.denials.note_refunded(plan, &taken.refunded);
            }
            merged.add(group, taken);
        }
        merged.answer()
    }

    /// Refunds what some slots took of a plan that others refused.
    async fn refund_groups(
        &self,
        groups: &[SlotGroup<'_>],
        taken: &[Result<GroupOutcome, StoreError>],
        until: Timestamp,
    ) {
        let some_failed = taken.iter().any(Result::is_err);
        let answered: Vec<(&SlotGroup<'_>, &GroupOutcome)> = groups
            .iter()
            .zip(taken)
            .filter_map(|(group, taken)| Some((group, taken.as_ref().ok()?)))
            .collect();
        let refunds = answered.iter().flat_map(|(group, taken)| taken.refunds(group, some_failed));
        self.refund(refunds.collect(), until).await;
    }

    /// Peeks at the takes of one slot, each with its index in the plan.
    pub(super) async fn peek_in_slot(
        &self,
        plan: &Plan<'_>,
        slot: u16,
        until: Timestamp,
        takes: &[(usize, Take<'_>)],
    ) -> Result<Vec<(usize, Decision)>, StoreError> {
        let max_wait = whole_micros(plan.max_wait());
        let only_takes: Vec<Take<'_>> = takes.iter().map(|(_, take)| *take).collect();
        let call = ScriptCall::of_takes(Verb::Peek, &only_takes, max_wait);
        let reply = self.call(slot, until, call).await?;
        let ScriptReply::Found { now, values, .. } = reply else { return Err(unexpected_reply()) };
        let found = self.parse_states(only_takes.iter().map(|take| take.limit), &values)?;
        let decide = |((index, take), found): (&(usize, Take<'_>), &StoredState<'_>)| {
            let ask = plan.ask(take, Now::at(now));
            (*index, take.limit.decide(&found.written(), &Ask { max_wait, ..ask }))
        };
        Ok(takes.iter().zip(&found).map(decide).collect())
    }

    /// Remembers takes that failed because of another program's data.
    fn note_foreign(&self, takes: &[Take<'_>], error: &StoreError) {
        self.foreign.note(takes, error, self.router.now());
    }

    /// The answer to a plan that the denial cache refuses.
    fn cached_denial(&self, plan: &Plan<'_>) -> Result<Option<Answer>, StoreError> {
        let local = self.router.now();
        let Some(cached) = self.denials.look(plan.takes(), local) else { return Ok(None) };
        let mut passes = true;
        let mut outcomes = Vec::new();
        for group in self.groups(plan)? {
            let Some((estimate, latest)) = self.router.server_time(group.slot, local) else {
                return Ok(None);
            };
            let states = || group.indices.iter().filter_map(|index| cached.get(*index));
            let mut states_late: Vec<Written<'_>> = states().map(CachedState::written).collect();
            let mut states_now = states_late.clone();
            // A cached denial must hold even at the latest time that the server's clock can show.
            let late = group.plan.take(Now::at(latest), &mut states_late);
            let done = group.plan.take(Now::at(estimate), &mut states_now);
            passes &= late.passes || done.passes;
            let undo = |(take, cached): (&Take<'_>, &CachedState)| {
                take.limit.decide(&cached.written(), &group.plan.ask(take, Now::at(estimate)))
            };
            let undone = group.plan.takes().iter().zip(states()).map(undo).collect();
            outcomes.push((group, GroupOutcome { at: estimate, done, undone, refunded: vec![] }));
        }
        if passes {
            return Ok(None);
        }
        let mut merged = MergedAnswer::new(plan.takes().len(), false);
        for (group, outcome) in outcomes {
            merged.add(&group, outcome);
        }
        merged.answer().map(|answer| Some(Answer { by: AnsweredBy::Cache, ..answer }))
    }
}

/// Lets the receipts of leased buckets name the slots of their takes.
fn name_slots(takes: &[Take<'_>], done: &mut PlanOutcome, states: &[Written<'_>]) {
    if takes.iter().all(|take| take.freshness == Freshness::Exact) {
        return;
    }
    let slot =
        |((take, receipt), written): ((&Take<'_>, &Option<TakeReceipt>), &Written<'_>)| match take
            .freshness
        {
            Freshness::Exact => *receipt,
            Freshness::Lease(_) => receipt.map(|receipt| written.slot_of(receipt)),
        };
    done.receipts = takes.iter().zip(&done.receipts).zip(states).map(slot).collect();
}

impl GroupOutcome {
    /// What must be refunded because another slot refuses: takes whose refusal is free, or `all` if a slot did not answer.
    fn refunds<'g>(
        &'g self,
        group: &'g SlotGroup<'_>,
        all: bool,
    ) -> impl Iterator<Item = OwnedReceipt> + 'g {
        let is_refunded =
            move |take: &Take<'_>| self.done.passes && (all || take.refused == RejectedCost::Free);
        let takes = group.plan.takes().iter().zip(&self.done.receipts);
        takes
            .filter(move |(take, _)| is_refunded(take))
            .filter_map(|(take, receipt)| Some((take.state, take.limit.clone(), (*receipt)?)))
    }
}

/// The outcomes of all groups, merged in the order of the plan.
struct MergedAnswer {
    passes: bool,
    at: Timestamp,
    answers: Vec<Option<(Decision, Option<TakeReceipt>)>>,
}

impl MergedAnswer {
    fn new(takes: usize, passes: bool) -> Self {
        Self { passes, at: Timestamp::EPOCH, answers: vec![None; takes] }
    }

    fn add(&mut self, group: &SlotGroup<'_>, outcome: GroupOutcome) {
        self.at = self.at.max(outcome.at);
        let refunded = !self.passes && outcome.done.passes;
        let answers = outcome.done.decisions.into_iter().zip(outcome.done.receipts);
        let mut undone = outcome.undone.into_iter();
        for ((take, index), answer) in group.plan.takes().iter().zip(&group.indices).zip(answers) {
            let answer = match undone.next() {
                Some(undone) if refunded && take.refused == RejectedCost::Free => (undone, None),
                _ => answer,
            };
            if let Some(merged) = self.answers.get_mut(*index) {
                *merged = Some(answer);
            }
        }
    }

    fn answer(self) -> Result<Answer, StoreError> {
        let answers = self.answers.into_iter().collect::<Option<Vec<_>>>();
        let answers = answers.ok_or_else(unexpected_reply)?;
        let (decisions, receipts): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        let done = PlanOutcome {
            passes: self.passes,
            decisions: decisions.into(),
            receipts: receipts.into(),
        };
        Ok(Answer { at: self.at, done, by: AnsweredBy::Store })
    }
}
