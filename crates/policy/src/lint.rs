//! What a policy says that its author cannot have meant.
//!
//! Errors are rules that can never have an effect, and plans that no store could decide at once. Warnings
//! are legal, and surely mistakes: a limit that another one hides, a header that nobody is trusted to send,
//! requests that slip between the rules.
//!
//! Rules are compared by *witnesses*: a request made up to satisfy one rule. A rule that covers another
//! applies to its witness, so the index finds the few rules worth comparing, among twenty thousand too.

use crate::attributes::Attributes;
use crate::document::{MOST_PROBLEMS, Place, Problem};
use crate::expression::Expression;
use crate::pattern::{Case, Pattern};
use crate::policy::Policy;
use crate::reader::nearest;
use crate::rule::{Condition, OnLimit, Rule};
use std::borrow::Cow;
use std::collections::HashMap;
use tidegate_core::{Algorithm, Headroom, Limit, Period, Plan, Refill, RejectedCost};

/// As many takes as a plan has.
const MOST_TAKES: usize = Plan::MOST_TAKES;
/// Pairs of rules that are compared. Where thousands of rules cannot be told apart by what they match, not every
/// one is compared with every other: a file is read within a second.
const MOST_COMPARED: usize = 1_000_000;
/// What every request over HTTP has.
const ALWAYS_PRESENT: [&str; 3] = ["ip", "method", "path"];

// === errors ===

/// Rules that never have an effect, and requests that too many limits apply to.
pub(crate) fn errors(policy: &Policy) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    // Most policies never say stop.
    let stops = policy.rules.iter().any(|rule| rule.stop);
    let rules = policy.rules.iter().enumerate().filter(|(_, rule)| rule.enabled && stops);
    let mut compared = 0usize;
    for (number, rule) in rules {
        if problems.len() > MOST_PROBLEMS || compared > MOST_COMPARED {
            break;
        }
        let likely = likely(policy, &witness(rule));
        compared = compared.saturating_add(likely.len());
        let mut earlier = likely.iter().filter(|(n, _)| *n < number);
        if let Some((_, stop)) = earlier.find(|(_, stop)| hides(stop, rule)) {
            let text = format!(
                "rule `{}` is never reached: `{}` at {} covers it and says stop",
                rule.name, stop.name, stop.place
            );
            problems.push(problem(rule.place, text));
        }
    }
    problems.extend(crowded(policy).filter(|_| problems.is_empty()));
    problems
}

/// A request that more limits apply to than are decided together.
fn crowded(policy: &Policy) -> Option<Problem> {
    let popular = Popular::of(policy);
    let mut compared = 0usize;
    policy.rules.iter().filter(|rule| rule.enabled).find_map(|rule| {
        [witness(rule), popular.witness(rule)].iter().find_map(|request| {
            if compared > MOST_COMPARED {
                return None;
            }
            let likely = likely(policy, request);
            compared = compared.saturating_add(likely.len());
            is_crowd(&likely).then(|| {
                let text = format!(
                    "more than {MOST_TAKES} limits can apply to one request, such as one that matches `{}`; at most {MOST_TAKES} are decided together",
                    rule.name
                );
                problem(rule.place, text)
            })
        })
    })
}

/// Whether rules that meet in one request have too many limits, up to one that surely stops.
fn is_crowd(rules: &[(usize, &Rule)]) -> bool {
    let mut limits = 0usize;
    for (_, rule) in rules {
        let with = limits.saturating_add(most_limits(rule));
        let stops = rule.stop && rule.when.is_none();
        let counts = rule.key.parts().all(|part| part.iter().any(|name| is_always_present(name)));
        if with > MOST_TAKES {
            return true;
        }
        match (stops, counts) {
            (true, true) => return false,
            // Who has its key is stopped here; who goes on is not counted by it.
            (true, false) => {}
            (false, _) => limits = with,
        }
    }
    false
}

/// What most rules ask for: a request that looks so meets as many of them as possible.
struct Popular<'p> {
    counts: HashMap<(&'p str, Cow<'p, str>), usize>,
    /// Every attribute as most rules want it.
    request: Attributes<'static>,
}

