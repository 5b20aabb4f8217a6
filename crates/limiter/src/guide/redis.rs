//! Redis: several processes or machines share their limits. (Feature `redis`.)
//!
//! Each node has a [`Limiter`] of its own, with the same policy, and all count in one Redis or Valkey: one server, a primary
//! with sentinels, or a cluster. A decision is one call to Redis. Redis counts exactly, whichever node asks.
//!
//! ```toml
//! [dependencies]
//! tidegate = { version = "0.1", features = ["redis"] }
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
//! # In tests
//!
//! Use a limiter in memory, with the same policy: the algorithms decide alike in every store. The guide for tests shows how to
//! test what your program does while the store fails.
//!
//! [`Limiter`]: crate::Limiter
//! [`Redis::connect`]: crate::Redis::connect
//! [`Redis::open`]: crate::Redis::open
//! [`RedisSettings::timeout`]: crate::RedisSettings::timeout
//! [`Secret`]: crate::Secret
//! [`Secret::load_or_create`]: crate::Secret::load_or_create
//! [`Verdict::decided_by`]: crate::Verdict::decided_by
