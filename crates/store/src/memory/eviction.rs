//! Making room in full buckets: remove expired states, displace states, and demote the least used one.
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
use super::bloom::{self, Mark};
use super::bucket::{Entry, LockedBucket, SLOTS, Slot};
use super::limit_numbers::NumberedLimits;
use super::sketch::SketchClass;
use super::table::{Location, LockedBuckets};
use super::tag::Tag;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::{Algorithm, Limit, Now, Span, State, Timestamp, Written};

/// After cuckoo displacement has failed in a table that cannot grow, this many insertions do not try it.
const DISPLACEMENT_PAUSE: u64 = 1_024;
/// While the table can grow, an expired state is kept for this long.
const EXPIRED_KEPT_FOR: Span = Span::from_secs(1);
/// Bytes that a new state larger than a word takes, apart from its counters.
const FIRST_BYTES: usize = 24;
/// Buckets that are swept when there are no free blocks.
const SWEPT_FOR_BLOCKS: usize = 64;
/// Buckets that are swept when a limit gets no number. They are few, because a caller can cause that as often as it likes.
pub(super) const SWEPT_FOR_NUMBERS: usize = 4;
/// The used share of a limit is a fixed-point number with this many bits after the point.
const SHARE_BITS: u32 = 16;
/// A state that used more than this share of its limit is demoted to the Bloom filter, not to the sketch.
const HALF: u64 = 1 << (SHARE_BITS - 1);
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
            Algorithm::SlidingLog | Algorithm::SlidingWeighted => FIRST_BYTES,
            Algorithm::SlidingBuckets { buckets } => {
                usize::from(buckets).saturating_add(FIRST_BYTES)
            }
        };
        self.blocks.has(bytes, &self.budget) || {
            self.sweep(SWEPT_FOR_BLOCKS, now);
            self.blocks.has(bytes, &self.budget)
        }
    }

    /// Sweeps some buckets: removes their expired states, whose blocks and limit numbers are free then.
    pub(super) fn sweep(&self, buckets: usize, now: Now) {
        (0..buckets).for_each(|_| self.sweep_next_bucket(now));
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
                .any(|neighbour| self.demote_to_filter(held, neighbour, now));
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

    /// Remembers a state in the sketch.
    pub(super) fn demote_to_sketch(&self, tag: Tag, written: &Written<'_>, now: Now) {
        let in_use = written.in_use(now.of(written.shape));
        // Relaxed: a thread that needs this state locks a bucket that this thread has locked.
        self.demotions.fetch_add(1, Relaxed);
        self.sketch.add(tag, SketchClass::of(written.shape), in_use, now);
    }

    /// Remembers a state for which there is no slot: in the sketch, or in the Bloom filter if it used more than half of its
    /// limit. The filter may evict further states from its bucket.
    pub(super) fn demote(
        &self,
        held: &mut LockedBuckets<'_>,
        tag: Tag,
        written: &Written<'_>,
        now: Now,
    ) {
        match held.home(tag).filter(|_| share_used(written, now) > HALF) {
            Some(home) => {
                let in_use = written.in_use(now.of(written.shape));
                self.mark(home, Mark::of(tag, written.shape, in_use), now);
            }
            None => self.demote_to_sketch(tag, written, now),
        }
    }

    /// Demotes a neighbour to the Bloom filter and frees its slot, if its home can be locked without waiting. Returns whether it
    /// did.
    fn demote_to_filter(
        &self,
        held: &mut LockedBuckets<'_>,
        neighbour: &Neighbour,
        now: Now,
    ) -> bool {
        let Neighbour { at, entry, .. } = neighbour;
        let Some((_, mark)) = self.mark_of(entry, now) else { return false };
        // The slot is freed first: it may become a page of the filter.
        if held.home(mark.tag).is_some() {
            self.remove(held, *at, *entry);
            held.home(mark.tag).into_iter().for_each(|home| self.mark(home, mark, now));
            return true;
        }
        let Some(mut home) = self.table.try_lock_home(mark.tag) else { return false };
        self.remove(held, *at, *entry);
        self.mark(&mut home, mark, now);
        true
    }

    /// Which share of its limit a state has used, and the mark that it would leave.
    fn mark_of(&self, entry: &Entry, now: Now) -> Option<(u64, Mark)> {
        let limits = self.limit_numbers.limits();
        let written =
            Written { shape: limits.limit(entry.limit_number)?, state: self.state(entry) };
        let in_use = written.in_use(now.of(written.shape));
        Some((share_used(&written, now), Mark::of(Tag(entry.tag), written.shape, in_use)))
    }

    /// Marks a state in the Bloom filter of its home. If that needs another page, a spent state may lose its slot, and is marked
    /// in the next turn. The loop ends: every turn but the last adds a page, and a bucket has few.
    fn mark(&self, home: &mut LockedBucket<'_>, mark: Mark, now: Now) {
        let mut next = Some(mark);
        while let Some(mark) = next.take() {
            self.demotions.fetch_add(1, Relaxed);
            let Some(wanted) = bloom::set(home, &mark) else { return };
            if let Some((slot, displaced)) = self.slot_for_page(home, now) {
                bloom::add_page(home, slot, &wanted);
                next = displaced;
            } else if !wanted.is_set && !bloom::set_in_latest(home, &mark) {
                self.sketch.add(mark.tag, mark.class, mark.in_use, now);
            }
        }
    }

    /// A slot for a page of the Bloom filter. If a state had to be removed from it, also the mark of that state. It is the most
    /// used state that has its home here.
    fn slot_for_page(&self, home: &mut LockedBucket<'_>, now: Now) -> Option<(Slot, Option<Mark>)> {
        if !bloom::may_add_page(home.bucket()) {
            return None;
        }
        if let Some(slot) = home.free() {
            return Some((slot, None));
        }
        let at_home = |entry: &Entry| ptr::eq(self.table.home(Tag(entry.tag)), home.bucket());
        let states = home.entries().filter(|(_, entry)| at_home(entry));
        let states = states.filter_map(|(slot, entry)| {
            let (used, mark) = self.mark_of(&entry, now)?;
            (used > HALF).then_some((used, slot, entry, mark))
        });
        let (_, slot, entry, mark) = states.max_by_key(|(used, ..)| *used)?;
        self.clear_slot(home, slot, entry);
        Some((slot, Some(mark)))
    }

    /// Removes a state from the table.
    pub(super) fn remove(&self, held: &mut LockedBuckets<'_>, at: Location, entry: Entry) {
        held.in_bucket(at)
            .into_iter()
            .for_each(|(bucket, slot)| self.clear_slot(bucket, slot, entry));
    }

    /// Frees the blocks of a state, if it has any.
    pub(super) fn free_blocks(&self, entry: &Entry) {
        if entry.in_blocks {
            self.blocks.free(entry.word);
        }
    }

    fn clear_slot(&self, bucket: &mut LockedBucket<'_>, slot: Slot, entry: Entry) {
        self.free_blocks(&entry);
        self.limit_numbers.release(entry.limit_number);
        self.table.removed();
        bucket.clear(slot);
    }

    /// States that expired by this instant are removed. While the table can grow, it is a while ago: a key that returns soon
    /// then finds its old slot, which is faster than creating a new state.
    fn expiry_cutoff(&self, now: Now) -> Now {
        if self.table.cannot_grow(&self.budget) || !self.blocks.has(1, &self.budget) {
            return now;
        }
        let ago = |now: Timestamp| {
            Timestamp::from_nanos(now.as_nanos().saturating_sub(EXPIRED_KEPT_FOR.as_nanos()))
        };
        Now { steady: ago(now.steady), calendar: ago(now.calendar) }
    }

    /// Whether nothing of a state counts any more.
    fn has_expired(&self, entry: &Entry, limits: &NumberedLimits, now: Now) -> bool {
        let Some(limit) = limits.limit(entry.limit_number) else { return false };
        if entry.word == 0 {
            // A reset left an empty state here. It is needed until the sketch and the Bloom filter remember nothing of the key.
            let remembered = self.remembered(Tag(entry.tag), limit);
            return remembered.is_none_or(|in_use| in_use.until <= now.of(limit));
        }
        let mut written = Written { shape: limit, state: self.state(entry) };
        written.settle(now.of(limit));
        written.state == State::Empty
    }

    /// Sweeps the next bucket: removes its expired states and pages.
    pub(super) fn sweep_next_bucket(&self, now: Now) {
        let Some(mut bucket) = self.table.lock_next_to_sweep() else { return };
        let (limits, cutoff) = (self.limit_numbers.limits(), self.expiry_cutoff(now));
        let expired = |entry: &Entry| self.has_expired(entry, &limits, cutoff);
        let gone: SmallVec<[_; SLOTS]> =
            bucket.entries().filter(|(_, entry)| expired(entry)).collect();
        gone.into_iter().for_each(|(slot, entry)| self.clear_slot(&mut bucket, slot, entry));
        bloom::remove_ended(&mut bucket, now);
    }
}

