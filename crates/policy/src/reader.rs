//! Reading values out of a document, and saying what is wrong with them, all at once.
//!
//! Every function answers `None` when there is nothing to go on with; what is wrong was noted then, with
//! its place. So a file is read to its end, and its author learns of everything in one go.

use crate::attributes::shown;
use crate::document::{Document, Entry, MOST_PROBLEMS, Place, Problem, Value};
use crate::grammar::{Choice, Record};

/// No record has more keys; what comes after is a mistake made often.
const MOST_ENTRIES: usize = 200;

/// Keys that had another name once, and what to write now.
const RENAMED: [(&str, &str); 2] =
    [("denied", "count_rejected: true` or `count_rejected: false"), ("overflow", "when_full")];

/// What was found wrong so far.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) problems: Vec<Problem>,
}

/// The entries of a record that was checked against its grammar.
#[derive(Debug)]
pub(crate) struct Fields<'d> {
    pub(crate) place: Place,
    entries: &'d [Entry],
}

/// A word of a choice, or one of its forms and what stands behind it.
#[derive(Debug)]
pub(crate) enum Chosen<'d> {
    Word(&'d str),
    Form(&'static str, &'d Document),
}

impl<'d> Fields<'d> {
    pub(crate) fn get(&self, name: &str) -> Option<&'d Document> {
        self.entries.iter().find(|entry| *entry.name == *name).map(|entry| &entry.node)
    }

    pub(crate) fn entries(&self) -> &'d [Entry] {
        self.entries
    }
}

impl Reader {
    pub(crate) fn wrong<T>(&mut self, place: Place, text: impl AsRef<str>) -> Option<T> {
        if !self.is_full() {
            self.problems.push(Problem::new(place, text));
        }
        None
    }