impl<'p> Popular<'p> {
    fn of(policy: &'p Policy) -> Self {
        let mut counts = HashMap::new();
        for rule in policy.rules.iter().filter(|rule| rule.enabled) {
            for condition in &rule.conditions {
                for value in condition.values() {
                    let count: &mut usize =
                        counts.entry((condition.attribute(), value)).or_default();
                    *count = count.saturating_add(most_limits(rule));
                }
            }
        }
        let mut best: HashMap<&str, (usize, &str)> = HashMap::new();
        for ((attribute, value), count) in &counts {
            let better = (*count, &**value);
            let known = best.entry(attribute).or_insert(better);
            *known = (*known).max(better);
        }
        let mut request = Attributes::new();
        for (attribute, (_, value)) in best {
            set(&mut request, attribute, value);
        }
        Self { counts, request }
    }

    /// A request that a rule's `match` accepts, and is otherwise as most rules want it.
    fn witness(&self, rule: &Rule) -> Attributes<'static> {
        let mut request = self.request.clone();
        for condition in &rule.conditions {
            let count = |value: &Cow<'_, str>| {
                self.counts.get(&(condition.attribute(), value.clone())).copied()
            };
            if let Some(value) = condition.values().max_by_key(count) {
                set(&mut request, condition.attribute(), &value);
            }
        }
        request
    }
}

/// The rules whose `match` a request satisfies.
fn likely<'p>(policy: &'p Policy, request: &Attributes<'_>) -> Vec<(usize, &'p Rule)> {
    let candidates = policy.index.candidates(request).into_iter();
    let rules = candidates.filter_map(|number| {
        let number = usize::try_from(number).ok()?;
        Some((number, policy.rules.get(number)?))
    });
    rules.filter(|(_, rule)| rule.enabled && rule.matches(request)).collect()
}

/// A request that a rule's `match` accepts.
fn witness(rule: &Rule) -> Attributes<'static> {
    let mut request = Attributes::new();
    for condition in &rule.conditions {
        if let Some(value) = condition.values().next() {
            set(&mut request, condition.attribute(), &value);
        }
    }
    request
}

/// Values were checked when they were read; one that an attribute cannot have changes nothing here. Stars
/// of a pattern stand for a segment that nobody has.
fn set(request: &mut Attributes<'static>, name: &str, value: &str) {
    let value = if name == "path" {
        value.replace("**", "*").replace('*', "\u{2022}")
    } else {
        value.to_owned()
    };
    let _ = request.set(name.to_owned(), value);
}

/// Whether nothing is left for a rule behind one that says stop.
fn hides(stop: &Rule, rule: &Rule) -> bool {
    stop.stop && stop.when.is_none() && covers(stop, rule) && {
        // It stops only requests that it can count; is everything it needs there whenever the other applies?
        let theirs: Vec<Vec<&str>> = rule.key.parts().collect();
        let matched = || rule.conditions.iter().map(Condition::attribute);
        stop.key.parts().all(|part| {
            part.iter().any(|name| matched().any(|known| known == *name))
                || theirs.iter().any(|theirs| theirs.iter().all(|name| part.contains(name)))
        })
    }
}

/// Whether every request that matches a rule matches this one.
fn covers(wide: &Rule, narrow: &Rule) -> bool {
    wide.conditions.iter().all(|wide| narrow.conditions.iter().any(|narrow| wide.covers(narrow)))
}

fn most_limits(rule: &Rule) -> usize {
    rule.allowances().map(|allowance| allowance.limits().len()).max().unwrap_or(0)
}

// === warnings ===

/// What is legal but surely a mistake.
pub(crate) fn warnings(policy: &Policy) -> Vec<Problem> {
    let mut problems = identity(policy);
    let enough = |problems: &Vec<Problem>| problems.len() > MOST_PROBLEMS;
    let mut compared = 0usize;
    for (number, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| rule.enabled) {
        let likely = likely(policy, &witness(rule));
        compared = compared.saturating_add(likely.len());
        if enough(&problems) || compared > MOST_COMPARED {
            break;
        }
        problems.extend(idle_limits(rule));
        problems.extend(uncovered(rule, &likely));
        problems.extend(twin(&likely, number, rule));
        problems.extend(pointless(rule));
        problems.extend(misspelt(policy, rule));
        problems.extend(literal(rule));
        problems.extend(cased(rule));
        problems.extend(no_such_tier(policy, rule));
    }
    problems.sort_by_key(|problem| problem.place);
    crate::file::shortened(problems)
}

