//! Dirty bits: which slots and lines changed since they were last collected for the log on disk (`collect.rs`).
//!
//! ```text
//!   bucket 12    slot 0  1  2  3  4  5  6         one byte for each bucket, beside the table
//!                     ·  ●  ·  ·  ●  ·  ·         ● changed since the last collection
//! ```
//!
//! A thread that changes a slot sets its bit afterwards, while it still holds the lock of the bucket. The collecting thread holds
//! no lock. It clears the bits first and reads the slots afterwards:
//!
//! ```text
//!   the thread that changes a slot                    the thread that collects
//!   1  locks the bucket                               a  exchanges the byte for 0      (acquire)
//!   2  writes the slot               (relaxed)        b  reads the slots whose bits were set
//!   3  sets the bit                  (release)
//!   4  unlocks the bucket
//! ```
//!
//! - If `a` sees the bit, it synchronises with 3, so `b` reads the new slot or a later one.
//! - If `a` does not see the bit, step 3 comes after it, and the bit is set for the next collection. Step 3 loads the byte and
//!   stores it. An exchange in between is undone by the store: other bits are set again, and their slots are collected once more
//!   than necessary. No bit is lost.

use super::region::Zeroed;
use crate::sync::AtomicU8;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Where the states of a store are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// In memory only.
    InMemory,
    /// On disk, too: changes are noted, so that they can be collected.
    OnDisk,
}

/// Which slots of a bucket changed; or, for a line of the sketch, whether it did.
#[derive(Debug, Default)]
pub(super) struct DirtyBits(AtomicU8);

#[expect(unsafe_code, reason = "the promise that `Region` needs")]
// SAFETY: it is an atomic integer: zero is a value (nothing changed), shared by threads, no drop.
unsafe impl Zeroed for DirtyBits {}

/// Changes that no dirty bit can tell: what is no longer in its slot, and settled receipts.
#[derive(Debug)]
pub(super) struct ChangeList<T> {
    changes: Vec<T>,
    most: usize,
    /// Whether there were more: then only a snapshot of everything is complete.
    overflowed: bool,
}

impl<T> ChangeList<T> {
    /// A list of at most this many changes.
    pub(super) const fn new(most: usize) -> Self {
        Self { changes: vec![], most, overflowed: false }
    }

    pub(super) fn push(&mut self, change: T) {
        if self.changes.len() < self.most {
            self.changes.push(change);
        } else {
            self.overflowed = true;
        }
    }

    /// Takes all changes; also says whether some were left out.
    pub(super) fn take(&mut self) -> (Vec<T>, bool) {
        (std::mem::take(&mut self.changes), std::mem::take(&mut self.overflowed))
    }
}

impl DirtyBits {
    /// Sets bits. The caller holds the lock of the bucket or line, and has written it.
    #[inline]
    pub(super) fn set(&self, bits: u8) {
        self.0.store(self.0.load(Relaxed) | bits, Release);
    }

    /// Whether one of these bits is set. The caller holds the lock.
    pub(super) fn has(&self, bits: u8) -> bool {
        self.0.load(Relaxed) & bits != 0
    }

    /// Whether any bit seems to be set: a hint.
    #[inline]
    pub(super) fn seem_set(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Clears all bits; returns which were set. What they stand for is read afterwards.
    pub(super) fn take(&self) -> u8 {
        self.0.swap(0, Acquire)
    }
}
