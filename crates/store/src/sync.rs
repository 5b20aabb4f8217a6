//! Locks and atomics: the standard ones, or those of a scheduler that tries many orders.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, fence},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::atomic::AtomicU64,
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

use std::sync::{PoisonError, TryLockError};

/// The scheduler of the models tries orders of steps, and every step is seen by all.
#[cfg(feature = "shuttle")]
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
