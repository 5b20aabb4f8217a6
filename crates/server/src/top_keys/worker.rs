//! From verdicts to counts: what one worker counts, on its own thread.

use super::table::{Counted, KeyLabel, TopTable};
use super::{NodeTop, RuleTallies, TopBy, WorkerTallies, lock};
use crate::recent_denials::{DenialRing, NewDenial};
use crate::shown_key::RequestKey;
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use tidegate::{
    Attributes, Cost, Descriptor, DescriptorVerdict, LimitReport, Need, Outcome, Retry,
    RuleDecision, Span, Verdict,
};

/// Counts the top keys of one worker, if they are on. Every clone counts in the same tables.
#[derive(Clone, Default)]
pub(crate) struct WorkerTop(Option<Rc<TopCounter>>);

struct TopCounter {
    node: Arc<NodeTop>,
    tallies: Arc<WorkerTallies>,
    ring: Option<DenialRing>,
    /// The rules that decide requests, and those that decide calls with descriptors, which may be of another policy.
    requests: RefCell<PolicyLines>,
    calls: RefCell<PolicyLines>,
    /// Limits that clients name.
    named: RefCell<RuleLine>,
}

/// A line for each rule of one version of the policy.
#[derive(Default)]
struct PolicyLines {
    version: Option<u64>,
    rules: Vec<RuleLine>,
}

/// The tallies of a rule, and the tables that are open.
struct RuleLine {
    tallies: Arc<RuleTallies>,
    open: [Option<Arc<TopTable>>; TopBy::ALL.len()],
}

/// What a rule decided about a request.
struct RuleEvent<'v> {
    by: TopBy,
    weight: u64,
    /// The limit that decided.
    limit: LimitReport<'v>,
    /// Identifies the rule and the key: it belongs to the first limit of the rule.
    print: u64,
}

// === impl WorkerTop ===

impl WorkerTop {
    pub(super) fn new(node: &Arc<NodeTop>) -> Self {
        let [room, _] = node.room;
        let [bytes, tables] = Default::default();
        let tallies = WorkerTallies { rules: Default::default(), bytes, tables, room };
        let tallies = Arc::new(tallies);
        node.workers().push(Arc::clone(&tallies));
        let named = RefCell::new(RuleLine::new(tallies.rule("")));
        let (node, ring) = (Arc::clone(node), node.ring());
        let [requests, calls] = Default::default();
        Self(Some(Rc::new(TopCounter { node, tallies, ring, requests, calls, named })))
    }

    /// A request with these attributes was decided.
    #[inline]
    pub(crate) fn of_request(&self, verdict: &Verdict, attributes: &Attributes<'_>) {
        if let Some(counter) = &self.0 {
            counter.request(verdict, attributes);
        }
    }

    /// A call with these descriptors was decided.
    #[inline]
    pub(crate) fn of_call(&self, answer: &DescriptorVerdict, descriptors: &[Descriptor<'_>]) {
        if let Some(counter) = &self.0 {
            counter.call(answer, descriptors);
        }
    }

    /// A take under a limit that the client named was decided.
    #[inline]
    pub(crate) fn of_take(&self, key: &[u8], outcome: Outcome, cost: Cost) {
        if let Some(counter) = &self.0 {
            counter.take(key, outcome, cost);
        }
    }
}

// === impl TopCounter ===

impl TopCounter {
    fn request(&self, verdict: &Verdict, attributes: &Attributes<'_>) {
        let mut lines = self.requests.borrow_mut();
        lines.follow(verdict, &self.tallies);
        let (policy, standing) = (verdict.policy(), Standing::of(verdict));
        for event in verdict.by_rule().filter_map(|rule| standing.event(&rule)) {
            let Some(line) = lines.rules.get_mut(event.limit.number) else { continue };
            self.note(line, &event, || RequestKey::of_rule(policy, event.limit.number, attributes));
        }
    }

    fn call(&self, answer: &DescriptorVerdict, descriptors: &[Descriptor<'_>]) {
        let verdict = &answer.verdict;
        let mut lines = self.calls.borrow_mut();
        lines.follow(verdict, &self.tallies);
        let mut named = self.named.borrow_mut();
        let standing = Standing::of(verdict);
        for (descriptor, rule) in answer.by_rule() {
            let Some(event) = standing.event(&rule) else { continue };
            // A limit that the call carries belongs to no rule.
            let line = lines.rules.get_mut(event.limit.number).unwrap_or(&mut named);
            let entries = descriptors.get(descriptor).map_or(&[][..], |one| &one.entries);
            self.note(line, &event, || RequestKey::of_entries(verdict.policy(), entries));
        }
    }

    fn take(&self, key: &[u8], outcome: Outcome, cost: Cost) {
        let mut hasher = self.node.prints.build_hasher();
        hasher.write(key);
        let print = hasher.finish();
        let (by, weight) = match outcome {
            Outcome::Allow | Outcome::Delay(_) => (TopBy::Used, cost.get()),
            Outcome::Deny(_) => (TopBy::Denied, 1),
        };
        let mut line = self.named.borrow_mut();
        if line.count(self, by, (low_half(print), weight)) {
            let text = String::from_utf8_lossy(key);
            let id = self.node.secret.subject(&[("key", &text)]).short();
            self.name(&line, by, low_half(print), id, &RequestKey::named(key));
        }
        if let (Some(ring), TopBy::Denied) = (&self.ring, by) {
            let retry_after_ms = retry_after_ms(outcome);
            let new = NewDenial { print, rule: "", limit: None, retry_after_ms, would_deny: false };
            ring.note(&new, || RequestKey::named(key));
        }
    }

    /// Counts what a rule decided. `key` is called when the key needs a name.
    fn note<'k>(
        &self,
        line: &mut RuleLine,
        event: &RuleEvent<'_>,
        key: impl Fn() -> RequestKey<'k>,
    ) {
        let RuleEvent { by, weight, print, limit } = *event;
        if line.count(self, by, (low_half(print), weight)) {
            self.name(line, by, low_half(print), print, &key());
        }
        let Some(ring) = self.ring.as_ref().filter(|_| by != TopBy::Used) else { return };
        let new = NewDenial {
            print,
            rule: limit.rule,
            limit: Some(limit.id),
            retry_after_ms: retry_after_ms(limit.decision.outcome),
            would_deny: by == TopBy::WouldDeny,
        };
        ring.note(&new, key);
    }

