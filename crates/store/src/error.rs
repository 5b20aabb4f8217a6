//! What can go wrong in a store, named for what the caller can do about it.
//!
//! A refusal is no error. An error means that nothing is known: the caller may assume neither that
//! states were charged nor that they are free, and does what its rule says for that case.

use std::error::Error;
use tidegate_core::Limit;

/// Why there is no answer.
///
/// ```
/// use tidegate_store::StoreError;
/// assert!(StoreError::Overloaded.to_string().contains("too many"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached: ask again later, decide without it meanwhile.
    #[error("the store cannot be reached: {0}")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// It answers, and does not do what it is asked: it is full, a replica, still reading its data, or does not let us in. Ask
    /// again later, decide without it meanwhile.
    #[error("the store refuses: {0}")]
    Refuses(String),
    /// It did not answer in time; whether it counted is unknown.
    #[error("the store did not answer within {0}")]
    TimedOut(tidegate_core::Span),
    /// Some takes of the plan lie where nobody can be asked just now; these. Nothing was taken: ask for the others without
    /// them.
    #[error("a part of the store cannot be reached")]
    Partly(Vec<usize>),
    /// Too many questions are waiting for it: shed load.
    #[error("too many questions are waiting for the store")]
    Overloaded,
    /// Callers have named as many different limits as it has room for: use one of them, or try again when some have no
    /// states left. Nothing was counted.
    #[error("too many different limits are in use; use one of them, or try again later")]
    TooManyLimits,
    /// It cannot count under this limit: change the limit, or the store.
    #[error("this store cannot count {} of {}: {reason}", limit.algorithm().name(), limit.amount())]
    Unsupported {
        /// The limit.
        limit: Box<Limit>,
        /// What is beyond the store.
        reason: &'static str,
    },
    /// It cannot be used as we were told to, and no patience would mend that: another address is needed, or another secret.
    #[error("the store cannot be used like this: {0}")]
    Unusable(String),
    /// It answers something that cannot be: a bug, or another program's data. Somebody must
    /// look.
    #[error("the store answered what cannot be: {0}")]
    Broken(String),
}
