//! One request against several limits: all of them, or none.
//!
//! ```text
//!   POST /urls by alice  ──►  Plan [ 2/s per user │ 500/h per user │ 15/s per address ]
//!                                        ▼               ▼                ▼
//!                                     decided at one instant; charged all, or none
//! ```
//!
//! A limiter that charges one limit after another burns the first on requests that the second
//! refuses. So every take is decided before any is counted. [`Plan::take`] is that rule as a pure
//! function over the states; a store's job is to bring the states and to let nobody in between.

use crate::algorithm::Taken;
use crate::decision::{Ask, Bound, Cost, Decision};
use crate::inline_vec::InlineVec;
use crate::limit::Limit;
use crate::state::{TakeReceipt, Written};
use crate::time::{Now, Span};
use core::fmt;

/// All takes of one request.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let plan = Plan::new(vec![Take::new(StateId(7), &limit, Cost::ONE)], Span::ZERO).unwrap();
/// assert_eq!(plan.takes().len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<'l> {
    takes: InlineVec<Take<'l>>,
    max_wait: Span,
    /// How long the answer itself may take.
    patience: Option<Span>,
}

/// One limit, one state, one cost.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Need, Span, StateId, Take};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let shadow = Take { need: Need::Optional, ..Take::new(StateId(7), &limit, Cost::ONE) };
/// assert_eq!(shadow.need, Need::Optional);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take<'l> {
    /// Whose state.
    pub state: StateId,
    /// Which limit.
    pub limit: &'l Limit,
    /// How much.
    pub cost: Cost,
    /// Whether its refusal refuses the plan.
    pub need: Need,
    /// Which bound of the limit decides.
    pub bound: Bound,
    /// What a refusal, of the plan or of this take, does to its state.
    pub refused: RejectedCost,
    /// How recent the state must be.
    pub freshness: Freshness,
    /// What becomes of it when the store has no room for one state more.
    pub when_full: WhenFull,
    /// Where its limit comes from.
    pub named_by: NamedBy,
}

/// Names a state: the keyed hash of everything that the state belongs to. A store may tell states apart by
/// the lower 80 bits and the upper 16 only.
///
/// ```
/// assert_ne!(tidegate_core::StateId(1), tidegate_core::StateId(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub u128);

/// Whether a take can refuse the plan.
///
/// ```
/// assert_eq!(tidegate_core::Need::default(), tidegate_core::Need::Required);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    /// Its refusal refuses the plan.
    #[default]
    Required,
    /// Counted if it fits and the plan passes, or if it is charged anyway; refuses nothing. For shadow rules and
    /// marks.
    Optional,
}

/// What a refusal does to the state of a take.
///
/// ```
/// assert_eq!(tidegate_core::RejectedCost::default(), tidegate_core::RejectedCost::Free);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RejectedCost {
    /// Nothing.
    #[default]
    Free,
    /// The cost counts all the same, into debt if need be, unless it is above the capacity.
    Charged,
}

/// How recent the state must be that decides.
///
/// ```
/// assert_eq!(tidegate_core::Freshness::default(), tidegate_core::Freshness::Exact);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// The one state there is.
    #[default]
    Exact,
    /// A share taken in advance.
    Lease,
    /// A local count, reported in batches.
    Batch,
}

/// What a store with a bounded memory does with a new state when all of it is taken by states that count.
///
/// ```
/// assert_eq!(tidegate_core::WhenFull::default(), tidegate_core::WhenFull::Shared);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Counts it, and what the least used state has used from then on with many others: too much, never too
    /// little.
    #[default]
    Shared,
    /// Lets it pass uncounted, if nothing is known to be used of it.
    Allow,
    /// Refuses it.
    Deny,
}

/// Where the limit of a take comes from. A store that can count under so many different limits only keeps some for the policy.
///
/// ```
/// assert_eq!(tidegate_core::NamedBy::default(), tidegate_core::NamedBy::Policy);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamedBy {
    /// The operator's policy, of which there are as many limits as it says.
    #[default]
    Policy,
    /// A client that names limits itself, as many as it likes.
    Caller,
}

/// What a plan did.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Now, Plan, Span, StateId, Take, Timestamp, Written};
/// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let plan = Plan::new(vec![Take::new(StateId(7), &limit, Cost::ONE)], Span::ZERO).unwrap();
/// let mut states = [Written::empty(&limit)];
/// let done = plan.take(Now::at(Timestamp::EPOCH), &mut states);
/// assert!(done.passes && done.decisions.len() == 1 && done.receipts[0].is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOutcome {
    /// No required take refused.
    pub passes: bool,
    /// An answer for each take, in order, refused plan or not.
    pub decisions: InlineVec<Decision>,
    /// The proof of what was counted for each take.
    pub receipts: InlineVec<Option<TakeReceipt>>,
}

