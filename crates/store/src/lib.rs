//! Where states live: one contract, [`Store`], and its implementations.
//!
//! ```
//! use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, Take};
//! use tidegate_store::{Clock, Memory, Name, Secret};
//! let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET)?;
//! let store = Memory::new(Clock::system());
//! let secret = Secret::random()?;
//! let client = Name { rule: "per-client", limit: "s", key: &[("ip", "203.0.113.7")] };
//! let take = Take::new(client.id(&limit, &secret), &limit, Cost::ONE);
//! let answer = store.take_now(&Plan::new(vec![take], Span::ZERO)?);
//! assert!(answer.done.passes);
//! assert_eq!(answer.done.decisions[0].remaining, 14);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to learn | read |
//! |---|---|
//! | what every store promises | [`Store`] |
//! | how states are named | [`Name`], [`Secret`] |
//! | what time it is | [`Clock`] |
//! | the store in memory, within a budget of bytes | [`Memory`] |
//! | the same, obviously right | [`Plain`] |

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]
#![cfg_attr(
    any(loom, shuttle),
    allow(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::large_enum_variant,
        clippy::panic,
        reason = "models may fail loudly, and their atomics are large"
    )
)]

mod clock;
mod error;
mod key;
mod keyed_hash;
mod memory;
#[cfg(any(loom, shuttle))]
pub mod models;
mod plain;
mod plan_vec;
mod private_file;
#[cfg(feature = "redis")]
mod redis;
mod settled;
mod store;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;

pub use clock::Clock;
pub use error::StoreError;
pub use key::{KeyName, LimitName, Name, Secret, Subject};
pub use memory::Memory;
pub use plain::Plain;
pub use private_file::read_private;
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisClock, RedisSettings, RedisTls};
pub use store::{
    Answer, Charged, Gauges, LinkReport, Part, ReceiptId, Settled, Settlement, SharedDocument,
    SingleAnswer, Store, StoreHealth, StoreReport,
};
