//! Write-behind: costs that this node granted without the store, and that are charged to the store later.
//!
//! ```text
//!   fallback grants ──► ledger: one state per key, counted by the core ──► the store is back: charged, once
//!   late reply: the store had counted after all ──► taken off the ledger, or given back
//! ```
//!
//! The ledger holds states, not sums: tokens that have come back to a bucket meanwhile, and costs of a window that has ended,
//! are not charged any more. The states are counted under this node's share of the limit. Under the whole limit, the same
//! tokens would come back once on every node.
//!
//! A charge carries a receipt that the store marks. If its reply is lost, it is sent again and still counted once. The ledger is
//! bounded: costs of a key that does not fit are never charged.

use super::Redis;
use super::script::{ScriptCall, ScriptReply};
use super::timers;
use super::wire::Verb;
use crate::store::ReceiptId;
use crate::sync::{Mutex, lock};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_core::{
    Ask, Cost, Limit, Period, Span, State, StateId, Take, TakeReceipt, Timestamp, Written,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What this node owes the store, by state.
#[derive(Default)]
pub(super) struct DebtLedger {
    /// Locked for arithmetic, never across an await. Ordered, so that simulations are deterministic.
    entries: Mutex<BTreeMap<StateId, LedgerEntry>>,
    /// Notified when something is added.
    added: Notify,
}

/// What is owed for one state.
struct LedgerEntry {
    /// The limit of the last grant.
    limit: Limit,
    /// This node's share of it, under which the state is counted.
    share: Limit,
    state: State,
}

/// A charge that is sent until the store confirms it, always with the same receipt.
struct PendingCharge {
    id: ReceiptId,
    made: Timestamp,
    /// Until when the store remembers the receipt, by the server's clock.
    until: Timestamp,
    state: StateId,
    limit: Limit,
    cost: Cost,
}

/// Maximum keys in the ledger.
const MAX_KEYS: usize = 16_384;
/// Charges that are sent at the same time.
const BATCH: usize = 32;
/// Pause before failed charges are sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long the store remembers the receipt of a charge.
const RECEIPT_KEPT: Span = Span::from_secs(60);

// === impl DebtLedger ===

impl DebtLedger {
    /// Adds takes that were granted without the store.
    pub(super) fn add(&self, takes: &[Take<'_>], nodes: u32, now: Timestamp) {
        let mut entries = lock(&self.entries);
        for take in takes.iter().filter(|take| !take.limit.is_unlimited()) {
            if entries.len() >= MAX_KEYS && !entries.contains_key(&take.state) {
                entries.retain(|_, entry| entry.used(now) > 0);
                if entries.len() >= MAX_KEYS {
                    continue;
                }
            }
            let share = take.limit.divided(nodes);
            let entry =
                entries.entry(take.state).or_insert_with(|| LedgerEntry::new(take.limit, &share));
            entry.limit = take.limit.clone();
            entry.charge(share, take.cost, now);
        }
        drop(entries);
        self.added.notify_one();
    }

    /// Takes a cost off the debt of a state, if the debt is at least that large. Returns whether it was.
    pub(super) fn cancel(&self, state: StateId, cost: Cost, now: Timestamp) -> bool {
        let mut entries = lock(&self.entries);
        let Some(entry) = entries.get_mut(&state) else { return false };
        let Some(left) = entry.used(now).checked_sub(cost.get()) else { return false };
        let (limit, share) = (entry.limit.clone(), entry.share.clone());
        *entry = LedgerEntry::new(&limit, &share);
        entry.charge(share, Cost::new(left), now);
        true
    }

    /// Takes the next batch of debts off the ledger.
    fn next(
        &self,
        now: Timestamp,
        is_reachable: impl Fn(StateId) -> bool,
    ) -> Vec<(StateId, Limit, Cost)> {
        let mut entries = lock(&self.entries);
        let states: Vec<StateId> =
            entries.keys().copied().filter(|state| is_reachable(*state)).take(BATCH).collect();
        let due = |state: StateId| {
            let entry = entries.remove(&state)?;
            let used = entry.used(now);
            (used > 0).then_some((state, entry.limit, Cost::new(used)))
        };
        states.into_iter().filter_map(due).collect()
    }

    fn is_empty(&self) -> bool {
        lock(&self.entries).is_empty()
    }
}

impl LedgerEntry {
    fn new(limit: &Limit, share: &Limit) -> Self {
        Self { limit: limit.clone(), share: share.clone(), state: State::Empty }
    }

    /// Counts a cost under the node's current share.
    fn charge(&mut self, share: Limit, cost: Cost, now: Timestamp) {
        let state = {
            let mut written = Written { shape: &self.share, state: self.state.clone() };
            share.charge(&mut written, &Ask::new(now, cost));
            written.state
        };
        (self.share, self.state) = (share, state);
    }

    /// The part of the debt that still counts, in whole costs, rounded up.
    fn used(&self, now: Timestamp) -> u64 {
        Written { shape: &self.share, state: self.state.clone() }.units_in_use(now)
    }
}

impl PendingCharge {
    /// Whether the charge still counts.
    fn counts(&self, now: Timestamp) -> bool {
        let lasts = match self.limit.period() {
            Period::Every(period) => *period,
            Period::Calendar(_) => RECEIPT_KEPT,
        };
        now.since(self.made) < lasts.min(RECEIPT_KEPT)
    }
}

/// What a receipt stands for, in whole costs, rounded down.
pub(super) fn cost_of(limit: &Limit, receipt: &TakeReceipt) -> Cost {
    let token = limit.ticks().map_or(1, |ticks| ticks.token);
    Cost::new(receipt.weight.checked_div(token).unwrap_or(0))
}

// === charging ===

/// The background task that charges the ledger to the store; aborted when it is dropped.
pub(super) struct DebtCharger(JoinHandle<()>);

impl DebtCharger {
    pub(super) fn start(store: &Redis) -> Self {
        let (supervisor, store) = (store.for_task(), store.for_task());
        let charging = move || charge_debts(store.for_task());
        Self(tokio::spawn(supervisor.router.supervised(charging)))
    }
}

impl Drop for DebtCharger {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Charges debts to the store, for ever.
async fn charge_debts(store: Redis) {
    let mut unconfirmed: Vec<PendingCharge> = Vec::new();
    loop {
        if unconfirmed.is_empty() && store.debts.is_empty() {
            store.debts.added.notified().await;
        }
        let now = store.router.now();
        unconfirmed.retain(|charge| charge.counts(now));
        let room = BATCH.saturating_sub(unconfirmed.len());
        if room > 0 {
            let is_reachable = |state| store.router.is_reachable(store.router.slot(state));
            for (state, limit, cost) in store.debts.next(now, is_reachable) {
                unconfirmed.push(store.pending_charge(state, limit, cost, now));
            }
        }
        let charging = unconfirmed.iter().map(|charge| store.charge_once(charge));
        let mut confirmed = join_all(charging).await.into_iter();
        unconfirmed.retain(|_| confirmed.next() == Some(false));
        if !unconfirmed.is_empty() || !store.debts.is_empty() {
            timers::sleep(RETRY_PAUSE).await;
        }
    }
}

impl Redis {
    fn pending_charge(
        &self,
        state: StateId,
        limit: Limit,
        cost: Cost,
        now: Timestamp,
    ) -> PendingCharge {
        let id = self.next_receipt_id();
        let slot = self.router.slot(state);
        let server_now = self.router.server_time(slot, now).map_or(now, |(estimate, _)| estimate);
        let until = server_now.after(RECEIPT_KEPT).unwrap_or(Timestamp::END);
        PendingCharge { id, made: now, until, state, limit, cost }
    }

    /// Sends a charge. Returns whether the store has confirmed it.
    async fn charge_once(&self, charge: &PendingCharge) -> bool {
        let takes = [Take::new(charge.state, &charge.limit, charge.cost)];
        let call = ScriptCall {
            receipt: Some((charge.id, charge.until)),
            ..ScriptCall::of_takes(Verb::Charge, &takes, Span::ZERO)
        };
        match self.call(self.router.slot(charge.state), self.deadline(), call).await {
            Ok(ScriptReply::Found { .. } | ScriptReply::Already | ScriptReply::Over) => true,
            Ok(
                ScriptReply::Granted { .. }
                | ScriptReply::UnknownShape(_)
                | ScriptReply::NeedsLong(_)
                | ScriptReply::Moved(_)
                | ScriptReply::Late(_),
            )
            | Err(_) => false,
        }
    }
}
