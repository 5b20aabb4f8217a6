//! Guides: whole tasks from beginning to end. The tests run every example.
//!
//! | task | guide | appears with the feature |
//! |---|---|---|
//! | limit the requests to a service | `tower` | `tower` |
//! | share limits between several processes or machines | `redis` | `redis` |
//! | share limits through memcached | `memcached` | `memcached` |
//! | keep to the limits of other services: pacing, caching, backoff | `pacing` | `http` or `tower` |
//! | see in a dashboard what is limited | `metrics` | `metrics` |
//! | test limits without waiting | `testing` | `testing` |
//!
//! A guide is part of the documentation only if its feature is on. Those of this build are listed below. In your own project,
//! `cargo doc -p tidegate --no-deps --open` shows the guides of the features that you turn on under `[dependencies]`. In a clone of
//! the repository of `tidegate`, add `--all-features` to see all.
//!
//! `tidegate` is not on crates.io yet. The guides take it from a clone of its repository beside your project:
//! `tidegate = { path = "../tidegate/crates/limiter", features = […] }`.
//!
//! For the first steps, see the [front page](crate).

#[cfg(feature = "memcached")]
pub mod memcached;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "http")]
pub mod pacing;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
