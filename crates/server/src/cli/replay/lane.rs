//! A lane: one policy that decides all requests of a log, on a virtual clock.
//!
//! ```text
//!   request ──► clock = its arrival ──► attributes ──► the real limiter, in memory ──► verdict ──► tally
//! ```
//!
//! The limiter, the store and the policy are those of the server; only the clock is set by the log. Elastic limits stay closed,
//! because a log has no signals. Rules that need what a log cannot tell (how a request ended, how many are in flight) are turned
//! off and named in the report.

use super::fields::{FIRST_NAMED, HOPS, IP, METHOD, PATH, RecordedDecision};
use super::recorded::DESCRIPTOR;
use super::reorder::{SecondBucket, StoredRequest};
use super::tally::{FIRST_REFUSALS, FirstRefusal, PolicyTally, counted_from};
use super::windows::WindowTally;
use futures_util::FutureExt;
use smallvec::SmallVec;
use std::io;
use tidegate::{
    Attributes, Check, Clock, Descriptor, DescriptorCall, LimitReport, Limiter, Memory, Need,
    Outcome, Policy, Secret, Span, Timestamp, Verdict,
};
use tidegate_policy::{AttributeError, Count, KeyValues, Rule, parse_address};

/// What a policy makes of a log.
pub(super) struct ReplayLane {
    limiter: Limiter,
    policy: Policy,
    clock: Clock,
    secret: Secret,
    settings: LaneSettings,
    /// The time of the first request.
    pub(super) begin: Option<u64>,
    now: u64,
    /// Requests that came too late for the reorder buffer.
    pub(super) late: u64,
    /// When the shortest first period of a limit is over.
    counts_from: u64,
    pub(super) tally: PolicyTally,
    pub(super) recorded: RecordedComparison,
    /// Why rules were turned off, by their numbers.
    pub(super) turned_off: Vec<(usize, &'static str)>,
    pub(super) windows: Option<WindowTally>,
}

/// How the answers differ from those that a recording has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordedComparison {
    pub(super) compared: u64,
    /// Passed in the recording, and refused now.
    pub(super) newly_refused: u64,
    /// Refused in the recording, and passes now.
    pub(super) newly_allowed: u64,
    /// The first requests that are answered differently.
    pub(super) first: Vec<FirstDifference>,
}

/// A request that is answered differently from its recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FirstDifference {
    pub(super) at: u64,
    pub(super) request: String,
    /// Whether it passes now.
    pub(super) allowed: bool,
}

/// How a lane is set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneSettings {
    /// How long clients wait if a limit delays them and the rule says nothing.
    pub(super) max_wait: Span,
    /// Memory for counters.
    pub(super) memory: usize,
    /// Whether refusals in the first period of a limit count, too.
    pub(super) count_first_period: bool,
}

/// What a rule decided about a request.
struct RuleDecision {
    number: usize,
    /// A limit that refuses, and whether its first period is over.
    refusing: Option<(String, bool)>,
    delayed: bool,
    marked: bool,
}

type RuleDecisions = SmallVec<[RuleDecision; 4]>;

// === impl ReplayLane ===

impl ReplayLane {
    pub(super) fn new(policy: &Policy, settings: LaneSettings) -> io::Result<Self> {
        let clock = Clock::manual(Timestamp::EPOCH);
        let store = Memory::with_budget(clock.clone(), settings.memory);
        let secret = Secret::random()?;
        let limiter = Limiter::new(policy.clone(), store, secret.clone(), clock.clone());
        let limiter = limiter.map_err(io::Error::other)?;
        let mut turned_off = Vec::new();
        for (number, rule) in policy.rules().iter().enumerate() {
            if let Some(why) = unknowable(rule).filter(|_| rule.enabled()) {
                limiter.set_enabled(rule.name(), Some(false)).map_err(io::Error::other)?;
                turned_off.push((number, why));
            }
        }
        Ok(Self {
            limiter,
            policy: policy.clone(),
            clock,
            secret,
            settings,
            begin: None,
            now: 0,
            late: 0,
            counts_from: u64::MAX,
            tally: PolicyTally::new(policy.rules().len()),
            recorded: RecordedComparison::default(),
            turned_off,
            windows: None,
        })
    }

    pub(super) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether the memory for counters was full, so that old ones are only known roughly.
    pub(super) fn was_full(&self) -> bool {
        self.limiter.store().gauges().demotions > 0
    }