/// Why a plan was refused before it was asked.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Plan, PlanError, Span, StateId, Take};
/// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let twice = vec![Take::new(StateId(7), &limit, Cost::ONE); 2];
/// assert_eq!(Plan::new(twice, Span::ZERO), Err(PlanError::SameStateTwice));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// More than 16 takes.
    TooManyTakes,
    /// Two takes of one state: each would be decided as if the other were not there.
    SameStateTwice,
}

// === impl PlanOutcome ===

impl PlanOutcome {
    /// What the first take of a plan did: the only one, of a plan that has only one.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Now, Plan, Span, StateId, Take, Timestamp, Written};
    /// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let plan = Plan::from(Take::new(StateId(7), &limit, Cost::ONE));
    /// let done = plan.take(Now::at(Timestamp::EPOCH), &mut [Written::empty(&limit)]);
    /// assert!(done.only().unwrap().decision.passes());
    /// ```
    #[must_use]
    pub fn only(&self) -> Option<Taken> {
        let (decision, receipt) =
            self.decisions.first().copied().zip(self.receipts.first().copied())?;
        Some(Taken { decision, receipt })
    }
}

// === impl Plan ===

impl<'l> Plan<'l> {
    /// At most so many takes in a plan: more rules than that on one request is a mistake in the policy, and a
    /// store locks them all at once.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Plan::MOST_TAKES, 16);
    /// ```
    pub const MOST_TAKES: usize = 16;

    /// A plan of at most 16 takes of different states, for a caller that can wait `max_wait`.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// assert!(Plan::new(vec![], Span::ZERO).is_ok());
    /// ```
    pub fn new(takes: impl Into<InlineVec<Take<'l>>>, max_wait: Span) -> Result<Self, PlanError> {
        let takes = takes.into();
        if takes.len() > Self::MOST_TAKES {
            return Err(PlanError::TooManyTakes);
        }
        let mut earlier = takes.iter();
        while let Some(take) = earlier.next_back() {
            if earlier.clone().any(|other| other.state == take.state) {
                return Err(PlanError::SameStateTwice);
            }
        }
        Ok(Self { takes, max_wait, patience: None })
    }

    /// Its takes, in order.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// assert!(Plan::new(vec![], Span::ZERO).unwrap().takes().is_empty());
    /// ```
    #[must_use]
    #[inline]
    pub fn takes(&self) -> &[Take<'l>] {
        &self.takes
    }

    /// How long the caller can wait for its turn.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// assert_eq!(Plan::new(vec![], Span::from_secs(2)).unwrap().max_wait(), Span::from_secs(2));
    /// ```
    #[must_use]
    pub const fn max_wait(&self) -> Span {
        self.max_wait
    }

    /// The same for a caller who goes when there is no answer after this long. A store that answers at once need not
    /// care.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// let plan = Plan::new(vec![], Span::ZERO).unwrap().within(Span::from_millis(5));
    /// assert_eq!(plan.patience(), Some(Span::from_millis(5)));
    /// ```
    #[must_use]
    pub fn within(self, patience: Span) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// How long the caller waits for the answer, if it said so.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// assert_eq!(Plan::new(vec![], Span::ZERO).unwrap().patience(), None);
    /// ```
    #[must_use]
    pub const fn patience(&self) -> Option<Span> {
        self.patience
    }

