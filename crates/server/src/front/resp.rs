//! RESP: every Redis client is a tidegate client.
//!
//! ```text
//!   *5  $11 CL.THROTTLE  $6 user:1  $2 14  $2 15  $1 1      15 a second, 15 at once
//!   *5  :0 :15 :14 :-1 :1                                     allowed, limit, left, retry, reset in seconds
//! ```
//!
//! `CL.THROTTLE` answers as redis-cell does, so whoever used that module changes an address and nothing else. The
//! commands that have arrived together are decided together, and their replies are written at once.

mod commands;
mod connection;
#[cfg(test)]
mod panics;
mod reply;
mod throttle;
mod users;
pub mod wire;

pub(crate) use commands::RespHandler;
pub(crate) use connection::serve;
pub(crate) use users::{UserRole, Users};
