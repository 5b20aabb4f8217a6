//! Making room: what has expired goes first, what can move moves, and what is used least is demoted.
//!
//! ```text
//!   a new state, both of its buckets full
//!      │
//!      ├─ something in them has expired?           it goes
//!      ├─ something can stand in its other bucket? it moves
//!      ├─ one of them used up to half of its limit? the least used of the fourteen, or the new one, goes to the sketch
//!      └─ all of them used more                    the most used of the fourteen, or the new one, is marked
//! ```
//!
//! Least used is the smallest part of its own limit: who is near a limit stays, so that a flood of new keys forgets
//! other new keys, and nobody is let off. Where all are near their limits, a mark (`marks.rs`) takes least from the one that has
//! nothing left anyway.

use super::Memory;
use super::bring::Found;
use super::bucket::{Entry, Locked, SLOTS, Slot};
use super::marks::{self, Mark};
use super::shapes::Known;
use super::sketch::Class;
use super::table::{At, Held, Tag};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::{Algorithm, Limit, Now, Span, State, Timestamp, Written};

/// After a search for a place to move a state to has failed, so many go without.
const WITHOUT_MOVING: u64 = 1_024;
/// What has expired is kept for so long, as long as the table can grow.
const KEPT_LONGER: Span = Span::from_secs(1);
/// What a state that is larger than a word takes at first, apart from its counters.
const FIRST_BYTES: usize = 24;
/// Buckets that are looked at when there are no blocks.
const LOOKED_AT_FOR_BLOCKS: usize = 64;
/// Buckets that are looked at when a limit gets no number: few, because a caller can ask for that as often as it likes.
pub(super) const LOOKED_AT_FOR_NUMBERS: usize = 4;
/// Bits of what part of a limit is used.
const PART_BITS: u32 = 16;
/// Who used more than this part of a limit is marked, and does not go to the sketch.
const HALF: u64 = 1 << (PART_BITS - 1);
/// So many neighbours are tried to be marked in their homes, which other threads may have locked.
const TRIED: usize = 3;

/// A state that stands where another would.
struct Neighbour {
    at: At,
    entry: Entry,
    /// What part of its limit.
    used: u64,
    expired: bool,
}

/// Those of one state, in its two buckets.
type Neighbours = SmallVec<[Neighbour; 2 * SLOTS]>;

impl Memory {
    /// Writes a state where it was found; answers whether that slot now mentions another number than it did.
    pub(super) fn replace(
        &self,
        held: &mut Held<'_>,
        tag: Tag,
        found: &Found,
        shape: u16,
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        let old = found.entry.elsewhere.then_some(found.entry.word);
        let entry = self.entry(tag, shape, &written.state, old).or_else(|| {
            self.look_for_expired(LOOKED_AT_FOR_BLOCKS, now);
            self.entry(tag, shape, &written.state, old)
        });
        let renumbered = shape != found.entry.shape;
        if renumbered || entry.is_none() {
            self.shapes.release(found.entry.shape);
        }
        match entry {
            Some(entry) => {
                held.put(found.at, entry);
                renumbered
            }
            None => {
                // It has grown, and there are no blocks.
                self.demote(tag, written, now);
                old.into_iter().for_each(|word| self.blocks.free(word));
                self.table.removed();
                held.clear(found.at);
                false
            }
        }
    }

    /// Writes a new state into the slot that was reserved for it; answers whether it is there.
    pub(super) fn fill(
        &self,
        held: &mut Held<'_>,
        at: At,
        tag: Tag,
        shape: u16,
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        let entry = self.new_entry(tag, shape, &written.state, now);
        match entry {
            Some(entry) => {
                self.table.added();
                held.put(at, entry);
            }
            None => {
                self.demote_or_mark(held, tag, written, now);
                held.clear(at);
            }
        }
        entry.is_some()
    }