    /// Decides all takes at one instant and counts all of them or none; `states` belong to them one by
    /// one. What is refused, by the whole plan or by an optional take for itself, counts only where the take is
    /// [`RejectedCost::Charged`]; its answer is as of after that.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Now, Plan, Span, StateId, Take, Timestamp, Written};
    /// let minute = Limit::new(10, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let hour = Limit::new(500, Span::from_secs(3600), Algorithm::SLIDING_BUCKETS).unwrap();
    /// let takes = [(1, &minute), (2, &hour)].map(|(id, limit)| Take::new(StateId(id), limit, Cost::new(11)));
    /// let mut states = [Written::empty(&minute), Written::empty(&hour)];
    /// let done = Plan::new(takes.to_vec(), Span::ZERO).unwrap().take(Now::at(Timestamp::EPOCH), &mut states);
    /// assert!(!done.passes);
    /// assert_eq!(done.decisions[1].remaining, 500); // the hour lost nothing
    /// ```
    pub fn take<'s>(&self, now: Now, states: &mut [Written<'s>]) -> PlanOutcome
    where
        'l: 's,
    {
        // One take that a refusal leaves free is decided and counted in one go.
        if let ([take], [written]) = (&*self.takes, &mut *states)
            && (take.need, take.refused) == (Need::Required, RejectedCost::Free)
        {
            let Taken { decision, receipt } = take.limit.take(written, &self.ask(take, now));
            let passes = decision.passes();
            return PlanOutcome { passes, decisions: decision.into(), receipts: receipt.into() };
        }
        let mut decisions: InlineVec<Decision> = (self.takes.iter().zip(&*states))
            .map(|(take, written)| take.limit.decide(written, &self.ask(take, now)))
            .collect();
        // A plan without all its states is a mistake of its store, and no reason to let anything pass.
        let complete = decisions.len() == self.takes.len();
        let passes = complete
            && !(self.takes.iter().zip(&decisions))
                .any(|(take, decision)| take.need == Need::Required && !decision.passes());
        let taken = self.takes.iter().zip(states).zip(decisions.iter_mut());
        let receipts = taken
            .map(|((take, written), decision)| {
                let (finished, receipt) = self.finish(take, written, *decision, passes, now);
                *decision = finished;
                receipt
            })
            .collect();
        PlanOutcome { passes, decisions, receipts }
    }

    /// Counts one take, or not, and answers how things stand then.
    fn finish<'s>(
        &self,
        take: &Take<'l>,
        written: &mut Written<'s>,
        judged: Decision,
        passes: bool,
        now: Now,
    ) -> (Decision, Option<TakeReceipt>)
    where
        'l: 's,
    {
        let ask = self.ask(take, now);
        if passes && judged.passes() {
            let taken = take.limit.take(written, &ask);
            return (taken.decision, taken.receipt);
        }
        if take.refused == RejectedCost::Charged && take.fits_ever() {
            let receipt = take.limit.charge(written, &ask);
            let after = take.limit.decide(written, &ask);
            // What was judged stays judged; only when to come back is as of after the charge.
            let outcome = if judged.passes() { judged.outcome } else { after.outcome };
            return (Decision { outcome, over: judged.over, ..after }, Some(receipt));
        }
        take.limit.mend(written, ask.now);
        (judged, None)
    }

    /// The question that a take of this plan asks.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Now, Plan, Span, StateId, Take, Timestamp};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let plan = Plan::new(vec![Take::new(StateId(7), &limit, Cost::ONE)], Span::ZERO).unwrap();
    /// let ask = plan.ask(&plan.takes()[0], Now::at(Timestamp::EPOCH));
    /// assert_eq!((ask.cost, ask.max_wait), (Cost::ONE, Span::ZERO));
    /// ```
    #[must_use]
    #[inline]
    pub const fn ask(&self, take: &Take<'_>, now: Now) -> Ask {
        take.ask(now).waiting(self.max_wait)
    }
}

/// A plan of one take, for a caller that cannot wait.
impl<'l> From<Take<'l>> for Plan<'l> {
    fn from(take: Take<'l>) -> Self {
        Self { takes: take.into(), max_wait: Span::ZERO, patience: None }
    }
}

// === impl Take ===

impl<'l> Take<'l> {
    /// A required, exact take under the plain bound that a refusal leaves free.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Need, RejectedCost, Span, StateId, Take};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let take = Take::new(StateId(7), &limit, Cost::ONE);
    /// assert_eq!((take.need, take.refused), (Need::Required, RejectedCost::Free));
    /// ```
    #[must_use]
    pub const fn new(state: StateId, limit: &'l Limit, cost: Cost) -> Self {
        Self {
            state,
            limit,
            cost,
            need: Need::Required,
            bound: Bound::Plain,
            refused: RejectedCost::Free,
            freshness: Freshness::Exact,
            when_full: WhenFull::Shared,
            named_by: NamedBy::Policy,
        }
    }

    /// Whether another take differs from this one by its state alone.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let [a, b] = [1, 2].map(|state| Take::new(StateId(state), &limit, Cost::ONE));
    /// assert!(a.asks_the_same(&b));
    /// assert!(!a.asks_the_same(&Take { cost: Cost::new(2), ..b }));
    /// ```
    #[must_use]
    pub fn asks_the_same(&self, other: &Take<'_>) -> bool {
        let Self { state: _, limit, cost, need, bound, refused, freshness, when_full, named_by } =
            *self;
        core::ptr::eq(limit, other.limit)
            && (cost, bound) == (other.cost, other.bound)
            && (need, refused) == (other.need, other.refused)
            && (freshness, when_full) == (other.freshness, other.when_full)
            && named_by == other.named_by
    }

    /// The question that it asks by itself, for a caller that cannot wait.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Now, Span, StateId, Take, Timestamp};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let ask = Take::new(StateId(7), &limit, Cost::ONE).ask(Now::at(Timestamp::EPOCH));
    /// assert_eq!((ask.cost, ask.max_wait), (Cost::ONE, Span::ZERO));
    /// ```
    #[must_use]
    #[inline]
    pub const fn ask(&self, now: Now) -> Ask {
        Ask::new(now.of(self.limit), self.cost).bounded(self.bound)
    }

    /// Whether an empty state would let the cost pass.
    fn fits_ever(&self) -> bool {
        let weight = self.limit.weight(self.cost, self.bound);
        weight.is_some_and(|weight| weight <= self.limit.room(self.bound))
    }
}