    fn name(&self, line: &RuleLine, by: TopBy, print: u32, id: u64, key: &RequestKey<'_>) {
        let Some(table) = line.open.get(by.index()).and_then(Option::as_ref) else { return };
        let key = key.shown(self.node.form, &self.node.secret);
        self.tallies.name(table, print, KeyLabel { id, key });
    }
}

// === impl PolicyLines ===

impl PolicyLines {
    /// Follows a change of the policy. Rules that remain keep their tallies.
    #[inline]
    fn follow(&mut self, verdict: &Verdict, tallies: &WorkerTallies) {
        if self.version != Some(verdict.policy_version()) {
            self.change(verdict, tallies);
        }
    }

    #[cold]
    fn change(&mut self, verdict: &Verdict, tallies: &WorkerTallies) {
        self.version = Some(verdict.policy_version());
        let same = self.rules.iter().map(|line| &*line.tallies.rule).eq(verdict.rule_names());
        if !same {
            let lines = verdict.rule_names().map(|rule| RuleLine::new(tallies.rule(rule)));
            self.rules = lines.collect();
            tallies.forget_unused();
        }
    }
}

// === impl RuleLine ===

impl RuleLine {
    fn new(tallies: Arc<RuleTallies>) -> Self {
        let open = lock_each(&tallies);
        Self { tallies, open }
    }

    /// Counts a request, and returns whether its key should get a name.
    #[inline]
    fn count(&mut self, counter: &TopCounter, by: TopBy, (print, weight): (u32, u64)) -> bool {
        let half = counter.node.half();
        let Some(open) = self.open.get_mut(by.index()) else { return false };
        if open.as_ref().is_none_or(|table| table.half != half) {
            *open = counter.tallies.open(&self.tallies, by, half);
        }
        let Some(table) = open else { return false };
        loop {
            let counted = table.count(print, weight);
            match counted {
                Counted::Done => return false,
                Counted::Unnamed => return true,
                Counted::Crowded | Counted::Full => {
                    if let Some(grown) = counter.tallies.grow(&self.tallies, by, table) {
                        *table = grown;
                    }
                    // A table that cannot grow is not full again.
                    if counted == Counted::Crowded {
                        return false;
                    }
                }
            }
        }
    }
}

/// The tables of a rule that are open already: another policy of this worker may have a rule of the same name.
fn lock_each(tallies: &RuleTallies) -> [Option<Arc<TopTable>>; TopBy::ALL.len()] {
    tallies.tallies.each_ref().map(|tally| lock(tally).table.clone())
}

// === helpers ===

/// Whether a request passed, and if not, which limits refused it.
#[derive(Clone, Copy)]
enum Standing {
    Passed,
    RefusedByRules,
    /// No required limit refuses: it would have to wait behind others, or all its quotas are used up.
    RefusedOtherwise,
}

impl Standing {
    fn of(verdict: &Verdict) -> Self {
        match (verdict.allowed(), || verdict.refusing().next()) {
            (true, _) => Self::Passed,
            (false, first) if first().is_some() => Self::RefusedByRules,
            (false, _) => Self::RefusedOtherwise,
        }
    }

    /// What is counted for a rule that decided something about a request, or about a descriptor of it.
    fn event<'v>(self, rule: &RuleDecision<'v>) -> Option<RuleEvent<'v>> {
        let (by, weight) = self.counted(&rule.limit)?;
        Some(RuleEvent { by, weight, limit: rule.limit, print: short(rule.first_state.0) })
    }

    fn counted(self, limit: &LimitReport<'_>) -> Option<(TopBy, u64)> {
        let is_required = limit.need == Need::Required;
        match (self, limit.decision.outcome) {
            (Self::Passed, Outcome::Deny(_)) => (!is_required).then_some((TopBy::WouldDeny, 1)),
            (Self::Passed, Outcome::Allow | Outcome::Delay(_)) => {
                Some((TopBy::Used, limit.cost.get())).filter(|(_, cost)| *cost > 0)
            }
            (Self::RefusedByRules, Outcome::Deny(_)) if is_required => Some((TopBy::Denied, 1)),
            (Self::RefusedOtherwise, Outcome::Deny(_)) if !limit.shadow => Some((TopBy::Denied, 1)),
            (Self::RefusedOtherwise, Outcome::Delay(_)) => Some((TopBy::Denied, 1)),
            (Self::RefusedByRules | Self::RefusedOtherwise, _) => None,
        }
    }
}

fn retry_after_ms(outcome: Outcome) -> Option<u64> {
    let millis = |wait: Span| wait.as_nanos().div_ceil(1_000_000);
    match outcome {
        Outcome::Deny(Retry::After(wait)) | Outcome::Delay(wait) => Some(millis(wait)),
        Outcome::Deny(Retry::Never) | Outcome::Allow => None,
    }
}

fn short(state: u128) -> u64 {
    u64::try_from(state & u128::from(u64::MAX)).unwrap_or(0)
}

fn low_half(print: u64) -> u32 {
    u32::try_from(print & u64::from(u32::MAX)).unwrap_or(0)
}
