//! A bucket: seven states of one word each, and a lock, in two cache lines.
//!
//! ```text
//!   line 0   head: lock · elsewhere (7 bits) · uses (8 bits) · shapes 0–2      7 tags
//!   line 1   tail: shapes 3–6                                                  7 words
//! ```
//!
//! A *tag* is 64 bits of the state's name; 0 is a free slot. A *shape* is the number of the limit under which the
//! word was written. A word is the state itself or, when its slot is marked *elsewhere*, where the state is. A slot whose tag
//! is above all tags of states holds marks of states that are not there (`marks.rs`).
//!
//! Everything but the lock is written by its holder only, so it is all relaxed: the lock orders it. Who only reads may
//! do so without the lock ([`Bucket::read`]): what was read between two equal heads, neither of them locked, stood there
//! at one instant. A head changes with every use; that it should be the same again after a multiple of 256 uses, while
//! one reader reads seven words, and that meanwhile its slot was given away and given back, we leave to chance: whoever
//! writes looks again under the lock, so what could come of it is one refusal.

use super::region::Zeroed;
use crate::sync::{AtomicU64, fence, spin_loop, yield_now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// States in a bucket.
pub(super) const SLOTS: usize = 7;

/// Tags from here on are not those of states: their slots hold marks.
pub(super) const MARKS: u64 = 0xffff << 48;

/// Bits of the head.
const LOCK: u64 = 1;
const ELSEWHERE: u32 = 1;
const USES: u32 = 8;
const ONE_USE: u64 = 1 << USES;
const ALL_USES: u64 = 0xff << USES;
/// Shapes 0 to 2 begin here in the head, shapes 3 to 6 at 0 in the tail.
const SHAPE_BITS: u32 = 16;

/// A lock's holder does some arithmetic; whoever waits longer than this waits for a holder that does not run.
const SPINS: u32 = 128;

#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Bucket {
    head: AtomicU64,
    tags: [AtomicU64; SLOTS],
    tail: AtomicU64,
    words: [AtomicU64; SLOTS],
}

#[expect(unsafe_code, reason = "the promise that a region asks for")]
// SAFETY: a bucket is sixteen atomic integers: all zero is a value (no lock, no tags), shared by threads, no drop.
unsafe impl Zeroed for Bucket {}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) tag: u64,
    pub(super) shape: u16,
    /// The word is not the state but tells where it is.
    pub(super) elsewhere: bool,
    /// 0 is the empty state.
    pub(super) word: u64,
}

/// One of the slots of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(usize);

/// A bucket that nobody else reads or writes; unlocked when dropped.
#[derive(Debug)]
pub(super) struct Locked<'t> {
    bucket: &'t Bucket,
    /// As it will be when unlocked.
    head: u64,
}

