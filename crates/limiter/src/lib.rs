//! A rate limiter to embed: rules in a file, answers in a call.
//!
//! ```
//! use tidegate::{Attributes, Check, Limiter, Policy};
//! let policy = Policy::parse("
//! version: 1
//! rules:
//!   - { name: per-client, key: [user|ip], limits: [2/s, 500/h] }
//! ")?;
//! let limiter = Limiter::in_memory(policy)?;
//! let alice = Attributes::new().with("user", "alice")?;
//! assert!(limiter.check_now(&Check::new(&alice))?.allowed());
//! assert!(limiter.check_now(&Check::new(&alice))?.allowed());
//! let third = limiter.check_now(&Check::new(&alice))?;
//! assert!(!third.allowed()); // and neither limit was charged for it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to learn | read |
//! |---|---|
//! | how to ask | [`Limiter`], [`Check`] |
//! | what is answered | [`Verdict`], [`LimitReport`] |
//! | how to wait for a turn | [`Limiter::acquire`] |
//! | how to report what became of a request | [`Limiter::report`], [`Receipt`] |
//! | what operators change at run time | [`Limiter::change`], [`Limiter::reload`], [`Limiter::signal`] |

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
#[cfg(feature = "http")]
pub mod http;
mod limiter;
mod live;
mod queue;
mod receipt;
mod signals;
mod stats;
#[cfg(feature = "tower")]
pub mod tower;
mod varint;
mod verdict;

pub use check::Check;
pub use error::{CheckError, LimiterError, ReportError};
pub use limiter::{
    DescribedLimit, Descriptor, DescriptorCall, DescriptorError, DescriptorStatus,
    DescriptorVerdict, Limiter, NamedLimit, NamedTake,
};
pub use receipt::{Receipt, Report};
pub use stats::{RuleStats, Stats};
pub use verdict::{DecidedBy, LimitReport, Priority, Verdict};

pub use tidegate_core::{
    Algorithm, Cost, Decision, InlineVec, Limit, Outcome, Period, Retry, Span, Timestamp,
};
pub use tidegate_policy::{
    Allowance, AttributeError, Attributes, Changes, Explanation, Policy, PolicyError, Request,
    RuleLimit,
};
pub use tidegate_store::{Clock, Memory, Secret, Settled, Store, StoreError};

/// The examples of the README, so that they are tested.
#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
