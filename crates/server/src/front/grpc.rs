//! gRPC: Envoy's rate limit service, with health checks and reflection.
//!
//! ```text
//!   /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit     decides a call, and counts it if it passes
//!   /grpc.health.v1.Health/{Check,Watch}                             for load balancers and monitoring
//!   /grpc.reflection.v1.ServerReflection/…                           describes the services, for tools such as grpcurl
//! ```
//!
//! The first is called thousands of times per second, so its few messages are parsed in place and written by hand; the others
//! are served by tonic. A proxy that fails open lets a call pass when it gets an error. Therefore nothing that a client can
//! send through its proxy is answered with an error: a call that cannot be decided is denied. Errors are for what only a proxy
//! can get wrong, such as bytes that are not a message; the connection stays open after them.

#[cfg(test)]
mod against_prost;
mod call;
mod handler;
mod message;
#[cfg(test)]
#[path = "../../tests/support/messages.rs"]
mod messages;
mod reflection;
mod reply;
mod tonic_service;
mod value_text;
mod wire;

pub(crate) use call::serve;
pub(crate) use handler::{GrpcHandler, GrpcOptions, HeaderChoice};
