//! The question to a limit, its answer, and the receipt of a take.
//!
//! ```text
//!   Ask { now, cost, … }  ──►  Limit + State  ──►  Decision { outcome, remaining, reset, … }
//! ```
//!
//! A refusal is a normal answer, not an error.

use crate::time::{Span, Timestamp};

/// How much of a limit a request uses: 1 for an ordinary request, or its number of bytes or LLM tokens where those are
/// limited.
///
/// ```
/// use tidegate_core::Cost;
/// assert_eq!(Cost::ONE, Cost::new(1));
/// assert_eq!(Cost::from(37).get(), 37);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

/// One request to one limit: may this cost pass now?
///
/// ```
/// use tidegate_core::{Ask, Bound, Cost, Span, Timestamp};
/// let ask = Ask::new(Timestamp::EPOCH, Cost::ONE).waiting(Span::from_secs(2));
/// assert_eq!(ask.max_wait, Span::from_secs(2));
/// assert_eq!(ask.bound, Bound::Plain);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The time of the request.
    pub now: Timestamp,
    /// The cost of the request. A cost of 0 is a peek; it is refused only if the state is in debt.
    pub cost: Cost,
    /// Which bound of the limit applies.
    pub bound: Bound,
    /// How long the caller can wait for its turn. Only a leaky bucket delays requests.
    pub max_wait: Span,
}

/// Which bound of a limit applies: the plain amount, or the amount with its headroom.
///
/// Callers use `Headroom` always for a soft limit, and `Headroom` or `Part` for an elastic limit while its condition holds.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Bound, Cost, Headroom, Limit, Span, Timestamp, Written};
/// let limit = Limit::new(100, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// let limit = limit.with_headroom(Headroom::Soft(10)).unwrap();
/// let mut written = Written::empty(&limit);
/// let all = Ask::new(Timestamp::EPOCH, Cost::new(110));
/// assert!(!limit.take(&mut written, &all).decision.passes());
/// assert!(limit.take(&mut written, &all.bounded(Bound::Headroom)).decision.passes());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// The plain amount.
    #[default]
    Plain,
    /// The amount plus the headroom of the limit, if it has any.
    Headroom,
    /// The amount plus this many per cent of the headroom, rounded down. 100 and more mean all of it.
    Part(u8),
}

/// The answer of one limit.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Span, Timestamp, Written};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let mut written = Written::empty(&limit);
/// let decision = limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::ONE)).decision;
/// assert_eq!(decision.outcome, Outcome::Allow);
/// assert_eq!(decision.remaining, 14);
/// assert_eq!(decision.reset, Some(Span::from_nanos(66_666_667)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Pass now, pass later, or do not pass.
    pub outcome: Outcome,
    /// The request passes only because of the headroom.
    pub over: bool,
    /// The largest cost that would pass now under the plain bound, for the same caller.
    pub remaining: u64,
    /// The time until `remaining` is at its maximum, if nothing more is taken. `None` if that is past the end of
    /// time ([`Timestamp::END`]) or past the last boundary of the calendar.
    pub reset: Option<Span>,
}

/// Whether a request passes.
///
/// ```
/// use tidegate_core::{Outcome, Retry, Span};
/// assert!(Outcome::Delay(Span::from_millis(20)).passes());
/// assert!(!Outcome::Deny(Retry::Never).passes());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request passes now.
    Allow,
    /// The request has a place in the queue and passes after this time.
    Delay(Span),
    /// The request does not pass, and nothing was taken.
    Deny(Retry),
}

/// When a refused cost would pass, if nothing else is taken until then.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Outcome, Retry, Span, Timestamp, Written};
/// let limit = Limit::new(2, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let mut written = Written::empty(&limit);
/// let ask = |cost| Ask::new(Timestamp::EPOCH, Cost::new(cost));
/// limit.take(&mut written, &ask(2));
/// let outcome = |cost| limit.decide(&written, &ask(cost)).outcome;
/// assert_eq!(outcome(1), Outcome::Deny(Retry::After(Span::from_millis(500))));
/// assert_eq!(outcome(3), Outcome::Deny(Retry::Never)); // more than the bucket holds
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After this time, exact to the nanosecond.
    After(Span),
    /// Never: the cost is above the capacity, or the instant is past the end of time.
    Never,
}

