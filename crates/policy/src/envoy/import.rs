//! From rule files to a policy that a person would have written.
//!
//! ```text
//!   foo ─┬─ bar          3/minute  ──►  - name: foo-bar
//!        └─ bar=banned   0/minute         match: { domain: rl }
//!                                         key: [foo, bar]
//!                                         limits: [{ rate: 3/min, algorithm: fixed_window }]
//!                                         overrides:
//!                                           - { key: { bar: "banned" }, limits: [{ rate: 0/min, …, block: true }] }
//! ```
//!
//! Entries become attributes: those with a value are matched, those without are keys. Longer descriptors come first and stop,
//! because a policy's rule is about every request that has its attributes, not only about those that have no others. What a
//! policy cannot say is left out, and said.

use super::{DescriptorRule, Descriptors, Node, Pattern};
use crate::key::Key;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// A policy, and what it could not take over.
///
/// ```
/// use tidegate_policy::{EnvoyFile, Policy};
/// let text = b"
/// domain: rl
/// descriptors:
///   - { key: user, rate_limit: { unit: minute, requests_per_unit: 3 } }
///   - { key: user, value: alice, rate_limit: { unlimited: true } }";
/// let policy = Policy::from_envoy(&[EnvoyFile { name: "rl.yaml", text }], false).unwrap();
/// let imported = policy.descriptors().unwrap().import();
/// let policy = Policy::parse(&imported.text).unwrap();
/// assert_eq!(policy.rules().len(), 1); // alice is an exception in it
/// assert!(imported.left_out.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The policy, as a file.
    pub text: String,
    /// What it does not say, a line each.
    pub left_out: Vec<String>,
}

/// A limit and the way to it.
#[derive(Clone)]
struct Leaf<'d> {
    domain: &'d str,
    steps: Vec<Step<'d>>,
    rule: &'d DescriptorRule,
}

#[derive(Clone, Copy)]
struct Step<'d> {
    key: &'d str,
    value: Wanted<'d>,
}

#[derive(Clone, Copy)]
enum Wanted<'d> {
    Any,
    Exact(&'d str),
    Like(&'d Pattern),
}

/// Writes rules one after another.
#[derive(Default)]
struct Writer {
    text: String,
    names: HashSet<String>,
    left_out: Vec<String>,
}

const HEAD: &str = "\
# Imported from rule files of envoyproxy/ratelimit. Entries of descriptors are attributes here, and `domain` is the call's.
# Windows are fixed and refused calls count, as they did there; `15/s` alone would be a token bucket that forgives refusals.
version: 1
";

impl Descriptors {
    /// The same rules as a policy.
    #[must_use]
    pub fn import(&self) -> Imported {
        let mut leaves = Vec::new();
        for (domain, node) in &self.domains {
            collect(domain, node, &mut vec![], &mut leaves);
        }
        leaves.sort_by_key(Leaf::order);
        let mut writer = Writer::default();
        leaves.retain(|leaf| writer.can_say(leaf));
        let kin = Kin::new(&leaves);
        for (number, leaf) in leaves.iter().enumerate() {
            writer.leaf(number, leaf, &leaves, &kin);
        }
        if writer.text.is_empty() {
            writer.text.push_str("rules: []\n");
        } else {
            writer.text.insert_str(0, "rules:\n");
        }
        let mut text = HEAD.to_owned();
        writer.left_out.iter().for_each(|line| _ = writeln!(text, "# LEFT OUT: {line}"));
        text.push_str(&writer.text);
        Imported { text, left_out: writer.left_out }
    }
}

fn collect<'d>(
    domain: &'d str,
    node: &'d Node,
    steps: &mut Vec<Step<'d>>,
    leaves: &mut Vec<Leaf<'d>>,
) {
    if let Some(rule) = &node.rule {
        leaves.push(Leaf { domain, steps: steps.clone(), rule });
    }
    let exact = node.below.iter().flat_map(|(key, values)| {
        values.exact.iter().map(move |(value, node)| (&**key, Wanted::Exact(value), node))
    });
    let any = node
        .below
        .iter()
        .filter_map(|(key, values)| Some((&**key, Wanted::Any, values.any.as_deref()?)));
    let like =
        node.patterns.iter().map(|(pattern, node)| (&*pattern.key, Wanted::Like(pattern), node));
    for (key, value, node) in exact.chain(any).chain(like) {
        steps.push(Step { key, value });
        collect(domain, node, steps, leaves);
        steps.pop();
    }
}

