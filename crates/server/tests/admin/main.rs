//! The admin listener, asked as operators and attackers ask it: who is let in, what they change and how it is
//! kept, and what refuses to start.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

#[path = "../support/client.rs"]
mod client;
#[path = "../support/mod.rs"]
mod support;

mod changes;
mod doors;
mod folder;
mod full;
mod keeping;
mod policies;
mod secrets;
mod starting;
mod switches;
