//! A rate limiter to embed in a Rust program: you describe the limits in a policy, and ask before each request.
//!
//! - **Six algorithms** (`token_bucket`, `leaky_bucket`, `fixed_window`, `sliding_log`, `sliding_buckets`,
//!   `sliding_weighted`), chosen per limit; see [`Algorithm`].
//! - **Concurrency limits** (`{ concurrent: 20 }`): how many requests are in flight at a time; see [`Permit`].
//! - **All or nothing.** A request under several limits passes all of them, or is counted by none of them.
//! - **Local or shared.** The same code counts in the memory of this process, or in a Redis that many nodes share.
//!
//! ```
//! use tidegate::{Attributes, Check, Limiter, Policy};
//!
//! // Every user (without a user name: every IP address) may send 2 requests per hour and 20 per day.
//! let policy = Policy::parse("
//! version: 1
//! rules:
//!   - { name: per-client, key: [user|ip], limits: [2/h, 20/day] }
//! ")?;
//! let limiter = Limiter::in_memory(policy)?;
//!
//! let alice = Attributes::new().with("user", "alice")?;
//! assert!(limiter.check_now(&Check::new(&alice))?.allowed());
//! assert!(limiter.check_now(&Check::new(&alice))?.allowed());
//!
//! // The third request is denied. The verdict names the limit and says when to try again.
//! let third = limiter.check_now(&Check::new(&alice))?;
//! assert!(!third.allowed());
//! assert_eq!(third.refusing().next().unwrap().id, "h");
//! assert!(third.retry_after().unwrap().as_secs_ceil() <= 1800);
//!
//! // The denied request did not count under the daily limit either: 18 of 20 remain.
//! let per_day = third.limits().find(|limit| limit.id == "day").unwrap();
//! assert_eq!(per_day.decision.remaining, 18);
//!
//! // Other users are not affected.
//! let bob = Attributes::new().with("user", "bob")?;
//! assert!(limiter.check_now(&Check::new(&bob))?.allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to go next
//!
//! | you want to | read |
//! |---|---|
//! | write a policy: rules, keys, tiers, schedules | [`Policy`] |
//! | describe a request: user, address, path, tenant | [`Attributes`] |
//! | ask whether a request may pass | [`Limiter::check`], [`Limiter::check_now`], [`Check`] |
//! | read the answer | [`Verdict`], [`LimitReport`] |
//! | ask without counting | [`Limiter::peek`] |
//! | wait until a request may pass, in the order of arrival | [`Limiter::acquire`], [`Limiter::acquire_blocking`] |
//! | count only failures, or correct a cost afterwards | [`Limiter::report`], [`Receipt`] |
//! | limit a key that no rule mentions | [`Limiter::take`], [`Limiter::take_named`] |
//! | change limits while requests run | [`Limiter::reload`], [`Limiter::change`] |
//! | sell plans with different limits | the attribute `tier` of a request, and `tiers` of the [`Policy`] |
//! | give one customer other limits | [`Limiter::set_override`], [`Limiter::remove_override`] |
//! | say why a request was denied | [`Verdict::refusing`], [`LimitReport::summary`], [`Limiter::explain`] |
//! | raise limits while the load is low | [`Limiter::signal`] |
//! | protect a busy upstream: priorities, and a number of requests in flight | [`Scheduler`], [`Classes`] |
//! | read statistics | [`Limiter::stats`] |
//! | share the counters between nodes | [`Limiter::new`], `Redis` (feature `redis`), [`Store`] |
//! | keep the counters when the process restarts | [`Durable`] |
//! | answer HTTP requests: status 429, `RateLimit` and `Retry-After` fields | the module `http` (feature `http`) |
//! | protect an axum, hyper or tonic service | the module `tower` (feature `tower`) |
//! | answer Envoy's rate limit calls | [`Limiter::check_descriptors`] |
//! | do one of these from beginning to end | the [guides](guide) |
//!
//! # Features
//!
//! All are off by default. `tidegate` is the only dependency that a program needs: every type that is part of an interface
//! can be named through it.
//!
//! | feature | adds | guide |
//! |---|---|---|
//! | `http` | verdicts as HTTP status, header fields and problem details; the same fields read by clients | `guide::pacing` |
//! | `tower` | a `tower::Layer`; implies `http` | `guide::tower`, `guide::pacing` |
//! | `redis` | counters in Redis or Valkey, which several nodes share: one server, sentinels or a cluster | `guide::redis` |
//! | `metrics` | statistics through the facade crate `metrics`, for Prometheus and others | `guide::metrics` |
//! | `testing` | for tests: a clock that follows tokio's paused time, stores that fail, a conformance suite for stores | `guide::testing` |
//!
//! Without any feature there are limits in the memory of this process, the durable store, waiting, priorities, and reloading.
//!
//! # Examples of other crates
//!
//! Many types here are defined in the three crates below this one, and their examples name those crates. In your program, write
//! the names on the right. No other dependency is needed.
//!
//! | an example says | your program says |
//! |---|---|
//! | `use tidegate_core::Span;` | `use tidegate::Span;`, or `use tidegate::core::Span;` |
//! | `use tidegate_policy::Policy;` | `use tidegate::Policy;`, or `use tidegate::policy::Policy;` |
//! | `use tidegate_store::Memory;` | `use tidegate::Memory;`, or `use tidegate::store::Memory;` |
//!
//! `tidegate::core`, `tidegate::policy` and `tidegate::store` have all types of these crates. The most common ones are also here.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]

