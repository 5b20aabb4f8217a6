//! Collecting: what the log on disk is to be told, as records.
//!
//! A *record* is absolute: it says what a state is, not how it changed. So the last record of a state wins, and a record that is
//! lost or damaged does no harm to those after it. A *collection* of what changed has these steps; their order matters:
//!
//! ```text
//!   1  take the list of states that are gone
//!   2  go over the buckets: take the dirty bits, read the slots           frame by frame; at the end of each frame
//!                                                                         take the receipts that were settled
//!   3  the same for the lines of the sketch
//!   4  record as gone those of step 1 that are still not in the table
//! ```
//!
//! - *Receipts.* A settlement marks its receipt first and gives back afterwards. A frame reads states first and takes the receipts
//!   afterwards. So if a state in a frame was given something back, the frame or an earlier one has the receipt, and it is not
//!   settled again after a crash.
//! - *States that are gone.* A state that is demoted leaves its use in the sketch or in a Bloom filter, and then its slot. The log
//!   may have an older state of it. That must be forgotten after a crash, but not before the log has what the sketch or the filter
//!   remembers: steps 2 and 3 record that.
//! - *No instant in common.* The states of a collection are not of one instant, as the states of a plan are in memory. Each by
//!   itself is a value that it had during the collection.
//!
//! A collection of *everything*, for a snapshot, reads all slots and lines whether they changed or not. States may move meanwhile
//! and be missed: then their new slots are dirty, and the next collection of changes has them.

use super::Memory;
use super::bucket::{ALL_SLOTS, Entry, FIRST_PAGE_TAG, SLOTS};
use super::limit_numbers::NumberedLimits;
use super::receipts::SettledReceipt;
use super::sketch::{SketchGeometry, SketchLine};
use super::tag::Tag;
use crate::sync::lock;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::{Limit, NamedBy, Now, StateId};

/// Buckets that are fetched together.
const AHEAD: usize = 16;

/// Buckets to collect, and which of their slots.
type Group = SmallVec<[(usize, u8); AHEAD]>;

/// What the log is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'r> {
    /// A state of one word; empty if the word is 0.
    Word { tag: u64, number: u16, word: u64 },
    /// A larger state, as [`State::write`](tidegate_core::State::write) writes it.
    Bytes { tag: u64, number: u16, bytes: &'r [u8] },
    /// All pages of the Bloom filter of a bucket, as tags and words.
    Pages { bucket: u64, pages: &'r [(u64, u64)] },
    /// A line of the sketch.
    Line(SketchLine),
    /// A settled receipt.
    Receipt(SettledReceipt),
    /// The state is not in the table: what is remembered of it counts.
    Gone { tag: u64 },
}

/// Who writes records.
pub(crate) trait Recorder {
    /// Whether it knows the limit of a number.
    fn has_limit(&self, number: u16) -> bool;

    /// The limit of a number, before the first record with that number.
    fn limit(&mut self, number: u16, limit: &Limit, by: NamedBy);

    fn record(&mut self, record: Record<'_>);

    /// Whether it should be given no more records.
    fn is_full(&self) -> bool;
}

/// What is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    /// What changed since it was last collected.
    Changes,
    /// Everything that counts, for a snapshot.
    Everything,
}

/// How far a collection has come.
#[derive(Debug)]
pub(crate) struct Hand {
    collected: Collected,
    next: Next,
    /// The states that were gone when it began.
    gone: Vec<Tag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Bucket(usize),
    Line(usize),
    Receipts(usize),
    Gone(usize),
    Nothing,
}

/// Whether a frame is the last of its collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    Unfinished,
    Finished,
}

impl Memory {
    /// Begins a collection. Also says whether changes were lost, so that only a collection of everything is complete.
    pub(crate) fn begin_collection(&self, collected: Collected) -> (Hand, bool) {
        let (gone, overflowed) = match (collected, &self.gone) {
            (Collected::Changes, Some(gone)) => lock(gone).take(),
            (Collected::Changes, None) | (Collected::Everything, _) => (vec![], false),
        };
        (Hand { collected, next: Next::Bucket(0), gone }, overflowed)
    }

    /// Begins a collection of all settled receipts.
    pub(crate) const fn begin_receipts() -> Hand {
        Hand { collected: Collected::Everything, next: Next::Receipts(0), gone: vec![] }
    }