fn identity(policy: &Policy) -> Vec<Problem> {
    let identity = &policy.identity;
    let mut problems = Vec::new();
    let mut warn = |text: String| problems.push(problem(identity.place, text));
    if let Some((name, _)) = identity.sources.first().filter(|_| identity.trusted.is_nobody()) {
        warn(format!(
            "`identity.{name}` is read from requests, but `trusted` names nobody: it will always be absent, and behind a proxy all clients share the proxy's address"
        ));
    }
    if identity.everyone {
        warn("`trusted: everyone`: whoever reaches this port can claim to be anybody; keep it behind your proxies".to_owned());
    }
    if identity.ipv6_prefix > 64 {
        warn(format!(
            "`ipv6_prefix: {}`: a single host has 2⁶⁴ addresses and so as many buckets; 64 counts it as one",
            identity.ipv6_prefix
        ));
    }
    problems
}

/// Limits that another of the same rule hides.
fn idle_limits(rule: &Rule) -> Vec<Problem> {
    let limits = rule.allowance.limits();
    let hidden = limits.iter().enumerate().filter_map(|(at, limit)| {
        let others = limits.iter().enumerate().filter(|(other, _)| *other != at);
        let mut hiding = others.filter(|(_, other)| hides_limit(other.limit(), limit.limit()));
        let (other_at, other) = hiding.next()?;
        // Of two that are equal, one is needed.
        let mutual = hides_limit(limit.limit(), other.limit()) && other_at > at;
        (!mutual).then(|| {
            let text = format!(
                "rule `{}`: `{}` can never bind, because `{}` lets less through",
                rule.name,
                limit.rate(),
                other.rate()
            );
            problem(rule.place, text)
        })
    });
    hidden.collect()
}

/// Whether what one limit lets through is never too much for another.
fn hides_limit(tight: &Limit, loose: &Limit) -> bool {
    let (Some(tight), Some(period)) = (Flow::of(tight), span(loose)) else { return false };
    if loose.headroom() != Headroom::None || loose.amount() == 0 {
        return false;
    }
    let most = u128::from(loose.amount());
    match loose.algorithm() {
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. } => tight.most_in(period) <= most,
        // It may estimate up to two windows as one.
        Algorithm::SlidingWeighted => tight.most_in(period.saturating_mul(2)) <= most,
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => Flow::of(loose)
            .is_some_and(|loose| tight.at_once <= loose.at_once && tight.is_no_faster_than(&loose)),
    }
}

/// The most that a limit lets through: so much at once, and so much per period.
struct Flow {
    at_once: u128,
    amount: u128,
    period: u128,
}

impl Flow {
    fn of(limit: &Limit) -> Option<Self> {
        let amount = u128::from(limit.amount());
        let at_once = match limit.algorithm() {
            Algorithm::TokenBucket { burst, refill: Refill::Continuous } => {
                burst.map_or(amount, u128::from)
            }
            Algorithm::TokenBucket { burst, refill: Refill::Interval } => {
                burst.map_or(amount, u128::from).saturating_add(amount)
            }
            Algorithm::LeakyBucket { queue } => queue.map_or(amount, u128::from).saturating_add(1),
            Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => amount,
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWeighted => amount.saturating_mul(2),
        };
        (limit.headroom() == Headroom::None).then_some(())?;
        Some(Self { at_once, amount, period: span(limit)? })
    }

    fn most_in(&self, span: u128) -> u128 {
        let flowing = self.amount.saturating_mul(span).div_ceil(self.period.max(1));
        self.at_once.saturating_add(flowing)
    }

    fn is_no_faster_than(&self, other: &Self) -> bool {
        self.amount.saturating_mul(other.period) <= other.amount.saturating_mul(self.period)
    }
}

/// The length of a limit's period, if it always has the same.
fn span(limit: &Limit) -> Option<u128> {
    match limit.period() {
        Period::Every(span) => Some(u128::from(span.as_nanos())),
        Period::Calendar(_) => None,
    }
}

