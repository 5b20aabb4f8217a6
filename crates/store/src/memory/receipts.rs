//! Which receipts are settled, until they can be settled no more, within the store's budget.
//!
//! A receipt is known by 64 bits of its name and the second in which it ends: twelve bytes. Ten of them share a bucket of two
//! cache lines, and a receipt is in one of two buckets.
//!
//! ```text
//!   receipt ─┬─► bucket 12   tag until │ tag until │ … ten of them       what has ended is a free slot
//!            └─► bucket 40   tag until │ tag until │ …
//! ```
//!
//! The table grows by one bucket at a time, by linear hashing as the table of states does, while the budget has bytes for it.
//! When both buckets of a receipt are full and the table cannot grow, the receipt is *not* settled: it can be tried again
//! later. Settling it without remembering it would let it be settled twice.
//!
//! Two receipts with the same 64 bits would be taken for one, and the second refused: with a million of them the odds of
//! that are 1 in 37 million.

use super::budget::Budget;
use super::region::{Region, Zeroed};
use super::table::{parent, place};
use crate::store::{ReceiptId, Settled, Settlement};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tidegate_core::Timestamp;

/// Receipts in a bucket.
const SLOTS: usize = 10;
/// What a bucket takes of the budget.
const BUCKET_BYTES: usize = 128;
/// So many slots of a bucket are taken, on average, before another bucket is added.
const FULL_ENOUGH: usize = 6;
/// Buckets that are looked at, with each receipt, for what has ended: faster than they are filled.
const LOOKED_AT: usize = 2;
/// Buckets that are added at once when a receipt has no room.
const GROWN_AT_ONCE: usize = 8;
const NANOS: u64 = 1_000_000_000;

/// Tags, 0 for a free slot, and the seconds in which their receipts end. Atomic only because a region is shared; all of
/// it is used under the lock of its owner.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Bucket {
    tags: [AtomicU64; SLOTS],
    seconds: [AtomicU32; SLOTS],
}

#[expect(unsafe_code, reason = "the promise that a region asks for")]
// SAFETY: a bucket is atomic integers: all zero is a value (no receipts), shared by threads, no drop.
unsafe impl Zeroed for Bucket {}

/// The receipts that were settled and could be presented again.
#[derive(Debug)]
pub(super) struct Receipts {
    buckets: Region<Bucket>,
    /// Buckets in use.
    count: usize,
    /// Slots that are taken.
    taken: usize,
    /// The bucket that is looked at next for what has ended.
    hand: usize,
    /// Whether the last receipt found no room.
    full: bool,
}

impl Receipts {
    pub(super) fn new(budget: &Budget) -> Self {
        let buckets = Region::reserve(budget.most_of_receipts() / BUCKET_BYTES);
        Self { buckets, count: 0, taken: 0, hand: 0, full: false }
    }

    /// Marks a receipt as settled, unless it was before, its time is over, or there is no room to remember it.
    pub(super) fn settle(
        &mut self,
        settlement: &Settlement<'_>,
        now: Timestamp,
        budget: &Budget,
    ) -> Settled {
        if settlement.until <= now {
            return Settled::Late;
        }
        (0..LOOKED_AT).for_each(|_| self.look_at_next(now));
        let tag = tag(settlement.id);
        if self.candidates(tag).into_iter().flatten().any(|bucket| bucket.has(tag)) {
            return Settled::Already;
        }
        if self.taken >= self.count.saturating_mul(FULL_ENOUGH) {
            self.grow(budget);
        }
        self.full = !self.insert(tag, second(settlement.until), now, budget);
        if self.full { Settled::Full } else { Settled::Done }
    }

    /// Whether receipts are refused because there is no room to remember them.
    pub(super) const fn is_full(&self) -> bool {
        self.full
    }

    /// Remembers a receipt; answers whether there was room.
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
            (0..GROWN_AT_ONCE).for_each(|_| self.grow(budget));
            if self.count == before {
                return false;
            }
        }
    }

    /// The two buckets in which a receipt may be.
    fn candidates(&self, tag: u64) -> [Option<&Bucket>; 2] {
        places(tag, self.count).map(|place| self.buckets.get(place).filter(|_| self.count > 0))
    }

    /// Forgets what has ended in the next bucket.
    fn look_at_next(&mut self, now: Timestamp) {
        self.hand = self.hand.saturating_add(1).checked_rem(self.count).unwrap_or(0);
        let cleared = self.buckets.get(self.hand).map_or(0, |bucket| bucket.clear(now));
        self.taken = self.taken.saturating_sub(cleared);
    }

    /// Adds a bucket, if the budget has the bytes for it.
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
            // Until there is a bucket, nothing is in one.
            if moved != 0 && !places(moved, grown).contains(&parent(self.count)) {
                child.put(moved, second.load(Relaxed));
                tag.store(0, Relaxed);
            }
        }
        self.count = grown;
    }
}

impl Bucket {
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

    /// Frees the slots of receipts that have ended; answers how many.
    fn clear(&self, now: Timestamp) -> usize {
        let now = now.as_nanos() / NANOS;
        let ended = self.tags.iter().zip(&self.seconds).filter(|(tag, second)| {
            tag.load(Relaxed) != 0 && u64::from(second.load(Relaxed)) <= now
        });
        ended.map(|(tag, _)| tag.store(0, Relaxed)).count()
    }
}

/// The bits by which a receipt is known; never 0. Names of receipts are random.
fn tag(id: ReceiptId) -> u64 {
    let low = u64::try_from(id.0 & u128::from(u64::MAX)).unwrap_or(0);
    let high = u64::try_from(id.0 >> 64).unwrap_or(0);
    (low ^ high.rotate_left(32)).max(1)
}

/// Where a receipt may be, among so many buckets.
fn places(tag: u64, count: usize) -> [usize; 2] {
    let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    [mixed >> 32, mixed & u64::from(u32::MAX)]
        .map(|half| place(usize::try_from(half).unwrap_or(0), count))
}

/// The second by which a receipt has certainly ended. The last there is, in the year 2106, stands for ever.
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

    /// 597,000 settled receipts took 72 MiB beside a budget of 1 MiB. They are within it now, and one for which there is no room
    /// is not settled at all: no receipt is settled twice.
    #[test]
    fn receipts_stay_within_the_budget_and_none_is_settled_twice() {
        let budget = Budget::new(1 << 20);
        let mut receipts = Receipts::new(&budget);
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

    /// Receipts come and go at one rate: the table is as large as what is remembered at a time, however long that goes on.
    #[test]
    fn what_has_ended_makes_room() {
        let budget = Budget::new(16 << 20);
        let mut receipts = Receipts::new(&budget);
        for id in 1..=300_000u64 {
            let now = id / 100;
            let one = settlement(u128::from(id), now + 10);
            assert_eq!(receipts.settle(&one, at(now), &budget), Settled::Done);
        }
        assert!(budget.used() < 64 << 10, "{} bytes for a thousand receipts", budget.used());
    }

    #[test]
    fn a_bucket_is_two_cache_lines() {
        assert_eq!(size_of::<Bucket>(), BUCKET_BYTES);
    }
}
