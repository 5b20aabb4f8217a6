//! Errors of a store, named for what the caller can do about them.
//!
//! A refusal is an answer, not an error. Unless its documentation says that nothing was counted, an error means that the outcome
//! is unknown: the caller may assume neither that states were charged nor that they were not. The rule of the request says what
//! to do then (`on_store_error`).

use std::error::Error;
use tidegate_core::Limit;

/// Why a store has no answer.
///
/// ```
/// use tidegate_store::StoreError;
/// assert!(StoreError::Overloaded.to_string().contains("too many"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached. Try again later, and decide without it meanwhile.
    #[error("the store cannot be reached: {0}")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The store answers, but does not execute the command: it is full, a replica or still loading its data, or it does not
    /// accept our credentials. Try again later, and decide without it meanwhile.
    #[error("the store refuses: {0}")]
    Refuses(String),
    /// The store did not answer in time. It is unknown whether it counted.
    #[error("the store did not answer within {0}")]
    TimedOut(tidegate_core::Span),
    /// Some servers of the store are unreachable. These are the indices of the takes whose states are on them. Nothing was counted:
    /// try again without these takes.
    #[error("a part of the store cannot be reached")]
    Partly(Vec<usize>),
    /// Too many requests are waiting for the store: shed load.
    #[error("too many requests are waiting for the store; try again later")]
    Overloaded,
    /// Clients use as many different limits as the store has room for. Use one of those, or try again when some have no states
    /// left. Nothing was counted.
    #[error("too many different limits are in use; use one of them, or try again later")]
    TooManyLimits,
    /// The store cannot count under this limit: change the limit, or use another store.
    #[error("this store cannot count {} of {}: {reason}", limit.algorithm().name(), limit.amount())]
    Unsupported {
        /// The limit.
        limit: Box<Limit>,
        /// What the store does not support.
        reason: &'static str,
    },
    /// The configuration of the store is wrong, and waiting does not help: change the address or the secret.
    #[error("the store cannot be used like this: {0}")]
    Unusable(String),
    /// The store holds the states of another secret. Waiting does not help: give this node the secret of the nodes that use the
    /// store already, or use another store.
    #[error(
        "the store holds the states of another secret; all nodes that share a store need the same one"
    )]
    OtherSecret,
    /// The store sent an invalid answer: a bug, or data of another program. An operator must look into it.
    #[error("the store sent an invalid answer: {0}")]
    Broken(String),
}

impl StoreError {
    /// Whether waiting does not help: the configuration must change first.
    pub(crate) const fn is_for_good(&self) -> bool {
        match self {
            Self::Unusable(_) | Self::OtherSecret => true,
            Self::Unavailable(_)
            | Self::Refuses(_)
            | Self::TimedOut(_)
            | Self::Partly(_)
            | Self::Overloaded
            | Self::TooManyLimits
            | Self::Unsupported { .. }
            | Self::Broken(_) => false,
        }
    }

    /// The error of a call that is not made because of this earlier error: nothing was counted.
    pub(crate) fn not_sent(&self) -> Self {
        match self {
            Self::Unavailable(why) => Self::Unavailable(why.to_string().into()),
            Self::Refuses(why) => Self::Refuses(why.clone()),
            Self::Unusable(why) => Self::Unusable(why.clone()),
            Self::OtherSecret => Self::OtherSecret,
            Self::Broken(why) => Self::Broken(why.clone()),
            Self::TimedOut(after) => {
                Self::Unavailable(format!("it did not answer within {after}").into())
            }
            Self::Partly(_) => Self::Unavailable("some of its servers are down".into()),
            other @ (Self::Overloaded | Self::TooManyLimits | Self::Unsupported { .. }) => {
                Self::Unavailable(other.to_string().into())
            }
        }
    }
}
