//! What is asked of a limit, and what it answers.
//!
//! ```text
//!   Ask { now, cost, … }  ──►  Limit + State  ──►  Decision { outcome, remaining, reset, … }
//! ```
//!
//! A refusal is an answer like any other; nothing in here is an error.

use crate::time::{Span, Timestamp};

/// How much a request weighs: 1 for an ordinary one, its tokens or bytes where those are limited.
///
/// ```
/// use tidegate_core::Cost;
/// assert_eq!(Cost::ONE, Cost::new(1));
/// assert_eq!(Cost::from(37).get(), 37);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

/// One question to one limit.
///
/// ```
/// use tidegate_core::{Ask, Bound, Cost, Span, Timestamp};
/// let ask = Ask::new(Timestamp::EPOCH, Cost::ONE).waiting(Span::from_secs(2));
/// assert_eq!(ask.max_wait, Span::from_secs(2));
/// assert_eq!(ask.bound, Bound::Plain);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The instant at which the question is asked.
    pub now: Timestamp,
    /// What the request weighs. Nothing is a question too: it is refused only by a state in debt.
    pub cost: Cost,
    /// Which bound decides.
    pub bound: Bound,
    /// How long the caller can wait for its turn. Only a leaky bucket makes anybody wait.
    pub max_wait: Span,
}

/// Which bound of a limit decides: its plain amount, or that amount with its headroom.
///
/// A soft limit is always asked with headroom, an elastic one while its condition holds.
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
    /// The amount as it stands.
    #[default]
    Plain,
    /// The amount and the headroom the limit was given, if any.
    Headroom,
}

/// One limit's answer.
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
    /// Pass now, pass later, or not at all.
    pub outcome: Outcome,
    /// It passes only thanks to the headroom.
    pub over: bool,
    /// The largest cost that the same question would pass now under the plain bound.
    pub remaining: u64,
    /// How long until `remaining` is at its maximum if nothing more is taken.
    /// `None` when that lies past the end of time or of the calendar's table.
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
    /// It passes now.
    Allow,
    /// It has a place in the queue and passes after this long.
    Delay(Span),
    /// It does not pass, and nothing was taken.
    Deny(Retry),
}

/// When a refused cost would pass if nothing else is taken meanwhile.
///
/// ```
/// use tidegate_core::{Retry, Span};
/// assert_ne!(Retry::After(Span::ZERO), Retry::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After this long, and not a nanosecond earlier.
    After(Span),
    /// Never: the cost is above the capacity, or the instant lies past the end of time.
    Never,
}

// === impl Cost ===

impl Cost {
    /// What an ordinary request weighs.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Cost::ONE.get(), 1);
    /// ```
    pub const ONE: Self = Self(1);

    /// A cost of `n`.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Cost::new(7).get(), 7);
    /// ```
    #[must_use]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The number.
    ///
    /// ```
    /// assert_eq!(tidegate_core::Cost::default().get(), 0);
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
    /// Asks at `now` for `cost`, under the plain bound, by a caller that cannot wait.
    ///
    /// ```
    /// use tidegate_core::{Ask, Cost, Span, Timestamp};
    /// assert_eq!(Ask::new(Timestamp::EPOCH, Cost::ONE).max_wait, Span::ZERO);
    /// ```
    #[must_use]
    pub const fn new(now: Timestamp, cost: Cost) -> Self {
        Self { now, cost, bound: Bound::Plain, max_wait: Span::ZERO }
    }

    /// The same question under another bound.
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

    /// The same question by a caller that can wait this long.
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
    /// A refusal for good.
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
