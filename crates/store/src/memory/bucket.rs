//! A bucket: seven states of one word each, and a lock, in two cache lines.
//!
//! ```text
//!   line 0   head: lock · in blocks (7 bits) · version (8 bits) · limit numbers 0–2      7 tags
//!   line 1   tail: limit numbers 3–6                                                     7 words
//! ```
//!
//! A *tag* is 64 bits of the state's name (`tag.rs`); a slot with the tag 0 is free. A *limit number* says under which limit the word was
//! written (`limit_numbers.rs`). The word is the state itself. Where the slot is marked *in blocks*, the state is larger and
//! the word says where it is (`blocks.rs`). A slot with a tag from [`FIRST_PAGE_TAG`] on holds no state but a page of a
//! Bloom filter (`bloom.rs`).
//!
//! **The head is a lock and a version: a seqlock.** Only the holder of the lock writes. All its accesses are relaxed, because
//! the lock orders them. Other threads read without the lock, optimistically ([`Bucket::read`]):
//!
//! ```text
//!   1  read the head; if it is locked, try again
//!   2  read the tags and words
//!   3  read the head again; if it changed, a writer may have been here: try again
//! ```
//!
//! What was read between two equal unlocked heads was in the bucket at one instant.
//!
//! The version has 8 bits, so it repeats after 256 uses. A reader is deceived only if the bucket is used a multiple of 256 times
//! while the reader reads seven words, and if its slot was given to another state and back meanwhile. We accept that risk: a
//! thread that wants to write compares the entry again under the lock ([`Bucket::lock_if_unchanged`]), so the worst result is
//! one wrong refusal.

use super::dirty::DirtyBits;
use super::region::Zeroed;
use crate::sync::{AtomicU64, fence, spin_loop, yield_now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// States in a bucket.
pub(super) const SLOTS: usize = 7;

/// The slots of a bucket.
pub(super) const ALL_SLOTS: [Slot; SLOTS] =
    [Slot(0), Slot(1), Slot(2), Slot(3), Slot(4), Slot(5), Slot(6)];

/// Tags from here on are not tags of states: their slots hold pages of a Bloom filter.
pub(super) const FIRST_PAGE_TAG: u64 = 0xffff << 48;

/// Bits of the head.
const LOCK: u64 = 1;
const IN_BLOCKS: u32 = 1;
const VERSION: u32 = 8;
const ONE_VERSION: u64 = 1 << VERSION;
const VERSION_MASK: u64 = 0xff << VERSION;
/// Numbers 0 to 2 follow the version in the head, numbers 3 to 6 fill the tail.
const NUMBER_BITS: u32 = 16;

/// The holder of a lock only does some arithmetic. If the lock is still held after this many spins, the system has put its
/// holder aside; then this thread yields.
const SPINS: u32 = 128;

#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Bucket {
    head: AtomicU64,
    tags: [AtomicU64; SLOTS],
    tail: AtomicU64,
    words: [AtomicU64; SLOTS],
}

#[expect(unsafe_code, reason = "the promise that `Region` needs")]
// SAFETY: a bucket is sixteen atomic integers: all zero is a value (no lock, no tags), shared by threads, no drop.
unsafe impl Zeroed for Bucket {}

/// The content of a slot that holds a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) tag: u64,
    pub(super) limit_number: u16,
    /// The state is in blocks; the word says which.
    pub(super) in_blocks: bool,
    /// 0 if the state is empty: nothing of it is in use.
    pub(super) word: u64,
}

/// One of the slots of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(usize);

/// A bucket that this thread has locked; unlocked when dropped.
#[derive(Debug)]
pub(super) struct LockedBucket<'t> {
    bucket: &'t Bucket,
    /// The head as it will be when unlocked, with the old version.
    head: u64,
    /// Where changes of its slots are noted, if the states are also kept on disk.
    dirty: Option<&'t DirtyBits>,
}

