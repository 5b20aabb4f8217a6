//! The buckets: where a state is looked for, and how the table grows under those who use it.
//!
//! A state is in one of two buckets, its candidates. The number of buckets grows by one at a time: bucket `n` is
//! split off bucket `n − p`, where `p` is the largest power of two up to `n` (linear hashing). So there is no
//! moment at which everything is moved, and no memory is ever given up: bucket `i` is at the same address for ever.
//!
//! ```text
//!   count = 6      0   1   2   3 │ 4   5            a hash that ends in 110 has no bucket 6 yet:
//!                  └───┼─────────┘   │              it is looked for in bucket 2, the parent of 6
//!                      └─────────────┘
//! ```
//!
//! **Locks.** Whoever holds several buckets locked them in ascending order, so nobody waits in a circle; whoever
//! wants one more out of order may only try. A split holds both of its buckets while it publishes the new count,
//! so whoever has locked a candidate asks again whether it still is one.

use super::bucket::{Bucket, Entry, Locked, MARKS, Read, SLOTS, Slot};
use super::budget::Budget;
use super::marks;
use super::region::Region;
use crate::sync::{AtomicU64, Mutex, MutexGuard, lock, try_lock};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tidegate_core::{Now, StateId};

/// Most plans have a few takes, with two buckets each.
pub(super) type Four<T> = SmallVec<[T; 4]>;

/// What a bucket takes of the budget: two cache lines.
const BUCKET_BYTES: usize = 128;
/// Buckets at the beginning: so many that no plan locks them all. In models few, so that they meet and grow.
const FIRST_BUCKETS: usize = if cfg!(any(loom, shuttle)) { 4 } else { 64 };
/// So many slots of a bucket are taken, on average, before another bucket is added.
const FULL_ENOUGH: u64 = 4;

/// The 64 bits of a state's name by which the table knows it; never 0, and below those that stand for [`MARKS`].
///
/// They are bits of a hash under the deployment's secret, which nobody can aim at. By accident, a million states
/// share one with odds of 1 in 37 million: n²/2 pairs, 2⁶⁴ tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u64);

/// The buckets.
#[derive(Debug)]
pub(super) struct Table {
    buckets: Region<Bucket>,
    /// How many of them are in use. Grows only, and only under the locks of both buckets of a split.
    count: AtomicU64,
    growing: Mutex<()>,
    /// How many slots are taken. Relaxed: it decides when to grow and to look around, and nothing else.
    entries: AtomicU64,
    /// The bucket that is looked at next for having expired.
    hand: AtomicU64,
    /// How many walk over all buckets just now: meanwhile no state moves, or a walk could miss it.
    walks: AtomicU64,
}

/// Buckets that are locked together.
#[derive(Debug)]
pub(super) struct Held<'t> {
    table: &'t Table,
    buckets: Four<(usize, Locked<'t>)>,
}

/// Which of the two buckets in which a state may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    First,
    Second,
}

/// Where a state is among locked buckets.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    bucket: usize,
    slot: Slot,
}

// === impl Tag ===

impl Tag {
    pub(super) fn of(id: StateId) -> Self {
        match u64::try_from(id.0 & u128::from(u64::MAX)).unwrap_or(0) {
            0 => Self(MARKS.saturating_sub(1)),
            marks @ MARKS.. => Self(marks ^ (1 << 63)),
            tag => Self(tag),
        }
    }

    /// Two hashes. Tags are hashes already, but for tests, which like small numbers.
    fn hashes(self) -> [usize; 2] {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed ^ (mixed >> 32);
        [mixed & 0xffff_ffff, mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32]
            .map(|half| usize::try_from(half).unwrap_or(0))
    }

    fn candidates(self, count: usize) -> [usize; 2] {
        self.hashes().map(|hash| place(hash, count))
    }
}

/// The bucket of a hash, among so many.
pub(super) fn place(hash: usize, count: usize) -> usize {
    let mask = count.next_power_of_two().saturating_sub(1);
    let place = hash & mask;
    if place < count { place } else { place & (mask >> 1) }
}

