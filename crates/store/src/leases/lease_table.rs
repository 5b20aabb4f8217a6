//! All leases of a node: a bounded table.
//!
//! A state gets a lease when it is hot here, or when the store refuses it because other nodes hold the rest of its bucket. The
//! table is sharded. A shard that is full looks at a few leases, a hand's breadth further each time, and gives back the one of them
//! that was not used for the longest time (the sampled LRU of Redis). So a new lease takes constant time, whatever is full.

use super::hot_keys::HotKeys;
use super::lease::{Lease, LeaseAction, LeaseEvent, LeaseMoment, LeaseTotals};
use crate::bounded_map::{BoundedMap, LOOKS};
use crate::limit_serial::next_serial;
use crate::reports::LeaseReport;
use crate::sync::{Mutex, MutexGuard, lock};
use std::array;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tidegate_core::{
    Bound, Cost, Decision, Freshness, LeaseTerms, Limit, Outcome, StateId, Take, TakeReceipt,
};

const SHARDS: usize = 16;
/// The most leases in a shard.
const MAX_PER_SHARD: usize = 1_024;

/// All leases of a node.
pub(crate) struct LeaseTable {
    /// Sharded by the lowest bits of the id, which is a keyed hash. Locked for a look, never across an await.
    shards: [Mutex<LeaseShard>; SHARDS],
    /// How many leases there are. Relaxed: a caller that misses one asks the store.
    count: AtomicUsize,
    hot: HotKeys,
    /// How many nodes there are, as of the last look. Relaxed: it only decides how much is asked for.
    nodes: AtomicU32,
    /// What became of leases that are over, by group. Locked to add or to read.
    ended: Mutex<BTreeMap<u32, LeaseReport>>,
    /// A lease that is over and whose totals did not agree.
    #[cfg(feature = "testing")]
    imbalance: Mutex<Option<String>>,
}

type LeaseShard = BoundedMap<TableEntry>;

struct TableEntry {
    /// The serial number of the limit of the last take.
    serial: u64,
    lease: Lease,
}

/// A cost that was spent from a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) decision: Decision,
    pub(crate) receipt: TakeReceipt,
    /// The estimated time of the store.
    pub(crate) at: tidegate_core::Timestamp,
    epoch: u64,
    serial: u64,
}

/// The calls that events lead to, each about one state.
pub(crate) type LeaseActions = Vec<(StateId, LeaseAction)>;

