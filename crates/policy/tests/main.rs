//! All tests of policies, in one program.

mod envoy;
mod readers;
mod readings;
mod schema;
mod servers;
