//! Envoy's rate limit calls: several descriptors in one call, decided together.
//!
//! ```text
//!   call ─┬─ (user, alice)             ──► 2/s, 500/h ─┐
//!         ├─ (tenant, acme)            ──► 1000/min    ├─► one plan: all or none ──► a status for each, in order
//!         └─ (path, /x) hits_addend 0  ──► 50/s        ┘
//! ```
//!
//! Under a policy, each descriptor is like a request of its own: its entries are attributes, and every rule that applies
//! counts it. Under rule files of Envoy's reference service, a descriptor matches at most one limit, found by its tree of
//! entries. There a name may occur twice, descriptors can replace each other, and those in `quota_mode` deny only if all of
//! them do. In both cases a descriptor may carry a limit of its own, and may give back instead of taking.

mod call;
mod call_takes;
mod matching;

use super::Limiter;
use super::planning::PlannedTake;
use crate::check::Check;
use crate::error::CheckError;
use crate::limit_report::{LimitReport, RuleDecision};
use crate::live::Live;
use crate::verdict::{CALLER_RULE, DecidedBy, Entry, QueuePlace, Ruling, Verdict, worse};
pub use call::{Descriptor, DescriptorCall};
use call_takes::CallTakes;
use matching::{DescriptorMatch, attributes, carried_limits, match_descriptors};
use serde_json::{Map, Value};
use smallvec::SmallVec;
use std::borrow::Cow;
use tidegate_core::{Cost, Need, Outcome, Period, RejectedCost, Retry, Span, Take};
use tidegate_policy::{AttributeError, Attributes, DescriptorRule, Met, RuleLimit, Unit};
use tidegate_store::{LimitName, Store};

/// The answer to a call; see [`Limiter::check_descriptors`].
#[derive(Debug)]
pub struct DescriptorVerdict {
    /// The combined decision of all limits.
    pub verdict: Verdict,
    /// Metadata for Envoy from the rules that allow the call; empty if they have none.
    pub metadata: Map<String, Value>,
    statuses: SmallVec<[StatusSource; 2]>,
    /// Pairs of a descriptor's index and the index of one of the verdict's entries.
    owners: SmallVec<[(usize, usize); 4]>,
}

/// The answer to one descriptor of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorStatus<'v> {
    /// Whether one of its limits denies it.
    pub over: bool,
    /// The limit that matters most: one that denies, then the one with the longest wait, then the one with the least left.
    /// `None` if no limit applies.
    pub limit: Option<DescribedLimit<'v>>,
    /// How much of that limit remains; `u64::MAX` if the rule is `unlimited`.
    pub remaining: u64,
    /// The time until the limit has recovered completely. For a denied descriptor, the time until it could pass; if it never
    /// could, the whole period.
    pub reset: Option<Span>,
}

/// The limit in a [`DescriptorStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescribedLimit<'v> {
    /// The amount per unit.
    pub amount: u64,
    /// The unit; `None` for periods that Envoy's protocol cannot express, such as 30 s.
    pub unit: Option<Unit>,
    /// The name of the rule in the policy, or `name` in the rule file.
    pub name: &'v str,
}

/// A call could not be decided.
///
/// A client may be able to cause each of these errors through its proxy. So a front end should deny the call: if it returned
/// an error, a proxy that fails open would let the client pass.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// Two entries have the same name and different values, which a policy cannot express. Holds the index of the descriptor
    /// and the name.
    #[error(
        "descriptor {0}: the entry `{1}` has two different values; give its action another `descriptor_key`"
    )]
    Twice(usize, String),
    /// An entry is named `domain`, which is the name of the call's domain. Holds the index of the descriptor.
    #[error(
        "descriptor {0}: an entry is called `domain`, as is the domain of the call; give its action another `descriptor_key`"
    )]
    Domain(usize),
    /// An entry is not a valid attribute. Holds the index of the descriptor and the reason.
    #[error("descriptor {0}: {1}")]
    Attribute(usize, AttributeError),
    /// More limits apply than [`DescriptorCall::MOST_LIMITS`]. Let fewer rules apply to the same call.
    #[error(
        "more than {} limits apply to this call; let fewer rules apply to it",
        DescriptorCall::MOST_LIMITS
    )]
    TooManyLimits,
    /// The takes of the call could not be decided.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// The parts from which the status of a descriptor is built.
