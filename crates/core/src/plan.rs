//! One request against several limits: take from all of them, or from none.
//!
//! ```text
//!   POST /urls by alice  ──►  Plan [ 2/s per user │ 500/h per user │ 15/s per address ]
//!                                        ▼               ▼                ▼
//!                                     decided at one instant; charged all, or none
//! ```
//!
//! A limiter that charges one limit after another wastes the first on requests that the second refuses. So every take of a
//! plan is decided before any is counted. [`Plan::take`] is that rule as a pure function of the states. A store only has to
//! provide the states and to keep other requests from changing them in between.

use crate::decision::{Ask, Decision, TakeReceipt, Taken};
use crate::inline_vec::InlineVec;
use crate::take::{Need, RejectedCost, Take};
use crate::time::{Now, Span};
use crate::written::Written;
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
    /// How long the caller waits for the answer of the store.
    patience: Option<Span>,
}

/// The result of a plan.
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
    /// Whether the request passes: no required take refused it.
    pub passes: bool,
    /// One answer per take, in order, whether or not the plan passes.
    pub decisions: InlineVec<Decision>,
    /// One receipt per take, in order, for what was counted.
    pub receipts: InlineVec<Option<TakeReceipt>>,
}

/// Why a plan is not valid.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Plan, PlanError, Span, StateId, Take};
/// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let twice = vec![Take::new(StateId(7), &limit, Cost::ONE); 2];
/// assert_eq!(Plan::new(twice, Span::ZERO), Err(PlanError::SameStateTwice));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The plan has more than 16 takes.
    TooManyTakes,
    /// Two takes use the same state. Each would be decided as if the other did not exist.
    SameStateTwice,
}

// === impl PlanOutcome ===

impl PlanOutcome {
    /// The result of the first take. Use it for plans of one take.
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
    /// The most takes in a plan. A policy that needs more for one request is very likely a mistake, and a store locks all
    /// states of a plan at the same time.
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

    /// The takes, in order.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let take = Take::new(StateId(7), &limit, Cost::ONE);
    /// assert_eq!(Plan::new(vec![take], Span::ZERO).unwrap().takes(), [take]);
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

    /// Sets after which time the caller gives up if there is no answer. A store that answers immediately may ignore it.
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

    /// How long the caller waits for the answer, if there is a deadline.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// let plan = Plan::new(vec![], Span::ZERO).unwrap();
    /// assert_eq!(plan.patience(), None);
    /// assert_eq!(plan.within(Span::from_millis(5)).patience(), Some(Span::from_millis(5)));
    /// ```
    #[must_use]
    pub const fn patience(&self) -> Option<Span> {
        self.patience
    }

    /// Decides all takes at one instant, and counts all of them or none. `states` has the state of each take, in the same
    /// order. A cost that is refused, by the plan or by an optional take alone, is counted only if the take says
    /// [`RejectedCost::Charged`]; then its answer already includes the charge.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Now, Plan, Span, StateId, Take, Timestamp, Written};
    /// let minute = Limit::new(10, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let hour = Limit::new(500, Span::from_secs(3600), Algorithm::SLIDING_BUCKETS).unwrap();
    /// let takes = [(1, &minute), (2, &hour)].map(|(id, limit)| Take::new(StateId(id), limit, Cost::new(11)));
    /// let mut states = [Written::empty(&minute), Written::empty(&hour)];
    /// let done = Plan::new(takes.to_vec(), Span::ZERO).unwrap().take(Now::at(Timestamp::EPOCH), &mut states);
    /// assert!(!done.passes);
    /// assert_eq!(done.decisions[1].remaining, 500); // nothing was taken from the hour
    /// ```
    pub fn take<'s>(&self, now: Now, states: &mut [Written<'s>]) -> PlanOutcome
    where
        'l: 's,
    {
        // A single take whose refused cost is free needs no separate decision before the take.
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
        // If states are missing, the store has a bug. Such a plan must not pass.
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

    /// Counts one take if the plan passes, or charges it if its refused cost counts. Returns the final answer.
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
        if take.refused == RejectedCost::Charged && take.fits_empty_state() {
            let receipt = take.limit.charge(written, &ask);
            let after = take.limit.decide(written, &ask);
            // Whether the take passed stays as judged. The retry time includes the charge.
            let outcome = if judged.passes() { judged.outcome } else { after.outcome };
            return (Decision { outcome, over: judged.over, ..after }, Some(receipt));
        }
        take.limit.mend(written, ask.now);
        (judged, None)
    }

    /// The request that a take of this plan makes to its limit.
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

// === impl PlanError ===

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyTakes => write!(f, "a plan holds at most {} takes", Plan::MOST_TAKES),
            Self::SameStateTwice => write!(f, "two takes of a plan use the same state"),
        }
    }
}

impl core::error::Error for PlanError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::decision::{Cost, Outcome, Retry};
    use crate::limit::Limit;
    use crate::take::StateId;
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
    fn an_optional_take_counts_if_it_fits_and_never_refuses_the_plan() {
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
    fn a_refused_plan_charges_all_charged_takes_even_those_that_fit() {
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
        // One passed and one is owed: the debt is at most one capacity.
        assert!(!small.peek(&states[0], Timestamp::EPOCH).passes());
    }

    /// A shadow rule must count like an enforced one, so the cost that it would refuse becomes debt too.
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
        assert!(small.peek(&states[0], Timestamp::EPOCH).passes()); // full, but not in debt
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
