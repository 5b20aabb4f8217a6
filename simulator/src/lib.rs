//! Deterministic simulation testing of a deployment: nodes, one store, the network between them, and all their clocks.
//!
//! ```text
//!   seed ──► Scenario: nodes, a rule, requests, faults ──► run: one thread, virtual time ──► History ──► checks
//!                                                                                               └─► trace, hash
//!   node = the real limiter, its fallback, and the real store on Redis with its breaker, registries and denial cache
//!   store = simulated Redis: the same bytes, decided by the core; the network in between delays, loses and cuts
//! ```
//!
//! Everything follows from the seed, so a failing seed can be replayed and shrunk. Tokio's paused clock is the event queue:
//! when no task can go on, time jumps to the next timer. Each node has its own clock, which is off, drifts and is stepped; only
//! the checks know the true time.
//!
//! The checks are the promises of `docs/outages.md`: see [`Violation`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a simulation fails loudly, and runs with overflow checks"
)]

mod caller;
mod checks;
mod history;
mod leased;
mod load;
mod model;
mod names;
mod network;
mod node;
mod random;
mod run;
mod scenario;
mod shrink;
mod timers;

pub use checks::{Violation, violations};
pub use history::{Answered, Decider, History};
pub use load::{Load, LoadResult, play_load};
pub use run::run;
pub use scenario::{Arrival, Fault, FaultKind, LeaseSpec, Reported, RuleSpec, Scenario};
pub use shrink::shrunk;

/// Runs a scenario, and returns the promises that its history breaks.
#[must_use]
pub fn check(scenario: &Scenario) -> Vec<Violation> {
    violations(scenario, &run(scenario))
}
