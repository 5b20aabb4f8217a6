//! gRPC: what Envoy asks by.
//!
//! ```text
//!   /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit     may this call pass? what may, is counted
//!   /grpc.health.v1.Health/{Check,Watch}                             for whoever watches us
//!   /grpc.reflection.v1.ServerReflection/…                           all of this, for programs
//! ```
//!
//! The first is asked thousands of times a second, so its few messages are read and written by hand, where they lie; the
//! others are tonic's. A mistake of a client is answered with a status, and the connection goes on.

mod call;
mod handler;
#[cfg(test)]
mod laws;
#[cfg(test)]
#[path = "../../tests/support/messages.rs"]
mod messages;
mod others;
mod reflection;
mod reply;
mod wire;

pub(crate) use call::serve_call;
pub(crate) use handler::{Handler, HeaderChoice, Manners};
