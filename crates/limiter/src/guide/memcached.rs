//! memcached: several processes or machines share their limits without Redis. (Feature `memcached`.)
//!
//! Each node has a [`Limiter`](crate::Limiter) of its own, with the same policy and [`Secret`](crate::Secret), and all count in the same
//! servers. `fixed_window`, `sliding_weighted` and `token_bucket` are counted; a policy with other algorithms is refused by
//! [`Limiter::new`](crate::Limiter::new). If you can choose, share limits [through Redis](super), which counts everything and loses
//! less.
//!
//! ```no_run
//! use tidegate::{Clock, Limiter, Memcached, MemcachedSettings, Policy, Secret};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::parse(b"version: 1\nrules: [{ name: per-user, key: [user], limits: [15/s] }]")?;
//! let (secret, clock) = (Secret::load_or_create("secret".as_ref())?, Clock::system());
//! let servers = "memcached://10.0.0.1:11211,10.0.0.2:11211";
//! let settings = MemcachedSettings { nodes: Some(3), ..MemcachedSettings::new(servers) };
//! let store = Memcached::open(&settings, &secret, clock.clone()).await?;
//! let limiter = Limiter::new(policy, store, secret, clock)?;
//! # let _ = limiter;
//! # Ok(())
//! # }
//! ```
//!
//! # What is exact, and what is not
//!
//! - A fixed window never lets pass more than its limit.
//! - Weighted windows and buckets are as exact as the clocks of the nodes agree.
//! - memcached loses counters when it restarts, is flushed, or is full. Then each limit may pass once more.
//!   `StoreHealth::report` counts such losses.
//!
//! # When a server does not answer
//!
//! The keys of that server are decided by `on_store_error` of their rule, as with Redis; keys of other servers are not affected. memcached
//! cannot count the nodes, so set [`MemcachedSettings::nodes`](crate::MemcachedSettings::nodes).
