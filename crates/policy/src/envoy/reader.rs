//! Reads rule files: which of them are accepted, refused, or accepted with a warning.
//!
//! ```text
//!   domain: rl
//!   descriptors:                      key, value, rate_limit { unit, requests_per_unit, unlimited, name, replaces },
//!     - key: foo                      shadow_mode, quota_mode, share_threshold, metadata, descriptors
//!       descriptors: [ … ]            detailed_metric, value_to_metric: accepted, without effect here
//! ```
//!
//! The reference service knows its keys, but not which of them belongs where: it accepts `shadow_mode` inside `rate_limit`,
//! where it has no effect. We accept it too, because a file that works there must work here, and add a warning.

use super::values::{Amount, ValueReader, get, map_of};
use super::{EnvoyError, EnvoyFile};
use crate::document::{Dialect, Document, Entry, Place, Problem, Value, shown};
use crate::model::allowance::RuleLimit;
use crate::model::descriptors::{
    DescriptorNode, DescriptorRule, Descriptors, EnvoyProblem, Wildcard,
};
use crate::model::rule::Rule;
use crate::model::unit::Unit;
use crate::suggest::hint;
use std::collections::{HashMap, HashSet};

const OF_FILE: [&str; 2] = ["domain", "descriptors"];
const OF_DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const OF_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const OF_REPLACES: [&str; 1] = ["name"];
/// The most rules in all files together, as in a policy.
const MOST_RULES: usize = 20_000;

