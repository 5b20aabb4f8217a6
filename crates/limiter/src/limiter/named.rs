//! Limits that callers name, whatever the policy says: many of them at once, and nothing but the answers.

use super::Limiter;
use super::decide::BY_CALLER;
use crate::error::CheckError;
use crate::verdict::DecidedBy;
use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, InlineVec, Limit, NamedBy, Plan, Take};
use tidegate_store::{KeyName, LimitName, SingleAnswer, Store, StoreError};

/// A limit that a caller names. Made once, used often.
///
/// ```
/// use tidegate::{Algorithm, Limit, NamedLimit, Span};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET)?;
/// assert_eq!(NamedLimit::new(limit).limit().amount(), 15);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NamedLimit {
    limit: Limit,
    name: LimitName,
    key: KeyName,
}

/// A take of one key under such a limit.
#[derive(Clone, Copy, Debug)]
pub struct NamedTake<'t> {
    /// Whose bucket it is.
    pub key: &'t [u8],
    /// Under which limit.
    pub limit: &'t NamedLimit,
    /// How much.
    pub cost: Cost,
}

impl NamedLimit {
    /// The limit, with the name of its states.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        let name = LimitName::new(BY_CALLER, "", &limit);
        Self { limit, name, key: KeyName::new([BY_CALLER]) }
    }

    /// The limit itself.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }
}

impl<S: Store> Limiter<S> {
    /// Whether a caller may name this limit now. A store may have room for so many different limits only; what it refuses
    /// here it would count too much, so ask before [`Limiter::take_named`]. [`Limiter::take`] asks by itself.
    ///
    /// ```
    /// use tidegate::{Algorithm, Limit, Limiter, Policy, Span};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// assert!(limiter.admit_limit(&Limit::new(2, Span::from_secs(3600), Algorithm::TOKEN_BUCKET)?).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn admit_limit(&self, limit: &Limit) -> Result<(), CheckError> {
        Ok(self.inner.store.admit_limit(limit)?)
    }

    /// Takes, each by itself, in order.
    ///
    /// ```
    /// use tidegate::{Algorithm, Cost, Limit, Limiter, NamedLimit, NamedTake, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let limit = NamedLimit::new(Limit::new(2, Span::from_secs(3600), Algorithm::TOKEN_BUCKET)?);
    /// let take = NamedTake { key: b"alice", limit: &limit, cost: Cost::ONE };
    /// let answers = limiter.take_named(&[take; 3]).await?;
    /// let passes: Vec<bool> = answers.iter().map(|(decision, _)| decision.passes()).collect();
    /// assert_eq!(passes, [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn take_named(
        &self,
        takes: &[NamedTake<'_>],
    ) -> Result<InlineVec<(Decision, DecidedBy)>, CheckError> {
        let takes: SmallVec<[Take<'_>; 4]> = takes.iter().map(|take| self.named(take)).collect();
        let answers = self.inner.store.take_each(&takes).await;
        let decided = |(take, answer): (&Take<'_>, Result<SingleAnswer, StoreError>)| match answer {
            Ok(SingleAnswer { taken, remembered: true }) => Ok((taken.decision, DecidedBy::Cache)),
            Ok(SingleAnswer { taken, remembered: false }) => Ok((taken.decision, DecidedBy::Store)),
            Err(_) => self.named_locally(take),
        };
        takes.iter().zip(answers).map(decided).collect()
    }

    /// The answer of this node to a take that the store did not answer.
    fn named_locally(&self, take: &Take<'_>) -> Result<(Decision, DecidedBy), CheckError> {
        let answer = self.take_locally(&Plan::from(*take))?;
        let taken =
            answer.done.only().ok_or_else(|| StoreError::Unavailable("no answer".into()))?;
        Ok((taken.decision, DecidedBy::Fallback))
    }

    fn named<'t>(&self, take: &NamedTake<'t>) -> Take<'t> {
        let subject = self.inner.secret.subject_by(take.limit.key, take.key);
        let state = subject.state(take.limit.name);
        Take { named_by: NamedBy::Caller, ..Take::new(state, &take.limit.limit, take.cost) }
    }
}
