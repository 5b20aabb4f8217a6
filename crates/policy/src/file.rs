//! The policy file: from a document to a [`Policy`], or to everything that is wrong with it.
//!
//! ```text
//!   bytes ──► Document ──► grammar: known keys, kinds ──► here: what values mean ──► Policy
//! ```
//!
//! Each function reads one thing of the language and has its name. What cannot be read is noted and left
//! out, so that the rest is still looked at; a policy comes of it only when nothing was noted.

mod limits;
mod manners;
mod who;

use crate::allowance::Allowance;
use crate::attributes::shown;
use crate::document::{Document, Entry, MOST_PROBLEMS, Place, Problem, Value};
use crate::expression::Expression;
use crate::grammar;
use crate::identity::Identity;
use crate::key::{Key, is_attribute};
use crate::overrides::Overrides;
use crate::pattern::{Case, Pattern};
use crate::policy::{Ambiguous, Policy, Tiers};
use crate::reader::{Chosen, Fields, Reader};
use crate::rule::{Condition, Rule};
use std::collections::HashMap;
use tidegate_core::{Headroom, Span};

/// Twice what the largest policies we know of have.
const MOST_RULES: usize = 20_000;
/// Plans for sale; a customer of one's own is an override.
const MOST_TIERS: usize = 64;
/// More values of an attribute are a list that belongs to the service, which can send an attribute for it.
const MOST_VALUES: usize = 1_000;
/// Long enough for a batch job, short enough to remember that somebody waits.
const LONGEST_WAIT: Span = Span::from_secs(3_600);
/// Waiting requests hold memory; a thousand of one key is a queue that never empties in time.
const USUAL_QUEUE: usize = 1_000;

pub(crate) fn read(bytes: &[u8]) -> Result<Policy, Vec<Problem>> {
    let (document, problems) = Document::read(bytes);
    let mut reader = Reader { problems };
    let policy = document.and_then(|document| reader.policy(document));
    let mut problems = reader.problems;
    if let Some(policy) = policy.as_ref().filter(|_| problems.is_empty()) {
        problems = crate::lint::errors(policy);
    }
    problems.sort_by_key(|problem| problem.place);
    match policy {
        Some(policy) if problems.is_empty() => Ok(policy),
        Some(_) | None => Err(shortened(problems)),
    }
}

/// What somebody may take, written apart from a rule: `unlimited`, or a list of limits.
pub(crate) fn read_allowance(bytes: &[u8]) -> Result<Allowance, Vec<Problem>> {
    let (document, problems) = Document::read(bytes);
    let mut reader = Reader { problems };
    let allowance = document.and_then(|document| reader.allowance(&document, Headroom::None));
    match allowance {
        Some(allowance) if reader.problems.is_empty() => Ok(allowance),
        Some(_) | None => Err(shortened(reader.problems)),
    }
}

/// As many as somebody reads, and a word about the rest.
pub(crate) fn shortened(mut problems: Vec<Problem>) -> Vec<Problem> {
    let more = problems.len() > MOST_PROBLEMS;
    problems.truncate(MOST_PROBLEMS);
    if let Some(last) = problems.last_mut().filter(|_| more) {
        last.text.push_str(" (and more below; these first)");
    }
    problems
}

