//! All tests of policies, in one program.

#![allow(clippy::arithmetic_side_effects, reason = "tests may fail loudly")]

mod envoy;
mod readers;
mod readings;
mod schema;
mod servers;
