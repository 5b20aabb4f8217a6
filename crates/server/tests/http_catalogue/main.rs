//! Everything that a listener for HTTP should never be sent, sent to it: whole, and cut into pieces.
//!
//! Each case says what is answered and whether the connection goes on. What never changes: the server does
//! not meet a mistake of its own, and whoever asks beside all this is answered.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::integer_division,
    reason = "tests may fail loudly"
)]

mod case;
mod expect;
mod forward_auth;
mod framing;
mod injection;
mod json;
mod pipeline;
#[path = "../support/mod.rs"]
mod support;