    /// Decides a request. `names` are those of the fields from [`FIRST_NAMED`] on. Returns whether it passes; `None` if it cannot
    /// be decided.
    pub(super) fn play(
        &mut self,
        bucket: &SecondBucket,
        request: &StoredRequest,
        names: &[String],
    ) -> Option<bool> {
        let at = self.begin_at(request.at);
        self.clock.set(Timestamp::from_nanos(at));
        self.tally.requests = self.tally.requests.saturating_add(1);
        if at >= self.counts_from {
            self.tally.counted = self.tally.counted.saturating_add(1);
        }
        let values = || bucket.values(request);
        let is_call =
            request.recorded.is_some() && values().any(|(number, _)| number == DESCRIPTOR);
        let allowed = if is_call {
            self.decide_call(&descriptors(values(), names), request.recorded, at)
        } else {
            let attributes = attributes(&self.policy, values(), names).ok();
            attributes.and_then(|attributes| self.decide(&attributes, request.recorded, at))
        };
        match (allowed, request.recorded) {
            (None, _) => self.tally.undecided = self.tally.undecided.saturating_add(1),
            (Some(allowed), Some(recorded)) => {
                self.recorded.add(recorded.allowed, allowed);
                if recorded.allowed != allowed && self.recorded.first.len() < FIRST_REFUSALS {
                    let request = shown_values(values(), names);
                    self.recorded.first.push(FirstDifference { at, request, allowed });
                }
            }
            (Some(_), None) => {}
        }
        allowed
    }

    /// The time of a request, which never goes back.
    fn begin_at(&mut self, at: u64) -> u64 {
        if self.begin.is_none() {
            self.begin = Some(at);
            // Calendars are laid out for the time at which the limiter is asked first.
            self.clock.set(Timestamp::from_nanos(at));
            self.policy = self.policy.clone().renewed(Timestamp::from_nanos(at));
            let limits = self.policy.rules().iter().flat_map(|rule| rule.allowance().limits());
            let from = limits.map(|limit| counted_from(limit.limit(), at)).min();
            let skips = !self.settings.count_first_period;
            self.counts_from = from.filter(|_| skips).unwrap_or(at);
        }
        if at < self.now {
            self.late = self.late.saturating_add(1);
        }
        self.now = self.now.max(at);
        self.now
    }

    fn decide(
        &mut self,
        attributes: &Attributes<'_>,
        recorded: Option<RecordedDecision>,
        at: u64,
    ) -> Option<bool> {
        let check = Check::new(attributes);
        let check = match recorded {
            None => check.waiting_by_rule(self.settings.max_wait),
            Some(RecordedDecision { cost, wait, wait_by_rule: true, .. }) => {
                check.cost(cost).waiting_by_rule(Span::from_nanos(wait))
            }
            Some(RecordedDecision { cost, wait, .. }) => {
                check.cost(cost).waiting(Span::from_nanos(wait))
            }
        };
        let verdict = self.limiter.check_now(&check).ok()?;
        if let Some(windows) = &mut self.windows {
            windows.add(attributes, check.cost.get(), at);
        }
        self.judge(&verdict, &[attributes], at);
        Some(verdict.allowed())
    }

