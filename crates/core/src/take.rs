//! One take of a plan: which limit, which state, what cost, and what a refusal means.

use crate::decision::{Ask, Bound, Cost};
use crate::lease::LeaseTerms;
use crate::limit::Limit;
use crate::time::Now;

/// One take of a plan: one limit, one state, one cost.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Need, Span, StateId, Take};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let shadow = Take { need: Need::Optional, ..Take::new(StateId(7), &limit, Cost::ONE) };
/// assert_eq!(shadow.need, Need::Optional);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take<'l> {
    /// The state to take from.
    pub state: StateId,
    /// The limit that decides.
    pub limit: &'l Limit,
    /// How much to take.
    pub cost: Cost,
    /// Whether a refusal of this take refuses the plan.
    pub need: Need,
    /// Which bound of the limit applies.
    pub bound: Bound,
    /// Whether a refusal, by the plan or by this take, still counts the cost.
    pub refused: RejectedCost,
    /// How recent the state must be.
    pub freshness: Freshness<'l>,
    /// What to do if the store has no memory for a new state.
    pub when_full: WhenFull,
    /// Who defined the limit.
    pub named_by: NamedBy,
}

/// The identifier of a state: a keyed hash of everything that the state depends on. A store may use only the lower 80 and
/// the upper 16 bits to tell states apart.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let takes = [1, 2].map(|id| Take::new(StateId(id), &limit, Cost::ONE)); // two clients, one limit
/// assert!(Plan::new(takes.to_vec(), Span::ZERO).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub u128);

/// Whether a take can refuse the plan.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Need, Now, Plan, Span, StateId, Take, Timestamp, Written};
/// let blocked = Limit::new(0, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let passes = |need| {
///     let take = Take { need, ..Take::new(StateId(7), &blocked, Cost::ONE) };
///     Plan::from(take).take(Now::at(Timestamp::EPOCH), &mut [Written::empty(&blocked)]).passes
/// };
/// assert_eq!([Need::Required, Need::Optional].map(passes), [false, true]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    /// A refusal of this take refuses the plan.
    #[default]
    Required,
    /// The take never refuses the plan. It is counted if it fits and the plan passes, or if its refused cost is charged.
    /// Used for shadow rules, and for rules that only mark requests.
    Optional,
}

/// Whether a refused cost counts.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Now, Plan, RejectedCost, Span, StateId, Take, Timestamp, Written};
/// let limit = Limit::new(1, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// let in_debt_after_two = |refused| {
///     let plan = Plan::from(Take { refused, ..Take::new(StateId(7), &limit, Cost::ONE) });
///     let mut states = [Written::empty(&limit)];
///     for _ in 0..2 {
///         plan.take(Now::at(Timestamp::EPOCH), &mut states);
///     }
///     !limit.peek(&states[0], Timestamp::EPOCH).passes()
/// };
/// assert_eq!([RejectedCost::Free, RejectedCost::Charged].map(in_debt_after_two), [false, true]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RejectedCost {
    /// A refused cost is not counted.
    #[default]
    Free,
    /// A refused cost is counted, into debt if necessary, unless it is above the capacity.
    Charged,
}

/// How recent the state that decides must be, for stores that several nodes share. A store in the memory of one process always
/// decides by the state itself.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Freshness, LeaseTerms, Limit, Span, StateId, Take};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let (exact, terms) = (Take::new(StateId(7), &limit, Cost::ONE), LeaseTerms::default());
/// let leased = Take { freshness: Freshness::Lease(&terms), ..exact };
/// assert_eq!(exact.freshness, Freshness::Exact);
/// assert_ne!(exact, leased);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness<'l> {
    /// The shared state itself.
    #[default]
    Exact,
    /// A [slice](crate::Slice) of the limit that the node took in advance, if it holds one.
    Lease(&'l LeaseTerms),
}

/// What a store with bounded memory does with a new state when its memory is full of states in use.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take, WhenFull};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let strict = Take { when_full: WhenFull::Deny, ..Take::new(StateId(7), &limit, Cost::ONE) };
/// assert_ne!(strict.when_full, WhenFull::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Evicts the least-used state into a shared sketch that only overestimates, and counts the new state in its place.
    #[default]
    Shared,
    /// Allows the take without counting it, unless the store knows of use of this key.
    Allow,
    /// Refuses the take.
    Deny,
}

/// Who defined the limit of a take. A store supports a bounded number of different limits and reserves some of them for the
/// policy.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, NamedBy, Span, StateId, Take};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let ad_hoc = Take { named_by: NamedBy::Caller, ..Take::new(StateId(7), &limit, Cost::ONE) };
/// assert_ne!(ad_hoc.named_by, NamedBy::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamedBy {
    /// The operator's policy, which has a fixed number of limits.
    #[default]
    Policy,
    /// A client that sends the limit with the request, and may send arbitrarily many.
    Caller,
}

// === impl Take ===

impl<'l> Take<'l> {
    /// A required, exact take under the plain bound, whose refused cost is free.
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

    /// The request that this take makes to its limit, for a caller that cannot wait.
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

    /// Whether the cost would pass on an empty state.
    pub(crate) fn fits_empty_state(&self) -> bool {
        let weight = self.limit.weight(self.cost, self.bound);
        weight.is_some_and(|weight| weight <= self.limit.room(self.bound))
    }
}