#[derive(Debug, Default)]
struct StatusSource {
    over: bool,
    /// The index of the verdict's entry that matters most.
    entry: Option<usize>,
    unlimited: bool,
}

/// What was decided about a call, before its verdict holds the policy.
struct RuledCall {
    ruling: Ruling,
    is_quota_exhausted: bool,
    statuses: SmallVec<[StatusSource; 2]>,
    metadata: Map<String, Value>,
    owners: SmallVec<[(usize, usize); 4]>,
}

/// The namespace of states of rule files. It cannot collide with a rule, because names of rules have no slash.
const DESCRIPTOR_NAMESPACE: &str = "/envoy/";

impl<S: Store> Limiter<S> {
    /// Decides the descriptors of a call: all of them pass, or none is counted (except under rules with `count_rejected`).
    ///
    /// Up to 16 limits are decided atomically. More limits are decided in several plans; if one of the plans denies, what the
    /// others took is given back.
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
    /// assert_eq!(statuses[1].remaining, 98); // a denied call takes nothing
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn check_descriptors(
        &self,
        call: &DescriptorCall<'_, '_>,
    ) -> Result<DescriptorVerdict, DescriptorError> {
        let live = self.live();
        let ruled = {
            let limits = carried_limits(call);
            let attributes = attributes(&live, call)?;
            let attributes: Vec<Cow<'_, Attributes<'_>>> =
                attributes.iter().map(|one| self.concealed(&live, one)).collect();
            let matches = match_descriptors(&live, call, &limits, &attributes);
            let takes = self.call_takes(&live, call, &matches)?;
            let nothing = Attributes::new();
            let check = Check::new(&nothing).waiting(call.max_wait);
            let check = Check { timeout: call.timeout, ..check };
            let mut decided = self.decide_call(&takes.planned, &check).await?;
            self.give_back(call, &takes, &mut decided).await;
            if takes.planned.is_empty() {
                decided.by = DecidedBy::Policy;
            }
            let place = takes.place.unwrap_or_else(|| QueuePlace::usual(&live));
            let ruling = decided.ruling(&takes.planned, place);
            let statuses = statuses(&matches, &takes, &ruling.entries);
            RuledCall {
                ruling,
                is_quota_exhausted: is_quota_exhausted(&matches, &statuses),
                metadata: metadata(&matches, &statuses),
                statuses,
                owners: takes.owners,
            }
        };
        let RuledCall { ruling, is_quota_exhausted, statuses, metadata, owners } = ruled;
        let mut verdict = Verdict::fold(live, ruling);
        if is_quota_exhausted {
            let retry = retry_of_quota(&verdict);
            verdict.outcome = worse(verdict.outcome, Outcome::Deny(retry));
        }
        self.count(&verdict);
        Ok(DescriptorVerdict { verdict, metadata, statuses, owners })
    }

