//! The limits under which states were written, each known by a number of 16 bits.
//!
//! A limit is looked up with every take, so the way from a limit to its number is short: by the limit's stamp,
//! through a small cache. The way back is asked only when a state was written under another limit than the one
//! that asks: after an edit, or when it is looked at for having expired.
//!
//! **Numbers are used again.** Every number has a reference count ([`Uses`]): one for each slot of a bucket that mentions it,
//! and one for each thread that is about to write it into a slot (a *pin*). Numbers whose count is 0 are listed as idle. When a
//! limit needs a number and none was left, an idle one is claimed. Nothing here grows with the number of states or limits:
//! a count changes when a state is created or removed or changes its limit, and a claim looks at a few idle numbers.
//!
//! **Callers have a share.** Clients that name limits themselves get three quarters of the numbers at most. The
//! rest is there for the limits of the policy, whatever callers do.
//!
//! **Which load sees which store.** A thread claims numbers in this order, and the order is what the rest leans on:
//!
//! ```text
//!   the thread that claims a number              a thread that looks a number up
//!   1  the cache is cleared         (relaxed)    a  epoch is loaded              (acquire)
//!   2  the epoch is raised          (release)    b  the cache is loaded          (relaxed)
//!   3  its count goes from 0 to                  c  the bucket is locked, and the number pinned,
//!      "unassigned", by a swap      (acq-rel)       unless the slot mentions it      (acquire)
//!   4  it is given to another limit              d  epoch is loaded again        (acquire)
//! ```
//!
//! - If `a` sees the new epoch it synchronises with 2, so `b` sees the cache as it was cleared or later, and not a number
//!   from before the claim. What comes into the cache later was looked up under the lock of [`Known`], which the thread that
//!   claims holds for writing. (With 2 before 1, `b` could find an old number under the new epoch: `d` would find nothing
//!   wrong, and the state would be written under another limit's number.)
//! - If `a` sees the old epoch, any number may come out of `b`, and `d` decides. Either the pin comes before 3: then the swap
//!   fails, and the number stays what it is. Or it comes after 3: then it synchronises with 3, `d` sees the new epoch, and
//!   the number is looked up again.
//! - If the slot mentions the number already, it is counted and cannot be claimed while the bucket is locked. Who wrote it
//!   there under another meaning had seen the claim, so `d` sees the new epoch. The same goes for a thread that reads a bucket
//!   without its lock: it loads the bucket's head (acquire) between `a` and `d`.

use super::region::{Region, Zeroed};
use super::steps;
use crate::sync::{AtomicU64, Mutex, RwLock, RwLockReadGuard, lock, read, write, yield_point};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64 as StampCounter};
use tidegate_core::{Limit, NamedBy};

/// Stamps that are remembered; the next limit that falls into a place replaces the last one. In models few, which are
/// cleared in a few steps.
const CACHED: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };
/// Of a word of the cache, the number; the rest is the stamp.
const NUMBER_BITS: u32 = 16;
/// Numbers there are.
pub(super) const NUMBERS: usize = 1 << NUMBER_BITS;
/// Idle numbers that are claimed together: other threads look their limits up again after each claim.
const CLAIMED_AT_ONCE: usize = 32;

/// All limits under which some state may be written.
#[derive(Debug)]
pub(super) struct Shapes {
    /// A stamp and its number, or 0.
    cache: Vec<AtomicU64>,
    epoch: AtomicU64,
    known: RwLock<Known>,
    /// By number.
    uses: Region<Uses>,
    /// Locked after a bucket and after `known`, and before nothing.
    idle: Mutex<Idle>,
    /// Whether a caller's limit was refused and no number has become idle since. Relaxed: it only informs.
    short: AtomicBool,
}

/// Limits by number, and numbers by limit.
#[derive(Debug)]
pub(super) struct Known {
    /// How many numbers there are: fewer in tests, so that they are used again sooner.
    most: usize,
    limits: Vec<Option<Arc<Limit>>>,
    numbers: HashMap<Arc<Limit>, u16>,
    free: Vec<u16>,
    /// How many numbers have limits that callers named.
    named: usize,
}

/// How often a number is mentioned by slots and pinned by threads; above that, what it is.
#[derive(Debug, Default)]
struct Uses(AtomicU64);

#[expect(unsafe_code, reason = "the promise that a region asks for")]
// SAFETY: it is an atomic integer: zero is a value (not used), shared by threads, no drop.
unsafe impl Zeroed for Uses {}

/// It has no limit, and was claimed to get another.
const UNASSIGNED: u64 = 1 << 63;
/// A caller named its limit.
const BY_CALLER: u64 = 1 << 62;
const COUNT: u64 = BY_CALLER - 1;