/// Reads all files.
pub(super) fn read(
    files: &[EnvoyFile<'_>],
    merge_domains: bool,
) -> Result<(Descriptors, Vec<Rule>), EnvoyError> {
    let mut reader = EnvoyReader::default();
    let mut descriptors = Descriptors::default();
    let mut domains: HashMap<String, (String, SiblingKeys)> = HashMap::new();
    for file in files {
        file.name.clone_into(&mut reader.values.file);
        let Some((document, domain)) = reader.file(file.text) else { continue };
        let first = !domains.contains_key(&domain);
        let (other, siblings) = domains
            .entry(domain.clone())
            .or_insert_with(|| (reader.values.file.clone(), SiblingKeys::new()));
        if !first && !merge_domains {
            let text = format!("the domain `{}` is already defined in {other}", shown(&domain));
            reader.values.wrong(document.place, text);
            continue;
        }
        let node = descriptors.domains.entry(domain.as_str().into()).or_default();
        let list = reader.values.list(map_of(&document), "descriptors").unwrap_or_default();
        reader.descriptors(list, node, &domain, siblings);
    }
    reader.warn_about_unknown_replaces();
    if !reader.values.problems.is_empty() {
        return Err(EnvoyError { problems: reader.values.problems });
    }
    descriptors.warnings = reader.values.warnings;
    descriptors.names = reader.names_by_rule;
    Ok((descriptors, reader.rules))
}

/// The descriptors of one level, as `key` or `key_value`, and their positions.
type SiblingKeys = HashMap<String, Place>;

#[derive(Default)]
struct EnvoyReader {
    values: ValueReader,
    /// There are more limits than the bound, which was reported.
    is_full: bool,
    rules: Vec<Rule>,
    /// The names of limits.
    names: HashSet<Box<str>>,
    /// The name of each rule's limit, by the number of the rule.
    names_by_rule: Vec<Box<str>>,
    /// The names in `replaces`, with their files and positions.
    replaced: Vec<(String, Place, Box<str>)>,
}

impl EnvoyReader {
    /// A file, and its domain. `None` if it has errors.
    fn file(&mut self, text: &[u8]) -> Option<(Document, String)> {
        let document = self.document(text)?;
        if matches!(document.value, Value::Text(..) | Value::List(_)) {
            self.values
                .wrong(document.place, "a rule file is a map with `domain` and `descriptors`");
            return None;
        }
        let before = self.values.problems.len();
        let map = map_of(&document);
        self.values.known_keys(map, &OF_FILE, "a file");
        let domain = self.values.text(map, "domain");
        self.values.list(map, "descriptors");
        if domain.is_empty() && self.values.problems.len() == before {
            self.values.wrong(document.place, "a rule file needs a `domain` that is not empty");
        }
        Some((document, domain)).filter(|_| self.values.problems.len() == before)
    }

    /// The YAML of a file. `None` if it has errors.
    fn document(&mut self, text: &[u8]) -> Option<Document> {
        let read = Document::read_as(text, Dialect::Foreign);
        let is_broken = !read.problems.is_empty();
        let named = |problem: Problem| EnvoyProblem { file: self.values.file.clone(), problem };
        self.values.problems.extend(read.problems.into_iter().map(named));
        self.values.warnings.extend(read.warnings.into_iter().map(named));
        read.document.filter(|_| !is_broken)
    }

    fn descriptors(
        &mut self,
        list: &[Document],
        node: &mut DescriptorNode,
        path: &str,
        siblings: &mut SiblingKeys,
    ) {
        for item in list {
            let Value::Map(map) = &item.value else {
                self.values.wrong(item.place, "a descriptor is a map with `key`");
                continue;
            };
            self.descriptor(item.place, map, node, path, siblings);
        }
    }

    fn descriptor(
        &mut self,
        place: Place,
        map: &[Entry],
        node: &mut DescriptorNode,
        path: &str,
        siblings: &mut SiblingKeys,
    ) {
        self.values.known_keys(map, &OF_DESCRIPTOR, "a descriptor");
        let (key, value) = (self.values.text(map, "key"), self.values.text(map, "value"));
        if key.is_empty() {
            return self.values.wrong(place, "a descriptor needs a `key` that is not empty");
        }
        // The reference service identifies descriptors by this joined text, also in its own error messages.
        let joined = if value.is_empty() { key.clone() } else { format!("{key}_{value}") };
        if let Some(first) = siblings.insert(joined.clone(), place) {
            let text = format!(
                "duplicate descriptor `{}`; it is already at {first}. For several limits on one key use a policy: docs/envoy.md",
                shown(&joined)
            );
            return self.values.wrong(place, text);
        }
        let shared = self.share_threshold(map, place, &joined);
        if key.contains('*') {
            let text = "a star in a `key` stands for any text, so it also matches other keys";
            self.values.warn(place, text);
        }
        let name = match value.is_empty() {
            true => format!("{path}/{key}"),
            false => format!("{path}/{key}={value}"),
        };
        let rule = self.rule(map, place, &name);
        let mut child = DescriptorNode { rule, ..DescriptorNode::default() };
        if let Some(list) = self.values.list(map, "descriptors") {
            self.descriptors(list, &mut child, &name, &mut SiblingKeys::new());
        }
        node.insert(&key, &value, shared, child);
    }

    fn share_threshold(&mut self, map: &[Entry], place: Place, joined: &str) -> bool {
        let shared = self.values.switch(map, "share_threshold");
        if shared && !joined.contains('*') {
            self.values.wrong(place, "`share_threshold` needs a `value` with a star");
        }
        shared
    }

    /// The limit of a descriptor, if it has one.
    fn rule(&mut self, map: &[Entry], place: Place, path: &str) -> Option<DescriptorRule> {
        let [shadow, quota] =
            ["shadow_mode", "quota_mode"].map(|name| self.values.switch(map, name));
        let _ = ["detailed_metric", "value_to_metric"].map(|name| self.values.switch(map, name));
        let metadata = self.values.metadata(map);
        let Some(limits) = self.rate_limit(map) else {
            let is_absent = get(map, "rate_limit").is_none_or(|node| node.value == Value::Nothing);
            if is_absent && (shadow || quota) {
                let text = "`shadow_mode` and `quota_mode` have no effect without a `rate_limit`";
                self.values.warn(place, text);
            }
            return None;
        };
        self.values.known_keys(limits, &OF_LIMIT, "`rate_limit`");
        let name = self.values.text(limits, "name");
        let limit = self.limit(limits, place);
        let replaces = self.replaces(limits, &name);
        let limit = limit?;
        let rule = Rule::of_descriptor(path.to_owned(), place, limit.clone(), shadow);
        let number = self.add(rule, &name)?;
        let name = name.into();
        Some(DescriptorRule { number, limit, name, replaces, shadow, quota, metadata })
    }

    /// Adds a rule, and returns its number; `None` if there are too many.
    fn add(&mut self, rule: Rule, name: &str) -> Option<usize> {
        let number = self.rules.len();
        if number >= MOST_RULES {
            if !self.is_full {
                self.is_full = true;
                self.values
                    .wrong(rule.place, format!("more than {MOST_RULES} limits in all files"));
            }
            return None;
        }
        self.rules.push(rule);
        self.names.insert(name.into());
        self.names_by_rule.push(name.into());
        Some(number)
    }

    /// The settings of the limit, if the descriptor has one.
    fn rate_limit<'m>(&mut self, map: &'m [Entry]) -> Option<&'m [Entry]> {
        let node = get(map, "rate_limit")?;
        match &node.value {
            Value::Map(limits) => Some(limits),
            Value::Nothing => None,
            Value::Text(..) | Value::List(_) => {
                let text = "`rate_limit` is a map with `unit` and `requests_per_unit`";
                self.values.wrong(node.place, text);
                None
            }
        }
    }

    /// The limit; `Some(None)` means `unlimited`.
    fn limit(&mut self, map: &[Entry], place: Place) -> Option<Option<RuleLimit>> {
        let unlimited = self.values.switch(map, "unlimited");
        let word = self.values.text(map, "unit");
        let at = get(map, "unit").map_or(place, |node| node.place);
        let amount = self.values.amount(map);
        let unit = Unit::named(&word);
        if unlimited {
            if unit.is_some() {
                self.values.wrong(at, "`unlimited` has no `unit`; remove one of them");
            } else if !word.is_empty() {
                let text = format!("`{}` is not a unit, and `unlimited` needs none", shown(&word));
                self.values.warn(at, text);
            }
            return Some(None);
        }
        let Some(unit) = unit else {
            self.unknown_unit(at, &word);
            return None;
        };
        let amount = match amount {
            Amount::Some(amount) => amount,
            Amount::Absent => {
                self.values.warn(
                    place,
                    "without `requests_per_unit` the limit is 0: every call is denied",
                );
                0
            }
            Amount::Wrong => return None,
        };
        unit.limit(amount).map(Some)
    }

    fn unknown_unit(&mut self, place: Place, word: &str) {
        let names = Unit::ALL.map(Unit::name);
        let near = hint(word, names.into_iter());
        let text = format!(
            "`{}` is not a valid unit{near}; units are `{}`; for other periods, such as 30 s, use a policy: docs/envoy.md",
            shown(word),
            names.join("`, `")
        );
        self.values.wrong(place, text);
    }

    fn replaces(&mut self, map: &[Entry], own: &str) -> Vec<Box<str>> {
        let mut names = Vec::new();
        for item in self.values.list(map, "replaces").unwrap_or_default() {
            let Value::Map(entry) = &item.value else {
                self.values.wrong(item.place, "`replaces` is a list of `name: …`");
                continue;
            };
            self.values.known_keys(entry, &OF_REPLACES, "`replaces`");
            let name = self.values.text(entry, "name");
            if name.is_empty() {
                self.values.wrong(item.place, "`replaces` needs the name of another limit");
            } else if name == own {
                self.values.wrong(item.place, "a limit cannot replace itself");
            }
            let name: Box<str> = name.into();
            self.replaced.push((self.values.file.clone(), item.place, name.clone()));
            names.push(name);
        }
        names
    }

    /// Warns about names in `replaces` that no limit has.
    fn warn_about_unknown_replaces(&mut self) {
        for (file, place, name) in std::mem::take(&mut self.replaced) {
            if !self.names.contains(&name) {
                self.values.file = file;
                self.values.warn(place, format!("no limit has the name `{}`", shown(&name)));
            }
        }
    }
}

impl DescriptorNode {
    /// Adds a node below this one. The caller has checked that there is none yet.
    fn insert(&mut self, key: &str, value: &str, shared: bool, child: Self) {
        if key.contains('*') || value.contains('*') {
            let counter = match (key.contains('*'), value.is_empty()) {
                (false, _) => value.to_owned(),
                (true, true) => key.to_owned(),
                (true, false) => format!("{key}_{value}"),
            };
            let shared = shared.then(|| counter.into());
            let wildcard = Wildcard { key: key.into(), value: value.into(), shared };
            return self.wildcards.push((wildcard, child));
        }
        let values = self.below.entry(key.into()).or_default();
        if value.is_empty() {
            values.any = Some(Box::new(child));
        } else {
            values.exact.insert(value.into(), child);
        }
    }
}
