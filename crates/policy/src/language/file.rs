//! Reads a policy file: from a document to a [`Policy`], or to everything that is wrong with it.
//!
//! ```text
//!   bytes ──► Document ──► grammar: known keys, kinds ──► here: the meaning of values ──► Policy
//! ```
//!
//! Each function reads the part of the language that it is named after. A part with mistakes is reported and left out, so that
//! the rest is still checked. The result is a policy only if nothing was reported.

mod behavior;
mod identity;
mod limits;
mod priorities;

use crate::document::{Document, Entry, Place, Problem, Value, shortened, shown};
use crate::language::grammar;
use crate::language::lint;
use crate::language::reader::{Chosen, Fields, Reader};
use crate::model::allowance::{Allowance, RuleLimit};
use crate::model::attributes::is_attribute;
use crate::model::condition::Condition;
use crate::model::expression::Expression;
use crate::model::identity::Identity;
use crate::model::key::Key;
use crate::model::overrides::Overrides;
use crate::model::path::Case;
use crate::model::pattern::Pattern;
use crate::model::policy::{Ambiguous, Policy, Tiers};
use crate::model::priority::Classes;
use crate::model::rule::{Consistency, Mode, Rule, lease_group};
use crate::suggest::nearest;
use std::collections::HashMap;
use tidegate_core::{Headroom, Span};

/// Twice as many as the largest policies that we know of.
const MOST_RULES: usize = 20_000;
/// Plans for sale. A single customer with a contract of its own is an override.
const MOST_TIERS: usize = 64;
/// A longer list of values belongs in the service, which can send an attribute that stands for the list.
const MOST_VALUES: usize = 1_000;
/// Long enough for a batch job; no client waits longer for an answer.
const LONGEST_WAIT: Span = Span::from_secs(3_600);
/// Waiting requests hold memory, and a queue of a thousand requests of one key never empties in time.
const DEFAULT_QUEUE: usize = 1_000;

/// The attributes that have a meaning of their own under `match`.
const KNOWN_ATTRIBUTES: [&str; 4] = ["method", "path", "ip", "tier"];

pub(crate) fn read(bytes: &[u8]) -> Result<Policy, Vec<Problem>> {
    let (document, problems) = Document::read(bytes);
    let mut reader = Reader { problems };
    let policy = document.and_then(|document| reader.policy(document));
    let mut problems = reader.problems;
    if let Some(policy) = policy.as_ref().filter(|_| problems.is_empty()) {
        problems = lint::errors(policy);
    }
    problems.sort_by_key(|problem| problem.place);
    match policy {
        Some(policy) if problems.is_empty() => Ok(policy),
        Some(_) | None => Err(shortened(problems)),
    }
}

/// Reads an allowance outside of a policy: `unlimited`, or a list of limits.
pub(crate) fn read_allowance(bytes: &[u8]) -> Result<Allowance, Vec<Problem>> {
    let (document, problems) = Document::read(bytes);
    let mut reader = Reader { problems };
    let allowance = document.and_then(|document| reader.allowance(&document, Headroom::None));
    match allowance {
        Some(allowance) if reader.problems.is_empty() => Ok(allowance),
        Some(_) | None => Err(shortened(reader.problems)),
    }
}

/// The settings of a policy that its rules depend on.
struct Settings<'p> {
    identity: &'p Identity,
    tiers: Option<&'p Tiers>,
    classes: &'p Classes,
    case: Case,
}

impl Reader {
    fn policy(&mut self, mut document: Document) -> Option<Policy> {
        let rules = take_rules(&mut document);
        let fields = self.record(&document, &grammar::POLICY)?;
        if let Some(node) = fields.get("version") {
            self.version(node);
        }
        let identity = fields.get("identity").map(|node| self.identity(node)).unwrap_or_default();
        let tiers = fields.get("tiers").and_then(|node| self.tiers(node));
        let (ambiguous, case) =
            fields.get("paths").map(|node| self.paths(node)).unwrap_or_default();
        let methods = fields.get("methods").and_then(|node| self.record(node, &grammar::METHODS));
        let overrides = methods
            .and_then(|fields| self.ambiguous(fields.get("overrides")?, &grammar::OVERRIDES));
        let classes = fields.get("priorities").map(|node| self.priorities(node));
        // Rules may name classes that were not understood, so none of their names are reported then.
        let named = classes.as_ref().is_none_or(Option::is_some);
        let classes = classes.flatten().unwrap_or_default();
        let settings =
            Settings { identity: &identity, tiers: tiers.as_ref(), classes: &classes, case };
        let rules = self.rules(rules?, &settings)?;
        let policy = Policy::new(identity, tiers.unwrap_or_default(), rules);
        let method_overrides = overrides.unwrap_or_default();
        named.then_some(Policy { ambiguous, method_overrides, classes, ..policy })
    }