// === impl PlanError ===

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyTakes => write!(f, "a plan holds at most {} takes", Plan::MOST_TAKES),
            Self::SameStateTwice => write!(f, "two takes of a plan are of one state"),
        }
    }
}

impl core::error::Error for PlanError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Outcome, Retry};
    use crate::limit::Algorithm;
    use crate::time::Timestamp;

    fn per_minute(amount: u64) -> Limit {
        Limit::new(amount, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap()
    }

    fn plan<'l>(takes: &[Take<'l>]) -> Plan<'l> {
        Plan::new(takes.to_vec(), Span::ZERO).unwrap()
    }

    #[test]
    fn a_refused_plan_charges_nothing() {
        let (small, large) = (per_minute(1), per_minute(1_000));
        let takes = [&small, &large]
            .map(|limit| Take::new(StateId(limit.amount().into()), limit, Cost::ONE));
        let mut states = [Written::empty(&small), Written::empty(&large)];
        let plan = plan(&takes);
        let passed =
            (0..100).filter(|_| plan.take(Now::at(Timestamp::EPOCH), &mut states).passes).count();
        assert_eq!(passed, 1);
        assert_eq!(large.peek(&states[1], Timestamp::EPOCH).remaining, 999);
    }

    #[test]
    fn an_optional_take_is_counted_if_it_fits_and_refuses_nothing() {
        let (small, large) = (per_minute(1), per_minute(1_000));
        let shadow = Take { need: Need::Optional, ..Take::new(StateId(1), &small, Cost::ONE) };
        let takes = [shadow, Take::new(StateId(2), &large, Cost::ONE)];
        let mut states = [Written::empty(&small), Written::empty(&large)];
        let plan = plan(&takes);
        let first = plan.take(Now::at(Timestamp::EPOCH), &mut states);
        let second = plan.take(Now::at(Timestamp::EPOCH), &mut states);
        assert!(first.passes && first.decisions[0].passes());
        assert!(second.passes && !second.decisions[0].passes() && second.receipts[0].is_none());
        assert_eq!(large.peek(&states[1], Timestamp::EPOCH).remaining, 998);
    }

    #[test]
    fn charged_takes_count_when_refused_also_those_that_fit() {
        let (small, large) = (per_minute(1), per_minute(1_000));
        let charged = |id, limit| Take {
            refused: RejectedCost::Charged,
            ..Take::new(StateId(id), limit, Cost::ONE)
        };
        let takes = [charged(1, &small), charged(2, &large)];
        let mut states = [Written::empty(&small), Written::empty(&large)];
        let plan = plan(&takes);
        for _ in 0..5 {
            plan.take(Now::at(Timestamp::EPOCH), &mut states);
        }
        assert_eq!(large.peek(&states[1], Timestamp::EPOCH).remaining, 995);
        // One passed, one is owed: the debt is one capacity deep and no deeper.
        assert!(!small.peek(&states[0], Timestamp::EPOCH).passes());
    }

    /// A rule in shadow must count as it would if it were not: what it refuses is owed there, too.
    #[test]
    fn an_optional_take_that_is_charged_goes_into_debt() {
        let small = per_minute(1);
        let shadow = Take {
            need: Need::Optional,
            refused: RejectedCost::Charged,
            ..Take::new(StateId(1), &small, Cost::ONE)
        };
        let mut states = [Written::empty(&small)];
        let plan = plan(&[shadow]);
        plan.take(Now::at(Timestamp::EPOCH), &mut states);
        assert!(small.peek(&states[0], Timestamp::EPOCH).passes()); // full, and nothing owed
        let second = plan.take(Now::at(Timestamp::EPOCH), &mut states);
        assert!(second.passes && !second.decisions[0].passes());
        assert!(!small.peek(&states[0], Timestamp::EPOCH).passes());
    }

    #[test]
    fn a_cost_above_capacity_is_not_charged() {
        let small = per_minute(1);
        let take =
            Take { refused: RejectedCost::Charged, ..Take::new(StateId(1), &small, Cost::new(2)) };
        let mut states = [Written::empty(&small)];
        let done = plan(&[take]).take(Now::at(Timestamp::EPOCH), &mut states);
        assert_eq!(done.decisions[0].outcome, Outcome::Deny(Retry::Never));
        assert_eq!(small.peek(&states[0], Timestamp::EPOCH).remaining, 1);
    }

    #[test]
    fn seventeen_takes_are_too_many() {
        let limit = per_minute(1);
        let takes: InlineVec<_> =
            (0..17).map(|id| Take::new(StateId(id), &limit, Cost::ONE)).collect();
        assert_eq!(Plan::new(takes, Span::ZERO), Err(PlanError::TooManyTakes));
    }
}
