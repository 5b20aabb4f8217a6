//! The sources of settings: the file, the environment, the command line.

use super::declare::Setting;
use super::names::PREFIX;
use super::reader::{Given, Origin};
use super::table::TABLE;
use crate::files;
use std::path::Path;
use tidegate_policy::{Document, Value, printable};

/// The file that is read if it exists and no other file is named.
const USUAL_FILE: &str = "tidegate.yaml";
/// The largest file of settings: many times the few dozen lines that it usually has.
const MOST_BYTES: u64 = 64 * 1024;

/// The environment variable that has the secret itself, as `tidegate secret show` prints it. There is no flag and no entry of the
/// file for it: other users can see the command line of a process, and files of settings are passed around.
pub(crate) const SECRET: &str = "TIDEGATE_SECRET";

/// Reads the file. Nested names are joined with dots.
pub(super) fn from_file(file: Option<&Path>, given: &mut Given, problems: &mut Vec<String>) {
    let path = match file {
        Some(path) => path,
        None if Path::new(USUAL_FILE).is_file() => Path::new(USUAL_FILE),
        None => return,
    };
    let name = printable(&path.display().to_string());
    let bytes = match files::read_regular(path, MOST_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => return problems.push(format!("{name}: {error}")),
    };
    if is_blank(&bytes) {
        return;
    }
    match Document::parse(&bytes) {
        Ok(document) => entries(&name, "", &document, given, problems),
        Err(found) => {
            problems.extend(found.iter().map(|problem| format!("{name}:{problem}")));
        }
    }
}

/// Whether a file has only empty lines and comments.
fn is_blank(bytes: &[u8]) -> bool {
    bytes.split(|byte| *byte == b'\n').all(|line| {
        let line = line.trim_ascii();
        line.is_empty() || line.starts_with(b"#")
    })
}

/// Adds the settings of a document whose names begin with `prefix`.
fn entries(
    file: &str,
    prefix: &str,
    document: &Document,
    given: &mut Given,
    problems: &mut Vec<String>,
) {
    let Value::Map(map) = &document.value else {
        let text = "settings are names with values, such as `workers: 2`";
        return problems.push(format!("{file}:{}: {text}", document.place));
    };
    for entry in map {
        let name = format!("{prefix}{}", entry.name);
        let place = format!("{file}:{}", entry.place);
        let group = format!("{name}.");
        let is_group = TABLE.iter().any(|one| one.name.starts_with(&group));
        match (&entry.node.value, Setting::find(&name)) {
            (Value::Map(_), None) if is_group => {
                entries(file, &group, &entry.node, given, problems);
            }
            (_, None) if is_group => problems.push(format!(
                "{place}: `{name}` is a group of settings; write them below it, or remove it"
            )),
            (value, Some(setting)) => match scalar(value) {
                Some(text) => {
                    let origin = Origin::File(format!("{place}: {name}"));
                    given.insert(setting.name, (text.to_owned(), origin));
                }
                None => problems.push(format!("{place}: `{}` is one value", printable(&name))),
            },
            (_, None) => problems.push(format!("{place}: {}", Setting::unknown(&name))),
        }
    }
}

/// The text of a value that is neither a list nor a map.
fn scalar(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text, _) => Some(text),
        Value::Nothing => Some(""),
        Value::List(_) | Value::Map(_) => None,
    }
}

/// Reads the environment. A variable with the prefix that is not a setting is a problem.
pub(super) fn from_environment(
    environment: impl Iterator<Item = (String, String)>,
    given: &mut Given,
    problems: &mut Vec<String>,
) {
    for (variable, text) in environment {
        // The secret is not among the settings that are printed.
        if !variable.starts_with(PREFIX) || variable == SECRET {
            continue;
        }
        match TABLE.iter().find(|setting| setting.variable() == variable) {
            Some(setting) => _ = given.insert(setting.name, (text, Origin::Variable(variable))),
            None => problems.push(Setting::unknown_variable(&variable)),
        }
    }
}
