//! `tidegate serve` as Envoy sees it: calls, what is no call, frames of every kind, many at once, stalls, ends; and health and
//! reflection beside them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::integer_division,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

mod support;

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
