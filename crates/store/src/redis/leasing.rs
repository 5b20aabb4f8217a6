//! Takes of leased limits: spent from what this node holds, and otherwise decided by the store. See [`leases`](crate::leases).
//!
//! ```text
//!   all takes are spent here            ──► an answer without a call
//!   some are                            ──► the rest is one call; refused: what was spent here is put back
//!   none is                             ──► denial cache, store; then perhaps the node asks for a slice
//! ```

use super::Redis;
use super::refunds::OwnedReceipt;
use super::script::{ScriptCall, ScriptReply, unexpected_reply};
use super::settings::RedisClock;
use crate::error::StoreError;
use crate::leases::{
    ClockSample, Granted, LeaseAction, LeaseActions, LeaseEvent, LeaseMoment, Spent,
};
use crate::plan_vec::PlanVec;
use crate::remote::timers;
use crate::store::{Answer, AnsweredBy};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{
    Bound, Cost, Freshness, LeaseAsk, Limit, Plan, PlanOutcome, RejectedCost, Slice, StateId, Take,
    TakeReceipt, Timestamp,
};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// How often the table is looked at while it holds leases.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether a take may be spent from a lease.
const fn is_leased(take: &Take<'_>) -> bool {
    matches!(take.freshness, Freshness::Lease(_))
}

impl Redis {
    /// Decides one plan.
    pub(super) async fn decide(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        if !plan.takes().iter().any(is_leased) || !self.can_lease() {
            return self.decide_exactly(plan).await;
        }
        let now = LeaseMoment { nodes: self.leases.nodes(), ..self.lease_time() };
        let mut actions = LeaseActions::new();
        let takes = plan.takes().iter();
        let spent: PlanVec<Option<Spent>> =
            takes.map(|take| self.leases.spend(&now, take, &mut actions)).collect();
        self.carry_out(actions);
        if spent.iter().all(Option::is_some) {
            return Ok(all_spent(&spent));
        }
        let answer = if spent.iter().all(Option::is_none) {
            self.decide_exactly(plan).await
        } else {
            Box::pin(self.decide_rest(plan, &spent)).await
        };
        if let Ok(answer) = &answer {
            self.note_missed(plan, &spent, answer);
        }
        answer
    }

    /// Leases need the server's own time.
    fn can_lease(&self) -> bool {
        self.router.clock_kind() == RedisClock::Server && self.test_time().is_none()
    }

    pub(super) fn lease_moment(&self) -> LeaseMoment {
        LeaseMoment { nodes: self.nodes.count(), ..self.lease_time() }
    }

    /// The present moment, for events that do not depend on the number of nodes.
    fn lease_time(&self) -> LeaseMoment {
        let (local, epoch) = self.router.since_boot_and_epoch();
        LeaseMoment { local, nodes: 1, epoch }
    }

    /// Decides the takes that were not spent here. If they do not pass, what was spent is put back.
    async fn decide_rest(
        &self,
        plan: &Plan<'_>,
        spent: &[Option<Spent>],
    ) -> Result<Answer, StoreError> {
        let rest: Vec<(usize, Take<'_>)> = plan
            .takes()
            .iter()
            .copied()
            .enumerate()
            .zip(spent)
            .filter(|(_, spent)| spent.is_none())
            .map(|(take, _)| take)
            .collect();
        let takes: Vec<Take<'_>> = rest.iter().map(|(_, take)| *take).collect();
        let mut smaller = Plan::new(takes, plan.max_wait()).map_err(super::invalid_plan)?;
        if let Some(patience) = plan.patience() {
            smaller = smaller.within(patience);
        }
        let mut guard = SpentGuard { store: self, plan, spent, keeps: false };
        let answer = self.decide_exactly(&smaller).await.map_err(|error| {
            let StoreError::Partly(missing) = error else { return error };
            // The takes have other places in the whole plan.
            let place = |at: usize| rest.get(at).map(|(place, _)| *place);
            StoreError::Partly(missing.into_iter().filter_map(place).collect())
        })?;
        guard.keeps = answer.done.passes;
        drop(guard);
        Ok(merged(plan, spent, answer))
    }

    /// Tells the leases about takes that were not spent here.
    fn note_missed(&self, plan: &Plan<'_>, spent: &[Option<Spent>], answer: &Answer) {
        let now = self.lease_moment();
        let mut actions = LeaseActions::new();
        let takes = plan.takes().iter().zip(spent).zip(&answer.done.decisions);
        for ((take, _), decision) in takes.filter(|((_, spent), _)| spent.is_none()) {
            self.leases.missed(&now, take, decision, &mut actions);
        }
        self.carry_out(actions);
    }

    /// Makes the calls that leases ask for, in the background.
    fn carry_out(&self, actions: LeaseActions) {
        for (state, action) in actions {
            // While the process ends there is no runtime any more.
            let Ok(runtime) = Handle::try_current() else { return };
            let store = self.for_task();
            match action {
                LeaseAction::Ask(limit, ask) => {
                    self.leases_begun.notify_one();
                    drop(runtime.spawn(async move { store.ask(state, &limit, ask).await }));
                }
                LeaseAction::GiveBack(limit, slices) => {
                    let parts = owned(state, &limit, slices.iter().map(Slice::receipt));
                    drop(runtime.spawn(async move { store.refund(parts, store.deadline()).await }));
                }
            }
        }
    }

    /// Asks the store for a slice, and tells the lease what it answers.
    async fn ask(&self, state: StateId, limit: &Arc<Limit>, ask: LeaseAsk) {
        let event = match self.granted(state, limit, ask).await {
            Ok(granted) => LeaseEvent::Granted(granted),
            Err(_) => LeaseEvent::Unanswered,
        };
        let action = self.leases.answered(&self.lease_moment(), state, limit, event);
        self.carry_out(action.map(|action| (state, action)).into_iter().collect());
    }

    async fn granted(
        &self,
        state: StateId,
        limit: &Limit,
        ask: LeaseAsk,
    ) -> Result<Granted, StoreError> {
        let takes = [Take::new(state, limit, Cost::ONE)];
        let LeaseMoment { local: sent, epoch, .. } = self.lease_moment();
        let call = ScriptCall::grant(&takes, ask);
        let reply = self.call(self.router.slot(state), self.deadline(), call).await?;
        let LeaseMoment { local: received, .. } = self.lease_moment();
        let ScriptReply::Granted { now, amount, values } = reply else {
            return Err(unexpected_reply());
        };
        let found = self.parse_states([limit].into_iter(), &values)?;
        let mut written = found.first().ok_or_else(unexpected_reply)?.written();
        let slice = limit.grant(&mut written, now, &ask);
        let weight = limit.weight(Cost::new(amount), Bound::Plain);
        if weight != Some(slice.map_or(0, |slice| slice.weight())) {
            return Err(StoreError::Broken(format!(
                "the script grants {amount}, the core {slice:?} at {now:?} for {values:?}"
            )));
        }
        if self.test_time().is_none() {
            self.denials.note_state(state, &written, now, self.router.now());
        }
        let reset = limit.peek(&written, now).reset;
        let reset = reset.and_then(|span| now.after(span)).unwrap_or(Timestamp::END);
        Ok(Granted { slice, reset, sample: ClockSample::new(sent, received, now), epoch })
    }

    /// A lease that made or lost something without counting it.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn lease_imbalance(&self) -> Option<String> {
        self.leases.imbalance()
    }