// === impl Table ===

impl Table {
    pub(super) fn new(budget: &Budget) -> Self {
        let buckets = Region::reserve(budget.most_of_one() / BUCKET_BYTES);
        let first = FIRST_BUCKETS.min(buckets.len());
        let mut count = 0u64;
        while count < wide(first) && budget.grow_buckets(BUCKET_BYTES) {
            count = count.saturating_add(1);
        }
        let [count, entries, hand, walks] = [count, 0, 0, 0].map(AtomicU64::new);
        Self { buckets, count, growing: Mutex::new(()), entries, hand, walks }
    }

    pub(super) fn count(&self) -> usize {
        usize::try_from(self.count.load(Acquire)).unwrap_or(0)
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

    /// Whether more slots are taken than there should be: then most states are not where they are looked for first.
    pub(super) fn is_dense(&self) -> bool {
        self.entries() > wide(self.count()).saturating_mul(FULL_ENOUGH)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "candidates are below the count, which is not above the length"
    )]
    fn bucket(&self, place: usize) -> &Bucket {
        &self.buckets[place]
    }

    /// The first candidate of a state, where it is marked when it is demoted.
    pub(super) fn home(&self, tag: Tag) -> &Bucket {
        let [first, _] = tag.hashes();
        self.bucket(place(first, self.count()))
    }

