//! Limits by 16-bit number: an interning table with reference counts.
//!
//! A slot of a bucket has 16 bits to say under which limit its state was written, so each limit in use has a number. Every take
//! looks up the number of its limit, so that way is fast: a small cache, indexed by the limit's [serial number](Limit::serial), which no
//! other limit of this process has. The way back, from a number to its limit, is needed only when a state was written under
//! another limit than that of the take (after an edit), and when a state is checked for having expired.
//!
//! **Numbers are used again.** Every number has a reference count ([`RefCount`]): one for each slot that mentions it, and one for
//! each thread that is about to write it into a slot (a *pin*). Numbers whose count is 0 are listed as idle. When a limit needs
//! a number and none is left, an idle one is claimed. The work does not grow with the number of states or limits: a count
//! changes when a state is created or removed or changes its limit, and a claim looks at a few idle numbers.
//!
//! **Callers have a share.** Limits that clients name get at most three quarters of the numbers. The rest is kept for the limits
//! of the policy, whatever callers do.
//!
//! **Which load sees which store.** A thread claims numbers in the order of the left column. The rest depends on that order:
//!
//! ```text
//!   the thread that claims a number              a thread that looks a number up
//!   1  clears the cache             (relaxed)    a  loads the epoch              (acquire)
//!   2  raises the epoch             (release)    b  loads the cache              (relaxed)
//!   3  changes the count from 0 to               c  locks the bucket, and pins the number
//!      "unassigned", by a CAS       (acq-rel)       unless the slot mentions it      (acquire)
//!   4  gives the number to another limit         d  loads the epoch again        (acquire)
//! ```
//!
//! - If `a` sees the new epoch, it synchronises with 2. So `b` sees the cache after 1, and not a number from before the claim.
//!   What enters the cache later was looked up under the lock of [`NumberedLimits`], which the claiming thread holds for
//!   writing. (With 2 before 1, `b` could find an old number under the new epoch. Then `d` would find nothing wrong, and the
//!   state would be written under another limit's number.)
//! - If `a` sees the old epoch, `b` may return any number, and `d` decides. Either the pin comes before 3: then the CAS fails,
//!   and the number keeps its limit. Or the pin comes after 3: then it synchronises with 3, `d` sees the new epoch, and the
//!   number is looked up again.
//! - If the slot mentions the number already, the number has a count and cannot be claimed while the bucket is locked. A thread
//!   that wrote the number there for another limit had seen the claim, so `d` sees the new epoch. The same holds for a thread
//!   that reads a bucket without its lock: it loads the bucket's head (acquire) between `a` and `d`.

use super::region::{Region, Zeroed};
use super::steps;
use crate::limit_serial::next_serial;
use crate::sync::{AtomicU64, Mutex, RwLock, RwLockReadGuard, lock, read, write, yield_point};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use tidegate_core::{Limit, NamedBy};

/// Places of the cache; a limit replaces the previous one in its place. Models have few, which are cleared in a few steps.
const CACHED: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };
/// The lower bits of a word of the cache are the number; the rest is the stamp.
const NUMBER_BITS: u32 = 16;
/// How many numbers there are.
pub(super) const NUMBERS: usize = 1 << NUMBER_BITS;
/// Idle numbers that are claimed together. Few claims are better: after each of them other threads look their limits up again.
const CLAIMED_TOGETHER: usize = 32;

/// The limits under which states are written, and their numbers.
#[derive(Debug)]
pub(super) struct LimitNumbers {
    /// Each a stamp and its number, or 0.
    cache: Vec<AtomicU64>,
    /// Raised by every claim.
    epoch: AtomicU64,
    limits: RwLock<NumberedLimits>,
    /// Reference counts, by number.
    counts: Region<RefCount>,
    /// Locked after a bucket and after `limits`. No other lock is taken while it is held.
    idle: Mutex<Idle>,
    /// Whether a caller's limit was refused and no number has become idle since. Relaxed: it is only reported.
    short: AtomicBool,
}

/// Limits by number, and numbers by limit.
#[derive(Debug)]
pub(super) struct NumberedLimits {
    /// How many numbers may be used. Tests have fewer, so that numbers are used again soon.
    most: usize,
    by_number: Vec<Option<Arc<Limit>>>,
    by_limit: HashMap<Arc<Limit>, u16>,
    free: Vec<u16>,
    /// How many numbers belong to limits that callers named.
    callers: usize,
}

/// How many slots mention a number and how many threads pin it. The two highest bits say what kind of number it is.
#[derive(Debug, Default)]
struct RefCount(AtomicU64);

#[expect(unsafe_code, reason = "the promise that `Region` needs")]
// SAFETY: it is an atomic integer: zero is a value (not used), shared by threads, no drop.
unsafe impl Zeroed for RefCount {}