impl Bucket {
    pub(super) fn lock(&self) -> LockedBucket<'_> {
        let mut spins = 0u32;
        loop {
            if let Some(locked) = self.try_lock() {
                return locked;
            }
            if spins < SPINS {
                spins = spins.saturating_add(1);
                spin_loop();
            } else {
                yield_now();
            }
        }
    }

    pub(super) fn try_lock(&self) -> Option<LockedBucket<'_>> {
        let head = self.head.load(Relaxed);
        if head & LOCK == 0 { self.try_lock_from(head) } else { None }
    }

    /// Locks the bucket if its head still is `head`, which is not locked.
    #[inline]
    fn try_lock_from(&self, head: u64) -> Option<LockedBucket<'_>> {
        super::steps::count();
        // Acquire: this thread sees what the last holder wrote. Only its holder changes a locked head.
        self.head.compare_exchange(head, head | LOCK, Acquire, Relaxed).ok()?;
        // Release: a reader that sees a write from here on also sees the lock.
        fence(Release);
        Some(LockedBucket { bucket: self, head, dirty: None })
    }

    /// Reads the entry of a state without the lock: an optimistic read.
    #[inline]
    pub(super) fn read(&self, tag: u64) -> Read {
        let head = self.head.load(Acquire);
        if head & LOCK != 0 {
            return Read::Busy;
        }
        // Before the tags: the second cache line is then fetched while they are compared.
        let tail = self.tail.load(Relaxed);
        let read = match self.find(tag) {
            Some(slot) => {
                let word = slot.of(&self.words).load(Relaxed);
                Read::Found(EntrySnapshot { head, tail, slot, tag, word })
            }
            None => Read::Missing,
        };
        // Acquire: the head is read again after everything above.
        fence(Acquire);
        if self.head.load(Relaxed) == head { read } else { Read::Busy }
    }

    /// Compares all seven tags without a branch, which the processor could not predict.
    #[inline]
    fn find(&self, tag: u64) -> Option<Slot> {
        let slots = (0..SLOTS).rev().zip(self.tags.iter().rev());
        let found = slots.fold(
            SLOTS,
            |found, (slot, other)| {
                if other.load(Relaxed) == tag { slot } else { found }
            },
        );
        (found < SLOTS).then_some(Slot(found))
    }

    /// Locks the bucket if it still is as the snapshot says. `None` when another thread has it locked, or had it since.
    #[inline]
    pub(super) fn lock_if_unchanged(&self, snapshot: &EntrySnapshot) -> Option<LockedBucket<'_>> {
        let locked = self.try_lock_from(snapshot.head)?;
        // Versions repeat, so equal heads are not enough. The head has the other half of what is known of the slot.
        let EntrySnapshot { slot, tag, tail, word, .. } = *snapshot;
        let is_same = slot.of(&self.tags).load(Relaxed) == tag
            && slot.of(&self.words).load(Relaxed) == word
            && self.tail.load(Relaxed) == tail;
        is_same.then_some(locked)
    }

    /// Reads slots without the lock: an optimistic read. Slots without an entry are left out. `false`, and nothing is read, when
    /// another thread has the bucket locked or changed it meanwhile, or when one of the slots has a page or a state in blocks.
    pub(super) fn read_plain(&self, slots: u8, entries: &mut Vec<Entry>) -> bool {
        let head = self.head.load(Acquire);
        if head & LOCK != 0 {
            return false;
        }
        let tail = self.tail.load(Relaxed);
        let before = entries.len();
        let mut is_plain = true;
        for slot in Slot::of_bits(slots) {
            let tag = slot.of(&self.tags).load(Relaxed);
            let in_blocks = head & slot.in_blocks_bit() != 0;
            is_plain &= tag < FIRST_PAGE_TAG && !in_blocks;
            let limit_number = slot.limit_number_in(head, tail);
            let word = slot.of(&self.words).load(Relaxed);
            if tag != 0 {
                entries.push(Entry { tag, limit_number, in_blocks, word });
            }
        }
        // Acquire: the head is read again after everything above.
        fence(Acquire);
        let is_read = is_plain && self.head.load(Relaxed) == head;
        if !is_read {
            entries.truncate(before);
        }
        is_read
    }

    /// The slots that hold pages of a Bloom filter, with their tags and words. Exact for the holder of the lock, a hint for
    /// other threads.
    pub(super) fn pages(&self) -> impl Iterator<Item = (Slot, u64, u64)> {
        let tags = (0..SLOTS).map(Slot).map(|slot| (slot, slot.of(&self.tags).load(Relaxed)));
        let pages = tags.filter(|(_, tag)| *tag >= FIRST_PAGE_TAG);
        pages.map(|(slot, tag)| (slot, tag, slot.of(&self.words).load(Relaxed)))
    }

    /// Whether there seems to be a free slot: a hint, read without the lock.
    pub(super) fn seems_free(&self) -> bool {
        self.tags.iter().any(|tag| tag.load(Relaxed) == 0)
    }
}

/// An entry as it was read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntrySnapshot {
    /// The head and the tail of the bucket at that instant.
    head: u64,
    tail: u64,
    slot: Slot,
    tag: u64,
    pub(super) word: u64,
}

