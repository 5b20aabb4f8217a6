//! Keys that were refused a moment ago. A decision looks at such a key before it adds to it.
//!
//! What is added and then refused is taken back, but until then it refuses others. One caller does no harm; many that are refused
//! again and again would keep a limit full with what none of them got.
//!
//! The table is lossy: two keys in one place forget each other. Then a decision adds first, which is still correct.

use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{StateId, Timestamp};

/// Fragments of names, and the second in which they were refused. Relaxed: a stale entry costs one look more or less.
pub(super) struct RefusedLately {
    places: Box<[AtomicU64]>,
    /// Seconds that a refusal is remembered.
    remembered: u64,
}

const PLACES: usize = 1 << 14;
const SECOND: u64 = 1_000_000_000;

impl RefusedLately {
    pub(super) fn new(remembered: u64) -> Self {
        Self { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), remembered }
    }

    pub(super) fn note(&self, state: StateId, now: Timestamp) {
        if let Some((place, fragment)) = self.place(state) {
            place.store(fragment | (now.as_nanos() / SECOND) & SECONDS, Ordering::Relaxed);
        }
    }

    pub(super) fn contains(&self, state: StateId, now: Timestamp) -> bool {
        let Some((place, fragment)) = self.place(state) else { return false };
        let (entry, now) = (place.load(Ordering::Relaxed), (now.as_nanos() / SECOND) & SECONDS);
        entry & !SECONDS == fragment
            && now.wrapping_sub(entry & SECONDS) & SECONDS <= self.remembered
    }

    /// The place of a state, and the part of its name by which it is told from others there.
    fn place(&self, StateId(id): StateId) -> Option<(&AtomicU64, u64)> {
        let [a, b, c, d, e, f, g, h, ..] = id.to_be_bytes();
        let index = usize::from(u16::from_be_bytes([g, h]));
        let fragment = u64::from_be_bytes([a, b, c, d, e, f, 0, 0]) & !SECONDS;
        let place = self.places.get(index & PLACES.saturating_sub(1))?;
        Some((place, fragment))
    }
}

/// The lower bits of an entry: the second, modulo four and a half hours.
const SECONDS: u64 = (1 << 14) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_for_a_second_and_for_its_key_alone() {
        let (table, at) = (RefusedLately::new(1), |secs: u64| Timestamp::from_nanos(secs * SECOND));
        let (one, other) = (StateId(7 << 100), StateId(8 << 100));
        table.note(one, at(1_000_000));
        assert!(table.contains(one, at(1_000_000)) && table.contains(one, at(1_000_001)));
        assert!(!table.contains(one, at(1_000_002)) && !table.contains(one, at(999_999)));
        assert!(!table.contains(other, at(1_000_000)));
    }
}
