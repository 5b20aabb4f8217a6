//! Testing: limits in your tests, without sleeping and without real time. (Feature `testing`.)
//!
//! ```toml
//! [dev-dependencies]
//! tidegate = { path = "../tidegate/crates/limiter", features = ["testing"] } # a clone of the repository
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
//!
//! | the test is about | use |
//! |---|---|
//! | requests that pass or are denied | [`Clock::manual`] |
//! | requests that wait | [`tokio_clock`] and tokio's paused time |
//! | a store that fails | [`Faulty`] |
//! | a store of your own | [`conformance`] |
//!
//! Let the code under test take a [`Limiter`](crate::Limiter) as an argument. Your program passes `Limiter::in_memory(policy)`, a
//! test passes `Limiter::in_memory_with(policy, clock)`.
//!
//! # Requests that pass or are denied
//!
//! A manual clock stands still until it is set, so the figures of a test are exact:
//!
//! ```
//! use tidegate::{Attributes, Check, Clock, Limiter, Policy, Timestamp};
//!
//! /// What is tested: three wrong passwords lock an account for an hour.
//! fn may_log_in(limiter: &Limiter, user: &str) -> bool {
//!     let user = Attributes::new().with("user", user.to_owned()).unwrap();
//!     limiter.check_now(&Check::new(&user)).unwrap().allowed()
//! }
//!
//! let policy = "{ version: 1, rules: [{ name: logins, key: [user], limits: [{ rate: 3/h, algorithm: fixed_window }] }] }";
//! let clock = Clock::manual(Timestamp::EPOCH);
//! let limiter = Limiter::in_memory_with(Policy::parse(policy)?, clock.clone())?;
//!
//! for allowed in [true, true, true, false] {
//!     assert_eq!(may_log_in(&limiter, "alice"), allowed);
//! }
//! let minutes = |minutes: u64| Timestamp::from_nanos(minutes * 60_000_000_000);
//! clock.set(minutes(59));
//! assert!(!may_log_in(&limiter, "alice"));
//! clock.set(minutes(60));
//! assert!(may_log_in(&limiter, "alice"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Requests that wait
//!
//! [`Limiter::acquire`](crate::Limiter::acquire) waits by the timers of tokio. When their time is paused, tokio does not wait: as
//! soon as all tasks are idle, it sets its time to that of the next timer. [`tokio_clock`] lets the limiter follow.
//!
//! ```
//! use tidegate::testing::tokio_clock;
//! use tidegate::{Attributes, Check, Limiter, Policy, Span, Timestamp};
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let policy = Policy::parse("{ version: 1, rules: [{ name: mails, key: [], limits: [10/min] }] }")?;
//!     let limiter = Limiter::in_memory_with(policy, tokio_clock(Timestamp::EPOCH))?;
//!     let start = tokio::time::Instant::now();
//!     let mail = Attributes::new();
//!     for _ in 0..40 {
//!         let patient = Check::new(&mail).waiting(Span::from_secs(60));
//!         assert!(limiter.acquire(&patient).await?.allowed());
//!     }
//!     // Ten mails were sent immediately, the others one every 6 s. The test took no time.
//!     assert_eq!(start.elapsed().as_secs(), 180);
//!
//!     // A test can also set the time forward by itself.
//!     assert!(!limiter.check(&Check::new(&mail)).await?.allowed());
//!     tokio::time::advance(std::time::Duration::from_secs(6)).await;
//!     assert!(limiter.check(&Check::new(&mail)).await?.allowed());
//!     Ok(())
//! }
//! ```
//!
//! With a manual clock, `acquire` would never return: the time of the runtime would pass, and that of the limiter would not.
//!
//! # A store that fails
//!
//! [`Faulty`] wraps a store, and fails as planned. This tests what your rules do during an outage:
//!
//! ```
//! use tidegate::testing::{Fault, Faulty};
//! use tidegate::{Attributes, Check, Clock, DecidedBy, Limiter, Memory, Policy, Secret, Timestamp};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::parse("
//! version: 1
//! rules: [{ name: payments, key: [user], limits: [100/h], on_store_error: deny }]")?;
//! let clock = Clock::manual(Timestamp::EPOCH);
//! let store = Faulty::new(Memory::new(clock.clone()));
//! let limiter = Limiter::new(policy, store, Secret::new([7; 32]), clock)?;
//! let alice = Attributes::new().with("user", "alice")?;
//!
//! assert!(limiter.check(&Check::new(&alice)).await?.allowed());
//! limiter.store().plan([Fault::Refused]); // the next call fails
//! let verdict = limiter.check(&Check::new(&alice)).await?;
//! assert_eq!((verdict.allowed(), verdict.decided_by), (false, DecidedBy::Fallback));
//! assert!(limiter.check(&Check::new(&alice)).await?.allowed()); // the store is back
//! # Ok(())
//! # }
//! ```
//!
//! [`Clock::manual`]: crate::Clock::manual
//! [`Faulty`]: crate::testing::Faulty
//! [`conformance`]: crate::testing::conformance
//! [`tokio_clock`]: crate::testing::tokio_clock
