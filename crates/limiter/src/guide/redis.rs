//! Redis: several processes or machines share their limits. (Feature `redis`.)
//!
//! Each node has a [`Limiter`] of its own, with the same policy, and all count in one Redis or Valkey: one server, a primary
//! with sentinels, or a cluster. A decision is one call to Redis. Redis counts exactly, whichever node asks.
//!
//! ```toml
//! [dependencies]
//! tidegate = { path = "../tidegate/crates/limiter", features = ["redis"] } # a clone of the repository
//! ```
//!
//! This is `examples/shared.rs`. The tests run it with a real Redis server, and not on this page (`no_run`), because the
//! documentation is also tested where there is none.
//!
//! ```no_run
#![doc = include_str!("../../examples/shared.rs")]
//! ```
//!
//! # One secret for all nodes
//!
//! Keys in Redis are hashed under a [`Secret`], so that names and addresses of your users cannot be read there. Nodes with
//! different secrets would not find each other's counters, so the second node refuses to start.
//! [`Secret::load_or_create`] writes the secret to a file on the first node. Copy that file to the others.
//!
//! # When Redis does not answer
//!
//! A decision takes at most [`RedisSettings::timeout`], by default 50 ms. Then the rule decides by its `on_store_error`:
//!
//! | `on_store_error` | what happens | for |
//! |---|---|---|
//! | `local` (the default) | the node counts by itself, under its share of the limit | most limits |
//! | `allow` | the request passes | limits that only smooth traffic |
//! | `deny` | the request is denied | limits that protect money |
//!
//! After a few failures the node stops calling, and tries again in the background (a circuit breaker). So an outage does not
//! slow down your requests. [`Verdict::decided_by`] tells such decisions from others.
//!
//! [`Redis::open`] starts even if Redis is unreachable; [`Redis::connect`] returns an error instead.
//!
//! # How many nodes there are
//!
//! With `local`, a node counts under its share of the limit while Redis does not answer: the limit divided by the number of nodes,
//! rounded down, at least 1. The nodes count each other through Redis. A program has no data directory, so a new process does not
//! know the number if Redis is unreachable at its start. Then it assumes 8 nodes: a rule of `10/s` gives it 1 per second.
//!
//! - Set [`RedisSettings::nodes`] if you know the number, and start all nodes with the same one.
//! - Or keep the number yourself: save `limiter.store().known_nodes()` in a file from time to time (a method of the trait
//!   `tidegate::store::StoreHealth`), and put what the file says into [`RedisSettings::known_nodes`] at the next start.
//! - Set [`RedisSettings::node_id`] to a number that belongs to this node and is the same after a restart. Otherwise a process that
//!   crashed and was started again is counted twice for 30 seconds.
//!
//! ```
//! use tidegate::{RedisSettings, Span};
//! let settings = RedisSettings {
//!     nodes: Some(3),
//!     timeout: Span::from_millis(20), // how long a decision may take; the default is 50 ms
//!     ..RedisSettings::new("redis://127.0.0.1/")
//! };
//! # assert_eq!(settings.known_nodes, None);
//! ```
//!
//! # In tests
//!
//! Use a limiter in memory, with the same policy: the algorithms decide alike in every store. The guide for tests shows how to
//! test what your program does while the store fails.
//!
//! [`Limiter`]: crate::Limiter
//! [`Redis::connect`]: crate::Redis::connect
//! [`Redis::open`]: crate::Redis::open
//! [`RedisSettings::known_nodes`]: crate::RedisSettings::known_nodes
//! [`RedisSettings::node_id`]: crate::RedisSettings::node_id
//! [`RedisSettings::nodes`]: crate::RedisSettings::nodes
//! [`RedisSettings::timeout`]: crate::RedisSettings::timeout
//! [`Secret`]: crate::Secret
//! [`Secret::load_or_create`]: crate::Secret::load_or_create
//! [`Verdict::decided_by`]: crate::Verdict::decided_by
