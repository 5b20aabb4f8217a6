//! From a request to a verdict: which takes, all of them or none, and what was answered.
//!
//! ```text
//!   rules that apply ──► takes ──► one plan ──► store ──► decisions, receipts ──► entries of a verdict
//!                                               └─ gone: each rule as it says for that case
//! ```

use super::{Limiter, STORE_RETRY};
use crate::acquire::Turns;
use crate::check::Check;
use crate::error::CheckError;
use crate::live::{Lent, Live};
use crate::receipt::{Receipt, Taken};
use crate::verdict::{DecidedBy, Entry, LimitOf, OF_CALLER, Verdict};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use tidegate_core::{
    Bound, Cost, Decision, InlineVec, Limit, NamedBy, Need, Outcome, Plan, PlanOutcome, Retry,
    Span, Take, Timestamp,
};
use tidegate_policy::{Attributes, Count, Mode, OnLimit, Origin, ResolvedRule, Rule, RuleLimit};
use tidegate_store::{Answer, KeyName, LimitName, ReceiptId, Store, StoreError};

/// What states of limits that callers name belong to. No rule is called so: a name has no slash.
pub(super) const BY_CALLER: &str = "/take";

/// One take of a plan, and where it comes from.
pub(super) struct Asked<'l> {
    pub(super) number: usize,
    pub(super) rule: &'l Rule,
    pub(super) limit: &'l RuleLimit,
    /// Which of the rule's own limits it is, if it is one.
    pub(super) own: Option<usize>,
    pub(super) take: Take<'l>,
    pub(super) shadow: bool,
}

/// The answers to the takes of a plan.
pub(super) struct Decided {
    pub(super) decisions: InlineVec<Decision>,
    pub(super) receipts: InlineVec<Option<tidegate_core::TakeReceipt>>,
    pub(super) at: Timestamp,
    pub(super) by: DecidedBy,
    /// The limits that this node counted under, if it did so by itself.
    pub(super) shares: Option<Vec<Limit>>,
    /// Which takes this node counted by itself, because the store could not be asked for them.
    pub(super) here: Vec<usize>,
}

/// What a caller wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// The answer, counted in the statistics.
    Answer,
    /// The answer, which the caller counts, and a receipt for a turn that is promised, because it may have to be given back.
    Undo,
}

// === asking ===

const NANOS_PER_MILLI: u64 = 1_000_000;

impl<S: Store> Limiter<S> {
    /// What [`Limiter::check`] would answer. Nothing is counted.
    pub async fn peek(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        if let Some(refused) = self.unreadable(check) {
            return Ok(refused);
        }
        let live = self.live();
        let (entries, by) = {
            let attributes = self.concealed(&live, check.attributes);
            let asked = self.asked(&live, &attributes, check);
            let max_wait = check.max_wait.min(max_wait(&asked));
            let plan = Plan::new(takes(&asked), max_wait)?;
            let (decisions, by) = match self.inner.store.peek(&plan).await {
                Ok(decisions) => (decisions, DecidedBy::Store),
                Err(_) => (self.peek_locally(&plan)?, DecidedBy::Fallback),
            };
            (entries(&asked, decisions), by)
        };
        let by = if entries.is_empty() { DecidedBy::Policy } else { by };
        Ok(Verdict::fold(live, entries, by, self.inner.clock.now().steady))
    }

