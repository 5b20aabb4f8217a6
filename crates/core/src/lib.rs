//! How one decision is computed: pure functions of limit, state, time and cost.
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
//! // 15 requests per second, and a client that the limiter has not seen before.
//! let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET)?;
//! let mut client = Written::empty(&limit);
//! let now = Timestamp::from_nanos(1_700_000_000_000_000_000);
//! let taken = limit.take(&mut client, &Ask::new(now, Cost::ONE));
//! assert!(taken.decision.passes());
//! assert_eq!(taken.decision.remaining, 14);
//! # Ok::<(), tidegate_core::LimitError>(())
//! ```
//!
//! The crate has no dependencies, reads no clock and does no I/O. Only its constructors can fail. All arithmetic uses
//! integers: waiting times are rounded up, and what remains is rounded down.
//!
//! | topic | read |
//! |---|---|
//! | how the six algorithms work | [`algorithm`], one chapter each |
//! | the question to a limit and its answer | [`Ask`], [`Decision`] |
//! | what is remembered | [`State`], [`Written`], [`TakeReceipt`] |
//! | how several limits are taken together | [`Plan`] |
//! | how a node takes a part of a limit in advance | [`Slice`], [`LeaseAsk`] |
//! | the fast path for stores that keep one-word states | [`Limit::prepare`], [`PreparedTake`] |
//!
//! **Spans are half-open.** A hit at `t` counts in `[t, t + W)` and is free at `t + W`.

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]

pub mod algorithm;
mod calendar;
mod compile;
mod decision;
mod fast_path;
mod headroom;
mod inline_vec;
mod lease;
mod limit;
mod plan;
mod ratio;
mod slice;
mod state;
mod take;
mod taking;
mod time;
mod usage;
pub mod varint;
mod written;

pub use algorithm::{Algorithm, Align, Refill, Ticks};
pub use calendar::{Calendar, CalendarError, Period};
pub use compile::LimitError;
pub use decision::{Ask, Bound, Cost, Decision, Outcome, Retry, TakeReceipt, Taken};
pub use fast_path::PreparedTake;
pub use headroom::Headroom;
pub use inline_vec::InlineVec;
pub use lease::{LeaseAsk, LeaseTerms, NoLease};
pub use limit::Limit;
pub use plan::{Plan, PlanError, PlanOutcome};
pub use slice::{Slice, TimeRange};
pub use state::{State, StateContents};
pub use take::{Freshness, NamedBy, Need, RejectedCost, StateId, Take, WhenFull};
pub use time::{Now, Span, Timestamp};
pub use usage::Usage;
pub use written::Written;
