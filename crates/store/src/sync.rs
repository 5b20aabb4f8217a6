//! Locks and atomics: the standard ones, or those of a model checker.
//!
//! | built with | what it tries | what it cannot see |
//! |---|---|---|
//! | `--cfg shuttle` | random orders of the steps of a whole store | fences and relaxed loads: every store is seen at once |
//! | `--cfg loom` | all orders of a few steps, and every store that a load may see | more than a few steps |
//!
//! `make models` builds and runs both.

#[cfg(all(loom, shuttle))]
compile_error!("either loom or shuttle: both replace the same locks and atomics");

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, fence},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, fence},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::atomic::AtomicU64,
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

use std::sync::{PoisonError, TryLockError};

/// Where the models let other threads go on for long: between two steps of which the order matters. Elsewhere nothing.
#[cfg(shuttle)]
pub(crate) use shuttle::thread::yield_now as yield_point;

/// As above; other builds go on.
#[cfg(not(shuttle))]
#[inline(always)]
pub(crate) const fn yield_point() {}

/// Under shuttle every step is seen by all threads.
#[cfg(shuttle)]
pub(crate) const fn fence(_order: std::sync::atomic::Ordering) {}

/// Locks, also after another holder panicked: states are replaced whole, so none is half written.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks if nobody else has.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks for reading, also after another holder panicked.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, also after another holder panicked.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