/// Numbers that have a limit and are not used, by who named the limit.
#[derive(Debug, Default)]
struct Idle {
    policy: NumberSet,
    caller: NumberSet,
}

/// Numbers in no particular order, of which each is found at once.
#[derive(Debug, Default)]
struct NumberSet {
    numbers: Vec<u16>,
    places: HashMap<u16, usize>,
}

/// A number, and when it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) number: u16,
    pub(super) epoch: Epoch,
}

/// What passes when numbers are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch(u64);

/// A number for a limit that has none yet; 0 is no stamp. It is one counter for all stores of the process, because they may
/// share limits. Relaxed: only the number itself matters.
fn next_stamp() -> u64 {
    static NEXT: StampCounter = StampCounter::new(1);
    NEXT.fetch_add(1, Relaxed)
}

// === impl Shapes ===

impl Shapes {
    /// No limits yet, and so many numbers for them, [`NUMBERS`] at most.
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(NUMBERS);
        let known = Known { most, limits: vec![], numbers: HashMap::new(), free: vec![], named: 0 };
        Self {
            cache: (0..CACHED).map(|_| AtomicU64::new(0)).collect(),
            epoch: AtomicU64::new(0),
            known: RwLock::new(known),
            uses: Region::reserve(most),
            idle: Mutex::new(Idle::default()),
            short: AtomicBool::new(false),
        }
    }

    /// The number of a limit; `None` when it has none.
    #[inline]
    pub(super) fn number(&self, limit: &Limit) -> Option<Number> {
        let epoch = Epoch(self.epoch.load(Acquire));
        let stamp = limit.serial(next_stamp);
        let place = usize::try_from(stamp).unwrap_or(0) & CACHED.saturating_sub(1);
        let cached = self.cache.get(place)?;
        let word = cached.load(Relaxed);
        if word >> NUMBER_BITS == stamp {
            let number = u16::try_from(word & 0xffff).unwrap_or(0);
            return Some(Number { number, epoch });
        }
        self.look_up(limit, epoch, cached)
    }

    /// The number of a limit that is not cached.
    #[cold]
    fn look_up(&self, limit: &Limit, epoch: Epoch, cached: &AtomicU64) -> Option<Number> {
        let stamp = limit.serial(next_stamp);
        let known = self.known();
        let number = *known.numbers.get(limit)?;
        // Cached under the lock, so that a thread that claims the number forgets it. A stamp that does not fit beside its
        // number, after 2⁴⁸ limits, is not cached.
        if stamp.leading_zeros() >= NUMBER_BITS {
            cached.store((stamp << NUMBER_BITS) | u64::from(number), Relaxed);
        }
        Some(Number { number, epoch })
    }

    /// The number of a limit, which gets one if it has none; `None` when none is left for it.
    pub(super) fn intern(&self, limit: &Limit, by: NamedBy) -> Option<Number> {
        if let Some(number) = self.number(limit) {
            return Some(number);
        }
        let mut known = write(&self.known);
        let number = match known.numbers.get(limit) {
            Some(number) => *number,
            None => self.assign(&mut known, limit, by)?,
        };
        // Under the lock, without which nobody raises it.
        Some(Number { number, epoch: Epoch(self.epoch.load(Acquire)) })
    }

    /// Gives a number to a limit that has none. It is idle until a thread pins it.
    fn assign(&self, known: &mut Known, limit: &Limit, by: NamedBy) -> Option<u16> {
        if !known.has_number(by) {
            self.claim_idle(known, by);
        }
        let Some(number) = known.take_number(limit, by) else {
            self.short.store(by == NamedBy::Caller || self.is_short(), Relaxed);
            return None;
        };
        let mark = match by {
            NamedBy::Policy => 0,
            NamedBy::Caller => BY_CALLER,
        };
        let Uses(word) = self.uses(number)?;
        // The count stays: it may be pinned for a moment by a thread that knows it by an old meaning.
        let _ = word.fetch_update(AcqRel, Acquire, |word| Some((word & COUNT) | mark));
        self.list(number);
        Some(number)
    }

    /// Takes their numbers from some limits that have no states.
    fn claim_idle(&self, known: &mut Known, by: NamedBy) {
        let mut idle = lock(&self.idle);
        let Idle { policy, caller } = &mut *idle;
        let mut candidates: Vec<u16> = caller.first(CLAIMED_AT_ONCE).to_vec();
        // Where callers have all of their share, a number of the policy's would not help them.
        if by == NamedBy::Policy || !known.share_is_spent() {
            candidates.extend(policy.first(CLAIMED_AT_ONCE));
        }
        if candidates.is_empty() {
            return;
        }
        // In this order; see the head of this file.
        self.cache.iter().for_each(|word| word.store(0, Relaxed));
        yield_point();
        self.epoch.fetch_add(1, Release);
        for number in candidates {
            steps::count();
            let Some(Uses(word)) = self.uses(number) else { continue };
            let mark = word.load(Relaxed) & BY_CALLER;
            // It fails when a thread has just pinned it, which will take it off the list.
            if word.compare_exchange(mark, UNASSIGNED, AcqRel, Relaxed).is_ok() {
                policy.remove(number);
                caller.remove(number);
                known.release(number, mark != 0);
            }
        }
    }

    /// Says that a slot is about to mention a number. The caller asks [`Self::is_current`] afterwards, and
    /// [releases](Self::release) it if the number is not current or is not written.
    pub(super) fn pin(&self, number: u16) {
        let Some(Uses(word)) = self.uses(number) else { return };
        if word.fetch_add(1, AcqRel) & COUNT == 0 {
            self.list(number);
        }
    }

    /// Says that a slot does not mention a number any more, or will not.
    pub(super) fn release(&self, number: u16) {
        let Some(Uses(word)) = self.uses(number) else { return };
        if word.fetch_sub(1, AcqRel) & COUNT == 1 {
            self.list(number);
        }
    }

    /// Lists a number as idle, or takes it off the list. Every thread whose step takes a count from or to 0 comes here
    /// afterwards, so whichever is last finds the count as it stays.
    fn list(&self, number: u16) {
        let mut idle = lock(&self.idle);
        let Some(Uses(word)) = self.uses(number) else { return };
        let word = word.load(Acquire);
        let set = if word & BY_CALLER == 0 { &mut idle.policy } else { &mut idle.caller };
        if word & (COUNT | UNASSIGNED) == 0 {
            set.insert(number);
            self.short.store(false, Relaxed);
        } else {
            set.remove(number);
        }
    }

    /// Whether no further limit that a caller names gets a number.
    pub(super) fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// Whether no number was claimed since.
    pub(super) fn is_current(&self, epoch: Epoch) -> bool {
        self.epoch.load(Acquire) == epoch.0
    }

    /// The limits by number.
    pub(super) fn known(&self) -> RwLockReadGuard<'_, Known> {
        read(&self.known)
    }

    fn uses(&self, number: u16) -> Option<&Uses> {
        self.uses.get(usize::from(number))
    }

    /// How often each number is used.
    #[cfg(test)]
    pub(super) fn counts(&self) -> Vec<u64> {
        let used = self.known().limits.len();
        self.uses.iter().take(used).map(|Uses(word)| word.load(Relaxed) & COUNT).collect()
    }
}

