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

use super::supervise::supervised;
use super::timers;
use crate::store::ReceiptId;
use crate::sync::{Mutex, lock};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tidegate_core::{
    Ask, Cost, Limit, Period, Span, State, StateId, Take, TakeReceipt, Timestamp, Written,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What this node owes the store, by state.
#[derive(Default)]
pub(crate) struct DebtLedger {
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
pub(crate) struct PendingCharge {
    pub(crate) id: ReceiptId,
    /// When it was made, by this node's clock.
    pub(crate) made: Timestamp,
    /// Until when the store remembers the receipt, by the store's clock.
    pub(crate) until: Timestamp,
    pub(crate) state: StateId,
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
}

/// Maximum keys in the ledger.
const MAX_KEYS: usize = 16_384;
/// Charges that are sent at the same time.
const BATCH: usize = 32;
/// Pause before failed charges are sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long the store remembers the receipt of a charge.
pub(crate) const RECEIPT_KEPT: Span = Span::from_secs(60);

// === impl DebtLedger ===

impl DebtLedger {
    /// Adds takes that were granted without the store.
    pub(crate) fn add(&self, takes: &[Take<'_>], nodes: u32, now: Timestamp) {
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
    pub(crate) fn cancel(&self, state: StateId, cost: Cost, now: Timestamp) -> bool {
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
pub(crate) fn cost_of(limit: &Limit, receipt: &TakeReceipt) -> Cost {
    let token = limit.ticks().map_or(1, |ticks| ticks.token);
    Cost::new(receipt.weight.checked_div(token).unwrap_or(0))
}

// === charging ===

/// A store that is charged what this node granted without it.
pub(crate) trait Creditor: Send + Sync + 'static {
    fn debts(&self) -> &DebtLedger;

    /// The time by this node's monotonic clock.
    fn now(&self) -> Timestamp;

    /// Whether the server of a state can be called.
    fn is_reachable(&self, state: StateId) -> bool;

    /// Names a charge, so that it is counted once however often it is sent.
    fn pending_charge(
        &self,
        state: StateId,
        limit: Limit,
        cost: Cost,
        now: Timestamp,
    ) -> PendingCharge;

    /// Sends a charge. Returns whether it need not be sent again.
    fn charge_once(&self, charge: &PendingCharge) -> impl Future<Output = bool> + Send;
}

/// The background task that charges the ledger to the store; aborted when it is dropped.
pub(crate) struct DebtCharger(JoinHandle<()>);

impl DebtCharger {
    /// Starts it. `creditor` makes a handle to the store that does not hold the charger, so that the charger ends with the store.
    pub(crate) fn start<C: Creditor>(
        restarts: &Arc<AtomicU64>,
        creditor: impl Fn() -> C + Send + Sync + 'static,
    ) -> Self {
        let charging = move || charge_debts(creditor());
        Self(tokio::spawn(supervised(Arc::clone(restarts), charging)))
    }
}

impl Drop for DebtCharger {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Charges debts to the store, for ever.
async fn charge_debts<C: Creditor>(creditor: C) {
    let debts = creditor.debts();
    let mut unconfirmed: Vec<PendingCharge> = Vec::new();
    loop {
        if unconfirmed.is_empty() && debts.is_empty() {
            debts.added.notified().await;
        }
        let now = creditor.now();
        unconfirmed.retain(|charge| charge.counts(now));
        let room = BATCH.saturating_sub(unconfirmed.len());
        if room > 0 {
            for (state, limit, cost) in debts.next(now, |state| creditor.is_reachable(state)) {
                unconfirmed.push(creditor.pending_charge(state, limit, cost, now));
            }
        }
        let charging = unconfirmed.iter().map(|charge| creditor.charge_once(charge));
        let mut confirmed = join_all(charging).await.into_iter();
        unconfirmed.retain(|_| confirmed.next() == Some(false));
        if !unconfirmed.is_empty() || !debts.is_empty() {
            timers::sleep(RETRY_PAUSE).await;
        }
    }
}
