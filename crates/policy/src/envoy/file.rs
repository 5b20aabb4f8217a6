//! The format on disk: what is accepted, refused and warned of.
//!
//! ```text
//!   domain: rl
//!   descriptors:                      key, value, rate_limit { unit, requests_per_unit, unlimited, name, replaces },
//!     - key: foo                      shadow_mode, quota_mode, share_threshold, metadata, descriptors
//!       descriptors: [ … ]            detailed_metric, value_to_metric: read, and without effect here
//! ```
//!
//! The service that these files are written for knows its keys, but not which of them belongs where: `shadow_mode` inside of
//! `rate_limit` is accepted and does nothing. That stays so, because a file that works must go on working; but it is said.

use super::scalar::Scalar;
use super::{
    DescriptorRule, Descriptors, EnvoyError, EnvoyFile, EnvoyProblem, Node, Pattern, Unit,
};
use crate::attributes::shown;
use crate::document::{Dialect, Document, Entry, MOST_PROBLEMS, Place, Problem, Value};
use crate::reader::hint;
use crate::rule::Rule;
use serde_json::{Map, Number};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Every key that the service knows, anywhere.
const KEYS: [&str; 16] = [
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
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
/// As many as a policy has.
const MOST_RULES: usize = 20_000;

/// Reads all files.
pub(super) fn read(
    files: &[EnvoyFile<'_>],
    merge_domains: bool,
) -> Result<(Descriptors, Vec<Rule>), EnvoyError> {
    let mut reader = Reader::default();
    let mut descriptors = Descriptors::default();
    let mut domains: HashMap<String, (String, Seen)> = HashMap::new();
    for file in files {
        file.name.clone_into(&mut reader.file);
        let Some((document, domain)) = reader.file(file.text) else { continue };
        let first = !domains.contains_key(&domain);
        let (other, seen) =
            domains.entry(domain.clone()).or_insert_with(|| (reader.file.clone(), Seen::new()));
        if !first && !merge_domains {
            let text = format!("the domain `{}` is in {other} already", shown(&domain));
            reader.wrong(document.place, text);
            continue;
        }
        let node = descriptors.domains.entry(domain.as_str().into()).or_default();
        let list = reader.list(map_of(&document), "descriptors").unwrap_or_default();
        reader.descriptors(list, node, &domain, seen);
    }
    reader.nameless_replaces();
    if !reader.problems.is_empty() {
        return Err(EnvoyError { problems: reader.problems });
    }
    descriptors.warnings = reader.warnings;
    descriptors.names = reader.named;
    Ok((descriptors, reader.rules))
}

/// Keys and values of one level, joined, and where they stand.
type Seen = HashMap<String, Place>;

#[derive(Default)]
struct Reader {
    file: String,
    /// There are more limits than are read.
    is_full: bool,
    problems: Vec<EnvoyProblem>,
    warnings: Vec<EnvoyProblem>,
    rules: Vec<Rule>,
    names: HashSet<Box<str>>,
    /// The same by the number of the rule.
    named: Vec<Box<str>>,
    /// What is to be replaced, and where it says so.
    replaced: Vec<(String, Place, Box<str>)>,
}

impl Reader {
    fn wrong(&mut self, place: Place, text: impl AsRef<str>) {
        if self.problems.len() <= MOST_PROBLEMS {
            let problem = Problem::new(place, text);
            self.problems.push(EnvoyProblem { file: self.file.clone(), problem });
        }
    }

    fn warn(&mut self, place: Place, text: impl AsRef<str>) {
        if self.warnings.len() <= MOST_PROBLEMS {
            let problem = Problem::new(place, text);
            self.warnings.push(EnvoyProblem { file: self.file.clone(), problem });
        }
    }

    /// A file that has a domain, and that.
    fn file(&mut self, text: &[u8]) -> Option<(Document, String)> {
        let read = Document::read_as(text, Dialect::Foreign);
        let file = || self.file.clone();
        let named = |problem: Problem| EnvoyProblem { file: file(), problem };
        let (problems, warnings): (Vec<_>, Vec<_>) = (
            read.problems.into_iter().map(named).collect(),
            read.warnings.into_iter().map(named).collect(),
        );
        let broken = !problems.is_empty();
        self.problems.extend(problems);
        self.warnings.extend(warnings);
        let document = read.document.filter(|_| !broken)?;
        if matches!(document.value, Value::Text(..) | Value::List(_)) {
            self.wrong(document.place, "a rule file is a map with `domain` and `descriptors`");
            return None;
        }
        let before = self.problems.len();
        let map = map_of(&document);
        self.known_keys(map, &OF_FILE, "a file");
        let domain = self.text(map, "domain");
        self.list(map, "descriptors");
        if domain.is_empty() && self.problems.len() == before {
            self.wrong(document.place, "a rule file needs a `domain` that is not empty");
        }
        Some((document, domain)).filter(|_| self.problems.len() == before)
    }

    fn descriptors(&mut self, list: &[Document], node: &mut Node, path: &str, seen: &mut Seen) {
        for item in list {
            let Value::Map(map) = &item.value else {
                self.wrong(item.place, "a descriptor is a map with `key`; this is none");
                continue;
            };
            self.descriptor(item.place, map, node, path, seen);
        }
    }

    fn descriptor(
        &mut self,
        place: Place,
        map: &[Entry],
        node: &mut Node,
        path: &str,
        seen: &mut Seen,
    ) {
        self.known_keys(map, &OF_DESCRIPTOR, "a descriptor");
        let (key, value) = (self.text(map, "key"), self.text(map, "value"));
        if key.is_empty() {
            return self.wrong(place, "a descriptor needs a `key` that is not empty");
        }
        // The service knows them by these joined; so do its complaints.
        let joined = if value.is_empty() { key.clone() } else { format!("{key}_{value}") };
        if let Some(before) = seen.insert(joined.clone(), place) {
            let text = format!(
                "`{}` stands here twice; it stood at {before} before. For several limits on one key use a policy: docs/envoy.md",
                shown(&joined)
            );
            return self.wrong(place, text);
        }
        let shared = self.switch(map, "share_threshold");
        if shared && !joined.contains('*') {
            self.wrong(place, "`share_threshold` is for values with a star; this has none");
        }
        if key.contains('*') {
            self.warn(
                place,
                "a star in a `key`: it takes the place of any text, and of other keys",
            );
        }
        let name = match value.is_empty() {
            true => format!("{path}/{key}"),
            false => format!("{path}/{key}={value}"),
        };
        let mut child = Node { rule: self.rule(map, place, &name), ..Node::default() };
        if let Some(list) = self.list(map, "descriptors") {
            self.descriptors(list, &mut child, &name, &mut Seen::new());
        }
        node.insert(&key, &value, shared, child);
    }

    /// Its limit, if it has one.
    fn rule(&mut self, map: &[Entry], place: Place, name: &str) -> Option<DescriptorRule> {
        let [shadow, quota] = ["shadow_mode", "quota_mode"].map(|name| self.switch(map, name));
        let _ = ["detailed_metric", "value_to_metric"].map(|name| self.switch(map, name));
        let metadata = self.metadata(map);
        let limits = match get(map, "rate_limit").map(|node| (&node.value, node.place)) {
            None | Some((Value::Nothing, _)) => {
                if shadow || quota {
                    self.warn(place, "without a `rate_limit` of its own, a mode has no effect");
                }
                return None;
            }
            Some((Value::Map(limits), _)) => limits.as_slice(),
            Some((Value::Text(..) | Value::List(_), at)) => {
                self.wrong(at, "`rate_limit` is a map with `unit` and `requests_per_unit`");
                return None;
            }
        };
        self.known_keys(limits, &OF_LIMIT, "`rate_limit`");
        let own = self.text(limits, "name");
        let limit = self.limit(limits, place);
        let replaces = self.replaces(limits, &own);
        let limit = limit?;
        let number = self.rules.len();
        if number >= MOST_RULES {
            if !self.is_full {
                self.is_full = true;
                self.wrong(place, format!("more than {MOST_RULES} limits in all"));
            }
            return None;
        }
        self.rules.push(super::rule(name.to_owned(), place, limit.clone(), shadow));
        self.names.insert(own.as_str().into());
        self.named.push(own.as_str().into());
        let name = own.into();
        Some(DescriptorRule { number, limit, name, replaces, shadow, quota, metadata })
    }

    /// How much: `Some(None)` is as much as they like.
    fn limit(
        &mut self,
        map: &[Entry],
        place: Place,
    ) -> Option<Option<crate::allowance::RuleLimit>> {
        let unlimited = self.switch(map, "unlimited");
        let word = self.text(map, "unit");
        let at = get(map, "unit").map_or(place, |node| node.place);
        let amount = self.amount(map);
        let unit = Unit::named(&word);
        if unlimited {
            if unit.is_some() {
                self.wrong(at, "`unlimited` has no `unit`; remove one of them");
            } else if !word.is_empty() {
                self.warn(at, format!("`{}` is no unit, and `unlimited` has none", shown(&word)));
            }
            return Some(None);
        }
        let Some(unit) = unit else {
            let names = Unit::ALL.map(Unit::name);
            let near = hint(&word, names.into_iter());
            let text = format!(
                "`{}` is no unit{near}; units are `{}`; other periods, such as 30 s, have policies: docs/envoy.md",
                shown(&word),
                names.join("`, `")
            );
            self.wrong(at, text);
            return None;
        };
        let amount = match amount {
            Amount::Some(amount) => amount,
            Amount::Absent => {
                self.warn(place, "without `requests_per_unit` it is 0: nothing passes");
                0
            }
            Amount::Wrong => return None,
        };
        unit.limit(amount).map(Some)
    }

    fn amount(&mut self, map: &[Entry]) -> Amount {
        let Some(node) = get(map, "requests_per_unit") else { return Amount::Absent };
        if node.value == Value::Nothing {
            return Amount::Absent;
        }
        let number = match &node.value {
            Value::Text(text, false) => match Scalar::of(text) {
                Scalar::Whole(number) => u32::try_from(number).ok(),
                Scalar::Bool(_) | Scalar::Fraction(_) | Scalar::Text => None,
            },
            Value::Text(_, true) | Value::Nothing | Value::List(_) | Value::Map(_) => None,
        };
        match number {
            Some(number) => Amount::Some(number),
            None => {
                let text = format!("`requests_per_unit` is a whole number up to {}", u32::MAX);
                self.wrong(node.place, text);
                Amount::Wrong
            }
        }
    }

    fn replaces(&mut self, map: &[Entry], own: &str) -> Vec<Box<str>> {
        let mut names = Vec::new();
        for item in self.list(map, "replaces").unwrap_or_default() {
            let Value::Map(entry) = &item.value else {
                self.wrong(item.place, "`replaces` is a list of `name: …`");
                continue;
            };
            self.known_keys(entry, &OF_REPLACES, "`replaces`");
            let name = self.text(entry, "name");
            if name.is_empty() {
                self.wrong(item.place, "`replaces` needs the name of another limit");
            } else if name == own {
                self.wrong(item.place, "a limit cannot replace itself");
            }
            let name: Box<str> = name.into();
            self.replaced.push((self.file.clone(), item.place, name.clone()));
            names.push(name);
        }
        names
    }

    /// Warns of what replaces nothing.
    fn nameless_replaces(&mut self) {
        for (file, place, name) in std::mem::take(&mut self.replaced) {
            if !self.names.contains(&name) {
                self.file = file;
                self.warn(place, format!("no limit has the name `{}`", shown(&name)));
            }
        }
    }

    // === values ===

    /// Unknown keys are wrong; known ones in the wrong place do nothing, which is said.
    fn known_keys(&mut self, map: &[Entry], here: &[&str], what: &str) {
        for entry in map {
            let name = &*entry.name;
            if !KEYS.contains(&name) {
                let near = hint(name, here.iter().copied());
                self.wrong(entry.place, format!("unknown key `{}`{near}", shown(name)));
            } else if !here.contains(&name) {
                let text = format!("`{name}` has no effect in {what}; it is read elsewhere");
                self.warn(entry.place, text);
                // What is below `metadata` is nobody's business.
                if name != "metadata" {
                    self.sound(&entry.node);
                }
            }
        }
    }

    /// What nobody reads must be of a kind that the service can hold.
    fn sound(&mut self, node: &Document) {
        match &node.value {
            Value::Text(text, false) if is_odd(text) => {
                self.wrong(node.place, "numbers with a point have no place in rules");
            }
            Value::Text(..) | Value::Nothing => {}
            Value::List(list) => {
                for item in list {
                    match &item.value {
                        Value::Map(_) => self.sound(item),
                        Value::Nothing | Value::Text(..) | Value::List(_) => {
                            self.wrong(item.place, "lists in rules are of maps");
                        }
                    }
                }
            }
            Value::Map(map) => self.known_keys(map, &[], "this"),
        }
    }

    /// Text; what looks like a number or a yes is text too, nothing is none.
    fn text(&mut self, map: &[Entry], name: &str) -> String {
        let Some(node) = get(map, name) else { return String::new() };
        match &node.value {
            Value::Nothing => String::new(),
            Value::Text(text, false) if is_odd(text) => {
                let text = format!("put quotes around `{}`: it is read as a number", shown(text));
                self.wrong(node.place, text);
                String::new()
            }
            Value::Text(text, _) => text.clone(),
            Value::List(_) | Value::Map(_) => {
                self.wrong(node.place, format!("`{name}` is one word"));
                String::new()
            }
        }
    }

    fn switch(&mut self, map: &[Entry], name: &str) -> bool {
        let Some(node) = get(map, name) else { return false };
        match &node.value {
            Value::Nothing => return false,
            Value::Text(text, false) => {
                if let Scalar::Bool(is) = Scalar::of(text) {
                    return is;
                }
            }
            Value::Text(_, true) | Value::List(_) | Value::Map(_) => {}
        }
        self.wrong(node.place, format!("`{name}` is `true` or `false`, without quotes"));
        false
    }

    fn list<'m>(&mut self, map: &'m [Entry], name: &str) -> Option<&'m [Document]> {
        let node = get(map, name)?;
        match &node.value {
            Value::List(list) => Some(list),
            Value::Nothing => None,
            Value::Text(..) | Value::Map(_) => {
                self.wrong(node.place, format!("`{name}` is a list"));
                None
            }
        }
    }

    fn metadata(&mut self, map: &[Entry]) -> Option<Arc<Map<String, serde_json::Value>>> {
        let node = get(map, "metadata")?;
        let json = match &node.value {
            Value::Nothing => return None,
            Value::Map(entries) => self.object(entries),
            Value::Text(..) | Value::List(_) => {
                self.wrong(node.place, "`metadata` is a map");
                return None;
            }
        };
        Some(Arc::new(json)).filter(|json| !json.is_empty())
    }

    fn object(&mut self, entries: &[Entry]) -> Map<String, serde_json::Value> {
        let value = |entry: &Entry| (entry.name.to_string(), self.json(&entry.node));
        entries.iter().map(value).collect()
    }

    fn json(&mut self, node: &Document) -> serde_json::Value {
        match &node.value {
            Value::Nothing => serde_json::Value::Null,
            Value::Text(text, true) => text.as_str().into(),
            Value::Text(text, false) => match Scalar::of(text) {
                Scalar::Bool(is) => is.into(),
                Scalar::Whole(number) => {
                    Number::from_i128(number).map_or(text.as_str().into(), Into::into)
                }
                Scalar::Fraction(number) => Number::from_f64(number).map_or_else(
                    || {
                        self.warn(node.place, "JSON has no such number; it is sent as text");
                        text.as_str().into()
                    },
                    Into::into,
                ),
                Scalar::Text => text.as_str().into(),
            },
            Value::List(list) => list.iter().map(|item| self.json(item)).collect(),
            Value::Map(entries) => self.object(entries).into(),
        }
    }
}

