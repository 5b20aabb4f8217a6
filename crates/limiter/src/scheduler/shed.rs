//! Why a request gets no seat, and when it should try again.

use tidegate_core::Span;

/// A request was not let through to the upstream, because the upstream has no capacity for it now.
///
/// An HTTP server answers it with status 503 and `Retry-After`. See [`Scheduler::enter`](crate::Scheduler::enter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; try again in {} s", retry_after.as_secs_ceil())]
pub struct Shed {
    /// Why.
    pub reason: ShedReason,
    /// How long it takes to start the requests that wait now and one more, at the rate of the last 10 to 20 s. It is computed
    /// for the class of the request and for all classes together, and the longer time counts; at most one minute. It is an
    /// estimate: clients that come meanwhile and requests that become slower are not known yet.
    pub retry_after: Span,
}

/// Why a request was shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShedReason {
    /// As many requests wait as may wait, and none of them is of a lower class.
    #[error("too many requests are waiting")]
    QueueFull,
    /// The request waited until too many requests were waiting, and one of a higher class took its place.
    #[error("a request of a higher priority took the place of this one")]
    Evicted,
    /// The request waited for as long as it could.
    #[error("no seat became free in time")]
    WaitedTooLong,
}
