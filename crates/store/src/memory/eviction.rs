//! Writing states into slots, and making room in full buckets: remove expired states, displace states, and demote one.
//!
//! ```text
//!   a new state, both of its buckets full
//!      │
//!      ├─ a state in them has expired?                   it is removed
//!      ├─ a state can move to its other bucket?          it is displaced (cuckoo displacement)
//!      ├─ one of the 15 used up to half of its limit?    the least used of the 15 is demoted to the sketch
//!      └─ all of them used more                          the most used of the 15 is demoted to the Bloom filter
//! ```
//!
//! The 15 are the fourteen states of both buckets and the new one. *Least used* means the smallest share of its own limit. So
//! keys near their limits stay, a flood of new keys evicts other new keys, and an attacker cannot flush out the counter of a
//! spent key. Where all are near their limits, the Bloom filter (`bloom.rs`) takes the most used one: a page of the filter
//! says what the most used of its keys has used, and that key has the least left to lose.

use super::Memory;
use super::bloom;
use super::bucket::{Entry, SLOTS};
use super::demotion::{HALF, share_used};
use super::table::{Location, LockedBuckets};
use super::tag::Tag;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::{Algorithm, Limit, Now, State, Written};

/// After cuckoo displacement has failed in a table that cannot grow, this many insertions do not try it.
const DISPLACEMENT_PAUSE: u64 = 1_024;
/// Bytes that a new state larger than a word takes, apart from its counters.
const FIRST_BYTES: usize = 24;
/// Buckets that are swept when there are no free blocks.
const SWEPT_FOR_BLOCKS: usize = 64;
/// Attempts to demote a neighbour to the Bloom filter of its home, which another thread may have locked; and attempts to free
/// a slot for a new state.
const MOST_ATTEMPTS: usize = 3;

/// A state in one of the two buckets of another one.
struct Neighbour {
    at: Location,
    entry: Entry,
    /// Which share of its limit it has used.
    used: u64,
    expired: bool,
}

/// The neighbours of a state, in its two buckets.
type Neighbours = SmallVec<[Neighbour; 2 * SLOTS]>;

impl Memory {
    /// Writes a state over its old entry. Returns whether the slot now mentions another limit number than before.
    pub(super) fn overwrite(
        &self,
        held: &mut LockedBuckets<'_>,
        at: Location,
        old: Entry,
        limit_number: u16,
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        let (tag, old_blocks) = (Tag(old.tag), old.in_blocks.then_some(old.word));
        let entry = self.entry(tag, limit_number, &written.state, old_blocks).or_else(|| {
            self.sweep(SWEPT_FOR_BLOCKS, now);
            self.entry(tag, limit_number, &written.state, old_blocks)
        });
        let renumbered = limit_number != old.limit_number;
        if renumbered || entry.is_none() {
            self.limit_numbers.release(old.limit_number);
        }
        match entry {
            Some(entry) => {
                held.put(at, entry);
                renumbered
            }
            None => {
                // The state has grown, and there are no blocks for it.
                self.demote_to_sketch(tag, written, now);
                self.note_gone(tag);
                self.free_blocks(&old);
                self.table.removed();
                held.clear(at);
                false
            }
        }
    }

    /// Writes a new state into the slot that was reserved for it; returns whether it is in the table.
    pub(super) fn fill(
        &self,
        held: &mut LockedBuckets<'_>,
        at: Location,
        tag: Tag,
        limit_number: u16,
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        let entry = self.new_entry(tag, limit_number, &written.state, now);
        match entry {
            Some(entry) => {
                self.table.added();
                held.put(at, entry);
            }
            None => {
                self.demote(held, tag, written, now);
                held.clear(at);
            }
        }
        entry.is_some()
    }

    /// Writes a new state, for which another may be demoted; returns whether the new one is in the table.
    pub(super) fn insert(
        &self,
        held: &mut LockedBuckets<'_>,
        tag: Tag,
        limit_number: u16,
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        // A page of the Bloom filter may take the slot that was freed; then another attempt is made.
        let mut tries = 0..MOST_ATTEMPTS;
        while held.free(tag).is_none()
            && tries.next().is_some()
            && self.evict_for(held, tag, written, now)
        {}
        let room = held.free(tag).is_some();
        let entry =
            if room { self.new_entry(tag, limit_number, &written.state, now) } else { None };
        match (entry, held.free(tag)) {
            (Some(entry), Some(at)) => {
                self.table.added();
                held.put(at, entry);
                true
            }
            (entry, _) => {
                self.demote(held, tag, written, now);
                entry.iter().for_each(|entry| self.free_blocks(entry));
                false
            }
        }
    }

    /// The entry for a new state; `None` when there are no blocks for it, even after a sweep.
    fn new_entry(&self, tag: Tag, limit_number: u16, state: &State, now: Now) -> Option<Entry> {
        self.entry(tag, limit_number, state, None).or_else(|| {
            self.sweep(SWEPT_FOR_BLOCKS, now);
            self.entry(tag, limit_number, state, None)
        })
    }

    /// The entry for a state: a word, or blocks that replace the old ones. `None` when there are not enough blocks; then the old
    /// ones are unchanged.
    fn entry(&self, tag: Tag, limit_number: u16, state: &State, old: Option<u64>) -> Option<Entry> {
        let word = match state {
            State::Empty => 0,
            State::Word(word) => *word,
            State::Pair(_) | State::Buckets(_) | State::Log(_) => {
                let mut bytes = Vec::new();
                state.write(&mut bytes);
                let word = self.blocks.write(old, &bytes, &self.budget)?;
                return Some(Entry { tag: tag.0, limit_number, in_blocks: true, word });
            }
        };
        old.into_iter().for_each(|word| self.blocks.free(word));
        Some(Entry { tag: tag.0, limit_number, in_blocks: false, word })
    }

