//! Duplicate keys and merge keys (`<<`) of foreign files, handled as Go's `yaml.v2` does.

use super::{Document, Entry, Place, Problem, Value};

/// Whether two values of one key have the same kind, such as two maps.
pub(super) enum Kinds {
    Alike,
    Different,
}

/// Adds an entry to a map of a foreign file. If the key exists already, two maps are merged and any other value is replaced
/// by the later one. Returns `None` if the key is new.
pub(super) fn insert(entries: &mut Vec<Entry>, entry: Entry) -> Option<Kinds> {
    let Some(found) = entries.iter_mut().find(|found| found.name == entry.name) else {
        entries.push(entry);
        return None;
    };
    let kinds = match (&mut found.node.value, entry.node.value) {
        (Value::Map(before), Value::Map(later)) => {
            for entry in later {
                insert(before, entry);
            }
            return Some(Kinds::Alike);
        }
        (before, later) => {
            let alike = std::mem::discriminant(before) == std::mem::discriminant(&later)
                || matches!(before, Value::Nothing)
                || matches!(later, Value::Nothing);
            *before = later;
            if alike { Kinds::Alike } else { Kinds::Different }
        }
    };
    found.place = entry.place;
    Some(kinds)
}

/// Merges the value of a `<<` key into a map: a map, or a list of maps. Merged entries replace earlier ones, and the first
/// map of a list takes precedence over the others.
pub(super) fn merge(entries: &mut Vec<Entry>, from: Document) -> Result<(), Problem> {
    let maps = match from.value {
        Value::Map(map) => vec![map],
        Value::List(list) => {
            let map = |one: Document| match one.value {
                Value::Map(map) => Ok(map),
                Value::Nothing | Value::Text(..) | Value::List(_) => Err(not_a_map(one.place)),
            };
            list.into_iter().map(map).collect::<Result<_, _>>()?
        }
        Value::Nothing | Value::Text(..) => return Err(not_a_map(from.place)),
    };
    for entry in maps.into_iter().rev().flatten() {
        insert(entries, entry);
    }
    Ok(())
}

fn not_a_map(place: Place) -> Problem {
    Problem::new(place, "`<<` merges a map or a list of maps; this is neither")
}
