//! `tidegate serve` as Envoy sees it: calls, messages that are not valid, frames of every kind, many calls at once,
//! stalls, the end of connections; and the health and reflection services.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::integer_division,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

#[path = "grpc/bytes.rs"]
mod bytes;
#[path = "grpc/calls.rs"]
mod calls;
#[path = "grpc/ends.rs"]
mod ends;
#[path = "grpc/files.rs"]
mod files;
#[path = "grpc/frames.rs"]
mod frames;
#[path = "grpc/manners.rs"]
mod manners;
#[path = "grpc/moving.rs"]
mod moving;
#[path = "grpc/others.rs"]
mod others;
#[path = "grpc/stalls.rs"]
mod stalls;
#[path = "grpc/together.rs"]
mod together;