    /// What [`Limiter::check`] would answer if the store were gone: each rule as it says for that case. For a
    /// caller whom the store has let down in another way than by an error.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, DecidedBy, Limiter, Policy};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules: [{ name: all, key: [], limits: [9/s], on_store_error: deny }]")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let verdict = limiter.check_without_store(&Check::new(&Attributes::new()))?;
    /// assert!(!verdict.allowed() && verdict.decided_by == DecidedBy::Fallback);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_without_store(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        if let Some(refused) = self.unreadable(check) {
            return Ok(refused);
        }
        let live = self.live();
        let (entries, at, by) = {
            let attributes = self.concealed(&live, check.attributes);
            let asked = self.asked(&live, &attributes, check);
            let decided = match plan(&asked, check)? {
                None => Decided::by_policy(),
                Some(plan) => self.without_store(&asked, plan.max_wait())?,
            };
            self.owe(&asked, &decided);
            (entries(&asked, decided.decisions), decided.at, decided.by)
        };
        let verdict = verdict(live, entries, by, at, None);
        self.count(&verdict);
        Ok(verdict)
    }

    /// Takes under a limit that the caller names, whatever the policy says. Its states are apart from those
    /// of rules; in the answer the rule has no name.
    ///
    /// ```
    /// use tidegate::{Cost, Limiter, Policy, RuleLimit, Span};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// let limit = RuleLimit::from_rate("1/h")?;
    /// assert!(limiter.take("job:7", &limit, Cost::ONE, Span::ZERO).await?.allowed());
    /// assert!(!limiter.take("job:7", &limit, Cost::ONE, Span::ZERO).await?.allowed());
    /// assert!(limiter.take("job:8", &limit, Cost::ONE, Span::ZERO).await?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn take(
        &self,
        key: &str,
        limit: &RuleLimit,
        cost: Cost,
        max_wait: Span,
    ) -> Result<Verdict, CheckError> {
        let name = LimitName::new(BY_CALLER, "", limit.limit());
        let state = self.inner.secret.subject(&[(BY_CALLER, key)]).state(name);
        self.admit_limit(limit.limit())?;
        let take = Take { named_by: NamedBy::Caller, ..Take::new(state, limit.limit(), cost) };
        let rule = &self.inner.callers;
        let asked = [Asked { number: OF_CALLER, rule, limit, own: None, take, shadow: false }];
        let nothing = Attributes::new();
        let decided = self.decided(&asked, &Check::new(&nothing).waiting(max_wait)).await?;
        let entries = entries(&asked, decided.decisions);
        Ok(verdict(self.live(), entries, decided.by, decided.at, None))
    }

    /// What a request may have to wait for.
    pub(crate) fn turns(&self, check: &Check<'_>) -> Turns {
        let live = self.live();
        let attributes = self.concealed(&live, check.attributes);
        let asked = self.asked(&live, &attributes, check);
        let required = asked.iter().filter(|asked| asked.take.need == Need::Required);
        Turns {
            states: required.map(|asked| asked.take.state).collect(),
            max_wait: max_wait(&asked),
        }
    }

    /// Decides a request by what is live at one moment.
    pub(crate) async fn decide(
        &self,
        live: Lent,
        check: &Check<'_>,
        want: Want,
    ) -> Result<Verdict, CheckError> {
        if let Some(refused) = self.unreadable(check) {
            if want == Want::Answer {
                self.count(&refused);
            }
            return Ok(refused);
        }
        let (entries, at, by, receipt) = {
            let attributes = self.concealed(&live, check.attributes);
            let asked = self.asked(&live, &attributes, check);
            let decided = self.decided(&asked, check).await?;
            let receipt = self.receipt(&asked, &decided, check, want);
            (entries(&asked, decided.decisions), decided.at, decided.by, receipt)
        };
        let verdict = verdict(live, entries, by, at, receipt);
        if want == Want::Answer {
            self.count(&verdict);
        }
        Ok(verdict)
    }

    /// The refusal of a request whose path cannot be read, because it is unknown which rules apply to it.
    fn unreadable(&self, check: &Check<'_>) -> Option<Verdict> {
        let reason = check.attributes.unreadable()?;
        Some(Verdict::of_unreadable(self.live(), reason, self.inner.clock.now().steady))
    }

    /// Decides takes by a store that may be away, or a part of it.
    pub(super) async fn decided(
        &self,
        asked: &[Asked<'_>],
        check: &Check<'_>,
    ) -> Result<Decided, CheckError> {
        let plan = match plan(asked, check) {
            Err(error) => return Decided::too_many(asked, check, error),
            Ok(None) => return Ok(Decided::by_policy()),
            Ok(Some(plan)) => plan,
        };
        match self.inner.store.take_one(&plan).await {
            Ok(answer) => Ok(Decided::by_store(answer)),
            // On the heap, because it is large and rare: every request would carry it otherwise.
            Err(error) => {
                let decided = Box::pin(self.decided_without(asked, &plan, error)).await?;
                self.owe(asked, &decided);
                Ok(decided)
            }
        }
    }

    /// Decides several lists of takes, each a plan of its own; the store is asked for all of them at once.
    pub(super) async fn decided_each<'a, 'l: 'a>(
        &self,
        lists: impl Iterator<Item = &'a [Asked<'l>]> + Clone,
        check: &Check<'_>,
    ) -> Result<Vec<Decided>, CheckError> {
        let plans = lists.clone().filter_map(|asked| plan(asked, check).transpose());
        let plans: Vec<Plan<'_>> = plans.collect::<Result<_, _>>()?;
        let answers = self.inner.store.take(&plans).await;
        let mut all = Vec::with_capacity(plans.len());
        for ((asked, plan), answer) in lists.zip(&plans).zip(answers) {
            all.push(match answer {
                Ok(answer) => Decided::by_store(answer),
                Err(error) => self.decided_without(asked, plan, error).await?,
            });
        }
        Ok(all)
    }

    /// What the rules say when the store did not answer a plan, or only a part of it.
    async fn decided_without(
        &self,
        asked: &[Asked<'_>],
        plan: &Plan<'_>,
        error: StoreError,
    ) -> Result<Decided, CheckError> {
        if let StoreError::Partly(missing) = error {
            return self.without_a_part(asked, &missing, plan).await;
        }
        self.without_store(asked, plan.max_wait())
    }

    /// The takes that a request's rules ask for.
    pub(super) fn asked<'l>(
        &self,
        live: &'l Live,
        attributes: &'l Attributes<'_>,
        check: &Check<'_>,
    ) -> SmallVec<[Asked<'l>; 2]> {
        let mut asked = SmallVec::new();
        let (changes, cost) = (&live.changes, check.cost.get());
        let (_, unknown_tier) = live.policy.resolve_each(changes, attributes, cost, |resolved| {
            self.ask_rule(&resolved, check, &mut asked);
        });
        if unknown_tier {
            self.inner.unknown_tiers.fetch_add(1, Ordering::Relaxed);
        }
        asked
    }

    fn ask_rule<'l>(
        &self,
        resolved: &ResolvedRule<'l>,
        check: &Check<'_>,
        asked: &mut SmallVec<[Asked<'l>; 2]>,
    ) {
        let rule = resolved.rule;
        let key = resolved.values.pairs();
        let by = resolved.values.tag(|| KeyName::new(key.iter().map(|(name, _)| *name)).0);
        let subject = self.inner.secret.subject_of(KeyName(by), key);
        let bound = self.bound(rule.mode());
        let optional =
            resolved.shadow || matches!(rule.on_limit(), OnLimit::Deprioritize | OnLimit::Flag(_));
        for (at, limit) in resolved.allowance.limits().iter().enumerate() {
            let name = limit.tag(|| LimitName::new(rule.name(), limit.id(), limit.limit()).0);
            let state = subject.state(LimitName(name));
            let take = Take {
                need: if optional { Need::Optional } else { Need::Required },
                bound,
                refused: rule.count_rejected(),
                when_full: rule.when_full(),
                ..Take::new(state, limit.limit(), check.cost)
            };
            asked.push(Asked {
                number: resolved.number,
                rule,
                limit,
                own: (resolved.origin == Origin::Rule).then_some(at),
                take,
                shadow: resolved.shadow,
            });
        }
    }

    /// Which bound of its limits decides for a rule just now.
    fn bound(&self, mode: &Mode) -> Bound {
        match mode {
            Mode::Hard => Bound::Plain,
            Mode::Soft(_) => Bound::Headroom,
            Mode::Elastic { condition, .. } => {
                let now = self.inner.clock.now().steady;
                let settled = self.inner.signals.load().settled(now, condition);
                if settled { Bound::Headroom } else { Bound::Plain }
            }
        }
    }

    /// A receipt, if a rule counts outcomes or somebody wants one.
    fn receipt(
        &self,
        asked: &[Asked<'_>],
        decided: &Decided,
        check: &Check<'_>,
        want: Want,
    ) -> Option<Receipt> {
        let counts = asked.iter().any(|asked| asked.rule.count() != Count::All);
        let promised = || decided.decisions.iter().any(|d| matches!(d.outcome, Outcome::Delay(_)));
        let undo = want == Want::Undo && promised();
        if !counts && !check.receipt && !undo {
            return None;
        }
        let taken = asked.iter().zip(&decided.receipts).enumerate();
        let parts = taken.filter_map(|(number, (asked, receipt))| {
            let share = decided.shares.as_ref().and_then(|shares| shares.get(number));
            Some(Taken {
                state: asked.take.state,
                limit: share.unwrap_or(asked.limit.limit()).clone(),
                bound: asked.take.bound,
                count: asked.rule.count(),
                receipt: (*receipt)?,
            })
        });
        let node = if decided.shares.is_some() { self.inner.node } else { 0 };
        Some(Receipt {
            id: ReceiptId(self.next_receipt()),
            until: decided.at.after(self.receipt_ttl)?,
            node,
            cost: check.cost,
            parts: parts.collect(),
        })
    }
}