    /// All takes of a call. Descriptors with the same state become one take of their total cost.
    fn call_takes<'l>(
        &'l self,
        live: &'l Live,
        call: &DescriptorCall<'_, '_>,
        matches: &[DescriptorMatch<'l>],
    ) -> Result<CallTakes<'l>, DescriptorError> {
        let mut takes = CallTakes::default();
        for (number, (descriptor, matched)) in call.descriptors.iter().zip(matches).enumerate() {
            match matched {
                DescriptorMatch::Nothing | DescriptorMatch::Unlimited => {}
                DescriptorMatch::Rules(attributes) => {
                    let check = Check::new(attributes).cost(descriptor.cost(call.hits));
                    let planned = self.planned(live, attributes, &check);
                    takes.place.get_or_insert(planned.place);
                    planned.into_iter().for_each(|planned| takes.push(number, planned));
                }
                DescriptorMatch::Carried(limit) => {
                    takes.push(number, self.plan_carried(call, descriptor, limit));
                }
                DescriptorMatch::FileRule(met) => {
                    let planned = self.plan_file_rule(live, call, descriptor, met);
                    planned.into_iter().for_each(|planned| takes.push(number, planned));
                }
            }
            if takes.planned.len() > DescriptorCall::MOST_LIMITS {
                return Err(DescriptorError::TooManyLimits);
            }
        }
        Ok(takes)
    }

    /// The take of a rule in a rule file. An entry that matched a shared wildcard counts under the pattern instead of its
    /// value.
    fn plan_file_rule<'l>(
        &self,
        live: &'l Live,
        call: &DescriptorCall<'_, '_>,
        descriptor: &Descriptor<'_>,
        met: &Met<'l>,
    ) -> Option<PlannedTake<'l>> {
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
        Some(PlannedTake { number: *number, rule, limit, own: None, take, shadow: *shadow })
    }

    /// The take of a limit that the descriptor carries.
    fn plan_carried<'l>(
        &'l self,
        call: &DescriptorCall<'_, '_>,
        descriptor: &Descriptor<'_>,
        limit: &'l RuleLimit,
    ) -> PlannedTake<'l> {
        let take = self.take_of(call, &descriptor.entries, limit, descriptor.cost(call.hits));
        let take = Take { refused: RejectedCost::Charged, ..take };
        let (number, rule) = (CALLER_RULE, &self.inner.callers);
        PlannedTake { number, rule, limit, own: None, take, shadow: false }
    }

    /// A take whose state is named by domain, entries and unit, whichever rule matched.
    fn take_of<'l>(
        &self,
        call: &DescriptorCall<'_, '_>,
        key: &[(&str, impl AsRef<str>)],
        limit: &'l RuleLimit,
        cost: Cost,
    ) -> Take<'l> {
        let name = limit.tag(|| {
            let domain = format!("{DESCRIPTOR_NAMESPACE}{}", call.domain);
            LimitName::new(&domain, limit.id(), limit.limit()).0
        });
        let state = self.inner.secret.subject(key).state(LimitName(name));
        Take::new(state, limit.limit(), cost)
    }
}

// === answers ===

