//! Models of what leans on the order of memory: every order of a few steps, under loom (`make models`).
//!
//! The models are in the crate, since they use its inside.

#![cfg(loom)]

use tidegate_store::models;

#[test]
fn a_bucket_is_read_as_of_one_instant() {
    models::a_bucket_is_read_as_of_one_instant();
}

#[test]
fn what_is_locked_as_seen_loses_no_take() {
    models::what_is_locked_as_seen_loses_no_take();
}

#[test]
fn what_a_holder_writes_is_seen_at_once() {
    models::what_a_holder_writes_is_seen_at_once();
}

#[test]
fn a_number_is_not_written_under_its_next_meaning() {
    models::a_number_is_not_written_under_its_next_meaning();
}

#[test]
fn a_clock_is_read_while_another_thread_renews_it() {
    models::a_clock_is_read_while_another_thread_renews_it();
}