    fn decide_call(
        &mut self,
        descriptors: &[(u64, Attributes<'_>)],
        recorded: Option<RecordedDecision>,
        at: u64,
    ) -> Option<bool> {
        let texts: Vec<Vec<(String, String)>> = descriptors
            .iter()
            .map(|(_, attributes)| {
                attributes
                    .iter()
                    .map(|(name, value)| (name.to_owned(), value.into_owned()))
                    .collect()
            })
            .collect();
        let domain = descriptors.first().and_then(|(_, attributes)| attributes.get("domain"));
        let described: Vec<Descriptor<'_>> = texts
            .iter()
            .zip(descriptors)
            .map(|(texts, (cost, _))| {
                let entries = texts.iter().filter(|(name, _)| name != "domain");
                let entries = entries.map(|(name, value)| (&**name, value.as_str().into()));
                Descriptor {
                    entries: entries.collect(),
                    hits: Some(*cost),
                    ..Descriptor::default()
                }
            })
            .collect();
        let call = DescriptorCall {
            domain: domain.as_deref().unwrap_or_default(),
            descriptors: &described,
            hits: 0,
            timeout: None,
            max_wait: Span::from_nanos(recorded.map_or(0, |recorded| recorded.wait)),
        };
        // The store is in this process, so the answer is ready at once.
        let verdict = self.limiter.check_descriptors(&call).now_or_never()?.ok()?.verdict;
        let all: SmallVec<[&Attributes<'_>; 4]> =
            descriptors.iter().map(|(_, attributes)| attributes).collect();
        self.judge(&verdict, &all, at);
        Some(verdict.allowed())
    }

    // === what rules decided ===

    /// Counts what the rules decided about a request, or about the descriptors of a call.
    fn judge(&mut self, verdict: &Verdict, requests: &[&Attributes<'_>], at: u64) {
        // Every first period is over for a replay that began at the epoch.
        let skips = !self.settings.count_first_period;
        let begin = self.begin.filter(|_| skips).unwrap_or(0);
        let decisions = rule_decisions(verdict, begin, at);
        let counted =
            decisions.iter().any(|rule| matches!(rule.refusing, Some((_, counts)) if counts));
        let refused = !verdict.allowed();
        let tally = &mut self.tally;
        tally.unreadable =
            tally.unreadable.saturating_add(u64::from(verdict.unreadable().is_some()));
        tally.refused = tally.refused.saturating_add(u64::from(refused && counted));
        tally.delayed =
            tally.delayed.saturating_add(u64::from(matches!(verdict.outcome, Outcome::Delay(_))));
        tally.series.add(at, refused && counted);
        for decision in decisions {
            self.count_rule(decision, requests, at);
        }
    }

    fn count_rule(&mut self, decision: RuleDecision, requests: &[&Attributes<'_>], at: u64) {
        let RuleDecision { number, refusing, delayed, marked } = decision;
        let Some(tally) = self.tally.rules.get_mut(number) else { return };
        tally.applied = tally.applied.saturating_add(1);
        tally.delayed = tally.delayed.saturating_add(u64::from(delayed));
        tally.marked = tally.marked.saturating_add(u64::from(marked));
        let counted = matches!(refusing, Some((_, true)));
        tally.series.add(at, counted);
        match refusing {
            None if tally.has_locked() => self.count_passed(number, requests, at),
            None => {}
            Some((_, false)) => tally.early = tally.early.saturating_add(1),
            Some((limit, true)) => {
                tally.refused = tally.refused.saturating_add(1);
                self.count_refused((number, limit), requests, at);
            }
        }
    }

    fn count_passed(&mut self, number: usize, requests: &[&Attributes<'_>], at: u64) {
        let Some(rule) = self.policy.rules().get(number) else { return };
        let prefix = self.policy.identity().ipv6_prefix();
        for values in requests.iter().filter_map(|request| rule.key().of(request, prefix)) {
            let fingerprint = self.tally.fingerprint(values.pairs());
            if let Some(tally) = self.tally.rules.get_mut(number) {
                tally.passed_key(fingerprint, at);
            }
        }
    }

    fn count_refused(
        &mut self,
        (number, limit): (usize, String),
        requests: &[&Attributes<'_>],
        at: u64,
    ) {
        let Some(rule) = self.policy.rules().get(number) else { return };
        let prefix = self.policy.identity().ipv6_prefix();
        for request in requests {
            let Some(values) = rule.key().of(request, prefix) else { continue };
            let text = || shown_key(&self.policy, &self.secret, &values);
            let is_first = self
                .tally
                .rules
                .get(number)
                .is_some_and(|tally| tally.first.len() < FIRST_REFUSALS);
            let first = is_first.then(|| {
                let (limit, request) = (limit.clone(), shown_request(request));
                FirstRefusal { at, limit, key: text(), request }
            });
            if let Some(tally) = self.tally.rules.get_mut(number) {
                tally.first.extend(first);
            }
            let fingerprint = self.tally.fingerprint(values.pairs());
            self.tally.refused_key(number, (fingerprint, at), text);
        }
    }
}

/// What each rule that applies decided.
fn rule_decisions(verdict: &Verdict, begin: u64, at: u64) -> RuleDecisions {
    let mut rules = RuleDecisions::new();
    for limit in verdict.limits() {
        if rules.last().is_none_or(|rule| rule.number != limit.number) {
            let number = limit.number;
            rules.push(RuleDecision { number, refusing: None, delayed: false, marked: false });
        }
        if let Some(rule) = rules.last_mut() {
            rule.add(&limit, begin, at);
        }
    }
    rules
}

/// Why a log cannot tell what a rule would do.
fn unknowable(rule: &Rule) -> Option<&'static str> {
    let mut limits = rule.allowances().flat_map(tidegate_policy::Allowance::limits);
    if rule.count() != Count::All {
        return Some("it counts outcomes, which are reported after the decision");
    }
    limits
        .any(|limit| limit.limit().lease().is_some())
        .then_some("it limits requests in flight, whose ends are not known")
}

// === from fields to attributes ===

/// The attributes of a request.
fn attributes<'v>(
    policy: &Policy,
    values: impl Iterator<Item = (u16, &'v str)>,
    names: &'v [String],
) -> Result<Attributes<'v>, AttributeError> {
    let mut attributes = Attributes::new();
    let (mut peer, mut hops) = (None, None);
    for (number, value) in values {
        match number {
            IP => peer = Some(address(value)?),
            METHOD => attributes.set("method", value)?,
            PATH => attributes.set_from_client("path", value)?,
            HOPS => hops = Some(value),
            number => {
                if let Some(name) = name_of(number, names) {
                    attributes.set(name, value)?;
                }
            }
        }
    }
    Ok(match peer {
        Some(peer) => attributes.from_address(policy.identity().client(peer, hops)),
        None => attributes,
    })
}

fn name_of(number: u16, names: &[String]) -> Option<&str> {
    names.get(usize::from(number.checked_sub(FIRST_NAMED)?)).map(String::as_str)
}

/// An address. A digest in its place becomes an address of its own, in the range for private networks.
fn address(text: &str) -> Result<std::net::IpAddr, AttributeError> {
    let of_digest = |digits: &str| {
        let bits = u128::from_str_radix(digits, 16).ok()?;
        Some(std::net::Ipv6Addr::from_bits(0xfd << 120 | bits >> 8).into())
    };
    let address = match text.strip_prefix('#') {
        Some(digits) => of_digest(digits),
        None => parse_address(text),
    };
    address.ok_or_else(|| AttributeError::Address(text.chars().take(64).collect()))
}

/// The descriptors of a call, each with its cost.
fn descriptors<'v>(
    values: impl Iterator<Item = (u16, &'v str)>,
    names: &'v [String],
) -> Vec<(u64, Attributes<'v>)> {
    let mut all: Vec<(u64, Attributes<'v>)> = Vec::new();
    for (number, value) in values {
        if number == DESCRIPTOR {
            all.push((value.parse().unwrap_or(1), Attributes::new()));
        } else if let Some((_, attributes)) = all.last_mut() {
            let name = match number {
                IP => Some("ip"),
                METHOD => Some("method"),
                PATH => Some("path"),
                number => name_of(number, names),
            };
            // An entry that is not valid is left out; the server has refused the call then.
            let _ = name.map(|name| attributes.set(name, value));
        }
    }
    all
}

/// A key as the report shows it: secrets are digests.
fn shown_key(policy: &Policy, secret: &Secret, values: &KeyValues<'_>) -> String {
    let digest = |text: &str| secret.digest(text);
    let pair = |(name, value): &(&str, tidegate_policy::KeyValue<'_>)| {
        let value = policy.identity().shown(name, value, &digest);
        let short: String = value.chars().take(128).collect();
        format!("{name}={short}")
    };
    match values.pairs() {
        [] => "(all requests)".to_owned(),
        pairs => pairs.iter().map(pair).collect::<Vec<_>>().join(" "),
    }
}

/// All values of a recorded request, as `name=value`.
fn shown_values<'v>(values: impl Iterator<Item = (u16, &'v str)>, names: &[String]) -> String {
    let name = |number: u16| match number {
        IP => "ip",
        METHOD => "method",
        PATH => "path",
        DESCRIPTOR => "descriptor",
        number => name_of(number, names).unwrap_or("?"),
    };
    let words: Vec<String> =
        values.map(|(number, value)| format!("{}={value}", name(number))).collect();
    words.join(" ").chars().take(200).collect()
}

fn shown_request(attributes: &Attributes<'_>) -> String {
    let part = |name| attributes.get(name).unwrap_or_default();
    let text = format!("{} {}", part("method"), part("path"));
    text.trim().chars().take(100).collect()
}

// === impl RuleDecision ===

impl RuleDecision {
    fn add(&mut self, limit: &LimitReport<'_>, begin: u64, at: u64) {
        let passes = limit.decision.passes();
        self.delayed |= matches!(limit.decision.outcome, Outcome::Delay(_));
        match limit.need {
            _ if passes => {}
            Need::Optional => self.marked = true,
            Need::Required => {
                let counts = at >= counted_from(limit.limit, begin);
                if self.refusing.as_ref().is_none_or(|(_, counted)| counts && !counted) {
                    self.refusing = Some((limit.id.to_owned(), counts));
                }
            }
        }
    }
}

// === impl RecordedComparison ===

impl RecordedComparison {
    fn add(&mut self, before: bool, after: bool) {
        let count = |number: &mut u64, adds: bool| *number = number.saturating_add(u64::from(adds));
        count(&mut self.compared, true);
        count(&mut self.newly_refused, before && !after);
        count(&mut self.newly_allowed, !before && after);
    }
}