    fn paths(&mut self, node: &Document) -> (Ambiguous, Case) {
        let Some(fields) = self.record(node, &grammar::PATHS) else { return Default::default() };
        let ambiguous = fields.get("ambiguous");
        let ambiguous = ambiguous.and_then(|node| self.ambiguous(node, &grammar::AMBIGUOUS));
        (ambiguous.unwrap_or_default(), self.case(&fields).unwrap_or_default())
    }

    fn ambiguous(
        &mut self,
        node: &Document,
        choice: &'static grammar::Choice,
    ) -> Option<Ambiguous> {
        match self.choice(node, choice)? {
            Chosen::Word("reject") => Some(Ambiguous::Reject),
            Chosen::Word(_) | Chosen::Form(..) => Some(Ambiguous::MatchAny),
        }
    }

    fn case(&mut self, fields: &Fields<'_>) -> Option<Case> {
        let insensitive = self.flag(fields.get("case_insensitive")?, "`case_insensitive`")?;
        Some(if insensitive { Case::Insensitive } else { Case::Sensitive })
    }

    fn version(&mut self, node: &Document) {
        match &node.value {
            Value::Text(text, false) if text == "1" => {}
            Value::Text(text, false) if text.parse::<u64>().is_ok() => {
                let text = format!(
                    "version {} of the policy language is not supported; write `version: 1`",
                    shown(text)
                );
                self.note(node.place, text);
            }
            Value::Text(..) | Value::Nothing | Value::List(_) | Value::Map(_) => {
                self.note(node.place, "`version` is the number 1; write `version: 1`");
            }
        }
    }

    /// A name that is safe in headers, metrics and file names.
    pub(super) fn name(&mut self, node: &Document, what: &str) -> Option<Box<str>> {
        let text = self.text(node, what)?;
        if !is_attribute(text) || text.starts_with('.') {
            let text = format!(
                "`{}` is not a valid name for {what}; use 1 to 64 of `A-Z a-z 0-9 . _ -`, not starting with a dot",
                shown(text)
            );
            return self.wrong(node.place, text);
        }
        Some(text.into())
    }

    // === rules ===

    fn rules(&mut self, node: Document, settings: &Settings<'_>) -> Option<Vec<Rule>> {
        let list = self.list(&node, "`rules`")?;
        if list.is_empty() {
            return self.wrong(node.place, "`rules` is empty; a policy has at least one rule");
        }
        if list.len() > MOST_RULES {
            let text = format!("{} rules; a policy has at most {MOST_RULES}", list.len());
            return self.wrong(node.place, text);
        }
        self.names_are_unique(list);
        let Value::List(list) = node.value else { return None };
        // Each node is dropped when its rule is read, so that the document and the rules are never both whole in memory.
        let read = |node: Document| match self.is_full() {
            true => None,
            false => self.rule(&node, settings),
        };
        Some(list.into_iter().filter_map(read).collect())
    }

    /// Compares the names alone, so that a rule with another mistake is compared too.
    fn names_are_unique(&mut self, rules: &[Document]) {
        let mut seen: HashMap<&str, Place> = HashMap::new();
        for node in rules {
            let Value::Map(entries) = &node.value else { continue };
            let name =
                entries.iter().find(|entry| &*entry.name == "name").map(|entry| &entry.node.value);
            let Some(Value::Text(name, _)) = name else { continue };
            let first = *seen.entry(name).or_insert(node.place);
            if first != node.place {
                let text =
                    format!("a second rule named `{}`; the first is at {first}", shown(name));
                self.note(node.place, text);
            }
        }
    }