impl Bucket {
    pub(super) fn lock(&self) -> Locked<'_> {
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

    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        let head = self.head.load(Relaxed);
        if head & LOCK == 0 { self.lock_with(head) } else { None }
    }

    /// Locks it if its head is this one, which is not locked.
    #[inline]
    fn lock_with(&self, head: u64) -> Option<Locked<'_>> {
        super::steps::count();
        // Acquire: what the last holder wrote is seen. Nobody changes a locked head but its holder.
        self.head.compare_exchange(head, head | LOCK, Acquire, Relaxed).ok()?;
        // Readers that see what is written from here on see the lock, too.
        fence(Release);
        Some(Locked { bucket: self, head })
    }

    /// Reads what is there of a state, without the lock.
    #[inline]
    pub(super) fn read(&self, tag: u64) -> Read {
        let head = self.head.load(Acquire);
        if head & LOCK != 0 {
            return Read::Busy;
        }
        // Before the tags: the second line is then on its way while they are compared.
        let tail = self.tail.load(Relaxed);
        let read = match self.find(tag) {
            Some(slot) => Read::Found(Seen {
                head,
                slot,
                entry: Entry {
                    tag,
                    shape: slot.shape_in(head, tail),
                    elsewhere: head >> slot.elsewhere() & 1 == 1,
                    word: slot.of(&self.words).load(Relaxed),
                },
            }),
            None => Read::Missing,
        };
        // All of that was read before the head is read again.
        fence(Acquire);
        if self.head.load(Relaxed) == head { read } else { Read::Busy }
    }

    /// All seven are compared, without a branch that nobody could foretell.
    fn find(&self, tag: u64) -> Option<Slot> {
        let same = (self.tags.iter().rev())
            .fold(0u32, |same, other| (same << 1) | u32::from(other.load(Relaxed) == tag));
        let slot = usize::try_from(same.trailing_zeros()).unwrap_or(SLOTS);
        (same != 0).then_some(Slot(slot))
    }

    /// Locks it, if it is as it was seen. `None` when somebody has it, or had it since.
    #[inline]
    pub(super) fn lock_as(&self, seen: &Seen) -> Option<Locked<'_>> {
        let locked = self.lock_with(seen.head)?;
        // Heads come round, so it is not enough that they are equal.
        (locked.get(seen.slot) == seen.entry).then_some(locked)
    }

    /// The slots that hold marks, their tags and words: exactly for the holder of the lock, a hint for others.
    pub(super) fn marks(&self) -> impl Iterator<Item = (Slot, u64, u64)> {
        let tags = (0..SLOTS).map(Slot).map(|slot| (slot, slot.of(&self.tags).load(Relaxed)));
        let marks = tags.filter(|(_, tag)| *tag >= MARKS);
        marks.map(|(slot, tag)| (slot, tag, slot.of(&self.words).load(Relaxed)))
    }

    /// Whether there seems to be a free slot.
    pub(super) fn seems_free(&self) -> bool {
        self.tags.iter().any(|tag| tag.load(Relaxed) == 0)
    }
}

/// A state as it was read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Of the bucket.
    head: u64,
    slot: Slot,
    pub(super) entry: Entry,
}

/// What a bucket was read to hold of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Found(Seen),
    Missing,
    /// Somebody had it locked, or changed it meanwhile.
    Busy,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Release: what this holder wrote is seen by the next. And the head changes, for those who read without lock.
        let uses = self.head.wrapping_add(ONE_USE) & ALL_USES;
        self.bucket.head.store((self.head & !ALL_USES) | uses, Release);
    }
}

impl<'t> Locked<'t> {
    pub(super) const fn bucket(&self) -> &'t Bucket {
        self.bucket
    }

    pub(super) fn find(&self, tag: u64) -> Option<Slot> {
        self.bucket.find(tag)
    }

    pub(super) fn free(&self) -> Option<Slot> {
        self.find(0)
    }

    /// Whether this is the 256th use since it last was.
    pub(super) fn is_due(&self) -> bool {
        self.head & ALL_USES == 0
    }

    pub(super) fn get(&self, slot: Slot) -> Entry {
        Entry {
            tag: slot.of(&self.bucket.tags).load(Relaxed),
            shape: self.shape(slot),
            elsewhere: self.head >> slot.elsewhere() & 1 == 1,
            word: slot.of(&self.bucket.words).load(Relaxed),
        }
    }

    pub(super) fn put(&mut self, slot: Slot, entry: Entry) {
        slot.of(&self.bucket.tags).store(entry.tag, Relaxed);
        slot.of(&self.bucket.words).store(entry.word, Relaxed);
        let mark = 1 << slot.elsewhere();
        self.head = if entry.elsewhere { self.head | mark } else { self.head & !mark };
        let (in_tail, shift) = slot.shape();
        let with = |word: u64| (word & !(0xffff << shift)) | (u64::from(entry.shape) << shift);
        if in_tail {
            self.bucket.tail.store(with(self.bucket.tail.load(Relaxed)), Relaxed);
        } else {
            self.head = with(self.head);
        }
    }

    /// Replaces the word of a slot, and nothing else.
    pub(super) fn set_word(&self, seen: &Seen, word: u64) {
        seen.slot.of(&self.bucket.words).store(word, Relaxed);
    }

    pub(super) fn clear(&mut self, slot: Slot) {
        self.put(slot, Entry { tag: 0, shape: 0, elsewhere: false, word: 0 });
    }

    /// The slots that hold states, and what they hold.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Slot, Entry)> + use<'_> {
        let all = (0..SLOTS).map(Slot).map(|slot| (slot, self.get(slot)));
        all.filter(|(_, entry)| entry.tag != 0 && entry.tag < MARKS)
    }

    fn shape(&self, slot: Slot) -> u16 {
        slot.shape_in(self.head, self.bucket.tail.load(Relaxed))
    }
}

