//! The hash table: which two buckets may hold a state, and how the table grows while threads use it.
//!
//! This is cuckoo hashing with buckets: a state is in one of two buckets, its *candidates*. The first of them is its *home*.
//! When both are full, a state in them may be displaced to its own other candidate. The number of buckets grows by one at a
//! time ([linear hashing](super::linear_hashing)): there is no moment at which everything is moved, and no memory is
//! replaced under a reader, because bucket `i` is at the same address for ever.
//!
//! **Locks.** A thread that locks several buckets locks them in ascending order, so no two threads wait for each other. A thread
//! that needs another bucket out of order only tries to lock it and never waits. A thread that moves a state locks both
//! buckets, and clears the old slot before it unlocks the old bucket. A split moves states from the parent to the new bucket, and
//! publishes the new count before it unlocks either. So a thread that has locked a candidate checks again whether the bucket
//! still is one; from then on it stays one until it is unlocked.

use super::bucket::{Bucket, Entry, EntrySnapshot, LockedBucket, Read, SLOTS, Slot};
use super::budget::Budget;
use super::dirty::{DirtyBits, Kept};
use super::linear_hashing::{TableSize, children, parent};
use super::region::Region;
use super::tag::Tag;
use crate::plan_vec::PlanVec;
use crate::sync::{AtomicU64, Mutex, MutexGuard, lock, try_lock};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of the budget that a bucket takes: two cache lines.
const BUCKET_BYTES: usize = 128;
/// Buckets at the beginning: more than one plan can lock. Models have few, so that threads meet and the table grows.
const FIRST_BUCKETS: usize = if cfg!(any(loom, shuttle)) { 4 } else { 64 };
/// Another bucket is added when more than this many of the seven slots are taken, on average.
const TARGET_LOAD: u64 = 4;

/// The buckets.
#[derive(Debug)]
pub(super) struct Table {
    buckets: Region<Bucket>,
    /// How many of them are in use. It only grows, under the locks of both buckets of a split.
    count: AtomicU64,
    /// Held by the one thread that adds a bucket.
    growing: Mutex<()>,
    /// How many slots hold states. Relaxed: it only decides when to grow and when to sweep.
    entries: AtomicU64,
    /// The bucket that is swept next for expired states.
    sweep_hand: AtomicU64,
    /// How many threads walk over all buckets at the moment. Meanwhile no state moves, or a walk could miss it.
    walks: AtomicU64,
    /// For each bucket, if the states are also kept on disk.
    dirty: Option<Region<DirtyBits>>,
}

/// Buckets that are locked together.
#[derive(Debug)]
pub(super) struct LockedBuckets<'t> {
    table: &'t Table,
    buckets: PlanVec<(usize, LockedBucket<'t>)>,
}

/// Which of the two buckets that may hold a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    First,
    Second,
}

/// A slot of a locked bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    bucket: usize,
    slot: Slot,
}

// === impl Table ===

impl Table {
    pub(super) fn new(budget: &Budget, kept: Kept) -> Self {
        let buckets: Region<Bucket> = Region::reserve(budget.most_of_one() / BUCKET_BYTES);
        let dirty = (kept == Kept::OnDisk).then(|| Region::reserve(buckets.len()));
        let first = FIRST_BUCKETS.min(buckets.len());
        let mut count = 0u64;
        while count < wide(first) && budget.grow_buckets(BUCKET_BYTES) {
            count = count.saturating_add(1);
        }
        let [count, entries, sweep_hand, walks] = [count, 0, 0, 0].map(AtomicU64::new);
        Self { buckets, count, growing: Mutex::new(()), entries, sweep_hand, walks, dirty }
    }

    pub(super) fn count(&self) -> usize {
        usize::try_from(self.count.load(Acquire)).unwrap_or(0)
    }

    /// The number of buckets, for [`Tag::candidates`].
    #[inline]
    pub(super) fn size(&self) -> TableSize {
        TableSize::of(self.count())
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    pub(super) fn added(&self) {
        self.entries.fetch_add(1, Relaxed);
    }

    pub(super) fn removed(&self) {
        self.entries.fetch_sub(1, Relaxed);
    }

    /// Whether the table is so full that it should grow: otherwise many states are not in their home, where they are looked
    /// for first.
    pub(super) fn is_dense(&self) -> bool {
        self.entries() > wide(self.count()).saturating_mul(TARGET_LOAD)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "candidates are below the count, which is not above the length"
    )]
    fn bucket(&self, place: usize) -> &Bucket {
        &self.buckets[place]
    }

