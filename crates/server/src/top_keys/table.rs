//! Space-Saving (Metwally, Agrawal and El Abbadi, 2005) in buckets: counts the heaviest of many keys in a fixed number of slots.
//!
//! ```text
//!   key ──► fingerprint ──► its bucket of eight slots ─┬─ it has a slot:   count += weight
//!                                                      └─ it has none:     it replaces the key with the least count, and
//!                                                                          inherits that count as its error
//! ```
//!
//! The count of a key that has a slot is never too low, and too high by its error at most, unless another key has the same fingerprint
//! of 32 bits: those two are counted as one. A key whose count is above that of the
//! least slot of its bucket has a slot. The original algorithm keeps all slots in one sorted list. Eight slots in two cache lines
//! take a tenth of its time, and their bucket's share of the requests takes the place of all requests in its bounds.
//!
//! Slots have fingerprints and no names, because most keys of a flood are seen once. A key gets its name when the part of its count
//! that is certain reaches a threshold, which rises when there are too many names. So a flood of one-time keys costs no more than a
//! few comparisons for each request.
//!
//! A table has one writer, its worker, so counting needs no read-modify-write instruction. Other threads may read it at any time.
//! A slot that is replaced while it is read may show the fingerprint of one key and the count of the other; these two counts differ
//! by one request.

use super::list::{RankedKey, TopList};
use crate::shown_key::ShownKey;
use std::array;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The counts of one rule on one worker in one half.
pub(super) struct TopTable {
    buckets: Box<[Bucket]>,
    /// The half in which it counts; see [`super::Halves`].
    pub(super) half: u64,
    /// A key gets a name when its certain count reaches this.
    threshold: AtomicU64,
    /// How many keys were replaced by others.
    replaced: AtomicU64,
    /// The table is crowded when this many keys were replaced.
    crowded_at: AtomicU64,
    /// Locked when a key gets its name and when the table is read.
    names: Mutex<Names>,
}

/// Eight slots. Tags and errors share a cache line, which is all that a miss of the tags reads; the counts are in the next.
#[repr(align(128))]
struct Bucket {
    /// Fingerprints; 0 for an empty slot.
    tags: [AtomicU32; SLOTS],
    errors: [AtomicU32; SLOTS],
    /// Counts, with [`NAMED`] set if the key has a name.
    counts: [AtomicU64; SLOTS],
}

/// The names of keys, by fingerprint.
#[derive(Default)]
struct Names {
    keys: HashMap<u32, KeyLabel>,
    bytes: usize,
}

/// What identifies a key, and how it is shown.
pub(super) struct KeyLabel {
    /// A keyed hash of its values, the same on every worker and node.
    pub(super) id: u64,
    pub(super) key: Option<ShownKey>,
}

/// What is left to do after a request was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Done,
    /// The key has no name, and should get one.
    Unnamed,
    /// Many keys are replaced: the table should grow.
    Crowded,
    /// Nothing was counted: the key would replace another one in a small table, which should grow instead.
    Full,
}

pub(super) const SLOTS: usize = 8;
/// Buckets of a new table.
pub(super) const FIRST_BUCKETS: usize = 8;
/// A table with fewer buckets than this grows before it replaces a key, so that the counts of a few dozen keys are exact. A table
/// of this size has 16 KiB.
const LOSSLESS_BUCKETS: usize = 128;
/// A table of 2,048 buckets is 256 KiB, so that the tables of the busiest rule stay in the cache of a core.
pub(super) const MOST_BUCKETS: usize = 2_048;
/// Bytes of a table apart from its buckets.
const TABLE_BYTES: usize = size_of::<TopTable>();
const BUCKET_BYTES: usize = size_of::<Bucket>();
/// Names in a table. Half of them remain when there are too many; no list is longer than that.
const MOST_NAMES: usize = 256;
const KEPT_NAMES: usize = MOST_NAMES / 2;
/// Bytes of an entry of a map and of the allocations of a label, in addition to its texts.
const LABEL_BYTES: usize = 96;
const PAIR_BYTES: usize = 80;
const NAMED: u64 = 1 << 63;
/// The largest count: with four more bits it fits a word. It is not reached in ten minutes, unless one request costs that much.
const MOST: u64 = 1 << 59;

