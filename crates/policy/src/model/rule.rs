//! A rule: which requests it applies to, whose counter they use, how much is allowed, and what happens above the limit.
//!
//! ```text
//!   match + when ──► applies? ──► key ──► which counter? ──► limits ──► on_limit
//! ```

use crate::document::{Place, shown};
use crate::model::allowance::{Allowance, RuleLimit};
use crate::model::attributes::{Attributes, RequestReading};
use crate::model::condition::Condition;
use crate::model::expression::{Expression, Fact};
use crate::model::key::{Key, KeyValues};
use crate::model::number::Number;
use crate::model::overrides::Overrides;
use crate::model::path::Case;
use crate::model::priority::ClassIndex;
use tidegate_core::{Headroom, LeaseTerms, RejectedCost, Span, WhenFull};

/// A rule of a policy. Its fields are the keys of the file, which `docs/policy.yaml` explains.
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
    /// The tiers with their own allowance under this rule.
    pub(crate) tiers: Vec<(Box<str>, Allowance)>,
    pub(crate) overrides: Overrides,
    pub(crate) mode: Mode,
    pub(crate) on_limit: OnLimit,
    pub(crate) count_rejected: RejectedCost,
    pub(crate) count: Count,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) when_full: WhenFull,
    pub(crate) consistency: Consistency,
    pub(crate) shadow: bool,
    pub(crate) enabled: bool,
    pub(crate) stop: bool,
    /// The class of its requests, if the rule decides about that.
    pub(crate) priority: Option<ClassIndex>,
}

/// How exact the counters are that several nodes share.
///
/// ```
/// use tidegate_policy::{Consistency, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: a, key: [ip], limits: [100/s], consistency: { lease: { share: 5% } } }]
/// ").unwrap();
/// assert!(matches!(policy.rules()[0].consistency(), Consistency::Lease(terms) if terms.share == 5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The store decides each request.
    #[default]
    Exact,
    /// Nodes take parts of a limit in advance, and spend them by themselves. The limit still holds.
    Lease(LeaseTerms),
}

/// How strictly a limit is enforced.
///
/// ```
/// use tidegate_policy::{Mode, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: a, key: [ip], limits: [100/s], mode: { soft: 10% } }]
/// ").unwrap();
/// assert_eq!(policy.rules()[0].mode(), &Mode::Soft(10));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every request above the limit counts as over the limit.
    #[default]
    Hard,
    /// This many per cent above the limit still pass, and are marked in the verdict.
    Soft(u16),
    /// The limit grows while a condition holds.
    Elastic {
        /// The raised limit, in per cent of the limit.
        up_to: u16,
        /// The condition on the reported signals, such as `load < 0.7`.
        condition: Expression,
    },
}

/// What happens to a request above the limit.
///
/// ```
/// use tidegate_policy::{OnLimit, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: a, key: [ip], limits: [100/s], on_limit: { flag: challenge } }]
/// ").unwrap();
/// assert_eq!(policy.rules()[0].on_limit(), &OnLimit::Flag("challenge".into()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnLimit {
    /// It is denied.
    #[default]
    Reject,
    /// It waits for its turn, within these bounds.
    Delay {
        /// The longest wait.
        max_wait: Span,
        /// How many requests of one key may wait on one node.
        max_queue: usize,
    },
    /// It passes, but in this priority class, if that is lower than its own.
    Deprioritize(ClassIndex),
    /// It passes, marked with this word, such as `challenge`.
    Flag(Box<str>),
}

/// Which requests count.
///
/// ```
/// use tidegate_policy::{Count, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: logins, key: [ip], limits: [5/min], count: failures }]
/// ").unwrap();
/// assert_eq!(policy.rules()[0].count(), Count::Failures);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// All requests.
    #[default]
    All,
    /// Requests that failed, such as a login with a wrong password.
    Failures,
    /// Requests that succeeded.
    Successes,
}

/// What a rule does while its store is unreachable.
///
/// ```
/// use tidegate_policy::{OnStoreError, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: a, key: [ip], limits: [15/s], on_store_error: deny }]
/// ").unwrap();
/// assert_eq!(policy.rules()[0].on_store_error(), OnStoreError::Deny);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Every node counts on its own.
    #[default]
    Local,
    /// Requests pass.
    Allow,
    /// Requests are denied.
    Deny,
}

/// Why a rule does not apply to a request.
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
    /// An attribute of `match` has another value, or is absent.
    Match {
        /// The attribute.
        attribute: String,
        /// Its value.
        found: Option<String>,
        /// The values that the rule accepts.
        wanted: String,
    },
    /// The condition in `when` does not hold.
    When(String),
    /// The request lacks an attribute of the key.
    NoKey(String),
    /// The rule is disabled.
    Disabled,
    /// An earlier rule with `stop` applied.
    Stopped(String),
}

