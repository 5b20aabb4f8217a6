//! Limits that callers name, whatever the policy says: many of them at once, and nothing but the answers.

use super::decide::BY_CALLER;
use super::{Limiter, now};
use crate::error::CheckError;
use crate::verdict::DecidedBy;
use tidegate_core::{Cost, Decision, Few, Limit, Plan, Span, Take};
use tidegate_store::{Answer, LimitName, Store};

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
        Self { limit, name }
    }

    /// The limit itself.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }
}

impl<S: Store> Limiter<S> {
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
        let plans = self.plans(takes)?;
        let answers = self.inner.store.take(&plans).await;
        let mut decided = Vec::with_capacity(plans.len());
        for (plan, answer) in plans.iter().zip(answers) {
            let (answer, by) = match answer {
                Ok(answer) if answer.remembered => (answer, DecidedBy::Cache),
                Ok(answer) => (answer, DecidedBy::Store),
                Err(_) => (self.take_locally(plan)?, DecidedBy::Fallback),
            };
            decided.extend(only(answer).map(|decision| (decision, by)));
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
        if let [take] = takes {
            let plan = self.plan(take).ok()?;
            return only(self.inner.store.take_at_once(&plan)?).map(Few::One);
        }
        let plans = self.plans(takes).ok()?;
        let answers = now(self.inner.store.take(&plans));
        Some(answers.into_iter().filter_map(|answer| only(answer.ok()?)).collect())
    }

    fn plans<'t>(&self, takes: &[NamedTake<'t>]) -> Result<Vec<Plan<'t>>, CheckError> {
        takes.iter().map(|take| self.plan(take)).collect()
    }

    fn plan<'t>(&self, take: &NamedTake<'t>) -> Result<Plan<'t>, CheckError> {
        let subject = self.inner.secret.subject_by_bytes(BY_CALLER, take.key);
        let state = subject.state(take.limit.name);
        Ok(Plan::new(Take::new(state, &take.limit.limit, take.cost), Span::ZERO)?)
    }
}

/// The answer to the only take of a plan.
fn only(answer: Answer) -> Option<Decision> {
    answer.done.decisions.into_iter().next()
}