/// The status of each descriptor. A descriptor is over its limit if a limit that can deny does deny; optional limits and
/// shadow mode do not count, `quota_mode` does.
fn statuses(
    matches: &[DescriptorMatch<'_>],
    takes: &CallTakes<'_>,
    entries: &[Entry],
) -> SmallVec<[StatusSource; 2]> {
    let status = |(number, matched): (usize, &DescriptorMatch<'_>)| {
        let own = takes.owners.iter().filter(|(descriptor, _)| *descriptor == number);
        let own = own.filter_map(|(_, take)| Some((*take, entries.get(*take)?)));
        let quota =
            matches!(matched, DescriptorMatch::FileRule(met) if met.rule.quota && !met.rule.shadow);
        let unlimited = matches!(matched, DescriptorMatch::Unlimited);
        status_of(own, quota, unlimited)
    };
    matches.iter().enumerate().map(status).collect()
}

/// The status from a descriptor's entries, each with its index.
fn status_of<'e>(
    own: impl Iterator<Item = (usize, &'e Entry)>,
    quota: bool,
    unlimited: bool,
) -> StatusSource {
    let mut status = StatusSource { unlimited, ..StatusSource::default() };
    let mut highest = None;
    for (at, entry) in own {
        let denies = !entry.decision.passes() && (entry.need == Need::Required || quota);
        status.over |= denies;
        // An entry that denies matters more than one that does not; then the longest wait, then the least left.
        let rank = (denies, wait(entry), std::cmp::Reverse(entry.decision.remaining));
        if highest.is_none_or(|highest| rank > highest) {
            (highest, status.entry) = (Some(rank), Some(at));
        }
    }
    status
}

/// How long until an entry's limit would let the descriptor pass.
const fn wait(entry: &Entry) -> Span {
    match entry.decision.outcome {
        Outcome::Deny(Retry::Never) => Span::from_nanos(u64::MAX),
        Outcome::Deny(Retry::After(span)) => span,
        Outcome::Allow | Outcome::Delay(_) => Span::ZERO,
    }
}

/// Whether there are descriptors in `quota_mode`, and all of them are over their limit.
fn is_quota_exhausted(matches: &[DescriptorMatch<'_>], statuses: &[StatusSource]) -> bool {
    let quota = |matched: &DescriptorMatch<'_>| matches!(matched, DescriptorMatch::FileRule(met) if met.rule.quota);
    let mut in_quota =
        matches.iter().zip(statuses).filter(|(matched, _)| quota(matched)).peekable();
    in_quota.peek().is_some() && in_quota.all(|(_, status)| status.over)
}

/// The metadata of all rules that allow the call, merged. If two rules set the same field, the first wins.
fn metadata(matches: &[DescriptorMatch<'_>], statuses: &[StatusSource]) -> Map<String, Value> {
    let mut merged = Map::new();
    for (matched, status) in matches.iter().zip(statuses) {
        if let DescriptorMatch::FileRule(met) = matched
            && let Some(metadata) = &met.rule.metadata
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

/// The retry time of an exhausted quota: when the first of its limits recovers.
fn retry_of_quota(verdict: &Verdict) -> Retry {
    let waits = verdict.limits().filter(|limit| limit.need == Need::Optional && !limit.shadow);
    let waits = waits.filter_map(|limit| match limit.decision.outcome {
        Outcome::Deny(Retry::After(span)) => Some(span),
        Outcome::Deny(Retry::Never) | Outcome::Allow | Outcome::Delay(_) => None,
    });
    waits.min().map_or(Retry::Never, Retry::After)
}

// === impl DescriptorCall ===

impl DescriptorCall<'_, '_> {
    /// The largest number of limits that may apply to one call: 64 plans of 16 limits. A call with more is a mistake in the
    /// policy, and returns [`DescriptorError::TooManyLimits`].
    pub const MOST_LIMITS: usize = 1_024;
}

// === impl Descriptor ===

impl Descriptor<'_> {
    /// The cost to take; 0 if the descriptor gives back.
    fn cost(&self, of_call: u32) -> Cost {
        Cost::new(if self.gives_back { 0 } else { self.amount(of_call) })
    }

    /// The cost to take or to give back.
    fn amount(&self, of_call: u32) -> u64 {
        self.hits.unwrap_or_else(|| u64::from(of_call).max(1))
    }
}

// === impl DescriptorVerdict ===

impl DescriptorVerdict {
    /// Whether rule files of Envoy's reference service decided the call, and not a policy.
    #[must_use]
    pub fn is_by_files(&self) -> bool {
        self.verdict.live.policy.descriptors().is_some()
    }

    /// The status of each descriptor, in the order of the call.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = DescriptorStatus<'_>> {
        self.statuses.iter().map(|status| self.status(status))
    }

    /// The decisions of all limits, each with the index of the first descriptor that it applies to.
    ///
    /// ```
    /// use tidegate::{Descriptor, DescriptorCall, Limiter, Policy, Span};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [user], limits: [2/h] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let of = |name| Descriptor { entries: [(name, "alice".into())].into_iter().collect(), ..Descriptor::default() };
    /// let descriptors = [of("tenant"), of("user")];
    /// let call = DescriptorCall {
    ///     domain: "web", descriptors: &descriptors, hits: 0, timeout: None, max_wait: Span::ZERO,
    /// };
    /// let answer = limiter.check_descriptors(&call).await?;
    /// let limits: Vec<_> = answer.limits().map(|(descriptor, limit)| (descriptor, limit.rule)).collect();
    /// assert_eq!(limits, [(1, "a")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> impl Iterator<Item = (usize, LimitReport<'_>)> {
        self.verdict.limits().enumerate().map(|(at, limit)| (self.owner(at), limit))
    }

    /// What each rule decided about each descriptor, with the index of the first descriptor that it applies to.
    pub fn by_rule(&self) -> impl Iterator<Item = (usize, RuleDecision<'_>)> {
        let mut rest = self.verdict.entries.iter().enumerate().peekable();
        std::iter::from_fn(move || {
            let (at, first) = rest.next()?;
            let descriptor = self.owner(at);
            let mut count = 1_usize;
            let is_same = |(at, entry): &(usize, &Entry)| {
                entry.rule == first.rule && self.owner(*at) == descriptor
            };
            while rest.next_if(is_same).is_some() {
                count = count.saturating_add(1);
            }
            let limits = self.verdict.entries.iter().skip(at).take(count);
            Some((descriptor, self.verdict.rule_decision(limits)?))
        })
    }

    /// The first descriptor that an entry of the verdict belongs to.
    fn owner(&self, entry: usize) -> usize {
        let owner = self.owners.iter().find(|(_, owned)| *owned == entry);
        owner.map_or(0, |(descriptor, _)| *descriptor)
    }

    fn status(&self, source: &StatusSource) -> DescriptorStatus<'_> {
        let live = &self.verdict.live;
        let entry = source.entry.and_then(|at| self.verdict.entries.get(at));
        let Some((entry, limit)) = entry.and_then(|entry| Some((entry, entry.limit(live)?))) else {
            let remaining = if source.unlimited { u64::MAX } else { 0 };
            return DescriptorStatus { over: false, limit: None, remaining, reset: None };
        };
        let period = match limit.limit().period() {
            Period::Every(span) => Some(*span),
            Period::Calendar(_) => None,
        };
        let limit = DescribedLimit {
            amount: limit.limit().amount(),
            unit: period.and_then(Unit::of),
            name: self.name_of(entry.rule),
        };
        DescriptorStatus {
            over: source.over,
            limit: Some(limit),
            remaining: entry.decision.remaining,
            reset: self.reset(entry, period),
        }
    }

    fn name_of(&self, rule: usize) -> &str {
        let policy = &self.verdict.live.policy;
        let name = match policy.descriptors() {
            Some(rules) => rules.name(rule),
            None => policy.rules().get(rule).map(tidegate_policy::Rule::name),
        };
        name.unwrap_or_default()
    }

    fn reset(&self, entry: &Entry, period: Option<Span>) -> Option<Span> {
        // The reference service reports the rest of the window also for a key that was never used.
        let as_reference = self.is_by_files() || entry.rule == CALLER_RULE;
        let rest = || period.filter(|_| as_reference).map(|period| self.rest_of_window(period));
        match entry.decision.outcome {
            Outcome::Deny(Retry::After(span)) => Some(span),
            // Waiting does not help. Envoy turns a missing time into one second, so it gets the longest time known.
            Outcome::Deny(Retry::Never) => period.max(entry.decision.reset),
            Outcome::Allow | Outcome::Delay(_) => match entry.decision.reset {
                None | Some(Span::ZERO) => rest().or(entry.decision.reset),
                Some(reset) => Some(reset),
            },
        }
    }

    /// The time from the decision to the end of its window. Windows are aligned to the epoch, so all keys share them.
    fn rest_of_window(&self, period: Span) -> Span {
        let into = self.verdict.decided_at.as_nanos().checked_rem(period.as_nanos());
        Span::from_nanos(period.as_nanos().saturating_sub(into.unwrap_or(0)))
    }
}
