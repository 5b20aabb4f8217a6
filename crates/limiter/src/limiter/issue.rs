//! Issuing receipts: for requests whose outcome counts, that hold a permit, or whose caller asked for one.

use super::Limiter;
use super::decide::{DecideFor, Decided, DecidedTake};
use super::planning::PlannedTake;
use crate::check::Check;
use crate::receipt::{PermitRecord, Receipt, ReceiptPart};
use std::sync::atomic::Ordering;
use tidegate_core::{Limit, Outcome, TakeReceipt};
use tidegate_policy::Count;
use tidegate_store::{ReceiptId, Store};

impl<S: Store> Limiter<S> {
    /// A receipt, if a rule counts outcomes, a permit was taken, the caller asked for one, or a promised turn may have to be
    /// given back.
    pub(super) fn receipt(
        &self,
        planned: &[PlannedTake<'_>],
        decided: &Decided,
        check: &Check<'_>,
        decide_for: DecideFor,
    ) -> Option<Receipt> {
        let counts_outcomes = planned.iter().any(|planned| planned.rule.count() != Count::All);
        let is_promise = |one: &DecidedTake| matches!(one.decision.outcome, Outcome::Delay(_));
        let promised = || decided.takes.iter().any(is_promise);
        let may_undo = decide_for == DecideFor::Waiting && promised();
        let longest_lease = decided.permits(planned).filter_map(|(limit, _)| limit.lease()).max();
        if !counts_outcomes && !check.receipt && !may_undo && longest_lease.is_none() {
            return None;
        }
        // A permit can be returned for as long as it is held.
        let lifetime = longest_lease.map_or(self.receipt_ttl, |lease| lease.max(self.receipt_ttl));
        Some(Receipt {
            id: self.next_receipt_id(),
            until: decided.at.after(lifetime)?,
            node: if decided.is_local() { self.inner.node } else { self.store_number() },
            cost: check.cost,
            parts: decided.receipt_parts(planned),
        })
    }
}

/// Which states a receipt is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedBy {
    /// The fallback of this node: its counters are in the memory of this process.
    Fallback,
    Store,
    /// The fallback of another node, or states that ended with their process. Nothing here can be given back.
    Others,
}

impl<S: Store> Limiter<S> {
    /// What receipts of the store say in [`Receipt::node`].
    fn store_number(&self) -> u64 {
        self.inner.store.incarnation().unwrap_or(0)
    }

    /// What receipts that this node issues say in [`Receipt::node`].
    pub(super) fn number_of(&self, counted_by: CountedBy) -> u64 {
        match counted_by {
            CountedBy::Fallback => self.inner.node,
            CountedBy::Store | CountedBy::Others => self.store_number(),
        }
    }

    /// Which states a receipt is about.
    pub(crate) fn counted_by(&self, receipt: &Receipt) -> CountedBy {
        match receipt.node {
            node if node == self.inner.node => CountedBy::Fallback,
            node if node == self.store_number() => CountedBy::Store,
            _ => CountedBy::Others,
        }
    }
}

impl<S> Limiter<S> {
    /// An id that is unique in the deployment: the random number of this node, and a counter.
    pub(crate) fn next_receipt_id(&self) -> ReceiptId {
        let number = self.inner.receipts.fetch_add(1, Ordering::Relaxed);
        ReceiptId(u128::from(self.inner.node) << 64 | u128::from(number))
    }
}

impl Decided {
    /// The permits that were taken, each with its limit.
    fn permits<'a>(
        &'a self,
        planned: &'a [PlannedTake<'_>],
    ) -> impl Iterator<Item = (&'a Limit, TakeReceipt)> {
        let taken = planned.iter().zip(&self.takes);
        let taken = taken.filter_map(|(planned, one)| Some((planned.take.limit, one.receipt?)));
        // A cost of 0 takes nothing.
        taken.filter(|(limit, receipt)| limit.lease().is_some() && receipt.weight > 0)
    }

    /// What was taken under each limit, where anything was.
    fn receipt_parts(&self, planned: &[PlannedTake<'_>]) -> Vec<ReceiptPart> {
        let parts = planned.iter().zip(&self.takes).filter_map(|(planned, one)| {
            let permit = PermitRecord { rule: planned.number, since: self.at, taken: self.at };
            let permit = planned.take.limit.lease().map(|_| permit);
            // A permit moves to the store when that is back, so it needs the whole limit. Under its share it has the same lease.
            let share = one.share().filter(|_| permit.is_none());
            let receipt = one.receipt.filter(|receipt| permit.is_none() || receipt.weight > 0)?;
            Some(ReceiptPart {
                state: planned.take.state,
                limit: share.unwrap_or(planned.limit.limit()).clone(),
                bound: planned.take.bound,
                count: planned.rule.count(),
                receipt,
                permit,
            })
        });
        parts.collect()
    }
}