impl Slot {
    #[expect(clippy::indexing_slicing, reason = "a slot is below the number of slots")]
    fn of(self, words: &[AtomicU64; SLOTS]) -> &AtomicU64 {
        &words[self.0]
    }

    fn number(self) -> u32 {
        u32::try_from(self.0).unwrap_or(0)
    }

    /// The bit of the head that marks it.
    fn elsewhere(self) -> u32 {
        self.number().saturating_add(ELSEWHERE)
    }

    fn shape_in(self, head: u64, tail: u64) -> u16 {
        let (in_tail, shift) = self.shape();
        let word = if in_tail { tail } else { head };
        u16::try_from(word >> shift & 0xffff).unwrap_or(0)
    }

    /// Whether its shape is in the tail, and at which bit.
    fn shape(self) -> (bool, u32) {
        let place = self.number().saturating_add(1);
        (place > 3, (place & 3).saturating_mul(SHAPE_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        (1..MARKS, any::<u16>(), any::<bool>(), any::<u64>())
            .prop_map(|(tag, shape, elsewhere, word)| Entry { tag, shape, elsewhere, word })
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
                    Read::Found(seen) => Some(seen),
                    Read::Missing | Read::Busy => None,
                };
                let found = read(entry.tag).map(|seen| seen.entry);
                prop_assert!(gone || first != Some(slot) || found == Some(*entry));
            }
        }
    }

    /// A bucket with a state in it, as it is seen.
    fn seen(bucket: &Bucket, entry: Entry) -> Seen {
        bucket.lock().put(Slot(3), entry);
        let Read::Found(seen) = bucket.read(entry.tag) else { panic!("it was put there") };
        seen
    }

    #[test]
    fn what_somebody_else_used_since_is_not_locked_as_seen() {
        let entry = Entry { tag: 7, shape: 5, elsewhere: false, word: 9 };
        let bucket = Bucket::default();
        let seen = seen(&bucket, entry);
        assert!(bucket.lock_as(&seen).is_some_and(|locked| locked.get(Slot(3)) == entry));
        assert!(bucket.lock_as(&seen).is_none(), "it was used");
    }

    /// After 256 uses a head is as it was, and what is in the bucket is not.
    #[test]
    fn a_head_that_came_round_is_not_believed() {
        let entry = Entry { tag: 7, shape: 5, elsewhere: false, word: 9 };
        let others = [
            Entry { tag: 8, ..entry },
            Entry { shape: 6, ..entry },
            Entry { elsewhere: true, ..entry },
            Entry { word: 10, ..entry },
        ];
        for other in others {
            let bucket = Bucket::default();
            let seen = seen(&bucket, entry);
            bucket.lock().put(Slot(3), other);
            (1..256).for_each(|_| drop(bucket.lock()));
            assert!(bucket.lock_as(&seen).is_none(), "{other:?}");
            assert!(bucket.try_lock().is_some(), "it is left unlocked");
        }
    }

    #[test]
    fn a_bucket_is_two_cache_lines() {
        #[cfg(not(any(loom, shuttle)))]
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (128, 128));
    }
}
