//! The `tidegate` server as a library. The binary calls [`run`]; fuzz targets and tests import the parsers.
//!
//! ```text
//!   net ◄── web ◄── front ◄── wiring ◄── cli      connections · HTTP/1 and HTTP/2 · protocols · one server · commands
//! ```
//!
//! An arrow points at the module that is used. Besides these layers there are the rules in force (`rulebook`, with
//! `control`, `audit` and `rule_files`), the `settings`, and what every layer reports to (`metrics`, `health`,
//! `log`).

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]

mod algorithm_trace;
mod audit;
mod backend;
mod bounds;
mod cli;
mod control;
mod decision_logs;
mod denial_log;
mod desk;
#[cfg(test)]
mod doc_pages;
#[cfg(test)]
mod error_page;
mod files;
mod front;
mod health;
mod line_writer;
mod log;
mod metrics;
mod net;
mod proxy;
mod recent_denials;
mod recorder;
mod rotating_file;
mod rule_files;
mod rulebook;
mod settings;
mod shared_store;
mod shown_key;
mod supervise;
mod timers;
mod top_keys;
mod watch;
mod web;
mod wiring;

pub use cli::run;

/// The parsers that fuzz targets feed with bytes. This is not a stable interface.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::front::resp::wire;
    pub use crate::proxy::fuzzing as proxy;
}