impl EntrySnapshot {
    /// The limit number and the other parts of the entry, which not every reader needs.
    #[inline]
    pub(super) fn entry(&self) -> Entry {
        let Self { head, tail, slot, tag, word } = *self;
        let limit_number = slot.limit_number_in(head, tail);
        Entry { tag, limit_number, in_blocks: head & slot.in_blocks_bit() != 0, word }
    }
}

/// What an optimistic read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Found(EntrySnapshot),
    Missing,
    /// Another thread had the bucket locked, or changed it during the read: try again.
    Busy,
}

impl Drop for LockedBucket<'_> {
    fn drop(&mut self) {
        // Release: the next holder sees what this one wrote. The new version tells optimistic readers that the bucket was used.
        let version = self.head.wrapping_add(ONE_VERSION) & VERSION_MASK;
        self.bucket.head.store((self.head & !VERSION_MASK) | version, Release);
    }
}

impl<'t> LockedBucket<'t> {
    pub(super) const fn bucket(&self) -> &'t Bucket {
        self.bucket
    }

    /// Notes changes of this bucket in these dirty bits.
    #[inline]
    pub(super) const fn noting(mut self, dirty: Option<&'t DirtyBits>) -> Self {
        self.dirty = dirty;
        self
    }

    /// Whether a slot changed since it was last collected.
    pub(super) fn is_dirty(&self, slot: Slot) -> bool {
        self.dirty.is_some_and(|dirty| dirty.has(slot.bit()))
    }

    /// Notes that a slot was written.
    #[inline]
    fn note(&self, slot: Slot) {
        if let Some(dirty) = self.dirty {
            dirty.set(slot.bit());
        }
    }

    pub(super) fn find(&self, tag: u64) -> Option<Slot> {
        self.bucket.find(tag)
    }

    pub(super) fn free(&self) -> Option<Slot> {
        self.find(0)
    }

    /// Whether a sweep is due: at every 256th use of the bucket.
    pub(super) fn is_sweep_due(&self) -> bool {
        self.head & VERSION_MASK == 0
    }

    pub(super) fn get(&self, slot: Slot) -> Entry {
        Entry {
            tag: slot.of(&self.bucket.tags).load(Relaxed),
            limit_number: self.limit_number(slot),
            in_blocks: self.head & slot.in_blocks_bit() != 0,
            word: slot.of(&self.bucket.words).load(Relaxed),
        }
    }

    pub(super) fn put(&mut self, slot: Slot, entry: Entry) {
        slot.of(&self.bucket.tags).store(entry.tag, Relaxed);
        slot.of(&self.bucket.words).store(entry.word, Relaxed);
        let bit = slot.in_blocks_bit();
        self.head = if entry.in_blocks { self.head | bit } else { self.head & !bit };
        let (in_tail, shift) = slot.limit_number_place();
        let with =
            |word: u64| (word & !(0xffff << shift)) | (u64::from(entry.limit_number) << shift);
        if in_tail {
            self.bucket.tail.store(with(self.bucket.tail.load(Relaxed)), Relaxed);
        } else {
            self.head = with(self.head);
        }
        self.note(slot);
    }

    /// Replaces the word of a slot, and nothing else.
    pub(super) fn set_word(&self, snapshot: &EntrySnapshot, word: u64) {
        snapshot.slot.of(&self.bucket.words).store(word, Relaxed);
        self.note(snapshot.slot);
    }

    pub(super) fn clear(&mut self, slot: Slot) {
        self.put(slot, Entry { tag: 0, limit_number: 0, in_blocks: false, word: 0 });
    }

    /// The slots that hold states, and what they hold.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Slot, Entry)> + use<'_> {
        let all = (0..SLOTS).map(Slot).map(|slot| (slot, self.get(slot)));
        all.filter(|(_, entry)| entry.tag != 0 && entry.tag < FIRST_PAGE_TAG)
    }

    fn limit_number(&self, slot: Slot) -> u16 {
        slot.limit_number_in(self.head, self.bucket.tail.load(Relaxed))
    }
}

impl Slot {
    /// The slots whose bits are set. It looks at no other slot: most buckets have one that changed.
    fn of_bits(bits: u8) -> impl Iterator<Item = Self> {
        let mut left = usize::from(bits) & ((1 << SLOTS) - 1);
        std::iter::from_fn(move || {
            let slot = usize::try_from(left.trailing_zeros()).ok().filter(|slot| *slot < SLOTS)?;
            left &= left.wrapping_sub(1);
            Some(Self(slot))
        })
    }

    #[expect(clippy::indexing_slicing, reason = "a slot is below the number of slots")]
    fn of(self, words: &[AtomicU64; SLOTS]) -> &AtomicU64 {
        &words[self.0]
    }

