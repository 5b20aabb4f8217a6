//! Charging without asking, and resetting.

use super::Memcached;
use super::call::Call;
use super::counters::CounterShape;
use super::decide::{MAX_TRIES, VisitKind, contended};
use super::meta::{self, Reply};
use super::server::Failed;
use crate::remote::{Creditor, DebtLedger, PendingCharge, RECEIPT_KEPT};
use crate::store::ReceiptId;
use std::sync::atomic::Ordering;
use tidegate_core::{Ask, Cost, Decision, Limit, StateId, Take, TakeReceipt, Timestamp};

impl Memcached {
    /// Counts a take whether or not it passes.
    pub(super) async fn charge_one(
        &self,
        take: Take<'_>,
        until: Timestamp,
    ) -> Result<(Decision, TakeReceipt), Failed> {
        for _ in 0..MAX_TRIES {
            let now = self.context.wall.now();
            let mut attempt = self.attempt(take, now)?;
            let weight = take.limit.weight(take.cost, take.bound).unwrap_or(u64::MAX);
            attempt.most = take.limit.deepest();
            attempt.weight = weight.min(attempt.most);
            let found = self.visit_one(&attempt, VisitKind::Add, until).await?;
            let mut written = attempt.state(&found);
            let ask = Ask::new(now.of(take.limit), take.cost).bounded(take.bound);
            let receipt = take.limit.charge(&mut written, &ask);
            let effect = attempt.effect(&found, &written, now);
            let attempts = std::slice::from_ref(&attempt);
            if self.settle(attempts, std::slice::from_ref(&found), &[effect], until).await? {
                let nothing = Ask { cost: Cost::default(), ..ask };
                return Ok((take.limit.decide(&written, &nothing), receipt));
            }
        }
        Err(contended())
    }

    /// Removes all values of a state; returns whether there were any.
    pub(super) async fn delete(&self, state: StateId, until: Timestamp) -> Result<bool, Failed> {
        let server = self.server_of(state)?;
        let now = self.context.wall.now();
        let keys = self.shapes.all().into_iter().flat_map(|shape| match shape {
            CounterShape::Calendar => shape.all_keys(state, now.calendar, &self.shapes.calendars()),
            CounterShape::Window { .. }
            | CounterShape::Weighted { .. }
            | CounterShape::Bucket { .. } => shape.all_keys(state, now.steady, &[]),
        });
        let call = Call::begin(server, until)?;
        let sent: Result<Vec<_>, _> =
            keys.map(|key| call.connection.send(&meta::delete(&key))).collect();
        let mut had = false;
        for mut reply in sent.map_err(|error| call.not_sent(error))? {
            had |= call.reply(&mut reply).await? == Reply::Done;
        }
        Ok(had)
    }
}

impl Creditor for Memcached {
    fn debts(&self) -> &DebtLedger {
        &self.debts
    }

    fn now(&self) -> Timestamp {
        self.now()
    }

    fn is_reachable(&self, state: StateId) -> bool {
        self.server_of(state).is_ok_and(|server| server.down().is_none())
    }

    fn pending_charge(
        &self,
        state: StateId,
        limit: Limit,
        cost: Cost,
        now: Timestamp,
    ) -> PendingCharge {
        let number = self.next_receipt.fetch_add(1, Ordering::Relaxed);
        let id = ReceiptId(u128::from(self.node_id) << 64 | u128::from(number));
        let until = self.context.wall.now().steady.after(RECEIPT_KEPT).unwrap_or(Timestamp::END);
        PendingCharge { id, made: now, until, state, limit, cost }
    }

    /// The receipt is marked first. If the charge is lost after that, it is not counted: less is charged than was granted, but never
    /// twice.
    async fn charge_once(&self, charge: &PendingCharge) -> bool {
        let until = self.deadline_within(None);
        match self.mark_receipt(charge.id, charge.until, until).await {
            Err(_) => false,
            Ok(false) => true,
            Ok(true) => {
                let take = Take::new(charge.state, &charge.limit, charge.cost);
                let _ = self.charge_one(take, until).await;
                true
            }
        }
    }
}
