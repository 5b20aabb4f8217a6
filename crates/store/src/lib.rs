//! Stores for the counters of a rate limiter: one contract, [`Store`], and its implementations.
//!
//! A *state* is the counter of one key under one limit. A *take* asks a limit for some cost. A *plan* is a list of takes that
//! are counted together or not at all.
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
//! | what every store guarantees | [`Store`] |
//! | how a key becomes the name of a state | [`Name`], [`Secret`] |
//! | how the time is read | [`Clock`] |
//! | the fast store in memory, within a budget of bytes | [`Memory`] |
//! | the same with a log on disk, which survives the end of the process | [`Durable`] |
//! | the simple store in memory, which is the reference in tests | [`Plain`] |

#![cfg_attr(docsrs, feature(doc_cfg))]
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

#[cfg(any(feature = "memcached", feature = "redis"))]
mod bounded_map;
mod clock;
mod durable;
mod error;
mod key;
mod keyed_hash;
#[cfg(feature = "redis")]
mod leases;
mod limit_serial;
#[cfg(feature = "memcached")]
mod memcached;
mod memory;
#[cfg(any(loom, shuttle))]
pub mod models;
mod plain;
mod plan_vec;
mod private_file;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "memcached", feature = "redis"))]
mod remote;
mod reports;
mod secret;
mod settled;
mod state_hasher;
mod store;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;

pub use clock::Clock;
pub use durable::{
    Compacted, Damage, DataContents, DataError, DataFile, DataFileKind, Durable, DurableSettings,
    Recovered,
};
pub use error::StoreError;
pub use key::{KeyName, LimitName, Name, Subject};
#[cfg(feature = "memcached")]
pub use memcached::{Memcached, MemcachedProbe, MemcachedSettings};
pub use memory::Memory;
pub use plain::Plain;
pub use private_file::read_private;
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisClock, RedisProbe, RedisSettings, RedisTls};
pub use reports::{DurableReport, Gauges, LeaseReport, LinkReport, NodeReport, StoreReport};
pub use secret::Secret;
pub use store::{
    Answer, AnsweredBy, Charged, DocumentCopy, DocumentTag, Part, ReceiptId, Settled, Settlement,
    SharedDocument, SingleAnswer, Store, StoreHealth,
};