    /// Records the next part of a collection, until the recorder is full or nothing is left. Also says whether changes were
    /// lost.
    pub(crate) fn collect(&self, hand: &mut Hand, recorder: &mut impl Recorder) -> (Writing, bool) {
        let now = self.clock.now();
        while !recorder.is_full() {
            hand.next = match hand.next {
                Next::Bucket(from) => self.collect_buckets(from, hand.collected, now, recorder),
                Next::Line(from) => self.collect_line(from, hand.collected, recorder),
                Next::Receipts(place) => self.collect_receipts(place, recorder),
                Next::Gone(at) => self.collect_gone(hand.gone.get(at).copied(), at, recorder),
                Next::Nothing => break,
            };
            if hand.collected == Collected::Changes && matches!(hand.next, Next::Receipts(_)) {
                hand.next = Next::Gone(0);
            }
        }
        let (fresh, overflowed) = match hand.collected {
            Collected::Changes => lock(&self.settled).take_fresh(),
            Collected::Everything => (vec![], false),
        };
        fresh.into_iter().for_each(|receipt| recorder.record(Record::Receipt(receipt)));
        let finished = hand.next == Next::Nothing;
        (if finished { Writing::Finished } else { Writing::Unfinished }, overflowed)
    }

    /// How the lines of the sketch are divided.
    pub(crate) fn sketch_geometry(&self) -> SketchGeometry {
        self.sketch.geometry()
    }

    /// How many buckets the table has.
    pub(crate) fn buckets(&self) -> usize {
        self.table.count()
    }

    fn collect_buckets(
        &self,
        from: usize,
        collected: Collected,
        now: Now,
        recorder: &mut impl Recorder,
    ) -> Next {
        let mut next = from;
        let mut group = self.next_group(&mut next, collected);
        while !group.is_empty() {
            // The next buckets are fetched while these are read.
            let following = match recorder.is_full() {
                true => Group::new(),
                false => self.next_group(&mut next, collected),
            };
            self.collect_group(&group, collected, now, recorder);
            group = following;
        }
        if recorder.is_full() { Next::Bucket(next) } else { Next::Line(0) }
    }

    /// The next buckets to collect, which the processor is asked to fetch. Empty when none is left.
    fn next_group(&self, next: &mut usize, collected: Collected) -> Group {
        let mut group = Group::new();
        while group.len() < AHEAD
            && let Some((place, slots)) = self.next_bucket(*next, collected)
        {
            self.table.prefetch_place(place);
            group.push((place, slots));
            *next = place.saturating_add(1);
        }
        group
    }

    /// The next bucket to collect, and which of its slots.
    fn next_bucket(&self, from: usize, collected: Collected) -> Option<(usize, u8)> {
        match collected {
            Collected::Changes => self.table.next_changed(from),
            Collected::Everything => (from < self.table.count()).then_some((from, u8::MAX)),
        }
    }

    /// Records slots of some buckets, which are not locked if that can be avoided.
    ///
    /// The limits are locked after a bucket, as everywhere: a thread that waits for a bucket while it has locked the limits, and one
    /// that waits for the limits while it has locked that bucket, would wait for each other.
    fn collect_group(
        &self,
        changed: &Group,
        collected: Collected,
        now: Now,
        recorder: &mut impl Recorder,
    ) {
        let epoch = self.limit_numbers.epoch();
        let mut read = Vec::with_capacity(AHEAD);
        let left: Group = changed
            .iter()
            .filter(|(place, slots)| !self.table.read_plain(*place, *slots, &mut read))
            .copied()
            .collect();
        let limits = self.limit_numbers.limits();
        // In the same epoch, the numbers in the slots still mean the same limits.
        let is_current = self.limit_numbers.is_current(epoch);
        if is_current {
            for entry in &read {
                self.collect_state(entry, collected, &limits, now, recorder);
            }
        }
        drop(limits);
        for (place, slots) in if is_current { &left } else { changed } {
            self.collect_locked(*place, *slots, collected, now, recorder);
        }
    }

