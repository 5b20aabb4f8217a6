//! The limits under which states were written, each known by a number of 16 bits.
//!
//! A limit is looked up with every take, so the way from a limit to its number is short: by the limit's stamp,
//! through a small cache. The way back is asked only when a state was written under another limit than the one
//! that asks: after an edit, or when it is looked at for having expired.
//!
//! **Numbers are used again.** When all are given out, those that no bucket mentions are free. Finding them takes a
//! walk over all buckets, during which other threads go on; [`Epoch`] keeps that safe. A thread that wants to write a
//! number into a bucket has locked the bucket, and then asks whether the epoch is still the one in which it looked the
//! number up. If so, the walk has yet to come to this bucket, and will see the number; if not, the thread looks the
//! number up again. And what is looked up during a walk is not freed by it.
//!
//! **Which load sees which store.** A walk begins in this order, and the order is what the rest leans on:
//!
//! ```text
//!   the thread that walks                        a thread that looks a number up
//!   1  the cache is cleared         (relaxed)    a  epoch is loaded              (acquire)
//!   2  the epoch is raised          (release)    b  the cache is loaded          (relaxed)
//!   3  every bucket is locked in turn            c  a bucket is locked
//!                                                d  epoch is loaded again        (acquire)
//! ```
//!
//! - If `a` sees the new epoch it synchronises with 2, so `b` sees the cache as it was cleared or later, and not a number
//!   from before the walk. What comes into the cache later was looked up under the lock of [`Known`], after the walk had
//!   made itself known there, and is not freed by it. (With 2 before 1, `b` could find an old number under the new epoch: the
//!   walk would free it, `d` would find nothing wrong, and the state would be written under another limit's number.)
//! - If `a` sees the old epoch, any number may come out of `b`, and `d` decides. Either 3 had locked the bucket before `c`
//!   did: then `c` synchronises with the unlock, `d` sees the new epoch, and the number is looked up again. Or `c` comes
//!   first: then 3 sees what was written.
//! - A thread that reads a bucket without its lock loads the bucket's head (acquire) between `a` and `d`. If its number
//!   stands there under its new meaning, the thread that wrote it there had seen the walk, so `d` sees the new epoch.

use crate::sync::{AtomicU64, Mutex, RwLock, RwLockReadGuard, lock, read, write, yield_point};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tidegate_core::Limit;

/// Stamps that are remembered; the next limit that falls into a place replaces the last one. In models few, which are
/// cleared in a few steps.
const CACHED: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };
/// Of a word of the cache, the number; the rest is the stamp.
const NUMBER_BITS: u32 = 16;
/// Numbers there are.
pub(super) const NUMBERS: usize = 1 << NUMBER_BITS;

/// All limits under which some state may be written.
#[derive(Debug)]
pub(super) struct Shapes {
    /// A stamp and its number, or 0.
    cache: Vec<AtomicU64>,
    epoch: AtomicU64,
    known: RwLock<Known>,
    /// Held by the thread that walks.
    walking: Mutex<()>,
}

/// Limits by number, and numbers by limit.
#[derive(Debug)]
pub(super) struct Known {
    /// How many numbers there are: fewer in tests, so that they are used again sooner.
    most: usize,
    limits: Vec<Option<Arc<Limit>>>,
    numbers: HashMap<Arc<Limit>, u16>,
    free: Vec<u16>,
    /// During a walk: what was looked up since it began. Not free, whether or not the walk sees it.
    fresh: Option<Vec<u16>>,
}

/// A number, and when it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) number: u16,
    pub(super) epoch: Epoch,
}

/// What passes when numbers are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch(u64);

impl Shapes {
    /// No limits yet, and so many numbers for them, [`NUMBERS`] at most.
    pub(super) fn new(most: usize) -> Self {
        let cache = (0..CACHED).map(|_| AtomicU64::new(0)).collect();
        let (limits, numbers, free, fresh) = (vec![], HashMap::new(), vec![], None);
        let known = RwLock::new(Known { most: most.min(NUMBERS), limits, numbers, free, fresh });
        Self { cache, epoch: AtomicU64::new(0), known, walking: Mutex::new(()) }
    }

