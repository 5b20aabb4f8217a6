//! RESP, the protocol of Redis: every Redis client is a tidegate client.
//!
//! ```text
//!   *5  $11 CL.THROTTLE  $6 user:1  $2 14  $2 15  $1 1      15 per second, with a burst of 15
//!   *5  :0 :15 :14 :-1 :1                                     limited, limit, remaining, retry after s, reset after s
//! ```
//!
//! `CL.THROTTLE` answers as the module redis-cell does, so an application that used that module changes only the address.
//! Commands that arrive together (a pipeline) are decided together, and their replies are sent with one write.

mod commands;
mod connection;
mod handler;
mod hello;
#[cfg(test)]
mod panics;
mod repeated;
mod reply;
mod session;
#[cfg(test)]
mod slow;
mod throttle;
mod users;
pub mod wire;

pub(crate) use connection::serve;
pub(crate) use handler::RespHandler;
pub(crate) use users::{UserRole, Users};
