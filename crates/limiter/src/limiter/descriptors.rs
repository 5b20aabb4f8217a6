//! Several questions of one call, decided together: what Envoy asks.
//!
//! ```text
//!   call ─┬─ (user, alice)             ──► 2/s, 500/h ─┐
//!         ├─ (tenant, acme)            ──► 1000/min    ├─► one plan: all or none ──► a status for each, in order
//!         └─ (path, /x) hits_addend 0  ──► 50/s        ┘
//! ```
//!
//! By a policy, a descriptor is a request of its own: its entries are attributes, and every rule that applies has a say. By
//! rule files of Envoy's reference service it meets one limit or none, as its tree says; there a name may stand twice,
//! descriptors can replace each other, and those of `quota_mode` refuse only when all of them do. Either way a descriptor
//! may bring a limit of its own, and give back instead of taking.

mod meets;
mod together;

use super::Limiter;
use super::decide::{Asked, entries};
use crate::check::Check;
use crate::error::CheckError;
use crate::live::Live;
use crate::verdict::{DecidedBy, OF_CALLER, Verdict, worse};
use meets::{Meets, attributes, meets, own_limits};
use serde_json::{Map, Value};
use smallvec::SmallVec;
use std::borrow::Cow;
use tidegate_core::{Cost, Need, Outcome, Period, RejectedCost, Retry, Span, Take};
use tidegate_policy::{AttributeError, Attributes, DescriptorRule, Met, RuleLimit, Unit};
use tidegate_store::{LimitName, Store};
use together::Together;

/// What is asked about one call: a domain, descriptors, and how much.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorCall<'c, 'd> {
    /// Whose rules; by a policy, the attribute `domain`.
    pub domain: &'d str,
    /// The questions.
    pub descriptors: &'c [Descriptor<'d>],
    /// What each costs that does not say so itself; 0 means 1.
    pub hits: u32,
    /// How long the caller waits for the answer, if it matters.
    pub timeout: Option<Span>,
    /// How long the caller can wait for its turn.
    pub max_wait: Span,
}

/// One question of a call.
#[derive(Clone, Debug, Default)]
pub struct Descriptor<'d> {
    /// Names and values, in order.
    pub entries: SmallVec<[(&'d str, Cow<'d, str>); 4]>,
    /// A limit instead of those of the rules: so many a unit.
    pub limit: Option<(u32, Unit)>,
    /// What it costs. 0 charges nothing, and is refused only where more was charged than fits.
    pub hits: Option<u64>,
    /// What it costs is given back, as far as it was taken.
    pub gives_back: bool,
}

/// The answer to a call.
#[derive(Debug)]
pub struct DescriptorVerdict {
    /// What all limits said together.
    pub verdict: Verdict,
    /// What the rules that let it pass tell Envoy; empty when they tell nothing.
    pub metadata: Map<String, Value>,
    statuses: SmallVec<[Status; 2]>,
}

/// The answer to one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorStatus<'v> {
    /// Its limits refuse it.
    pub over: bool,
    /// The limit that says most; `None` when none applies.
    pub limit: Option<DescribedLimit<'v>>,
    /// How much remains of that; everything where it is `unlimited`.
    pub remaining: u64,
    /// When all is free again, or for a refusal when to come back; the whole period, where no waiting helps.
    pub reset: Option<Span>,
}

/// A limit in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescribedLimit<'v> {
    /// How much.
    pub amount: u64,
    /// Per which unit of the protocol; `None` when it has no name there, such as 30 s.
    pub unit: Option<Unit>,
    /// What it is called: the rule of a policy, the `name` in a rule file.
    pub name: &'v str,
}

/// Why a call cannot be decided. A client may be able to cause each of these through its proxy, so a front end refuses such
/// a call: an error would let it pass where the proxy fails open.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// A policy counts by names, and this one stands for two different values.
    #[error(
        "descriptor {0}: the entry `{1}` has two different values; give its action another `descriptor_key`"
    )]
    Twice(usize, String),
    /// The name of the call's domain.
    #[error(
        "descriptor {0}: an entry is called `domain`, as is the domain of the call; give its action another `descriptor_key`"
    )]
    Domain(usize),
    /// An entry that a policy cannot take as an attribute.
    #[error("descriptor {0}: {1}")]
    Attribute(usize, AttributeError),
    /// More limits than a call is decided by.
    #[error("more than {} limits apply to this call", DescriptorCall::MOST_LIMITS)]
    TooManyLimits,
    /// It cannot be decided.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// Which answers belong to a descriptor.