// === impl Known ===

impl Known {
    /// How many numbers callers may have: three quarters.
    const fn share(&self) -> usize {
        self.most.saturating_sub(self.most / 4)
    }

    const fn share_is_spent(&self) -> bool {
        self.named >= self.share()
    }

    fn has_number(&self, by: NamedBy) -> bool {
        let left = !self.free.is_empty() || self.limits.len() < self.most;
        left && (by == NamedBy::Policy || !self.share_is_spent())
    }

    fn take_number(&mut self, limit: &Limit, by: NamedBy) -> Option<u16> {
        if !self.has_number(by) {
            return None;
        }
        let limit = Arc::new(limit.clone());
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = u16::try_from(self.limits.len()).ok()?;
                self.limits.push(None);
                number
            }
        };
        *self.limits.get_mut(usize::from(number))? = Some(Arc::clone(&limit));
        self.numbers.insert(limit, number);
        self.named = self.named.saturating_add(usize::from(by == NamedBy::Caller));
        Some(number)
    }

    /// Takes its limit from a number, which is free then.
    fn release(&mut self, number: u16, named: bool) {
        let limit = self.limits.get_mut(usize::from(number)).and_then(Option::take);
        limit.into_iter().for_each(|limit| _ = self.numbers.remove(&limit));
        self.free.push(number);
        self.named = self.named.saturating_sub(usize::from(named));
    }

    /// The limit of a number that a bucket mentions.
    pub(super) fn limit(&self, number: u16) -> Option<&Arc<Limit>> {
        self.limits.get(usize::from(number)).and_then(Option::as_ref)
    }
}

// === impl NumberSet ===

impl NumberSet {
    fn first(&self, most: usize) -> &[u16] {
        self.numbers.get(..most.min(self.numbers.len())).unwrap_or_default()
    }

    fn insert(&mut self, number: u16) {
        let end = self.numbers.len();
        if *self.places.entry(number).or_insert(end) == end {
            self.numbers.push(number);
        }
    }

    fn remove(&mut self, number: u16) {
        let Some(place) = self.places.remove(&number) else { return };
        if place < self.numbers.len() {
            self.numbers.swap_remove(place);
        }
        if let Some(moved) = self.numbers.get(place) {
            self.places.insert(*moved, place);
        }
    }
}
