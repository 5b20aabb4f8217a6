//! Allowances: how much a customer may take, as a list of limits, or without a limit.
//!
//! ```text
//!   rule      2/s, 500/h            ids "s", "h"
//!   tier pro  { scale: 10 }   ──►   20/s, 5000/h       the same ids, so the same counters
//! ```
//!
//! The id of a limit is its name, else its period as written. The amount is not part of the id, so a customer who is moved to
//! another tier keeps the current counts.
//!
//! Counts are also lost if the algorithm changes. So a limit of a tier or an override that says only its rate (`4/min`) counts
//! like the limit of the rule that it replaces, see [`Allowance::in_place_of`].

use crate::model::number::Number;
use crate::model::rate::{Per, Rate};
use crate::model::zone;
use std::sync::{Arc, OnceLock};
use tidegate_core::{Algorithm, Calendar, Headroom, Limit, LimitError, Period, Timestamp};

/// How much a customer may take under a rule.
///
/// ```
/// use tidegate_policy::Allowance;
/// assert_eq!(Allowance::parse("[2/s, 500/h]").unwrap().limits().len(), 2);
/// assert_eq!(Allowance::Unlimited.limits().len(), 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// All of these limits together.
    Limits(Vec<RuleLimit>),
    /// No limit.
    Unlimited,
}

/// A limit of a rule, and the id of its counters. Clones are cheap.
///
/// ```
/// use tidegate_policy::RuleLimit;
/// let limit = RuleLimit::from_rate("500/h").unwrap();
/// assert_eq!((limit.id(), limit.limit().amount()), ("h", 500));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLimit(Arc<LimitParts>);

#[derive(Clone, Debug)]
struct LimitParts {
    id: Box<str>,
    rate: Rate,
    limit: Limit,
    /// The policy gives only a rate. Everything else is taken from the limit that this one replaces, if there is one.
    only_rate: bool,
    /// See [`RuleLimit::tag`].
    tag: OnceLock<u128>,
    /// See [`RuleLimit::note`].
    note: OnceLock<Box<str>>,
}

/// The tag and the note are derived values, so they are not compared. Neither is the way in which the limit was written.
impl PartialEq for LimitParts {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.rate, &self.limit) == (&other.id, &other.rate, &other.limit)
    }
}

impl Eq for LimitParts {}

