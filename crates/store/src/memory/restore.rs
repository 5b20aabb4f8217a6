//! Restoring: records of the log on disk, back into memory. It happens at the start, before the first take.
//!
//! States go where new states go, so a smaller budget than before demotes some of them. Lines of the sketch are divided anew
//! (`sketch/saved.rs`). Pages of Bloom filters belong to a bucket. So the table first grows to the size that it had. If the
//! budget does not allow that, some buckets are missing. Their pages go to the buckets from which they were split off, and the keys of
//! those buckets then share them.

use super::Memory;
use super::bloom;
use super::bucket::{Entry, LockedBucket};
use super::collect::{Record, id_of};
use super::linear_hashing::parent;
use super::lookup::StateRequest;
use super::sketch::SketchGeometry;
use super::tag::Tag;
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::{Limit, NamedBy, Now, State, WhenFull, Written};

impl Memory {
    /// Prepares for the records of a frame: the table had this many buckets, and the sketch was divided like this.
    pub(crate) fn prepare_restore(&self, buckets: u64, geometry: &SketchGeometry) {
        let buckets = usize::try_from(buckets).unwrap_or(usize::MAX);
        while self.table.count() < buckets && !self.table.cannot_grow(&self.budget) {
            let more = buckets.saturating_sub(self.table.count());
            self.table.grow_by(more.min(1 << 16), &self.budget);
        }
        if geometry.iter().any(|lines| *lines != 0) {
            self.sketch.restore_geometry(geometry);
        }
    }

    /// Fetches the buckets of a state that is restored next.
    pub(crate) fn prefetch_restore(&self, tag: u64) {
        self.table.prefetch_both(Tag(tag), self.table.size());
    }

    /// Restores a state of one word. Nearly all are like that, so this is short: the state is in the table, or there is a free
    /// slot for it.
    pub(crate) fn restore_word(&self, tag: u64, limit: &Limit, by: NamedBy, word: u64) {
        let number = self.limit_numbers.number(limit).map(|number| number.number);
        let is_restored = number.is_some_and(|number| self.put_word(Tag(tag), number, word));
        if !is_restored {
            let state = if word == 0 { State::Empty } else { State::Word(word) };
            self.restore_state(tag, limit, by, state);
        }
    }

    /// Writes a word into the slot of a state or a free one; returns whether it did.
    fn put_word(&self, tag: Tag, number: u16, word: u64) -> bool {
        if word == 0 || Tag::of(id_of(tag.0)) != tag {
            return false;
        }
        let mut held = self.table.lock_all(&[tag]);
        let found = held.find(tag).and_then(|at| Some((at, held.get(at)?)));
        let entry = Entry { tag: tag.0, limit_number: number, in_blocks: false, word };
        match (found, held.free(tag)) {
            (Some((at, old)), _) if old.limit_number == number && !old.in_blocks => {
                held.put(at, entry);
            }
            (Some(_), _) | (None, None) => return false,
            (None, Some(at)) => {
                self.limit_numbers.pin(number);
                self.table.added();
                held.put(at, entry);
            }
        }
        drop(held);
        if self.table.is_dense() {
            self.table.grow(&self.budget);
        }
        true
    }

    /// Restores a state. A record of a state that is no state is left out.
    pub(crate) fn restore_state(&self, tag: u64, limit: &Limit, by: NamedBy, state: State) {
        let id = id_of(tag);
        if Tag::of(id).0 != tag {
            return;
        }
        if state == State::Empty {
            self.reset_one(Tag(tag));
            return;
        }
        let requests = [StateRequest { id, limit, when_full: WhenFull::Shared, named_by: by }];
        let (locked, found) = self.lock_states(&requests);
        let written = [Written { shape: limit, state }];
        self.write_back(locked, &requests, &found, &written);
    }

    /// Restores any other record. States are restored by [`Self::restore_state`].
    pub(crate) fn restore_other(&self, record: &Record<'_>, geometry: &SketchGeometry) {
        match record {
            Record::Word { .. } | Record::Bytes { .. } => {}
            Record::Gone { tag } => {
                let tag = Tag(*tag);
                let mut held = self.table.lock_all(&[tag]);
                if let Some((at, entry)) = held.find(tag).and_then(|at| Some((at, held.get(at)?))) {
                    self.remove(&mut held, at, entry);
                }
            }
            Record::Pages { bucket, pages } => self.restore_pages(*bucket, pages),
            Record::Line(line) => {
                self.demotions.fetch_max(1, Relaxed);
                self.sketch.restore(geometry, line);
            }
            Record::Receipt(receipt) => {
                let now = self.clock.now().steady;
                lock(&self.settled).restore(*receipt, now, &self.budget);
            }
        }
    }

    /// Puts pages of a Bloom filter into their bucket.
    fn restore_pages(&self, bucket: u64, pages: &[(u64, u64)]) {
        self.demotions.fetch_max(1, Relaxed);
        let now = self.clock.now();
        let mut place = usize::try_from(bucket).unwrap_or(usize::MAX);
        let exists = place < self.table.count();
        while place >= self.table.count() && place > 0 {
            place = parent(place);
        }
        let Some(mut bucket) = self.table.lock_place(place) else { return };
        bloom::restore(&mut bucket, pages, exists, |bucket| self.free_slot(bucket, now));
    }

    /// Frees a slot of a bucket by demoting a state to the sketch, unless one is free.
    fn free_slot(&self, bucket: &mut LockedBucket<'_>, now: Now) {
        if bucket.free().is_some() {
            return;
        }
        let Some((slot, entry)) = bucket.entries().next() else { return };
        if let Some(limit) = self.limit_numbers.limits().limit(entry.limit_number) {
            let resident = Written { shape: limit, state: self.state(&entry) };
            self.demote_to_sketch(Tag(entry.tag), &resident, now);
        }
        self.clear_slot(bucket, slot, entry);
    }

    /// Ends the restoring: nothing of it has to be written to the log.
    pub(crate) fn forget_changes(&self) {
        self.table.forget_changes();
        self.sketch.forget_changes();
        self.gone.iter().for_each(|gone| _ = lock(gone).take());
        lock(&self.settled).take_fresh();
    }
}