enum Amount {
    Some(u32),
    Absent,
    Wrong,
}

/// Whether text without quotes is something that rules cannot hold.
fn is_odd(text: &str) -> bool {
    matches!(Scalar::of(text), Scalar::Fraction(_))
}

/// The entries of a map; none of anything else.
fn map_of(document: &Document) -> &[Entry] {
    if let Value::Map(map) = &document.value { map } else { &[] }
}

fn get<'m>(map: &'m [Entry], name: &str) -> Option<&'m Document> {
    map.iter().find(|entry| *entry.name == *name).map(|entry| &entry.node)
}

impl Node {
    /// Puts a place below this one. Whoever calls has seen to it that there is none yet.
    fn insert(&mut self, key: &str, value: &str, shared: bool, child: Self) {
        if key.contains('*') || value.contains('*') {
            let counted = match (key.contains('*'), value.is_empty()) {
                (false, _) => value.to_owned(),
                (true, true) => key.to_owned(),
                (true, false) => format!("{key}_{value}"),
            };
            let shared = shared.then(|| counted.into());
            let pattern = Pattern { key: key.into(), value: value.into(), shared };
            return self.patterns.push((pattern, child));
        }
        let values = self.below.entry(key.into()).or_default();
        if value.is_empty() {
            values.any = Some(Box::new(child));
        } else {
            values.exact.insert(value.into(), child);
        }
    }
}