// === impl TopTable ===

impl TopTable {
    pub(super) fn new(half: u64, buckets: usize) -> Self {
        Self {
            buckets: (0..buckets.next_power_of_two()).map(|_| Bucket::default()).collect(),
            half,
            threshold: AtomicU64::new(1),
            replaced: AtomicU64::new(0),
            crowded_at: AtomicU64::new(crowded_at(buckets)),
            names: Mutex::default(),
        }
    }

    /// The memory of a table with this many buckets and without names.
    pub(super) const fn bytes_of(buckets: usize) -> usize {
        BUCKET_BYTES.saturating_mul(buckets).saturating_add(TABLE_BYTES)
    }

    pub(super) fn bytes(&self) -> usize {
        Self::bytes_of(self.buckets.len()).saturating_add(self.names().bytes)
    }

    pub(super) fn name_bytes(&self) -> usize {
        self.names().bytes
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Counts a request of the key with this fingerprint.
    #[inline]
    pub(super) fn count(&self, print: u32, weight: u64) -> Counted {
        let print = print.max(1);
        let Some(bucket) = self.bucket(print) else { return Counted::Done };
        match bucket.find(print) {
            Some(slot) if slot.add(weight) >= self.threshold.load(Ordering::Relaxed) => {
                Counted::Unnamed
            }
            Some(_) => Counted::Done,
            None => self.count_new(bucket, print, weight),
        }
    }

    /// Counts a request of a key that has no slot: it takes the slot with the least count.
    fn count_new(&self, bucket: &Bucket, print: u32, weight: u64) -> Counted {
        let Some(slot) = bucket.least() else { return Counted::Done };
        let replaces = slot.tag.load(Ordering::Relaxed) != 0;
        let may_grow = self.crowded_at.load(Ordering::Relaxed) != 0;
        if replaces && may_grow && self.buckets.len() < LOSSLESS_BUCKETS {
            return Counted::Full;
        }
        slot.replace(print, weight);
        if replaces {
            let count = self.replaced.load(Ordering::Relaxed).wrapping_add(1);
            self.replaced.store(count, Ordering::Relaxed);
            if count == self.crowded_at.load(Ordering::Relaxed) {
                return Counted::Crowded;
            }
        }
        let is_certain = weight >= self.threshold.load(Ordering::Relaxed);
        if is_certain { Counted::Unnamed } else { Counted::Done }
    }

    /// Gives a key its name. If the names need more than `room` bytes, those of the lightest keys are dropped.
    pub(super) fn name(&self, print: u32, label: KeyLabel, room: usize) {
        let (print, bytes) = (print.max(1), label.bytes());
        let mut names = self.names();
        if names.keys.len() >= MOST_NAMES || names.bytes.saturating_add(bytes) > room {
            self.drop_names(&mut names);
        }
        if names.bytes.saturating_add(bytes) > room {
            return;
        }
        // The threshold may have risen above this key.
        if let Some(slot) = self.slot_of(print).filter(|slot| slot.certain() >= self.threshold()) {
            slot.set_named(true);
            names.insert(print, label);
        }
    }

    /// Drops the names of the lighter half, and of keys that have no slot any more. The threshold rises above the heaviest of them
    /// by an eighth, so that they do not come back at once.
    fn drop_names(&self, names: &mut Names) {
        let weigh = |print: &u32| (self.slot_of(*print).map_or(0, TopSlot::certain), *print);
        let mut ranked: Vec<(u64, u32)> = names.keys.keys().map(weigh).collect();
        ranked.sort_unstable_by_key(|(certain, print)| Reverse((*certain, *print)));
        let kept = KEPT_NAMES.min(ranked.len() / 2);
        let dropped = ranked.get(kept..).unwrap_or_default();
        let heaviest = dropped.first().map_or(0, |(certain, _)| *certain);
        let above = heaviest.saturating_add(heaviest / 8).saturating_add(1);
        self.threshold.store(above.max(self.threshold()), Ordering::Relaxed);
        for (_, print) in dropped {
            names.remove(*print);
            if let Some(slot) = self.slot_of(*print) {
                slot.set_named(false);
            }
        }
    }

    /// A table with more buckets and the counts of this one. This one keeps its slots, and loses its names.
    pub(super) fn grown(&self, buckets: usize) -> Self {
        let grown = Self::new(self.half, buckets.max(self.buckets.len()));
        let replaced = self.replaced.load(Ordering::Relaxed);
        for (at, bucket) in grown.buckets.iter().enumerate() {
            // The bucket that had the keys of this one: the lower bits of fingerprints select it.
            let from = self.buckets.get(at & self.buckets.len().saturating_sub(1));
            from.into_iter().for_each(|from| {
                // If no key was ever replaced, a key without a slot was not counted before.
                let least = if replaced == 0 { 0 } else { from.least().map_or(0, TopSlot::count) };
                bucket.take_from(from, (at, grown.buckets.len()), least);
            });
        }
        let copy = |to: &AtomicU64, from: &AtomicU64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        copy(&grown.threshold, &self.threshold);
        copy(&grown.replaced, &self.replaced);
        let more = crowded_at(grown.buckets.len());
        grown.crowded_at.store(replaced.saturating_add(more), Ordering::Relaxed);
        *grown.names() = std::mem::take(&mut *self.names());
        grown
    }

    /// There is no room for a larger table, so it is not asked for again.
    pub(super) fn stay(&self) {
        self.crowded_at.store(0, Ordering::Relaxed);
    }

    /// The keys that have names, and the most that any other key can have.
    pub(super) fn list(&self) -> TopList {
        let names = self.names();
        let keys = names.keys.iter().filter_map(|(print, label)| {
            let slot = self.slot_of(*print)?;
            let (count, error) = (slot.count(), slot.error());
            Some(RankedKey { id: label.id, key: label.key.clone(), count, error })
        });
        let mut list = TopList { keys: keys.collect(), rest: self.rest() };
        list.sort();
        list
    }

    /// The most that a key without a name can have. Nothing, if all keys have one.
    fn rest(&self) -> u64 {
        let without_slot = match self.replaced.load(Ordering::Relaxed) {
            0 => 0,
            _ => self
                .buckets
                .iter()
                .filter_map(|bucket| Some(bucket.least()?.count()))
                .max()
                .unwrap_or(0),
        };
        without_slot.saturating_add(self.threshold().saturating_sub(1))
    }

    fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Relaxed)
    }

    fn bucket(&self, print: u32) -> Option<&Bucket> {
        let mask = self.buckets.len().saturating_sub(1);
        self.buckets.get(usize::try_from(print).unwrap_or(0) & mask)
    }

    fn slot_of(&self, print: u32) -> Option<TopSlot<'_>> {
        let bucket = self.bucket(print)?;
        bucket.find(print)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A table grows when twice as many keys were replaced as it has slots.
