//! The YAML reader: it turns a file into a tree in which every node knows its line and column.
//!
//! ```text
//!   rules:                         Map at 1:1
//!     - name: anonymous              └ "rules" at 1:1 ─ List at 2:3
//!       limits: [15/s]                                    └ Map at 2:5 …
//! ```
//!
//! Policies, Envoy rule files and the server's settings are all read this way. JSON is accepted too, because JSON is YAML.
//!
//! Only plain YAML is accepted in a policy, so that people see what a policy says. Refused are anchors and aliases (and
//! with them alias bombs), tags, several documents in one file, keys that are not plain words, and duplicate keys, of which
//! other readers silently keep one. Size, depth and the number of nodes are bounded while the file is read.

mod builder;
mod merge;
mod paced;
mod printable;

pub use printable::printable;
pub(crate) use printable::shown;

use builder::Builder;
use paced::PacedChars;
use printable::is_terminal_control;
use std::fmt;
use std::rc::Rc;

/// A position in a file. Line and column start at 1.
///
/// ```
/// use tidegate_policy::Place;
/// assert_eq!(Place { line: 3, column: 7 }.to_string(), "3:7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

/// Something that is wrong with a file: its position, and what to write instead.
///
/// ```
/// use tidegate_policy::Document;
/// let problem = &Document::parse(b"a: 1\na: 2").unwrap_err()[0];
/// assert_eq!(problem.to_string(), "2:1: duplicate key `a`; it is already set at 1:1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The position in the file.
    pub place: Place,
    /// What is wrong, and what to write instead.
    pub text: String,
}

/// A node of the tree and its position.
///
/// ```
/// use tidegate_policy::{Document, Value};
/// let document = Document::parse(b"version: 1").unwrap();
/// let Value::Map(entries) = &document.value else { panic!() };
/// assert_eq!(&*entries[0].name, "version");
/// assert_eq!(entries[0].node.value, Value::Text("1".to_owned(), false));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Where the node begins.
    pub place: Place,
    /// The value of the node.
    pub value: Value,
}

/// The value of a node. Numbers and words are both text; the caller parses the numbers it expects.
///
/// ```
/// use tidegate_policy::{Document, Value};
/// assert_eq!(Document::parse(b"~").unwrap().value, Value::Nothing);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An empty value, `~` or `null`.
    Nothing,
    /// Text, and whether it was quoted: `"5"` is not meant as a number.
    Text(String, bool),
    /// A list.
    List(Vec<Document>),
    /// A map, in the order of the file.
    Map(Vec<Entry>),
}

/// A key of a map and its value. The names are shared, because most rules have the same keys.
///
/// ```
/// use tidegate_policy::{Document, Entry, Value};
/// let document = Document::parse(b"a: {b: c}").unwrap();
/// let Value::Map(entries) = document.value else { panic!() };
/// let [Entry { name, .. }] = entries.as_slice() else { panic!() };
/// assert_eq!(&**name, "a");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the key begins.
    pub place: Place,
    /// The key.
    pub name: Rc<str>,
    /// The value.
    pub node: Document,
}

/// Which part of YAML is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Plain YAML, as described above.
    Policy,
    /// Files that were written for other software. They may use anchors, aliases and merge keys. Duplicate keys (the last
    /// one counts) and further documents (which are ignored) cause a warning.
    Foreign,
}

impl Dialect {
    /// How many levels a file may have.
    const fn deepest(self) -> usize {
        match self {
            Self::Policy => DEEPEST,
            Self::Foreign => DEEPEST_FOREIGN,
        }
    }
}

