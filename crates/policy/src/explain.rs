//! Why a request is limited as it is: every rule, and what became of it.
//!
//! ```text
//!   ✓ create-url   user=alice
//!        2/s token_bucket (s)        from tier pro
//!   ✗ uploads      `method` is GET, not POST
//! ```

use crate::allowance::{Allowance, RuleLimit};
use crate::attributes::Attributes;
use crate::changes::{Changes, ResolvedRule};
use crate::pattern::Case;
use crate::policy::Policy;
use crate::rule::{Count, Mode, OnLimit, Rule, Skipped};
use std::fmt;
use tidegate_core::{Algorithm, RejectedCost};

/// What became of every rule for one request.
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
    /// The tier that the request named, if there is none such.
    pub unknown_tier: Option<String>,
    /// What servers make of the path, if they read it in several ways.
    pub readings: Vec<String>,
    /// The rules, in the order of the file.
    pub rules: Vec<RuleExplanation>,
}

/// What became of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleExplanation {
    /// Its name.
    pub rule: String,
    /// What it does, or why it does nothing.
    pub outcome: Result<AppliedRule, Skipped>,
}

/// A rule that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRule {
    /// Whose bucket; several where the key names the path and servers read it in several ways.
    pub key: String,
    /// The limits, each as it would be written; none when it is unlimited.
    pub limits: Vec<String>,
    /// Where they were written.
    pub origin: String,
    /// What else there is to know: soft, shadow, what a refusal means.
    pub manners: Vec<String>,
}

impl Policy {
    /// What becomes of every rule for this request.
    #[must_use]
    pub fn explain(&self, changes: &Changes, request: &Attributes<'_>, cost: u64) -> Explanation {
        let resolved = self.resolve(changes, request, cost);
        let mut stopped = None;
        let rules = self.rules.iter().enumerate().map(|(number, rule)| {
            let of_rule = |resolved: &&ResolvedRule<'_>| resolved.number == number;
            let applied: Vec<_> = resolved.rules.iter().filter(of_rule).collect();
            let outcome = match applied.as_slice() {
                [] => Err(self.skipped(changes, rule, request, cost, stopped)),
                [first, others @ ..] => Ok(applied_rule(first, others)),
            };
            if !applied.is_empty() && rule.stop {
                stopped = Some(rule);
            }
            RuleExplanation { rule: rule.name.to_string(), outcome }
        });
        let rules = rules.collect();
        let unknown_tier = request.named("tier").filter(|_| resolved.unknown_tier);
        let unknown_tier = unknown_tier.map(crate::attributes::shown);
        let tier = resolved.tier.map(str::to_owned);
        Explanation { tier, unknown_tier, readings: readings(request), rules }
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

/// Every reading of a path that has several.
fn readings(request: &Attributes<'_>) -> Vec<String> {
    if !request.is_ambiguous() {
        return vec![];
    }
    let all = [request.seen()].into_iter().chain(request.seen_otherwise());
    let paths = all.filter_map(|seen| seen.path());
    paths.map(|path| crate::document::printable(path.as_str())).collect()
}

fn applied_rule(resolved: &ResolvedRule<'_>, others: &[&ResolvedRule<'_>]) -> AppliedRule {
    let keys = others.iter().map(|other| format!(" and {}", other.values));
    AppliedRule {
        key: format!("{}{}", resolved.values, keys.collect::<String>()),
        limits: match resolved.allowance {
            Allowance::Limits(limits) => limits.iter().map(written).collect(),
            Allowance::Unlimited => vec![],
        },
        origin: resolved.origin.to_string(),
        manners: manners(resolved.rule, resolved.shadow),
    }
}

/// A limit as it would be written.
fn written(limit: &RuleLimit) -> String {
    let rate = limit.rate();
    let options = match limit.limit().algorithm() {
        Algorithm::TokenBucket { burst: Some(burst), .. } => format!(", burst {burst}"),
        Algorithm::LeakyBucket { queue: Some(queue) } => format!(", queue {queue}"),
        Algorithm::SlidingBuckets { buckets } => format!(", {buckets} buckets"),
        Algorithm::TokenBucket { burst: None, .. }
        | Algorithm::LeakyBucket { queue: None }
        | Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingWeighted => String::new(),
    };
    format!("{rate} {}{options}", limit.limit().algorithm().name())
}

fn manners(rule: &Rule, shadow: bool) -> Vec<String> {
    let mode = match &rule.mode {
        Mode::Hard => None,
        Mode::Soft(percent) => Some(format!("soft, {percent} % more pass marked")),
        Mode::Elastic { up_to, condition } => {
            Some(format!("elastic, up to {up_to} % while {}", condition.as_str()))
        }
    };
    let on_limit = match &rule.on_limit {
        OnLimit::Reject => None,
        OnLimit::Delay { max_wait, max_queue } => {
            Some(format!("over the limit: waits up to {max_wait}, {max_queue} at most"))
        }
        OnLimit::Deprioritize => Some("over the limit: passes with low priority".to_owned()),
        OnLimit::Flag(flag) => Some(format!("over the limit: passes, flagged {flag}")),
    };
    let count = match rule.count {
        Count::All => None,
        Count::Failures => Some("only failures count".to_owned()),
        Count::Successes => Some("only successes count".to_owned()),
    };
    let denied = (rule.count_rejected == RejectedCost::Charged)
        .then(|| "refused costs count too".to_owned());
    let case = (rule.key.case() == Case::Insensitive)
        .then(|| "capitals and small letters of paths are the same".to_owned());
    let shadow = shadow.then(|| "shadow: it only pretends".to_owned());
    let stop = rule.stop.then(|| "stop: later rules are not looked at".to_owned());
    [mode, on_limit, count, denied, case, shadow, stop].into_iter().flatten().collect()
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
        if !self.readings.is_empty() {
            let all = self.readings.join(", ");
            writeln!(
                f,
                "servers read this path in several ways, and a rule applies if it does in any: {all}"
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
            writeln!(f, "no rule applies: the request passes uncounted")?;
        }
        Ok(())
    }
}

impl fmt::Display for AppliedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.key)?;
        if self.limits.is_empty() {
            writeln!(f, "    unlimited, from {}", self.origin)?;
        }
        for limit in &self.limits {
            writeln!(f, "    {limit}, from {}", self.origin)?;
        }
        self.manners.iter().try_for_each(|manner| writeln!(f, "    {manner}"))
    }
}