fn crowded_at(buckets: usize) -> u64 {
    u64::try_from(buckets.saturating_mul(2 * SLOTS)).unwrap_or(u64::MAX)
}

// === impl Bucket ===

/// One slot of a bucket.
#[derive(Clone, Copy)]
struct TopSlot<'b> {
    tag: &'b AtomicU32,
    error: &'b AtomicU32,
    count: &'b AtomicU64,
}

impl Bucket {
    fn slot(&self, at: usize) -> Option<TopSlot<'_>> {
        let (tag, error) = (self.tags.get(at)?, self.errors.get(at)?);
        Some(TopSlot { tag, error, count: self.counts.get(at)? })
    }

    /// Compares all tags without a branch, which the processor could not predict.
    #[inline]
    fn find(&self, print: u32) -> Option<TopSlot<'_>> {
        let slots = (0..SLOTS).rev().zip(self.tags.iter().rev());
        let is_at = |found, (at, tag): (usize, &AtomicU32)| {
            if tag.load(Ordering::Relaxed) == print { at } else { found }
        };
        self.slot(slots.fold(SLOTS, is_at))
    }

    /// The slot with the least count; an empty one before others with the same count. Also without a branch.
    fn least(&self) -> Option<TopSlot<'_>> {
        let ranks = self.counts.iter().zip(&self.tags).zip(0_u64..).map(|((count, tag), at)| {
            let count = count.load(Ordering::Relaxed) & !NAMED;
            count << 4 | u64::from(tag.load(Ordering::Relaxed) != 0) << 3 | at
        });
        let least = ranks.fold(u64::MAX, u64::min);
        self.slot(usize::try_from(least & 7).unwrap_or(0))
    }

    /// Takes the keys of a bucket of a smaller table that belong here. In place of those that go elsewhere it has empty slots with
    /// the least count of that bucket: a key that comes back to one of them may have been replaced there before.
    fn take_from(&self, from: &Self, (number, buckets): (usize, usize), least: u64) {
        for (to, from) in (0..SLOTS).filter_map(|at| self.slot(at).zip(from.slot(at))) {
            let tag = from.tag.load(Ordering::Relaxed);
            let belongs =
                usize::try_from(tag).is_ok_and(|tag| tag & buckets.saturating_sub(1) == number);
            if belongs && tag != 0 {
                to.tag.store(tag, Ordering::Relaxed);
                to.error.store(from.error.load(Ordering::Relaxed), Ordering::Relaxed);
                to.count.store(from.count.load(Ordering::Relaxed), Ordering::Relaxed);
            } else {
                to.count.store(least, Ordering::Relaxed);
            }
        }
    }
}