    /// Writes a new state, for which another may have to be demoted; answers whether it is in the table.
    pub(super) fn insert(
        &self,
        held: &mut Held<'_>,
        tag: Tag,
        shape: u16,
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        // A page of marks may take the slot that was made free; then it is tried once more.
        let mut tries = 0..TRIED;
        while held.free(tag).is_none()
            && tries.next().is_some()
            && self.make_way(held, tag, written, now)
        {}
        let room = held.free(tag).is_some();
        let entry = if room { self.new_entry(tag, shape, &written.state, now) } else { None };
        match (entry, held.free(tag)) {
            (Some(entry), Some(at)) => {
                self.table.added();
                held.put(at, entry);
                true
            }
            (entry, _) => {
                self.demote_or_mark(held, tag, written, now);
                let blocks = entry.filter(|entry| entry.elsewhere);
                blocks.into_iter().for_each(|entry| self.blocks.free(entry.word));
                false
            }
        }
    }

    /// A slot's content for a new state; `None` when there are no blocks for it, also after looking for some.
    fn new_entry(&self, tag: Tag, shape: u16, state: &State, now: Now) -> Option<Entry> {
        self.entry(tag, shape, state, None).or_else(|| {
            self.look_for_expired(LOOKED_AT_FOR_BLOCKS, now);
            self.entry(tag, shape, state, None)
        })
    }

    /// A slot's content for a state: a word, or blocks, instead of the old ones if there were any. `None` when there
    /// are no blocks; then the old ones are as they were.
    fn entry(&self, tag: Tag, shape: u16, state: &State, old: Option<u64>) -> Option<Entry> {
        let word = match state {
            State::Empty => 0,
            State::Word(word) => *word,
            State::Pair(_) | State::Buckets(_) | State::Log(_) => {
                let mut bytes = Vec::new();
                state.write(&mut bytes);
                let word = self.blocks.write(old, &bytes, &self.budget)?;
                return Some(Entry { tag: tag.0, shape, elsewhere: true, word });
            }
        };
        old.into_iter().for_each(|word| self.blocks.free(word));
        Some(Entry { tag: tag.0, shape, elsewhere: false, word })
    }

    /// Whether there is a free slot for a state, or one can be had without demoting anybody. Those that `stay` are not
    /// touched.
    pub(super) fn has_room(&self, held: &mut Held<'_>, tag: Tag, now: Now, stay: &[Tag]) -> bool {
        held.free(tag).is_some() || held.forget_marks(tag, now) || {
            let neighbours = self.neighbours(held, tag, now, stay);
            self.make_room(held, &neighbours)
        }
    }

    /// Makes room for a state, if need be by demoting or marking another; answers whether it did.
    fn make_way(&self, held: &mut Held<'_>, tag: Tag, written: &Written<'_>, now: Now) -> bool {
        held.forget_marks(tag, now) || {
            let neighbours = self.neighbours(held, tag, now, &[]);
            self.make_room(held, &neighbours) || self.demote_one(held, &neighbours, written, now)
        }
    }

    /// Everything that stands where this state could stand, but for those that `stay`.
    fn neighbours(&self, held: &Held<'_>, tag: Tag, now: Now, stay: &[Tag]) -> Neighbours {
        let (known, gone_by) = (self.shapes.known(), self.gone_by(now));
        let others = held.neighbours(tag).filter(|(_, entry)| !stay.contains(&Tag(entry.tag)));
        let neighbour = |(at, entry): (At, Entry)| {
            let used = known.limit(entry.shape).map_or(0, |limit| {
                part_used(&Written { shape: limit, state: self.state(&entry) }, now)
            });
            // Of what has expired, nothing is used; it need not be asked of the others.
            let expired = used == 0 && self.has_expired(&entry, &known, gone_by);
            Neighbour { at, entry, used, expired }
        };
        others.map(neighbour).collect()
    }

    /// Makes room among neighbours, of which none is demoted; answers whether there is some now.
    fn make_room(&self, held: &mut Held<'_>, neighbours: &[Neighbour]) -> bool {
        let mut expired = neighbours.iter().filter(|neighbour| neighbour.expired).peekable();
        if expired.peek().is_some() {
            expired.for_each(|Neighbour { at, entry, .. }| self.remove(held, *at, *entry));
            return true;
        }
        // Where every bucket is full, looking at fourteen more costs more than all the rest.
        let packed = self.packed.load(Relaxed);
        if packed > 0 && self.table.is_full_grown(&self.budget) {
            // Relaxed, and not exact: it only says how often to look.
            self.packed.store(packed.saturating_sub(1), Relaxed);
            return false;
        }
        let moved = neighbours.iter().any(|one| held.move_away(one.at, one.entry))
            || neighbours.iter().any(|one| held.move_further(one.at, one.entry));
        if !moved {
            self.packed.store(WITHOUT_MOVING, Relaxed);
        }
        moved
    }

