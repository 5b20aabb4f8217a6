//! Upstream servers: groups, connections, and sending requests to them.
//!
//! | file | contents |
//! |---|---|
//! | `checks.rs` | active health checks |
//! | `group.rs` | which server of a group gets the next request; shared by all workers |
//! | `health.rs` | when a server is ejected and comes back |
//! | `pool.rs` | the connections of one worker; sends requests |
//! | `connection.rs` | one HTTP/1 connection |
//! | `patience.rs` | timeouts of answers |
//! | `response_body.rs` | the body of an answer |
//! | `seats.rs` | how many requests may be in flight, and which comes next |
//! | `stream.rs` | TCP or TLS |
//! | `work.rs` | what a request occupies while a server works for it, also after its client has left |

mod checks;
mod connection;
mod group;
mod health;
mod patience;
mod pool;
mod response_body;
mod seats;
mod stream;
mod work;

pub(crate) use checks::check_upstreams;
pub(crate) use group::{GroupHealth, GroupReading, NoSeat, ServerReading, UpstreamGroup};
pub(crate) use pool::Pool;
pub(crate) use response_body::{ExchangeBounds, UpstreamBody};
pub(crate) use seats::{GroupSeat, GroupSeats, HeldSeat, SeatRequest};
pub(crate) use stream::UpstreamStream;
pub(crate) use work::{AFTER_LEAVING, ClientPresence, Held, UNTIL_HALF_CLOSE};

use super::request_body::BodyFault;

/// Why there is no answer of an upstream server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("no upstream server can be reached")]
    Unreachable,
    #[error("the upstream server did not answer in time")]
    TimedOut,
    /// The client sent its request so slowly that too little of the time for the whole exchange was left.
    #[error("the request arrived too slowly for an answer in time")]
    TimedOutByClient,
    #[error("the connection to the upstream server broke: {0}")]
    Broken(String),
    #[error("the answer of the upstream server is not valid: {0}")]
    Invalid(&'static str),
    #[error("the upstream servers have as many requests as they may")]
    Full,
    #[error("the proxy has no memory for more requests at this moment")]
    NoRoom,
    #[error("all upstream servers are drained")]
    Drained,
    #[error("the proxy can open no more connections at this moment")]
    NoFiles,
    /// The client did not send all of its body.
    #[error("the client did not send all of its request")]
    CutShort,
    /// The client sent its body more slowly than it may while it holds a seat.
    #[error("the request arrived too slowly")]
    SlowClient,
}

impl From<BodyFault> for UpstreamError {
    fn from(fault: BodyFault) -> Self {
        match fault {
            BodyFault::CutShort => Self::CutShort,
            BodyFault::Late => Self::SlowClient,
        }
    }
}

impl UpstreamError {
    /// Whether the client is to blame, so that the request counts as a failure.
    pub(crate) const fn is_by_client(&self) -> bool {
        matches!(self, Self::TimedOutByClient | Self::CutShort | Self::SlowClient)
    }
}

impl From<NoSeat> for UpstreamError {
    fn from(why: NoSeat) -> Self {
        match why {
            NoSeat::Full => Self::Full,
            NoSeat::Drained => Self::Drained,
        }
    }
}
