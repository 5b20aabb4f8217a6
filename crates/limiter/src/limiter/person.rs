//! A person's view: what every rule has counted for a person of whom some attributes are known, and what is left.

use super::Limiter;
use super::planning::{PlannedTake, takes};
use crate::check::Check;
use crate::error::CheckError;
use smallvec::SmallVec;
use tidegate_core::{Decision, Outcome, Plan, Retry, Span};
use tidegate_policy::{Attributes, PersonRule, ResolvedRule};
use tidegate_store::Store;

/// What is known about a person; see [`Limiter::person`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonReport {
    /// The tier, as far as it is known: requests may name another.
    pub tier: Option<String>,
    /// The attribute and the value to which an operator assigned that tier, if one did.
    pub tier_assigned_to: Option<(String, String)>,
    /// The rules whose key is known, in the order of the policy.
    pub rules: Vec<PersonRuleReport>,
    /// The other rules.
    pub not_covered: Vec<UncoveredRule>,
    /// Whether the store answered. If it did not, the figures are those of the fallback, which counts on this node.
    pub from_store: bool,
}

/// What a rule has counted for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonRuleReport {
    /// The name of the rule.
    pub rule: String,
    /// The key, with values as they are counted: secrets are digests.
    pub key: Vec<(String, String)>,
    /// The key on one line.
    pub key_text: String,
    /// Whether the rule is enabled.
    pub enabled: bool,
    /// Whether it is in shadow mode.
    pub shadow: bool,
    /// Where its limits come from: `rule`, `tier …`, `override` or `run-time override`.
    pub origin: String,
    /// The attributes that the run-time override names, if one applies.
    pub override_key: Option<Vec<(String, String)>>,
    /// Under which conditions the rule applies to requests of the person, in words.
    pub only_when: Vec<String>,
    /// Its limits; none if the person is not limited.
    pub limits: Vec<PersonLimit>,
}

/// What one limit has counted for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonLimit {
    /// The name of the limit within the rule, such as `h` for `5/h`.
    pub id: String,
    /// The limit as people write it.
    pub rate: String,
    /// The algorithm.
    pub algorithm: &'static str,
    /// The most that fits.
    pub limit: u64,
    /// How much of it is used.
    pub used: u64,
    /// How much is left.
    pub remaining: u64,
    /// The time until nothing is used, if nothing more is taken.
    pub reset: Option<Span>,
    /// Whether a request with the cost 1 would pass now.
    pub allowed: bool,
    /// When such a request would pass, if it would not now.
    pub retry_after: Option<Span>,
}

/// A rule whose key is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncoveredRule {
    /// The name of the rule.
    pub rule: String,
    /// The parts of its key of which no value is known, such as `device`.
    pub needs: Vec<String>,
    /// The known values of its key, as they are counted.
    pub known: Vec<(String, String)>,
}