/// The result of a take.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
/// let limit = Limit::new(1, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
/// let mut written = Written::empty(&limit);
/// let one = Ask::new(Timestamp::EPOCH, Cost::ONE);
/// assert!(limit.take(&mut written, &one).receipt.is_some());
/// assert!(limit.take(&mut written, &one).receipt.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The answer. `remaining` and `reset` already include this take.
    pub decision: Decision,
    /// The receipt of what was taken; `None` if the take was refused.
    pub receipt: Option<TakeReceipt>,
}

/// The receipt of a take: enough to give the cost back, or to settle it later.
///
/// ```
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, Timestamp, Written};
/// let limit = Limit::new(3, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
/// let mut written = Written::empty(&limit);
/// let ask = Ask::new(Timestamp::from_nanos(61_000_000_000), Cost::new(2));
/// let receipt = limit.take(&mut written, &ask).receipt.unwrap();
/// assert_eq!((receipt.mark, receipt.weight), (1, 2)); // window 1, a count of 2
/// ```
///
/// Its numbers have a meaning only together with the limit under which the cost was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeReceipt {
    /// Where the cost was counted: a window number, or a tick of a bucket.
    pub mark: u64,
    /// How much was counted: a cost for windows, ticks for buckets. A charge into debt may count less than its cost.
    pub weight: u64,
    /// Whether `mark` is the end of the slot that the cost has in a leased bucket. Such a cost is given back only if its slot is
    /// the last one: behind it, other nodes may hold slices that they have not spent; see [`Slice`](crate::Slice).
    pub is_slot: bool,
}

// === impl Cost ===

impl Cost {
    /// The cost of an ordinary request.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Cost::ONE.get(), 1);
    /// ```
    pub const ONE: Self = Self(1);

    /// A cost of `n`.
    ///
    /// ```
    /// use tidegate_core::Cost;
    /// assert!(Cost::new(7) > Cost::ONE);
    /// ```
    #[must_use]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The cost as a number.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Cost::new(7).get(), 7);
    /// ```
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for Cost {
    fn from(n: u64) -> Self {
        Self(n)
    }
}

// === impl Ask ===

impl Ask {
    /// A request for `cost` at `now`, under the plain bound, by a caller that cannot wait.
    ///
    /// ```
    /// use tidegate_core::{Ask, Cost, Span, Timestamp};
    /// assert_eq!(Ask::new(Timestamp::EPOCH, Cost::ONE).max_wait, Span::ZERO);
    /// ```
    #[must_use]
    pub const fn new(now: Timestamp, cost: Cost) -> Self {
        Self { now, cost, bound: Bound::Plain, max_wait: Span::ZERO }
    }

    /// This request under another bound.
    ///
    /// ```
    /// use tidegate_core::{Ask, Bound, Cost, Timestamp};
    /// let ask = Ask::new(Timestamp::EPOCH, Cost::ONE).bounded(Bound::Headroom);
    /// assert_eq!(ask.bound, Bound::Headroom);
    /// ```
    #[must_use]
    pub const fn bounded(self, bound: Bound) -> Self {
        Self { bound, ..self }
    }

    /// This request by a caller that can wait up to `max_wait`.
    ///
    /// ```
    /// use tidegate_core::{Ask, Cost, Span, Timestamp};
    /// let patient = Ask::new(Timestamp::EPOCH, Cost::ONE).waiting(Span::from_secs(1));
    /// assert_eq!(patient.max_wait, Span::from_secs(1));
    /// ```
    #[must_use]
    pub const fn waiting(self, max_wait: Span) -> Self {
        Self { max_wait, ..self }
    }
}

// === impl Decision ===

impl Decision {
    /// A refusal that no waiting can change.
    ///
    /// ```
    /// assert!(!tidegate_core::Decision::NEVER.passes());
    /// ```
    pub const NEVER: Self =
        Self { outcome: Outcome::Deny(Retry::Never), over: false, remaining: 0, reset: None };

    /// Whether the request passes, now or later.
    ///
    /// ```
    /// use tidegate_core::{Decision, Outcome};
    /// let decision = Decision { outcome: Outcome::Allow, over: false, remaining: 0, reset: None };
    /// assert!(decision.passes());
    /// ```
    #[must_use]
    pub const fn passes(&self) -> bool {
        self.outcome.passes()
    }
}

// === impl Outcome ===

impl Outcome {
    /// Whether the request passes, now or later.
    ///
    /// ```
    /// assert!(tidegate_core::Outcome::Allow.passes());
    /// ```
    #[must_use]
    pub const fn passes(&self) -> bool {
        match self {
            Self::Allow | Self::Delay(_) => true,
            Self::Deny(_) => false,
        }
    }
}
