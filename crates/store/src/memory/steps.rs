//! Counts the steps of a call, so that tests can bound its work without measuring time. Ordinary builds count nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one step: locking a bucket, or checking whether a limit number can be claimed.
#[cfg(test)]
pub(super) fn count() {
    STEPS.set(STEPS.get().saturating_add(1));
}

/// Does nothing: only tests count steps.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn count() {}

/// How many steps this thread made during `work`.
#[cfg(test)]
pub(super) fn of(work: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    work();
    STEPS.get().saturating_sub(before)
}