    /// Finds a free slot for a state, or frees one without demoting another state; returns whether there is one now. States in
    /// `stay` are not touched.
    pub(super) fn find_or_free_slot(
        &self,
        held: &mut LockedBuckets<'_>,
        tag: Tag,
        now: Now,
        stay: &[Tag],
    ) -> bool {
        held.free(tag).is_some() || remove_ended_pages(held, tag, now) || {
            let neighbours = self.neighbours(held, tag, now, stay);
            self.free_without_demotion(held, &neighbours)
        }
    }

    /// Frees a slot for a state, if need be by demoting another one; returns whether it did.
    fn evict_for(
        &self,
        held: &mut LockedBuckets<'_>,
        tag: Tag,
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        remove_ended_pages(held, tag, now) || {
            let neighbours = self.neighbours(held, tag, now, &[]);
            self.free_without_demotion(held, &neighbours)
                || self.demote_neighbour(held, &neighbours, written, now)
        }
    }

    /// All states in the two buckets of this one, except those in `stay`.
    fn neighbours(&self, held: &LockedBuckets<'_>, tag: Tag, now: Now, stay: &[Tag]) -> Neighbours {
        let (limits, cutoff) = (self.limit_numbers.limits(), self.expiry_cutoff(now));
        let others = held.neighbours(tag).filter(|(_, entry)| !stay.contains(&Tag(entry.tag)));
        let neighbour = |(at, entry): (Location, Entry)| {
            let used = limits.limit(entry.limit_number).map_or(0, |limit| {
                share_used(&Written { shape: limit, state: self.state(&entry) }, now)
            });
            // An expired state uses nothing, so others need no check.
            let expired = used == 0 && self.has_expired(&entry, &limits, cutoff);
            Neighbour { at, entry, used, expired }
        };
        others.map(neighbour).collect()
    }

    /// Frees a slot without a demotion: removes expired neighbours, or displaces one. Returns whether there is a free slot now.
    fn free_without_demotion(
        &self,
        held: &mut LockedBuckets<'_>,
        neighbours: &[Neighbour],
    ) -> bool {
        let mut expired = neighbours.iter().filter(|neighbour| neighbour.expired).peekable();
        if expired.peek().is_some() {
            expired.for_each(|Neighbour { at, entry, .. }| self.remove(held, *at, *entry));
            return true;
        }
        // In a full table, looking at the other buckets of fourteen states costs more than all the rest.
        let pause = self.displacement_pause.load(Relaxed);
        if pause > 0 && self.table.cannot_grow(&self.budget) {
            // Relaxed, and not exact: it only says how often to try.
            self.displacement_pause.store(pause.saturating_sub(1), Relaxed);
            return false;
        }
        let moved = neighbours.iter().any(|one| held.displace(one.at, one.entry))
            || neighbours.iter().any(|one| held.displace_twice(one.at, one.entry));
        if !moved {
            self.displacement_pause.store(DISPLACEMENT_PAUSE, Relaxed);
        }
        moved
    }

    /// Whether there are blocks for a new state under this limit, if it needs any.
    pub(super) fn has_blocks(&self, limit: &Limit, now: Now) -> bool {
        let bytes = match limit.algorithm() {
            Algorithm::FixedWindow { .. }
            | Algorithm::TokenBucket { .. }
            | Algorithm::LeakyBucket { .. } => return true,
            Algorithm::SlidingLog | Algorithm::SlidingWeighted | Algorithm::Concurrent => {
                FIRST_BYTES
            }
            Algorithm::SlidingBuckets { buckets } => {
                usize::from(buckets).saturating_add(FIRST_BYTES)
            }
        };
        self.blocks.has(bytes, &self.budget) || {
            self.sweep(SWEPT_FOR_BLOCKS, now);
            self.blocks.has(bytes, &self.budget)
        }
    }

    /// Demotes one of the neighbours of a new state, unless the new state itself should be demoted. Returns whether it did.
    fn demote_neighbour(
        &self,
        held: &mut LockedBuckets<'_>,
        neighbours: &[Neighbour],
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        let used = share_used(written, now);
        let Some(least) = neighbours.iter().min_by_key(|neighbour| neighbour.used) else {
            return false;
        };
        if used.min(least.used) > HALF {
            let mut fuller: SmallVec<[&Neighbour; 2 * SLOTS]> =
                neighbours.iter().filter(|neighbour| neighbour.used > used).collect();
            fuller.sort_unstable_by_key(|neighbour| Reverse(neighbour.used));
            return fuller
                .iter()
                .take(MOST_ATTEMPTS)
                .any(|neighbour| self.demote_to_filter(held, neighbour.at, neighbour.entry, now));
        }
        if least.used > used {
            return false;
        }
        if let Some(limit) = self.limit_numbers.limits().limit(least.entry.limit_number) {
            let resident = Written { shape: limit, state: self.state(&least.entry) };
            self.demote_to_sketch(Tag(least.entry.tag), &resident, now);
        }
        self.remove(held, least.at, least.entry);
        true
    }
}

/// Frees the slots of ended pages of the Bloom filter, in the two buckets of a state; returns whether there were any.
fn remove_ended_pages(held: &mut LockedBuckets<'_>, tag: Tag, now: Now) -> bool {
    held.any_candidate(tag, |bucket| bloom::remove_ended(bucket, now))
}
