//! Fault tests: real servers under load while something breaks, and what tidegate promises for that time.
//! There is one file per fault. `make faults` runs them.
//!
//! Every figure is a promise. A promise about time is compared with the same run before the fault, so that a
//! slow machine proves the same as a fast one.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]
#![allow(clippy::disallowed_methods, reason = "a load generator measures time")]

/// The machine is idle otherwise, so promises about time are checked.
const QUIET: bool = true;

mod classes;
mod clock;
mod cut;
mod deadlines;
mod disk;
mod exact;
mod failover;
mod flush;
mod foreign;
mod herd;
mod hurried;
mod jitter;
mod killed;
mod late;
mod leases;
mod lost_slot;
mod many_keys;
mod memcached;
mod newcomer;
mod outages;
mod permits;
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
