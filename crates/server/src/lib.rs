//! The server `tidegate`, as a library: the binary only calls [`run`], and fuzz targets and tests import the rest.
//!
//! ```text
//!   net ◄── web ◄── front ◄── wiring ◄── cli      connections · HTTP/1 and HTTP/2 · protocols · one server · commands
//! ```

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]

mod audit;
mod backend;
mod bounds;
mod cli;
mod control;
mod files;
mod front;
mod health;
mod log;
mod metrics;
mod net;
mod rule_files;
mod rulebook;
mod settings;
mod shared_store;
mod supervise;
mod watch;
mod web;
mod wiring;

pub use cli::run;

/// The parsers that fuzz targets feed with bytes. Nothing here is an interface to build on.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::front::resp::wire;
}
