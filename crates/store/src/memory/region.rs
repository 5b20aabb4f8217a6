//! A region: address space for a whole table, of which only the used part takes memory.
//!
//! A reservation (`mmap`) costs address space only. A page takes memory when it is first written, and reads as zero until then.
//! So a table has its final address from the beginning and still is only as large as its content. The kernel is advised to
//! use huge pages, which avoids most of the TLB misses of a table with a million keys.
//!
//! This is the only file that manages memory by hand. Its invariant: a `Region<T>` owns a slice of `T` exclusively, from
//! `reserve` until it is dropped, and gives out shared references only.
#![expect(unsafe_code, reason = "memory from the system, and a hint to the processor")]

use std::ops::Deref;

/// Types for which all-zero memory is a valid value, and that need no drop.
///
/// # Safety
///
/// All-zero bytes must be a valid value, any thread may use it, and dropping it must do nothing.
pub(super) unsafe trait Zeroed: Default + Sync {}

#[cfg(not(any(miri, loom, shuttle)))]
pub(super) use mapped::MappedRegion as Region;

#[cfg(any(miri, loom, shuttle))]
pub(super) use boxed::BoxedRegion as Region;

#[cfg(not(any(miri, loom, shuttle)))]
mod mapped {
    use super::{Deref, Zeroed};
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::alloc::{Layout, handle_alloc_error};
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    use std::ptr::{NonNull, null_mut};

    /// A slice of values, zero until they are written.
    #[derive(Debug)]
    pub(in super::super) struct MappedRegion<T> {
        start: NonNull<T>,
        count: usize,
        bytes: usize,
    }

    // SAFETY: a region owns its memory as a boxed slice does, and `Zeroed` values are `Sync`.
    unsafe impl<T: Zeroed> Send for MappedRegion<T> {}
    // SAFETY: as above; only shared references are given out.
    unsafe impl<T: Zeroed> Sync for MappedRegion<T> {}

    impl<T: Zeroed> MappedRegion<T> {
        /// Reserves address space for `count` values. Ends the process if there is not enough, as any allocation does.
        pub(in super::super) fn reserve(count: usize) -> Self {
            let bytes = count.saturating_mul(size_of::<T>()).max(1);
            let flags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
            let access = ProtFlags::READ.union(ProtFlags::WRITE);
            // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory in use.
            let start = unsafe { mmap_anonymous(null_mut(), bytes, access, flags) };
            let start = start.ok().and_then(|start| NonNull::new(start.cast::<T>()));
            let Some(start) = start else {
                handle_alloc_error(
                    Layout::from_size_align(bytes, align_of::<T>()).unwrap_or(Layout::new::<T>()),
                )
            };
            // SAFETY: this region owns the mapping of `bytes` from `start` on. Advice may be ignored, and so may its failure.
            let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
            Self { start, count, bytes }
        }

        /// Prefetches a value that is about to be used.
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

    impl<T: Zeroed> Deref for MappedRegion<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            // SAFETY: this region owns the mapping for as long as `self` lives. The mapping is page-aligned and `count` values
            // long. Where nothing was written it is zero, which is a value of a `Zeroed` type. Only shared references exist.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
        }
    }

    impl<T> Drop for MappedRegion<T> {
        fn drop(&mut self) {
            // SAFETY: this region owns the mapping, no reference to it is left, and its values need no drop.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(any(miri, loom, shuttle))]
mod boxed {
    use super::{Deref, Zeroed};

    /// A model has few keys.
    const MOST: usize = 64;

    /// A region for models and Miri, whose atomics are not plain zero bytes. It has 64 values at most.
    #[derive(Debug)]
    pub(in super::super) struct BoxedRegion<T>(Box<[T]>);

    impl<T: Zeroed> BoxedRegion<T> {
        pub(in super::super) fn reserve(count: usize) -> Self {
            Self((0..count.min(MOST)).map(|_| T::default()).collect())
        }

        pub(in super::super) fn prefetch(&self, _index: usize) {}
    }

    impl<T> Deref for BoxedRegion<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}