    /// Locks the home of a state, if that takes no waiting and if it still is its home then.
    pub(super) fn try_lock_home(&self, tag: Tag) -> Option<Locked<'_>> {
        let home = self.home(tag).try_lock()?;
        std::ptr::eq(home.bucket(), self.home(tag)).then_some(home)
    }

    /// Asks the processor to fetch where a state probably is.
    pub(super) fn prefetch(&self, tag: Tag) {
        let [first, _] = tag.hashes();
        self.buckets.prefetch(place(first, self.count()));
    }

    /// Asks the processor to fetch everywhere that a state can be: for one that is needed next, when waiting twice is worse
    /// than fetching too much.
    pub(super) fn prefetch_both(&self, tag: Tag) {
        tag.candidates(self.count()).into_iter().for_each(|place| self.buckets.prefetch(place));
    }

    /// Reads what is there of a state, without a lock; and where it looked last.
    #[inline(never)] // inlined, it has fewer instructions and takes a fifth longer: the processor waits where it need not
    pub(super) fn read(&self, tag: Tag) -> (Candidate, &Bucket, Read) {
        let count = self.count();
        let [first, second] = tag.hashes();
        let bucket = self.bucket(place(first, count));
        match bucket.read(tag.0) {
            Read::Missing => {
                let bucket = self.bucket(place(second, count));
                (Candidate::Second, bucket, bucket.read(tag.0))
            }
            read @ (Read::Found(_) | Read::Busy) => (Candidate::First, bucket, read),
        }
    }

    /// Brings a state from its second candidate to its first, if there is a free slot: as the table grows, states come
    /// to be where they are looked for first.
    pub(super) fn bring_home(&self, tag: Tag) {
        let [first, _] = tag.candidates(self.count());
        if !self.bucket(first).seems_free() {
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
    pub(super) fn lock_all(&self, tags: &[Tag]) -> Held<'_> {
        let places = || {
            let count = self.count();
            let mut places: Four<usize> =
                tags.iter().flat_map(|tag| tag.candidates(count)).collect();
            places.sort_unstable();
            places.dedup();
            places
        };
        loop {
            let candidates = places();
            let locked = candidates.iter().map(|place| (*place, self.bucket(*place).lock()));
            let held = Held { table: self, buckets: locked.collect() };
            if places() == candidates {
                return held;
            }
        }
    }

    /// Locks the next bucket that is to be looked at, unless somebody has it.
    pub(super) fn lock_next(&self) -> Option<Locked<'_>> {
        let hand = usize::try_from(self.hand.fetch_add(1, Relaxed)).unwrap_or(0);
        let place = hand.checked_rem(self.count())?;
        self.bucket(place).try_lock()
    }

    /// Visits every bucket, locked. Every state that is there all the while is seen exactly once, also while the table
    /// grows.
    ///
    /// A split moves states from a bucket to one behind the end. So the buckets that there are at the beginning are visited
    /// in turn, and with each of them, while it is locked, those that were split off it since: a state that moves stays
    /// within that family, and what is split off afterwards was seen already. Nothing else moves a state meanwhile: a thread
    /// that would asks whether there is a walk after it has locked where the state goes. If the walk was there before, the
    /// thread sees it.
    pub(super) fn walk(&self, mut visit: impl FnMut(&Locked<'_>)) {
        self.walks.fetch_add(1, Relaxed);
        let first = self.count();
        (0..first).for_each(|place| self.visit_family(place, first, &mut visit));
        self.walks.fetch_sub(1, Relaxed);
    }

    /// Visits a bucket and those from `first` on that were split off it. Locks in ascending order, as everybody does.
    fn visit_family(&self, place: usize, first: usize, visit: &mut impl FnMut(&Locked<'_>)) {
        let bucket = self.bucket(place).lock();
        visit(&bucket);
        // A split holds the lock of this bucket when it raises the count: under the lock, all of ours are below it.
        let count = self.count();
        let children = children(place).take_while(|child| *child < count);
        let new = children.filter(|child| *child >= first);
        new.for_each(|child| self.visit_family(child, first, visit));
    }

    /// Whether states may move; asked by whoever has locked the bucket to which one would.
    fn may_move(&self) -> bool {
        self.walks.load(Relaxed) == 0
    }

    /// Adds a bucket, unless the budget is spent or somebody else is at it. The caller holds no bucket.
    pub(super) fn grow(&self, budget: &Budget) {
        if let Some(growing) = try_lock(&self.growing) {
            self.grow_alone(budget, &growing);
        }
    }

    /// Adds some buckets, unless the budget is spent. Waits for whoever else is at it: who cannot go on before the table
    /// has grown must not stand in the way of its growing. The caller holds no bucket.
    pub(super) fn grow_on(&self, buckets: usize, budget: &Budget) {
        let growing = lock(&self.growing);
        (0..buckets).for_each(|_| self.grow_alone(budget, &growing));
    }

    fn grow_alone(&self, budget: &Budget, _growing: &MutexGuard<'_, ()>) {
        let count = self.count();
        if count >= self.buckets.len() || !budget.grow_buckets(BUCKET_BYTES) {
            return;
        }
        let (parent, child) = (parent(count), count);
        let (mut from, mut to) = (self.bucket(parent).lock(), self.bucket(child).lock());
        let grown = count.saturating_add(1);
        let moved: SmallVec<[(Slot, Entry); SLOTS]> = from
            .entries()
            .filter(|(_, entry)| !Tag(entry.tag).candidates(grown).contains(&parent))
            .collect();
        // Marks do not say whose they are: they hold in both buckets.
        for (slot, _, _) in from.bucket().marks() {
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
        // Release, under both locks: whoever locks one of them afterwards sees the new count.
        self.count.store(wide(grown), Release);
    }

    /// Whether it cannot grow any more.
    pub(super) fn is_full_grown(&self, budget: &Budget) -> bool {
        self.count() >= self.buckets.len() || !budget.has_for_buckets(BUCKET_BYTES)
    }
}

/// The bucket from which the bucket of this number is split off.
pub(super) fn parent(child: usize) -> usize {
    child.checked_ilog2().map_or(0, |power| child ^ (1 << power))
}

/// The buckets that are split off the bucket of this number, in ascending order.
fn children(parent: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|power| 1usize << power);
    powers.filter(move |power| *power > parent).map(move |power| parent.saturating_add(power))
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

// === impl Held ===

impl<'t> Held<'t> {
    pub(super) fn find(&self, tag: Tag) -> Option<At> {
        let places = self.candidates(tag);
        places.into_iter().find_map(|bucket| {
            let slot = self.locked(bucket)?.find(tag.0)?;
            Some(At { bucket, slot })
        })
    }

    /// Puts an empty state into a free slot for this one, so that no other gets the slot.
    pub(super) fn reserve(&mut self, tag: Tag) -> Option<At> {
        let at = self.free(tag)?;
        self.put(at, Entry { tag: tag.0, shape: 0, elsewhere: false, word: 0 });
        Some(at)
    }

    /// A free slot for a state, in its first candidate if there is one.
    pub(super) fn free(&self, tag: Tag) -> Option<At> {
        let places = self.candidates(tag);
        places.into_iter().find_map(|bucket| {
            let slot = self.locked(bucket)?.free()?;
            Some(At { bucket, slot })
        })
    }

    /// The first candidate of a state, where it is marked when it is demoted.
    pub(super) fn home(&mut self, tag: Tag) -> Option<&mut Locked<'t>> {
        let [first, _] = self.candidates(tag);
        self.locked_mut(first)
    }

    /// Frees the slots of marks that have ended, where this state could stand; answers whether there were any.
    pub(super) fn forget_marks(&mut self, tag: Tag, now: Now) -> bool {
        let places = self.candidates(tag);
        let forget = |place| self.locked_mut(place).map(|bucket| marks::forget(bucket, now));
        places.map(forget).contains(&Some(true))
    }

    /// Everything that stands where this state could stand.
    pub(super) fn neighbours(&self, tag: Tag) -> impl Iterator<Item = (At, Entry)> {
        let [first, second] = self.candidates(tag);
        let places = [Some(first), Some(second).filter(|second| *second != first)];
        places.into_iter().flatten().flat_map(|bucket| {
            let entries = self.locked(bucket).into_iter().flat_map(Locked::entries);
            entries.map(move |(slot, entry)| (At { bucket, slot }, entry))
        })
    }

    /// Moves a state to its other candidate, if there is a free slot that can be had without waiting.
    pub(super) fn move_away(&mut self, at: At, entry: Entry) -> bool {
        let Some(there) = self.other(at.bucket, Tag(entry.tag)) else { return false };
        if self.locked(there).is_some() {
            let slot = self.locked(there).and_then(Locked::free);
            let Some(slot) = slot.filter(|_| self.table.may_move()) else { return false };
            self.put(At { bucket: there, slot }, entry);
        } else {
            let Some(mut locked) = self.try_lock(there, at.bucket, entry) else { return false };
            let Some(slot) = locked.free() else { return false };
            locked.put(slot, entry);
        }
        self.clear(at);
        true
    }

    /// Moves a state to its other candidate, out of which another state can move to its own.
    pub(super) fn move_further(&mut self, at: At, entry: Entry) -> bool {
        let there = self.other(at.bucket, Tag(entry.tag));
        let Some(there) = there.filter(|there| self.locked(*there).is_none()) else { return false };
        let Some(mut locked) = self.try_lock(there, at.bucket, entry) else { return false };
        let moved = locked.entries().find_map(|(slot, next)| {
            let beyond = self.other(there, Tag(next.tag))?;
            if self.locked(beyond).is_some() {
                return None; // full: there was no room in it
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

    /// The candidate of a state that is not this bucket.
    fn other(&self, bucket: usize, tag: Tag) -> Option<usize> {
        self.candidates(tag).into_iter().find(|place| *place != bucket)
    }

    /// Locks the other candidate of a state, if that takes no waiting, if it still is one then, and if states may move.
    fn try_lock(&self, there: usize, from: usize, entry: Entry) -> Option<Locked<'t>> {
        let locked = self.table.bucket(there).try_lock()?;
        let usable = self.other(from, Tag(entry.tag)) == Some(there) && self.table.may_move();
        usable.then_some(locked)
    }

    pub(super) fn get(&self, at: At) -> Option<Entry> {
        self.locked(at.bucket).map(|locked| locked.get(at.slot))
    }

    /// The bucket of a place, and its slot there.
    pub(super) fn in_bucket(&mut self, at: At) -> Option<(&mut Locked<'t>, Slot)> {
        self.locked_mut(at.bucket).map(|bucket| (bucket, at.slot))
    }

    pub(super) fn put(&mut self, at: At, entry: Entry) {
        if let Some(locked) = self.locked_mut(at.bucket) {
            locked.put(at.slot, entry);
        }
    }

    pub(super) fn clear(&mut self, at: At) {
        if let Some(locked) = self.locked_mut(at.bucket) {
            locked.clear(at.slot);
        }
    }

    /// Whether the next bucket should be looked at: after 256 uses of this one.
    pub(super) fn is_due(&self) -> bool {
        self.buckets.first().is_some_and(|(_, locked)| locked.is_due())
    }

    fn candidates(&self, tag: Tag) -> [usize; 2] {
        tag.candidates(self.table.count())
    }

    fn locked(&self, place: usize) -> Option<&Locked<'t>> {
        self.buckets.iter().find(|(at, _)| *at == place).map(|(_, locked)| locked)
    }

    fn locked_mut(&mut self, place: usize) -> Option<&mut Locked<'t>> {
        self.buckets.iter_mut().find(|(at, _)| *at == place).map(|(_, locked)| locked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state in its second candidate, beside room in its first, and how often a walk sees it that lets it be brought
    /// home as soon as the first was visited.
    #[test]
    fn a_walk_sees_a_state_that_others_want_to_move_once() {
        let table = Table::new(&Budget::new(1 << 20));
        let ascending = |tag: &Tag| {
            let [first, second] = tag.candidates(table.count());
            first + 2 <= second
        };
        let tag = (1..).map(Tag).find(ascending).unwrap();
        let entry = Entry { tag: tag.0, shape: 7, elsewhere: false, word: 9 };
        let [first, second] = tag.candidates(table.count());
        {
            let mut bucket = table.bucket(second).lock();
            let slot = bucket.free().unwrap();
            bucket.put(slot, entry);
        }
        let (mut seen, mut visited) = (0, 0);
        table.walk(|bucket| {
            seen += bucket.entries().filter(|(_, found)| *found == entry).count();
            visited += 1;
            // Between the two, when neither is locked by the walk.
            if visited == first + 2 && visited <= second {
                table.bring_home(tag);
            }
        });
        assert_eq!(seen, 1);
        table.bring_home(tag);
        assert!(table.bucket(first).lock().find(tag.0).is_some(), "it moves when nobody walks");
    }

    #[test]
    fn parents_and_children_agree() {
        for child in 1..10_000 {
            assert!(children(parent(child)).any(|other| other == child), "{child}");
            assert!(children(child).take(4).all(|grandchild| parent(grandchild) == child));
        }
    }

    /// While a walk goes on, the table grows: bucket 64 is split off bucket 0, 65 off 1, and so on. Whether a bucket is split
    /// before or after the walk comes to it, what was in it is seen once. (It was seen twice, in the bucket and in the one
    /// that was split off it.)
    #[test]
    fn a_walk_sees_states_once_while_the_table_grows() {
        const STATES: usize = 200;
        for (grown_before, grown_at) in [(0, 40), (1, 0), (10, 5), (30, 20), (63, 70), (64, 40)] {
            let budget = Budget::new(1 << 20);
            let table = Table::new(&budget);
            (0..grown_before).for_each(|_| table.grow(&budget));
            for tag in 1..=STATES {
                let mut held = table.lock_all(&[Tag(wide(tag))]);
                assert!(held.reserve(Tag(wide(tag))).is_some());
            }
            let (mut seen, mut visited) = (vec![], 0);
            table.walk(|bucket| {
                seen.extend(bucket.entries().map(|(_, entry)| entry.tag));
                if visited == grown_at {
                    // The next to be split is not the one that is locked here.
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
