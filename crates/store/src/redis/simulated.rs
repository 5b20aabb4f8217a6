//! A simulated Redis: the data and the few commands that the store uses, with decisions made by the core.
//!
//! ```text
//!   the real store on Redis ──► Network: the test delays, loses, cuts ──► SimulatedRedis::execute
//! ```
//!
//! The simulated server keeps the same bytes under the same keys as a real one: the value of a bucket carries the tag of its
//! shape, a script that reads an unknown tag replies with it, and a script whose deadline has passed does nothing. Only the
//! decision itself is made by the core instead of Lua. Other tests compare the two.
//!
//! Several servers may share the data of one simulated server; each then gets the calls for its own slots. Not simulated:
//! slots that move, calendars, and the time to live of states (a state says for itself when it is over).

mod plan_script;
mod request;
mod server;

pub use request::{
    Effect, Executed, Network, NetworkFuture, OwnedPart, OwnedTake, SimulatedReply,
    SimulatedRequest,
};
pub use server::SimulatedRedis;