    /// Whether there are more mistakes than anybody wants to read: then no more are looked for.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() > MOST_PROBLEMS
    }

    /// A result, or its error noted here.
    pub(crate) fn ok<T>(
        &mut self,
        place: Place,
        result: Result<T, impl std::fmt::Display>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => self.wrong(place, error.to_string()),
        }
    }

    /// A map with known keys: unknown ones and missing ones are noted.
    pub(crate) fn record<'d>(
        &mut self,
        node: &'d Document,
        record: &'static Record,
    ) -> Option<Fields<'d>> {
        let known = || record.fields.iter().map(|field| field.name);
        let Value::Map(entries) = &node.value else {
            let first = known().take(3).collect::<Vec<_>>().join("`, `");
            let text = format!(
                "{} is a map with keys such as `{first}`, not {}",
                record.title,
                kind(&node.value)
            );
            return self.wrong(node.place, text);
        };
        for entry in entries.iter().take(MOST_ENTRIES) {
            if record.others.is_none() && !known().any(|name| *name == *entry.name) {
                let renamed = RENAMED.iter().find(|(old, _)| **old == *entry.name);
                let text = match renamed {
                    Some((old, new)) => format!("`{old}` is now called `{new}`"),
                    None => format!(
                        "unknown key `{}`{}",
                        shown(&entry.name),
                        hint(&entry.name, known())
                    ),
                };
                let _: Option<()> = self.wrong(entry.place, text);
            }
        }
        for field in record.fields.iter().filter(|field| field.required) {
            // A misspelt key was already noted; to call it missing too would be noise.
            let near = |entry: &Entry| {
                !known().any(|name| *name == *entry.name)
                    && nearest(&entry.name, known()) == Some(field.name)
            };
            let all = || entries.iter().take(MOST_ENTRIES);
            if !all().any(|entry| *entry.name == *field.name || near(entry)) {
                let text = format!("{} needs the key `{}`", record.title, field.name);
                let _: Option<()> = self.wrong(node.place, text);
            }
        }
        Some(Fields { place: node.place, entries })
    }

    /// A map with free keys.
    pub(crate) fn map<'d>(&mut self, node: &'d Document, what: &str) -> Option<&'d [Entry]> {
        match &node.value {
            Value::Map(entries) => Some(entries),
            other @ (Value::Nothing | Value::Text(..) | Value::List(_)) => {
                self.wrong(node.place, format!("{what} is a map, not {}", kind(other)))
            }
        }
    }

    pub(crate) fn list<'d>(&mut self, node: &'d Document, what: &str) -> Option<&'d [Document]> {
        match &node.value {
            Value::List(list) => Some(list),
            Value::Text(text, _) if ["`key`", "`limits`", "`known`"].contains(&what) => {
                let text = format!("{what} is a list; write `[{}]`", shown(text));
                self.wrong(node.place, text)
            }
            other @ (Value::Text(..) | Value::Nothing | Value::Map(_)) => {
                self.wrong(node.place, format!("{what} is a list, not {}", kind(other)))
            }
        }
    }

    pub(crate) fn text<'d>(&mut self, node: &'d Document, what: &str) -> Option<&'d str> {
        match &node.value {
            Value::Text(text, _) => Some(text),
            other @ (Value::Nothing | Value::List(_) | Value::Map(_)) => {
                self.wrong(node.place, format!("{what} is a text, not {}", kind(other)))
            }
        }
    }

    /// A whole number between two bounds.
    pub(crate) fn whole(
        &mut self,
        node: &Document,
        what: &str,
        least: u64,
        most: u64,
    ) -> Option<u64> {
        let number = match &node.value {
            Value::Text(text, false) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().filter(|number| (least..=most).contains(number))
            }
            Value::Text(text, true) if text.parse::<u64>().is_ok() => {
                let text = format!("{what} is a number; write {text} without quotes");
                return self.wrong(node.place, text);
            }
            Value::Text(..) | Value::Nothing | Value::List(_) | Value::Map(_) => None,
        };
        if number.is_none() {
            let found = found(&node.value);
            let range = if most == u64::MAX {
                format!("from {least}")
            } else {
                format!("from {least} to {most}")
            };
            let text = format!("{what} is a whole number {range}, not {found}");
            return self.wrong(node.place, text);
        }
        number
    }

    pub(crate) fn flag(&mut self, node: &Document, what: &str) -> Option<bool> {
        match &node.value {
            Value::Text(text, false) if text == "true" => Some(true),
            Value::Text(text, false) if text == "false" => Some(false),
            Value::Text(text, true) if text == "true" || text == "false" => {
                self.wrong(node.place, format!("{what}: write {text} without quotes"))
            }
            other @ (Value::Nothing | Value::Text(..) | Value::List(_) | Value::Map(_)) => {
                let text = format!("{what} is `true` or `false`, not {}", found(other));
                self.wrong(node.place, text)
            }
        }
    }

    /// A word of a choice, or a map with exactly one of its forms.
    pub(crate) fn choice<'d>(
        &mut self,
        node: &'d Document,
        choice: &'static Choice,
    ) -> Option<Chosen<'d>> {
        let forms = || choice.forms.iter().map(|form| form.name);
        match &node.value {
            Value::Text(text, _) if choice.words.contains(&text.as_str()) => {
                Some(Chosen::Word(text))
            }
            Value::Text(text, _) if forms().any(|form| form == text) => {
                let text = format!("`{text}` needs a value here: `{{ {text}: … }}`");
                self.wrong(node.place, text)
            }
            Value::Text(text, _) => {
                let all = choice.words.iter().copied().chain(forms());
                let text = format!(
                    "{} is {}, not `{}`{}",
                    choice.title,
                    options(choice),
                    shown(text),
                    hint(text, all)
                );
                self.wrong(node.place, text)
            }
            Value::Map(entries) if !choice.forms.is_empty() => {
                self.form(node.place, entries, choice)
            }
            other @ (Value::Nothing | Value::List(_) | Value::Map(_)) => {
                let text = format!("{} is {}, not {}", choice.title, options(choice), kind(other));
                self.wrong(node.place, text)
            }
        }
    }

    fn form<'d>(
        &mut self,
        place: Place,
        entries: &'d [Entry],
        choice: &'static Choice,
    ) -> Option<Chosen<'d>> {
        let [entry] = entries else {
            let text = format!(
                "{} is {}: one of them, not {}",
                choice.title,
                options(choice),
                entries.len()
            );
            return self.wrong(place, text);
        };
        match choice.forms.iter().find(|form| *form.name == *entry.name) {
            Some(form) => Some(Chosen::Form(form.name, &entry.node)),
            None => {
                let forms = choice.forms.iter().map(|form| form.name);
                let text =
                    format!("unknown key `{}`{}", shown(&entry.name), hint(&entry.name, forms));
                self.wrong(entry.place, text)
            }
        }
    }
}

/// All that a choice offers, for an error.
fn options(choice: &Choice) -> String {
    let words = choice.words.iter().map(|word| format!("`{word}`"));
    let forms = choice.forms.iter().map(|form| format!("`{{ {}: … }}`", form.name));
    words.chain(forms).collect::<Vec<_>>().join(" or ")
}

/// What a value is, for an error.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nothing => "nothing",
        Value::Text(..) => "a text",
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
    }
}

/// What a value is: itself, if it is short.
fn found(value: &Value) -> String {
    match value {
        Value::Text(text, _) => format!("`{}`", shown(text)),
        Value::Nothing | Value::List(_) | Value::Map(_) => kind(value).to_owned(),
    }
}

/// `; did you mean `limits`?`, or nothing when nothing is near.
pub(crate) fn hint<'n>(found: &str, known: impl Iterator<Item = &'n str>) -> String {
    nearest(found, known).map_or_else(String::new, |near| format!(", did you mean `{near}`?"))
}

/// The known word that differs least; none when all differ by more than a third.
pub(crate) fn nearest<'n>(found: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // A word of a megabyte is nobody's slip of the pen, and comparing it would take a while.
    if found.len() > 64 {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', ' '], "_");
    let distance = |name: &str| strsim::osa_distance(&plain(found), &plain(name));
    let near = known.map(|name| (distance(name), name)).min_by_key(|(distance, _)| *distance)?;
    let allowed = (found.len().max(near.1.len()) / 3).max(1);
    (near.0 <= allowed).then_some(near.1)
}
