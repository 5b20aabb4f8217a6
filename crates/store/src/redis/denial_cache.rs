//! Denial cache: a node answers repeated refusals itself for half a second, without a call to the store.
//!
//! A client far over its limit sends request after request, and each time the store would refuse again. A state that refuses
//! goes on refusing until it has drained: takes, also those of other nodes, can only add to it. So the cache holds the state
//! itself, and the core decides from it. The answer is the one that the store would give, with the remaining amount and the
//! retry time of now, also for another cost or an edited limit.
//!
//! Two events make a state refuse less: a reset, and a cost that is given back. The node that causes them drops the cached state
//! *before* it calls the store. Other nodes see them within half a second, because their cached states expire. So does this node
//! if an answer that the store gave before the event arrives after the drop: it caches the state again.
//!
//! Charged denials bypass the denial cache, except for fixed windows: the store must count them, and each one delays the
//! moment when the state passes again. A fixed window ends when it ends. Concurrency limits bypass it too: a permit that another
//! node gives back must be usable at once.

use crate::bounded_map::BoundedMap;
use crate::sync::{Mutex, lock};
use std::array;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_core::{
    Algorithm, Cost, Limit, Need, Plan, PlanOutcome, RejectedCost, Span, State, StateId, Take,
    Timestamp, Written,
};

/// The states of plans that were refused, or that took the last of a limit.
pub(super) struct DenialCache {
    enabled: bool,
    /// Sharded by the lowest bits of the id, which is a keyed hash. Locked to look or to write.
    shards: [Mutex<BoundedMap<CachedState>>; SHARDS],
    /// How many states are cached, or a few more. Relaxed: a caller that misses one calls the store.
    count: AtomicUsize,
}

/// A state as the store last reported it.
#[derive(Clone)]
pub(super) struct CachedState {
    shape: Limit,
    state: State,
    at: Timestamp,
    /// One caller is already fetching the state from the store again.
    renewing: bool,
}

const SHARDS: usize = 16;
/// Maximum states in a shard; more are not cached.
const MAX_PER_SHARD: usize = 1_024;
/// A cached state expires, because another node may have given something back, or the store's clock may have been set back.
/// The first caller after that calls the store; the other callers use the cached state a little longer, so that not all of
/// them call the store at the same time.
const FRESH_FOR: Span = Span::from_millis(400);
const FRESH_WHILE_RENEWING: Span = Span::from_millis(500);

impl CachedState {
    /// A state as it is now.
    pub(super) fn new(written: &Written<'_>, now: Timestamp) -> Self {
        let (shape, state) = (written.shape.clone(), written.state.clone());
        Self { shape, state, at: now, renewing: false }
    }

    pub(super) fn written(&self) -> Written<'_> {
        Written { shape: &self.shape, state: self.state.clone() }
    }
}

impl DenialCache {
    pub(super) fn new(enabled: bool) -> Self {
        let shards = array::from_fn(|_| Mutex::new(BoundedMap::new(MAX_PER_SHARD)));
        Self { enabled, shards, count: AtomicUsize::new(0) }
    }

    /// The cached states of all these takes; `None` if one of them is not cached.
    pub(super) fn look(&self, takes: &[Take<'_>], now: Timestamp) -> Option<Vec<CachedState>> {
        if self.count.load(Ordering::Relaxed) == 0 || takes.iter().any(bypasses_cache) {
            return None;
        }
        let cached = |take: &Take<'_>| {
            let mut shard = lock(self.shard(take.state)?);
            let cached = shard.get_mut(take.state)?;
            let age = now.since(cached.at);
            let good = age < FRESH_FOR || (age < FRESH_WHILE_RENEWING && cached.renewing);
            cached.renewing |= !good;
            good.then(|| cached.clone())
        };
        takes.iter().map(cached).collect()
    }