/// The readable part of a file, with all errors and warnings.
#[derive(Debug)]
pub(crate) struct ReadFile {
    pub(crate) document: Option<Document>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

/// Enough for a policy of twenty thousand rules. A larger file is refused before it is parsed.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// Errors that are reported for one file. A longer list usually repeats one mistake.
pub(crate) const MOST_PROBLEMS: usize = 100;
/// No part of the language is nested deeper than 8 levels; twice that is a mistake or an attack.
const DEEPEST: usize = 16;
/// Foreign files are trees, with two levels of YAML for each level of the tree.
const DEEPEST_FOREIGN: usize = 128;
/// About twenty nodes for each of twenty thousand rules. The bound limits the memory that a file can take.
const MOST_NODES: usize = 400_000;
/// Characters of one error message.
const LONGEST_TEXT: usize = 400;

// === impl Document ===

impl Document {
    /// Reads a file, or returns everything that is wrong with it. The list ends at the first error that makes the rest of
    /// the file unreadable.
    ///
    /// ```
    /// use tidegate_policy::Document;
    /// assert!(Document::parse(b"rules: []").is_ok());
    /// let problems = Document::parse(b"rules: [").unwrap_err();
    /// assert_eq!(problems.len(), 1);
    /// ```
    pub fn parse(bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        match Self::read(bytes) {
            (Some(document), problems) if problems.is_empty() => Ok(document),
            (_, problems) => Err(problems),
        }
    }

    /// Reads as much of a file as is readable, and returns everything that is wrong with it.
    pub(crate) fn read(bytes: &[u8]) -> (Option<Self>, Vec<Problem>) {
        let ReadFile { document, problems, .. } = Self::read_as(bytes, Dialect::Policy);
        (document, problems)
    }

    /// Reads as much of a file in this dialect as is readable, and everything that is wrong with it.
    pub(crate) fn read_as(bytes: &[u8], dialect: Dialect) -> ReadFile {
        match text(bytes) {
            Ok(text) => Builder::new(text, dialect).build(),
            Err(problem) => ReadFile { document: None, problems: vec![problem], warnings: vec![] },
        }
    }

    /// Counts the nodes of this tree, and stops counting above `most`.
    fn nodes(&self, most: usize) -> usize {
        let below: &mut dyn Iterator<Item = &Self> = match &self.value {
            Value::Nothing | Value::Text(..) => &mut std::iter::empty(),
            Value::List(list) => &mut list.iter(),
            Value::Map(map) => &mut map.iter().map(|entry| &entry.node),
        };
        below.fold(
            1,
            |count, node| {
                if count > most { count } else { node.nodes(most).saturating_add(count) }
            },
        )
    }
}

/// The bytes as text: valid UTF-8, without control characters, within the size limit.
fn text(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > MOST_BYTES {
        let size = format!("the file has more than {MOST_BYTES} bytes; split the policy");
        return Err(Problem::new(Place { line: 1, column: 1 }, size));
    }
    let text = str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
        Problem::new(end_of(&before), "this is not valid UTF-8; save the file as UTF-8")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.find(|c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        Some(at) => {
            let before = text.get(..at).unwrap_or_default();
            Err(Problem::new(end_of(before), "a control character; remove it"))
        }
        None => Ok(text),
    }
}

/// The position right after a text.
fn end_of(text: &str) -> Place {
    let last = text.rsplit('\n').next().unwrap_or_default();
    Place {
        line: narrow(text.matches('\n').count().saturating_add(1)),
        column: narrow(last.chars().count().saturating_add(1)),
    }
}

/// Lines and columns fit into 32 bits, because the size of a file is bounded.
fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

// === impl Problem ===

impl Problem {
    /// A problem whose text is short enough to read, and safe to print on a terminal.
    pub(crate) fn new(place: Place, text: impl AsRef<str>) -> Self {
        let text = text.as_ref().chars().take(LONGEST_TEXT);
        let text = text.map(|c| if is_terminal_control(c) { '\u{fffd}' } else { c });
        Self { place, text: text.collect() }
    }
}

/// The first problems, with a note if there are more.
pub(crate) fn shortened(mut problems: Vec<Problem>) -> Vec<Problem> {
    let more = problems.len() > MOST_PROBLEMS;
    problems.truncate(MOST_PROBLEMS);
    if let Some(last) = problems.last_mut().filter(|_| more) {
        last.text.push_str(" (more problems follow; fix these first)");
    }
    problems
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        Document::parse(text.as_bytes()).unwrap_err().iter().map(Problem::to_string).collect()
    }

