//! Everything that an HTTP listener should never receive, sent whole and in pieces.
//!
//! Each case says what the answer is and whether the connection goes on. In every case, the server has no internal
//! error, and other clients are served meanwhile.

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
mod pages;
mod pipeline;