    /// Its bit in the dirty bits of the bucket.
    pub(super) const fn bit(self) -> u8 {
        1 << self.0
    }

    /// The bit of the head that says whether its state is in blocks.
    const fn in_blocks_bit(self) -> u64 {
        1 << IN_BLOCKS << self.0
    }

    fn limit_number_in(self, head: u64, tail: u64) -> u16 {
        let (in_tail, shift) = self.limit_number_place();
        let word = if in_tail { tail } else { head };
        u16::try_from(word >> shift & 0xffff).unwrap_or(0)
    }

    /// Whether its limit number is in the tail, and at which bit.
    fn limit_number_place(self) -> (bool, u32) {
        let place = self.0.wrapping_add(1);
        (place > 3, u32::try_from(place & 3).unwrap_or(0).wrapping_mul(NUMBER_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        (1..FIRST_PAGE_TAG, any::<u16>(), any::<bool>(), any::<u64>()).prop_map(
            |(tag, limit_number, in_blocks, word)| Entry { tag, limit_number, in_blocks, word },
        )
    }

    proptest! {
        #[test]
        fn slots_do_not_disturb_each_other(entries in prop::collection::vec(entry(), SLOTS), again in entry(), at in 0..SLOTS, uses in 0usize..300) {
            let bucket = Bucket::default();
            let mut locked = bucket.lock();
            let mut expected = entries.clone();
            for (slot, entry) in entries.iter().enumerate() {
                locked.put(Slot(slot), *entry);
            }
            prop_assert_eq!(locked.free(), None);
            for _ in 0..uses {
                drop(locked);
                locked = bucket.lock();
            }
            locked.put(Slot(at), again);
            expected[at] = again;
            drop(locked);
            let mut locked = bucket.lock();
            prop_assert!(bucket.try_lock().is_none());
            prop_assert_eq!(bucket.read(again.tag), Read::Busy);
            let found: Vec<Entry> = locked.entries().map(|(_, entry)| entry).collect();
            prop_assert_eq!(&found, &expected);
            locked.clear(Slot(at));
            prop_assert_eq!(locked.free(), Some(Slot(at)));
            prop_assert_eq!(locked.entries().count(), SLOTS - 1);
            drop(locked);
            for (slot, entry) in expected.iter().enumerate().filter(|(slot, _)| *slot != at) {
                let first = expected.iter().position(|other| other.tag == entry.tag);
                let gone = first == Some(at);
                let read = |tag| match bucket.read(tag) {
                    Read::Found(snapshot) => Some(snapshot),
                    Read::Missing | Read::Busy => None,
                };
                let found = read(entry.tag).map(|snapshot| snapshot.entry());
                prop_assert!(gone || first != Some(slot) || found == Some(*entry));
            }
        }
    }

    /// Puts a state into a bucket and reads it.
    fn snapshot(bucket: &Bucket, entry: Entry) -> EntrySnapshot {
        bucket.lock().put(Slot(3), entry);
        let Read::Found(snapshot) = bucket.read(entry.tag) else { panic!("it was put there") };
        snapshot
    }

    #[test]
    fn a_bucket_that_was_used_since_the_read_is_not_locked() {
        let entry = Entry { tag: 7, limit_number: 5, in_blocks: false, word: 9 };
        let bucket = Bucket::default();
        let snapshot = snapshot(&bucket, entry);
        assert!(
            bucket.lock_if_unchanged(&snapshot).is_some_and(|locked| locked.get(Slot(3)) == entry)
        );
        assert!(bucket.lock_if_unchanged(&snapshot).is_none(), "the bucket was used");
    }

    /// After 256 uses the version repeats, while the entry is another one.
    #[test]
    fn a_version_that_repeats_does_not_hide_a_changed_entry() {
        let entry = Entry { tag: 7, limit_number: 5, in_blocks: false, word: 9 };
        let others = [
            Entry { tag: 8, ..entry },
            Entry { limit_number: 6, ..entry },
            Entry { in_blocks: true, ..entry },
            Entry { word: 10, ..entry },
        ];
        for other in others {
            let bucket = Bucket::default();
            let snapshot = snapshot(&bucket, entry);
            bucket.lock().put(Slot(3), other);
            (1..256).for_each(|_| drop(bucket.lock()));
            assert!(bucket.lock_if_unchanged(&snapshot).is_none(), "{other:?}");
            assert!(bucket.try_lock().is_some(), "the bucket is left unlocked");
        }
    }

    #[test]
    fn a_bucket_is_two_cache_lines() {
        #[cfg(not(any(loom, shuttle)))]
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (128, 128));
    }
}