/// Frees the slots of ended pages of the Bloom filter, in the two buckets of a state; returns whether there were any.
fn remove_ended_pages(held: &mut LockedBuckets<'_>, tag: Tag, now: Now) -> bool {
    held.any_candidate(tag, |bucket| bloom::remove_ended(bucket, now))
}

/// Which share of its limit a state has used, in 65,536ths.
fn share_used(written: &Written<'_>, now: Now) -> u64 {
    let limit: &Limit = written.shape;
    let units = written.units_in_use(now.of(limit));
    if units.leading_zeros() >= SHARE_BITS {
        return (units << SHARE_BITS).checked_div(limit.capacity()).unwrap_or(0);
    }
    // The product does not fit 64 bits: the slow 128-bit division.
    let wide = u128::from(units) << SHARE_BITS;
    let share = wide.checked_div(u128::from(limit.capacity())).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Ask, Cost, Refill};

    #[test]
    fn shares_of_small_and_large_limits_compare() {
        let now = Timestamp::from_nanos(1_800_000_000_000_000_000);
        for burst in [4u64, 1 << 20, 1 << 47, 1 << 50, 1 << 52] {
            let algorithm =
                Algorithm::TokenBucket { burst: Some(burst), refill: Refill::Continuous };
            let limit = Limit::new(1 << 29, Span::from_secs(1), algorithm).unwrap();
            let mut written = Written::empty(&limit);
            limit.take(&mut written, &Ask::new(now, Cost::new(burst / 4)));
            assert_eq!(share_used(&written, Now::at(now)), 1 << (SHARE_BITS - 2), "{burst}");
        }
    }
}
