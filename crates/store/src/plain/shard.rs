//! A shard: some of the states, and the order in which they are swept.

use crate::state_hasher::PassThroughHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use tidegate_core::{Limit, Now, State, StateId, Written};

/// How many states are swept when one was added: more than one, so that expired states are removed faster than new ones are
/// added.
const SWEPT_PER_ADDITION: usize = 2;
/// One state is swept for this many calls that add nothing, so that a shard whose keys stay the same shrinks too.
const USES_PER_SWEEP: u8 = 8;

/// Some of the states.
#[derive(Debug, Default)]
pub(super) struct Shard {
    /// An empty state was reset, and is removed by a later sweep.
    states: HashMap<StateId, (Arc<Limit>, State), BuildHasherDefault<PassThroughHasher>>,
    /// The ids of all states, each once, in the order in which they will be swept.
    order: VecDeque<StateId>,
    /// Whether a state was added since the last sweep.
    added: bool,
    /// How often the shard was used, modulo 256.
    uses: u8,
}

impl Shard {
    pub(super) fn get(&self, id: StateId) -> Option<(&Arc<Limit>, &State)> {
        let found = self.states.get(&id).filter(|(_, state)| *state != State::Empty);
        found.map(|(limit, state)| (limit, state))
    }

    /// Replaces a state whole.
    pub(super) fn put(&mut self, id: StateId, limit: Arc<Limit>, state: State) {
        let nothing = state == State::Empty;
        match self.states.get_mut(&id) {
            Some(place) => *place = (limit, state),
            None if nothing => {}
            None => {
                self.states.insert(id, (limit, state));
                self.order.push_back(id);
                self.added = true;
            }
        }
    }

    /// Empties a state; returns whether there was one.
    pub(super) fn remove(&mut self, id: StateId) -> bool {
        let found = self.states.get_mut(&id).map(|(_, state)| std::mem::take(state));
        found.is_some_and(|state| state != State::Empty)
    }

    pub(super) fn len(&self) -> usize {
        self.states.values().filter(|(_, state)| *state != State::Empty).count()
    }

    /// Checks the next states and removes those that have expired.
    pub(super) fn sweep(&mut self, now: Now) {
        self.uses = self.uses.wrapping_add(1);
        let looks = match (std::mem::take(&mut self.added), self.uses % USES_PER_SWEEP) {
            (true, _) => SWEPT_PER_ADDITION,
            (false, 0) => 1,
            (false, _) => 0,
        };
        for _ in 0..looks {
            let Some(id) = self.order.pop_front() else { return };
            let Some((limit, state)) = self.states.get_mut(&id) else { continue };
            let mut written = Written { shape: limit, state: std::mem::take(state) };
            written.settle(now.of(limit));
            if written.state == State::Empty {
                self.states.remove(&id);
            } else {
                *state = written.state;
                self.order.push_back(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Algorithm, Ask, Cost, Span, Timestamp};

    fn taken(limit: &Limit, nanos: u64) -> State {
        let mut written = Written::empty(limit);
        limit.take(&mut written, &Ask::new(Timestamp::from_nanos(nanos), Cost::ONE));
        written.state
    }

    #[test]
    fn expired_states_are_removed_as_new_ones_are_added() {
        let limit = Arc::new(Limit::new(5, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap());
        let mut shard = Shard::default();
        for id in 0..1_000u64 {
            let now = id * 100_000_000;
            shard.put(StateId(u128::from(id)), Arc::clone(&limit), taken(&limit, now));
            shard.sweep(Now::at(Timestamp::from_nanos(now)));
            // A token is back after 200 ms, so two states are alive at a time.
            assert!(shard.len() <= 6, "{} states", shard.len());
            assert!(shard.order.len() <= 8, "{} in order", shard.order.len());
        }
    }

    #[test]
    fn a_state_is_listed_once_however_often_it_is_reset() {
        let limit =
            Arc::new(Limit::new(5, Span::from_secs(86_400), Algorithm::TOKEN_BUCKET).unwrap());
        let mut shard = Shard::default();
        for _ in 0..1_000 {
            shard.put(StateId(1), Arc::clone(&limit), taken(&limit, 0));
            assert!(shard.remove(StateId(1)));
            assert!(!shard.remove(StateId(1)));
        }
        assert_eq!((shard.order.len(), shard.len()), (1, 0));
        shard.sweep(Now::at(Timestamp::EPOCH));
        assert_eq!((shard.order.len(), shard.states.len()), (0, 0));
    }
}