#[derive(Debug, Default)]
struct Status {
    over: bool,
    /// The entry of the verdict that says most.
    says: Option<usize>,
    unlimited: bool,
}

/// What states of rule files belong to; no rule of a policy is called so.
const BY_DESCRIPTOR: &str = "/envoy/";

impl<S: Store> Limiter<S> {
    /// Decides the descriptors of a call: all of them pass, or none is counted (but where rules say that refusals count).
    /// Up to 16 limits are decided at one instant. More are decided in several plans, and what a call took before one of its
    /// plans was refused is given back.
    ///
    /// ```
    /// use tidegate::{Descriptor, DescriptorCall, Limiter, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::parse("
    /// version: 1
    /// rules:
    ///   - { name: per-user, key: [user], limits: [2/h] }
    ///   - { name: per-tenant, key: [tenant], limits: [100/h] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let of = |name, value: &'static str| {
    ///     Descriptor { entries: [(name, value.into())].into_iter().collect(), ..Descriptor::default() }
    /// };
    /// let descriptors = [of("user", "alice"), of("tenant", "acme")];
    /// let call = DescriptorCall {
    ///     domain: "web", descriptors: &descriptors, hits: 0, timeout: None, max_wait: Span::ZERO,
    /// };
    /// for passes in [true, true, false] {
    ///     assert_eq!(limiter.check_descriptors(&call).await?.verdict.allowed(), passes);
    /// }
    /// let answer = limiter.check_descriptors(&call).await?;
    /// let statuses: Vec<_> = answer.statuses().collect();
    /// assert!(statuses[0].over && !statuses[1].over);
    /// assert_eq!(statuses[1].remaining, 98); // a refused call burns nothing
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn check_descriptors(
        &self,
        call: &DescriptorCall<'_, '_>,
    ) -> Result<DescriptorVerdict, DescriptorError> {
        let live = self.live();
        let (entries, by, at, statuses, quota, metadata) = {
            let limits = own_limits(call);
            let attributes = attributes(&live, call)?;
            let attributes: Vec<Cow<'_, Attributes<'_>>> =
                attributes.iter().map(|one| self.concealed(&live, one)).collect();
            let meets = meets(&live, call, &limits, &attributes);
            let together = self.together(&live, call, &meets)?;
            let nothing = Attributes::new();
            let check = Check::new(&nothing).waiting(call.max_wait);
            let check = Check { timeout: call.timeout, ..check };
            let mut decided = self.decided_together(&together.asked, &check).await?;
            self.give_back(call, &together, &mut decided).await;
            let entries = entries(&together.asked, decided.decisions);
            let statuses = statuses(&meets, &together, &entries);
            let quota = all_of_quota(&meets, &statuses);
            let metadata = metadata(&meets, &statuses);
            (entries, decided.by, decided.at, statuses, quota, metadata)
        };
        let by = if entries.is_empty() { DecidedBy::Policy } else { by };
        let mut verdict = Verdict::fold(live, entries, by, at);
        if quota {
            let retry = retry_of_marked(&verdict);
            verdict.outcome = worse(verdict.outcome, Outcome::Deny(retry));
        }
        self.count(&verdict);
        Ok(DescriptorVerdict { verdict, metadata, statuses })
    }

