//! Which receipts were settled, within the store's budget. A receipt is remembered until it expires.
//!
//! A receipt is stored as 64 bits of its name and the second in which it ends: twelve bytes. Ten of them share a bucket of two
//! cache lines, and a receipt is in one of two buckets.
//!
//! ```text
//!   receipt ─┬─► bucket 12   tag until │ tag until │ … ten of them       the slot of an ended receipt is free
//!            └─► bucket 40   tag until │ tag until │ …
//! ```
//!
//! The table grows by one bucket at a time ([linear hashing](super::linear_hashing), as the table of states does), while the
//! budget has bytes for it. When both buckets of a receipt are full and the table cannot grow, the receipt is *not* settled;
//! the client can try again later. Settling it without remembering it would let it be settled twice.
//!
//! Of two receipts with the same 64 bits, the second would be refused. With a million receipts the odds of that are 1 in 37
//! million.

use super::budget::Budget;
use super::dirty::{ChangeList, Kept};
use super::linear_hashing::{parent, place};
use super::region::{Region, Zeroed};
use crate::store::{ReceiptId, Settled, Settlement};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tidegate_core::Timestamp;

/// Receipts in a bucket.
const SLOTS: usize = 10;
/// Bytes of the budget that a bucket takes.
const BUCKET_BYTES: usize = 128;
/// Another bucket is added when this many of the ten slots are taken, on average.
const TARGET_LOAD: usize = 6;
/// Buckets that are swept for ended receipts with each new receipt. So buckets are swept faster than they fill.
const SWEPT_PER_RECEIPT: usize = 2;
/// Buckets that are added together when a receipt has no room.
const GROWN_TOGETHER: usize = 8;
const NANOS: u64 = 1_000_000_000;

/// Tags, 0 for a free slot, and the seconds in which their receipts end. They are atomic only because a region is shared: all
/// accesses are under the lock of the owner.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct ReceiptBucket {
    tags: [AtomicU64; SLOTS],
    seconds: [AtomicU32; SLOTS],
}

#[expect(unsafe_code, reason = "the promise that `Region` needs")]
// SAFETY: a bucket is atomic integers: all zero is a value (no receipts), shared by threads, no drop.
unsafe impl Zeroed for ReceiptBucket {}

/// The receipts that were settled and could be presented again.
#[derive(Debug)]
pub(super) struct Receipts {
    buckets: Region<ReceiptBucket>,
    /// Buckets in use.
    count: usize,
    /// Slots in use.
    taken: usize,
    /// The bucket that is swept next for ended receipts.
    sweep_hand: usize,
    /// Whether the last receipt found no room.
    full: bool,
    /// Receipts that were settled since the last collection, if they are also kept on disk.
    fresh: Option<ChangeList<SettledReceipt>>,
}

/// A settled receipt as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettledReceipt {
    /// 64 bits of its name; never 0.
    pub(crate) tag: u64,
    /// The second by which it has ended.
    pub(crate) second: u32,
}

impl Receipts {
    pub(super) fn new(budget: &Budget, kept: Kept) -> Self {
        let buckets = Region::reserve(budget.most_of_receipts() / BUCKET_BYTES);
        let fresh = (kept == Kept::OnDisk).then(|| ChangeList::new(budget.most_changes()));
        Self { buckets, count: 0, taken: 0, sweep_hand: 0, full: false, fresh }
    }

    /// Marks a receipt as settled, unless it was settled before, its time is over, or there is no room to remember it.
    pub(super) fn settle(
        &mut self,
        settlement: &Settlement<'_>,
        now: Timestamp,
        budget: &Budget,
    ) -> Settled {
        if settlement.until <= now {
            return Settled::Late;
        }
        (0..SWEPT_PER_RECEIPT).for_each(|_| self.sweep_next_bucket(now));
        let tag = tag(settlement.id);
        if self.candidates(tag).into_iter().flatten().any(|bucket| bucket.has(tag)) {
            return Settled::Already;
        }
        if self.taken >= self.count.saturating_mul(TARGET_LOAD) {
            self.grow(budget);
        }
        let second = second(settlement.until);
        self.full = !self.insert(tag, second, now, budget);
        if self.full {
            return Settled::Full;
        }
        if let Some(fresh) = &mut self.fresh {
            fresh.push(SettledReceipt { tag, second });
        }
        Settled::Done
    }

