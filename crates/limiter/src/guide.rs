//! Guides: whole tasks from beginning to end. The tests run every example.
//!
//! | task | guide | features |
//! |---|---|---|
//! | limit the requests to a service | `tower` | `tower` |
//! | share limits between several processes or machines | `redis` | `redis` |
//! | keep to the limits of other services: pacing, caching, backoff | `pacing` | `http` |
//! | see in a dashboard what is limited | `metrics` | `metrics` |
//! | test limits without waiting | `testing` | `testing` |
//!
//! A guide is part of the documentation if its features are enabled; this page was built with those that are listed below.
//! For the first steps, see the [front page](crate).

#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(all(feature = "http", feature = "testing"))]
pub mod pacing;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
