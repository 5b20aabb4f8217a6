//! Limits that callers name, whatever the policy says: many of them at once, and nothing but the answers.

use super::Limiter;
use super::decide::BY_CALLER;
use crate::error::CheckError;
use crate::verdict::DecidedBy;
use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Few, Limit, NamedBy, Plan, Take};
use tidegate_store::{KeyName, LimitName, Store};

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
    /// assert_eq!(answers.map(|(decision, _)| decision.passes()).collect::<Vec<_>>(), [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn take_named(
        &self,
        takes: &[NamedTake<'_>],
    ) -> Result<impl Iterator<Item = (Decision, DecidedBy)> + use<S>, CheckError> {
        let plans: Vec<Plan<'_>> = takes.iter().map(|take| self.named(take).into()).collect();
        let answers = self.inner.store.take(&plans).await;
        let mut decided = Vec::with_capacity(plans.len());
        for (plan, answer) in plans.iter().zip(answers) {
            let (answer, by) = match answer {
                Ok(answer) if answer.remembered => (answer, DecidedBy::Cache),
                Ok(answer) => (answer, DecidedBy::Store),
                Err(_) => (self.take_locally(plan)?, DecidedBy::Fallback),
            };
            decided.extend(answer.done.only().map(|taken| (taken.decision, by)));
        }
        Ok(decided.into_iter())
    }

    /// [`Limiter::take_named`] without waiting, for a store in this process; `None` for all others.
    ///
    /// ```
    /// use tidegate::{Algorithm, Cost, Limit, Limiter, NamedLimit, NamedTake, Policy, Span};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let limit = NamedLimit::new(Limit::new(1, Span::from_secs(3600), Algorithm::TOKEN_BUCKET)?);
    /// let take = NamedTake { key: b"bob", limit: &limit, cost: Cost::ONE };
    /// let answers = limiter.take_named_at_once(&[take, take]).unwrap();
    /// assert_eq!(answers.iter().map(|decision| decision.passes()).collect::<Vec<_>>(), [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn take_named_at_once(&self, takes: &[NamedTake<'_>]) -> Option<Few<Decision>> {
        if !S::AT_ONCE {
            return None;
        }
        let takes: SmallVec<[Take<'_>; 1]> = takes.iter().map(|take| self.named(take)).collect();
        if let [take] = &*takes {
            let answer = self.inner.store.take_at_once(&Plan::from(*take))?;
            return Some(Few::One(answer.done.only()?.decision));
        }
        let taken = self.inner.store.take_each_at_once(&takes)?;
        Some(taken.into_iter().map(|taken| taken.decision).collect())
    }

    fn named<'t>(&self, take: &NamedTake<'t>) -> Take<'t> {
        let subject = self.inner.secret.subject_by(take.limit.key, take.key);
        let state = subject.state(take.limit.name);
        Take { named_by: NamedBy::Caller, ..Take::new(state, &take.limit.limit, take.cost) }
    }
}