/// The number was claimed from its limit and has no new one yet.
const UNASSIGNED: u64 = 1 << 63;
/// A caller named its limit.
const BY_CALLER: u64 = 1 << 62;
/// The other bits are the count.
const COUNT_MASK: u64 = BY_CALLER - 1;

/// Numbers that have a limit and a count of 0, by who named the limit.
#[derive(Debug, Default)]
struct Idle {
    policy: NumberSet,
    caller: NumberSet,
}

/// A set of numbers with constant-time insertion and removal, in no particular order.
#[derive(Debug, Default)]
struct NumberSet {
    numbers: Vec<u16>,
    places: HashMap<u16, usize>,
}

/// A number, and the epoch in which it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitNumber {
    pub(super) number: u16,
    pub(super) epoch: Epoch,
}

/// How many claims there were. A number that was looked up in an earlier epoch may have another limit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch(u64);

// === impl LimitNumbers ===

impl LimitNumbers {
    /// A table without limits, with `most` numbers, [`NUMBERS`] at most.
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(NUMBERS);
        let limits = NumberedLimits {
            most,
            by_number: vec![],
            by_limit: HashMap::new(),
            free: vec![],
            callers: 0,
        };
        Self {
            cache: (0..CACHED).map(|_| AtomicU64::new(0)).collect(),
            epoch: AtomicU64::new(0),
            limits: RwLock::new(limits),
            counts: Region::reserve(most),
            idle: Mutex::new(Idle::default()),
            short: AtomicBool::new(false),
        }
    }

    /// The number of a limit; `None` when it has none.
    #[inline]
    pub(super) fn number(&self, limit: &Limit) -> Option<LimitNumber> {
        let epoch = Epoch(self.epoch.load(Acquire));
        let stamp = limit.serial(next_serial);
        let place = usize::try_from(stamp).unwrap_or(0) & CACHED.saturating_sub(1);
        let cached = self.cache.get(place)?;
        let word = cached.load(Relaxed);
        if word >> NUMBER_BITS == stamp {
            let number = u16::try_from(word & 0xffff).unwrap_or(0);
            return Some(LimitNumber { number, epoch });
        }
        self.look_up(limit, epoch, cached)
    }

    /// The number of a limit that is not cached.
    #[cold]
    fn look_up(&self, limit: &Limit, epoch: Epoch, cached: &AtomicU64) -> Option<LimitNumber> {
        let stamp = limit.serial(next_serial);
        let limits = self.limits();
        let number = *limits.by_limit.get(limit)?;
        // Cached under the lock, so that a thread that claims the number clears it from the cache. A stamp that does not fit
        // beside its number, after 2⁴⁸ limits, is not cached.
        if stamp.leading_zeros() >= NUMBER_BITS {
            cached.store((stamp << NUMBER_BITS) | u64::from(number), Relaxed);
        }
        Some(LimitNumber { number, epoch })
    }

    /// The number of a limit. A limit without a number gets one; `None` when none is left for it.
    pub(super) fn intern(&self, limit: &Limit, by: NamedBy) -> Option<LimitNumber> {
        if let Some(number) = self.number(limit) {
            return Some(number);
        }
        let mut limits = write(&self.limits);
        let number = match limits.by_limit.get(limit) {
            Some(number) => *number,
            None => self.assign(&mut limits, limit, by)?,
        };
        // The epoch is raised only under the lock that this thread holds.
        Some(LimitNumber { number, epoch: Epoch(self.epoch.load(Acquire)) })
    }

    /// Gives a number to a limit that has none. It is idle until a thread pins it.
    fn assign(&self, limits: &mut NumberedLimits, limit: &Limit, by: NamedBy) -> Option<u16> {
        if !limits.has_number(by) {
            self.claim_idle(limits, by);
        }
        let Some(number) = limits.take_number(limit, by) else {
            self.short.store(by == NamedBy::Caller || self.is_short(), Relaxed);
            return None;
        };
        let mark = match by {
            NamedBy::Policy => 0,
            NamedBy::Caller => BY_CALLER,
        };
        let RefCount(word) = self.count(number)?;
        // The count stays: a thread that looked the number up for its previous limit may pin it for a moment.
        let _ = word.fetch_update(AcqRel, Acquire, |word| Some((word & COUNT_MASK) | mark));
        self.update_idle_list(number);
        Some(number)
    }

    /// Claims numbers of some limits that have no states.
    fn claim_idle(&self, limits: &mut NumberedLimits, by: NamedBy) {
        let mut idle = lock(&self.idle);
        let Idle { policy, caller } = &mut *idle;
        let mut candidates: Vec<u16> = caller.first(CLAIMED_TOGETHER).to_vec();
        // When callers have used up their share, a number of the policy would not help them.
        if by == NamedBy::Policy || !limits.share_is_spent() {
            candidates.extend(policy.first(CLAIMED_TOGETHER));
        }
        if candidates.is_empty() {
            return;
        }
        // The order matters: see the head of this file.
        self.cache.iter().for_each(|word| word.store(0, Relaxed));
        yield_point();
        self.epoch.fetch_add(1, Release);
        for number in candidates {
            steps::count();
            let Some(RefCount(word)) = self.count(number) else { continue };
            let mark = word.load(Relaxed) & BY_CALLER;
            // The CAS fails when a thread has just pinned the number. That thread takes it off the idle list.
            if word.compare_exchange(mark, UNASSIGNED, AcqRel, Relaxed).is_ok() {
                policy.remove(number);
                caller.remove(number);
                limits.release(number, mark != 0);
            }
        }
    }

    /// Counts a thread that is about to write a number into a slot. The caller checks [`Self::is_current`] afterwards. It
    /// [releases](Self::release) the number if that is not current or if it does not write the number after all.
    pub(super) fn pin(&self, number: u16) {
        let Some(RefCount(word)) = self.count(number) else { return };
        if word.fetch_add(1, AcqRel) & COUNT_MASK == 0 {
            self.update_idle_list(number);
        }
    }

    /// Ends a pin, or counts down for a slot that does not mention the number any more.
    pub(super) fn release(&self, number: u16) {
        let Some(RefCount(word)) = self.count(number) else { return };
        if word.fetch_sub(1, AcqRel) & COUNT_MASK == 1 {
            self.update_idle_list(number);
        }
    }

    /// Lists a number as idle, or takes it off the list, by its present count. Every thread that changes a count from or to 0
    /// calls this afterwards, so the last of them finds the final count.
    fn update_idle_list(&self, number: u16) {
        let mut idle = lock(&self.idle);
        let Some(RefCount(word)) = self.count(number) else { return };
        let word = word.load(Acquire);
        let set = if word & BY_CALLER == 0 { &mut idle.policy } else { &mut idle.caller };
        if word & (COUNT_MASK | UNASSIGNED) == 0 {
            set.insert(number);
            self.short.store(false, Relaxed);
        } else {
            set.remove(number);
        }
    }

    /// Who named the limit of a number.
    pub(super) fn named_by(&self, number: u16) -> NamedBy {
        let by_caller = |RefCount(word): &RefCount| word.load(Relaxed) & BY_CALLER != 0;
        if self.count(number).is_some_and(by_caller) { NamedBy::Caller } else { NamedBy::Policy }
    }

    /// Whether limits that callers name are refused at the moment.
    pub(super) fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// The present epoch.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Acquire))
    }

    /// Whether no number was claimed since that epoch.
    pub(super) fn is_current(&self, epoch: Epoch) -> bool {
        self.epoch.load(Acquire) == epoch.0
    }

    /// The limits by number.
    pub(super) fn limits(&self) -> RwLockReadGuard<'_, NumberedLimits> {
        read(&self.limits)
    }

    fn count(&self, number: u16) -> Option<&RefCount> {
        self.counts.get(usize::from(number))
    }

    /// The reference counts of all numbers.
    #[cfg(test)]
    pub(super) fn counts(&self) -> Vec<u64> {
        let used = self.limits().by_number.len();
        self.counts
            .iter()
            .take(used)
            .map(|RefCount(word)| word.load(Relaxed) & COUNT_MASK)
            .collect()
    }
}