impl Writer {
    /// Whether a policy can say this at all; otherwise it is noted.
    fn can_say(&mut self, leaf: &Leaf<'_>) -> bool {
        let names = || leaf.steps.iter().map(|step| attribute(step.key));
        let why = if Key::parse(names()).is_err() {
            "its keys cannot be the key of a rule: names of `A-Z a-z 0-9 _ - .`, each once, at most eight"
        } else if leaf.steps.iter().any(|step| step.key == "domain") {
            "`domain` is the domain of the call here"
        } else if leaf.steps.iter().any(|step| matches!(step.value, Wanted::Like(p) if p.value.matches('*').count() > 2 || p.key.contains('*'))) {
            "its pattern has more stars than a condition can say"
        } else {
            return true;
        };
        self.left_out.push(format!("{}: {why}", leaf.path()));
        false
    }

    fn leaf(&mut self, number: usize, leaf: &Leaf<'_>, all: &[Leaf<'_>], kin: &Kin<'_>) {
        let rule = leaf.rule;
        for (is, what) in [
            (rule.quota, "`quota_mode`: it refuses by itself now"),
            (!rule.replaces.is_empty(), "`replaces`: what it replaced applies too"),
            (rule.metadata.is_some(), "`metadata` is not told"),
        ] {
            if is {
                self.left_out.push(format!("{}: {what}", leaf.path()));
            }
        }
        // An exception to a rule about any value stands with that rule.
        if kin.is_exception(number) {
            return;
        }
        let Some(limits) = limits(rule) else {
            // Unlimited: what no rule is about passes; only a rule about less would be in its way.
            if kin.is_narrow(number, leaf) {
                let text = format!("{}: `unlimited`, which a wider rule now limits", leaf.path());
                self.left_out.push(text);
            }
            return;
        };
        let name = self.name(leaf);
        let text = &mut self.text;
        let mut matched = vec![format!("domain: {:?}", leaf.domain)];
        let (mut conditions, mut key) = (vec![], vec![]);
        for step in &leaf.steps {
            let attribute = attribute(step.key);
            match step.value {
                Wanted::Any => key.push(attribute),
                Wanted::Exact(value) => matched.push(format!("{attribute}: {value:?}")),
                Wanted::Like(pattern) => {
                    conditions.extend(conditions_of(attribute, &pattern.value));
                    if pattern.shared.is_none() {
                        key.push(attribute);
                    }
                }
            }
        }
        let _ = writeln!(text, "  - name: {name}\n    match: {{ {} }}", matched.join(", "));
        if !conditions.is_empty() {
            let _ = writeln!(text, "    when: {}", quoted(&conditions.join(" and ")));
        }
        let _ = writeln!(text, "    key: [{}]\n    limits: [{limits}]", key.join(", "));
        let exceptions = kin.exceptions.get(&number).map_or(&[][..], Vec::as_slice);
        if !exceptions.is_empty() {
            text.push_str("    overrides:\n");
        }
        for other in exceptions.iter().filter_map(|number| all.get(*number)) {
            let Some(Step { key, value: Wanted::Exact(value) }) = other.steps.last() else {
                continue;
            };
            let limits = limits_or_none(other.rule);
            let key = attribute(key);
            let _ = writeln!(text, "      - {{ key: {{ {key}: {value:?} }}, limits: {limits} }}");
        }
        text.push_str("    count_rejected: true\n");
        if rule.shadow {
            text.push_str("    shadow: true\n");
        }
        if kin.is_narrow(number, leaf) {
            text.push_str("    stop: true\n");
        }
    }

    /// A name that no other rule has: the limit's own, else the way to it.
    fn name(&mut self, leaf: &Leaf<'_>) -> String {
        let own = if leaf.rule.name.is_empty() { leaf.path() } else { leaf.rule.name.to_string() };
        let plain = |c: char| if c.is_ascii_alphanumeric() || "_.".contains(c) { c } else { '-' };
        let name: String = own.chars().map(plain).take(48).collect();
        let mut name = name.trim_matches('-').to_owned();
        while name.contains("--") {
            name = name.replace("--", "-");
        }
        if name.is_empty() {
            name.push_str("rule");
        }
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let mut names = [name.clone()].into_iter().chain(numbered);
        let free = names.find(|name| !self.names.contains(name)).unwrap_or(name);
        self.names.insert(free.clone());
        free
    }
}