/// Requests that a rule is about, that lack its key, and that no other rule counts.
fn uncovered(rule: &Rule, likely: &[(usize, &Rule)]) -> Option<Problem> {
    let part = rule.key.parts().find(|part| !part.iter().any(|name| is_always_present(name)))?;
    let counts = |other: &Rule| {
        let always = other.key.parts().all(|part| part.iter().any(|name| is_always_present(name)));
        let demands =
            rule.conditions.iter().filter(|condition| !part.contains(&condition.attribute()));
        let demands: Vec<&Condition> = demands.collect();
        let covers =
            other.conditions.iter().all(|wide| demands.iter().any(|narrow| wide.covers(narrow)));
        always && covers && other.when.is_none() && !other.shadow
    };
    let matched = rule.conditions.iter().any(|condition| part.contains(&condition.attribute()));
    if matched || likely.iter().any(|(_, other)| counts(other)) {
        return None;
    }
    let names = part.join("|");
    let text = format!(
        "rule `{}`: a request without `{names}` is counted by no rule; write `{names}|ip`, or add a rule with `key: [ip]`",
        rule.name
    );
    Some(problem(rule.place, text))
}

fn is_always_present(name: &str) -> bool {
    ALWAYS_PRESENT.contains(&name)
}

/// An earlier rule about the same requests and the same customers.
fn twin(likely: &[(usize, &Rule)], number: usize, rule: &Rule) -> Option<Problem> {
    let same = |other: &Rule| {
        other.conditions == rule.conditions
            && other.key == rule.key
            && other.when == rule.when
            && (other.shadow, &other.on_limit) == (rule.shadow, &rule.on_limit)
            && (other.count, &other.mode) == (rule.count, &rule.mode)
    };
    let earlier = likely.iter().find(|(n, other)| *n < number && same(other))?;
    let text = format!(
        "rule `{}` is about the same requests and keys as `{}` at {}; both apply, so write their limits in one",
        rule.name, earlier.1.name, earlier.1.place
    );
    Some(problem(rule.place, text))
}

/// Settings that do nothing together.
fn pointless(rule: &Rule) -> Option<Problem> {
    if rule.count_rejected == RejectedCost::Charged
        && matches!(rule.on_limit, OnLimit::Delay { .. })
    {
        let text = format!(
            "rule `{}`: `count_rejected: true` with `delay` charges a waiting request for every try",
            rule.name
        );
        return Some(problem(rule.place, text));
    }
    None
}

/// An attribute that is named nowhere else, and nearly like one that is.
fn misspelt(policy: &Policy, rule: &Rule) -> Option<Problem> {
    let known = || {
        let own = policy.identity.sources.iter().map(|(name, _)| &**name);
        own.chain(ALWAYS_PRESENT)
    };
    let asked = rule
        .when
        .iter()
        .flat_map(Expression::names)
        .filter(|name| !["cost", "tier"].contains(name));
    let matched = rule.conditions.iter().map(Condition::attribute).chain(asked);
    let mut names = rule.key.names().chain(matched);
    let (name, meant) = names.find_map(|name| {
        let unknown = !known().any(|known| known == name);
        let near = nearest(name, known()).filter(|_| unknown && name.len() > 2)?;
        Some((name, near))
    })?;
    let text = format!(
        "rule `{}`: `{name}` is no attribute of `identity`; did you mean `{meant}`?",
        rule.name
    );
    Some(problem(rule.place, text))
}

/// Something that other languages would take for a pattern.
fn literal(rule: &Rule) -> Option<Problem> {
    rule.conditions.iter().find_map(|condition| {
        let text = match condition {
            Condition::Path(patterns) => {
                let segment = patterns.iter().find_map(|pattern| pattern.variable())?;
                format!("`{segment}` is matched letter by letter; `*` is any one segment")
            }
            Condition::Named(name, values) => {
                let value = values.iter().find(|value| value.contains('*'))?;
                format!(
                    "`{name}: {value}` is compared letter by letter; a star means nothing there"
                )
            }
            Condition::Method(_) | Condition::Ip(_) => return None,
        };
        Some(problem(rule.place, format!("rule `{}`: {text}", rule.name)))
    })
}

