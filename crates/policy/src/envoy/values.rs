//! Typed values out of the maps of a rule file, with errors and warnings for the values that have the wrong type.

use super::scalar::Scalar;
use crate::document::{Document, Entry, MOST_PROBLEMS, Place, Problem, Value, shown};
use crate::model::descriptors::EnvoyProblem;
use crate::suggest::hint;
use serde_json::{Map, Number};
use std::sync::Arc;

/// Every key that the reference service knows, anywhere in a file.
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

/// The value of `requests_per_unit`.
pub(super) enum Amount {
    Some(u32),
    Absent,
    Wrong,
}

/// Reads values of one file after another, and collects what is wrong with them.
#[derive(Default)]
pub(super) struct ValueReader {
    /// The name of the file that is being read.
    pub(super) file: String,
    pub(super) problems: Vec<EnvoyProblem>,
    pub(super) warnings: Vec<EnvoyProblem>,
}

impl ValueReader {
    pub(super) fn wrong(&mut self, place: Place, text: impl AsRef<str>) {
        if self.problems.len() <= MOST_PROBLEMS {
            let problem = Problem::new(place, text);
            self.problems.push(EnvoyProblem { file: self.file.clone(), problem });
        }
    }

    pub(super) fn warn(&mut self, place: Place, text: impl AsRef<str>) {
        if self.warnings.len() <= MOST_PROBLEMS {
            let problem = Problem::new(place, text);
            self.warnings.push(EnvoyProblem { file: self.file.clone(), problem });
        }
    }

    /// Unknown keys are errors. A known key in the wrong place has no effect, and causes a warning.
    pub(super) fn known_keys(&mut self, map: &[Entry], here: &[&str], what: &str) {
        for entry in map {
            let name = &*entry.name;
            if !KEYS.contains(&name) {
                let near = hint(name, here.iter().copied());
                self.wrong(entry.place, format!("unknown key `{}`{near}", shown(name)));
            } else if !here.contains(&name) {
                let text = format!("`{name}` has no effect in {what}; it belongs elsewhere");
                self.warn(entry.place, text);
                // The reference service does not look at the types below `metadata`.
                if name != "metadata" {
                    self.ignored_value(&entry.node);
                }
            }
        }
    }

    /// A value that is ignored must still have a type that the reference service can read.
    fn ignored_value(&mut self, node: &Document) {
        match &node.value {
            Value::Text(text, false) if is_fraction(text) => {
                self.wrong(node.place, "rules do not take numbers with a decimal point");
            }
            Value::Text(..) | Value::Nothing => {}
            Value::List(list) => {
                for item in list {
                    match &item.value {
                        Value::Map(_) => self.ignored_value(item),
                        Value::Nothing | Value::Text(..) | Value::List(_) => {
                            self.wrong(item.place, "a list in a rule file contains only maps");
                        }
                    }
                }
            }
            Value::Map(map) => self.known_keys(map, &[], "this"),
        }
    }

    /// Text. A word that looks like a whole number or like `yes` is text too; an absent value is the empty text.
    pub(super) fn text(&mut self, map: &[Entry], name: &str) -> String {
        let Some(node) = get(map, name) else { return String::new() };
        match &node.value {
            Value::Nothing => String::new(),
            Value::Text(text, false) if is_fraction(text) => {
                let text = format!("put quotes around `{}`: it is read as a number", shown(text));
                self.wrong(node.place, text);
                String::new()
            }
            Value::Text(text, _) => text.clone(),
            Value::List(_) | Value::Map(_) => {
                self.wrong(node.place, format!("`{name}` is a single word"));
                String::new()
            }
        }
    }

    pub(super) fn switch(&mut self, map: &[Entry], name: &str) -> bool {
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

    pub(super) fn list<'m>(&mut self, map: &'m [Entry], name: &str) -> Option<&'m [Document]> {
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

    pub(super) fn amount(&mut self, map: &[Entry]) -> Amount {
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

    pub(super) fn metadata(
        &mut self,
        map: &[Entry],
    ) -> Option<Arc<Map<String, serde_json::Value>>> {
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
            Value::Text(text, false) => self.json_scalar(node.place, text),
            Value::List(list) => list.iter().map(|item| self.json(item)).collect(),
            Value::Map(entries) => self.object(entries).into(),
        }
    }

    fn json_scalar(&mut self, place: Place, text: &str) -> serde_json::Value {
        let number = match Scalar::of(text) {
            Scalar::Bool(is) => return is.into(),
            Scalar::Text => return text.into(),
            Scalar::Whole(number) => Number::from_i128(number),
            Scalar::Fraction(number) => {
                let number = Number::from_f64(number);
                if number.is_none() {
                    self.warn(place, "JSON has no such number; it is sent as text");
                }
                number
            }
        };
        number.map_or_else(|| text.into(), Into::into)
    }
}

/// Whether text without quotes is a number with a decimal point, which rules cannot hold.
fn is_fraction(text: &str) -> bool {
    matches!(Scalar::of(text), Scalar::Fraction(_))
}

/// The entries of a map; an empty list for any other value.
pub(super) fn map_of(document: &Document) -> &[Entry] {
    if let Value::Map(map) = &document.value { map } else { &[] }
}

pub(super) fn get<'m>(map: &'m [Entry], name: &str) -> Option<&'m Document> {
    map.iter().find(|entry| *entry.name == *name).map(|entry| &entry.node)
}
