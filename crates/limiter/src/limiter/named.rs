//! Limits that the caller names, independent of the policy: a batch of takes, and only their decisions.

use super::Limiter;
use super::decide::CALLER_NAMESPACE;
use crate::error::CheckError;
use crate::verdict::DecidedBy;
use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit, NamedBy, Plan, Take};
use tidegate_store::{KeyName, LimitName, SingleAnswer, Store, StoreError};

/// A limit that the caller provides to [`Limiter::take_named`]. Build it once and use it often.
///
/// ```
/// use tidegate::{Algorithm, Limit, NamedLimit, Span};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET)?;
/// let per_second = NamedLimit::new(limit);
/// assert_eq!(per_second.limit().amount(), 15);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NamedLimit {
    limit: Limit,
    name: LimitName,
    key: KeyName,
}

/// The cost of one request under a [`NamedLimit`].
#[derive(Clone, Copy, Debug)]
pub struct NamedTake<'t> {
    /// The key whose counter is used, for example a user name.
    pub key: &'t [u8],
    /// The limit.
    pub limit: &'t NamedLimit,
    /// How much to take.
    pub cost: Cost,
}

impl NamedLimit {
    /// Prepares a limit: derives the name under which its counters are stored.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        let name = LimitName::new(CALLER_NAMESPACE, "", &limit);
        Self { limit, name, key: KeyName::new([CALLER_NAMESPACE]) }
    }

    /// The limit itself.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }
}

impl<S: Store> Limiter<S> {
    /// Checks that the store has room for a limit that callers name.
    ///
    /// A store may accept only a bounded number of different limits; beyond that it overestimates. Ask before
    /// [`Limiter::take_named`]. [`Limiter::take`] asks by itself.
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

    /// Decides a batch of takes in order, each independently of the others.
    ///
    /// If the store does not answer, this node decides under its share of the limit.
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
    ) -> Result<Vec<(Decision, DecidedBy)>, CheckError> {
        let takes: SmallVec<[Take<'_>; 4]> = takes.iter().map(|take| self.named(take)).collect();
        let answers = self.inner.store.take_each(&takes).await;
        let mut decided = Vec::with_capacity(takes.len());
        for (take, answer) in takes.iter().zip(answers) {
            decided.push(match answer {
                Ok(SingleAnswer { taken, by }) => (taken.decision, by.into()),
                Err(_) => self.named_locally(take)?,
            });
        }
        Ok(decided)
    }

    /// Forgets what was counted for keys under a limit that the caller names, and returns for how many there was something.
    ///
    /// ```
    /// use tidegate::{Algorithm, Cost, Limit, Limiter, NamedLimit, NamedTake, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let limit = NamedLimit::new(Limit::new(1, Span::from_secs(3600), Algorithm::TOKEN_BUCKET)?);
    /// let take = NamedTake { key: b"alice", limit: &limit, cost: Cost::ONE };
    /// limiter.take_named(&[take]).await?;
    /// assert_eq!(limiter.reset_named(&[b"alice", b"bob"], &limit).await?, 1);
    /// assert!(limiter.take_named(&[take]).await?[0].0.passes());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn reset_named(
        &self,
        keys: &[&[u8]],
        limit: &NamedLimit,
    ) -> Result<usize, CheckError> {
        let state = |key: &&[u8]| self.inner.secret.subject_by(limit.key, key).state(limit.name);
        self.reset_states(&keys.iter().map(state).collect::<Vec<_>>()).await
    }

    /// For how many keys something is counted under a limit that the caller names. [`Limiter::reset_named`] would forget these. Changes
    /// nothing.
    ///
    /// ```
    /// use tidegate::{Algorithm, Cost, Limit, Limiter, NamedLimit, NamedTake, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let limit = NamedLimit::new(Limit::new(1, Span::from_secs(3600), Algorithm::TOKEN_BUCKET)?);
    /// limiter.take_named(&[NamedTake { key: b"alice", limit: &limit, cost: Cost::ONE }]).await?;
    /// assert_eq!(limiter.named_in_use(&[b"alice", b"bob"], &limit).await?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn named_in_use(
        &self,
        keys: &[&[u8]],
        limit: &NamedLimit,
    ) -> Result<usize, CheckError> {
        let mut takes: Vec<Take<'_>> = keys
            .iter()
            .map(|key| self.named(&NamedTake { key, limit, cost: Cost::default() }))
            .collect();
        // A plan has each state once.
        takes.sort_unstable_by_key(|take| take.state);
        takes.dedup_by_key(|take| take.state);
        self.states_in_use(&takes).await
    }

    /// Decides, on this node, a take that the store did not answer.
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