/// Why a limit was refused.
///
/// ```
/// use tidegate_policy::{RuleLimit, RuleLimitError};
/// assert!(matches!(RuleLimit::from_rate("0/s"), Err(RuleLimitError::Zero)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleLimitError {
    /// The rate is not valid.
    #[error(transparent)]
    Rate(#[from] crate::model::rate::RateError),
    /// The algorithm cannot count this rate.
    #[error("{0}")]
    Limit(#[from] LimitError),
    /// A time zone that does not exist.
    #[error("unknown time zone `{0}`; write it like `Europe/Berlin`")]
    Zone(String),
    /// An amount of 0 without `block: true`, which may be a mistake.
    #[error("an amount of 0 denies every request; add `block: true` if that is intended")]
    Zero,
}

// === impl Allowance ===

impl Allowance {
    /// The limits; an empty list if it is unlimited.
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

    /// These limits in place of the limits of a rule, with the headroom of its mode.
    ///
    /// A limit that says only its rate takes algorithm and options from the limit that it replaces: the one with its id, else
    /// the only one with its period, whose id it takes too. If it replaces none and all limits of the rule have the same
    /// algorithm, it takes those of the first limit.
    pub(crate) fn in_place_of(
        self,
        rule: &[RuleLimit],
        headroom: Headroom,
    ) -> Result<Self, RuleLimitError> {
        let Self::Limits(limits) = self else { return Ok(Self::Unlimited) };
        let placed = limits.iter().map(|limit| limit.in_place_of(rule, &limits, headroom));
        Ok(Self::Limits(placed.collect::<Result<_, _>>()?))
    }

    /// The first limit that counts in another way than the limits of the rule that it stands in for, as a sentence.
    pub(crate) fn departure(&self, rule: &[RuleLimit]) -> Option<String> {
        self.limits().iter().find_map(|limit| limit.departure(rule))
    }

    /// Recomputes the boundaries of calendar windows.
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
    /// A limit from the short form, such as `15/s`: a token bucket whose burst is the amount. A calendar period is a fixed
    /// window. In an override, it counts like the limit that it replaces.
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
        let algorithm = Self::default_algorithm(&rate);
        Ok(Self::new(None, rate, algorithm, Headroom::None)?.of_only_a_rate())
    }

    /// A limit with this rate and algorithm. `name` is its id, if it has one of its own.
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
            Per::Calendar { .. } => Period::Calendar(without_boundaries()?),
        };
        let limit = Limit::new(rate.amount, period, algorithm)?.with_headroom(headroom)?;
        let id = name.unwrap_or_else(|| rate.period_text()).into();
        Ok(Self(Arc::new(LimitParts {
            id,
            rate,
            limit,
            only_rate: false,
            tag: OnceLock::new(),
            note: OnceLock::new(),
        })))
    }

    /// Notes that the limit was written as a rate, without algorithm and options.
    pub(crate) fn of_only_a_rate(self) -> Self {
        Self(Arc::new(LimitParts { only_rate: true, ..LimitParts::clone(&self.0) }))
    }

    /// The algorithm of a limit that does not name one.
    pub(crate) fn default_algorithm(rate: &Rate) -> Algorithm {
        match rate.per {
            Per::Every(_) => Algorithm::TOKEN_BUCKET,
            Per::Calendar { .. } => Algorithm::FIXED_WINDOW,
        }
    }

    /// The id of its counters: the name of the limit, else its period.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::RuleLimit::from_rate("3/2day").unwrap().id(), "2day");
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// The limit as the core counts it. Calendar windows have no boundaries before [`crate::Policy::renewed`] sets them.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::RuleLimit::from_rate("3/s").unwrap().limit().amount(), 3);
    /// ```
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.0.limit
    }

    /// Caches a number that the caller derives from this limit, such as a hash of its id. A limit belongs to one rule and one
    /// allowance, so the number is always the same.
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

    /// Caches a text that the caller derives from this limit, such as a response header. A limit belongs to one rule and one
    /// allowance, so the text is always the same.
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

    /// The rate as written; a scaled rate as it would be written. Of a concurrency limit, it is the amount per lease.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::RuleLimit::from_rate("3/s").unwrap().rate().to_string(), "3/s");
    /// ```
    #[must_use]
    pub fn rate(&self) -> &Rate {
        &self.0.rate
    }

    /// The amount and its unit, for people: `3/s`, or `20 concurrent`.
    ///
    /// ```
    /// assert_eq!(tidegate_policy::RuleLimit::from_rate("3/s").unwrap().summary(), "3/s");
    /// ```
    #[must_use]
    pub fn summary(&self) -> String {
        match self.limit().lease() {
            Some(_) => format!("{} concurrent", self.rate().amount),
            None => self.rate().to_string(),
        }
    }

    /// Multiplies amount, burst and queue by a number, rounded down, at least 1. An amount of 0 stays 0.
    pub(crate) fn scaled(&self, scale: Number) -> Result<Self, RuleLimitError> {
        let times = |n: u64| if n == 0 { 0 } else { scale.times(n).max(1) };
        let rate = self.rate().with_amount(times(self.rate().amount));
        self.resized(self.id(), rate, self.limit().headroom(), times)
    }

    /// See [`Allowance::in_place_of`]. `siblings` are all limits of the list that this one belongs to.
    fn in_place_of(
        &self,
        rule: &[Self],
        siblings: &[Self],
        headroom: Headroom,
    ) -> Result<Self, RuleLimitError> {
        let is_rate = matches!(self.rate().per, Per::Every(_)) && self.0.only_rate;
        let Some(model) = self.model(rule).filter(|_| is_rate) else {
            let algorithm = self.limit().algorithm();
            let limit = Self::new(Some(self.id()), self.rate().clone(), algorithm, headroom)?;
            return Ok(if self.0.only_rate { limit.of_only_a_rate() } else { limit });
        };
        let alike = |other: &&Self| other.rate().per == self.rate().per || other.id() == model.id();
        let is_unnamed = self.id() == self.rate().period_text();
        let takes_id = is_unnamed
            && model.rate().per == self.rate().per
            && siblings.iter().filter(alike).count() == 1;
        let id = if takes_id { model.id() } else { self.id() };
        let (amount, of) = (u128::from(self.rate().amount), u128::from(model.rate().amount));
        // Burst and queue keep their ratio to the amount.
        let times = |n: u64| {
            let product = u128::from(n).saturating_mul(amount);
            let sized = product.checked_div(of).unwrap_or(u128::from(n));
            if n == 0 { 0 } else { u64::try_from(sized).unwrap_or(u64::MAX).max(1) }
        };
        model.resized(id, self.rate().clone(), headroom, times)
    }

    /// The limit of a rule that this one replaces: the one with its id, else the only one with its period.
    fn replaced<'r>(&self, rule: &'r [Self]) -> Option<&'r Self> {
        let named = rates(rule).find(|limit| limit.id() == self.id());
        let mut of_period = rates(rule).filter(|limit| limit.rate().per == self.rate().per);
        named.or_else(|| of_period.next().filter(|_| of_period.next().is_none()))
    }

    /// The limit of a rule whose algorithm and options this one takes.
    fn model<'r>(&self, rule: &'r [Self]) -> Option<&'r Self> {
        let name = |limit: &Self| limit.limit().algorithm().name();
        let first = rates(rule).next();
        let shared = first.filter(|first| rates(rule).all(|limit| name(limit) == name(first)));
        self.replaced(rule).or(shared)
    }

    /// See [`Allowance::departure`].
    fn departure(&self, rule: &[Self]) -> Option<String> {
        let name = |limit: &Self| limit.limit().algorithm().name();
        let (text, mine) = (self.summary(), name(self));
        rates(std::slice::from_ref(self)).next()?;
        match self.replaced(rule) {
            Some(old) if name(old) != mine => Some(format!(
                "`{text}` is a {mine}, but `{}` of the rule, which it replaces, is a {}; so what was counted is lost, and the customer gets a fresh allowance",
                old.summary(),
                name(old)
            )),
            None if self.0.only_rate && matches!(self.rate().per, Per::Every(_)) => {
                rates(rule).next()?;
                Some(format!(
                    "`{text}` replaces no limit of the rule, so it is a {mine}; write `{{ rate: {text}, algorithm: … }}`"
                ))
            }
            Some(_) | None => None,
        }
    }

    /// A copy of this limit with another id, rate and headroom. `times` computes the new burst and queue.
    fn resized(
        &self,
        id: &str,
        rate: Rate,
        headroom: Headroom,
        times: impl Fn(u64) -> u64,
    ) -> Result<Self, RuleLimitError> {
        let algorithm = match self.limit().algorithm() {
            Algorithm::TokenBucket { burst, refill } => {
                Algorithm::TokenBucket { burst: burst.map(times), refill }
            }
            Algorithm::LeakyBucket { queue } => Algorithm::LeakyBucket { queue: queue.map(times) },
            other @ (Algorithm::FixedWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::SlidingBuckets { .. }
            | Algorithm::SlidingWeighted
            | Algorithm::Concurrent) => other,
        };
        Self::new(Some(id), rate, algorithm, headroom)
    }

    fn renew(&mut self, now: Timestamp) {
        let Per::Calendar { unit, zone } = &self.rate().per else { return };
        // The zone was valid when the policy was read. If no calendar can be computed, for instance because the clock is far
        // off, the former boundaries stay.
        let Some(calendar) = zone::calendar(*unit, zone.as_deref(), now) else { return };
        let limit = Limit::new(self.rate().amount, calendar, self.limit().algorithm())
            .and_then(|limit| limit.with_headroom(self.limit().headroom()));
        if let Ok(limit) = limit {
            *self = Self(Arc::new(LimitParts { limit, ..LimitParts::clone(&self.0) }));
        }
    }
}

/// The limits that are rates: a concurrency limit counts something else.
fn rates(limits: &[RuleLimit]) -> impl Iterator<Item = &RuleLimit> {
    limits.iter().filter(|limit| limit.limit().lease().is_none())
}

/// A calendar with a single endless window, until the real boundaries are computed.
fn without_boundaries() -> Result<Calendar, LimitError> {
    Calendar::new([Timestamp::EPOCH]).map_err(|_| LimitError::CalendarNeedsFixedWindow)
}
