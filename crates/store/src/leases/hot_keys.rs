//! Which states are asked for so often that a lease is worth a call: a small table of counters.
//!
//! The table has a fixed size. Two states may share a place; then the one that is asked for more often keeps it. So a hot state is
//! found a little later, or rarely a cold one is called hot. Neither changes what passes.

use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{Span, StateId, Timestamp};

const PLACES: usize = 4_096;
/// The bits of a place: a tag of the state, the number of the interval, and a count.
const COUNT_BITS: u32 = 8;
const INTERVAL_BITS: u32 = 16;
/// A state is hot after this many takes within an interval.
pub(super) const HOT: u64 = 8;

/// Counters of takes that the store decided.
pub(super) struct HotKeys(Box<[AtomicU64]>);

impl HotKeys {
    pub(super) fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts a take. Returns whether the state is hot.
    pub(super) fn is_hot(&self, state: StateId, now: Timestamp, interval: Span) -> bool {
        let Some((place, tag)) = self.place(state) else { return false };
        let number = now.as_nanos().checked_div(interval.as_nanos()).unwrap_or(0);
        let number = number & ((1 << INTERVAL_BITS) - 1);
        let word =
            |count: u64| (tag << (COUNT_BITS + INTERVAL_BITS)) | (number << COUNT_BITS) | count;
        // Relaxed: a count that is lost makes a state hot a little later.
        let found = place.load(Ordering::Relaxed);
        let count = found & ((1 << COUNT_BITS) - 1);
        let same_interval = (found >> COUNT_BITS) & ((1 << INTERVAL_BITS) - 1) == number;
        let same_state = found >> (COUNT_BITS + INTERVAL_BITS) == tag;
        let next = match (same_state, same_interval) {
            (true, true) => word(count.saturating_add(1).min(HOT)),
            // The other state loses one, and its place when it has none left.
            (false, true) if count > 1 => found.saturating_sub(1),
            (_, false) | (false, true) => word(1),
        };
        place.store(next, Ordering::Relaxed);
        next == word(HOT)
    }

    fn place(&self, state: StateId) -> Option<(&AtomicU64, u64)> {
        let bits = u64::try_from(state.0 & u128::from(u64::MAX)).ok()?;
        let place = usize::try_from(bits).ok()? % PLACES;
        let tag = bits >> (COUNT_BITS + INTERVAL_BITS);
        Some((self.0.get(place)?, tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_hot_after_eight_takes_within_an_interval() {
        let (keys, interval) = (HotKeys::new(), Span::from_millis(100));
        let at = |ms: u64| Timestamp::from_nanos(ms * 1_000_000);
        let takes = |state, ms| keys.is_hot(StateId(state), at(ms), interval);
        let hot: Vec<bool> = (0..9).map(|n| takes(7, n)).collect();
        assert_eq!(hot, [false, false, false, false, false, false, false, true, true]);
        assert!(!takes(7, 100), "a new interval");
        // A neighbour in the same place does not get in its way for long.
        let neighbour = 7 + 4_096 * 5;
        let (mut own, mut other) = (0, 0);
        for _ in 0..30 {
            own += u32::from(takes(7, 101));
            other += u32::from(takes(7, 101));
            takes(neighbour, 101);
        }
        assert!(own + other > 20, "{own} {other}");
    }

    #[test]
    fn a_million_cold_states_are_not_hot() {
        let (keys, interval) = (HotKeys::new(), Span::from_millis(100));
        let hot = (0..1_000_000_u128).filter(|n| {
            let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let now = Timestamp::from_nanos(u64::try_from(*n).unwrap() * 1_000);
            keys.is_hot(StateId(id), now, interval)
        });
        assert_eq!(hot.count(), 0);
    }
}