/// Paths that differ in capitals alone. An author who lists two spellings probably means all of them.
fn cased(rule: &Rule) -> Option<Problem> {
    let mut seen: HashMap<String, &Pattern> = HashMap::new();
    let paths = rule.conditions.iter().filter_map(|condition| match condition {
        Condition::Path(patterns) => Some(patterns),
        Condition::Method(_) | Condition::Ip(_) | Condition::Named(..) => None,
    });
    let (first, second) = paths.flatten().find_map(|pattern| {
        let folded = Case::Insensitive.fold(&pattern.to_string()).into_owned();
        let first = *seen.entry(folded).or_insert(pattern);
        (first != pattern).then_some((first, pattern))
    })?;
    let text = format!(
        "rule `{}`: `{first}` and `{second}` differ in capitals alone; `case_insensitive: true` covers every such spelling",
        rule.name
    );
    Some(problem(rule.place, text))
}

/// A rule about a tier that there is not.
fn no_such_tier(policy: &Policy, rule: &Rule) -> Option<Problem> {
    let tiers = rule.conditions.iter().find(|condition| condition.attribute() == "tier")?;
    let unknown = tiers.values().find(|tier| !policy.tiers.is_known(tier))?;
    let text = format!("rule `{}`: there is no tier `{unknown}`; list it under `tiers`", rule.name);
    Some(problem(rule.place, text))
}

