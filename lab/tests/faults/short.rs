//! The fault tests that take seconds and do not need an idle machine. `main.rs` has all fault tests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]
#![allow(clippy::disallowed_methods, reason = "a load generator measures time")]

/// The machine may be busy, so a promise with a time limit only has to be kept eventually.
const QUIET: bool = false;

mod classes;
mod clock;
mod support;
