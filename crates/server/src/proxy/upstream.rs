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

mod checks;
mod connection;
mod group;
mod health;
mod patience;
mod pool;
mod response_body;
mod seats;
mod stream;

pub(crate) use checks::check_upstreams;
pub(crate) use group::{GroupHealth, NoSeat, UpstreamGroup};
pub(crate) use pool::Pool;
pub(crate) use response_body::{ExchangeBounds, UpstreamBody};
pub(crate) use seats::GroupSeats;
pub(crate) use stream::UpstreamStream;

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
}

impl UpstreamError {
    /// Whether the client is to blame, so that the request counts as a failure.
    pub(crate) const fn is_by_client(&self) -> bool {
        matches!(self, Self::TimedOutByClient)
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
