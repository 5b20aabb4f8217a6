//! Translates rule files into a policy that a person would have written.
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
//! Entries become attributes: entries with a value become conditions, the others become part of the key. Rules for longer
//! descriptors come first and say `stop`, because a rule of a policy applies to every request that has its attributes, also
//! to one that has more. What a policy cannot express is left out and listed.

use super::leaves::{Leaf, Relations, Step, Wanted, collect};
use crate::model::descriptors::{DescriptorRule, Descriptors};
use crate::model::key::Key;
use std::collections::HashSet;
use std::fmt::Write;

/// A policy, and what could not be translated.
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
/// assert_eq!(policy.rules().len(), 1); // alice is an override of it
/// assert!(imported.left_out.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The policy file.
    pub text: String,
    /// What was left out, one line each.
    pub left_out: Vec<String>,
}

/// Writes one rule after another.
#[derive(Default)]
struct Writer {
    text: String,
    names: HashSet<String>,
    left_out: Vec<String>,
}

const HEAD: &str = "\
# Imported from rule files of envoyproxy/ratelimit. Entries of descriptors are attributes here; `domain` is the domain of the call.
# Windows are fixed and denied calls count, as in the reference service; `15/s` alone would be a token bucket that does not count them.
version: 1
";

impl Descriptors {
    /// Translates the rules into a policy.
    #[must_use]
    pub fn import(&self) -> Imported {
        let mut leaves = Vec::new();
        for (domain, node) in &self.domains {
            collect(domain, node, &mut vec![], &mut leaves);
        }
        leaves.sort_by_key(Leaf::order);
        let mut writer = Writer::default();
        leaves.retain(|leaf| writer.is_expressible(leaf));
        let relations = Relations::new(&leaves);
        for (number, leaf) in leaves.iter().enumerate() {
            writer.leaf(number, leaf, &leaves, &relations);
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

impl Writer {
    /// Whether a policy can express a limit at all. If not, this is noted.
    fn is_expressible(&mut self, leaf: &Leaf<'_>) -> bool {
        let has_too_many_stars = |step: &Step<'_>| match step.value {
            Wanted::Like(wildcard) => {
                wildcard.value.matches('*').count() > 2 || wildcard.key.contains('*')
            }
            Wanted::Any | Wanted::Exact(_) => false,
        };
        let why = if Key::parse(leaf.steps.iter().map(Step::attribute)).is_err() {
            "its keys cannot be the key of a rule, which has at most eight different names of `A-Z a-z 0-9 _ - .`"
        } else if leaf.steps.iter().any(|step| step.key == "domain") {
            "the attribute `domain` is already used for the domain of the call"
        } else if leaf.steps.iter().any(has_too_many_stars) {
            "its wildcard has more stars than a condition can express"
        } else {
            return true;
        };
        self.left_out.push(format!("{}: {why}", leaf.path()));
        false
    }

    fn leaf(
        &mut self,
        number: usize,
        leaf: &Leaf<'_>,
        all: &[Leaf<'_>],
        relations: &Relations<'_>,
    ) {
        self.note_lost_settings(leaf);
        // An exception is written with the rule that it belongs to.
        if relations.is_exception(number) {
            return;
        }
        let is_narrow = relations.is_narrow(number, leaf);
        let Some(limits) = limits(leaf.rule) else {
            // Requests without a rule pass, so `unlimited` needs no rule. It is lost only if a wider rule applies.
            if is_narrow {
                let text = format!("{}: `unlimited`, but a wider rule now limits it", leaf.path());
                self.left_out.push(text);
            }
            return;
        };
        let name = self.name(leaf);
        self.conditions_and_key(&name, leaf);
        let _ = writeln!(self.text, "    limits: [{limits}]");
        self.overrides(relations.exceptions(number).iter().filter_map(|number| all.get(*number)));
        self.text.push_str("    count_rejected: true\n");
        if leaf.rule.shadow {
            self.text.push_str("    shadow: true\n");
        }
        if is_narrow {
            self.text.push_str("    stop: true\n");
        }
    }

    fn note_lost_settings(&mut self, leaf: &Leaf<'_>) {
        let rule = leaf.rule;
        for (is_set, what) in [
            (rule.quota, "`quota_mode`: the rule now denies by itself"),
            (!rule.replaces.is_empty(), "`replaces`: the replaced limits now apply too"),
            (rule.metadata.is_some(), "`metadata` is not sent"),
        ] {
            if is_set {
                self.left_out.push(format!("{}: {what}", leaf.path()));
            }
        }
    }

    fn conditions_and_key(&mut self, name: &str, leaf: &Leaf<'_>) {
        let mut matched = vec![format!("domain: {:?}", leaf.domain)];
        let (mut conditions, mut key) = (vec![], vec![]);
        for step in &leaf.steps {
            let attribute = step.attribute();
            match step.value {
                Wanted::Any => key.push(attribute),
                Wanted::Exact(value) => matched.push(format!("{attribute}: {value:?}")),
                Wanted::Like(wildcard) => {
                    conditions.extend(conditions_of(attribute, &wildcard.value));
                    if wildcard.shared.is_none() {
                        key.push(attribute);
                    }
                }
            }
        }
        let text = &mut self.text;
        let _ = writeln!(text, "  - name: {name}\n    match: {{ {} }}", matched.join(", "));
        if !conditions.is_empty() {
            let _ = writeln!(text, "    when: {}", quoted(&conditions.join(" and ")));
        }
        let _ = writeln!(text, "    key: [{}]", key.join(", "));
    }

    fn overrides<'l>(&mut self, exceptions: impl Iterator<Item = &'l Leaf<'l>>) {
        for (number, exception) in exceptions.enumerate() {
            if number == 0 {
                self.text.push_str("    overrides:\n");
            }
            let Some(step) = exception.steps.last() else { continue };
            let Wanted::Exact(value) = step.value else { continue };
            let (key, limits) = (step.attribute(), limits_or_unlimited(exception.rule));
            let _ =
                writeln!(self.text, "      - {{ key: {{ {key}: {value:?} }}, limits: {limits} }}");
        }
    }

    /// A unique name: the name of the limit, else the path to it.
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

/// The conditions on an attribute that a wildcard stands for.
fn conditions_of(attribute: &str, wildcard: &str) -> Vec<String> {
    let mut parts = wildcard.split('*');
    let first = parts.next().unwrap_or_default();
    let mut parts: Vec<&str> = parts.collect();
    let last = parts.pop().unwrap_or_default();
    let condition = |test: &str, text: &str| format!("{attribute}.{test}({text:?})");
    let mut conditions = vec![condition("starts_with", first)];
    let middle = parts.iter().filter(|part| !part.is_empty());
    conditions.extend(middle.map(|part| condition("contains", part)));
    if !last.is_empty() {
        conditions.push(condition("ends_with", last));
    }
    conditions
}

/// Text in single quotes, as YAML writes it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A limit as a policy writes it; `None` means unlimited.
fn limits(rule: &DescriptorRule) -> Option<String> {
    let limit = rule.limit.as_ref()?;
    let block = if limit.limit().amount() == 0 { ", block: true" } else { "" };
    Some(format!("{{ rate: {}, algorithm: fixed_window{block} }}", limit.rate()))
}

fn limits_or_unlimited(rule: &DescriptorRule) -> String {
    limits(rule).map_or("unlimited".to_owned(), |limits| format!("[{limits}]"))
}
