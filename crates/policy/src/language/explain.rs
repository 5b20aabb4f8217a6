//! Explains why a request is limited: for every rule, whether it applies and why.
//!
//! ```text
//!   ✓ create-url   user=alice
//!       2 per s    token_bucket     from tier pro
//!       500 per h  sliding_buckets  from tier pro
//!   ✗ uploads      `method` is GET, not POST
//! ```

use crate::model::allowance::{Allowance, RuleLimit};
use crate::model::attributes::Attributes;
use crate::model::changes::{Changes, ResolvedRule};
use crate::model::path::Case;
use crate::model::policy::Policy;
use crate::model::priority::ClassIndex;
use crate::model::rule::{Consistency, Count, Mode, OnLimit, Rule, Skipped};
use std::fmt;
use tidegate_core::{Algorithm, LeaseTerms, RejectedCost};

/// The effect of every rule on one request.
///
/// ```
/// use tidegate_policy::{Attributes, Changes, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: per-client, key: [ip], limits: [15/s] }]").unwrap();
/// let request = Attributes::new().with("ip", "203.0.113.7")?;
/// let text = policy.explain(&Changes::default(), &request, 1).to_string();
/// assert!(text.contains("per-client") && text.contains("ip=203.0.113.7"));
/// # Ok::<(), tidegate_policy::AttributeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The tier of the customer.
    pub tier: Option<String>,
    /// The tier that the request named, if it does not exist.
    pub unknown_tier: Option<String>,
    /// The priority class, if the policy uses priorities.
    pub priority: Option<String>,
    /// All readings of the path, if servers read it in several ways.
    pub readings: Vec<String>,
    /// The rules, in the order of the file.
    pub rules: Vec<RuleExplanation>,
}

/// The effect of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleExplanation {
    /// The name of the rule.
    pub rule: String,
    /// Its effect, or why it does not apply.
    pub outcome: Result<AppliedRule, Skipped>,
}

/// A rule that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRule {
    /// The values of its key; several if the key contains the path and servers read it in several ways.
    pub key: String,
    /// The limits as they would be written; an empty list if it is unlimited.
    pub limits: Vec<String>,
    /// Where the limits come from; empty for a rule that has none and only sets a priority.
    pub origin: String,
    /// Notes on other settings: mode, shadow, what happens above the limit.
    pub notes: Vec<String>,
}

impl Policy {
    /// Explains the effect of every rule on a request.
    #[must_use]
    pub fn explain(&self, changes: &Changes, request: &Attributes<'_>, cost: u64) -> Explanation {
        let resolved = self.resolve(changes, request, cost);
        let mut stopped = None;
        let rules = self.rules.iter().enumerate().map(|(number, rule)| {
            let of_rule = |resolved: &&ResolvedRule<'_>| resolved.number == number;
            let applied: Vec<_> = resolved.rules.iter().filter(of_rule).collect();
            let outcome = match applied.as_slice() {
                [] => Err(self.skipped(changes, rule, request, cost, stopped)),
                [first, others @ ..] => Ok(self.applied_rule(first, others)),
            };
            if !applied.is_empty() && rule.stop {
                stopped = Some(rule);
            }
            RuleExplanation { rule: rule.name.to_string(), outcome }
        });
        let rules = rules.collect();
        let unknown_tier = request.named("tier").filter(|_| resolved.unknown_tier);
        let unknown_tier = unknown_tier.map(crate::document::shown);
        let tier = resolved.tier.map(str::to_owned);
        let priority = || self.classes.get(resolved.class).name().to_owned();
        let priority = self.uses_priorities().then(priority);
        Explanation { tier, unknown_tier, priority, readings: readings(request), rules }
    }

    fn skipped(
        &self,
        changes: &Changes,
        rule: &Rule,
        request: &Attributes<'_>,
        cost: u64,
        stopped: Option<&Rule>,
    ) -> Skipped {
        if !self.is_enabled(changes, rule) {
            return Skipped::Disabled;
        }
        let stopped = stopped.map_or_else(String::new, |stop| stop.name.to_string());
        let applies = rule.applies(request, cost, self.identity.ipv6_prefix);
        applies.map_or_else(|skipped| skipped, |_| Skipped::Stopped(stopped))
    }
}