    /// Asks the store for a slice, without a lease.
    #[cfg(feature = "testing")]
    pub async fn grant_slice(
        &self,
        state: StateId,
        limit: &Limit,
        ask: LeaseAsk,
    ) -> Result<Option<Slice>, StoreError> {
        Ok(self.granted(state, limit, ask).await?.slice)
    }

    /// Gives back everything that is held, and waits until the store has answered or its timeout is over.
    pub(super) async fn give_back_leases(&self) {
        let mut actions = LeaseActions::new();
        self.leases.end(&self.lease_moment(), &mut actions);
        let mut parts = Vec::new();
        for (state, action) in actions {
            if let LeaseAction::GiveBack(limit, slices) = action {
                parts.extend(owned(state, &limit, slices.iter().map(Slice::receipt)));
            }
        }
        self.refund(parts, self.deadline()).await;
    }
}

fn owned(
    state: StateId,
    limit: &Limit,
    receipts: impl Iterator<Item = TakeReceipt>,
) -> Vec<OwnedReceipt> {
    receipts.map(|receipt| (state, limit.clone(), receipt)).collect()
}

/// The answer to a plan that was spent here.
fn all_spent(spent: &[Option<Spent>]) -> Answer {
    let spent = || spent.iter().flatten();
    let done = PlanOutcome {
        passes: true,
        decisions: spent().map(|spent| spent.decision).collect(),
        receipts: spent().map(|spent| Some(spent.receipt)).collect(),
    };
    let at = spent().map(|spent| spent.at).max().unwrap_or(Timestamp::EPOCH);
    Answer { at, done, by: AnsweredBy::Lease }
}

/// The answer to a plan of which a part was spent here, and the rest was decided by the store.
fn merged(plan: &Plan<'_>, spent: &[Option<Spent>], answer: Answer) -> Answer {
    let passes = answer.done.passes;
    let mut rest = answer.done.decisions.into_iter().zip(answer.done.receipts);
    let (mut decisions, mut receipts) = (Vec::new(), Vec::new());
    for (take, spent) in plan.takes().iter().zip(spent) {
        let decided = match spent {
            Some(spent) => {
                let stays = passes || take.refused == RejectedCost::Charged;
                Some((spent.decision, stays.then_some(spent.receipt)))
            }
            None => rest.next(),
        };
        if let Some((decision, receipt)) = decided {
            decisions.push(decision);
            receipts.push(receipt);
        }
    }
    let done = PlanOutcome { passes, decisions: decisions.into(), receipts: receipts.into() };
    Answer { done, ..answer }
}

/// Puts back what was spent for a plan that does not pass, or whose caller gave up.
struct SpentGuard<'p> {
    store: &'p Redis,
    plan: &'p Plan<'p>,
    spent: &'p [Option<Spent>],
    keeps: bool,
}

impl Drop for SpentGuard<'_> {
    fn drop(&mut self) {
        if self.keeps {
            return;
        }
        let now = self.store.lease_moment();
        for (take, spent) in self.plan.takes().iter().zip(self.spent) {
            if let Some(spent) = spent
                && take.refused == RejectedCost::Free
            {
                self.store.leases.undo(&now, take.state, spent);
            }
        }
    }
}

// === the background task ===

/// Looks at the leases of a node while there are some; aborted when it is dropped.
pub(super) struct LeaseKeeper(JoinHandle<()>);

impl LeaseKeeper {
    pub(super) fn start(store: &Redis) -> Self {
        let (supervisor, store) = (store.for_task(), store.for_task());
        let keeping = move || keep_leases(store.for_task());
        Self(tokio::spawn(supervisor.router.supervised(keeping)))
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_leases(store: Redis) {
    loop {
        if store.leases.is_empty() {
            store.leases_begun.notified().await;
        }
        timers::sleep(LOOK_EVERY).await;
        let mut actions = LeaseActions::new();
        store.leases.look(&store.lease_moment(), &mut actions);
        store.carry_out(actions);
    }
}