    /// Whether there are blocks for a first state under this limit, if it needs any.
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
            self.look_for_expired(LOOKED_AT_FOR_BLOCKS, now);
            self.blocks.has(bytes, &self.budget)
        }
    }

    /// Looks at some buckets for states that have expired, and forgets them: their blocks and numbers are free then.
    pub(super) fn look_for_expired(&self, buckets: usize, now: Now) {
        (0..buckets).for_each(|_| self.look_at_next(now));
    }

    /// Demotes or marks one of a state's neighbours, unless the state itself should be; answers whether it did.
    fn demote_one(
        &self,
        held: &mut Held<'_>,
        neighbours: &[Neighbour],
        written: &Written<'_>,
        now: Now,
    ) -> bool {
        let used = part_used(written, now);
        let Some(least) = neighbours.iter().min_by_key(|neighbour| neighbour.used) else {
            return false;
        };
        if used.min(least.used) > HALF {
            let mut fuller: SmallVec<[&Neighbour; 2 * SLOTS]> =
                neighbours.iter().filter(|neighbour| neighbour.used > used).collect();
            fuller.sort_unstable_by_key(|neighbour| Reverse(neighbour.used));
            return fuller.iter().take(TRIED).any(|neighbour| self.move_out(held, neighbour, now));
        }
        if least.used > used {
            return false;
        }
        if let Some(limit) = self.shapes.known().limit(least.entry.shape) {
            let resident = Written { shape: limit, state: self.state(&least.entry) };
            self.demote(Tag(least.entry.tag), &resident, now);
        }
        self.remove(held, least.at, least.entry);
        true
    }

    /// Remembers a state in the sketch only.
    pub(super) fn demote(&self, tag: Tag, written: &Written<'_>, now: Now) {
        let in_use = written.in_use(now.of(written.shape));
        // Relaxed: whoever comes for this state locks the bucket that the demoter has locked.
        self.demotions.fetch_add(1, Relaxed);
        self.sketch.add(tag, Class::of(written.shape), in_use, now);
    }

    /// Remembers a state for which there is no slot. Other states may be marked for it.
    pub(super) fn demote_or_mark(
        &self,
        held: &mut Held<'_>,
        tag: Tag,
        written: &Written<'_>,
        now: Now,
    ) {
        match held.home(tag).filter(|_| part_used(written, now) > HALF) {
            Some(home) => {
                let in_use = written.in_use(now.of(written.shape));
                self.mark(home, Mark::of(tag, written.shape, in_use), now);
            }
            None => self.demote(tag, written, now),
        }
    }

    /// Marks a neighbour and frees its slot, if its home can be locked without waiting; answers whether it did.
    fn move_out(&self, held: &mut Held<'_>, neighbour: &Neighbour, now: Now) -> bool {
        let Neighbour { at, entry, .. } = neighbour;
        let Some((_, mark)) = self.mark_of(entry, now) else { return false };
        // The slot is freed first: it may become a page.
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

    /// What part of its limit a state has used, and the mark that it would leave.
    fn mark_of(&self, entry: &Entry, now: Now) -> Option<(u64, Mark)> {
        let known = self.shapes.known();
        let written = Written { shape: known.limit(entry.shape)?, state: self.state(entry) };
        let in_use = written.in_use(now.of(written.shape));
        Some((part_used(&written, now), Mark::of(Tag(entry.tag), written.shape, in_use)))
    }

    /// Marks a state in its home. Where that takes another page, a spent state may have to give up its slot, and is marked
    /// then. Every turn but the last makes a page, and a bucket has few.
    fn mark(&self, home: &mut Locked<'_>, mark: Mark, now: Now) {
        let mut next = Some(mark);
        while let Some(mark) = next.take() {
            self.demotions.fetch_add(1, Relaxed);
            let Some(wanted) = marks::set(home, &mark) else { return };
            if let Some((slot, displaced)) = self.slot_for_page(home, now) {
                marks::add_page(home, slot, &wanted);
                next = displaced;
            } else if !wanted.is_set && !marks::set_in_latest(home, &mark) {
                self.sketch.add(mark.tag, mark.class, mark.in_use, now);
            }
        }
    }

    /// A slot for a page of marks, and what becomes of the state that had it: the most used one that is at home here.
    fn slot_for_page(&self, home: &mut Locked<'_>, now: Now) -> Option<(Slot, Option<Mark>)> {
        if !marks::may_add_page(home.bucket()) {
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
        self.forget(home, slot, entry);
        Some((slot, Some(mark)))
    }

    /// Frees a slot, and the blocks of its state.
    pub(super) fn remove(&self, held: &mut Held<'_>, at: At, entry: Entry) {
        held.in_bucket(at).into_iter().for_each(|(bucket, slot)| self.forget(bucket, slot, entry));
    }

    fn forget(&self, bucket: &mut Locked<'_>, slot: Slot, entry: Entry) {
        if entry.elsewhere {
            self.blocks.free(entry.word);
        }
        self.shapes.release(entry.shape);
        self.table.removed();
        bucket.clear(slot);
    }

    /// The instant at which a state must have expired in order to go: as long as the table can grow, a while ago. Who
    /// comes back soon is then found where he was, which is faster than to begin anew.
    fn gone_by(&self, now: Now) -> Now {
        if self.table.is_full_grown(&self.budget) || !self.blocks.has(1, &self.budget) {
            return now;
        }
        let ago = |now: Timestamp| {
            Timestamp::from_nanos(now.as_nanos().saturating_sub(KEPT_LONGER.as_nanos()))
        };
        Now { steady: ago(now.steady), calendar: ago(now.calendar) }
    }

    /// Whether nothing of a state counts any more.
    fn has_expired(&self, entry: &Entry, known: &Known, now: Now) -> bool {
        let Some(limit) = known.limit(entry.shape) else { return false };
        if entry.word == 0 {
            // It stands for what the sketch or marks know too much of.
            let known = self.remembered(Tag(entry.tag), limit);
            return known.is_none_or(|in_use| in_use.until <= now.of(limit));
        }
        let mut written = Written { shape: limit, state: self.state(entry) };
        written.settle(now.of(limit));
        written.state == State::Empty
    }

    /// Looks at the next bucket, and forgets what has expired in it.
    pub(super) fn look_at_next(&self, now: Now) {
        let Some(mut bucket) = self.table.lock_next() else { return };
        let (known, gone_by) = (self.shapes.known(), self.gone_by(now));
        let expired = |entry: &Entry| self.has_expired(entry, &known, gone_by);
        let gone: SmallVec<[_; SLOTS]> =
            bucket.entries().filter(|(_, entry)| expired(entry)).collect();
        gone.into_iter().for_each(|(slot, entry)| self.forget(&mut bucket, slot, entry));
        marks::forget(&mut bucket, now);
    }
}

/// What part of its limit is used, in 65,536ths.
fn part_used(written: &Written<'_>, now: Now) -> u64 {
    let limit: &Limit = written.shape;
    let units = written.units_in_use(now.of(limit));
    if units.leading_zeros() >= PART_BITS {
        return (units << PART_BITS).checked_div(limit.capacity()).unwrap_or(0);
    }
    // So many that the processor cannot divide them by itself.
    let wide = u128::from(units) << PART_BITS;
    let part = wide.checked_div(u128::from(limit.capacity())).unwrap_or(0);
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Ask, Cost, Refill};

    #[test]
    fn parts_of_small_and_large_limits_compare() {
        let now = Timestamp::from_nanos(1_800_000_000_000_000_000);
        for burst in [4u64, 1 << 20, 1 << 47, 1 << 50, 1 << 52] {
            let algorithm =
                Algorithm::TokenBucket { burst: Some(burst), refill: Refill::Continuous };
            let limit = Limit::new(1 << 29, Span::from_secs(1), algorithm).unwrap();
            let mut written = Written::empty(&limit);
            limit.take(&mut written, &Ask::new(now, Cost::new(burst / 4)));
            assert_eq!(part_used(&written, Now::at(now)), 1 << (PART_BITS - 2), "{burst}");
        }
    }
}
