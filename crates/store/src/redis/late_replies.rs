//! Late replies: they arrive after the caller has given up, because of its deadline or because its future was dropped.
//!
//! ```text
//!   call ──► the caller gives up: its fallback decides ──► late reply: the store had counted
//!                                                          ├─ the fallback granted it too: its debt is cancelled
//!                                                          └─ it was not granted: it is given back
//! ```
//!
//! Bounded in number and time. If a reply never arrives, or too many are pending, the take stays counted until its period is
//! over. Then too little passes, never too much.

use super::Redis;
use super::refunds::OwnedReceipt;
use super::script::{LATE_REPLY_TIMEOUT, LateReply, LateSlot, ScriptReply};
use super::stored_state::StoredState;
use crate::error::StoreError;
use crate::remote::cost_of;
use crate::sync::lock;
use std::sync::Arc;
use tidegate_core::{
    Bound, Cost, Freshness, Limit, Need, Now, Plan, RejectedCost, Span, StateId, Take, TakeReceipt,
    Timestamp, Written,
};
use tokio::runtime::Handle;

/// A take that outlives its caller.
struct KeptTake {
    state: StateId,
    limit: Limit,
    cost: Cost,
    need: Need,
    bound: Bound,
    refused: RejectedCost,
    leased: bool,
}

/// Settles the reply to a plan if the caller gives up before it arrives: on drop, it takes over the pending reply.
pub(super) struct LateReplyGuard<'p> {
    store: &'p Redis,
    takes: &'p [Take<'p>],
    max_wait: Span,
    slot: LateSlot,
}

impl<'p> LateReplyGuard<'p> {
    pub(super) fn new(store: &'p Redis, takes: &'p [Take<'p>], max_wait: Span) -> Self {
        Self { store, takes, max_wait, slot: LateSlot::default() }
    }

    /// Where the link leaves the pending reply.
    pub(super) const fn slot(&self) -> &LateSlot {
        &self.slot
    }
}

impl Drop for LateReplyGuard<'_> {
    fn drop(&mut self) {
        if let Some(late) = lock(&self.slot).take() {
            self.store.settle_late(late, self.takes, self.max_wait);
        }
    }
}

impl KeptTake {
    fn of(take: &Take<'_>) -> Self {
        let Take { state, cost, need, bound, refused, .. } = *take;
        let leased = take.freshness != Freshness::Exact;
        Self { state, limit: take.limit.clone(), cost, need, bound, refused, leased }
    }

    fn take(&self) -> Take<'_> {
        let (need, bound, refused) = (self.need, self.bound, self.refused);
        Take { need, bound, refused, ..Take::new(self.state, &self.limit, self.cost) }
    }
}

impl Redis {
    /// Waits in the background for a late reply, and settles what it took.
    fn settle_late(&self, late: LateReply, takes: &[Take<'_>], max_wait: Span) {
        let Ok(permit) = Arc::clone(&self.late_permits).try_acquire_owned() else { return };
        // While the process ends there is no runtime any more.
        let Ok(runtime) = Handle::try_current() else { return };
        let kept: Vec<KeptTake> = takes.iter().map(KeptTake::of).collect();
        let store = self.for_task();
        runtime.spawn(async move {
            let _permit = permit;
            let reply = late.within(LATE_REPLY_TIMEOUT).await;
            let Some(ScriptReply::Found { now, passes: true, values }) = reply else { return };
            if let Ok(taken) = store.taken(&kept, max_wait, now, &values) {
                let not_granted = taken.into_iter().filter(|(state, limit, receipt)| {
                    !store.debts.cancel(*state, cost_of(limit, receipt), store.router.now())
                });
                store.refund(not_granted.collect(), store.deadline()).await;
            }
        });
    }

    /// What a plan took of the states that a script returned.
    fn taken(
        &self,
        kept: &[KeptTake],
        max_wait: Span,
        now: Timestamp,
        values: &[Vec<u8>],
    ) -> Result<Vec<OwnedReceipt>, StoreError> {
        let found = self.parse_states(kept.iter().map(|take| &take.limit), values)?;
        let mut states: Vec<Written<'_>> = found.iter().map(StoredState::written).collect();
        let takes: Vec<Take<'_>> = kept.iter().map(KeptTake::take).collect();
        let plan = Plan::new(takes, max_wait).map_err(super::invalid_plan)?;
        let done = plan.take(Now::at(now), &mut states);
        let taken = kept.iter().zip(done.receipts).zip(&states);
        let part =
            |((take, receipt), written): ((&KeptTake, Option<TakeReceipt>), &Written<'_>)| {
                let receipt = receipt?;
                let receipt = if take.leased { written.slot_of(receipt) } else { receipt };
                Some((take.state, take.limit.clone(), receipt))
            };
        Ok(taken.filter_map(part).collect())
    }
}
