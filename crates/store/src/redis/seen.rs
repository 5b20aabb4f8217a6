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
    Algorithm, Cost, Done, Limit, Need, Plan, Refused, Span, State, StateId, Take, Timestamp,
    Written,
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
}

const SHARDS: usize = 16;
/// States in a shard; more than this are not remembered.
const MOST: usize = 1_024;
/// No longer than this: somebody may have given back elsewhere, or put the store's clock back.
const KEPT: Span = Span::from_millis(500);

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
            let shard = lock(self.shard(take.state)?);
            shard.get(&take.state).filter(|sight| now.since(sight.at) < KEPT).cloned()
        };
        takes.iter().map(sight).collect()
    }

    /// Remembers the states of a plan, as they are after it, if it would be refused now.
    pub(super) fn note(
        &self,
        plan: &Plan<'_>,
        done: &Done,
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
            let sight =
                Sight { shape: written.shape.clone(), state: written.state.clone(), at: now };
            self.remember(take.state, sight);
        }
    }

    fn remember(&self, state: StateId, sight: Sight) {
        let Some(shard) = self.shard(state) else { return };
        let mut shard = lock(shard);
        if shard.len() >= MOST && !shard.contains_key(&state) {
            let (now, before) = (sight.at, shard.len());
            shard.retain(|_, sight| now.since(sight.at) < KEPT);
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
    take.refused == Refused::Charged
        && !matches!(take.limit.algorithm(), Algorithm::FixedWindow { .. })
}
