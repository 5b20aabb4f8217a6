//! Faults: real servers under load, and what is promised of them while something breaks. A file for each fault; `make faults`.
//!
//! Every figure is a promise. Where a promise is about time, it is about the difference to the same run before the fault, so
//! that a slow machine proves the same as a fast one.

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

/// The machine has nothing else to do, so promises about time are judged.
const QUIET: bool = true;

mod classes;
mod clock;
mod cut;
mod deadlines;
mod exact;
mod failover;
mod flush;
mod foreign;
mod herd;
mod hurried;
mod jitter;
mod late;
mod lost_slot;
mod newcomer;
mod outages;
mod primary_killed;
mod reshard;
mod shifted;
mod silent;
mod skew;
mod slow;
mod stall;
mod stopped;
mod support;
mod two_slots;
mod unregistered;
mod versions;