impl LeaseTable {
    pub(crate) fn new() -> Self {
        Self {
            shards: array::from_fn(|_| Mutex::new(BoundedMap::new(MAX_PER_SHARD))),
            count: AtomicUsize::new(0),
            hot: HotKeys::new(),
            nodes: AtomicU32::new(1),
            ended: Mutex::default(),
            #[cfg(feature = "testing")]
            imbalance: Mutex::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// How many nodes there are, as of the last look.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Spends a take from the lease of its state, if there is one that covers it now.
    pub(crate) fn spend(
        &self,
        now: &LeaseMoment,
        take: &Take<'_>,
        actions: &mut LeaseActions,
    ) -> Option<Spent> {
        let weight = leased_weight(take)?;
        if self.is_empty() {
            return None;
        }
        let mut shard = self.shard(take.state)?;
        let entry = self.current(&mut shard, now, take, actions)?;
        let (serial, lease) = (entry.serial, &mut entry.lease);
        let receipt = lease.spend(now, weight)?;
        let action = lease.renewal(now);
        actions.extend(action.map(|action| (take.state, action)));
        let early = lease.range(now)?.early;
        let unit = lease.limit().weight(Cost::ONE, Bound::Plain).unwrap_or(1);
        let remaining = lease.held().checked_div(unit).unwrap_or(0);
        let reset = Some(lease.reset().since(early));
        let decision = Decision { outcome: Outcome::Allow, over: false, remaining, reset };
        Some(Spent { decision, receipt, at: early, epoch: now.epoch, serial })
    }

    /// Puts back what was spent for a plan that is refused, unless the limit was edited meanwhile.
    pub(crate) fn undo(&self, now: &LeaseMoment, state: StateId, spent: &Spent) {
        if let Some(mut shard) = self.shard(state)
            && let Some(entry) = shard.get_mut(state).filter(|entry| entry.serial == spent.serial)
        {
            entry.lease.on_event(now, LeaseEvent::Undone(spent.receipt, spent.epoch));
        }
    }

    /// A take was not spent here: the store or a cached refusal decided it.
    pub(crate) fn missed(
        &self,
        now: &LeaseMoment,
        take: &Take<'_>,
        decision: &Decision,
        actions: &mut LeaseActions,
    ) {
        let (Some(weight), Freshness::Lease(terms)) = (leased_weight(take), take.freshness) else {
            return;
        };
        let Some(mut shard) = self.shard(take.state) else { return };
        if self.current(&mut shard, now, take, actions).is_none() {
            let worthwhile = take.limit.is_worth_leasing(terms, now.nodes);
            let needed = || is_ahead(take.limit, decision) || self.is_hot(take, now, terms);
            if !worthwhile || !needed() {
                return;
            }
            self.begin(&mut shard, now, take, terms, actions);
        }
        let action = shard
            .get_mut(take.state)
            .and_then(|entry| entry.lease.on_event(now, LeaseEvent::Missed(weight)));
        actions.extend(action.map(|action| (take.state, action)));
    }

    fn is_hot(&self, take: &Take<'_>, now: &LeaseMoment, terms: &LeaseTerms) -> bool {
        self.hot.is_hot(take.state, now.local, terms.interval)
    }

    /// Tells a lease what became of its ask. If it has ended meanwhile, and perhaps another one has begun, the slice is lost.
    pub(crate) fn answered(
        &self,
        now: &LeaseMoment,
        state: StateId,
        limit: &Arc<Limit>,
        event: LeaseEvent,
    ) -> Option<LeaseAction> {
        let mut shard = self.shard(state)?;
        let entry = shard.get_mut(state)?;
        // Each lease has a copy of its limit of its own, so this is the lease that asked.
        Arc::ptr_eq(entry.lease.limit(), limit).then(|| entry.lease.on_event(now, event))?
    }

    /// A cost that was taken under a limit is given back as a slice of this node, if it leases this limit.
    pub(crate) fn refund(
        &self,
        now: &LeaseMoment,
        state: StateId,
        limit: &Limit,
        receipt: &TakeReceipt,
    ) {
        let Some(slice) = tidegate_core::Slice::of_slot(receipt) else { return };
        if let Some(mut shard) = self.shard(state)
            && let Some(entry) = shard.get_mut(state)
            && **entry.lease.limit() == *limit
        {
            entry.lease.on_event(now, LeaseEvent::Refunded(slice));
        }
    }

    /// Tells all leases that time has passed. Those whose states no take has asked for give back what they hold, and are removed.
    pub(crate) fn look(&self, now: &LeaseMoment, actions: &mut LeaseActions) {
        self.nodes.store(now.nodes, Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (state, entry) in shard.iter_mut() {
                let action = entry.lease.on_event(now, LeaseEvent::Looked);
                actions.extend(action.map(|action| (state, action)));
            }
            let over = shard.iter().filter(|(_, entry)| entry.lease.is_over(now));
            let over: Vec<StateId> = over.map(|(state, _)| state).collect();
            for state in over {
                self.remove(&mut shard, state);
            }
        }
    }

    /// Ends all leases.
    pub(crate) fn end(&self, now: &LeaseMoment, actions: &mut LeaseActions) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let states: Vec<StateId> = shard.iter().map(|(state, _)| state).collect();
            for state in states {
                self.end_one(&mut shard, now, state, actions);
            }
        }
    }

    /// Forgets the leases of states that are reset: nothing of them is counted any more.
    pub(crate) fn forget(&self, states: &[StateId]) {
        for state in states {
            if let Some(mut shard) = self.shard(*state) {
                self.remove(&mut shard, *state);
            }
        }
    }

    /// What is held and what became of the rest, by group.
    pub(crate) fn report(&self) -> Vec<LeaseReport> {
        let mut groups = lock(&self.ended).clone();
        for shard in &self.shards {
            for (_, entry) in lock(shard).iter() {
                let report = groups.entry(entry.lease.terms().group).or_default();
                report.leases = report.leases.saturating_add(1);
                add_totals(report, &entry.lease);
            }
        }
        groups.into_iter().map(|(group, report)| LeaseReport { group, ..report }).collect()
    }

    /// Leases whose totals do not agree.
    #[cfg(feature = "testing")]
    pub(crate) fn imbalance(&self) -> Option<String> {
        let wrong = |(_, entry): (StateId, &TableEntry)| {
            let (totals, held) = (entry.lease.totals(), entry.lease.held());
            (!totals.agree(held)).then(|| format!("{totals:?}, and {held} is held"))
        };
        let now = || self.shards.iter().find_map(|shard| lock(shard).iter().find_map(wrong));
        lock(&self.imbalance).clone().or_else(now)
    }

    // === entries ===

