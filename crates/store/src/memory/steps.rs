//! Counts the steps of a call, so that tests can bound its work without a clock. Ordinary builds count nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// One step: a bucket that is locked, or a limit number that is looked at for being free.
#[cfg(test)]
pub(super) fn count() {
    STEPS.set(STEPS.get().saturating_add(1));
}

/// As above; nothing in ordinary builds.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn count() {}

/// How many steps this thread made while it did this.
#[cfg(test)]
pub(super) fn of(work: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    work();
    STEPS.get().saturating_sub(before)
}
