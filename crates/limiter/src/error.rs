//! What can go wrong, named for what the caller can do about it. A refusal is no error.

use tidegate_core::PlanError;
use tidegate_policy::{ChangeError, PolicyError};
use tidegate_store::StoreError;

/// A limiter cannot be made of these, or not be changed so.
#[derive(Debug, thiserror::Error)]
pub enum LimiterError {
    /// The store cannot count one of the limits.
    #[error("rule `{rule}`: {source}")]
    Unsupported {
        /// Whose limit.
        rule: String,
        /// Which, and why not.
        source: StoreError,
    },
    /// There is no source of randomness to make a secret of.
    #[error("no secret could be made: {0}")]
    Secret(#[from] std::io::Error),
    /// The policy has mistakes.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A change that makes no sense under the policy.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// A request that cannot be decided.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// More limits apply to it than are decided together.
    #[error("more limits apply to this request than can be decided together: {0}")]
    TooManyLimits(#[from] PlanError),
    /// There is no rule of that name.
    #[error("there is no rule `{0}`")]
    NoRule(String),
    /// The key of the rule has no value.
    #[error("rule `{rule}` counts by {key}, and this names nobody in it")]
    NoKey {
        /// The rule.
        rule: String,
        /// Its key.
        key: String,
    },
    /// The machine has no room for the thread whose clock a blocked caller waits by.
    #[error("no thread could be started to wait by")]
    NoTimer,
    /// The store is gone, and there is nothing to fall back on.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A report that changes nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The receipt is none of ours, or was changed.
    #[error("this is no receipt of this deployment")]
    Forged,
    /// The store is gone: whether the report was counted is not known.
    #[error(transparent)]
    Store(#[from] StoreError),
}