    fn shard(&self, state: StateId) -> Option<MutexGuard<'_, LeaseShard>> {
        let low = usize::try_from(state.0 & 0xff).unwrap_or(0) % SHARDS;
        self.shards.get(low).map(lock)
    }

    /// The lease of a take, if there is one under the same limit. One under another limit ends: the limit was edited.
    fn current<'s>(
        &self,
        shard: &'s mut LeaseShard,
        now: &LeaseMoment,
        take: &Take<'_>,
        actions: &mut LeaseActions,
    ) -> Option<&'s mut TableEntry> {
        let serial = take.limit.serial(next_serial);
        let entry = shard.get_mut(take.state)?;
        if entry.serial != serial {
            if **entry.lease.limit() != *take.limit {
                self.end_one(shard, now, take.state, actions);
                return None;
            }
            entry.serial = serial;
        }
        shard.get_mut(take.state)
    }

    fn begin(
        &self,
        shard: &mut LeaseShard,
        now: &LeaseMoment,
        take: &Take<'_>,
        terms: &LeaseTerms,
        actions: &mut LeaseActions,
    ) {
        if shard.is_full() {
            let few = (0..LOOKS)
                .filter_map(|_| shard.look().map(|(state, entry)| (entry.lease.used_at(), state)));
            if let Some((_, oldest)) = few.min() {
                self.end_one(shard, now, oldest, actions);
            }
        }
        self.nodes.store(now.nodes, Ordering::Relaxed);
        let lease = Lease::new(Arc::new(take.limit.clone()), *terms, now);
        let entry = TableEntry { serial: take.limit.serial(next_serial), lease };
        shard.insert(take.state, entry);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn end_one(
        &self,
        shard: &mut LeaseShard,
        now: &LeaseMoment,
        state: StateId,
        actions: &mut LeaseActions,
    ) {
        if let Some(entry) = shard.get_mut(state) {
            let action = entry.lease.on_event(now, LeaseEvent::Ended);
            actions.extend(action.map(|action| (state, action)));
        }
        self.remove(shard, state);
    }

    fn remove(&self, shard: &mut LeaseShard, state: StateId) {
        let Some(mut entry) = shard.remove(state) else { return };
        self.count.fetch_sub(1, Ordering::Relaxed);
        entry.lease.lose();
        #[cfg(feature = "testing")]
        if !entry.lease.totals().agree(0) {
            *lock(&self.imbalance) = Some(format!("{:?}", entry.lease.totals()));
        }
        let mut ended = lock(&self.ended);
        let report = ended.entry(entry.lease.terms().group).or_default();
        add_totals(report, &entry.lease);
    }
}

/// What a take weighs if it can be spent from a slice. Slices hold nothing of a headroom, so a cost that weighs less because of one
/// is decided by the store.
fn leased_weight(take: &Take<'_>) -> Option<u64> {
    let Freshness::Lease(_) = take.freshness else { return None };
    let weight = take.limit.weight(take.cost, take.bound)?;
    (take.bound == Bound::Plain || Some(weight) == take.limit.weight(take.cost, Bound::Plain))
        .then_some(weight)
}

/// Whether a bucket refuses because more of it is in use than exact takes can use: other nodes hold slices that reach ahead.
fn is_ahead(limit: &Limit, decision: &Decision) -> bool {
    let refused = matches!(decision.outcome, Outcome::Deny(_)) && limit.ticks().is_some();
    refused && decision.reset.zip(limit.slice_life()).is_some_and(|(reset, life)| reset > life)
}

fn add_totals(report: &mut LeaseReport, lease: &Lease) {
    let unit = lease.limit().weight(Cost::ONE, Bound::Plain).unwrap_or(1).max(1);
    let add = |to: &mut u64, weight: u64| {
        *to = to.saturating_add(weight.checked_div(unit).unwrap_or(0));
    };
    let LeaseTotals { granted, refunded: _, spent, returned, drained, lost } = *lease.totals();
    report.asks = report.asks.saturating_add(lease.asks());
    add(&mut report.held, lease.held());
    add(&mut report.granted, granted);
    add(&mut report.spent, spent);
    add(&mut report.returned, returned);
    add(&mut report.drained, drained);
    add(&mut report.lost, lost);
}

#[cfg(test)]
mod tests {
    use super::super::clock_sample::ClockSample;
    use super::super::lease::Granted;
    use super::*;
    use tidegate_core::{Algorithm, LeaseAsk, Span, Timestamp, Written};

    const TERMS: LeaseTerms = LeaseTerms { share: 10, interval: Span::from_millis(100), group: 1 };
    const NOW: Timestamp = Timestamp::from_nanos(5_000_000_000);

