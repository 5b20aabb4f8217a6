//! Replies that come after their callers have left: their time was over, or they were dropped.
//!
//! ```text
//!   asked ──► caller's time is over: its rules decide ──► reply: it was counted ──► was it granted here, too?
//!                                                                                    yes: nothing more is owed
//!                                                                                    no:  it is given back
//! ```
//!
//! Bounded in number and time: of a reply that never comes, or of one too many, what it took stays counted until its period
//! is over. That is too much, never too little.

use super::Redis;
use super::link::{LateReply, LateSlot};
use super::owed::cost_of;
use super::plans::Found;
use super::script::Reply;
use crate::error::StoreError;
use crate::sync::lock;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{
    Bound, Cost, Limit, Need, Now, Plan, RejectedCost, Span, StateId, Take, TakeReceipt, Timestamp,
    Written,
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
}

/// Settles the reply to a plan when its caller has left before it came.
pub(super) struct SettlesLate<'p> {
    store: &'p Redis,
    takes: &'p [Take<'p>],
    max_wait: Span,
    slot: LateSlot,
}

impl<'p> SettlesLate<'p> {
    pub(super) fn new(store: &'p Redis, takes: &'p [Take<'p>], max_wait: Span) -> Self {
        Self { store, takes, max_wait, slot: LateSlot::default() }
    }

    /// Where a late reply is left.
    pub(super) const fn slot(&self) -> &LateSlot {
        &self.slot
    }
}

impl Drop for SettlesLate<'_> {
    fn drop(&mut self) {
        if let Some(late) = lock(&self.slot).take() {
            self.store.settle_late(late, self.takes, self.max_wait);
        }
    }
}

/// How long a late reply is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

impl KeptTake {
    fn of(take: &Take<'_>) -> Self {
        let Take { state, cost, need, bound, refused, .. } = *take;
        Self { state, limit: take.limit.clone(), cost, need, bound, refused }
    }

    fn take(&self) -> Take<'_> {
        let (need, bound, refused) = (self.need, self.bound, self.refused);
        Take { need, bound, refused, ..Take::new(self.state, &self.limit, self.cost) }
    }
}

impl Redis {
    /// Waits for a reply whose caller has left, and settles what it took.
    fn settle_late(&self, late: LateReply, takes: &[Take<'_>], max_wait: Span) {
        let Ok(room) = Arc::clone(&self.latecomers).try_acquire_owned() else { return };
        // There is none any more while the process ends.
        let Ok(runtime) = Handle::try_current() else { return };
        let kept: Vec<KeptTake> = takes.iter().map(KeptTake::of).collect();
        let store = self.another();
        runtime.spawn(async move {
            let _room = room;
            let Some(Reply::Found { now, passes: true, values }) = late.within(PATIENCE).await
            else {
                return;
            };
            if let Ok(taken) = store.taken(&kept, max_wait, now, &values) {
                let taken = taken.into_iter().filter(|(state, limit, receipt)| {
                    !store.owed.cancel(*state, cost_of(limit, receipt), store.fleet.now())
                });
                store.settle(taken.collect(), now, store.until()).await;
            }
        });
    }

    /// What a plan took of the states that a script found.
    fn taken(
        &self,
        kept: &[KeptTake],
        max_wait: Span,
        now: Timestamp,
        values: &[Vec<u8>],
    ) -> Result<Vec<(StateId, Limit, TakeReceipt)>, StoreError> {
        let found = self.states(kept.iter().map(|take| &take.limit), values)?;
        let mut states: Vec<Written<'_>> = found.iter().map(Found::written).collect();
        let takes: Vec<Take<'_>> = kept.iter().map(KeptTake::take).collect();
        let plan = Plan::new(takes, max_wait).map_err(super::plans::impossible)?;
        let done = plan.take(Now::at(now), &mut states);
        let taken = kept.iter().zip(done.receipts);
        let part = |(take, receipt): (&KeptTake, Option<TakeReceipt>)| {
            Some((take.state, take.limit.clone(), receipt?))
        };
        Ok(taken.filter_map(part).collect())
    }
}
