//! Reads values of a document by the grammar, and collects everything that is wrong with them.
//!
//! Every function returns `None` when there is no usable value; the problem was recorded then, with its position. So a file is
//! read to its end, and its author learns about all mistakes in one go.

use crate::document::{Document, Entry, MOST_PROBLEMS, Place, Problem, Value, shown};
use crate::language::grammar::{Choice, Field, Instead, Record, Required};
use crate::suggest::{hint, nearest};

/// Keys of one record that are checked. No record has more; further ones repeat a mistake.
const MOST_ENTRIES: usize = 200;

/// Keys that were renamed, and what to write now.
const RENAMED: [(&str, &str); 2] =
    [("denied", "count_rejected: true` or `count_rejected: false"), ("overflow", "when_full")];

/// Collects the problems of a file.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) problems: Vec<Problem>,
}

/// The entries of a record whose keys were checked.
#[derive(Debug)]
pub(crate) struct Fields<'d> {
    pub(crate) place: Place,
    entries: &'d [Entry],
}

/// A word of a choice, or one of its forms and the value of it.
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
    /// Records a problem.
    pub(crate) fn note(&mut self, place: Place, text: impl AsRef<str>) {
        if !self.is_full() {
            self.problems.push(Problem::new(place, text));
        }
    }

    /// Records a problem, and returns `None` in place of the value.
    pub(crate) fn wrong<T>(&mut self, place: Place, text: impl AsRef<str>) -> Option<T> {
        self.note(place, text);
        None
    }

    /// Whether there are more problems than are reported. Then no more are looked for.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() > MOST_PROBLEMS
    }

    /// The value of a result, or its error as a problem.
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

    /// A map with known keys. Unknown and missing keys are reported.
    pub(crate) fn record<'d>(
        &mut self,
        node: &'d Document,
        record: &'static Record,
    ) -> Option<Fields<'d>> {
        let Value::Map(entries) = &node.value else {
            let first = record.names().take(3).collect::<Vec<_>>().join("`, `");
            let text = format!(
                "{} is a map with keys such as `{first}`, not {}",
                record.title,
                kind(&node.value)
            );
            return self.wrong(node.place, text);
        };
        self.unknown_keys(entries, record);
        self.missing_keys(node.place, entries, record);
        Some(Fields { place: node.place, entries })
    }

    fn unknown_keys(&mut self, entries: &[Entry], record: &'static Record) {
        if record.others.is_some() {
            return;
        }
        for entry in entries.iter().take(MOST_ENTRIES).filter(|entry| !record.has(&entry.name)) {
            let renamed = RENAMED.iter().find(|(old, _)| **old == *entry.name);
            let text = match renamed {
                Some((old, new)) => format!("`{old}` is now called `{new}`"),
                None => {
                    let hint = hint(&entry.name, record.names());
                    format!("unknown key `{}`{hint}", shown(&entry.name))
                }
            };
            self.note(entry.place, text);
        }
    }

    fn missing_keys(&mut self, place: Place, entries: &[Entry], record: &'static Record) {
        let has = |name: &str, fits: &dyn Fn(&Value) -> bool| {
            let mut entries = entries.iter().take(MOST_ENTRIES);
            entries.any(|entry| *entry.name == *name && fits(&entry.node.value))
        };
        let is_there = |instead: &Instead| match instead {
            Instead::Key(name) => has(name, &|_| true),
            Instead::Word(name, word) => {
                has(name, &|value| matches!(value, Value::Text(text, _) if text == word))
            }
        };
        let is_needed = |field: &&Field| match field.required {
            Required::Yes => true,
            Required::No => false,
            Required::Unless(all) => !all.iter().any(is_there),
        };
        for field in record.fields.iter().filter(is_needed) {
            // A misspelt key was reported already, so it is not reported as missing too.
            let is_misspelt = |entry: &Entry| {
                !record.has(&entry.name) && nearest(&entry.name, record.names()) == Some(field.name)
            };
            let mut entries = entries.iter().take(MOST_ENTRIES);
            if !entries.any(|entry| *entry.name == *field.name || is_misspelt(entry)) {
                self.note(place, format!("{} needs the key `{}`", record.title, field.name));
            }
        }
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

    /// A whole number within bounds.
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
        if number.is_some() {
            return number;
        }
        let range = match most {
            u64::MAX => format!("from {least}"),
            most => format!("from {least} to {most}"),
        };
        let found = found(&node.value);
        self.wrong(node.place, format!("{what} is a whole number {range}, not {found}"))
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
            Value::Text(text, _) if choice.names().any(|word| word == text) => {
                Some(Chosen::Word(text))
            }
            Value::Text(text, _) if forms().any(|form| form == text) => {
                let text = format!("`{text}` needs a value here: `{{ {text}: … }}`");
                self.wrong(node.place, text)
            }
            Value::Text(text, _) => self.wrong(node.place, unknown_word(text, choice)),
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

fn unknown_word(text: &str, choice: &Choice) -> String {
    let all = choice.names().chain(choice.forms.iter().map(|form| form.name));
    let (title, options, hint) = (choice.title, options(choice), hint(text, all));
    format!("{title} is {options}, not `{}`{hint}", shown(text))
}

/// All options of a choice, for an error.
fn options(choice: &Choice) -> String {
    let words = choice.names().map(|word| format!("`{word}`"));
    let forms = choice.forms.iter().map(|form| format!("`{{ {}: … }}`", form.name));
    words.chain(forms).collect::<Vec<_>>().join(" or ")
}

/// The kind of a value, for an error.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nothing => "nothing",
        Value::Text(..) => "a text",
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
    }
}

/// A text itself, or the kind of any other value, for an error.
fn found(value: &Value) -> String {
    match value {
        Value::Text(text, _) => format!("`{}`", shown(text)),
        Value::Nothing | Value::List(_) | Value::Map(_) => kind(value).to_owned(),
    }
}
