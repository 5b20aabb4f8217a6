//! Which takes a request needs: one for each limit of each rule that applies to it.

use super::Limiter;
use crate::check::Check;
use crate::live::Live;
use crate::verdict::QueuePlace;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use tidegate_core::{Algorithm, Bound, Cost, Freshness, InlineVec, Need, RejectedCost, Span, Take};
use tidegate_policy::{
    Attributes, Consistency, Mode, OnLimit, Origin, ResolvedRule, Rule, RuleLimit,
};
use tidegate_store::{KeyName, LimitName, Store, Subject};

/// One take of a plan, with the rule and limit that it comes from.
pub(super) struct PlannedTake<'l> {
    /// The index of the rule in the policy.
    pub(super) number: usize,
    pub(super) rule: &'l Rule,
    pub(super) limit: &'l RuleLimit,
    /// The index among the rule's own limits; `None` for a limit of a tier, of an override or of the caller.
    pub(super) own: Option<usize>,
    pub(super) take: Take<'l>,
    pub(super) shadow: bool,
}

/// The takes of all rules that apply to a request, and where it stands among others.
pub(super) struct PlannedRequest<'l> {
    takes: SmallVec<[PlannedTake<'l>; 2]>,
    pub(super) place: QueuePlace,
}

impl<'l> std::ops::Deref for PlannedRequest<'l> {
    type Target = [PlannedTake<'l>];

    fn deref(&self) -> &Self::Target {
        &self.takes
    }
}

impl<'l> IntoIterator for PlannedRequest<'l> {
    type Item = PlannedTake<'l>;
    type IntoIter = smallvec::IntoIter<[PlannedTake<'l>; 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.takes.into_iter()
    }
}

/// Whose key a request takes turns by.
#[derive(Clone, Copy)]
enum TurnsBy {
    None,
    /// Of the first rule that has a key.
    OfFirstRule(Subject),
    /// Of the rule that sets the priority class.
    OfPriorityRule(Subject),
}

impl TurnsBy {
    /// The key after a further rule applied.
    fn or(self, resolved: &ResolvedRule<'_>, subject: Subject) -> Self {
        let has_key = !resolved.values.pairs().is_empty();
        let sets_class = resolved.rule.priority().is_some() && !resolved.shadow;
        match self {
            Self::None | Self::OfFirstRule(_) if has_key && sets_class => {
                Self::OfPriorityRule(subject)
            }
            Self::None if has_key => Self::OfFirstRule(subject),
            Self::None | Self::OfFirstRule(_) | Self::OfPriorityRule(_) => self,
        }
    }

    /// Requests without any key share the key 0, so they take turns as one.
    fn get(self) -> u64 {
        match self {
            Self::None => 0,
            Self::OfFirstRule(subject) | Self::OfPriorityRule(subject) => subject.short(),
        }
    }
}

impl<S: Store> Limiter<S> {
    /// The takes of all rules that apply to a request.
    pub(super) fn planned<'l>(
        &self,
        live: &'l Live,
        attributes: &'l Attributes<'_>,
        check: &Check<'_>,
    ) -> PlannedRequest<'l> {
        let mut takes = SmallVec::new();
        let mut turn_key = TurnsBy::None;
        let (changes, cost) = (&live.changes, check.cost.get());
        let standing = live.policy.resolve_each(changes, attributes, cost, |resolved| {
            let subject = self.plan_rule(&resolved, check, &mut takes);
            turn_key = turn_key.or(&resolved, subject);
        });
        if standing.unknown_tier {
            self.inner.unknown_tiers.fetch_add(1, Ordering::Relaxed);
        }
        PlannedRequest { takes, place: QueuePlace { class: standing.class, key: turn_key.get() } }
    }

    /// Adds the takes of one rule, and returns whose they are.
    pub(super) fn plan_rule<'l>(
        &self,
        resolved: &ResolvedRule<'l>,
        check: &Check<'_>,
        planned: &mut SmallVec<[PlannedTake<'l>; 2]>,
    ) -> Subject {
        let rule = resolved.rule;
        let key = resolved.values.pairs();
        let by = resolved.values.tag(|| KeyName::new(key.iter().map(|(name, _)| *name)).0);
        let subject = self.inner.secret.subject_of(KeyName(by), key);
        let bound = self.bound(rule.mode());
        let optional = resolved.shadow
            || matches!(rule.on_limit(), OnLimit::Deprioritize(_) | OnLimit::Flag(_));
        for (at, limit) in resolved.allowance.limits().iter().enumerate() {
            let name = limit.tag(|| LimitName::new(rule.name(), limit.id(), limit.limit()).0);
            let state = subject.state(LimitName(name));
            // A request holds one permit, whatever its cost. A refused request does not run, so it holds none.
            let (cost, refused) = match limit.limit().lease() {
                Some(_) => (check.cost.min(Cost::ONE), RejectedCost::Free),
                None => (check.cost, rule.count_rejected()),
            };
            let take = Take {
                need: if optional { Need::Optional } else { Need::Required },
                bound,
                refused,
                when_full: rule.when_full(),
                freshness: freshness(rule),
                ..Take::new(state, limit.limit(), cost)
            };
            planned.push(PlannedTake {
                number: resolved.number,
                rule,
                limit,
                own: (resolved.origin == Origin::Rule).then_some(at),
                take,
                shadow: resolved.shadow,
            });
        }
        subject
    }

    /// How much of the headroom of its limits a rule may use now.
    fn bound(&self, mode: &Mode) -> Bound {
        match mode {
            Mode::Hard => Bound::Plain,
            Mode::Soft(_) => Bound::Headroom,
            Mode::Elastic { condition, .. } => {
                let now = self.inner.clock.now().steady;
                match self.inner.signals.load().elasticity(now, condition).percent() {
                    0 => Bound::Plain,
                    100.. => Bound::Headroom,
                    part => Bound::Part(part),
                }
            }
        }
    }
}

const fn freshness(rule: &Rule) -> Freshness<'_> {
    match rule.consistency() {
        Consistency::Exact => Freshness::Exact,
        Consistency::Lease(terms) => Freshness::Lease(terms),
    }
}

pub(super) fn takes<'l>(planned: &[PlannedTake<'l>]) -> InlineVec<Take<'l>> {
    planned.iter().map(|planned| planned.take).collect()
}

/// The longest wait that the rules and the caller allow: the shortest of those of all limits. Optional limits do not count.
pub(super) fn longest_wait(check: &Check<'_>, planned: &[PlannedTake<'_>]) -> Span {
    let required = planned.iter().filter(|planned| planned.take.need == Need::Required);
    let waits = required.filter_map(|planned| match planned.rule.on_limit() {
        OnLimit::Delay { max_wait, .. } if check.wait_by_rule => Some(*max_wait),
        OnLimit::Delay { max_wait, .. } => Some(check.max_wait.min(*max_wait)),
        OnLimit::Reject | OnLimit::Deprioritize(_) | OnLimit::Flag(_) => {
            let waits = matches!(planned.take.limit.algorithm(), Algorithm::LeakyBucket { .. });
            (waits || !check.wait_by_rule).then_some(check.max_wait)
        }
    });
    waits.min().unwrap_or(check.max_wait)
}
