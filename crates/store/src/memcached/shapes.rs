//! The shapes of the limits that this node has counted. A reset is given the name of a state without its limit, so it tries all.

use super::counters::CounterShape;
use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

#[derive(Default)]
pub(super) struct CountedShapes {
    shapes: RwLock<BTreeSet<CounterShape>>,
    /// The windows of calendars that were counted last: their numbers do not follow from the time alone.
    windows: RwLock<BTreeSet<u64>>,
}

/// More shapes are not remembered: a policy has at most a few hundred limits, but clients of RESP name their own.
const MOST: usize = 1_024;
/// The windows of calendars that are remembered, the latest.
const MOST_WINDOWS: usize = 64;

impl CountedShapes {
    pub(super) fn remember(&self, shape: CounterShape) {
        if self.shapes.read().unwrap_or_else(PoisonError::into_inner).contains(&shape) {
            return;
        }
        let mut known = self.shapes.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MOST {
            known.insert(shape);
        }
    }

    pub(super) fn remember_window(&self, window: u64) {
        if self.windows.read().unwrap_or_else(PoisonError::into_inner).contains(&window) {
            return;
        }
        let mut known = self.windows.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(window);
        if known.len() > MOST_WINDOWS {
            known.pop_first();
        }
    }

    pub(super) fn calendars(&self) -> Vec<u64> {
        self.windows.read().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    pub(super) fn all(&self) -> Vec<CounterShape> {
        self.shapes.read().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}