// === impl NumberedLimits ===

impl NumberedLimits {
    /// How many numbers callers may use: three quarters.
    const fn share(&self) -> usize {
        self.most.saturating_sub(self.most / 4)
    }

    const fn share_is_spent(&self) -> bool {
        self.callers >= self.share()
    }

    fn has_number(&self, by: NamedBy) -> bool {
        let left = !self.free.is_empty() || self.by_number.len() < self.most;
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
                let number = u16::try_from(self.by_number.len()).ok()?;
                self.by_number.push(None);
                number
            }
        };
        *self.by_number.get_mut(usize::from(number))? = Some(Arc::clone(&limit));
        self.by_limit.insert(limit, number);
        self.callers = self.callers.saturating_add(usize::from(by == NamedBy::Caller));
        Some(number)
    }

    /// Separates a number from its limit; the number is free then.
    fn release(&mut self, number: u16, by_caller: bool) {
        let limit = self.by_number.get_mut(usize::from(number)).and_then(Option::take);
        limit.into_iter().for_each(|limit| _ = self.by_limit.remove(&limit));
        self.free.push(number);
        self.callers = self.callers.saturating_sub(usize::from(by_caller));
    }

    /// The limit of a number that a bucket mentions.
    pub(super) fn limit(&self, number: u16) -> Option<&Arc<Limit>> {
        self.by_number.get(usize::from(number)).and_then(Option::as_ref)
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
