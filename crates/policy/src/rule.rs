//! A rule: which requests it is about, who is counted, how much, and what a refusal means.
//!
//! ```text
//!   match + when ──► applies? ──► key ──► whose bucket? ──► limits ──► on_limit
//! ```

use crate::allowance::Allowance;
use crate::attributes::{Attributes, Seen};
use crate::document::Place;
use crate::expression::{Expression, Fact};
use crate::key::{Key, KeyValues};
use crate::number::Number;
use crate::overrides::Overrides;
use crate::pattern::{Case, Pattern};
use ipnet::IpNet;
use std::borrow::Cow;
use tidegate_core::{Headroom, RejectedCost, Span, WhenFull};

/// A rule of a policy. Its fields are those of the file, and documented there.
///
/// ```
/// let policy = tidegate_policy::Policy::parse("
/// version: 1
/// rules: [{ name: per-client, key: [ip], limits: [15/s] }]
/// ").unwrap();
/// assert_eq!(policy.rules()[0].name(), "per-client");
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: Box<str>,
    pub(crate) place: Place,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) when: Option<Expression>,
    pub(crate) key: Key,
    pub(crate) allowance: Allowance,
    /// For those tiers that have one of their own.
    pub(crate) tiers: Vec<(Box<str>, Allowance)>,
    pub(crate) overrides: Overrides,
    pub(crate) mode: Mode,
    pub(crate) on_limit: OnLimit,
    pub(crate) count_rejected: RejectedCost,
    pub(crate) count: Count,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) when_full: WhenFull,
    pub(crate) shadow: bool,
    pub(crate) enabled: bool,
    pub(crate) stop: bool,
}

/// One line of `match`: an attribute, and the values of which it must have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Method(Vec<String>),
    Path(Vec<Pattern>),
    Ip(Vec<IpNet>),
    Named(Box<str>, Vec<String>),
}

/// Whether a limit is the last word.
///
/// ```
/// assert_eq!(tidegate_policy::Mode::default(), tidegate_policy::Mode::Hard);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    #[default]
    Hard,
    /// So many per cent above it still pass, and are marked.
    Soft(u16),
    /// It grows while there is room.
    Elastic {
        /// To so many per cent.
        up_to: u16,
        /// While this holds of the signals.
        condition: Expression,
    },
}

/// What happens to a request that is over the limit.
///
/// ```
/// assert_eq!(tidegate_policy::OnLimit::default(), tidegate_policy::OnLimit::Reject);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnLimit {
    /// It is refused.
    #[default]
    Reject,
    /// It waits, if it can.
    Delay {
        /// For at most so long.
        max_wait: Span,
        /// With at most so many of the same key before it, on this node.
        max_queue: usize,
    },
    /// It passes, marked: whoever serves it serves others first.
    Deprioritize,
    /// It passes, marked with this word, such as `challenge`.
    Flag(Box<str>),
}

/// Which requests count.
///
/// ```
/// assert_eq!(tidegate_policy::Count::default(), tidegate_policy::Count::All);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// All.
    #[default]
    All,
    /// Those that fail, such as a wrong password.
    Failures,
    /// Those that succeed.
    Successes,
}

/// What a rule does while its store is gone.
///
/// ```
/// assert_eq!(tidegate_policy::OnStoreError::default(), tidegate_policy::OnStoreError::Local);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Every node counts by itself.
    #[default]
    Local,
    /// Requests pass.
    Allow,
    /// Requests are refused.
    Deny,
}

/// Why a rule says nothing about a request.
///
/// ```
/// use tidegate_policy::{Attributes, Policy, Skipped};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: uploads, match: { method: POST }, key: [ip], limits: [15/s] }]
/// ").unwrap();
/// let get = Attributes::new().with("method", "GET")?;
/// let skipped = policy.rules()[0].applies(&get, 1, 64).unwrap_err();
/// assert_eq!(skipped.to_string(), "`method` is GET, not POST");
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// An attribute has another value, or none.
    Match {
        /// Which.
        attribute: String,
        /// What it has.
        found: Option<String>,
        /// What it should have.
        wanted: String,
    },
    /// The condition does not hold.
    When(String),
    /// The request has no value for a part of the key.
    NoKey(String),
    /// It is switched off.
    Disabled,
    /// An earlier rule said `stop`.
    Stopped(String),
}

// === impl Mode ===

