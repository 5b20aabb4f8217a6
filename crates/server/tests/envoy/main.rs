//! A real Envoy, which asks tidegate whether its requests may pass.
//!
//! ```text
//!   client ──► Envoy ──► the shop, or one of two pools
//!                └── may this pass? ──► tidegate, by rule files or by a policy
//! ```
//!
//! No test waits for a window to begin. Limits are per day where nothing has to come back. Where something has to,
//! the test sends requests until one is refused, and then until one passes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

mod answers;
mod failing;
mod hostile;
mod mesh;
mod page;
mod policy;
mod reload;
mod stories;
mod tls;
