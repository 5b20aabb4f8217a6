//! How one decision is computed: pure functions of limit, state, time and cost.
//!
//! ```
//! use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
//! // 15 requests a second, and nothing remembered of this client yet.
//! let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET)?;
//! let mut client = Written::empty(&limit);
//! let now = Timestamp::from_nanos(1_700_000_000_000_000_000);
//! let taken = limit.take(&mut client, &Ask::new(now, Cost::ONE));
//! assert!(taken.decision.passes());
//! assert_eq!(taken.decision.remaining, 14);
//! # Ok::<(), tidegate_core::LimitError>(())
//! ```
//!
//! The crate has no dependencies, reads no clock and does no I/O. Only its constructors can fail. Everything is whole numbers; where something is rounded, waits are rounded up and what
//! remains is rounded down.
//!
//! | to learn | read |
//! |---|---|
//! | how the six algorithms work | [`algorithm`], a chapter each |
//! | what is asked and answered | [`Ask`], [`Decision`] |
//! | what is remembered | [`State`], [`Written`], [`TakeReceipt`] |
//! | how several limits are taken together | [`Plan`] |
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
mod inline_vec;
mod limit;
mod plan;
mod ratio;
mod state;
mod state_contents;
mod time;
mod usage;
mod varint;

pub use algorithm::{PreparedTake, Taken};
pub use calendar::{Calendar, CalendarError};
pub use decision::{Ask, Bound, Cost, Decision, Outcome, Retry};
pub use inline_vec::InlineVec;
pub use limit::{Algorithm, Align, Headroom, Limit, LimitError, Period, Refill, Ticks};
pub use plan::{
    Freshness, NamedBy, Need, Plan, PlanError, PlanOutcome, RejectedCost, StateId, Take, WhenFull,
};
pub use state::{State, TakeReceipt, Written};
pub use state_contents::StateContents;
pub use time::{Now, Span, Timestamp};
pub use usage::Usage;