// === impl Mode ===

impl Mode {
    /// How far requests may exceed a limit under this mode.
    pub(crate) const fn headroom(&self) -> Headroom {
        match self {
            Self::Hard => Headroom::None,
            Self::Soft(percent) => Headroom::Soft(*percent),
            Self::Elastic { up_to, .. } => Headroom::Elastic(*up_to),
        }
    }
}

/// The group under which a store reports the leases of a rule: a hash of its name (FNV-1a), so that it stays the same when the
/// policy is edited.
pub(crate) fn lease_group(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

// === impl Rule ===

impl Rule {
    /// A rule without conditions that counts all requests in one counter, with the default of every setting.
    pub(crate) fn new(name: Box<str>, place: Place, allowance: Allowance) -> Self {
        Self {
            name,
            place,
            conditions: vec![],
            when: None,
            key: Key::default(),
            allowance,
            tiers: vec![],
            overrides: Overrides::default(),
            mode: Mode::Hard,
            on_limit: OnLimit::Reject,
            count_rejected: RejectedCost::Free,
            count: Count::All,
            on_store_error: OnStoreError::Local,
            when_full: WhenFull::Shared,
            consistency: Consistency::Exact,
            shadow: false,
            enabled: true,
            stop: false,
            priority: None,
        }
    }

    /// A rule of Envoy's rule files. Descriptors find it, so it has neither conditions nor a key. Denied calls count, as in
    /// the reference service.
    pub(crate) fn of_descriptor(
        name: String,
        place: Place,
        limit: Option<RuleLimit>,
        shadow: bool,
    ) -> Self {
        let allowance = limit.map_or(Allowance::Unlimited, |limit| Allowance::Limits(vec![limit]));
        let count_rejected = RejectedCost::Charged;
        Self { count_rejected, shadow, ..Self::new(name.into(), place, allowance) }
    }

    /// A placeholder for limits that Envoy sends with a call, which no rule of the policy covers.
    #[must_use]
    pub fn of_callers() -> Self {
        Self::of_descriptor(String::new(), Place { line: 1, column: 1 }, None, false)
    }
    /// The name of the rule.
    ///
    /// ```
    /// # let policy = tidegate_policy::Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s] }] }").unwrap();
    /// assert_eq!(policy.rules()[0].name(), "a");
    /// ```
    #[must_use]
    pub const fn name(&self) -> &str {
        &self.name
    }

    /// The attributes that select the counter.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The allowance of customers without a tier or an override of their own.
    #[must_use]
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// The allowance of a tier, if the rule has one for it.
    #[must_use]
    pub fn tier(&self, name: &str) -> Option<&Allowance> {
        self.tiers.iter().find(|(known, _)| **known == *name).map(|(_, allowance)| allowance)
    }

    /// The overrides in the policy file.
    #[must_use]
    pub const fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// How strictly the limits are enforced.
    #[must_use]
    pub const fn mode(&self) -> &Mode {
        &self.mode
    }

    /// What happens to a request above the limit.
    #[must_use]
    pub const fn on_limit(&self) -> &OnLimit {
        &self.on_limit
    }

    /// Whether rejected requests count too.
    #[must_use]
    pub const fn count_rejected(&self) -> RejectedCost {
        self.count_rejected
    }

    /// Which requests count.
    #[must_use]
    pub const fn count(&self) -> Count {
        self.count
    }

    /// What the rule does while its store is unreachable.
    #[must_use]
    pub const fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// What happens to new keys when memory is full.
    #[must_use]
    pub const fn when_full(&self) -> WhenFull {
        self.when_full
    }

    /// How exact the counters are that several nodes share.
    #[must_use]
    pub const fn consistency(&self) -> &Consistency {
        &self.consistency
    }

    /// The group under which a store reports the leases of this rule.
    ///
    /// ```
    /// # let policy = tidegate_policy::Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s], consistency: lease }] }").unwrap();
    /// # use tidegate_policy::Consistency;
    /// let rule = &policy.rules()[0];
    /// assert!(matches!(rule.consistency(), Consistency::Lease(terms) if terms.group == rule.lease_group()));
    /// ```
    #[must_use]
    pub fn lease_group(&self) -> u32 {
        lease_group(&self.name)
    }

    /// Shadow mode: the rule counts and reports, but denies nothing.
    #[must_use]
    pub const fn shadow(&self) -> bool {
        self.shadow
    }

    /// Whether the rule is enabled.
    #[must_use]
    pub const fn enabled(&self) -> bool {
        self.enabled
    }

    /// Whether later rules are skipped when this one applies.
    #[must_use]
    pub const fn stop(&self) -> bool {
        self.stop
    }

    /// The priority class of the requests that this rule applies to, if the rule decides about that.
    ///
    /// ```
    /// let policy = tidegate_policy::Policy::parse("
    /// version: 1
    /// rules: [{ name: payments, match: { path: /pay }, priority: critical }]
    /// ").unwrap();
    /// let class = policy.rules()[0].priority().unwrap();
    /// assert_eq!(policy.classes().get(class).name(), "critical");
    /// ```
    #[must_use]
    pub const fn priority(&self) -> Option<ClassIndex> {
        self.priority
    }

    /// The values of the key for a request, or why the rule does not apply to it.
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
            || request.other_readings().find_map(|reading| self.values(reading, cost, ipv6_prefix));
        self.values(request.canonical(), cost, ipv6_prefix)
            .or_else(otherwise)
            .ok_or_else(|| self.skipped(request.canonical(), cost))
    }

    /// Why the rule does not apply to a request.
    fn skipped(&self, reading: RequestReading<'_>, cost: u64) -> Skipped {
        if let Some(condition) = self.conditions.iter().find(|condition| !condition.holds(reading))
        {
            return Skipped::of_condition(condition, reading.request());
        }
        match self.when.as_ref().filter(|when| !holds(when, reading, self.key.case(), cost)) {
            Some(when) => Skipped::When(when.as_str().to_owned()),
            None => Skipped::NoKey(self.key.missing(reading.request()).unwrap_or_default()),
        }
    }

    /// The values of the key if the rule applies to this reading of a request.
    pub(crate) fn values<'k>(
        &'k self,
        reading: RequestReading<'k>,
        cost: u64,
        ipv6_prefix: u8,
    ) -> Option<KeyValues<'k>> {
        let applies = self.conditions.iter().all(|condition| condition.holds(reading))
            && self.when.as_ref().is_none_or(|when| holds(when, reading, self.key.case(), cost));
        if applies { self.key.of_reading(reading, ipv6_prefix) } else { None }
    }

    /// Whether `match` holds for any reading of the path, regardless of `when` and the key.
    pub(crate) fn matches(&self, request: &Attributes<'_>) -> bool {
        let matches = |reading| self.conditions.iter().all(|condition| condition.holds(reading));
        matches(request.canonical()) || request.other_readings().any(matches)
    }

    pub(crate) fn allowances_mut(&mut self) -> impl Iterator<Item = &mut Allowance> {
        let tiers = self.tiers.iter_mut().map(|(_, allowance)| allowance);
        [&mut self.allowance].into_iter().chain(tiers)
    }

    /// Where the rule begins in its file.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Every allowance under this rule: its own, those of tiers and those of overrides.
    pub fn allowances(&self) -> impl Iterator<Item = &Allowance> {
        let tiers = self.tiers.iter().map(|(_, allowance)| allowance);
        [&self.allowance].into_iter().chain(tiers).chain(self.overrides.allowances())
    }

    /// Whether a limit of this rule, of one of its tiers or of an override is one of concurrency.
    pub(crate) fn limits_concurrency(&self) -> bool {
        let mut limits = self.allowances().flat_map(Allowance::limits);
        limits.any(|limit| limit.limit().lease().is_some())
    }
}