/// What a policy says outside of its rules.
struct Outside<'p> {
    identity: &'p Identity,
    tiers: Option<&'p Tiers>,
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
        let outside = Outside { identity: &identity, tiers: tiers.as_ref(), case };
        let rules = self.rules(rules?, &outside)?;
        let policy = Policy::new(identity, tiers.unwrap_or_default(), rules);
        Some(Policy { ambiguous, ..policy })
    }

    fn paths(&mut self, node: &Document) -> (Ambiguous, Case) {
        let Some(fields) = self.record(node, &grammar::PATHS) else { return Default::default() };
        let ambiguous = fields.get("ambiguous").and_then(|n| self.choice(n, &grammar::AMBIGUOUS));
        let ambiguous = match ambiguous {
            Some(Chosen::Word("reject")) => Ambiguous::Reject,
            Some(Chosen::Word(_) | Chosen::Form(..)) | None => Ambiguous::MatchAny,
        };
        (ambiguous, self.case(&fields).unwrap_or_default())
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
                    "version {} of the policy language; this tidegate reads version 1",
                    shown(text)
                );
                let _: Option<()> = self.wrong(node.place, text);
            }
            Value::Text(..) | Value::Nothing | Value::List(_) | Value::Map(_) => {
                let _: Option<()> = self.wrong(node.place, "`version` is the number 1");
            }
        }
    }

    /// A name that may stand in headers, metrics and file names.
    pub(super) fn name(&mut self, node: &Document, what: &str) -> Option<Box<str>> {
        let text = self.text(node, what)?;
        if !is_attribute(text) || text.starts_with('.') {
            let text = format!(
                "`{}` is no name for {what}; it has 1 to 64 of `A-Z a-z 0-9 . _ -`, and no point first",
                shown(text)
            );
            return self.wrong(node.place, text);
        }
        Some(text.into())
    }

    // === rules ===

    fn rules(&mut self, node: Document, outside: &Outside<'_>) -> Option<Vec<Rule>> {
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
        // A node is dropped when its rule was read: never are both whole in memory.
        let read = |node: Document| match self.is_full() {
            true => None,
            false => self.rule(&node, outside),
        };
        Some(list.into_iter().filter_map(read).collect())
    }

    /// Looks at the names alone, so that a rule with another mistake is compared too.
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
                let _: Option<()> = self.wrong(node.place, text);
            }
        }
    }

    fn rule(&mut self, node: &Document, outside: &Outside<'_>) -> Option<Rule> {
        let fields = self.record(node, &grammar::RULE)?;
        // Everything is read before anything is missed, so that all mistakes of a rule are told at once.
        let name = fields.get("name").and_then(|node| self.name(node, "a rule"));
        let _ = fields.get("description").map(|node| self.text(node, "`description`"));
        let case = self.case(&fields).unwrap_or(outside.case);
        let conditions = fields
            .get("match")
            .map_or(vec![], |node| self.conditions(node, case, outside.identity));
        let when = fields.get("when").and_then(|node| self.expression(node, outside.identity));
        let when = when.map(|when| when.with_case(case));
        let key = fields.get("key").and_then(|node| self.key(node)).map(|key| key.with_case(case));
        let mode = fields
            .get("mode")
            .and_then(|node| self.mode(node, outside.identity))
            .unwrap_or_default();
        let headroom = mode.headroom();
        let limits = fields.get("limits").and_then(|node| self.limits(node, headroom));
        let base = limits.clone().unwrap_or_default();
        let tiers = fields
            .get("tiers")
            .map_or(vec![], |node| self.rule_tiers(node, &base, outside.tiers, headroom));
        let overrides = fields.get("overrides").map_or_else(Overrides::default, |node| {
            self.overrides(node, key.as_ref(), outside.identity, headroom)
        });
        let rest = self.manners(&fields);
        Some(Rule {
            name: name?,
            place: node.place,
            conditions,
            when,
            key: key?,
            allowance: Allowance::Limits(limits?),
            tiers,
            overrides,
            mode,
            ..rest
        })
    }

    // === which requests ===

    fn conditions(&mut self, node: &Document, case: Case, identity: &Identity) -> Vec<Condition> {
        let Some(entries) = self.map(node, "`match`") else { return vec![] };
        entries.iter().filter_map(|entry| self.condition(entry, case, identity)).collect()
    }

    fn condition(&mut self, entry: &Entry, case: Case, identity: &Identity) -> Option<Condition> {
        let nodes = match &entry.node.value {
            Value::List(list) if list.is_empty() => {
                let text = format!(
                    "`{}` lists nothing, so the rule could never match",
                    shown(&entry.name)
                );
                return self.wrong(entry.node.place, text);
            }
            Value::List(list) if list.len() > MOST_VALUES => {
                let text =
                    format!("{} values; a rule compares with at most {MOST_VALUES}", list.len());
                return self.wrong(entry.node.place, text);
            }
            Value::List(list) => list.as_slice(),
            Value::Text(..) | Value::Nothing | Value::Map(_) => std::slice::from_ref(&entry.node),
        };
        let what = format!("`{}`", shown(&entry.name));
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
                let text = "`cost` is compared in `when`: `when: 'cost <= 100'`";
                return self.wrong(entry.place, text);
            }
            name if is_attribute(name) => Condition::Named(
                name.into(),
                sorted(nodes.iter().filter_map(|n| self.value(n, &what))),
            ),
            name => {
                let text = format!("`{}` is no name of an attribute", shown(name));
                return self.wrong(entry.place, text);
            }
        })
    }

    fn method(&mut self, node: &Document) -> Option<String> {
        let text = self.value(node, "`method`")?;
        if !text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-') {
            let text = format!(
                "`{}` is no method; write one word such as `POST`, or a list",
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
                format!("{what} is never empty; an empty value is an absent one"),
            );
        }
        Some(text.to_owned())
    }

    fn pattern(&mut self, node: &Document) -> Option<Pattern> {
        let text = self.text(node, "a path")?;
        if text.contains(['?', '#']) {
            let text = format!("`{}`: a path is matched without its query", shown(text));
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
        let quoted = matches!(node.value, Value::Text(_, true));
        Expression::about(text, identity).map_or_else(
            |error| {
                // The text begins behind its quote. Where it has several lines, its beginning must do.
                let column = if text.contains('\n') {
                    node.place.column
                } else {
                    let at = u32::try_from(error.at).unwrap_or(0).saturating_add(u32::from(quoted));
                    node.place.column.saturating_add(at)
                };
                let place = Place { column, ..node.place };
                // A condition about secrets may hold one, and this is read in logs.
                let secret = identity.secret_in(text).map(|name| format!("…{name}…"));
                let text = secret.unwrap_or_else(|| shown(text));
                self.wrong(place, format!("in `{text}`: {}", error.text))
            },
            Some,
        )
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

/// The rules of a file, taken out of it.
fn take_rules(document: &mut Document) -> Option<Document> {
    let Value::Map(entries) = &mut document.value else { return None };
    let entry = entries.iter_mut().find(|entry| &*entry.name == "rules")?;
    let value = std::mem::replace(&mut entry.node.value, Value::Nothing);
    Some(Document { place: entry.node.place, value })
}

/// Values in order, each once, so that they are found by halving.
fn sorted(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut values: Vec<String> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}
