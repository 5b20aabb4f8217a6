//! gRPC: what Envoy asks by.
//!
//! ```text
//!   /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit     may this call pass? what may, is counted
//!   /grpc.health.v1.Health/{Check,Watch}                             for whoever watches us
//!   /grpc.reflection.v1.ServerReflection/…                           all of this, for programs
//! ```
//!
//! The first is asked thousands of times a second, so its few messages are read and written by hand, where they lie; the
//! others are tonic's. An error is a pass for a proxy that fails open, so nothing that a client can send through its proxy is
//! answered with one: a call that cannot be decided is refused. Errors are for what only a proxy can get wrong, such as bytes
//! that are not a message; the connection goes on.

mod call;
mod handler;
#[cfg(test)]
mod laws;
mod message;
#[cfg(test)]
#[path = "../../tests/support/messages.rs"]
mod messages;
mod others;
mod reflection;
mod reply;
mod text;
mod wire;

pub(crate) use call::serve;
pub(crate) use handler::{GrpcHandler, GrpcOptions, HeaderChoice};