impl Mode {
    /// How much room its limits have beyond themselves.
    pub(crate) const fn headroom(&self) -> Headroom {
        match self {
            Self::Hard => Headroom::None,
            Self::Soft(percent) => Headroom::Soft(*percent),
            Self::Elastic { up_to, .. } => Headroom::Elastic(*up_to),
        }
    }
}

// === impl Rule ===

impl Rule {
    /// Its name.
    ///
    /// ```
    /// # let policy = tidegate_policy::Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s] }] }").unwrap();
    /// assert_eq!(policy.rules()[0].name(), "a");
    /// ```
    #[must_use]
    pub const fn name(&self) -> &str {
        &self.name
    }

    /// Who is counted.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// What everybody may take who has no tier or override of their own.
    #[must_use]
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// What a tier may take, if that is something of its own.
    #[must_use]
    pub fn tier(&self, name: &str) -> Option<&Allowance> {
        self.tiers.iter().find(|(known, _)| **known == *name).map(|(_, allowance)| allowance)
    }

    /// The exceptions in the file.
    #[must_use]
    pub const fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// Whether the limit is the last word.
    #[must_use]
    pub const fn mode(&self) -> &Mode {
        &self.mode
    }

    /// What happens to a request over the limit.
    #[must_use]
    pub const fn on_limit(&self) -> &OnLimit {
        &self.on_limit
    }

    /// Whether a refused cost counts too.
    #[must_use]
    pub const fn count_rejected(&self) -> RejectedCost {
        self.count_rejected
    }

    /// Which requests count.
    #[must_use]
    pub const fn count(&self) -> Count {
        self.count
    }

    /// What it does while its store is gone.
    #[must_use]
    pub const fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// What becomes of new keys when memory is full.
    #[must_use]
    pub const fn when_full(&self) -> WhenFull {
        self.when_full
    }

    /// Whether it only pretends.
    #[must_use]
    pub const fn shadow(&self) -> bool {
        self.shadow
    }

    /// Whether it is switched on.
    #[must_use]
    pub const fn enabled(&self) -> bool {
        self.enabled
    }

    /// Whether no later rule is looked at when this one applies.
    #[must_use]
    pub const fn stop(&self) -> bool {
        self.stop
    }

    /// Whose bucket a request draws from under this rule, or why it says nothing about it.
    ///
    /// ```
    /// # use tidegate_policy::{Attributes, Policy};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [user], limits: [1/s] }] }").unwrap();
    /// let request = Attributes::new().with("user", "alice")?;
    /// assert_eq!(policy.rules()[0].applies(&request, 1, 64).unwrap().to_string(), "user=alice");
    /// # Ok::<(), tidegate_policy::AttributeError>(())
    /// ```
    pub fn applies<'k>(
        &'k self,
        request: &'k Attributes<'_>,
        cost: u64,
        ipv6_prefix: u8,
    ) -> Result<KeyValues<'k>, Skipped> {
        let otherwise =
            || request.seen_otherwise().find_map(|seen| self.values(seen, cost, ipv6_prefix));
        self.values(request.seen(), cost, ipv6_prefix)
            .or_else(otherwise)
            .ok_or_else(|| self.skipped(request.seen(), cost))
    }

    /// Why a request that it does not apply to is not counted.
    fn skipped(&self, seen: Seen<'_>, cost: u64) -> Skipped {
        if let Some(condition) = self.conditions.iter().find(|condition| !condition.holds(seen)) {
            return condition.skipped(seen.request());
        }
        match self.when.as_ref().filter(|when| !holds(when, seen, self.key.case(), cost)) {
            Some(when) => Skipped::When(when.as_str().to_owned()),
            None => Skipped::NoKey(self.key.missing(seen.request()).unwrap_or_default()),
        }
    }

    /// Whose bucket a request draws from, its path in one of its readings.
    pub(crate) fn values<'k>(
        &'k self,
        seen: Seen<'k>,
        cost: u64,
        ipv6_prefix: u8,
    ) -> Option<KeyValues<'k>> {
        let applies = self.conditions.iter().all(|condition| condition.holds(seen))
            && self.when.as_ref().is_none_or(|when| holds(when, seen, self.key.case(), cost));
        if applies { self.key.of_seen(seen, ipv6_prefix) } else { None }
    }

    /// Whether its `match` holds in some reading of the path, whatever its `when` and key say.
    pub(crate) fn matches(&self, request: &Attributes<'_>) -> bool {
        let matches = |seen| self.conditions.iter().all(|condition| condition.holds(seen));
        matches(request.seen()) || request.seen_otherwise().any(matches)
    }

    pub(crate) fn allowances_mut(&mut self) -> impl Iterator<Item = &mut Allowance> {
        let tiers = self.tiers.iter_mut().map(|(_, allowance)| allowance);
        [&mut self.allowance].into_iter().chain(tiers)
    }

    /// Every allowance that somebody may have under this rule.
    pub fn allowances(&self) -> impl Iterator<Item = &Allowance> {
        let tiers = self.tiers.iter().map(|(_, allowance)| allowance);
        [&self.allowance].into_iter().chain(tiers).chain(self.overrides.allowances())
    }
}