    /// All takes of a call. Descriptors that draw from the same state are one take of what they cost together.
    fn together<'l>(
        &'l self,
        live: &'l Live,
        call: &DescriptorCall<'_, '_>,
        meets: &[Meets<'l>],
    ) -> Result<Together<'l>, DescriptorError> {
        let mut together = Together::default();
        for (number, (descriptor, meets)) in call.descriptors.iter().zip(meets).enumerate() {
            let cost = descriptor.cost(call.hits);
            match meets {
                Meets::Nothing | Meets::Unlimited => {}
                Meets::Rules(attributes) => {
                    let check = Check::new(attributes).cost(cost);
                    for asked in self.asked(live, attributes, &check) {
                        together.push(number, asked);
                    }
                }
                Meets::Own(limit) => {
                    let asked = self.ask_own(call, descriptor, limit);
                    together.push(number, asked);
                }
                Meets::Rule(met) => {
                    if let Some(asked) = self.ask_rule_of_file(live, call, descriptor, met) {
                        together.push(number, asked);
                    }
                }
            }
            if together.asked.len() > DescriptorCall::MOST_LIMITS {
                return Err(DescriptorError::TooManyLimits);
            }
        }
        Ok(together)
    }

    fn ask_rule_of_file<'l>(
        &self,
        live: &'l Live,
        call: &DescriptorCall<'_, '_>,
        descriptor: &Descriptor<'_>,
        met: &Met<'l>,
    ) -> Option<Asked<'l>> {
        let DescriptorRule { number, limit, shadow, quota, .. } = met.rule;
        let (limit, rule) = (limit.as_ref()?, live.policy.rules().get(*number)?);
        let mut key: SmallVec<[(&str, &str); 4]> =
            descriptor.entries.iter().map(|(name, value)| (*name, &**value)).collect();
        for (at, pattern) in &met.shared {
            if let Some((_, value)) = key.get_mut(*at) {
                *value = pattern;
            }
        }
        let optional = *shadow || *quota;
        let take = Take {
            need: if optional { Need::Optional } else { Need::Required },
            refused: rule.count_rejected(),
            ..self.take_of(call, &key, limit, descriptor.cost(call.hits))
        };
        Some(Asked { number: *number, rule, limit, own: None, take, shadow: *shadow })
    }

    fn ask_own<'l>(
        &'l self,
        call: &DescriptorCall<'_, '_>,
        descriptor: &Descriptor<'_>,
        limit: &'l RuleLimit,
    ) -> Asked<'l> {
        let take = self.take_of(call, &descriptor.entries, limit, descriptor.cost(call.hits));
        let take = Take { refused: RejectedCost::Charged, ..take };
        Asked {
            number: OF_CALLER,
            rule: &self.inner.callers,
            limit,
            own: None,
            take,
            shadow: false,
        }
    }

    /// A take of what belongs to a domain, entries and a unit, whichever rule it was that spoke of them.
    fn take_of<'l>(
        &self,
        call: &DescriptorCall<'_, '_>,
        key: &[(&str, impl AsRef<str>)],
        limit: &'l RuleLimit,
        cost: Cost,
    ) -> Take<'l> {
        let name = limit.tag(|| {
            let domain = format!("{BY_DESCRIPTOR}{}", call.domain);
            LimitName::new(&domain, limit.id(), limit.limit()).0
        });
        let state = self.inner.secret.subject(key).state(LimitName(name));
        Take::new(state, limit.limit(), cost)
    }
}

// === what is answered ===