impl Policy {
    fn applied_rule(
        &self,
        resolved: &ResolvedRule<'_>,
        others: &[&ResolvedRule<'_>],
    ) -> AppliedRule {
        let keys = others.iter().map(|other| format!(" and {}", other.values));
        let only_priority = *resolved.allowance == Allowance::Limits(vec![]);
        AppliedRule {
            key: format!("{}{}", resolved.values, keys.collect::<String>()),
            limits: match resolved.allowance {
                Allowance::Limits(limits) => limits.iter().map(written).collect(),
                Allowance::Unlimited => vec![],
            },
            origin: if only_priority { String::new() } else { resolved.origin.to_string() },
            notes: self.notes(resolved.rule, resolved.shadow),
        }
    }

    /// Notes on settings that differ from the default.
    fn notes(&self, rule: &Rule, shadow: bool) -> Vec<String> {
        let class = |class| self.classes.get(class).name();
        let priority = rule.priority.map(|named| format!("priority: {}", class(named)));
        let mode = mode_note(&rule.mode);
        let on_limit = on_limit_note(&rule.on_limit, class);
        let count = match rule.count {
            Count::All => None,
            Count::Failures => Some("only failures count".to_owned()),
            Count::Successes => Some("only successes count".to_owned()),
        };
        let rejected = (rule.count_rejected == RejectedCost::Charged)
            .then(|| "rejected requests count too".to_owned());
        let lease = match rule.consistency {
            Consistency::Exact => None,
            Consistency::Lease(LeaseTerms { share, interval, .. }) => Some(format!(
                "lease: a node may hold up to {share} % of a limit and spend it by itself, and asks every {interval}; never more than the limit passes"
            )),
        };
        let case = (rule.key.case() == Case::Insensitive)
            .then(|| "paths are compared without regard to case".to_owned());
        let invented = rule.key.names().find(|name| self.identity.lets_clients_invent(name));
        let invented =
            invented.map(|name| format!("{name} is read from every peer: clients can invent it"));
        let shadow = shadow.then(|| "shadow: counts and reports, but denies nothing".to_owned());
        let stop = rule.stop.then(|| "stop: later rules are skipped".to_owned());
        let notes =
            [priority, mode, on_limit, count, rejected, lease, case, invented, shadow, stop];
        notes.into_iter().flatten().collect()
    }
}

/// Every reading of a path that has several.
fn readings(request: &Attributes<'_>) -> Vec<String> {
    if !request.has_ambiguous_path() {
        return vec![];
    }
    let paths = request.paths().flatten();
    paths.map(|path| crate::document::printable(path.as_str())).collect()
}

/// A limit as it would be written.
fn written(limit: &RuleLimit) -> String {
    if limit.limit().lease().is_some() {
        return format!("{}, lease {}", limit.summary(), limit.rate().period_text());
    }
    let rate = limit.rate();
    let options = match limit.limit().algorithm() {
        Algorithm::TokenBucket { burst: Some(burst), .. } => format!(", burst {burst}"),
        Algorithm::LeakyBucket { queue: Some(queue) } => format!(", queue {queue}"),
        Algorithm::SlidingBuckets { buckets } => format!(", {buckets} buckets"),
        Algorithm::TokenBucket { burst: None, .. }
        | Algorithm::LeakyBucket { queue: None }
        | Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingWeighted
        | Algorithm::Concurrent => String::new(),
    };
    format!("{rate} {}{options}", limit.limit().algorithm().name())
}

fn mode_note(mode: &Mode) -> Option<String> {
    match mode {
        Mode::Hard => None,
        Mode::Soft(percent) => {
            Some(format!("soft: {percent} % more pass, marked as over the limit"))
        }
        Mode::Elastic { up_to, condition } => {
            Some(format!("elastic: up to {up_to} % while {}", condition.as_str()))
        }
    }
}

fn on_limit_note<'p>(on_limit: &OnLimit, class: impl Fn(ClassIndex) -> &'p str) -> Option<String> {
    match on_limit {
        OnLimit::Reject => None,
        OnLimit::Delay { max_wait, max_queue } => {
            Some(format!("above the limit: waits up to {max_wait}, at most {max_queue} requests"))
        }
        OnLimit::Deprioritize(to) => {
            Some(format!("above the limit: passes with priority {}, or a lower one", class(*to)))
        }
        OnLimit::Flag(flag) => Some(format!("above the limit: passes with the flag {flag}")),
    }
}

// === as text ===

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tier) = &self.tier {
            write!(f, "tier {tier}")?;
            match &self.unknown_tier {
                Some(unknown) => writeln!(f, "; there is no tier `{unknown}`")?,
                None => writeln!(f)?,
            }
        }
        if let Some(priority) = &self.priority {
            writeln!(f, "priority {priority}")?;
        }
        if !self.readings.is_empty() {
            let all = self.readings.join(", ");
            writeln!(
                f,
                "servers read this path in several ways; a rule applies if it applies to any of them: {all}"
            )?;
        }
        let width = self.rules.iter().map(|rule| rule.rule.len()).max().unwrap_or(0);
        for RuleExplanation { rule, outcome } in &self.rules {
            match outcome {
                Ok(applied) => write!(f, "✓ {rule:width$}  {applied}")?,
                Err(skipped) => writeln!(f, "✗ {rule:width$}  {skipped}")?,
            }
        }
        if !self.rules.iter().any(|rule| rule.outcome.is_ok()) {
            writeln!(f, "no rule applies: the request passes and is not counted")?;
        }
        Ok(())
    }
}

impl fmt::Display for AppliedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.key)?;
        if self.limits.is_empty() && !self.origin.is_empty() {
            writeln!(f, "    unlimited  from {}", self.origin)?;
        }
        let limits: Vec<(String, &str)> = self.limits.iter().map(|limit| columns(limit)).collect();
        let first = limits.iter().map(|(rate, _)| rate.chars().count()).max().unwrap_or(0);
        let second = limits.iter().map(|(_, rest)| rest.chars().count()).max().unwrap_or(0);
        for (rate, rest) in limits {
            writeln!(f, "    {rate:first$}  {rest:second$}  from {}", self.origin)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "    {note}"))
    }
}

/// A limit in two columns: `500/15min sliding_log` is `500 per 15 min` and `sliding_log`.
fn columns(limit: &str) -> (String, &str) {
    let (rate, rest) = limit.split_once(' ').unwrap_or((limit, ""));
    let Some((amount, period)) = rate.split_once('/') else { return (rate.to_owned(), rest) };
    let digits = period.chars().take_while(char::is_ascii_digit).count();
    let (count, unit) = period.split_at(digits);
    let space = if count.is_empty() { "" } else { " " };
    (format!("{amount} per {count}{space}{unit}"), rest)
}