impl Leaf<'_> {
    /// `rl/foo/bar=banned`
    fn path(&self) -> String {
        let mut path = self.domain.to_owned();
        for step in &self.steps {
            let _ = match step.value {
                Wanted::Any => write!(path, "/{}", step.key),
                Wanted::Exact(value) => write!(path, "/{}={value}", step.key),
                Wanted::Like(pattern) => write!(path, "/{}={}", step.key, pattern.value),
            };
        }
        path
    }

    /// Longer ones first; then those with a value, with a pattern, with any value; otherwise as in the files.
    fn order(&self) -> (Reverse<usize>, Vec<u8>, usize) {
        let rank = |step: &Step<'_>| match step.value {
            Wanted::Exact(_) => 0,
            Wanted::Like(_) => 1,
            Wanted::Any => 2,
        };
        let ranks = self.steps.iter().map(rank).collect();
        (Reverse(self.steps.len()), ranks, self.rule.number)
    }

    /// The names of its attributes, in order of the alphabet.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.steps.iter().map(|step| attribute(step.key)).collect();
        names.sort_unstable();
        names
    }

    /// What limits have in common that differ in the value of their last entry only; and that value.
    fn family(&self) -> Option<(String, Wanted<'_>)> {
        let (last, before) = self.steps.split_last()?;
        let before = Leaf { steps: before.to_vec(), ..*self };
        Some((format!("{}\0{}", before.path(), last.key), last.value))
    }
}

/// How limits are related: in numbers, because there may be twenty thousand.
#[derive(Default)]
struct Kin<'l> {
    /// By the number of a limit for any value, those for certain values.
    exceptions: HashMap<usize, Vec<usize>>,
    /// All of the latter.
    exceptional: HashSet<usize>,
    /// By domain and attributes, the last limit that is about more than one value.
    attributes: HashMap<(&'l str, Vec<&'l str>), Option<usize>>,
}

impl<'l> Kin<'l> {
    fn new(leaves: &'l [Leaf<'l>]) -> Self {
        let mut kin = Self::default();
        let (mut homes, mut patterns) = (HashMap::new(), HashSet::new());
        for (number, leaf) in leaves.iter().enumerate() {
            let exact = leaf.steps.iter().all(|step| matches!(step.value, Wanted::Exact(_)));
            let last = kin.attributes.entry((leaf.domain, leaf.names())).or_default();
            *last = if exact { *last } else { Some(number) };
            match leaf.family() {
                Some((family, Wanted::Any)) if leaf.rule.limit.is_some() => {
                    homes.insert(family, number);
                }
                // Between a value and any value come patterns; then each is a rule of its own.
                Some((family, Wanted::Like(_))) => _ = patterns.insert(family),
                Some((_, Wanted::Any | Wanted::Exact(_))) | None => {}
            }
        }
        for (number, leaf) in leaves.iter().enumerate() {
            if let Some((family, Wanted::Exact(_))) = leaf.family()
                && !leaf.rule.shadow
                && !patterns.contains(&family)
                && let Some(home) = homes.get(&family)
            {
                kin.exceptions.entry(*home).or_default().push(number);
                kin.exceptional.insert(number);
            }
        }
        kin
    }

    fn is_exception(&self, number: usize) -> bool {
        self.exceptional.contains(&number)
    }

    /// Whether a later rule may be about requests that this one is about: one that wants fewer attributes, or the same of any
    /// value.
    fn is_narrow(&self, number: usize, leaf: &Leaf<'_>) -> bool {
        let names = leaf.names();
        self.attributes.iter().any(|((domain, others), last)| {
            let fewer =
                others.len() < names.len() && others.iter().all(|name| names.contains(name));
            let same = *others == names && last.is_some_and(|last| last > number);
            *domain == leaf.domain && (fewer || same)
        })
    }
}

/// What an entry is called as an attribute.
fn attribute(key: &str) -> &str {
    match key {
        "remote_address" | "masked_remote_address" => "ip",
        _ => key,
    }
}

/// What a pattern says of an attribute.
fn conditions_of(attribute: &str, pattern: &str) -> Vec<String> {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let mut parts: Vec<&str> = parts.collect();
    let last = parts.pop().unwrap_or_default();
    let says = |what: &str, text: &str| format!("{attribute}.{what}({text:?})");
    let mut conditions = vec![says("starts_with", first)];
    conditions
        .extend(parts.iter().filter(|part| !part.is_empty()).map(|part| says("contains", part)));
    if !last.is_empty() {
        conditions.push(says("ends_with", last));
    }
    conditions
}

/// Text in quotes that leave those within alone.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A limit as a policy writes it; `None` is as much as they like.
fn limits(rule: &DescriptorRule) -> Option<String> {
    let limit = rule.limit.as_ref()?;
    let block = if limit.limit().amount() == 0 { ", block: true" } else { "" };
    Some(format!("{{ rate: {}, algorithm: fixed_window{block} }}", limit.rate()))
}

fn limits_or_none(rule: &DescriptorRule) -> String {
    limits(rule).map_or("unlimited".to_owned(), |limits| format!("[{limits}]"))
}
