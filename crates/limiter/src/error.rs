//! Errors, named for what the caller can do about them. A denied request is not an error: it is a
//! [`Verdict`](crate::Verdict).

use tidegate_core::PlanError;
use tidegate_policy::{ChangeError, PolicyError};
use tidegate_store::StoreError;

/// A limiter could not be built, or a policy or change was rejected. A running limiter goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum LimiterError {
    /// The store cannot count one of the limits. Change the limit, or use another store.
    #[error("rule `{rule}`: {source}")]
    Unsupported {
        /// The rule with the limit.
        rule: String,
        /// Which limit, and why the store cannot count it.
        source: StoreError,
    },
    /// The operating system provides no randomness, from which the secret is generated.
    #[error("cannot generate a secret, because the system provides no randomness: {0}")]
    Secret(#[from] std::io::Error),
    /// The policy is not valid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The change does not fit the policy, for example because it names an unknown rule.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// A request could not be decided.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The limits that apply to the request cannot be decided in one step, usually because there are too many. Let fewer
    /// rules apply to the same request.
    #[error("the limits of this request cannot be decided together: {0}")]
    TooManyLimits(#[from] PlanError),
    /// The policy has no rule of this name.
    #[error("there is no rule `{0}`")]
    NoRule(String),
    /// The attributes have no value for the rule's key, so they do not select any counter of the rule.
    #[error("rule `{rule}` counts by {key}; give a value for it")]
    NoKey {
        /// The rule.
        rule: String,
        /// The attributes that its key consists of.
        key: String,
    },
    /// [`Limiter::acquire_blocking`](crate::Limiter::acquire_blocking) could not start its timer thread, because the
    /// system is out of resources.
    #[error("cannot start the timer thread for blocking waits; the system is out of resources")]
    NoTimer,
    /// The store did not answer, and the operation has no fallback. Try again later.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A report was rejected, or it is unknown whether it was counted.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The receipt was not issued by this deployment, or it was modified.
    #[error("this is not a valid receipt of this deployment")]
    Forged,
    /// The store did not answer. It is unknown whether the report was counted; reporting again never counts twice.
    #[error(transparent)]
    Store(#[from] StoreError),
}