    /// Records slots of a bucket under its lock.
    fn collect_locked(
        &self,
        place: usize,
        slots: u8,
        collected: Collected,
        now: Now,
        recorder: &mut impl Recorder,
    ) {
        let Some(bucket) = self.table.lock_place(place) else { return };
        let entries = ALL_SLOTS.map(|slot| bucket.get(slot));
        let limits = self.limit_numbers.limits();
        let in_slots = || entries.iter().zip(ALL_SLOTS).filter(|(_, slot)| slot.bit() & slots != 0);
        for (entry, _) in in_slots().filter(|(entry, _)| entry.tag != 0 && !is_page(entry)) {
            self.collect_state(entry, collected, &limits, now, recorder);
        }
        if in_slots().any(|(entry, _)| is_page(entry)) {
            let pages = entries.iter().filter(|entry| is_page(entry));
            let pages: SmallVec<[(u64, u64); SLOTS]> =
                pages.map(|entry| (entry.tag, entry.word)).collect();
            let bucket = u64::try_from(place).unwrap_or(u64::MAX);
            recorder.record(Record::Pages { bucket, pages: &pages });
        }
    }

    /// Records a state. If it is in blocks, its bucket is locked.
    fn collect_state(
        &self,
        entry: &Entry,
        collected: Collected,
        limits: &NumberedLimits,
        now: Now,
        recorder: &mut impl Recorder,
    ) {
        let Entry { tag, limit_number: number, in_blocks, word } = *entry;
        // A snapshot leaves out what has expired.
        if collected == Collected::Everything && self.has_expired(entry, limits, now) {
            return;
        }
        // The slot mentions the number, so the number has its limit, and keeps it while the limits are locked for reading.
        if !recorder.has_limit(number)
            && let Some(limit) = limits.limit(number)
        {
            recorder.limit(number, limit, self.limit_numbers.named_by(number));
        }
        if in_blocks {
            recorder.record(Record::Bytes { tag, number, bytes: &self.blocks.read(word) });
        } else {
            recorder.record(Record::Word { tag, number, word });
        }
    }

    fn collect_line(
        &self,
        from: usize,
        collected: Collected,
        recorder: &mut impl Recorder,
    ) -> Next {
        let line = match (self.demotions.load(Relaxed), collected) {
            (0, _) => None,
            (_, Collected::Changes) => self.sketch.next_changed(from),
            (_, Collected::Everything) => self.sketch.next_used(from),
        };
        let Some(line) = line else { return Next::Receipts(0) };
        recorder.record(Record::Line(line));
        usize::try_from(line.line)
            .map_or(Next::Receipts(0), |line| Next::Line(line.saturating_add(1)))
    }

    /// Records the settled receipts of a bucket, in a collection of everything.
    fn collect_receipts(&self, place: usize, recorder: &mut impl Recorder) -> Next {
        let settled = lock(&self.settled);
        let Some(receipts) = settled.bucket(place) else { return Next::Nothing };
        receipts.for_each(|receipt| recorder.record(Record::Receipt(receipt)));
        Next::Receipts(place.saturating_add(1))
    }

    /// Records that a state is gone, unless it is back in the table.
    fn collect_gone(&self, tag: Option<Tag>, at: usize, recorder: &mut impl Recorder) -> Next {
        let Some(tag) = tag else { return Next::Nothing };
        if self.table.lock_all(&[tag]).find(tag).is_none() {
            recorder.record(Record::Gone { tag: tag.0 });
        }
        Next::Gone(at.saturating_add(1))
    }
}

#[cfg(feature = "testing")]
impl Memory {
    /// The state in the table, and the limit under which it was written.
    pub(crate) fn state_in_table(
        &self,
        id: StateId,
    ) -> Option<(std::sync::Arc<Limit>, tidegate_core::State)> {
        let tag = Tag::of(id);
        let held = self.table.lock_all(&[tag]);
        let entry = held.find(tag).and_then(|at| held.get(at))?;
        let limit = self.limit_numbers.limits().limit(entry.limit_number).cloned()?;
        Some((limit, self.state(&entry)))
    }
}

const fn is_page(entry: &Entry) -> bool {
    entry.tag >= FIRST_PAGE_TAG
}

/// The id of a state of which only the tag is known.
pub(super) fn id_of(tag: u64) -> StateId {
    StateId(u128::from(tag))
}
