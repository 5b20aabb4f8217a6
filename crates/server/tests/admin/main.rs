//! The admin listener, used by operators and attackers: who has access, what they change and how it is saved, and
//! which settings keep the server from starting.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

use crate::support;

mod changes;
mod dashboard;
mod doors;
mod expiry;
mod folder;
mod full;
mod keeping;
mod people;
mod policies;
mod secrets;
mod starting;
mod switches;
mod users;

/// What the control file of a server contains.
fn kept(server: &support::Server) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(server.data("control.json")).unwrap()).unwrap()
}
