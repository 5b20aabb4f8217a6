//! What the tests of all stores share.
#![allow(dead_code, reason = "each test file uses only some of it")]

#[cfg(any(feature = "memcached", feature = "redis"))]
pub(crate) mod address;
#[cfg(feature = "redis")]
pub(crate) mod cluster;
pub(crate) mod concurrency;
pub(crate) mod dice;
#[cfg(any(feature = "memcached", feature = "redis"))]
pub(crate) mod frozen;
#[cfg(feature = "redis")]
pub(crate) mod hammer;
#[cfg(feature = "memcached")]
pub(crate) mod memcached;
#[cfg(feature = "memcached")]
pub(crate) mod memcached_twin;
#[cfg(feature = "redis")]
pub(crate) mod sentinel;
#[cfg(feature = "redis")]
pub(crate) mod server;
#[cfg(feature = "redis")]
pub(crate) mod settings;
pub(crate) mod timelines;
#[cfg(feature = "redis")]
pub(crate) mod twin;
