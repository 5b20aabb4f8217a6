//! Memory that is reserved at once and used bit by bit.
//!
//! A reservation costs address space only: a page becomes memory when it is first written, and is zero until then.
//! So a table can have its final address from the beginning and still be as small as what is in it. The pages are
//! advised to be huge, which spares most of the misses of the address cache that a table of a million keys has.
//!
//! This is the one file that handles memory by itself. What it promises: a `Region<T>` is a slice of `T` that nobody else
//! has, for as long as it lives.
#![expect(unsafe_code, reason = "memory from the system, and a hint to the processor")]

use std::ops::Deref;

/// Types for which memory that is all zero is a value, and that need no drop.
///
/// # Safety
///
/// All-zero bytes must be a valid value, any thread may use it, and dropping it must do nothing.
pub(super) unsafe trait Zeroed: Default + Sync {}

#[cfg(not(any(miri, loom, shuttle)))]
pub(super) use mapped::Region;

#[cfg(any(miri, loom, shuttle))]
pub(super) use boxed::Region;

#[cfg(not(any(miri, loom, shuttle)))]
mod mapped {
    use super::{Deref, Zeroed};
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::alloc::{Layout, handle_alloc_error};
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    use std::ptr::{NonNull, null_mut};

    /// So many values, zero until they are written.
    #[derive(Debug)]
    pub(in super::super) struct Region<T> {
        start: NonNull<T>,
        count: usize,
        bytes: usize,
    }

    // SAFETY: a region owns its memory as a boxed slice does, and `Zeroed` values are `Sync`.
    unsafe impl<T: Zeroed> Send for Region<T> {}
    // SAFETY: as above; only shared references are given out.
    unsafe impl<T: Zeroed> Sync for Region<T> {}

    impl<T: Zeroed> Region<T> {
        /// Reserves room for so many values; ends the process, as any allocation does, when there is no room for
        /// them among the addresses.
        pub(in super::super) fn reserve(count: usize) -> Self {
            let bytes = count.saturating_mul(size_of::<T>()).max(1);
            let flags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
            let access = ProtFlags::READ.union(ProtFlags::WRITE);
            // SAFETY: a new mapping at an address that the system chooses touches no memory of ours.
            let start = unsafe { mmap_anonymous(null_mut(), bytes, access, flags) };
            let start = start.ok().and_then(|start| NonNull::new(start.cast::<T>()));
            let Some(start) = start else {
                handle_alloc_error(
                    Layout::from_size_align(bytes, align_of::<T>()).unwrap_or(Layout::new::<T>()),
                )
            };
            // SAFETY: the mapping is ours, from `start` for `bytes`. Advice may be ignored, and so may its failure.
            let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
            Self { start, count, bytes }
        }

        /// Asks the processor to fetch a value, which is about to be used.
        pub(in super::super) fn prefetch(&self, index: usize) {
            #[cfg(target_arch = "x86_64")]
            if let Some(value) = self.get(index) {
                let start = std::ptr::from_ref(value).cast::<i8>();
                for line in (0..size_of::<T>()).step_by(64) {
                    // SAFETY: a prefetch reads nothing and faults on no address.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line)) };
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = index;
        }
    }

    impl<T: Zeroed> Deref for Region<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            // SAFETY: the mapping is ours for as long as `self` lives, page-aligned, `count` values long, and zero
            // where nothing was written, which is a value of a `Zeroed` type. Only shared references exist.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
        }
    }

    impl<T> Drop for Region<T> {
        fn drop(&mut self) {
            // SAFETY: the mapping is ours, nobody borrows from it any more, and its values need no drop.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(any(miri, loom, shuttle))]
mod boxed {
    use super::{Deref, Zeroed};

    /// A model has few keys, and values that are not zero bytes.
    const MOST: usize = 64;

    /// So many values, but few of them: for models.
    #[derive(Debug)]
    pub(in super::super) struct Region<T>(Box<[T]>);

    impl<T: Zeroed> Region<T> {
        pub(in super::super) fn reserve(count: usize) -> Self {
            Self((0..count.min(MOST)).map(|_| T::default()).collect())
        }

        pub(in super::super) fn prefetch(&self, _index: usize) {}
    }

    impl<T> Deref for Region<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}
