//! What was seen of states that refuse, for half a second.
//!
//! Whoever is far over a limit asks again and again, and each time the store would say what it said before. A state that
//! refuses goes on refusing until its time: others can only add to it. So the state itself is remembered, and the core
//! decides from it; the answer is what the store would say, with remaining and retry as of now, also for another cost or an
//! edited limit.
//!
//! What makes a state refuse less at once, a reset or something given back, is seen here at once and on other nodes within
//! that time. A take that counts refusals must be counted, so its plan is always asked, unless it is a fixed window, which
//! ends when it ends.

use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_core::{
    Algorithm, Cost, Limit, Need, Plan, PlanOutcome, RejectedCost, Span, State, StateId, Take,
    Timestamp, Written,
};

/// The states of plans that were refused, or that took the last.
pub(super) struct Seen {
    enabled: bool,
    /// By the lowest bits of the name, which is a keyed hash. Locked to look or to write.
    shards: [Mutex<HashMap<StateId, Sight>>; SHARDS],
    /// How many there are, or a few more. Relaxed: who misses one asks the store.
    count: AtomicUsize,
}

/// A state as it was seen.
#[derive(Clone)]
pub(super) struct Sight {
    shape: Limit,
    state: State,
    at: Timestamp,
    /// Somebody is asking again.
    renewing: bool,
}

const SHARDS: usize = 16;
/// States in a shard; more than this are not remembered.
const MOST: usize = 1_024;
/// No longer than this: somebody may have given back elsewhere, or put the store's clock back. Then one asks again; the others
/// go by what was seen for a moment longer, so that not all of them ask at once.
const KEPT: Span = Span::from_millis(400);
const KEPT_WHILE_RENEWED: Span = Span::from_millis(500);

impl Sight {
    pub(super) fn written(&self) -> Written<'_> {
        Written { shape: &self.shape, state: self.state.clone() }
    }
}

impl Seen {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, shards: Default::default(), count: AtomicUsize::new(0) }
    }

    /// What was seen of the states of all these takes; nothing if of one nothing is known.
    pub(super) fn look(&self, takes: &[Take<'_>], now: Timestamp) -> Option<Vec<Sight>> {
        if self.count.load(Ordering::Relaxed) == 0 || takes.iter().any(must_be_counted) {
            return None;
        }
        let sight = |take: &Take<'_>| {
            let mut shard = lock(self.shard(take.state)?);
            let sight = shard.get_mut(&take.state)?;
            let age = now.since(sight.at);
            let good = age < KEPT || (age < KEPT_WHILE_RENEWED && sight.renewing);
            sight.renewing |= !good;
            good.then(|| sight.clone())
        };
        takes.iter().map(sight).collect()
    }

    /// Remembers the states of a plan, as they are after it, if it would be refused now.
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
        if !self.enabled || !refuses || plan.takes().iter().any(must_be_counted) {
            return;
        }
        for (take, written) in plan.takes().iter().zip(states) {
            let (shape, state) = (written.shape.clone(), written.state.clone());
            let sight = Sight { shape, state, at: now, renewing: false };
            self.remember(take.state, sight);
        }
    }

    fn remember(&self, state: StateId, sight: Sight) {
        let Some(shard) = self.shard(state) else { return };
        let mut shard = lock(shard);
        if shard.len() >= MOST && !shard.contains_key(&state) {
            let (now, before) = (sight.at, shard.len());
            shard.retain(|_, sight| now.since(sight.at) < KEPT_WHILE_RENEWED);
            self.count.fetch_sub(before.saturating_sub(shard.len()), Ordering::Relaxed);
            if shard.len() >= MOST {
                return;
            }
        }
        if shard.insert(state, sight).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets states that may refuse less than before.
    pub(super) fn forget(&self, states: impl Iterator<Item = StateId>) {
        for state in states {
            if let Some(shard) = self.shard(state)
                && lock(shard).remove(&state).is_some()
            {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn shard(&self, state: StateId) -> Option<&Mutex<HashMap<StateId, Sight>>> {
        let [.., last] = state.0.to_be_bytes();
        self.shards.get(usize::from(last) % SHARDS)
    }
}

/// Whether a refusal changes the state, beyond what ends with its window.
fn must_be_counted(take: &Take<'_>) -> bool {
    take.refused == RejectedCost::Charged
        && !matches!(take.limit.algorithm(), Algorithm::FixedWindow { .. })
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

    /// Takes the last of a state and notes that.
    fn noted<'l>(seen: &Seen, take: Take<'l>, now: Timestamp) -> Plan<'l> {
        let plan = Plan::new(take, Span::ZERO).unwrap();
        let mut states = [Written::empty(take.limit)];
        let done = plan.take(Now::at(now), &mut states);
        seen.note(&plan, &done, &states, now);
        plan
    }

    #[test]
    fn one_asks_again_and_the_others_wait_for_a_moment() {
        let (seen, limit) = (Seen::new(true), limit(Algorithm::TOKEN_BUCKET));
        let plan = noted(&seen, Take::new(StateId(1), &limit, Cost::ONE), at(0));
        let looks = |millis| seen.look(plan.takes(), at(millis)).is_some();
        assert!(looks(0) && looks(399));
        assert!(!looks(400), "the first asks again");
        assert!(looks(400) && looks(499), "others go by what was seen");
        assert!(!looks(500) && !looks(501), "but not for ever");
    }

    #[test]
    fn what_may_refuse_less_is_forgotten_and_what_counts_refusals_is_not_remembered() {
        let (seen, bucket) = (Seen::new(true), limit(Algorithm::TOKEN_BUCKET));
        let take = Take::new(StateId(1), &bucket, Cost::ONE);
        let plan = noted(&seen, take, at(0));
        seen.forget([StateId(1)].into_iter());
        assert!(seen.look(plan.takes(), at(1)).is_none());
        let charged = noted(&seen, Take { refused: RejectedCost::Charged, ..take }, at(0));
        assert!(seen.look(charged.takes(), at(1)).is_none());
        let window = limit(Algorithm::FIXED_WINDOW);
        let fixed =
            Take { refused: RejectedCost::Charged, ..Take::new(StateId(2), &window, Cost::ONE) };
        assert!(seen.look(noted(&seen, fixed, at(0)).takes(), at(1)).is_some());
    }

    #[test]
    fn room_is_bounded_and_made_of_what_is_over() {
        let (seen, limit) = (Seen::new(true), limit(Algorithm::TOKEN_BUCKET));
        for id in 0..100_000 {
            noted(&seen, Take::new(StateId(id), &limit, Cost::ONE), at(0));
        }
        assert_eq!(seen.count.load(Ordering::Relaxed), SHARDS * MOST);
        let late = noted(&seen, Take::new(StateId(200_000), &limit, Cost::ONE), at(1_000));
        assert!(seen.look(late.takes(), at(1_001)).is_some());
    }

    #[test]
    fn who_still_has_something_left_is_asked_for() {
        let (seen, limit) =
            (Seen::new(true), Limit::new(5, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap());
        let plan = noted(&seen, Take::new(StateId(1), &limit, Cost::ONE), at(0));
        assert!(seen.look(plan.takes(), at(1)).is_none());
        let off = Seen::new(false);
        let last = noted(&off, Take::new(StateId(1), &limit, Cost::new(5)), at(0));
        assert!(off.look(last.takes(), at(1)).is_none());
    }
}