/// What each descriptor is told: it is over where one of its limits refuses, and no mark or shadow does.
fn statuses(
    meets: &[Meets<'_>],
    together: &Together<'_>,
    entries: &[crate::verdict::Entry],
) -> SmallVec<[Status; 2]> {
    let status = |(number, meets): (usize, &Meets<'_>)| {
        let own = together.whose.iter().filter(|(part, _)| *part == number);
        let own = own.filter_map(|(_, take)| Some((*take, entries.get(*take)?)));
        let quota = matches!(meets, Meets::Rule(met) if met.rule.quota && !met.rule.shadow);
        let refuses = |entry: &crate::verdict::Entry| {
            !entry.decision.passes() && (entry.need == Need::Required || quota)
        };
        let wait = |entry: &crate::verdict::Entry| match entry.decision.outcome {
            Outcome::Deny(Retry::Never) => Span::from_nanos(u64::MAX),
            Outcome::Deny(Retry::After(span)) => span,
            Outcome::Allow | Outcome::Delay(_) => Span::ZERO,
        };
        let mut status =
            Status { unlimited: matches!(meets, Meets::Unlimited), ..Status::default() };
        let mut most = None;
        for (take, entry) in own {
            status.over |= refuses(entry);
            // One that refuses says more than one that does not; then the longest wait, then the least left.
            let says = (refuses(entry), wait(entry), std::cmp::Reverse(entry.decision.remaining));
            if most.is_none_or(|most| says > most) {
                (most, status.says) = (Some(says), Some(take));
            }
        }
        status
    };
    meets.iter().enumerate().map(status).collect()
}

/// Whether there are descriptors of `quota_mode`, and all of them are over.
fn all_of_quota(meets: &[Meets<'_>], statuses: &[Status]) -> bool {
    let quota = |meets: &Meets<'_>| matches!(meets, Meets::Rule(met) if met.rule.quota);
    let mut of_quota = meets.iter().zip(statuses).filter(|(meets, _)| quota(meets)).peekable();
    of_quota.peek().is_some() && of_quota.all(|(_, status)| status.over)
}

/// What the rules that let a call pass tell; of two that say the same, the first.
fn metadata(meets: &[Meets<'_>], statuses: &[Status]) -> Map<String, Value> {
    let mut merged = Map::new();
    for (meets, status) in meets.iter().zip(statuses) {
        if let Meets::Rule(Met { rule: DescriptorRule { metadata: Some(metadata), .. }, .. }) =
            meets
            && !status.over
        {
            merge(&mut merged, metadata);
        }
    }
    merged
}

fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => _ = into.insert(name.clone(), value.clone()),
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
}

/// When the first of those that refuse together lets go.
fn retry_of_marked(verdict: &Verdict) -> Retry {
    let waits = verdict.limits().filter(|limit| limit.need == Need::Optional && !limit.shadow);
    let waits = waits.filter_map(|limit| match limit.decision.outcome {
        Outcome::Deny(Retry::After(span)) => Some(span),
        Outcome::Deny(Retry::Never) | Outcome::Allow | Outcome::Delay(_) => None,
    });
    waits.min().map_or(Retry::Never, Retry::After)
}

// === impl DescriptorCall ===

impl DescriptorCall<'_, '_> {
    /// At most so many limits decide a call: 64 plans. A call with more is a mistake in the policy.
    ///
    /// ```
    /// assert_eq!(tidegate::DescriptorCall::MOST_LIMITS, 1024);
    /// ```
    pub const MOST_LIMITS: usize = 1_024;
}

// === impl Descriptor ===

impl Descriptor<'_> {
    /// What it asks for; nothing, where it gives back.
    fn cost(&self, of_call: u32) -> Cost {
        Cost::new(if self.gives_back { 0 } else { self.amount(of_call) })
    }

    fn amount(&self, of_call: u32) -> u64 {
        self.hits.unwrap_or_else(|| u64::from(of_call).max(1))
    }
}

// === impl DescriptorVerdict ===

impl DescriptorVerdict {
    /// Whether rule files of Envoy's reference service decided, and not a policy.
    #[must_use]
    pub fn is_by_files(&self) -> bool {
        self.verdict.live.policy.descriptors().is_some()
    }

    /// A status for each descriptor, in order.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = DescriptorStatus<'_>> {
        self.statuses.iter().map(|status| self.status(status))
    }

    fn status(&self, status: &Status) -> DescriptorStatus<'_> {
        let live = &self.verdict.live;
        let entry = status.says.and_then(|at| self.verdict.entries.get(at));
        let Some((entry, limit)) = entry.and_then(|entry| Some((entry, entry.limit(live)?))) else {
            let remaining = if status.unlimited { u64::MAX } else { 0 };
            return DescriptorStatus { over: false, limit: None, remaining, reset: None };
        };
        let (policy, limit) = (&live.policy, limit.limit());
        let name = match policy.descriptors() {
            Some(rules) => rules.name(entry.rule),
            None => policy.rules().get(entry.rule).map(tidegate_policy::Rule::name),
        };
        let period = match limit.period() {
            Period::Every(span) => Some(*span),
            Period::Calendar(_) => None,
        };
        let unit = period.and_then(Unit::of);
        let limit = DescribedLimit { amount: limit.amount(), unit, name: name.unwrap_or_default() };
        // The reference tells the rest of the window for an unused key, too.
        let by_reference = policy.descriptors().is_some() || entry.rule == OF_CALLER;
        let rest = || period.filter(|_| by_reference).map(|period| self.rest_of_window(period));
        let reset = match entry.decision.outcome {
            Outcome::Deny(Retry::After(span)) => Some(span),
            // No waiting helps. Envoy makes a second of nothing, so it is told the longest time that there is.
            Outcome::Deny(Retry::Never) => period.max(entry.decision.reset),
            Outcome::Allow | Outcome::Delay(_) => match entry.decision.reset {
                None | Some(Span::ZERO) => rest().or(entry.decision.reset),
                Some(reset) => Some(reset),
            },
        };
        let remaining = entry.decision.remaining;
        DescriptorStatus { over: status.over, limit: Some(limit), remaining, reset }
    }

    /// How long the window goes on in which the call was decided, where all keys share their windows.
    fn rest_of_window(&self, period: Span) -> Span {
        let into = self.verdict.decided_at.as_nanos().checked_rem(period.as_nanos());
        Span::from_nanos(period.as_nanos().saturating_sub(into.unwrap_or(0)))
    }
}