    /// The receipts that were settled since the last collection; also whether some are missing.
    pub(super) fn take_fresh(&mut self) -> (Vec<SettledReceipt>, bool) {
        self.fresh.as_mut().map_or((vec![], false), ChangeList::take)
    }

    /// The receipts in a bucket; `None` after the last bucket.
    pub(super) fn bucket(&self, place: usize) -> Option<impl Iterator<Item = SettledReceipt>> {
        let bucket = self.buckets.get(place).filter(|_| place < self.count)?;
        let all = bucket.tags.iter().zip(&bucket.seconds);
        let all = all.map(|(tag, second)| (tag.load(Relaxed), second.load(Relaxed)));
        let receipts = all.filter(|(tag, _)| *tag != 0);
        Some(receipts.map(|(tag, second)| SettledReceipt { tag, second }))
    }

    /// Remembers a receipt that was settled before the store was opened, if there is room and it has not ended.
    pub(super) fn restore(&mut self, receipt: SettledReceipt, now: Timestamp, budget: &Budget) {
        let SettledReceipt { tag, second } = receipt;
        let ended = u64::from(second) <= now.as_nanos() / NANOS;
        let is_known = self.candidates(tag).into_iter().flatten().any(|bucket| bucket.has(tag));
        if tag == 0 || ended || is_known {
            return;
        }
        if self.taken >= self.count.saturating_mul(TARGET_LOAD) {
            self.grow(budget);
        }
        self.insert(tag, second, now, budget);
    }

    /// Whether the last receipt was refused because the store has no room to remember it.
    pub(super) const fn is_full(&self) -> bool {
        self.full
    }

    /// Remembers a receipt; returns whether there was room.
    fn insert(&mut self, tag: u64, second: u32, now: Timestamp, budget: &Budget) -> bool {
        loop {
            let cleared: usize =
                self.candidates(tag).into_iter().flatten().map(|bucket| bucket.clear(now)).sum();
            self.taken = self.taken.saturating_sub(cleared);
            if self.candidates(tag).into_iter().flatten().any(|bucket| bucket.put(tag, second)) {
                self.taken = self.taken.saturating_add(1);
                return true;
            }
            let before = self.count;
            (0..GROWN_TOGETHER).for_each(|_| self.grow(budget));
            if self.count == before {
                return false;
            }
        }
    }

    /// The two buckets that may hold a receipt.
    fn candidates(&self, tag: u64) -> [Option<&ReceiptBucket>; 2] {
        places(tag, self.count).map(|place| self.buckets.get(place).filter(|_| self.count > 0))
    }

    /// Removes ended receipts from the next bucket.
    fn sweep_next_bucket(&mut self, now: Timestamp) {
        self.sweep_hand = self.sweep_hand.saturating_add(1).checked_rem(self.count).unwrap_or(0);
        let cleared = self.buckets.get(self.sweep_hand).map_or(0, |bucket| bucket.clear(now));
        self.taken = self.taken.saturating_sub(cleared);
    }

    /// Splits a bucket off its parent (linear hashing), if the budget has the bytes for it.
    fn grow(&mut self, budget: &Budget) {
        let (Some(child), Some(old)) =
            (self.buckets.get(self.count), self.buckets.get(parent(self.count)))
        else {
            return;
        };
        if !budget.grow_receipts(BUCKET_BYTES) {
            return;
        }
        let grown = self.count.saturating_add(1);
        for (tag, second) in old.tags.iter().zip(&old.seconds) {
            let moved = tag.load(Relaxed);
            // The first bucket has no parent, and all its tags are 0.
            if moved != 0 && !places(moved, grown).contains(&parent(self.count)) {
                child.put(moved, second.load(Relaxed));
                tag.store(0, Relaxed);
            }
        }
        self.count = grown;
    }
}

impl ReceiptBucket {
    fn has(&self, tag: u64) -> bool {
        self.tags.iter().any(|other| other.load(Relaxed) == tag)
    }

