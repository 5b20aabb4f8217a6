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
//! A charge carries a receipt that the store marks. If its reply is lost, it is sent again and still counted once.
//!
//! The ledger is bounded. For each further key it looks at a few entries and drops those that do not count any more
//! ([`BoundedMap`]). If that makes no room, the cost of the further key is left out: it is never charged. That breaks no promise,
//! because the fallback has counted it under this node's share in any case. A grant takes constant time, whatever is full.

use super::supervise::supervised;
use super::timers;
use crate::bounded_map::BoundedMap;
use crate::store::ReceiptId;
use crate::sync::{Mutex, lock};
use futures_util::future::join_all;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tidegate_core::{
    Ask, Cost, Limit, Period, Span, State, StateId, Take, TakeReceipt, Timestamp, Written,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What this node owes the store, by state.
pub(crate) struct DebtLedger {
    /// Locked for arithmetic, never across an await.
    state: Mutex<LedgerState>,
    /// Notified when something is added.
    added: Notify,
}

struct LedgerState {
    entries: BoundedMap<LedgerEntry>,
    /// A grant was left out because there was no room, and not all debts have been charged since.
    left_out: bool,
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
/// Charges that are sent at the same time. The next batch is sent when all of these are answered, so charging takes at most this
/// much of the store from the requests.
const BATCH: usize = 64;
/// Entries that are looked at for a batch. Many may belong to a server that is still away.
const LOOKS_FOR_BATCH: usize = 4 * BATCH;
/// Charges that were sent and not confirmed. While there are this many, no others are taken off the ledger.
const MAX_UNCONFIRMED: usize = 16 * BATCH;
/// Pause after a charge has failed, or if no server that is owed something can be reached.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long the store remembers the receipt of a charge.
pub(crate) const RECEIPT_KEPT: Span = Span::from_secs(60);

// === impl DebtLedger ===

impl DebtLedger {
    /// Adds takes that were granted without the store.
    pub(crate) fn add(&self, takes: &[Take<'_>], nodes: u32, now: Timestamp) {
        let mut state = lock(&self.state);
        for take in takes.iter().filter(|take| !take.limit.is_unlimited()) {
            let share = take.limit.divided(nodes);
            state.add(take, share, now);
        }
        drop(state);
        self.added.notify_one();
    }

    /// Takes a cost off the debt of a state, if the debt is at least that large. Returns whether it was.
    pub(crate) fn cancel(&self, state: StateId, cost: Cost, now: Timestamp) -> bool {
        let mut ledger = lock(&self.state);
        let Some(entry) = ledger.entries.get_mut(state) else { return false };
        let Some(left) = entry.used(now).checked_sub(cost.get()) else { return false };
        let (limit, share) = (entry.limit.clone(), entry.share.clone());
        *entry = LedgerEntry::new(&limit, &share);
        entry.charge(share, Cost::new(left), now);
        true
    }

    /// What is left out because the ledger is full, if something is.
    pub(crate) fn complaint(&self) -> Option<String> {
        lock(&self.state).left_out.then(|| {
            format!(
                "the list of what is charged to the store later is full ({MAX_KEYS} keys): what is granted to other keys \
                 without the store is not charged"
            )
        })
    }

    /// Takes up to `most` debts to servers that can be reached off the ledger.
    fn next(
        &self,
        most: usize,
        now: Timestamp,
        is_reachable: impl Fn(StateId) -> bool,
    ) -> Vec<(StateId, Limit, Cost)> {
        let mut ledger = lock(&self.state);
        let mut debts = Vec::new();
        for _ in 0..LOOKS_FOR_BATCH.min(ledger.entries.len()) {
            if debts.len() >= most {
                break;
            }
            let Some((state, _)) = ledger.entries.look() else { break };
            if is_reachable(state)
                && let Some(entry) = ledger.entries.remove_looked_at(state)
            {
                let used = entry.used(now);
                let debt = (used > 0).then_some((state, entry.limit, Cost::new(used)));
                debts.extend(debt);
            }
        }
        ledger.left_out &= ledger.entries.len() > 0;
        debts
    }

    fn is_empty(&self) -> bool {
        lock(&self.state).entries.len() == 0
    }
}

impl Default for DebtLedger {
    fn default() -> Self {
        let state = LedgerState { entries: BoundedMap::new(MAX_KEYS), left_out: false };
        Self { state: Mutex::new(state), added: Notify::new() }
    }
}

impl LedgerState {
    fn add(&mut self, take: &Take<'_>, share: Limit, now: Timestamp) {
        if self.entries.get_mut(take.state).is_none() {
            if self.entries.is_full() && !self.entries.make_room(|entry| entry.used(now) == 0) {
                self.left_out = true;
                return;
            }
            self.entries.insert(take.state, LedgerEntry::new(take.limit, &share));
        }
        if let Some(entry) = self.entries.get_mut(take.state) {
            entry.limit = take.limit.clone();
            entry.charge(share, take.cost, now);
        }
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

/// Charges debts to the store, for ever: one batch after the other, without a pause as long as they are confirmed.
async fn charge_debts<C: Creditor>(creditor: C) {
    let debts = creditor.debts();
    let mut unconfirmed: VecDeque<PendingCharge> = VecDeque::new();
    loop {
        if unconfirmed.is_empty() && debts.is_empty() {
            debts.added.notified().await;
        }
        let now = creditor.now();
        unconfirmed.retain(|charge| charge.counts(now));
        let mut batch = Vec::with_capacity(BATCH);
        // Charges that failed and whose server can be reached are sent again. The others must not be in the way of other servers.
        for _ in 0..unconfirmed.len() {
            let Some(charge) = unconfirmed.pop_front() else { break };
            let sends = batch.len() < BATCH && creditor.is_reachable(charge.state);
            if sends { batch.push(charge) } else { unconfirmed.push_back(charge) }
        }
        if unconfirmed.len() < MAX_UNCONFIRMED {
            let room = BATCH.saturating_sub(batch.len());
            for (state, limit, cost) in debts.next(room, now, |state| creditor.is_reachable(state))
            {
                batch.push(creditor.pending_charge(state, limit, cost, now));
            }
        }
        let confirmed = join_all(batch.iter().map(|charge| creditor.charge_once(charge))).await;
        let is_stuck = batch.is_empty() || confirmed.contains(&false);
        let failed = batch.into_iter().zip(confirmed).filter(|(_, confirmed)| !confirmed);
        unconfirmed.extend(failed.map(|(charge, _)| charge));
        if is_stuck && !(unconfirmed.is_empty() && debts.is_empty()) {
            timers::sleep(RETRY_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::MutexGuard;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tidegate_core::Algorithm;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

    fn after(seconds: u64) -> Timestamp {
        NOW.after(Span::from_secs(seconds)).unwrap()
    }

    fn limit() -> Limit {
        Limit::new(10, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap()
    }

    /// The names of states are keyed hashes; these are spread as evenly.
    fn state(number: usize) -> StateId {
        let number = u128::try_from(number).unwrap() + 1;
        StateId(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    }

    fn owe(ledger: &DebtLedger, limit: &Limit, number: usize, now: Timestamp) {
        ledger.add(&[Take::new(state(number), limit, Cost::ONE)], 2, now);
    }

    fn locked(ledger: &DebtLedger) -> MutexGuard<'_, LedgerState> {
        lock(&ledger.state)
    }

    /// With more than 16,384 active clients, each grant to a further one looked at all entries under the lock, and a node fell
    /// from 2,000 answers a second to 231.
    #[test]
    fn a_grant_takes_a_constant_number_of_steps_however_full_the_ledger_is() {
        let (ledger, limit) = (DebtLedger::default(), limit());
        for number in 0..10 * MAX_KEYS {
            let before = locked(&ledger).entries.looked;
            owe(&ledger, &limit, number, NOW);
            assert!(locked(&ledger).entries.looked - before <= 4, "the grant to key {number}");
            assert_eq!(ledger.complaint().is_some(), number >= MAX_KEYS, "key {number}");
        }
        assert_eq!(locked(&ledger).entries.len(), MAX_KEYS);
        // A key that has an entry is still counted.
        owe(&ledger, &limit, 0, NOW);
        assert_eq!(locked(&ledger).entries.get_mut(state(0)).unwrap().used(NOW), 2);
        // Entries that count no more make room for others, as fast as these come.
        for number in 0..2 * MAX_KEYS {
            owe(&ledger, &limit, 10 * MAX_KEYS + number, after(60));
        }
        let still = |(_, entry): &(StateId, &LedgerEntry)| entry.used(after(60)) > 0;
        assert_eq!(locked(&ledger).entries.iter().filter(still).count(), MAX_KEYS);
    }

    /// A store that answers in a millisecond, except for the servers that are away or fail.
    #[derive(Clone, Default)]
    struct Account(Arc<AccountState>);

    #[derive(Default)]
    struct AccountState {
        debts: DebtLedger,
        charged: Mutex<BTreeSet<StateId>>,
        underway: AtomicUsize,
        most_underway: AtomicUsize,
        asked: AtomicUsize,
        /// States with an odd number belong to a server that cannot be reached.
        odd_is_away: bool,
        /// How many charges fail at first.
        fail: AtomicUsize,
    }

    impl Creditor for Account {
        fn debts(&self) -> &DebtLedger {
            &self.0.debts
        }

        fn now(&self) -> Timestamp {
            NOW
        }

        fn is_reachable(&self, state: StateId) -> bool {
            self.0.asked.fetch_add(1, Ordering::Relaxed);
            !self.0.odd_is_away || state.0.is_multiple_of(2)
        }

        fn pending_charge(
            &self,
            state: StateId,
            limit: Limit,
            cost: Cost,
            now: Timestamp,
        ) -> PendingCharge {
            PendingCharge { id: ReceiptId(state.0), made: now, until: now, state, limit, cost }
        }

        async fn charge_once(&self, charge: &PendingCharge) -> bool {
            let underway = self.0.underway.fetch_add(1, Ordering::Relaxed) + 1;
            self.0.most_underway.fetch_max(underway, Ordering::Relaxed);
            timers::sleep(Duration::from_millis(1)).await;
            self.0.underway.fetch_sub(1, Ordering::Relaxed);
            let less = |left: usize| left.checked_sub(1);
            if self.0.fail.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                return false;
            }
            lock(&self.0.charged).insert(charge.state);
            true
        }
    }

    impl Account {
        fn owing(account: AccountState, keys: usize) -> Self {
            let limit = limit();
            (0..keys).for_each(|number| owe(&account.debts, &limit, number, NOW));
            Self(Arc::new(account))
        }

        /// Charges until this many states are charged; returns how long that took.
        async fn until_charged(&self, states: usize) -> Duration {
            let charging = tokio::spawn(charge_debts(self.clone()));
            let mut took = Duration::ZERO;
            while lock(&self.0.charged).len() < states {
                timers::sleep(Duration::from_millis(1)).await;
                took += Duration::from_millis(1);
            }
            charging.abort();
            took
        }
    }

    /// There was a pause of 100 ms after every 32 charges although all succeeded: 320 keys a second.
    #[tokio::test(start_paused = true)]
    async fn debts_are_charged_batch_after_batch_without_a_pause() {
        let account = Account::owing(AccountState::default(), MAX_KEYS + 1);
        assert!(account.0.debts.complaint().is_some());
        let took = account.until_charged(MAX_KEYS).await;
        let batches = u64::try_from(MAX_KEYS / BATCH).unwrap();
        assert!(took <= Duration::from_millis(batches + 1), "{took:?}: no pause");
        assert_eq!(account.0.most_underway.load(Ordering::Relaxed), BATCH, "one batch at a time");
        assert!(account.0.debts.is_empty() && account.0.debts.complaint().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_charge_that_fails_is_sent_again_after_a_pause() {
        let fail = AtomicUsize::new(3);
        let account = Account::owing(AccountState { fail, ..AccountState::default() }, 10);
        let took = account.until_charged(10).await;
        assert!(took >= RETRY_PAUSE && took <= RETRY_PAUSE + Duration::from_millis(9), "{took:?}");
    }

    /// What is owed to a server that is away is not in the way of the others, and is not looked through for every batch.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_away_does_not_delay_the_charges_to_others() {
        let account = AccountState { odd_is_away: true, ..AccountState::default() };
        let account = Account::owing(account, MAX_KEYS);
        let even = (0..MAX_KEYS).filter(|number| state(*number).0.is_multiple_of(2)).count();
        let took = account.until_charged(even).await;
        let batches = u64::try_from(MAX_KEYS / BATCH).unwrap();
        assert!(took <= Duration::from_millis(batches), "{took:?}");
        let asked = account.0.asked.load(Ordering::Relaxed);
        assert!(asked <= 3 * MAX_KEYS, "{asked} looks for {even} charges");
        assert_eq!(locked(&account.0.debts).entries.len(), MAX_KEYS - even);
    }
}
