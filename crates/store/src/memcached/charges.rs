//! Charging without asking, giving back, and resetting.
//!
//! A receipt is settled once: its name is written before anything is given back, if it is not there yet. If memcached evicts the
//! name, the receipt can be settled again.

use super::Memcached;
use super::call::Call;
use super::counters::{self, CounterShape};
use super::decide::{MAX_TRIES, VisitKind, contended};
use super::meta::{self, Reply};
use super::server::Failed;
use crate::remote::{Creditor, DebtLedger, PendingCharge, RECEIPT_KEPT};
use crate::store::{ReceiptId, Settled, Settlement};
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
            let now = self.context.clock.now();
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

    pub(super) async fn settle_receipt(
        &self,
        settlement: &Settlement<'_>,
        until: Timestamp,
    ) -> Result<Settled, Failed> {
        let now = self.context.clock.now();
        if settlement.until <= now.steady {
            return Ok(Settled::Late);
        }
        if !self.mark_receipt(settlement.id, settlement.until, until).await? {
            return Ok(Settled::Already);
        }
        for part in settlement.parts {
            let at = now.of(part.limit);
            if let Some((key, weight)) =
                counters::given_back(part.state, part.limit, &part.receipt, at)
            {
                let call = Call::begin(self.server_of(part.state)?, until)?;
                let sent = call.connection.send(&meta::subtract(&key, weight));
                let mut reply = sent.map_err(|error| call.not_sent(error))?;
                call.reply(&mut reply).await?;
            }
        }
        Ok(Settled::Done)
    }

    /// Remembers a receipt; returns whether it was new.
    async fn mark_receipt(
        &self,
        ReceiptId(id): ReceiptId,
        expires: Timestamp,
        until: Timestamp,
    ) -> Result<bool, Failed> {
        let server = self.server_of(StateId(id))?;
        let seconds = counters::receipt_seconds(expires.since(self.context.clock.now().steady));
        let mark = meta::set_if_absent(&counters::receipt_key(id), "1", server.ttl(seconds));
        let call = Call::begin(server, until)?;
        let mut reply = call.connection.send(&mark).map_err(|error| call.not_sent(error))?;
        match call.reply(&mut reply).await? {
            Reply::Done => Ok(true),
            Reply::NotStored => Ok(false),
            reply @ (Reply::Number { .. }
            | Reply::Text(_)
            | Reply::Missing
            | Reply::Version(_)
            | Reply::Stats(_)
            | Reply::Error(_)) => Err(call.unexpected(&reply)),
        }
    }

    /// Removes all values of a state; returns whether there were any.
    pub(super) async fn delete(&self, state: StateId, until: Timestamp) -> Result<bool, Failed> {
        let server = self.server_of(state)?;
        let now = self.context.clock.now();
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
        let until = self.context.clock.now().steady.after(RECEIPT_KEPT).unwrap_or(Timestamp::END);
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
