//! How much somebody may take: limits with their names, or no limit at all.
//!
//! ```text
//!   rule      2/s, 500/h            ids "s", "h"
//!   tier pro  { scale: 10 }   ──►   20/s, 5000/h       the same ids, so the same states
//! ```
//!
//! A limit's id is its name, else its period as written. Amounts are no part of it: a customer who is moved
//! from one tier to another keeps what was counted.

use crate::number::Number;
use crate::policy::PolicyError;
use crate::rate::{Per, Rate};
use crate::zone;
use std::sync::{Arc, OnceLock};
use tidegate_core::{Algorithm, Calendar, Headroom, Limit, LimitError, Period, Timestamp};

/// What somebody may take under a rule.
///
/// ```
/// use tidegate_policy::Allowance;
/// assert_eq!(Allowance::Unlimited.limits().len(), 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// All of these, together.
    Limits(Vec<RuleLimit>),
    /// Whatever they like.
    Unlimited,
}

/// A limit of a rule, and the name under which its states are kept. Clones are cheap.
///
/// ```
/// use tidegate_policy::RuleLimit;
/// let limit = RuleLimit::from_rate("500/h").unwrap();
/// assert_eq!((limit.id(), limit.limit().amount()), ("h", 500));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimit(Arc<Written>);

#[derive(Clone, Debug)]
struct Written {
    id: Box<str>,
    rate: Rate,
    limit: Limit,
    /// See [`RuleLimit::tag`].
    tag: OnceLock<u128>,
    /// See [`RuleLimit::note`].
    note: OnceLock<Box<str>>,
}

/// What was derived from them makes no difference.
impl PartialEq for Written {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.rate, &self.limit) == (&other.id, &other.rate, &other.limit)
    }
}

impl Eq for Written {}