    fn rule(&mut self, node: &Document, settings: &Settings<'_>) -> Option<Rule> {
        let fields = self.record(node, &grammar::RULE)?;
        // Everything is read before a missing part ends the function, so that all mistakes of a rule are reported.
        let name = fields.get("name").and_then(|node| self.name(node, "a rule"));
        let _ = fields.get("description").map(|node| self.text(node, "`description`"));
        let case = self.case(&fields).unwrap_or(settings.case);
        let conditions = fields.get("match");
        let mut conditions =
            conditions.map_or(vec![], |node| self.conditions(node, case, settings.identity));
        if self.flag_or(&fields, "get_includes_head", true) {
            conditions.iter_mut().for_each(Condition::include_head);
        }
        let when = fields.get("when").and_then(|node| self.expression(node, settings.identity));
        let key = fields.get("key").and_then(|node| self.key(node)).map(|key| key.with_case(case));
        let mode = fields.get("mode").and_then(|node| self.mode(node, settings.identity));
        let mode = mode.unwrap_or_default();
        let allowance = fields.get("limits").and_then(|n| self.allowance(n, mode.headroom()));
        let base = allowance.as_ref().map_or(&[][..], Allowance::limits);
        let (tiers, overrides) = self.exceptions(&fields, base, key.as_ref(), &mode, settings);
        let priority = self.class(&fields, "priority", settings.classes);
        let (key, allowance) = match (priority, &allowance) {
            (Some(_), _) | (None, Some(Allowance::Unlimited)) => {
                self.of_rule_without_key(&fields, key, allowance, &tiers)
            }
            (None, _) => (key, allowance),
        };
        let rest = self.behavior(&fields, settings.classes);
        let mut rule = Rule {
            name: name?,
            place: node.place,
            conditions,
            when: when.map(|when| when.with_case(case)),
            key: key?,
            allowance: allowance?,
            tiers,
            overrides,
            mode,
            priority,
            ..rest
        };
        if let Consistency::Lease(terms) = &mut rule.consistency {
            terms.group = lease_group(&rule.name);
        }
        self.unlimited_has_no_settings(&fields, &rule);
        self.permits_are_returned(&fields, &rule);
        self.limits_can_be_leased(&fields, &rule);
        Some(rule)
    }

    /// Key and allowance of a rule with a `priority`, which may have neither, or of an unlimited one, which needs no key. Limits
    /// without a key are an error: an author who forgets the key would get one counter for all clients.
    fn of_rule_without_key(
        &mut self,
        fields: &Fields<'_>,
        key: Option<Key>,
        allowance: Option<Allowance>,
        tiers: &[(Box<str>, Allowance)],
    ) -> (Option<Key>, Option<Allowance>) {
        let (has_key, has_limits) = (fields.get("key").is_some(), fields.get("limits").is_some());
        let counts = (has_limits && allowance != Some(Allowance::Unlimited))
            || fields.get("overrides").is_some()
            || tiers.iter().any(|(_, allowance)| !allowance.limits().is_empty());
        if counts && !has_key {
            let text = "a rule with `limits` needs the key `key`; write `key: []` to count all requests together";
            self.note(fields.place, text);
        }
        let key = if has_key { key } else { Some(Key::default()) };
        let allowance = if has_limits { allowance } else { Some(Allowance::Limits(vec![])) };
        (key, allowance)
    }

    /// The allowances of tiers and of single customers.
    fn exceptions(
        &mut self,
        fields: &Fields<'_>,
        base: &[RuleLimit],
        key: Option<&Key>,
        mode: &Mode,
        settings: &Settings<'_>,
    ) -> (Vec<(Box<str>, Allowance)>, Overrides) {
        let headroom = mode.headroom();
        let tiers = fields.get("tiers");
        let tiers =
            tiers.map_or(vec![], |node| self.rule_tiers(node, base, settings.tiers, headroom));
        let overrides = fields.get("overrides").map_or_else(Overrides::default, |node| {
            self.overrides(node, key, settings.identity, (base, headroom))
        });
        (tiers, overrides)
    }

    // === which requests ===

    fn conditions(&mut self, node: &Document, case: Case, identity: &Identity) -> Vec<Condition> {
        let Some(entries) = self.map(node, "`match`") else { return vec![] };
        entries.iter().filter_map(|entry| self.condition(entry, case, identity)).collect()
    }

    fn condition(&mut self, entry: &Entry, case: Case, identity: &Identity) -> Option<Condition> {
        let nodes = self.accepted_values(entry)?;
        let mut texts = nodes.iter().filter_map(|node| match &node.value {
            Value::Text(text, _) => Some(text),
            Value::Nothing | Value::List(_) | Value::Map(_) => None,
        });
        let known = texts.try_for_each(|text| identity.may_name(&entry.name, text));
        self.ok(entry.node.place, known)?;
        Some(match &*entry.name {
            "method" => {
                Condition::Method(sorted(nodes.iter().filter_map(|node| self.method(node))))
            }
            "path" => {
                let patterns = nodes.iter().filter_map(|node| self.pattern(node));
                Condition::Path(patterns.map(|pattern| pattern.with_case(case)).collect())
            }
            "ip" => Condition::Ip(nodes.iter().filter_map(|node| self.network(node)).collect()),
            "cost" => {
                let text = "`cost` does not belong in `match`; write `when: 'cost <= 100'`";
                return self.wrong(entry.place, text);
            }
            name => self.named_condition((entry.place, name), nodes, identity)?,
        })
    }

