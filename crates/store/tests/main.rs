//! All tests of the stores that are not models, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::wildcard_enum_match_arm,
    reason = "tests may fail loudly"
)]

mod batches;
#[cfg(all(feature = "testing", feature = "redis"))]
mod cluster;
#[cfg(feature = "testing")]
mod durable;
mod full_cost;
#[cfg(feature = "testing")]
mod golden;
#[cfg(all(feature = "testing", feature = "redis"))]
mod leases;
#[cfg(all(feature = "testing", feature = "memcached"))]
mod memcached;
#[cfg(feature = "testing")]
mod memory;
#[cfg(all(feature = "testing", feature = "redis"))]
mod nodes;
#[cfg(all(feature = "testing", feature = "redis"))]
mod redis;
#[cfg(all(feature = "testing", feature = "redis"))]
mod sentinel;
#[cfg(all(feature = "testing", feature = "redis"))]
mod simulated;
mod stress;
mod support;
#[cfg(feature = "testing")]
mod table;