mod acquire;
mod check;
mod error;
mod expected_wait;
mod give_backs;
pub mod guide;
#[cfg(feature = "http")]
pub mod http;
mod limit_report;
mod limiter;
mod live;
#[cfg(feature = "metrics")]
pub mod metrics;
mod permit;
mod queue;
mod receipt;
mod scheduler;
mod signals;
mod stats;
#[cfg(feature = "testing")]
pub mod testing;
mod timers;
#[cfg(feature = "tower")]
pub mod tower;
mod turns;
mod verdict;

pub use check::Check;
pub use error::{CheckError, LimiterError, ReportError};
pub use limit_report::{LimitReport, RuleDecision};
pub use limiter::{
    DescribedLimit, Descriptor, DescriptorCall, DescriptorError, DescriptorStatus,
    DescriptorVerdict, Limiter, NamedLimit, NamedTake, PersonLimit, PersonReport, PersonRuleReport,
    Renewal, UncoveredRule,
};
pub use permit::Permit;
pub use receipt::{Receipt, Report};
pub use scheduler::{
    ClassReading, Scheduler, SchedulerReading, SchedulerSettings, Seat, Shed, ShedReason,
};
pub use signals::Elasticity;
pub use stats::{RuleStats, Stats};
pub use verdict::{DecidedBy, Verdict};

pub use tidegate_core::{
    Algorithm, Bound, Cost, Decision, InlineVec, Limit, Need, Now, Outcome, Period, PlanError,
    Retry, Span, StateId, Timestamp,
};
pub use tidegate_policy::{
    Allowance, AppliedRule, AttributeError, Attributes, ChangeError, Changes, ClassIndex, Classes,
    ClassesError, Explanation, NumberError, PathError, Policy, PolicyError, PriorityClass, Request,
    RuleExplanation, RuleLimit, Unit, VerifiedSource,
};
pub use tidegate_store::{
    Clock, Durable, DurableSettings, Memory, Secret, Settled, Store, StoreError,
};
#[cfg(feature = "memcached")]
pub use tidegate_store::{Memcached, MemcachedSettings};
#[cfg(feature = "redis")]
pub use tidegate_store::{Redis, RedisClock, RedisSettings, RedisTls};

/// The computation of a decision, and its types: limits, states, plans.
#[doc(no_inline)]
pub use tidegate_core as core;
/// The policy language, and what a policy consists of: rules, keys, expressions.
#[doc(no_inline)]
pub use tidegate_policy as policy;
/// The stores, and the contract for stores of your own.
#[doc(no_inline)]
pub use tidegate_store as store;

/// Compiles and runs the examples of the README as doc tests.
#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles and runs the examples of the page about the library as doc tests.
#[cfg(all(doctest, feature = "tower", feature = "redis", feature = "testing"))]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryPage;

/// Compiles and runs the examples of the page about moving from other crates as doc tests.
#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../../../docs/migrating-from-governor.md")]
struct GovernorPage;
