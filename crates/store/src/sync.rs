//! Locks and atomics: the standard ones, or those of a model checker.
//!
//! | built with | what it tries | what it cannot see |
//! |---|---|---|
//! | `--cfg shuttle` | random orders of the steps of a whole store | fences and relaxed loads: every store is visible immediately |
//! | `--cfg loom` | all orders of a few steps, and every value that a load may see | more than a few steps |
//!
//! `make models` builds and runs both.

#[cfg(all(loom, shuttle))]
compile_error!(
    "build with either `--cfg loom` or `--cfg shuttle`: both replace the same locks and atomics"
);

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU8, AtomicU64, fence},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU8, AtomicU64, fence},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::atomic::{AtomicU8, AtomicU64},
    sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread::yield_now,
};

use std::sync::{PoisonError, TryLockError};

/// Where shuttle lets other threads run for long: between two steps whose order matters. Other builds do nothing here.
#[cfg(shuttle)]
pub(crate) use shuttle::thread::yield_now as yield_point;

/// Does nothing: only shuttle switches threads here.
#[cfg(not(shuttle))]
#[inline(always)]
pub(crate) const fn yield_point() {}

/// Does nothing: under shuttle every step is visible to all threads.
#[cfg(shuttle)]
pub(crate) const fn fence(_order: std::sync::atomic::Ordering) {}

/// How many times loom may interrupt a thread that could go on. Every bug that we planted shows with two.
#[cfg(loom)]
const PREEMPTIONS: usize = 3;

/// Tries every order of the steps of a model.
#[cfg(loom)]
pub(crate) fn check_model(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// Locks, also after another holder panicked: states are replaced whole, so none is half written.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks if no other thread has the lock.
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
