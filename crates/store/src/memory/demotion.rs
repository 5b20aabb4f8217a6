//! Demotion: a state leaves the table while it still counts, and the sketch or a Bloom filter remembers its use.
//!
//! | the state used | remembered in | what other keys lose |
//! |---|---|---|
//! | up to half of its limit | two cells of the sketch | every new key that shares both cells begins with that use |
//! | more | two bits of the Bloom filter of its home | few new keys have both bits set; those begin with the largest use of the page |

use super::Memory;
use super::bloom::{self, Mark};
use super::bucket::{Entry, LockedBucket, Slot};
use super::sketch::SketchClass;
use super::table::{Location, LockedBuckets};
use super::tag::Tag;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_core::{Limit, Now, Written};

/// The used share of a limit is a fixed-point number with this many bits after the point.
const SHARE_BITS: u32 = 16;
/// A state that used more than this share of its limit is demoted to the Bloom filter, not to the sketch.
pub(super) const HALF: u64 = 1 << (SHARE_BITS - 1);

impl Memory {
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

    /// Demotes a state to the Bloom filter of its home and frees its slot, if the home can be locked without waiting. Returns
    /// whether it did.
    pub(super) fn demote_to_filter(
        &self,
        held: &mut LockedBuckets<'_>,
        at: Location,
        entry: Entry,
        now: Now,
    ) -> bool {
        let Some((_, mark)) = self.mark_of(&entry, now) else { return false };
        // The slot is freed first: it may become a page of the filter.
        if held.home(mark.tag).is_some() {
            self.remove(held, at, entry);
            held.home(mark.tag).into_iter().for_each(|home| self.mark(home, mark, now));
            return true;
        }
        let Some(mut home) = self.table.try_lock_home(mark.tag) else { return false };
        self.remove(held, at, entry);
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
            let Some(missing) = bloom::set(home, &mark) else { return };
            if let Some((slot, displaced)) = self.slot_for_page(home, now) {
                bloom::add_page(home, slot, &missing);
                next = displaced;
            } else if !missing.is_set && !bloom::set_in_latest(home, &mark) {
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
}

/// Which share of its limit a state has used, in 65,536ths.
pub(super) fn share_used(written: &Written<'_>, now: Now) -> u64 {
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
    use tidegate_core::{Algorithm, Ask, Cost, Refill, Span, Timestamp};

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
