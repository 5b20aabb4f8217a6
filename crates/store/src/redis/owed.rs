//! What this node granted without the store, and the store has not counted yet.
//!
//! ```text
//!   fallback grants ──► ledger: a state for each key, as the core would count it ──► store is back: charged, once
//!   late reply: it was counted after all ──► taken off the ledger, or given back
//! ```
//!
//! The ledger holds states, not sums: what has come back to a bucket meanwhile, or lies in a window that has ended, is not
//! charged any more. They are states under this node's share of the limit, so that tokens do not come back once on every node.
//! A charge carries a receipt that the store marks, so one whose reply is lost is sent again and counted
//! once. The ledger is bounded: of a key that has no room in it the store is not told.

use super::Redis;
use super::script::{Call, Reply, Verb};
use crate::store::ReceiptId;
use crate::sync::{Mutex, lock};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_core::{
    Ask, Cost, Limit, Period, Span, State, StateId, Take, TakeReceipt, Timestamp, Written,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What is owed, by state.
#[derive(Default)]
pub(super) struct Owed {
    /// Locked for arithmetic, never across an await. In order, so that nothing depends on a hash.
    entries: Mutex<BTreeMap<StateId, Entry>>,
    /// Something is owed.
    due: Notify,
}

/// What is owed of one state.
struct Entry {
    /// The limit it was last granted under.
    limit: Limit,
    /// This node's share of it, which the state is written under.
    share: Limit,
    state: State,
}

/// A charge that is under way: always sent with the same receipt, so that it is counted once.
struct Payment {
    id: ReceiptId,
    made: Timestamp,
    /// Until when the store remembers it, by its own clock.
    until: Timestamp,
    state: StateId,
    limit: Limit,
    cost: Cost,
}

/// Keys that can owe at the same time.
const MOST_KEYS: usize = 16_384;
/// Charges that are sent together.
const AT_ONCE: usize = 32;
/// How soon what failed is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the store remembers a charge.
const KEPT: Span = Span::from_secs(60);

impl Owed {
    /// Adds takes that were granted without the store.
    pub(super) fn add(&self, takes: &[Take<'_>], nodes: u32, now: Timestamp) {
        let mut entries = lock(&self.entries);
        for take in takes.iter().filter(|take| !take.limit.is_unlimited()) {
            if entries.len() >= MOST_KEYS && !entries.contains_key(&take.state) {
                entries.retain(|_, entry| entry.used(now) > 0);
                if entries.len() >= MOST_KEYS {
                    continue;
                }
            }
            let share = take.limit.divided(nodes);
            let entry = entries.entry(take.state).or_insert_with(|| Entry::new(take.limit, &share));
            entry.limit = take.limit.clone();
            entry.charge(share, take.cost, now);
        }
        drop(entries);
        self.due.notify_one();
    }

    /// Takes a cost off what is owed of a state, if so much is; answers whether it was.
    pub(super) fn cancel(&self, state: StateId, cost: Cost, now: Timestamp) -> bool {
        let mut entries = lock(&self.entries);
        let Some(entry) = entries.get_mut(&state) else { return false };
        let Some(left) = entry.used(now).checked_sub(cost.get()) else { return false };
        let (limit, share) = (entry.limit.clone(), entry.share.clone());
        *entry = Entry::new(&limit, &share);
        entry.charge(share, Cost::new(left), now);
        true
    }

    /// The next states that owe something, taken off the ledger.
    fn next(
        &self,
        now: Timestamp,
        can_pay: impl Fn(StateId) -> bool,
    ) -> Vec<(StateId, Limit, Cost)> {
        let mut entries = lock(&self.entries);
        let states: Vec<StateId> =
            entries.keys().copied().filter(|state| can_pay(*state)).take(AT_ONCE).collect();
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

impl Entry {
    fn new(limit: &Limit, share: &Limit) -> Self {
        Self { limit: limit.clone(), share: share.clone(), state: State::Empty }
    }

    /// Counts a cost.
    fn charge(&mut self, share: Limit, cost: Cost, now: Timestamp) {
        let state = {
            let mut written = Written { shape: &self.share, state: self.state.clone() };
            share.charge(&mut written, &Ask::new(now, cost));
            written.state
        };
        (self.share, self.state) = (share, state);
    }

    /// What still counts of it, in whole costs, rounded up.
    fn used(&self, now: Timestamp) -> u64 {
        Written { shape: &self.share, state: self.state.clone() }.units_in_use(now)
    }
}

impl Payment {
    /// Whether it would still count by now.
    fn counts(&self, now: Timestamp) -> bool {
        let lasts = match self.limit.period() {
            Period::Every(period) => *period,
            Period::Calendar(_) => KEPT,
        };
        now.since(self.made) < lasts.min(KEPT)
    }
}

/// The task that charges what is owed.
pub(super) struct Payer(JoinHandle<()>);

impl Payer {
    pub(super) fn start(store: &Redis) -> Self {
        let (ours, another) = (store.another(), store.another());
        let paying = move || pay(another.another());
        Self(tokio::spawn(ours.fleet.supervised(paying)))
    }
}

impl Drop for Payer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a receipt stands for, in whole costs, rounded down.
pub(super) fn cost_of(limit: &Limit, receipt: &TakeReceipt) -> Cost {
    let token = limit.ticks().map_or(1, |ticks| ticks.token);
    Cost::new(receipt.weight.checked_div(token).unwrap_or(0))
}

/// Charges what is owed, for ever.
async fn pay(store: Redis) {
    let mut unanswered: Vec<Payment> = Vec::new();
    loop {
        if unanswered.is_empty() && store.owed.is_empty() {
            store.owed.due.notified().await;
        }
        let now = store.fleet.now();
        unanswered.retain(|payment| payment.counts(now));
        let room = AT_ONCE.saturating_sub(unanswered.len());
        if room > 0 {
            let reachable = |state| store.fleet.answers(store.fleet.place(state));
            for (state, limit, cost) in store.owed.next(now, reachable) {
                unanswered.push(store.payment(state, limit, cost, now));
            }
        }
        let paying = unanswered.iter().map(|payment| store.charge_once(payment));
        let paid = join_all(paying).await;
        let mut paid = paid.into_iter();
        unanswered.retain(|_| paid.next() == Some(false));
        if !unanswered.is_empty() || !store.owed.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Redis {
    fn payment(&self, state: StateId, limit: Limit, cost: Cost, now: Timestamp) -> Payment {
        let number = self.debts.fetch_add(1, Ordering::Relaxed);
        let theirs = self.fleet.time_at(self.fleet.place(state), now).map_or(now, |(at, _)| at);
        Payment {
            id: ReceiptId(u128::from(self.ours) << 64 | u128::from(number)),
            made: now,
            until: theirs.after(KEPT).unwrap_or(Timestamp::END),
            state,
            limit,
            cost,
        }
    }

    /// Charges, and answers whether that is known to be done.
    async fn charge_once(&self, payment: &Payment) -> bool {
        let take = Take::new(payment.state, &payment.limit, payment.cost);
        let call = Call {
            verb: Verb::Charge,
            takes: &[take],
            parts: &[],
            max_wait: Span::ZERO,
            receipt: Some((payment.id, payment.until)),
            late: None,
        };
        let place = self.fleet.place(payment.state);
        match self.call(place, self.until(), call).await {
            Ok(Reply::Found { .. } | Reply::Already | Reply::Over) => true,
            Ok(Reply::UnknownShape(_) | Reply::Moved(_) | Reply::Late(_)) | Err(_) => false,
        }
    }
}