    /// Puts a receipt into a free slot, if there is one.
    fn put(&self, tag: u64, second: u32) -> bool {
        let free = self.tags.iter().zip(&self.seconds).find(|(tag, _)| tag.load(Relaxed) == 0);
        free.into_iter().for_each(|(slot, end)| {
            slot.store(tag, Relaxed);
            end.store(second, Relaxed);
        });
        free.is_some()
    }

    /// Frees the slots of ended receipts; returns how many.
    fn clear(&self, now: Timestamp) -> usize {
        let now = now.as_nanos() / NANOS;
        let ended = self.tags.iter().zip(&self.seconds).filter(|(tag, second)| {
            tag.load(Relaxed) != 0 && u64::from(second.load(Relaxed)) <= now
        });
        ended.map(|(tag, _)| tag.store(0, Relaxed)).count()
    }
}

/// The 64 bits by which a receipt is known; never 0. Names of receipts are random.
fn tag(id: ReceiptId) -> u64 {
    let low = u64::try_from(id.0 & u128::from(u64::MAX)).unwrap_or(0);
    let high = u64::try_from(id.0 >> 64).unwrap_or(0);
    (low ^ high.rotate_left(32)).max(1)
}

/// The two buckets that may hold a receipt, in a table of `count` buckets.
fn places(tag: u64, count: usize) -> [usize; 2] {
    let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    [mixed >> 32, mixed & u64::from(u32::MAX)]
        .map(|half| place(usize::try_from(half).unwrap_or(0), count))
}

/// The second by which a receipt has certainly ended. The largest, in the year 2106, means for ever.
fn second(until: Timestamp) -> u32 {
    u32::try_from(until.as_nanos().div_ceil(NANOS)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settlement(id: u128, seconds: u64) -> Settlement<'static> {
        let until = Timestamp::from_nanos(seconds * NANOS);
        Settlement { id: ReceiptId(id.wrapping_mul(0x9e37_79b9_7f4a_7c15)), until, parts: &[] }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * NANOS)
    }

    /// 597,000 settled receipts took 72 MiB in addition to a budget of 1 MiB. They must stay within the budget. A receipt for
    /// which there is no room is not settled at all, so no receipt is settled twice.
    #[test]
    fn receipts_stay_within_the_budget_and_none_is_settled_twice() {
        let budget = Budget::new(1 << 20);
        let mut receipts = Receipts::new(&budget, Kept::InMemory);
        let mut settled = vec![];
        for id in 1..=600_000u128 {
            match receipts.settle(&settlement(id, 60), at(1), &budget) {
                Settled::Done => settled.push(id),
                Settled::Full => assert!(receipts.is_full()),
                other @ (Settled::Already | Settled::Late) => panic!("{id}: {other:?}"),
            }
        }
        assert!(budget.used() <= budget.total());
        assert!(settled.len() >= (1 << 20) / 8 / 16, "{} fit", settled.len());
        for id in settled {
            let again = receipts.settle(&settlement(id, 60), at(59), &budget);
            assert_eq!(again, Settled::Already, "{id}");
        }
        // When they have ended there is room for others, and memory for as many as before.
        let used = budget.used();
        let others = (1..=5_000u128).map(|id| settlement(1_000_000 + id, 120));
        assert!(
            others.into_iter().all(|one| receipts.settle(&one, at(61), &budget) == Settled::Done)
        );
        assert_eq!(budget.used(), used);
    }

    /// Receipts come and end at a constant rate. The size of the table depends on how many are remembered at a time, and not on
    /// how long that goes on.
    #[test]
    fn ended_receipts_make_room_for_new_ones() {
        let budget = Budget::new(16 << 20);
        let mut receipts = Receipts::new(&budget, Kept::InMemory);
        for id in 1..=300_000u64 {
            let now = id / 100;
            let one = settlement(u128::from(id), now + 10);
            assert_eq!(receipts.settle(&one, at(now), &budget), Settled::Done);
        }
        assert!(budget.used() < 64 << 10, "{} bytes for a thousand receipts", budget.used());
    }

    #[test]
    fn a_bucket_is_two_cache_lines() {
        assert_eq!(size_of::<ReceiptBucket>(), BUCKET_BYTES);
    }
}