    fn moment() -> LeaseMoment {
        LeaseMoment { local: NOW, nodes: 2, epoch: 0 }
    }

    fn limit(amount: u64) -> Limit {
        Limit::new(amount, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap()
    }

    fn leased(state: u128, limit: &Limit) -> Take<'_> {
        Take { freshness: Freshness::Lease(&TERMS), ..Take::new(StateId(state), limit, Cost::ONE) }
    }

    /// Makes a state hot, and returns the ask that this leads to.
    fn asked(table: &LeaseTable, take: &Take<'_>) -> (Arc<Limit>, LeaseAsk) {
        let passes = take.limit.peek(&Written::empty(take.limit), NOW);
        let mut actions = LeaseActions::new();
        for _ in 0..8 {
            table.missed(&moment(), take, &passes, &mut actions);
        }
        let ask = actions.pop().map(|(_, action)| action);
        let Some(LeaseAction::Ask(limit, ask)) = ask else { panic!("{ask:?}") };
        (limit, ask)
    }

    fn granted(limit: &Limit, ask: &LeaseAsk) -> LeaseEvent {
        let slice = limit.grant(&mut Written::empty(limit), NOW, ask);
        let sample = ClockSample::new(NOW, NOW, NOW);
        LeaseEvent::Granted(Granted { slice, reset: Timestamp::END, sample, epoch: 0 })
    }

    #[test]
    fn a_grant_is_spent_and_what_is_undone_is_spent_again() {
        let (table, limit, mut actions) = (LeaseTable::new(), limit(1_000), LeaseActions::new());
        let take = leased(7, &limit);
        assert_eq!(table.spend(&moment(), &take, &mut actions), None);
        let (asked_under, ask) = asked(&table, &take);
        table.answered(&moment(), take.state, &asked_under, granted(&limit, &ask));
        let held = table.report()[0].held;
        let spent = table.spend(&moment(), &take, &mut actions).unwrap();
        assert_eq!((spent.decision.remaining, table.report()[0].held), (held - 1, held - 1));
        table.undo(&moment(), take.state, &spent);
        assert_eq!((table.report()[0].held, table.imbalance()), (held, None));
    }

    /// Ticks and windows of one limit mean nothing under another one.
    #[test]
    fn a_grant_under_an_edited_limit_is_lost() {
        let (table, old, new) = (LeaseTable::new(), limit(1_000), limit(2_000));
        let (asked_under, ask) = asked(&table, &leased(7, &old));
        let (asked_again, _) = asked(&table, &leased(7, &new));
        table.answered(&moment(), StateId(7), &asked_under, granted(&old, &ask));
        assert_eq!(table.report()[0].held, 0);
        table.answered(&moment(), StateId(7), &asked_again, granted(&new, &ask));
        assert!(table.report()[0].held > 0);
        // And what was spent under the old limit is not put back under the new one.
        let mut actions = LeaseActions::new();
        let spent = table.spend(&moment(), &leased(7, &new), &mut actions).unwrap();
        let held = table.report()[0].held;
        table.undo(&moment(), StateId(7), &Spent { serial: spent.serial + 1, ..spent });
        assert_eq!(table.report()[0].held, held);
    }

    /// Each further lease looked at a whole shard under its lock, for the one that was not used for the longest time.
    #[test]
    fn a_full_table_takes_a_constant_number_of_steps_and_keeps_what_is_used() {
        let (table, limit) = (LeaseTable::new(), limit(1_000_000));
        let looked = || table.shards.iter().map(|shard| lock(shard).looked).sum::<u64>();
        let used = leased(7, &limit);
        let mut actions = LeaseActions::new();
        let passes = limit.peek(&Written::empty(&limit), NOW);
        // Each state is hot in an interval of its own: so none is in the way of another.
        let later = |n: u64| LeaseMoment {
            local: NOW.after(Span::from_millis(100 * n)).unwrap(),
            ..moment()
        };
        (0..8).for_each(|_| table.missed(&later(0), &used, &passes, &mut actions));
        for state in 1..=163_840_u64 {
            let id = u128::from(state).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let (take, before) = (leased(id, &limit), looked());
            (0..8).for_each(|_| table.missed(&later(state), &take, &passes, &mut actions));
            assert!(looked() - before <= 4, "the {state}th lease");
            table.missed(&later(state), &used, &passes, &mut actions);
            actions.clear();
        }
        let leases = table.report()[0].leases;
        assert!(leases <= 16_384 && leases > 10_000, "{leases}");
        assert!(table.shard(used.state).unwrap().contains(used.state), "it is always in use");
        assert_eq!(table.imbalance(), None);
    }
}