    /// The number of a limit; `None` when all are given out.
    #[inline]
    pub(super) fn number(&self, limit: &Limit) -> Option<Number> {
        let epoch = Epoch(self.epoch.load(Acquire));
        let stamp = limit.stamp();
        let place = usize::try_from(stamp).unwrap_or(0) & CACHED.saturating_sub(1);
        let cached = self.cache.get(place)?;
        let word = cached.load(Relaxed);
        if word >> NUMBER_BITS == stamp {
            let number = u16::try_from(word & 0xffff).unwrap_or(0);
            return Some(Number { number, epoch });
        }
        self.look_up(limit, epoch, cached)
    }

    /// The number of a limit that is not cached, or not there.
    #[cold]
    fn look_up(&self, limit: &Limit, epoch: Epoch, cached: &AtomicU64) -> Option<Number> {
        let stamp = limit.stamp();
        // Cached under the lock, so that a walk that begins forgets it or has not begun. A stamp that does not fit
        // beside its number, after 2⁴⁸ limits, is not cached.
        let remember = |number: u16| {
            if stamp.leading_zeros() >= NUMBER_BITS {
                cached.store((stamp << NUMBER_BITS) | u64::from(number), Relaxed);
            }
            Number { number, epoch }
        };
        {
            let known = self.known();
            if let (Some(number), None) = (known.numbers.get(limit), &known.fresh) {
                return Some(remember(*number));
            }
        }
        let mut known = write(&self.known);
        known.intern(limit).map(remember)
    }

    /// Whether no walk has begun since.
    pub(super) fn is_current(&self, epoch: Epoch) -> bool {
        self.epoch.load(Acquire) == epoch.0
    }

    /// The limits by number.
    pub(super) fn known(&self) -> RwLockReadGuard<'_, Known> {
        read(&self.known)
    }

    /// Frees the numbers that a walk over all buckets does not find; `walk` answers which it found, by number.
    pub(super) fn free_unused(&self, walk: impl FnOnce() -> Vec<bool>) {
        let _walking = lock(&self.walking);
        {
            let mut known = write(&self.known);
            if !known.is_full() {
                return; // another thread has just done it
            }
            known.fresh = Some(vec![]);
            // In this order; see the head of this file.
            self.cache.iter().for_each(|word| word.store(0, Relaxed));
            yield_point();
            self.epoch.fetch_add(1, Release);
        }
        let mut used = walk();
        let mut known = write(&self.known);
        for number in known.fresh.take().unwrap_or_default() {
            if let Some(used) = used.get_mut(usize::from(number)) {
                *used = true;
            }
        }
        let is_used = |number: u16| used.get(usize::from(number)).copied().unwrap_or(false);
        let Known { limits, numbers, free, .. } = &mut *known;
        numbers.retain(|_, number| is_used(*number));
        for (number, limit) in (0u16..=u16::MAX).zip(limits.iter_mut()) {
            if limit.is_some() && !is_used(number) {
                *limit = None;
                free.push(number);
            }
        }
    }
}

impl Known {
    fn is_full(&self) -> bool {
        self.free.is_empty() && self.limits.len() >= self.most
    }

    fn intern(&mut self, limit: &Limit) -> Option<u16> {
        let number = match (self.numbers.get(limit), self.free.last()) {
            (Some(number), _) => *number,
            (None, Some(number)) => *number,
            (None, None) if self.is_full() => return None,
            (None, None) => u16::try_from(self.limits.len()).ok()?,
        };
        if !self.numbers.contains_key(limit) {
            let limit = Arc::new(limit.clone());
            match self.limits.get_mut(usize::from(number)) {
                Some(place) => *place = Some(Arc::clone(&limit)),
                None => self.limits.push(Some(Arc::clone(&limit))),
            }
            self.numbers.insert(limit, number);
            self.free.pop();
        }
        if let Some(fresh) = &mut self.fresh {
            fresh.push(number);
        }
        Some(number)
    }

    /// The limit of a number that a bucket mentions.
    pub(super) fn limit(&self, number: u16) -> Option<&Arc<Limit>> {
        self.limits.get(usize::from(number)).and_then(Option::as_ref)
    }
}
