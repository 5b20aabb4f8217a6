//! The faults that take seconds and need no quiet machine; all of them are in `main.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a generator reads the clock: that is what it is for"
)]

/// The machine may be busy with other things, so what is promised within a time only has to happen.
const QUIET: bool = false;

mod classes;
mod clock;
mod support;
