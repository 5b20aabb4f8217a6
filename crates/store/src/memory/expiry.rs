//! Removing expired states: takes sweep the table, one bucket at a time.
//!
//! Every 256th use of a bucket sweeps the next bucket of the table, and so does one of four new states. When blocks or limit
//! numbers run out, several buckets are swept.

use super::Memory;
use super::bloom;
use super::bucket::{Entry, LockedBucket, SLOTS, Slot};
use super::limit_numbers::NumberedLimits;
use super::table::{Location, LockedBuckets};
use super::tag::Tag;
use crate::sync::lock;
use smallvec::SmallVec;
use tidegate_core::{Now, Span, State, Timestamp, Written};

/// While the table can grow, an expired state is kept for this long.
const EXPIRED_KEPT_FOR: Span = Span::from_secs(1);
/// Buckets that are swept when a limit gets no number. They are few, because a caller can cause that as often as it likes.
pub(super) const SWEPT_FOR_NUMBERS: usize = 4;

impl Memory {
    /// Sweeps some buckets: removes their expired states, whose blocks and limit numbers are free then.
    pub(super) fn sweep(&self, buckets: usize, now: Now) {
        (0..buckets).for_each(|_| self.sweep_next_bucket(now));
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

    /// Whether nothing of a state counts any more.
    pub(super) fn has_expired(&self, entry: &Entry, limits: &NumberedLimits, now: Now) -> bool {
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

    /// States that expired by this instant are removed. While the table can grow, it is a while ago: a key that returns soon
    /// then finds its old slot, which is faster than creating a new state.
    pub(super) fn expiry_cutoff(&self, now: Now) -> Now {
        if self.table.cannot_grow(&self.budget) || !self.blocks.has(1, &self.budget) {
            return now;
        }
        let ago = |now: Timestamp| {
            Timestamp::from_nanos(now.as_nanos().saturating_sub(EXPIRED_KEPT_FOR.as_nanos()))
        };
        Now { steady: ago(now.steady), calendar: ago(now.calendar) }
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

    /// Notes that a state left the table although the log on disk may still have it.
    pub(super) fn note_gone(&self, tag: Tag) {
        self.gone.iter().for_each(|gone| lock(gone).push(tag));
    }

    /// Removes a state from a slot. If it changed since the last collection, the log has an older state of it. That may last
    /// longer, or hide what the sketch or the Bloom filter remembers.
    pub(super) fn clear_slot(&self, bucket: &mut LockedBucket<'_>, slot: Slot, entry: Entry) {
        if bucket.is_dirty(slot) {
            self.note_gone(Tag(entry.tag));
        }
        self.free_blocks(&entry);
        self.limit_numbers.release(entry.limit_number);
        self.table.removed();
        bucket.clear(slot);
    }
}
