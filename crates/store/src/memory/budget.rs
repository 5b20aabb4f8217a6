//! The budget: one number of bytes for everything that grows with the keys.
//!
//! ```text
//!   1/16          the sketch, reserved
//!   1/64 – 1/8    settled receipts
//!   the rest      buckets and blocks, as they need it; each leaves at least 1/32 of the total to the other
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};

/// The part of the budget that the sketch takes, once it is needed: a sixteenth.
const SKETCH_PART: usize = 16;
/// The part that buckets leave to blocks, and blocks to buckets: a thirty-second.
const FLOOR_PART: usize = 32;
/// The part that both leave to settled receipts: a sixty-fourth.
const RECEIPTS_FLOOR_PART: usize = 64;
/// The most that settled receipts may take, so that they leave room for states: an eighth.
const RECEIPTS_MOST_PART: usize = 8;
/// The part that a list of changes takes, if the states are also kept on disk: a 256th.
const CHANGES_PART: usize = 256;
/// The smallest budget; with less there would be no room for any state. Models have less, so that they are full sooner.
const LEAST: usize = if cfg!(any(loom, shuttle)) { 1_024 } else { 8 * 1_024 };

/// How many bytes may be used, and how many are used for what.
#[derive(Debug)]
pub(super) struct Budget {
    total: usize,
    buckets: AtomicUsize,
    blocks: AtomicUsize,
    receipts: AtomicUsize,
}

impl Budget {
    pub(super) fn new(total: usize) -> Self {
        let [buckets, blocks, receipts] = [0, 0, 0].map(AtomicUsize::new);
        Self { total: total.max(LEAST), buckets, blocks, receipts }
    }

    pub(super) const fn total(&self) -> usize {
        self.total
    }

    pub(super) const fn sketch(&self) -> usize {
        self.total / SKETCH_PART
    }

    /// The most that buckets, or blocks, may ever use.
    pub(super) const fn most_of_one(&self) -> usize {
        self.for_states().saturating_sub(self.total / FLOOR_PART)
    }

    /// The most that settled receipts may ever use.
    pub(super) const fn most_of_receipts(&self) -> usize {
        self.total / RECEIPTS_MOST_PART
    }

    /// How many changes a list holds until they are collected: of tags or receipts, at most a 256th of the budget.
    pub(super) const fn most_changes(&self) -> usize {
        self.total / CHANGES_PART / 16
    }

    /// The most that buckets and blocks may use together while there are few receipts.
    const fn for_states(&self) -> usize {
        self.total.saturating_sub(self.sketch()).saturating_sub(self.total / RECEIPTS_FLOOR_PART)
    }

    pub(super) fn used(&self) -> usize {
        let kinds = [&self.buckets, &self.blocks, &self.receipts];
        kinds.iter().fold(0, |sum, kind| sum.saturating_add(kind.load(Ordering::Relaxed)))
    }

    /// Takes bytes for settled receipts, if there are enough.
    pub(super) fn grow_receipts(&self, bytes: usize) -> bool {
        let floor = self.total / FLOOR_PART;
        let states =
            [&self.buckets, &self.blocks].map(|kind| kind.load(Ordering::Relaxed).max(floor));
        let [buckets, blocks] = states;
        let grown = self.receipts.load(Ordering::Relaxed).saturating_add(bytes);
        let rest = self.total.saturating_sub(self.sketch());
        let fits = grown <= self.most_of_receipts()
            && grown.saturating_add(buckets).saturating_add(blocks) <= rest;
        if fits {
            self.receipts.store(grown, Ordering::Relaxed);
        }
        fits
    }

    /// Takes bytes for buckets, if there are enough.
    pub(super) fn grow_buckets(&self, bytes: usize) -> bool {
        self.grow(&self.buckets, &self.blocks, bytes)
    }

    /// Takes bytes for blocks, if there are enough.
    pub(super) fn grow_blocks(&self, bytes: usize) -> bool {
        self.grow(&self.blocks, &self.buckets, bytes)
    }

    /// Whether there are this many bytes left for buckets.
    pub(super) fn has_for_buckets(&self, bytes: usize) -> bool {
        self.grown(&self.buckets, &self.blocks, bytes).is_some()
    }

    /// Whether there are this many bytes left for blocks.
    pub(super) fn has_for_blocks(&self, bytes: usize) -> bool {
        self.grown(&self.blocks, &self.buckets, bytes).is_some()
    }

    /// Relaxed: the numbers guard no other memory. When two kinds grow at the same time, each may see the old number of the other.
    /// Each kind grows under its own lock, so the total is exceeded by one bucket or block at most.
    fn grow(&self, kind: &AtomicUsize, other: &AtomicUsize, bytes: usize) -> bool {
        let grown = self.grown(kind, other, bytes);
        grown.into_iter().for_each(|grown| kind.store(grown, Ordering::Relaxed));
        grown.is_some()
    }

    /// How many bytes a kind would use with `bytes` more; `None` when there are not enough.
    fn grown(&self, kind: &AtomicUsize, other: &AtomicUsize, bytes: usize) -> Option<usize> {
        let floor = self.total / FLOOR_PART;
        let receipts = self.receipts.load(Ordering::Relaxed);
        let more = receipts.saturating_sub(self.total / RECEIPTS_FLOOR_PART);
        let rest = self.for_states().saturating_sub(more);
        let others = other.load(Ordering::Relaxed).max(floor);
        let grown = kind.load(Ordering::Relaxed).saturating_add(bytes);
        (grown.saturating_add(others) <= rest).then_some(grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_takes_everything_and_together_they_stay_within_the_budget() {
        let budget = Budget::new(1 << 20);
        while budget.grow_buckets(128) {}
        assert_eq!(budget.buckets.load(Ordering::Relaxed), budget.most_of_one());
        while budget.grow_blocks(64) {}
        while budget.grow_receipts(64) {}
        assert_eq!(budget.used() + budget.sketch(), budget.total());
        assert!(!budget.grow_buckets(128));
    }

    #[test]
    fn receipts_leave_most_of_the_budget_to_states() {
        let budget = Budget::new(1 << 20);
        while budget.grow_receipts(128) {}
        assert_eq!(budget.used(), budget.most_of_receipts());
        while budget.grow_buckets(128) || budget.grow_blocks(64) {}
        assert_eq!(budget.used() + budget.sketch(), budget.total());
    }
}