fn problem(place: Place, text: String) -> Problem {
    Problem::new(place, text)
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    fn with_rules(rules: &str) -> String {
        format!("version: 1\nrules:\n{rules}")
    }

    fn errors(rules: &str) -> Vec<String> {
        let error = Policy::parse(with_rules(rules)).unwrap_err();
        error.problems().iter().map(ToString::to_string).collect()
    }

    fn warnings(text: &str) -> Vec<String> {
        Policy::parse(text).unwrap().warnings().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_rule_behind_a_stop_that_covers_it_is_an_error() {
        for (first, second, hidden) in [
            ("key: [ip]", "key: [ip]", true),
            ("key: [ip]", "match: { path: /a }, key: [ip]", true),
            ("key: []", "key: [user]", true),
            ("key: [user|ip]", "key: [ip]", true),
            ("match: { path: /a/** }, key: [ip]", "match: { path: [/a, /a/b] }, key: [ip]", true),
            ("match: { tenant: [x, y] }, key: [tenant]", "match: { tenant: x }, key: []", true),
            // Anonymous requests go on to the second.
            ("key: [user]", "key: [ip]", false),
            ("key: [user]", "key: [user|ip]", false),
            ("match: { path: /a }, key: [ip]", "match: { path: [/a, /b] }, key: [ip]", false),
            ("match: { path: /a }, key: [ip]", "key: [ip]", false),
            ("when: 'cost > 1', key: [ip]", "key: [ip]", false),
            ("enabled: false, key: [ip]", "key: [ip]", false),
        ] {
            let rules = format!(
                "  - {{ name: first, stop: true, limits: [1/s], {first} }}\n  - {{ name: second, limits: [2/s], {second} }}\n"
            );
            let refused = Policy::parse(with_rules(&rules));
            assert_eq!(refused.is_err(), hidden, "{rules}");
            if hidden {
                let text = refused.unwrap_err().to_string();
                assert_eq!(
                    text,
                    "4:5: rule `second` is never reached: `first` at 3:5 covers it and says stop"
                );
            }
        }
    }

    #[test]
    fn more_limits_than_a_plan_has_are_an_error() {
        let rules: String = (0..6)
            .map(|n| format!("  - {{ name: r{n}, key: [ip], limits: [1/s, 10/min, 100/h] }}\n"))
            .collect();
        assert!(errors(&rules)[0].contains("more than 16 limits can apply to one request"));
        // Nine that ask for a method and nine that ask for a path meet in one request.
        let crossed: String = (0..9)
            .map(|n| format!("  - {{ name: m{n}, match: {{ method: [PUT, GET] }}, key: [ip], limits: [1/s] }}\n  - {{ name: p{n}, match: {{ path: /a }}, key: [ip], limits: [1/s] }}\n"))
            .collect();
        assert!(errors(&crossed)[0].contains("more than 16 limits"));
        // A stop before them keeps them apart.
        let stopped: String =
            (0..16).map(|n| format!("  - {{ name: r{n}, key: [ip], limits: [1/s] }}\n")).collect();
        let stopped = format!(
            "  - {{ name: first, match: {{ path: /x }}, key: [ip], limits: [1/s], stop: true }}\n{stopped}"
        );
        assert!(Policy::parse(with_rules(&stopped)).is_ok());
        let apart: String = (0..6)
            .map(|n| format!("  - {{ name: r{n}, match: {{ path: /{n} }}, key: [ip], limits: [1/s, 10/min, 100/h] }}\n"))
            .collect();
        assert!(Policy::parse(with_rules(&apart)).is_ok());
    }

    #[test]
    fn warnings_say_what_cannot_be_meant() {
        for (text, expected) in [
            (
                "rules: [{ name: a, key: [ip], limits: [2/s, { rate: 10000/min, algorithm: sliding_log }] }]",
                "`10000/min` can never bind, because `2/s` lets less through",
            ),
            (
                "rules: [{ name: a, key: [ip], limits: [{ rate: 1/s, burst: 5 }, { rate: 10/s, burst: 5, name: b }] }]",
                "`10/s` can never bind, because `1/s` lets less through",
            ),
            (
                "identity: { user: 'header:x-user' }\nrules: [{ name: a, key: [user|ip], limits: [2/s] }]",
                "`trusted` names nobody",
            ),
            (
                "identity: { trusted: everyone }\nrules: [{ name: a, key: [ip], limits: [2/s] }]",
                "can claim to be anybody",
            ),
            (
                "identity: { ip: { ipv6_prefix: 128 } }\nrules: [{ name: a, key: [ip], limits: [2/s] }]",
                "2⁶⁴ addresses",
            ),
            (
                "rules: [{ name: a, key: [user], limits: [2/s] }]",
                "a request without `user` is counted by no rule",
            ),
            (
                "rules: [{ name: a, key: [user], limits: [2/s] }, { name: b, match: { method: POST }, key: [ip], limits: [2/s] }]",
                "a request without `user` is counted by no rule",
            ),
            (
                "rules: [{ name: a, key: [ip], limits: [2/s] }, { name: b, key: [ip], limits: [9/min] }]",
                "rule `b` is about the same requests and keys as `a` at 2:9",
            ),
            (
                "rules: [{ name: a, key: [ip], limits: [2/s], count_rejected: true, on_limit: { delay: { max_wait: 1s } } }]",
                "charges a waiting request for every try",
            ),
            (
                "rules: [{ name: a, match: { path: [/login, /x, /Login] }, key: [ip], limits: [2/s] }]",
                "`/login` and `/Login` differ in capitals alone; `case_insensitive: true`",
            ),
            (
                "identity: { trusted: [10.0.0.0/8], user: 'header:x-user' }\nrules: [{ name: a, key: [usr|ip], limits: [2/s] }]",
                "did you mean `user`?",
            ),
        ] {
            let found = warnings(&format!("version: 1\n{text}"));
            assert!(found.len() == 1 && found[0].contains(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn what_can_be_meant_is_not_warned_of() {
        for text in [
            "rules: [{ name: a, key: [ip], limits: [2/s, { rate: 10/min, algorithm: sliding_weighted }, { rate: 500/h, algorithm: sliding_buckets }] }]",
            "rules: [{ name: a, key: [user], limits: [2/s] }, { name: b, key: [ip], limits: [2/s] }]",
            "rules: [{ name: a, match: { path: /x/** }, key: [user], limits: [2/s] }, { name: b, match: { path: /** }, key: [ip], limits: [2/s] }]",
            "rules: [{ name: a, match: { tenant: x }, key: [tenant], limits: [2/s] }]",
            "rules: [{ name: a, key: [ip], limits: [{ rate: 10/min, algorithm: fixed_window }, 2/s] }]",
        ] {
            assert_eq!(warnings(&format!("version: 1\n{text}")), [""; 0], "{text}");
        }
    }
}