    fn lock(&self, place: usize) -> LockedBucket<'_> {
        self.bucket(place).lock().noting(self.dirty_bits(place))
    }

    fn try_lock(&self, place: usize) -> Option<LockedBucket<'_>> {
        Some(self.bucket(place).try_lock()?.noting(self.dirty_bits(place)))
    }

    /// Locks a bucket if it still is as the snapshot says, see [`Bucket::lock_if_unchanged`].
    #[inline]
    pub(super) fn lock_if_unchanged<'t>(
        &'t self,
        bucket: &'t Bucket,
        snapshot: &EntrySnapshot,
    ) -> Option<LockedBucket<'t>> {
        let locked = bucket.lock_if_unchanged(snapshot)?;
        Some(locked.noting(self.dirty_bits_of(bucket)))
    }

    fn dirty_bits(&self, place: usize) -> Option<&DirtyBits> {
        self.dirty.as_ref()?.get(place)
    }

    /// The dirty bits of a bucket of this table. Its place follows from its address.
    #[inline]
    fn dirty_bits_of(&self, bucket: &Bucket) -> Option<&DirtyBits> {
        let dirty = self.dirty.as_ref()?;
        let from_start =
            std::ptr::from_ref(bucket).addr().wrapping_sub(self.buckets.as_ptr().addr());
        dirty.get(from_start.checked_div(size_of::<Bucket>())?)
    }

    /// The first candidate of a state. It also has the Bloom filter in which the state is remembered when it is demoted.
    pub(super) fn home(&self, tag: Tag) -> &Bucket {
        self.bucket(tag.home(self.size()))
    }

    /// Locks the home of a state without waiting. `None` when another thread has it, or when it is not the home any more.
    pub(super) fn try_lock_home(&self, tag: Tag) -> Option<LockedBucket<'_>> {
        let home = self.home(tag);
        let locked = home.try_lock()?.noting(self.dirty_bits_of(home));
        std::ptr::eq(home, self.home(tag)).then_some(locked)
    }

    /// Asks the processor to fetch the home of a state, where the state probably is.
    #[inline]
    pub(super) fn prefetch(&self, tag: Tag, size: TableSize) {
        self.prefetch_place(tag.home(size));
    }

    /// Asks the processor to fetch both candidates of a state that is needed next: fetching one bucket too many costs less than
    /// waiting for memory twice.
    pub(super) fn prefetch_both(&self, tag: Tag, size: TableSize) {
        tag.candidates(size).into_iter().for_each(|place| self.prefetch_place(place));
    }

    /// Reads a state without a lock. Also says in which candidate it looked last. If the table has grown since it had this size, it
    /// may miss the state.
    #[inline(always)] // a take then has fewer instructions
    pub(super) fn read(&self, tag: Tag, size: TableSize) -> (Candidate, &Bucket, Read) {
        let bucket = self.bucket(tag.home(size));
        match bucket.read(tag.0) {
            Read::Missing => {
                let bucket = self.bucket(tag.second(size));
                (Candidate::Second, bucket, bucket.read(tag.0))
            }
            read @ (Read::Found(_) | Read::Busy) => (Candidate::First, bucket, read),
        }
    }

    /// Moves a state from its second candidate to its home, if there is a free slot. So as the table grows, states end up where
    /// they are looked for first.
    pub(super) fn move_home(&self, tag: Tag) {
        if !self.home(tag).seems_free() {
            return;
        }
        let mut held = self.lock_all(&[tag]);
        let (from, to) = (held.find(tag), held.free(tag));
        let [first, _] = held.candidates(tag);
        if let (Some(from), Some(to)) = (from, to)
            && self.may_move()
            && to.bucket == first
            && from.bucket != first
            && let Some(entry) = held.get(from)
        {
            held.put(to, entry);
            held.clear(from);
        }
    }

    /// Locks all candidates of some states.
    pub(super) fn lock_all(&self, tags: &[Tag]) -> LockedBuckets<'_> {
        let places = || {
            let size = self.size();
            let mut places: PlanVec<usize> =
                tags.iter().flat_map(|tag| tag.candidates(size)).collect();
            places.sort_unstable();
            places.dedup();
            places
        };
        loop {
            let candidates = places();
            let locked = candidates.iter().map(|place| (*place, self.lock(*place)));
            let held = LockedBuckets { table: self, buckets: locked.collect() };
            if places() == candidates {
                return held;
            }
        }
    }

    /// The next bucket from `from` on that changed since its bits were last taken, and which of its slots did. `None` when there
    /// is none. Takes the bits.
    pub(super) fn next_changed(&self, from: usize) -> Option<(usize, u8)> {
        let dirty = self.dirty.as_ref()?.get(from..self.count())?;
        let changed = dirty.iter().position(DirtyBits::seem_set)?;
        let place = from.saturating_add(changed);
        Some((place, self.dirty_bits(place)?.take()))
    }

    /// Asks the processor to fetch a bucket, and its dirty bits.
    pub(super) fn prefetch_place(&self, place: usize) {
        self.buckets.prefetch(place);
        self.dirty.iter().for_each(|dirty| dirty.prefetch(place));
    }

    /// Reads slots of a bucket as of one instant, without its lock. `false` when they have to be read under the lock.
    pub(super) fn read_plain(&self, place: usize, slots: u8, to: &mut Vec<Entry>) -> bool {
        self.bucket(place).read_plain(slots, to)
    }

    /// Locks a bucket by its place, unless the table is smaller.
    pub(super) fn lock_place(&self, place: usize) -> Option<LockedBucket<'_>> {
        (place < self.count()).then(|| self.lock(place))
    }

    /// Takes the bits of all buckets.
    pub(super) fn forget_changes(&self) {
        self.dirty.iter().flat_map(|dirty| dirty.iter()).for_each(|bits| _ = bits.take());
    }

    /// Locks the next bucket to sweep, unless another thread has it locked.
    pub(super) fn lock_next_to_sweep(&self) -> Option<LockedBucket<'_>> {
        let sweep_hand = usize::try_from(self.sweep_hand.fetch_add(1, Relaxed)).unwrap_or(0);
        let place = sweep_hand.checked_rem(self.count())?;
        self.try_lock(place)
    }

    /// Visits every bucket, locked. Every state that exists during the whole walk is seen exactly once, also while the table
    /// grows.
    ///
    /// A split moves states from a bucket to a new one at the end. So the walk visits the buckets that existed when it began,
    /// one after another. With each of them, while it is locked, it visits the buckets that were split off it since. A state that
    /// moves stays within that family, and what is split off later was seen already. Nothing else moves a state during a
    /// walk: a thread that wants to move one first locks the bucket to which the state would go, and then checks for a walk. If
    /// the walk has visited that bucket before, the thread sees it.
    pub(super) fn walk(&self, mut visit: impl FnMut(&LockedBucket<'_>)) {
        self.walks.fetch_add(1, Relaxed);
        let first = self.count();
        (0..first).for_each(|place| self.visit_family(place, first, &mut visit));
        self.walks.fetch_sub(1, Relaxed);
    }

    /// Visits a bucket, and the buckets from `first` on that were split off it. Locks in ascending order, like all code here.
    fn visit_family(&self, place: usize, first: usize, visit: &mut impl FnMut(&LockedBucket<'_>)) {
        let bucket = self.lock(place);
        visit(&bucket);
        // A split of this bucket needs its lock to raise the count. So under the lock the count includes all its children.
        let count = self.count();
        let children = children(place).take_while(|child| *child < count);
        let new = children.filter(|child| *child >= first);
        new.for_each(|child| self.visit_family(child, first, visit));
    }

    /// Whether states may move. The caller has locked the bucket to which a state would move.
    fn may_move(&self) -> bool {
        self.walks.load(Relaxed) == 0
    }

    /// Adds a bucket, unless the budget is spent or another thread is adding one. The caller has no bucket locked.
    pub(super) fn grow(&self, budget: &Budget) {
        if let Some(growing) = try_lock(&self.growing) {
            self.split_next(budget, &growing);
        }
    }

    /// Adds some buckets, unless the budget is spent. Waits for another thread that is adding one: this caller cannot go on
    /// before the table has grown. The caller has no bucket locked.
    pub(super) fn grow_by(&self, buckets: usize, budget: &Budget) {
        let growing = lock(&self.growing);
        (0..buckets).for_each(|_| self.split_next(budget, &growing));
    }

    /// Splits the next bucket off its parent (linear hashing).
    fn split_next(&self, budget: &Budget, _growing: &MutexGuard<'_, ()>) {
        let count = self.count();
        if count >= self.buckets.len() || !budget.grow_buckets(BUCKET_BYTES) {
            return;
        }
        let (parent, child) = (parent(count), count);
        let (mut from, mut to) = (self.lock(parent), self.lock(child));
        let grown = count.saturating_add(1);
        let moved: SmallVec<[(Slot, Entry); SLOTS]> = from
            .entries()
            .filter(|(_, entry)| !Tag(entry.tag).candidates(TableSize::of(grown)).contains(&parent))
            .collect();
        // Bits of a Bloom filter do not say whose they are, so both buckets get them.
        for (slot, _, _) in from.bucket().pages() {
            if let Some(free) = to.free() {
                to.put(free, from.get(slot));
            }
        }
        for (slot, entry) in moved {
            if let Some(free) = to.free() {
                to.put(free, entry);
                from.clear(slot);
            }
        }
        // Release, under both locks: a thread that locks one of them afterwards sees the new count.
        self.count.store(wide(grown), Release);
    }

    /// Whether the table has reached its final size.
    pub(super) fn cannot_grow(&self, budget: &Budget) -> bool {
        self.count() >= self.buckets.len() || !budget.has_for_buckets(BUCKET_BYTES)
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

// === impl LockedBuckets ===

impl<'t> LockedBuckets<'t> {
    pub(super) fn find(&self, tag: Tag) -> Option<Location> {
        let places = self.candidates(tag);
        places.into_iter().find_map(|bucket| {
            let slot = self.locked(bucket)?.find(tag.0)?;
            Some(Location { bucket, slot })
        })
    }

    /// Reserves a free slot for a state: puts an empty state there, so that no other state gets the slot.
    pub(super) fn reserve(&mut self, tag: Tag) -> Option<Location> {
        let at = self.free(tag)?;
        self.put(at, Entry { tag: tag.0, limit_number: 0, in_blocks: false, word: 0 });
        Some(at)
    }

    /// A free slot for a state, preferably in its home.
    pub(super) fn free(&self, tag: Tag) -> Option<Location> {
        let places = self.candidates(tag);
        places.into_iter().find_map(|bucket| {
            let slot = self.locked(bucket)?.free()?;
            Some(Location { bucket, slot })
        })
    }

    /// The home of a state, if it is locked.
    pub(super) fn home(&mut self, tag: Tag) -> Option<&mut LockedBucket<'t>> {
        let [first, _] = self.candidates(tag);
        self.locked_mut(first)
    }

    /// Calls `change` with each candidate of a state; returns whether one of the calls returned true.
    pub(super) fn any_candidate(
        &mut self,
        tag: Tag,
        mut change: impl FnMut(&mut LockedBucket<'_>) -> bool,
    ) -> bool {
        let places = self.candidates(tag);
        places.map(|place| self.locked_mut(place).is_some_and(&mut change)).contains(&true)
    }

    /// All states in the candidates of this one.
    pub(super) fn neighbours(&self, tag: Tag) -> impl Iterator<Item = (Location, Entry)> {
        let [first, second] = self.candidates(tag);
        let places = [Some(first), Some(second).filter(|second| *second != first)];
        places.into_iter().flatten().flat_map(|bucket| {
            let entries = self.locked(bucket).into_iter().flat_map(LockedBucket::entries);
            entries.map(move |(slot, entry)| (Location { bucket, slot }, entry))
        })
    }

    /// Cuckoo displacement: moves a state to its other candidate, if that has a free slot and can be locked without waiting.
    pub(super) fn displace(&mut self, at: Location, entry: Entry) -> bool {
        let Some(there) = self.other(at.bucket, Tag(entry.tag)) else { return false };
        if self.locked(there).is_some() {
            let slot = self.locked(there).and_then(LockedBucket::free);
            let Some(slot) = slot.filter(|_| self.table.may_move()) else { return false };
            self.put(Location { bucket: there, slot }, entry);
        } else {
            let Some(mut locked) = self.try_lock(there, at.bucket, entry) else { return false };
            let Some(slot) = locked.free() else { return false };
            locked.put(slot, entry);
        }
        self.clear(at);
        true
    }

    /// Cuckoo displacement, two moves deep: moves a state to its other candidate, which is full, after displacing a state from
    /// there.
    pub(super) fn displace_twice(&mut self, at: Location, entry: Entry) -> bool {
        let there = self.other(at.bucket, Tag(entry.tag));
        let Some(there) = there.filter(|there| self.locked(*there).is_none()) else { return false };
        let Some(mut locked) = self.try_lock(there, at.bucket, entry) else { return false };
        let moved = locked.entries().find_map(|(slot, next)| {
            let beyond = self.other(there, Tag(next.tag))?;
            if self.locked(beyond).is_some() {
                return None; // it is full, or `displace` would have used it
            }
            let mut beyond = self.try_lock(beyond, there, next)?;
            let free = beyond.free()?;
            beyond.put(free, next);
            Some(slot)
        });
        let Some(slot) = moved else { return false };
        locked.put(slot, entry);
        self.clear(at);
        true
    }

    /// The other candidate of a state that is in this bucket.
    fn other(&self, bucket: usize, tag: Tag) -> Option<usize> {
        self.candidates(tag).into_iter().find(|place| *place != bucket)
    }

    /// Locks the other candidate of a state without waiting. `None` also when the bucket is no candidate any more, and while
    /// states may not move.
    fn try_lock(&self, there: usize, from: usize, entry: Entry) -> Option<LockedBucket<'t>> {
        let locked = self.table.try_lock(there)?;
        let usable = self.other(from, Tag(entry.tag)) == Some(there) && self.table.may_move();
        usable.then_some(locked)
    }

    pub(super) fn get(&self, at: Location) -> Option<Entry> {
        self.locked(at.bucket).map(|locked| locked.get(at.slot))
    }

    /// The bucket of a location, and the slot in it.
    pub(super) fn in_bucket(&mut self, at: Location) -> Option<(&mut LockedBucket<'t>, Slot)> {
        self.locked_mut(at.bucket).map(|bucket| (bucket, at.slot))
    }

    pub(super) fn put(&mut self, at: Location, entry: Entry) {
        if let Some(locked) = self.locked_mut(at.bucket) {
            locked.put(at.slot, entry);
        }
    }

    pub(super) fn clear(&mut self, at: Location) {
        if let Some(locked) = self.locked_mut(at.bucket) {
            locked.clear(at.slot);
        }
    }

    /// Whether a sweep is due: at every 256th use of the first of these buckets.
    pub(super) fn is_sweep_due(&self) -> bool {
        self.buckets.first().is_some_and(|(_, locked)| locked.is_sweep_due())
    }

    fn candidates(&self, tag: Tag) -> [usize; 2] {
        tag.candidates(self.table.size())
    }

    fn locked(&self, place: usize) -> Option<&LockedBucket<'t>> {
        self.buckets.iter().find(|(at, _)| *at == place).map(|(_, locked)| locked)
    }

    fn locked_mut(&mut self, place: usize) -> Option<&mut LockedBucket<'t>> {
        self.buckets.iter_mut().find(|(at, _)| *at == place).map(|(_, locked)| locked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state is in its second candidate, and its home has a free slot. A walk has visited the home when another thread
    /// tries to move the state there. The walk must still see the state, once.
    #[test]
    fn a_walk_sees_a_state_once_that_another_thread_wants_to_move() {
        let table = Table::new(&Budget::new(1 << 20), Kept::InMemory);
        let ascending = |tag: &Tag| {
            let [first, second] = tag.candidates(table.size());
            first + 2 <= second
        };
        let tag = (1..).map(Tag).find(ascending).unwrap();
        let entry = Entry { tag: tag.0, limit_number: 7, in_blocks: false, word: 9 };
        let [first, second] = tag.candidates(table.size());
        {
            let mut bucket = table.bucket(second).lock();
            let slot = bucket.free().unwrap();
            bucket.put(slot, entry);
        }
        let (mut seen, mut visited) = (0, 0);
        table.walk(|bucket| {
            seen += bucket.entries().filter(|(_, found)| *found == entry).count();
            visited += 1;
            // Between the two buckets, when the walk has neither locked.
            if visited == first + 2 && visited <= second {
                table.move_home(tag);
            }
        });
        assert_eq!(seen, 1);
        table.move_home(tag);
        assert!(table.bucket(first).lock().find(tag.0).is_some(), "it moves after the walk");
    }

    /// The table grows during a walk: bucket 64 is split off bucket 0, 65 off 1, and so on. Whether a bucket is split before or
    /// after the walk reaches it, its states are seen once. (They were seen twice: in the bucket, and in the one that was split
    /// off it.)
    #[test]
    fn a_walk_sees_states_once_while_the_table_grows() {
        const STATES: usize = 200;
        for (grown_before, grown_at) in [(0, 40), (1, 0), (10, 5), (30, 20), (63, 70), (64, 40)] {
            let budget = Budget::new(1 << 20);
            let table = Table::new(&budget, Kept::InMemory);
            (0..grown_before).for_each(|_| table.grow(&budget));
            for tag in 1..=STATES {
                let mut held = table.lock_all(&[Tag(wide(tag))]);
                assert!(held.reserve(Tag(wide(tag))).is_some());
            }
            let (mut seen, mut visited) = (vec![], 0);
            table.walk(|bucket| {
                seen.extend(bucket.entries().map(|(_, entry)| entry.tag));
                if visited == grown_at {
                    // The next bucket to be split is not the one that the walk has locked.
                    (0..30).for_each(|_| table.grow(&budget));
                }
                visited += 1;
            });
            assert_eq!(seen.len(), STATES, "{grown_before} before, 30 at {grown_at}");
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), STATES, "{grown_before} before, 30 at {grown_at}");
        }
    }
}
