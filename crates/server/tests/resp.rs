//! `tidegate serve` as Redis clients see it: bytes of every kind, commands, the end of connections, common client
//! libraries, and the answers of redis-cell.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

#[path = "resp/bytes.rs"]
mod bytes;
#[path = "resp/cell.rs"]
mod cell;
#[path = "resp/clients.rs"]
mod clients;
#[path = "resp/commands.rs"]
mod commands;
#[path = "resp/ends.rs"]
mod ends;
#[path = "resp/strangers.rs"]
mod strangers;
#[path = "resp/talk.rs"]
pub(crate) mod talk;
