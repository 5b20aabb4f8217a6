//! One number of bytes for everything that grows with the keys.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What the sketch takes of the budget, once it is needed: a sixteenth.
const SKETCH_PART: usize = 16;
/// What buckets leave to blocks, and blocks to buckets: a thirty-second.
const FLOOR_PART: usize = 32;
/// What both leave to settled receipts: a sixty-fourth.
const RECEIPTS_FLOOR_PART: usize = 64;
/// What settled receipts may take at most, so that they leave room for states: an eighth.
const RECEIPTS_MOST_PART: usize = 8;
/// With less, nothing could be kept. Models are full sooner.
const LEAST: usize = if cfg!(any(loom, shuttle)) { 1_024 } else { 8 * 1_024 };

/// Bytes that may be used, and what uses them.
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

    /// What buckets and blocks may use together while there are few receipts.
    const fn for_states(&self) -> usize {
        self.total.saturating_sub(self.sketch()).saturating_sub(self.total / RECEIPTS_FLOOR_PART)
    }

    pub(super) fn used(&self) -> usize {
        let kinds = [&self.buckets, &self.blocks, &self.receipts];
        kinds.iter().fold(0, |sum, kind| sum.saturating_add(kind.load(Ordering::Relaxed)))
    }

    /// Takes so many bytes for settled receipts, if they are there.
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

    /// Takes so many bytes for buckets, if they are there.
    pub(super) fn grow_buckets(&self, bytes: usize) -> bool {
        self.grow(&self.buckets, &self.blocks, bytes)
    }

    /// Takes so many bytes for blocks, if they are there.
    pub(super) fn grow_blocks(&self, bytes: usize) -> bool {
        self.grow(&self.blocks, &self.buckets, bytes)
    }

    /// Whether there are so many bytes more for buckets.
    pub(super) fn has_for_buckets(&self, bytes: usize) -> bool {
        self.grown(&self.buckets, &self.blocks, bytes).is_some()
    }

    /// Whether there are so many bytes more for blocks.
    pub(super) fn has_for_blocks(&self, bytes: usize) -> bool {
        self.grown(&self.blocks, &self.buckets, bytes).is_some()
    }

    /// Relaxed: the numbers guard no other memory. Two kinds that grow at once may each see the other's old number;
    /// each kind grows under a lock of its own, so that passes the total by one bucket or block.
    fn grow(&self, kind: &AtomicUsize, other: &AtomicUsize, bytes: usize) -> bool {
        let grown = self.grown(kind, other, bytes);
        grown.into_iter().for_each(|grown| kind.store(grown, Ordering::Relaxed));
        grown.is_some()
    }

    /// What a kind would use with so many bytes more, if they are there.
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
    fn no_kind_takes_all_and_all_together_no_more() {
        let budget = Budget::new(1 << 20);
        while budget.grow_buckets(128) {}
        assert_eq!(budget.buckets.load(Ordering::Relaxed), budget.most_of_one());
        while budget.grow_blocks(64) {}
        while budget.grow_receipts(64) {}
        assert_eq!(budget.used() + budget.sketch(), budget.total());
        assert!(!budget.grow_buckets(128));
    }

    #[test]
    fn receipts_take_what_is_free_and_leave_most_of_it() {
        let budget = Budget::new(1 << 20);
        while budget.grow_receipts(128) {}
        assert_eq!(budget.used(), budget.most_of_receipts());
        while budget.grow_buckets(128) || budget.grow_blocks(64) {}
        assert_eq!(budget.used() + budget.sketch(), budget.total());
    }
}