impl<S: Store> Limiter<S> {
    /// What every rule has counted for a person of whom these attributes are known, such as the user name. Nothing is counted.
    ///
    /// The counters of a rule are found by all attributes of its key. So the report is exact for rules whose key is known, whatever
    /// their `match`, and lists the others in `not_covered`.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::in_memory(Policy::parse("
    /// version: 1
    /// rules:
    ///   - { name: a, match: { method: POST }, key: [user], limits: [{ rate: 5/h, algorithm: sliding_log }] }
    ///   - { name: b, key: [user, device], limits: [9/h] }")?)?;
    /// let request = Attributes::new().with("user", "alice")?.with("method", "POST")?;
    /// limiter.check(&Check::new(&request).cost(2)).await?;
    /// let report = limiter.person(&Attributes::new().with("user", "alice")?).await?;
    /// let limit = &report.rules[0].limits[0];
    /// assert_eq!((limit.used, limit.remaining, limit.allowed), (2, 3, true));
    /// assert_eq!((&report.not_covered[0].rule[..], &report.not_covered[0].needs[..]), ("b", &["device".to_owned()][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn person(&self, who: &Attributes<'_>) -> Result<PersonReport, CheckError> {
        let live = self.live();
        let who = self.concealed(&live, who);
        let person = live.policy.person(&live.changes, &who);
        let mut report = PersonReport {
            tier: person.tier.map(str::to_owned),
            tier_assigned_to: person
                .assigned
                .map(|assigned| (assigned.attribute.to_owned(), assigned.value.to_owned())),
            rules: vec![],
            not_covered: vec![],
            from_store: true,
        };
        for rule in &person.rules {
            match &rule.resolved {
                Some(resolved) => {
                    let limits = self.counted(resolved, &who, &mut report.from_store).await?;
                    report.rules.push(PersonRuleReport::new(rule, resolved, limits));
                }
                None => report.not_covered.push(UncoveredRule {
                    rule: rule.rule.name().to_owned(),
                    needs: rule.lacking.clone(),
                    known: owned(rule.known.iter().map(|(name, value)| (*name, &**value))),
                }),
            }
        }
        Ok(report)
    }

    /// What the limits of a rule have counted.
    async fn counted(
        &self,
        resolved: &ResolvedRule<'_>,
        who: &Attributes<'_>,
        from_store: &mut bool,
    ) -> Result<Vec<PersonLimit>, CheckError> {
        let mut limits = Vec::new();
        // A cost of 0 says what is left, and a cost of 1 whether the next request passes.
        let now = self.peeked(resolved, &Check::new(who).cost(0), from_store).await?;
        let next = self.peeked(resolved, &Check::new(who), from_store).await?;
        for ((planned, now), (_, next)) in now.iter().zip(&next) {
            limits.push(PersonLimit::new(planned, now, next));
        }
        Ok(limits)
    }

    /// What each limit of a rule would answer. After the store has not answered once, it is not asked again.
    async fn peeked<'l>(
        &self,
        resolved: &ResolvedRule<'l>,
        check: &Check<'_>,
        from_store: &mut bool,
    ) -> Result<Vec<(PlannedTake<'l>, Decision)>, CheckError> {
        let mut planned = SmallVec::new();
        self.plan_rule(resolved, check, &mut planned);
        let plan = Plan::new(takes(&planned), Span::ZERO)?;
        let answered = if *from_store { self.inner.store.peek(&plan).await.ok() } else { None };
        *from_store = answered.is_some();
        let decisions = match answered {
            Some(decisions) => decisions,
            None => self.peek_locally(&plan)?,
        };
        drop(plan);
        Ok(planned.into_iter().zip(decisions).collect())
    }
}

impl PersonRuleReport {
    fn new(rule: &PersonRule<'_>, resolved: &ResolvedRule<'_>, limits: Vec<PersonLimit>) -> Self {
        let pairs = resolved.values.pairs();
        Self {
            rule: rule.rule.name().to_owned(),
            key: owned(pairs.iter().map(|(name, value)| (*name, &**value))),
            key_text: resolved.values.to_string(),
            enabled: rule.enabled,
            shadow: resolved.shadow,
            origin: resolved.origin.to_string(),
            override_key: rule.override_key.as_ref().map(|key| owned(key.iter().copied())),
            only_when: rule.only_when.clone(),
            limits,
        }
    }
}

impl PersonLimit {
    fn new(planned: &PlannedTake<'_>, now: &Decision, next: &Decision) -> Self {
        let limit = planned.limit.limit();
        let retry_after = match next.outcome {
            Outcome::Deny(Retry::After(wait)) => Some(wait),
            Outcome::Deny(Retry::Never) | Outcome::Allow | Outcome::Delay(_) => None,
        };
        // The fallback has its share of the limit, which is smaller.
        let capacity = limit.capacity();
        Self {
            id: planned.limit.id().to_owned(),
            rate: planned.limit.summary(),
            algorithm: limit.algorithm().name(),
            limit: capacity,
            used: capacity.saturating_sub(now.remaining),
            remaining: now.remaining,
            reset: now.reset,
            allowed: next.passes(),
            retry_after,
        }
    }
}

fn owned<'t>(pairs: impl Iterator<Item = (&'t str, &'t str)>) -> Vec<(String, String)> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