    /// One value, or a list of them.
    fn accepted_values<'d>(&mut self, entry: &'d Entry) -> Option<&'d [Document]> {
        let Value::List(list) = &entry.node.value else {
            return Some(std::slice::from_ref(&entry.node));
        };
        if list.is_empty() {
            let text =
                format!("`{}` is an empty list, so the rule could never match", shown(&entry.name));
            return self.wrong(entry.node.place, text);
        }
        if list.len() > MOST_VALUES {
            let text = format!("{} values; a condition has at most {MOST_VALUES}", list.len());
            return self.wrong(entry.node.place, text);
        }
        Some(list)
    }

    /// A condition on an attribute that is not special.
    fn named_condition(
        &mut self,
        (place, name): (Place, &str),
        nodes: &[Document],
        identity: &Identity,
    ) -> Option<Condition> {
        if let Some(meant) = misspelt(name, identity) {
            let text = format!(
                "`{}` is not an attribute of `identity`, so the rule would never match; did you mean `{meant}`?",
                shown(name)
            );
            return self.wrong(place, text);
        }
        if !is_attribute(name) {
            let text = format!(
                "`{}` is not a valid attribute name; use 1 to 64 of `A-Z a-z 0-9 _ - .`",
                shown(name)
            );
            return self.wrong(place, text);
        }
        let what = format!("`{name}`");
        let values = nodes.iter().filter_map(|node| self.value(node, &what));
        Some(Condition::Named(name.into(), sorted(values)))
    }

    fn method(&mut self, node: &Document) -> Option<String> {
        let text = self.value(node, "`method`")?;
        if !text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-') {
            let text = format!(
                "`{}` is not a valid method; write one word such as `POST`, or a list",
                shown(&text)
            );
            return self.wrong(node.place, text);
        }
        Some(text.to_ascii_uppercase())
    }

    pub(super) fn value(&mut self, node: &Document, what: &str) -> Option<String> {
        let text = self.text(node, what)?;
        if text.is_empty() {
            return self.wrong(
                node.place,
                format!("{what} must not be empty; an empty value counts as absent"),
            );
        }
        Some(text.to_owned())
    }

    fn pattern(&mut self, node: &Document) -> Option<Pattern> {
        let text = self.text(node, "a path")?;
        if text.contains(['?', '#']) {
            let text = format!("`{}`: a path is matched without its query; remove it", shown(text));
            return self.wrong(node.place, text);
        }
        self.ok(node.place, text.parse().map_err(|error| format!("`{}`: {error}", shown(text))))
    }

    pub(super) fn expression(
        &mut self,
        node: &Document,
        identity: &Identity,
    ) -> Option<Expression> {
        let text = self.text(node, "a condition")?;
        match Expression::parse_for(text, identity) {
            Ok(expression) => Some(expression),
            Err(error) => {
                let place = place_in_text(node, text, error.at);
                // A condition on a secret may contain it, and the error appears in logs.
                let secret = identity.secret_in(text).map(|name| format!("…{name}…"));
                let text = secret.unwrap_or_else(|| shown(text));
                self.wrong(place, format!("in `{text}`: {}", error.text))
            }
        }
    }

    fn key(&mut self, node: &Document) -> Option<Key> {
        let list = self.list(node, "`key`")?;
        let parts: Vec<&str> =
            list.iter().filter_map(|node| self.text(node, "a part of a key")).collect();
        if parts.len() < list.len() {
            return None;
        }
        self.ok(node.place, Key::parse(parts))
    }
}

/// The attribute that is meant by a plural, by capitals or by a misspelt `method`. No request has such an attribute, unless
/// the policy reads it. Other names may be attributes that the caller sends.
fn misspelt(name: &str, identity: &Identity) -> Option<&'static str> {
    if KNOWN_ATTRIBUTES.contains(&name) || identity.reads(name) {
        return None;
    }
    let small = name.to_ascii_lowercase();
    let singular = small.strip_suffix('s').unwrap_or(&small);
    let known =
        KNOWN_ATTRIBUTES.into_iter().find(|known| **known == *small || **known == *singular);
    known.or_else(|| nearest(name, ["method"].into_iter()))
}

/// The position of a character of a text.
fn place_in_text(node: &Document, text: &str, at: usize) -> Place {
    // In a text of several lines, the position is the beginning of the text.
    if text.contains('\n') {
        return node.place;
    }
    // The text begins after its quote.
    let quote = u32::from(matches!(node.value, Value::Text(_, true)));
    let at = u32::try_from(at).unwrap_or(0).saturating_add(quote);
    Place { column: node.place.column.saturating_add(at), ..node.place }
}

/// Takes the rules out of a document.
fn take_rules(document: &mut Document) -> Option<Document> {
    let Value::Map(entries) = &mut document.value else { return None };
    let entry = entries.iter_mut().find(|entry| &*entry.name == "rules")?;
    let value = std::mem::replace(&mut entry.node.value, Value::Nothing);
    Some(Document { place: entry.node.place, value })
}

/// Sorted values without duplicates, for a binary search.
fn sorted(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut values: Vec<String> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}
