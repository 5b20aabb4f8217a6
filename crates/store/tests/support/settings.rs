//! The only place in which tests make settings for Redis, and a period for limits that outlasts every test.
//!
//! The product gives up a decision after 50 ms. A machine that is busy with other tests stalls for longer than that, so every
//! store under test is patient, and a test whose subject is time shortens what it is about. `lab/tests/tidy` checks that no other
//! test makes settings. (Those for memcached are made in `memcached.rs`.)

#![allow(dead_code, reason = "each test file uses only some of it")]

use tidegate_core::Span;
use tidegate_store::RedisSettings;

/// Longer than any machine stalls.
pub(crate) const PATIENCE: Span = Span::from_secs(60);

/// No window of this length ends during a test. Windows are aligned to the clock, so an hour could.
pub(crate) const LONG: Span = Span::from_secs(400 * 86_400);

/// Settings for Redis at this address.
pub(crate) fn redis(url: &str) -> RedisSettings {
    RedisSettings { timeout: PATIENCE, connect_timeout: PATIENCE, ..RedisSettings::new(url) }
}