impl<S> Limiter<S> {
    /// A name that no other receipt of the deployment has.
    pub(super) fn next_receipt(&self) -> u128 {
        let number = self.inner.receipts.fetch_add(1, Ordering::Relaxed);
        u128::from(self.inner.node) << 64 | u128::from(number)
    }
}

// === helpers ===

impl Decided {
    fn by_store(answer: Answer) -> Self {
        let PlanOutcome { decisions, receipts, .. } = answer.done;
        let by = if answer.remembered { DecidedBy::Cache } else { DecidedBy::Store };
        Self { decisions, receipts, at: answer.at, by, shares: None, here: vec![] }
    }

    /// More limits apply than are decided together. The operator hears of it by an error, unless it is a path with many
    /// readings that made them so many: then a client did it, and is refused.
    fn too_many(
        asked: &[Asked<'_>],
        check: &Check<'_>,
        error: CheckError,
    ) -> Result<Self, CheckError> {
        if !check.attributes.is_ambiguous() {
            return Err(error);
        }
        let outcome = Outcome::Deny(Retry::Never);
        let refused = Decision { outcome, over: false, remaining: 0, reset: None };
        let decisions = vec![refused; asked.len()].into();
        let receipts = vec![None; asked.len()].into();
        Ok(Self { decisions, receipts, ..Self::by_policy() })
    }

    /// There was nothing to count.
    fn by_policy() -> Self {
        let (decisions, receipts) = (vec![].into(), vec![].into());
        let (at, by) = (Timestamp::EPOCH, DecidedBy::Policy);
        Self { decisions, receipts, at, by, shares: None, here: vec![] }
    }
}

/// All takes of a request; none when no limit applies to it.
fn plan<'l>(asked: &[Asked<'l>], check: &Check<'_>) -> Result<Option<Plan<'l>>, CheckError> {
    if asked.is_empty() {
        return Ok(None);
    }
    let plan = Plan::new(takes(asked), check.max_wait.min(max_wait(asked)))?;
    Ok(Some(match check.timeout {
        Some(timeout) => plan.within(for_the_store(timeout)),
        None => plan,
    }))
}

