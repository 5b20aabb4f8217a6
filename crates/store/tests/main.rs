//! All tests of the stores that are not models, in one program.

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
