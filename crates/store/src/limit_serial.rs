//! Serial numbers of limits, by which caches recognise them.

use std::sync::atomic::{AtomicU64, Ordering};

/// The serial number of a limit that has none yet; 0 is not used. All stores of the process share one counter, because they may
/// share limits. Relaxed: only the number itself matters.
pub(crate) fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
