//! The difference between two policies, rule by rule.

use serde_json::{Map, Value, json};
use tidegate_policy::{Document, Problem, Value as Node};

/// Rules that are added, removed and changed; and the warnings about the new policy.
#[derive(Debug)]
pub(crate) struct Difference {
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<(String, Value, Value)>,
    /// Changed parts besides the rules: `identity`, `tiers`.
    elsewhere: Vec<String>,
    warnings: Vec<Problem>,
}

impl Difference {
    pub(crate) fn between(old: &[u8], new: &[u8], warnings: Vec<Problem>) -> Self {
        let (old, new) = (read(old), read(new));
        let (old_rules, new_rules) = (rules(&old), rules(&new));
        let changed = new_rules.iter().filter_map(|(name, new)| {
            let old = old_rules.get(name).filter(|old| *old != new)?;
            Some((name.clone(), old.clone(), new.clone()))
        });
        let elsewhere =
            ["identity", "tiers"].into_iter().filter(|part| old.get(part) != new.get(part));
        Self {
            added: only_in(&new_rules, &old_rules),
            removed: only_in(&old_rules, &new_rules),
            changed: changed.collect(),
            elsewhere: elsewhere.map(str::to_owned).collect(),
            warnings,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let changed = self.changed.iter();
        let changed: Vec<Value> = changed
            .map(|(rule, before, after)| json!({ "rule": rule, "before": before, "after": after }))
            .collect();
        let warnings: Vec<String> = self.warnings.iter().map(Problem::to_string).collect();
        json!({
            "added": self.added, "removed": self.removed, "changed": changed,
            "elsewhere": self.elsewhere, "warnings": warnings,
        })
    }
}

/// The names of rules that are in one policy and not in the other.
fn only_in(rules: &Map<String, Value>, other: &Map<String, Value>) -> Vec<String> {
    rules.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
}

fn read(text: &[u8]) -> Value {
    Document::parse(text).map_or(Value::Null, |document| plain(&document))
}

fn rules(policy: &Value) -> Map<String, Value> {
    let rules = policy.get("rules").and_then(Value::as_array).cloned().unwrap_or_default();
    let named = |rule: Value| Some((rule.get("name")?.as_str()?.to_owned(), rule));
    rules.into_iter().filter_map(named).collect()
}

/// A document without line numbers, as JSON.
pub(super) fn plain(document: &Document) -> Value {
    match &document.value {
        Node::Nothing => Value::Null,
        Node::Text(text, _) => json!(text),
        Node::List(list) => list.iter().map(plain).collect(),
        Node::Map(map) => {
            map.iter().map(|entry| (entry.name.to_string(), plain(&entry.node))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_removed_and_changed_rules_are_listed() {
        let old = b"{ version: 1, rules: [{ name: a, limits: [1/s] }, { name: b }, { name: c }] }";
        let new = b"
version: 1
tiers: { default: x, known: [x] }
rules:
  - { name: a, limits: [2/s] }
  - { name: c }
  - { name: d }
";
        let difference = Difference::between(old, new, vec![]).json();
        assert_eq!(
            difference,
            json!({
                "added": ["d"], "removed": ["b"], "elsewhere": ["tiers"], "warnings": [],
                "changed": [{
                    "rule": "a",
                    "before": { "name": "a", "limits": ["1/s"] },
                    "after": { "name": "a", "limits": ["2/s"] },
                }],
            })
        );
    }
}