impl Default for Bucket {
    fn default() -> Self {
        let zeros = || array::from_fn(|_| AtomicU32::new(0));
        Self { tags: zeros(), errors: zeros(), counts: array::from_fn(|_| AtomicU64::new(0)) }
    }
}

// === impl TopSlot ===

impl TopSlot<'_> {
    fn count(self) -> u64 {
        self.count.load(Ordering::Relaxed) & !NAMED
    }

    /// How much too high the count may be. An error that does not fit may be as large as the count.
    fn error(self) -> u64 {
        match self.error.load(Ordering::Relaxed) {
            u32::MAX => self.count(),
            error => u64::from(error),
        }
    }

    /// The part of the count that is certain.
    fn certain(self) -> u64 {
        self.count().saturating_sub(self.error())
    }

    /// Adds to the count. Returns what is certain of it, or 0 if the key has a name.
    fn add(self, weight: u64) -> u64 {
        let before = self.count.load(Ordering::Relaxed);
        let sum = (before & !NAMED).saturating_add(weight).min(MOST);
        self.count.store(sum | (before & NAMED), Ordering::Relaxed);
        if before & NAMED == NAMED { 0 } else { sum.saturating_sub(self.error()) }
    }

    /// Gives the slot to another key.
    fn replace(self, print: u32, weight: u64) {
        let inherited = self.count();
        self.tag.store(print, Ordering::Relaxed);
        self.error.store(u32::try_from(inherited).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.count.store(inherited.saturating_add(weight).min(MOST), Ordering::Relaxed);
    }

    fn set_named(self, named: bool) {
        let count = self.count();
        self.count.store(if named { count | NAMED } else { count }, Ordering::Relaxed);
    }
}

// === impl Names ===

impl Names {
    fn insert(&mut self, print: u32, label: KeyLabel) {
        self.bytes = self.bytes.saturating_add(label.bytes());
        if let Some(old) = self.keys.insert(print, label) {
            self.bytes = self.bytes.saturating_sub(old.bytes());
        }
    }

    fn remove(&mut self, print: u32) {
        if let Some(old) = self.keys.remove(&print) {
            self.bytes = self.bytes.saturating_sub(old.bytes());
        }
    }
}

impl KeyLabel {
    fn bytes(&self) -> usize {
        label_bytes(self.key.as_ref())
    }
}

/// The memory of a label.
pub(super) fn label_bytes(key: Option<&ShownKey>) -> usize {
    let pairs = key.iter().flat_map(|key| &key.0);
    let texts = pairs
        .map(|(name, value)| PAIR_BYTES.saturating_add(name.len()).saturating_add(value.len()));
    texts.fold(LABEL_BYTES, usize::saturating_add)
}