/// Evaluates a condition on the attributes of a request and its cost.
fn holds(when: &Expression, reading: RequestReading<'_>, case: Case, cost: u64) -> bool {
    when.holds(&|name| match name {
        "cost" => Some(Fact::Number(Number::whole(cost))),
        "ip" => reading.request().address().map(Fact::Address),
        name => reading.get(name, case).map(Fact::Text),
    })
}

// === impl Skipped ===

impl Skipped {
    fn of_condition(condition: &Condition, request: &Attributes<'_>) -> Self {
        let attribute = condition.attribute().to_owned();
        let found = request.get(&attribute).map(|found| shown(&found));
        Self::Match { attribute, found, wanted: condition.to_string() }
    }
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Match { attribute, found: Some(found), wanted } => {
                write!(f, "`{attribute}` is {found}, not {wanted}")
            }
            Self::Match { attribute, found: None, wanted } => {
                write!(f, "the request has no `{attribute}`; the rule needs {wanted}")
            }
            Self::When(when) => write!(f, "`when` does not hold: {when}"),
            Self::NoKey(part) => write!(f, "the request has no `{part}`, which the key needs"),
            Self::Disabled => write!(f, "the rule is disabled"),
            Self::Stopped(rule) => write!(f, "`{rule}` applied first and has `stop: true`"),
        }
    }
}