    fn problem(text: &str) -> String {
        let all = problems(text);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    #[test]
    fn nodes_know_their_position() {
        let document =
            Document::parse(b"rules:\n  - name: a\n    limits: [15/s, '2/min']\n").unwrap();
        let Value::Map(entries) = document.value else { panic!() };
        let Value::List(rules) = &entries[0].node.value else { panic!() };
        let Value::Map(rule) = &rules[0].value else { panic!() };
        assert_eq!(rule[1].place, Place { line: 3, column: 5 });
        let Value::List(limits) = &rule[1].node.value else { panic!() };
        assert_eq!(limits[0].place, Place { line: 3, column: 14 });
        assert_eq!(limits[0].value, Value::Text("15/s".to_owned(), false));
        assert_eq!(limits[1].value, Value::Text("2/min".to_owned(), true));
    }

    #[test]
    fn json_and_windows_files_are_read_too() {
        let yaml = Document::parse(b"a: [1, null]\nb: {c: x}").unwrap();
        let json = Document::parse(b"{\"a\": [1, null], \"b\": {\"c\": \"x\"}}").unwrap();
        let names = |document: &Document| match &document.value {
            Value::Map(entries) => {
                entries.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>()
            }
            Value::Nothing | Value::Text(..) | Value::List(_) => panic!("not a map"),
        };
        assert_eq!(names(&yaml), names(&json));
        let windows = Document::parse("\u{feff}a: 1\r\nb: 2\r\n".as_bytes()).unwrap();
        assert_eq!(names(&windows), ["a", "b"]);
    }

    #[test]
    fn advanced_yaml_is_refused() {
        assert_eq!(
            problem("a: &x 1"),
            "1:4: anchors (`&name`) are not supported; remove it, and write out the value wherever it is needed"
        );
        assert!(problems("a: &x 1\nb: *x")[1].contains("2:4: aliases (`*name`) are not supported"));
        assert!(problem("a: !!str 1").contains("tags (`!name`) are not supported"));
        assert!(problem("a: 1\n---\nb: 2").starts_with("2:1: a second document"));
        assert!(problem("? [a]\n: 1").contains("a key must be a plain word"));
        assert!(problem("").contains("the file is empty"));
        assert!(problem("# nothing\n").contains("the file is empty"));
    }

    #[test]
    fn all_problems_are_reported_together() {
        let all = problems("a: 1\na: 2\nb: !!str x\nb: &y 3\n");
        assert_eq!(all.len(), 4, "{all:?}");
    }

    #[test]
    fn broken_files_are_reported_with_their_position() {
        assert!(problem("a: [1, 2").contains("expected ',' or ']'"));
        assert!(problem("a: 1\n b: 2").starts_with("2:"));
        assert!(problem("a: 'x").starts_with("1:"));
        assert!(problem("a: x\u{0}y").starts_with("1:5: a control character"));
        let not_utf8 = Document::parse(b"a: 1\nb: \xff").unwrap_err();
        assert_eq!(not_utf8[0].place, Place { line: 2, column: 4 });
    }

    #[test]
    fn alias_bombs_and_huge_files_are_refused() {
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n";
        assert!(problems(bomb).iter().any(|problem| problem.contains("aliases (`*name`)")));
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(problem(&deep).contains("nested deeper than 16"));
        let line = format!("[{}]", "1,".repeat(150_000));
        assert!(problem(&line).contains("more than 131072 characters without an end"));
        let deep = "- ".repeat(100_000);
        assert!(problem(&deep).contains("nested deeper than 16"));
        assert!(problem(&"a".repeat(5 * 1024 * 1024)).contains("more than 4194304 bytes"));
        let wide = format!("[{}]", "1,\n".repeat(500_000));
        assert!(problem(&wide).contains("more than 131072 characters without an end"));
    }
}