    /// Caches the states of a plan, as they are after it, if the same plan would now be refused.
    pub(super) fn note(
        &self,
        plan: &Plan<'_>,
        done: &PlanOutcome,
        states: &[Written<'_>],
        now: Timestamp,
    ) {
        let spent = |(take, decision): (&Take<'_>, &tidegate_core::Decision)| {
            take.need == Need::Required && Cost::new(decision.remaining) < take.cost
        };
        let refuses = !done.passes || plan.takes().iter().zip(&done.decisions).any(spent);
        if !self.enabled || !refuses || plan.takes().iter().any(bypasses_cache) {
            return;
        }
        for (take, written) in plan.takes().iter().zip(states) {
            self.remember(take.state, CachedState::new(written, now));
        }
    }

    /// Caches a state at this time of the store, if it refuses a cost of 1. `now` is the time of this node.
    pub(super) fn note_state(
        &self,
        state: StateId,
        written: &Written<'_>,
        at: Timestamp,
        now: Timestamp,
    ) {
        if self.enabled && !written.shape.peek(written, at).passes() {
            self.remember(state, CachedState::new(written, now));
        }
    }

    /// Caches the states of one slot, as they are after a refund, because another slot refused the plan.
    pub(super) fn note_refunded(&self, plan: &Plan<'_>, states: &[(StateId, CachedState)]) {
        if !self.enabled || plan.takes().iter().any(bypasses_cache) {
            return;
        }
        for (state, cached) in states {
            self.remember(*state, cached.clone());
        }
    }

    fn remember(&self, state: StateId, cached: CachedState) {
        let Some(shard) = self.shard(state) else { return };
        let mut shard = lock(shard);
        if shard.is_full() && !shard.contains(state) {
            let (now, before) = (cached.at, shard.len());
            shard.make_room(|cached| now.since(cached.at) >= FRESH_WHILE_RENEWING);
            self.count.fetch_sub(before.saturating_sub(shard.len()), Ordering::Relaxed);
        }
        let before = shard.len();
        shard.insert(state, cached);
        self.count.fetch_add(shard.len().saturating_sub(before), Ordering::Relaxed);
    }

    /// Drops states that may refuse less than before.
    pub(super) fn forget(&self, states: impl Iterator<Item = StateId>) {
        for state in states {
            if let Some(shard) = self.shard(state)
                && lock(shard).remove(state).is_some()
            {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn shard(&self, state: StateId) -> Option<&Mutex<BoundedMap<CachedState>>> {
        let [.., last] = state.0.to_be_bytes();
        self.shards.get(usize::from(last) % SHARDS)
    }
}

/// Whether the store must be asked each time: it must count a refusal of this take, or another node may give back a permit at
/// any moment, which must be usable at once.
fn bypasses_cache(take: &Take<'_>) -> bool {
    let fixed = matches!(take.limit.algorithm(), Algorithm::FixedWindow { .. });
    (take.refused == RejectedCost::Charged && !fixed) || take.limit.lease().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Now;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(1_000_000_000_000 + millis * 1_000_000)
    }

    fn limit(algorithm: Algorithm) -> Limit {
        Limit::new(1, Span::from_secs(3_600), algorithm).unwrap()
    }

    /// Takes from a state and notes the outcome.
    fn noted<'l>(cache: &DenialCache, take: Take<'l>, now: Timestamp) -> Plan<'l> {
        let plan = Plan::new(take, Span::ZERO).unwrap();
        let mut states = [Written::empty(take.limit)];
        let done = plan.take(Now::at(now), &mut states);
        cache.note(&plan, &done, &states, now);
        plan
    }

    #[test]
    fn one_caller_renews_an_expired_state_while_others_use_it_a_little_longer() {
        let (cache, limit) = (DenialCache::new(true), limit(Algorithm::TOKEN_BUCKET));
        let plan = noted(&cache, Take::new(StateId(1), &limit, Cost::ONE), at(0));
        let looks = |millis| cache.look(plan.takes(), at(millis)).is_some();
        assert!(looks(0) && looks(399));
        assert!(!looks(400), "the first caller renews it");
        assert!(looks(400) && looks(499), "other callers still use it");
        assert!(!looks(500) && !looks(501), "but not for ever");
    }

    #[test]
    fn reset_states_are_dropped_and_charged_denials_are_not_cached() {
        let (cache, bucket) = (DenialCache::new(true), limit(Algorithm::TOKEN_BUCKET));
        let take = Take::new(StateId(1), &bucket, Cost::ONE);
        let plan = noted(&cache, take, at(0));
        cache.forget([StateId(1)].into_iter());
        assert!(cache.look(plan.takes(), at(1)).is_none());
        let charged = noted(&cache, Take { refused: RejectedCost::Charged, ..take }, at(0));
        assert!(cache.look(charged.takes(), at(1)).is_none());
        let window = limit(Algorithm::FIXED_WINDOW);
        let fixed =
            Take { refused: RejectedCost::Charged, ..Take::new(StateId(2), &window, Cost::ONE) };
        assert!(cache.look(noted(&cache, fixed, at(0)).takes(), at(1)).is_some());
    }

    /// A permit that another node gives back must be usable at once, so no refusal of a concurrency limit is cached, and no plan
    /// that contains one.
    #[test]
    fn refusals_of_concurrency_limits_are_not_cached() {
        let (cache, permits) = (DenialCache::new(true), limit(Algorithm::Concurrent));
        let plan = noted(&cache, Take::new(StateId(1), &permits, Cost::ONE), at(0));
        assert!(cache.look(plan.takes(), at(0)).is_none());
        assert_eq!(cache.count.load(Ordering::Relaxed), 0);
        let log = limit(Algorithm::SLIDING_LOG);
        let plan = noted(&cache, Take::new(StateId(1), &log, Cost::ONE), at(0));
        assert!(cache.look(plan.takes(), at(0)).is_some(), "of a log it is");
        let both = [plan.takes()[0], Take::new(StateId(1), &permits, Cost::ONE)];
        assert!(cache.look(&both, at(0)).is_none());
    }

    /// With more refused keys than the cache holds, each further one looked at a whole shard under its lock.
    #[test]
    fn a_full_cache_takes_a_constant_number_of_steps_and_drops_expired_states() {
        let (cache, limit) = (DenialCache::new(true), limit(Algorithm::TOKEN_BUCKET));
        let looked = || cache.shards.iter().map(|shard| lock(shard).looked).sum::<u64>();
        let most = u128::try_from(SHARDS * MAX_PER_SHARD).unwrap();
        for id in 0..10 * most {
            let before = looked();
            noted(&cache, Take::new(StateId(id), &limit, Cost::ONE), at(0));
            assert!(looked() - before <= 4, "the {id}th refused key");
        }
        assert_eq!(cache.count.load(Ordering::Relaxed), SHARDS * MAX_PER_SHARD);
        let late = noted(&cache, Take::new(StateId(10 * most), &limit, Cost::ONE), at(1_000));
        assert!(cache.look(late.takes(), at(1_001)).is_some());
    }

    #[test]
    fn a_state_that_would_still_pass_is_not_cached() {
        let (cache, limit) = (
            DenialCache::new(true),
            Limit::new(5, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap(),
        );
        let plan = noted(&cache, Take::new(StateId(1), &limit, Cost::ONE), at(0));
        assert!(cache.look(plan.takes(), at(1)).is_none());
        let off = DenialCache::new(false);
        let last = noted(&off, Take::new(StateId(1), &limit, Cost::new(5)), at(0));
        assert!(off.look(last.takes(), at(1)).is_none());
    }
}
