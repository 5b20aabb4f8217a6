//! A map with a bound whose operations take constant time, also when it is full.
//!
//! ```text
//!   entries   a  b  c  d  e  f  g  h        in a row, so that a hand can go round
//!                   ▲
//!                  hand ── looks at a few entries for each new key, and drops those that are over
//! ```
//!
//! Looking at *all* entries for each new key is the mistake that this map prevents: when more keys than fit are active, every
//! operation would take as long as the map is large, under its lock. A hand that looks at [`LOOKS`] entries for each new key
//! removes entries at least as fast as they end (the algorithm CLOCK does the same for pages of memory).

use crate::state_hasher::PassThroughHasher;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use tidegate_core::StateId;

/// How many entries the hand looks at for each new key: more than one, so that it gains on the keys that come.
pub(crate) const LOOKS: usize = 4;

/// Values by state.
#[derive(Debug)]
pub(crate) struct BoundedMap<V> {
    /// Where in the row the entry of a state is.
    places: HashMap<StateId, usize, BuildHasherDefault<PassThroughHasher>>,
    row: Vec<(StateId, V)>,
    /// The place at which the hand looks next.
    hand: usize,
    most: usize,
    /// How many entries the hand has looked at.
    #[cfg(test)]
    pub(crate) looked: u64,
}

impl<V> BoundedMap<V> {
    /// An empty map for at most this many states.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            places: HashMap::default(),
            row: Vec::new(),
            hand: 0,
            most,
            #[cfg(test)]
            looked: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.row.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.row.len() >= self.most
    }

    pub(crate) fn contains(&self, state: StateId) -> bool {
        self.places.contains_key(&state)
    }

    pub(crate) fn get_mut(&mut self, state: StateId) -> Option<&mut V> {
        let place = *self.places.get(&state)?;
        self.row.get_mut(place).map(|(_, value)| value)
    }

    /// Replaces the value of a state, or adds it if there is room. Returns the value that is not in the map afterwards: the
    /// one before, or the new one if it has no room.
    pub(crate) fn insert(&mut self, state: StateId, value: V) -> Option<V> {
        if let Some(old) = self.get_mut(state) {
            return Some(std::mem::replace(old, value));
        }
        if self.is_full() {
            return Some(value);
        }
        self.places.insert(state, self.row.len());
        self.row.push((state, value));
        None
    }

    pub(crate) fn remove(&mut self, state: StateId) -> Option<V> {
        let place = self.places.remove(&state)?;
        let (_, value) = (place < self.row.len()).then(|| self.row.swap_remove(place))?;
        if let Some((moved, _)) = self.row.get(place) {
            self.places.insert(*moved, place);
        }
        Some(value)
    }

    /// The entry at the hand, which moves on.
    pub(crate) fn look(&mut self) -> Option<(StateId, &mut V)> {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        if self.hand >= self.row.len() {
            self.hand = 0;
        }
        let (state, value) = self.row.get_mut(self.hand)?;
        self.hand = self.hand.saturating_add(1);
        Some((*state, value))
    }

    /// Looks at a few entries, and removes those that are over. Returns whether there is room for a new one.
    pub(crate) fn make_room(&mut self, is_over: impl Fn(&V) -> bool) -> bool {
        for _ in 0..LOOKS.min(self.len()) {
            if let Some((state, value)) = self.look()
                && is_over(value)
            {
                self.remove_looked_at(state);
            }
        }
        !self.is_full()
    }

    /// Removes the entry that the hand has just looked at. The last entry takes its place, so the hand looks at that one next.
    pub(crate) fn remove_looked_at(&mut self, state: StateId) -> Option<V> {
        self.hand = self.hand.saturating_sub(1);
        self.remove(state)
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (StateId, &V)> {
        self.row.iter().map(|(state, value)| (*state, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (StateId, &mut V)> {
        self.row.iter_mut().map(|(state, value)| (*state, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_a_map_would_hold_within_its_bound() {
        let (mut map, mut model) = (BoundedMap::new(50), HashMap::new());
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for step in 0..20_000_u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let state = StateId(u128::from(random >> 20) % 80);
            match random % 3 {
                0 => assert_eq!(map.remove(state), model.remove(&state)),
                _ if model.len() < 50 || model.contains_key(&state) => {
                    assert_eq!(map.insert(state, step), model.insert(state, step));
                }
                _ => assert_eq!(map.insert(state, step), Some(step), "there is no room"),
            }
            assert_eq!(map.get_mut(state).copied(), model.get(&state).copied());
            assert_eq!((map.len(), map.is_full()), (model.len(), model.len() == 50));
        }
        assert!(map.iter().all(|(state, value)| model.get(&state) == Some(value)));
    }

    /// The hand comes to every entry, also while entries are removed, and makes room faster than new keys come.
    #[test]
    fn entries_that_are_over_make_room_with_a_bounded_number_of_looks() {
        let mut map = BoundedMap::new(1_000);
        for now in 1..=10_000_u64 {
            let before = map.looked;
            assert!(map.make_room(|end| *end <= now), "step {now}");
            // One entry comes in each step, and counts for 500 steps.
            assert!(map.insert(StateId(u128::from(now) << 64), now + 500).is_none());
            assert!(map.looked - before <= 4);
        }
    }
}
