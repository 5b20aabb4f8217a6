//! Envoy itself, which asks us whether its requests may pass.
//!
//! ```text
//!   client ──► Envoy ──► the shop, or one of two pools
//!                └── may this pass? ──► tidegate, by rule files or by a policy
//! ```
//!
//! No test waits for a window to begin: where nothing has to come back a limit is per day, and where something has to, the
//! test asks until it is refused and then until it passes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod failing;
mod hostile;
mod mesh;
mod page;
mod policy;
mod reload;
mod stories;
mod tls;