/// What the names of a condition stand for in a request.
fn holds(when: &Expression, seen: Seen<'_>, case: Case, cost: u64) -> bool {
    when.holds(&|name| match name {
        "cost" => Some(Fact::Number(Number::whole(cost))),
        "ip" => seen.request().address().map(Fact::Address),
        name => seen.get(name, case).map(Fact::Text),
    })
}

/// Whether a value is one of these, which are in order.
fn is_among(values: &[String], wanted: &str) -> bool {
    values.binary_search_by(|value| value.as_str().cmp(wanted)).is_ok()
}

// === impl Condition ===

impl Condition {
    pub(crate) fn attribute(&self) -> &str {
        match self {
            Self::Method(_) => "method",
            Self::Path(_) => "path",
            Self::Ip(_) => "ip",
            Self::Named(name, _) => name,
        }
    }

    /// What the attribute may be, as text.
    pub(crate) fn values(&self) -> Box<dyn Iterator<Item = Cow<'_, str>> + '_> {
        match self {
            Self::Method(values) | Self::Named(_, values) => {
                Box::new(values.iter().map(|value| value.as_str().into()))
            }
            Self::Path(patterns) => Box::new(patterns.iter().map(|p| p.to_string().into())),
            Self::Ip(networks) => Box::new(networks.iter().map(|n| n.addr().to_string().into())),
        }
    }

    fn holds(&self, seen: Seen<'_>) -> bool {
        let request = seen.request();
        match self {
            Self::Method(methods) => request.method().is_some_and(|found| is_among(methods, found)),
            Self::Path(patterns) => {
                seen.path().is_some_and(|path| patterns.iter().any(|p| p.matches(path)))
            }
            Self::Ip(networks) => {
                request.address().is_some_and(|ip| networks.iter().any(|n| n.contains(&ip)))
            }
            Self::Named(name, values) => {
                request.named(name).is_some_and(|found| is_among(values, found))
            }
        }
    }

    /// Whether everything that satisfies another satisfies this; false when in doubt.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Method(mine), Self::Method(theirs)) => theirs.iter().all(|m| is_among(mine, m)),
            (Self::Path(mine), Self::Path(theirs)) => {
                theirs.iter().all(|theirs| mine.iter().any(|mine| mine.covers(theirs)))
            }
            (Self::Ip(mine), Self::Ip(theirs)) => {
                theirs.iter().all(|theirs| mine.iter().any(|mine| mine.contains(theirs)))
            }
            (Self::Named(name, mine), Self::Named(other, theirs)) => {
                name == other && theirs.iter().all(|value| is_among(mine, value))
            }
            (Self::Method(_) | Self::Path(_) | Self::Ip(_) | Self::Named(..), _) => false,
        }
    }

    fn skipped(&self, request: &Attributes<'_>) -> Skipped {
        let attribute = self.attribute().to_owned();
        let found = request.get(&attribute).map(|found| crate::attributes::shown(&found));
        Skipped::Match { attribute, found, wanted: self.to_string() }
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let values: Vec<String> = match self {
            Self::Method(values) | Self::Named(_, values) => values.clone(),
            Self::Path(patterns) => patterns.iter().map(ToString::to_string).collect(),
            Self::Ip(networks) => networks.iter().map(ToString::to_string).collect(),
        };
        f.write_str(&values.join(" or "))
    }
}

// === impl Skipped ===

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Match { attribute, found: Some(found), wanted } => {
                write!(f, "`{attribute}` is {found}, not {wanted}")
            }
            Self::Match { attribute, found: None, wanted } => {
                write!(f, "there is no `{attribute}`; it should be {wanted}")
            }
            Self::When(when) => write!(f, "`when` does not hold: {when}"),
            Self::NoKey(part) => write!(f, "there is no `{part}` to count by"),
            Self::Disabled => write!(f, "it is not enabled"),
            Self::Stopped(rule) => write!(f, "`{rule}` came first and says stop"),
        }
    }
}
