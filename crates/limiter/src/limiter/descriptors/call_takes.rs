//! The takes of a call, without duplicates, and how they are decided.
//!
//! ```text
//!   up to 16 takes    one plan, decided atomically: all of them pass, or none is counted
//!   more              several plans in one call to the store; if one of them denies, what the others took is given back
//! ```
//!
//! With several plans, other calls may for a moment see counts that are too high, never too low.

use super::DescriptorCall;
use crate::check::Check;
use crate::error::CheckError;
use crate::limiter::Limiter;
use crate::limiter::decide::Decided;
use crate::limiter::planning::{PlannedTake, longest_wait, takes};
use crate::verdict::{DecidedBy, QueuePlace};
use smallvec::SmallVec;
use tidegate_core::{Ask, Cost, Need, Plan, RejectedCost, Span, StateId, Take, Written};
use tidegate_store::{Part, Settlement, Store};

/// The takes of a call, and which descriptors each belongs to.
#[derive(Default)]
pub(super) struct CallTakes<'l> {
    pub(super) planned: SmallVec<[PlannedTake<'l>; 2]>,
    /// Pairs of a descriptor's index and the index of one of its takes.
    pub(super) owners: SmallVec<[(usize, usize); 4]>,
    /// Where the call stands among others: the place of the first descriptor that a policy decides about.
    pub(super) place: Option<QueuePlace>,
}

// === impl CallTakes ===

impl<'l> CallTakes<'l> {
    /// Adds a take of a descriptor. If the call already has a take of the same state, their costs are added.
    pub(super) fn push(&mut self, descriptor: usize, planned: PlannedTake<'l>) {
        let known = self.planned.iter_mut().enumerate();
        for (at, other) in known {
            if other.take.state == planned.take.state {
                let cost = other.take.cost.get().saturating_add(planned.take.cost.get());
                other.take.cost = Cost::new(cost);
                if planned.take.need == Need::Required {
                    other.take.need = Need::Required;
                }
                return self.owners.push((descriptor, at));
            }
        }
        self.owners.push((descriptor, self.planned.len()));
        self.planned.push(planned);
    }
}

impl<S: Store> Limiter<S> {
    /// Decides all takes of a call.
    pub(super) async fn decide_call(
        &self,
        planned: &[PlannedTake<'_>],
        check: &Check<'_>,
    ) -> Result<Decided, CheckError> {
        if planned.len() > Plan::MOST_TAKES {
            // Rare, and its future is large. On the heap, it does not enlarge the future of every call.
            return Box::pin(self.decide_in_several(planned, check)).await;
        }
        self.decided(planned, check).await
    }

    /// Decides more takes than fit one plan, as several plans in one call to the store.
    async fn decide_in_several(
        &self,
        planned: &[PlannedTake<'_>],
        check: &Check<'_>,
    ) -> Result<Decided, CheckError> {
        let check = check.waiting(longest_wait(check, planned));
        let chunks = || planned.chunks(Plan::MOST_TAKES);
        let mut decided = self.decided_each(chunks(), &check).await?;
        if chunks().zip(&decided).any(|(planned, decided)| denies(planned, decided)) {
            for (planned, decided) in chunks().zip(&mut decided) {
                self.take_back(planned, decided).await;
            }
        } else {
            chunks().zip(&decided).for_each(|(planned, decided)| self.owe(planned, decided));
        }
        Ok(merged(decided))
    }

    /// Gives back what one plan took, because another plan of the call denies. What a rule counts also when denied
    /// (`count_rejected`) stays.
    async fn take_back(&self, planned: &[PlannedTake<'_>], decided: &mut Decided) {
        if decided.is_local() {
            return self.take_back_locally(planned, decided);
        }
        let parts: Vec<Part<'_>> = planned
            .iter()
            .zip(&decided.takes)
            .filter(|(planned, _)| planned.take.refused == RejectedCost::Free)
            .filter_map(|(planned, one)| {
                let Take { state, limit, .. } = planned.take;
                Some(Part { state, limit, receipt: one.receipt? })
            })
            .collect();
        self.return_parts(planned, &parts, decided).await;
    }

    /// Gives back the cost of descriptors that ask for it, and updates their decisions.
    pub(super) async fn give_back(
        &self,
        call: &DescriptorCall<'_, '_>,
        call_takes: &CallTakes<'_>,
        decided: &mut Decided,
    ) {
        let giving = |(descriptor, take): &(usize, usize)| {
            let descriptor = call.descriptors.get(*descriptor).filter(|one| one.gives_back)?;
            let planned = call_takes.planned.get(*take)?;
            // The receipt of a take at this moment, so that the cost is given back where it would be counted now.
            let ask = Ask::new(decided.at, Cost::new(descriptor.amount(call.hits)));
            let receipt = planned.take.limit.charge(&mut Written::empty(planned.take.limit), &ask);
            Some(Part { state: planned.take.state, limit: planned.take.limit, receipt })
        };
        let parts: SmallVec<[Part<'_>; 2]> = call_takes.owners.iter().filter_map(giving).collect();
        self.return_parts(&call_takes.planned, &parts, decided).await;
    }

    /// Gives parts back to the store, and reads the decisions of their takes again.
    async fn return_parts(
        &self,
        planned: &[PlannedTake<'_>],
        parts: &[Part<'_>],
        decided: &mut Decided,
    ) {
        if parts.is_empty() {
            return;
        }
        let until = decided.at.after(Span::from_secs(1)).unwrap_or(decided.at);
        for parts in parts.chunks(Plan::MOST_TAKES) {
            let id = self.next_receipt_id();
            let settlement = Settlement { id, until, parts };
            // If the store does not answer, the parts stay taken: it counts too much, never too little.
            if self.inner.store.give_back(&settlement).await.is_err() {
                return;
            }
        }
        self.reread(planned, parts, decided).await;
    }

    /// Reads the decisions of takes again, after parts of them were given back.
    async fn reread(&self, planned: &[PlannedTake<'_>], parts: &[Part<'_>], decided: &mut Decided) {
        let is_back = |state: StateId| parts.iter().any(|part| part.state == state);
        let mut decided = decided.takes.iter_mut();
        for planned in planned.chunks(Plan::MOST_TAKES) {
            let Ok(plan) = Plan::new(takes(planned), Span::ZERO) else { return };
            let Ok(after) = self.inner.store.peek(&plan).await else { return };
            for ((planned, after), one) in planned.iter().zip(after).zip(&mut decided) {
                if is_back(planned.take.state) {
                    one.decision = after;
                }
            }
        }
    }
}

/// Whether a plan denies the call.
fn denies(planned: &[PlannedTake<'_>], decided: &Decided) -> bool {
    let mut takes = planned.iter().zip(&decided.takes);
    takes.any(|(planned, one)| planned.take.need == Need::Required && !one.decision.passes())
}

/// Combines the decisions of several plans, as if they were one.
fn merged(all: Vec<Decided>) -> Decided {
    let by = |decided: &Decided| decided.by;
    let fallback = all.iter().map(by).find(|by| *by == DecidedBy::Fallback);
    let by = fallback.or(all.first().map(by)).unwrap_or(DecidedBy::Policy);
    let at = all.iter().map(|decided| decided.at).max().unwrap_or_default();
    Decided { takes: all.into_iter().flat_map(|decided| decided.takes).collect(), at, by }
}