/// Why a limit was refused.
///
/// ```
/// use tidegate_policy::{RuleLimit, RuleLimitError};
/// assert!(matches!(RuleLimit::from_rate("0/s"), Err(RuleLimitError::Zero)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleLimitError {
    /// It is no rate.
    #[error(transparent)]
    Rate(#[from] crate::rate::RateError),
    /// It cannot be counted.
    #[error("{0}")]
    Limit(#[from] LimitError),
    /// A zone that does not exist.
    #[error("there is no time zone `{0}`; write it like `Europe/Berlin`")]
    Zone(String),
    /// An amount of 0 that may be a slip.
    #[error("an amount of 0 lets nothing pass; if that is meant, add `block: true`")]
    Zero,
}

// === impl Allowance ===

impl Allowance {
    /// Reads what somebody may take, as a policy writes it: `unlimited`, or a list of limits.
    ///
    /// ```
    /// use tidegate_policy::Allowance;
    /// let allowance = Allowance::parse("[1000/s, { rate: 500/h, algorithm: sliding_log }]").unwrap();
    /// assert_eq!(allowance.limits().len(), 2);
    /// assert_eq!(Allowance::parse("unlimited"), Ok(Allowance::Unlimited));
    /// assert!(Allowance::parse("[1000/fortnight]").is_err());
    /// ```
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, PolicyError> {
        crate::file::read_allowance(text.as_ref()).map_err(PolicyError::new)
    }

    /// Its limits; none when there are none.
    ///
    /// ```
    /// use tidegate_policy::{Allowance, RuleLimit};
    /// let allowance = Allowance::Limits(vec![RuleLimit::from_rate("2/s").unwrap()]);
    /// assert_eq!(allowance.limits().len(), 1);
    /// ```
    #[must_use]
    pub fn limits(&self) -> &[RuleLimit] {
        match self {
            Self::Limits(limits) => limits,
            Self::Unlimited => &[],
        }
    }

    /// The same with this headroom, as the mode of its rule wants.
    pub(crate) fn with_headroom(self, headroom: Headroom) -> Result<Self, RuleLimitError> {
        Ok(match self {
            Self::Unlimited => Self::Unlimited,
            Self::Limits(limits) => {
                let stretched = limits.iter().map(|limit| {
                    let (id, rate) = (Some(limit.id()), limit.rate().clone());
                    RuleLimit::new(id, rate, limit.limit().algorithm(), headroom)
                });
                Self::Limits(stretched.collect::<Result<_, _>>()?)
            }
        })
    }

    /// The same, with calendars as of this instant.
    pub(crate) fn renew(&mut self, now: Timestamp) {
        if let Self::Limits(limits) = self {
            limits.iter_mut().for_each(|limit| limit.renew(now));
        }
    }

    pub(crate) fn has_calendar(&self) -> bool {
        self.limits().iter().any(|limit| matches!(limit.0.rate.per, Per::Calendar { .. }))
    }
}

// === impl RuleLimit ===

impl RuleLimit {
    /// The short form: a token bucket whose burst is the amount; a calendar period is a fixed window.
    ///
    /// ```
    /// use tidegate_policy::RuleLimit;
    /// let limit = RuleLimit::from_rate("9/calendar-day@Europe/Berlin").unwrap();
    /// assert_eq!(limit.limit().algorithm().name(), "fixed_window");
    /// ```
    pub fn from_rate(text: &str) -> Result<Self, RuleLimitError> {
        let rate: Rate = text.parse()?;
        if rate.amount == 0 {
            return Err(RuleLimitError::Zero);
        }
        let algorithm = Self::usual(&rate);
        Self::new(None, rate, algorithm, Headroom::None)
    }

    /// A rate, counted so.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Headroom};
    /// use tidegate_policy::RuleLimit;
    /// let rate = "10/min".parse().unwrap();
    /// let limit = RuleLimit::new(None, rate, Algorithm::SLIDING_LOG, Headroom::Soft(10)).unwrap();
    /// assert_eq!(limit.id(), "min");
    /// ```
    pub fn new(
        name: Option<&str>,
        rate: Rate,
        algorithm: Algorithm,
        headroom: Headroom,
    ) -> Result<Self, RuleLimitError> {
        let period = match &rate.per {
            Per::Every(span) => Period::Every(*span),
            Per::Calendar { zone, .. } if !zone::exists(zone.as_deref()) => {
                return Err(RuleLimitError::Zone(zone.clone().unwrap_or_default()));
            }
            Per::Calendar { .. } => Period::Calendar(not_laid_out()?),
        };
        let limit = Limit::new(rate.amount, period, algorithm)?.with_headroom(headroom)?;
        let id = name.unwrap_or_else(|| rate.period_text()).into();
        Ok(Self(Arc::new(Written { id, rate, limit, tag: OnceLock::new(), note: OnceLock::new() })))
    }

    /// How a rate is counted when nothing else is said.
    pub(crate) fn usual(rate: &Rate) -> Algorithm {
        match rate.per {
            Per::Every(_) => Algorithm::TOKEN_BUCKET,
            Per::Calendar { .. } => Algorithm::FIXED_WINDOW,
        }
    }

    /// The name of its states: the limit's own, else its period.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::RuleLimit::from_rate("3/2day").unwrap().id(), "2day");
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// What the core counts by. Calendars have no boundaries before [`crate::Policy::renewed`] set them.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::RuleLimit::from_rate("3/s").unwrap().limit().amount(), 3);
    /// ```
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.0.limit
    }

    /// A number that whoever names states derives from this limit once. A limit belongs to one rule and one
    /// allowance, so it has one name.
    ///
    /// ```
    /// let limit = tidegate_policy::RuleLimit::from_rate("3/s").unwrap();
    /// assert_eq!(limit.tag(|| 7), 7);
    /// assert_eq!(limit.tag(|| 8), 7);
    /// ```
    #[must_use]
    pub fn tag(&self, derive: impl FnOnce() -> u128) -> u128 {
        *self.0.tag.get_or_init(derive)
    }

    /// A text that whoever tells of this limit derives from it once. A limit belongs to one rule and one allowance, so the same
    /// is told of it every time.
    ///
    /// ```
    /// let limit = tidegate_policy::RuleLimit::from_rate("3/s").unwrap();
    /// assert_eq!(limit.note(|| "three".to_owned()), "three");
    /// assert_eq!(limit.note(|| "four".to_owned()), "three");
    /// ```
    #[must_use]
    pub fn note(&self, derive: impl FnOnce() -> String) -> &str {
        self.0.note.get_or_init(|| derive().into())
    }

    /// Its rate, as written; scaled ones as they would be written.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::RuleLimit::from_rate("3/s").unwrap().rate().to_string(), "3/s");
    /// ```
    #[must_use]
    pub fn rate(&self) -> &Rate {
        &self.0.rate
    }

    /// Amount, burst and queue times a number: rounded down, at least 1. What blocks, blocks on.
    pub(crate) fn scaled(&self, scale: Number) -> Result<Self, RuleLimitError> {
        let times = |n: u64| if n == 0 { 0 } else { scale.times(n).max(1) };
        let algorithm = match self.limit().algorithm() {
            Algorithm::TokenBucket { burst, refill } => {
                Algorithm::TokenBucket { burst: burst.map(times), refill }
            }
            Algorithm::LeakyBucket { queue } => Algorithm::LeakyBucket { queue: queue.map(times) },
            other @ (Algorithm::FixedWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::SlidingBuckets { .. }
            | Algorithm::SlidingWeighted) => other,
        };
        let rate = self.rate().with_amount(times(self.rate().amount));
        Self::new(Some(self.id()), rate, algorithm, self.limit().headroom())
    }

    fn renew(&mut self, now: Timestamp) {
        let Per::Calendar { unit, zone } = &self.rate().per else { return };
        // A zone that was there when the policy was read stays: where no calendar can be laid out, such as
        // a clock far outside of it, the former one goes on.
        let Some(calendar) = zone::calendar(*unit, zone.as_deref(), now) else { return };
        let limit = Limit::new(self.rate().amount, calendar, self.limit().algorithm())
            .and_then(|limit| limit.with_headroom(self.limit().headroom()));
        if let Ok(limit) = limit {
            *self = Self(Arc::new(Written { limit, ..Written::clone(&self.0) }));
        }
    }
}

/// A calendar that is one endless window, until it is laid out.
fn not_laid_out() -> Result<Calendar, LimitError> {
    Calendar::new([Timestamp::EPOCH]).map_err(|_| LimitError::CalendarNeedsFixedWindow)
}
