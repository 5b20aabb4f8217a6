//! Models of code that depends on memory ordering: every order of a few steps, under loom (`make models`).
//!
//! The models are in the crate (`src/memory/models.rs`, `src/clock.rs`), because they use its private parts.

#![cfg(loom)]

use tidegate_store::models;

#[test]
fn a_bucket_is_read_as_of_one_instant() {
    models::a_bucket_is_read_as_of_one_instant();
}

#[test]
fn optimistic_writes_lose_no_take() {
    models::optimistic_writes_lose_no_take();
}

#[test]
fn a_reader_sees_all_that_a_holder_wrote_or_nothing() {
    models::a_reader_sees_all_that_a_holder_wrote_or_nothing();
}

#[test]
fn a_number_is_not_written_after_another_limit_got_it() {
    models::a_number_is_not_written_after_another_limit_got_it();
}

#[test]
fn a_clock_is_read_while_another_thread_renews_it() {
    models::a_clock_is_read_while_another_thread_renews_it();
}