/// How much of a caller's time the store gets: of 20 ms 16, of 5 ms 3. The rest is for noticing that it was too long, by a
/// timer that counts milliseconds, for deciding without it, and for the way back.
fn for_the_store(timeout: Span) -> Span {
    let rest = timeout.as_nanos().checked_div(5).unwrap_or(0).max(2 * NANOS_PER_MILLI);
    Span::from_nanos(timeout.as_nanos().saturating_sub(rest))
}

pub(super) fn takes<'l>(asked: &[Asked<'l>]) -> InlineVec<Take<'l>> {
    asked.iter().map(|asked| asked.take).collect()
}

fn verdict(
    live: Lent,
    entries: SmallVec<[Entry; 2]>,
    by: DecidedBy,
    at: Timestamp,
    receipt: Option<Receipt>,
) -> Verdict {
    let mut verdict = Verdict::fold(live, entries, by, at);
    verdict.receipt = receipt.filter(|_| verdict.allowed());
    verdict
}

/// The longest wait that the rules allow, if they have an opinion; what only pretends has none.
pub(super) fn max_wait(asked: &[Asked<'_>]) -> Span {
    let required = asked.iter().filter(|asked| asked.take.need == Need::Required);
    let waits = required.filter_map(|asked| match asked.rule.on_limit() {
        OnLimit::Delay { max_wait, .. } => Some(*max_wait),
        OnLimit::Reject | OnLimit::Deprioritize | OnLimit::Flag(_) => None,
    });
    waits.min().unwrap_or(Span::from_nanos(u64::MAX))
}

pub(super) fn entries(
    asked: &[Asked<'_>],
    decisions: impl IntoIterator<Item = Decision>,
) -> SmallVec<[Entry; 2]> {
    let entry = |(asked, decision): (&Asked<'_>, Decision)| Entry {
        rule: asked.number,
        limit: match asked.own {
            Some(at) => LimitOf::Own(at),
            None => LimitOf::Given(asked.limit.clone()),
        },
        need: asked.take.need,
        shadow: asked.shadow,
        cost: asked.take.cost,
        decision,
    };
    asked.iter().zip(decisions).map(entry).collect()
}

/// A decision about a state that nobody could look at.
pub(super) fn blind(asked: &Asked<'_>, passes: bool) -> Decision {
    let outcome = if passes { Outcome::Allow } else { Outcome::Deny(Retry::After(STORE_RETRY)) };
    let remaining = if passes { asked.limit.limit().capacity() } else { 0 };
    Decision { outcome, over: false, remaining, reset: None }
}
