//! What the models in `tests/` try, and what they need of the inside of the store. Not part of an ordinary build.

#[cfg(loom)]
pub use crate::{
    clock::models::a_clock_is_read_while_another_thread_renews_it,
    memory::models::{
        a_bucket_is_read_as_of_one_instant, a_number_is_not_written_under_its_next_meaning,
        what_a_holder_writes_is_seen_at_once, what_is_locked_as_seen_loses_no_take,
    },
};

/// A store in memory with so few numbers for limits that they are used again soon.
#[cfg(shuttle)]
#[must_use]
pub fn with_limit_numbers(clock: crate::Clock, bytes: usize, numbers: usize) -> crate::Memory {
    crate::Memory::with_limit_numbers(clock, bytes, numbers)
}
