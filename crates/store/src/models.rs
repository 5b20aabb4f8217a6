//! Models for the tests `tests/loom.rs` and `tests/shuttle.rs`, which need private parts of the store. Not part of an ordinary
//! build.

#[cfg(loom)]
pub use crate::{
    clock::models::a_clock_is_read_while_another_thread_renews_it,
    memory::models::{
        a_bucket_is_read_as_of_one_instant, a_number_is_not_written_after_another_limit_got_it,
        a_reader_sees_all_that_a_holder_wrote_or_nothing, optimistic_writes_lose_no_take,
    },
};

/// A store in memory with few limit numbers, so that they are used again soon.
#[cfg(shuttle)]
#[must_use]
pub fn with_limit_numbers(clock: crate::Clock, bytes: usize, numbers: usize) -> crate::Memory {
    crate::Memory::with_limit_numbers(clock, bytes, numbers)
}
