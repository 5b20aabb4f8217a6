//! The takes of a call, each once, and how they are decided.
//!
//! ```text
//!   up to 16 takes    one plan, at one instant: all of them pass, or none is counted
//!   more              several plans, asked for together; when one of them refuses, what the others took is given back
//! ```
//!
//! Between the two steps of the second way other calls see counts that are too high, never too low.

use super::DescriptorCall;
use crate::check::Check;
use crate::error::CheckError;
use crate::limiter::Limiter;
use crate::limiter::decide::{Asked, Decided, max_wait, takes};
use crate::verdict::DecidedBy;
use smallvec::SmallVec;
use tidegate_core::{Ask, Cost, Need, Plan, RejectedCost, Span, StateId, Written};
use tidegate_store::{Part, ReceiptId, Settlement, Store};

/// The takes of a call, each once, and which of them are whose.
#[derive(Default)]
pub(super) struct Together<'l> {
    pub(super) asked: SmallVec<[Asked<'l>; 2]>,
    /// The number of a descriptor, and of a take.
    pub(super) whose: SmallVec<[(usize, usize); 4]>,
}

// === impl Together ===

impl<'l> Together<'l> {
    pub(super) fn push(&mut self, part: usize, asked: Asked<'l>) {
        let known = self.asked.iter_mut().enumerate();
        for (at, other) in known {
            if other.take.state == asked.take.state {
                let cost = other.take.cost.get().saturating_add(asked.take.cost.get());
                other.take.cost = Cost::new(cost);
                if asked.take.need == Need::Required {
                    other.take.need = Need::Required;
                }
                return self.whose.push((part, at));
            }
        }
        self.whose.push((part, self.asked.len()));
        self.asked.push(asked);
    }
}

impl<S: Store> Limiter<S> {
    /// Decides all takes of a call.
    pub(super) async fn decided_together(
        &self,
        asked: &[Asked<'_>],
        check: &Check<'_>,
    ) -> Result<Decided, CheckError> {
        if asked.len() > Plan::MOST_TAKES {
            // Seldom and large: what it needs is not carried by all the others.
            return Box::pin(self.decided_in_several(asked, check)).await;
        }
        self.decided(asked, check).await
    }

    /// Decides more takes than a plan has, in plans that the store is asked for together.
    async fn decided_in_several(
        &self,
        asked: &[Asked<'_>],
        check: &Check<'_>,
    ) -> Result<Decided, CheckError> {
        let check = Check { max_wait: check.max_wait.min(max_wait(asked)), ..*check };
        let chunks = || asked.chunks(Plan::MOST_TAKES);
        let mut decided = self.decided_each(chunks(), &check).await?;
        let refuses = |(asked, decided): (&[Asked<'_>], &Decided)| {
            let takes = asked.iter().zip(&decided.decisions);
            takes
                .into_iter()
                .any(|(asked, decision)| asked.take.need == Need::Required && !decision.passes())
        };
        if chunks().zip(&decided).any(refuses) {
            for (asked, decided) in chunks().zip(&mut decided) {
                self.take_back(asked, decided).await;
            }
        } else {
            chunks().zip(&decided).for_each(|(asked, decided)| self.owe(asked, decided));
        }
        Ok(merged(decided))
    }

    /// Gives back what a plan took whose call is refused by another plan; what counts in any case stays.
    async fn take_back(&self, asked: &[Asked<'_>], decided: &mut Decided) {
        if decided.shares.is_some() {
            return self.take_back_locally(asked, decided);
        }
        let taken = asked.iter().zip(&decided.receipts);
        let parts: Vec<Part<'_>> = taken
            .filter(|(asked, _)| asked.take.refused == RejectedCost::Free)
            .filter_map(|(asked, receipt)| {
                let (state, limit) = (asked.take.state, asked.take.limit);
                Some(Part { state, limit, receipt: (*receipt)? })
            })
            .collect();
        self.returned(asked, &parts, decided).await;
    }

    /// Gives back what descriptors say, and looks how things stand then.
    pub(super) async fn give_back(
        &self,
        call: &DescriptorCall<'_, '_>,
        together: &Together<'_>,
        decided: &mut Decided,
    ) {
        let giving = |(part, take): &(usize, usize)| {
            let descriptor = call.descriptors.get(*part).filter(|one| one.gives_back)?;
            let asked = together.asked.get(*take)?;
            // As if it were taken now: so it is found where it would be counted now.
            let ask = Ask::new(decided.at, Cost::new(descriptor.amount(call.hits)));
            let receipt = asked.take.limit.charge(&mut Written::empty(asked.take.limit), &ask);
            Some(Part { state: asked.take.state, limit: asked.take.limit, receipt })
        };
        let parts: SmallVec<[Part<'_>; 2]> = together.whose.iter().filter_map(giving).collect();
        self.returned(&together.asked, &parts, decided).await;
    }

    /// Gives these back to the store, and answers how their takes stand then.
    async fn returned(&self, asked: &[Asked<'_>], parts: &[Part<'_>], decided: &mut Decided) {
        if parts.is_empty() {
            return;
        }
        let until = decided.at.after(Span::from_secs(1)).unwrap_or(decided.at);
        for parts in parts.chunks(Plan::MOST_TAKES) {
            let id = ReceiptId(self.next_receipt());
            let settlement = Settlement { id, until, parts };
            // A store that is gone gets nothing back: it counts too much, never too little.
            if self.inner.store.give_back(&settlement).await.is_err() {
                return;
            }
        }
        let is_back = |state: StateId| parts.iter().any(|part| part.state == state);
        let mut decisions = decided.decisions.iter_mut();
        for asked in asked.chunks(Plan::MOST_TAKES) {
            let Ok(plan) = Plan::new(takes(asked), Span::ZERO) else { return };
            let Ok(after) = self.inner.store.peek(&plan).await else { return };
            for ((asked, after), decision) in asked.iter().zip(after).zip(&mut decisions) {
                if is_back(asked.take.state) {
                    *decision = after;
                }
            }
        }
    }
}

/// The answers of several plans as those of one.
fn merged(all: Vec<Decided>) -> Decided {
    let by = |decided: &Decided| decided.by;
    let fallback = all.iter().map(by).find(|by| *by == DecidedBy::Fallback);
    let by = fallback.or(all.first().map(by)).unwrap_or(DecidedBy::Policy);
    let at = all.iter().map(|decided| decided.at).max().unwrap_or_default();
    let (mut decisions, mut receipts) = (Vec::new(), Vec::new());
    for decided in all {
        decisions.extend(decided.decisions);
        receipts.extend(decided.receipts);
    }
    let (decisions, receipts) = (decisions.into(), receipts.into());
    Decided { decisions, receipts, at, by, shares: None, here: vec![] }
}
