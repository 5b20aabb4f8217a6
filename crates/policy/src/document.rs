//! A policy file as a tree whose every node knows its place.
//!
//! ```text
//!   rules:                         Map at 1:1
//!     - name: anonymous              └ "rules" at 1:1 ─ List at 2:3
//!       limits: [15/s]                                    └ Map at 2:5 …
//! ```
//!
//! YAML does the spelling (and JSON is YAML); everything else that YAML can do is refused, because a policy
//! is read by people who must see what it says: anchors and aliases (and with them alias bombs), tags,
//! several documents in one file, keys that are not plain words, and keys that stand twice, of which other
//! readers silently keep one. Size, depth and number of nodes are bounded while the file is read.

use crate::attributes::shown;
use saphyr_parser::{BufferedInput, Event, Marker, Parser, ScalarStyle};
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// Where something stands: line and column, from 1.
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

/// Something wrong with a file, where, and what to do about it.
///
/// ```
/// use tidegate_policy::Document;
/// let problem = &Document::parse(b"a: 1\na: 2").unwrap_err()[0];
/// assert_eq!(problem.to_string(), "2:1: `a` stands here twice; it stood at 1:1 before");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What, and what to do.
    pub text: String,
}

/// A node and its place.
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
    /// Where it begins.
    pub place: Place,
    /// What it is.
    pub value: Value,
}

/// What a node is. Numbers and words are text: whoever wants a number reads one.
///
/// ```
/// use tidegate_policy::{Document, Value};
/// assert_eq!(Document::parse(b"~").unwrap().value, Value::Nothing);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing was written, or `~` or `null`.
    Nothing,
    /// Text, and whether it was quoted: `"5"` is not meant as a number.
    Text(String, bool),
    /// A list.
    List(Vec<Document>),
    /// Names and what they mean, in the order of the file.
    Map(Vec<Entry>),
}

/// One name of a map and what it means. Names are shared: most rules have the same ones.
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
    /// Where the name stands.
    pub place: Place,
    /// The name.
    pub name: Rc<str>,
    /// What it means.
    pub node: Document,
}

/// How much of YAML is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// What people see at once.
    Policy,
    /// What files that were written for others may lean on: anchors, aliases and merge keys. A key that stands twice
    /// (the last counts) and documents after the first (nobody reads them) are warned of.
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

/// A file as far as it can be read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) document: Option<Document>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

/// A policy of twenty thousand rules fits; a file of gigabytes is not even read to its end.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// The parser takes a hundred bytes and more for each piece that it has read and not yet said.
const MOST_UNSAID: usize = 128 * 1024;
/// A longer list of mistakes is one mistake, made often.
pub(crate) const MOST_PROBLEMS: usize = 100;
/// No part of the language is nested deeper than 8; twice that is a mistake or an attack.
const DEEPEST: usize = 16;
/// Files of others are trees, two levels of YAML for each of theirs.
const DEEPEST_FOREIGN: usize = 128;
/// Some twenty for each of twenty thousand rules; more would take more memory than a policy is worth.
const MOST_NODES: usize = 400_000;

// === impl Document ===

impl Document {
    /// Reads a file; otherwise says what is wrong with it. What cannot be read on past ends the list.
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

    /// Reads a file as far as it can be read, and says what is wrong with it.
    pub(crate) fn read(bytes: &[u8]) -> (Option<Self>, Vec<Problem>) {
        let Read { document, problems, .. } = Self::read_as(bytes, Dialect::Policy);
        (document, problems)
    }

    /// The same in another dialect.
    pub(crate) fn read_as(bytes: &[u8], dialect: Dialect) -> Read {
        let text = match text(bytes) {
            Ok(text) => text,
            Err(problem) => {
                return Read { document: None, problems: vec![problem], warnings: vec![] };
            }
        };
        let pace = Rc::new(Pace::default());
        pace.go_on();
        let parser = Parser::new_from_iter(Fed { chars: text.chars(), pace: Rc::clone(&pace) });
        let (problems, names) = (Vec::new(), HashMap::new());
        let anchors = HashMap::new();
        let mut builder =
            Builder { parser, pace, dialect, problems, names, anchors, warnings: vec![], nodes: 0 };
        let document = builder.file().map_err(|last| builder.note(last)).ok();
        Read { document, problems: builder.problems, warnings: builder.warnings }
    }
}

impl Document {
    /// How many nodes it has, counted no further than `most`.
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

/// The bytes as text: UTF-8 without control characters, not too many.
fn text(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > MOST_BYTES {
        let size = format!("the file has more than {MOST_BYTES} bytes; split the policy");
        return Err(problem(Place { line: 1, column: 1 }, size));
    }
    let text = str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
        problem(end_of(&before), "this is no UTF-8; save the file as UTF-8")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.find(|c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        Some(at) => {
            let before = text.get(..at).unwrap_or_default();
            Err(problem(end_of(before), "a control character; remove it"))
        }
        None => Ok(text),
    }
}

/// The text as the parser reads it: no further than so much beyond the last thing that it said. What it has
/// read and not yet said it keeps in pieces, because what is in brackets may turn out to be a key.
struct Fed<'t> {
    chars: std::str::Chars<'t>,
    pace: Rc<Pace>,
}

/// How many characters were read, how many may be, and whether more were wanted.
#[derive(Default)]
struct Pace {
    read: Cell<usize>,
    allowed: Cell<usize>,
    stopped: Cell<bool>,
}

impl Iterator for Fed<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let read = self.pace.read.get();
        if read >= self.pace.allowed.get() {
            self.pace.stopped.set(true);
            return None;
        }
        self.pace.read.set(read.saturating_add(1));
        self.chars.next()
    }
}

impl Pace {
    /// The parser has said something: it may read on.
    fn go_on(&self) {
        self.allowed.set(self.read.get().saturating_add(MOST_UNSAID));
    }
}

/// The place right behind a text.
fn end_of(text: &str) -> Place {
    let last = text.rsplit('\n').next().unwrap_or_default();
    Place {
        line: narrow(text.matches('\n').count().saturating_add(1)),
        column: narrow(last.chars().count().saturating_add(1)),
    }
}

/// Builds the tree from the events of the parser, and stops it where a bound is passed.
struct Builder<'t> {
    parser: Parser<'t, BufferedInput<Fed<'t>>>,
    pace: Rc<Pace>,
    dialect: Dialect,
    /// What is wrong but can be read on past.
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// What aliases stand for.
    anchors: HashMap<usize, Document>,
    /// Every name that stands before a colon, once.
    names: HashMap<String, Rc<str>>,
    nodes: usize,
}

impl<'t> Builder<'t> {
    /// Notes a mistake, unless there are too many to read already.
    fn note(&mut self, problem: Problem) {
        if self.problems.len() <= MOST_PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn warn(&mut self, place: Place, text: impl AsRef<str>) {
        if self.warnings.len() <= MOST_PROBLEMS {
            self.warnings.push(problem(place, text));
        }
    }

    fn name(&mut self, name: String) -> Rc<str> {
        if let Some(known) = self.names.get(&name) {
            return Rc::clone(known);
        }
        let shared: Rc<str> = name.as_str().into();
        self.names.insert(name, Rc::clone(&shared));
        shared
    }

    fn file(&mut self) -> Result<Document, Problem> {
        loop {
            match self.next()? {
                (Event::StreamStart | Event::DocumentStart(_), _) => {}
                (Event::StreamEnd, place) if self.dialect == Dialect::Foreign => {
                    return Ok(Document { place, value: Value::Nothing });
                }
                (Event::StreamEnd, place) => {
                    return Err(problem(
                        place,
                        "the file is empty; a policy needs `version` and `rules`",
                    ));
                }
                (event, place) => {
                    let document = self.node(event, place, 1)?;
                    return self.end(document);
                }
            }
        }
    }

    /// Nothing may follow the document.
    fn end(&mut self, document: Document) -> Result<Document, Problem> {
        loop {
            match self.next()? {
                (Event::DocumentEnd, _) => {}
                (Event::StreamEnd, _) => return Ok(document),
                (_, place) if self.dialect == Dialect::Foreign => {
                    self.warn(place, "a second document; only the first of a file is read");
                    return Ok(document);
                }
                (_, place) => {
                    return Err(problem(place, "a second document; a policy is one document"));
                }
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Place), Problem> {
        let next = self.parser.next_event();
        if self.pace.stopped.get() {
            let place = match next {
                Some(Ok((_, span))) => place_of(&span.start),
                Some(Err(error)) => place_of(error.marker()),
                None => Place { line: 1, column: 1 },
            };
            let text = format!(
                "more than {MOST_UNSAID} characters without an end, in brackets (as all JSON is), in a text or in remarks; write long lists line by line, with `-`"
            );
            return Err(problem(place, text));
        }
        self.pace.go_on();
        match next {
            Some(Ok((event, span))) => Ok((event, place_of(&span.start))),
            // Brackets are counted ahead of their events, so the parser's own bound may speak first.
            Some(Err(error)) if error.info().contains("recursion limit") => {
                Err(too_deep(place_of(error.marker()), self.dialect.deepest()))
            }
            Some(Err(error)) if error.info().contains("unknown anchor") => {
                let text = "a star begins an alias here; put quotes around the text";
                Err(problem(place_of(error.marker()), text))
            }
            Some(Err(error)) => Err(problem(place_of(error.marker()), error.info())),
            None => Ok((Event::StreamEnd, Place { line: 1, column: 1 })),
        }
    }

    fn node(&mut self, event: Event<'t>, place: Place, depth: usize) -> Result<Document, Problem> {
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > MOST_NODES {
            return Err(problem(place, format!("more than {MOST_NODES} values; split the policy")));
        }
        let deepest = self.dialect.deepest();
        if depth > deepest {
            return Err(too_deep(place, deepest));
        }
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.plain(place, anchor, tag.is_some());
                // A tag that says that it is text is as good as quotes.
                let says_text = tag.is_some_and(|tag| tag.suffix == "str");
                let style = if says_text { ScalarStyle::DoubleQuoted } else { style };
                (scalar(&text, style), anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.plain(place, anchor, tag.is_some());
                (Value::List(self.list(depth)?), anchor)
            }
            Event::MappingStart(anchor, tag) => {
                self.plain(place, anchor, tag.is_some());
                (Value::Map(self.map(depth)?), anchor)
            }
            Event::Alias(anchor) if self.dialect == Dialect::Foreign => {
                return self.anchored(anchor, place);
            }
            Event::Alias(_) => {
                return Err(problem(place, "an alias (`*name`); write out what it stands for"));
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(problem(place, "something is missing here")),
        };
        let document = Document { place, value };
        if anchor > 0 && self.dialect == Dialect::Foreign {
            self.anchors.insert(anchor, document.clone());
        }
        Ok(document)
    }

    /// What an alias stands for. A file of aliases of aliases is as large as what it stands for.
    fn anchored(&mut self, anchor: usize, place: Place) -> Result<Document, Problem> {
        let found = self.anchors.get(&anchor);
        let found = found.ok_or_else(|| problem(place, "an alias of what is not there yet"))?;
        self.nodes = self.nodes.saturating_add(found.nodes(MOST_NODES));
        if self.nodes > MOST_NODES {
            let text = format!("its aliases stand for more than {MOST_NODES} values");
            return Err(problem(place, text));
        }
        Ok(found.clone())
    }

    /// Complains of anchors and tags; what they stand on can still be read.
    fn plain(&mut self, place: Place, anchor: usize, tagged: bool) {
        if anchor > 0 && self.dialect == Dialect::Policy {
            self.note(problem(
                place,
                "an anchor (`&name`); aliases are not read, so it is of no use",
            ));
        }
        let text = "a tag (`!name`); tags are not read, remove it";
        match self.dialect {
            Dialect::Policy if tagged => self.note(problem(place, text)),
            Dialect::Foreign if tagged => self.warn(place, text),
            Dialect::Policy | Dialect::Foreign => {}
        }
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Document>, Problem> {
        let mut list = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(list),
                (event, place) => list.push(self.node(event, place, depth.saturating_add(1))?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Problem> {
        let mut entries: Vec<Entry> = Vec::new();
        // Names are found again by a set, so that a map of a hundred thousand is not read in an hour.
        let mut seen = HashMap::new();
        loop {
            let (event, place) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(entries);
            }
            let key = self.node(event, place, depth.saturating_add(1))?;
            let name = match key.value {
                Value::Text(name, _) => name,
                Value::Nothing if self.dialect == Dialect::Foreign => "<nil>".to_owned(),
                Value::Nothing | Value::List(_) | Value::Map(_) => {
                    return Err(problem(place, "a key that is no word; write `name: value`"));
                }
            };
            let (event, at) = self.next()?;
            let node = self.node(event, at, depth.saturating_add(1))?;
            let name = self.name(name);
            if &*name == "<<" && self.dialect == Dialect::Foreign {
                merge(&mut entries, node)?;
                continue;
            }
            let before = seen.insert(Rc::clone(&name), place);
            let twice = before.map(|before| {
                format!("`{}` stands here twice; it stood at {before} before", shown(&name))
            });
            let entry = Entry { place, name, node };
            match (self.dialect, twice) {
                (Dialect::Policy, twice) => {
                    twice.into_iter().for_each(|text| self.note(problem(place, text)));
                    entries.push(entry);
                }
                (Dialect::Foreign, twice) => {
                    let found = lay_over(&mut entries, entry);
                    if let (Some(text), Some(other)) = (twice, found) {
                        match other {
                            Kinds::Alike => self.warn(place, format!("{text}; the last counts")),
                            Kinds::Different => self.note(problem(place, text)),
                        }
                    }
                }
            }
        }
    }
}

/// Whether two values of one key could be of the same kind.
enum Kinds {
    Alike,
    Different,
}

/// Puts an entry into a map as later ones count in foreign files: maps are laid over one another, everything else takes the
/// place of what was there. Answers whether there was something.
fn lay_over(entries: &mut Vec<Entry>, entry: Entry) -> Option<Kinds> {
    let Some(found) = entries.iter_mut().find(|found| found.name == entry.name) else {
        entries.push(entry);
        return None;
    };
    let kinds = match (&mut found.node.value, entry.node.value) {
        (Value::Map(before), Value::Map(later)) => {
            for entry in later {
                lay_over(before, entry);
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

/// Adds what a map takes over from others by `<<`, as if it stood there: what was said before gives way, and of several the
/// first counts.
fn merge(entries: &mut Vec<Entry>, from: Document) -> Result<(), Problem> {
    let maps = match from.value {
        Value::Map(map) => vec![map],
        Value::List(list) => {
            let map = |one: Document| match one.value {
                Value::Map(map) => Ok(map),
                Value::Nothing | Value::Text(..) | Value::List(_) => Err(no_map(one.place)),
            };
            list.into_iter().map(map).collect::<Result<_, _>>()?
        }
        Value::Nothing | Value::Text(..) => return Err(no_map(from.place)),
    };
    for entry in maps.into_iter().rev().flatten() {
        lay_over(entries, entry);
    }
    Ok(())
}

fn no_map(place: Place) -> Problem {
    problem(place, "`<<` takes over a map, or a list of them")
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    match (style, text) {
        (ScalarStyle::Plain, "" | "~" | "null" | "Null" | "NULL") => Value::Nothing,
        (ScalarStyle::Plain, text) => Value::Text(text.to_owned(), false),
        (_, text) => Value::Text(text.to_owned(), true),
    }
}

/// The parser counts columns from 0.
fn place_of(marker: &Marker) -> Place {
    Place { line: narrow(marker.line()), column: narrow(marker.col().saturating_add(1)) }
}

/// A file has fewer lines and columns than this has room for.
fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn too_deep(place: Place, deepest: usize) -> Problem {
    problem(place, format!("nested deeper than {deepest}; no part of a policy is"))
}

fn problem(place: Place, text: impl AsRef<str>) -> Problem {
    Problem::new(place, text)
}

// === impl Problem ===

impl Problem {
    /// A problem in words that fit on a screen and that no terminal obeys.
    pub(crate) fn new(place: Place, text: impl AsRef<str>) -> Self {
        let text = text.as_ref().chars().take(LONGEST_TEXT);
        Self { place, text: text.map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect() }
    }
}

/// A text as it may be shown in a terminal: nothing in it is obeyed.
///
/// ```
/// assert_eq!(tidegate_policy::printable("a\u{1b}[31mb"), "a\u{fffd}[31mb");
/// ```
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}

/// As much as anybody reads of one complaint.
const LONGEST_TEXT: usize = 400;

/// Whether a terminal does something else with a character than to show it: control characters, and those
/// that turn the direction of writing.
pub(crate) fn is_obeyed(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || turns
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
    fn nodes_know_their_place() {
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
            Value::Nothing | Value::Text(..) | Value::List(_) => panic!("no map"),
        };
        assert_eq!(names(&yaml), names(&json));
        let windows = Document::parse("\u{feff}a: 1\r\nb: 2\r\n".as_bytes()).unwrap();
        assert_eq!(names(&windows), ["a", "b"]);
    }

    #[test]
    fn what_else_yaml_can_do_is_refused() {
        assert_eq!(
            problem("a: &x 1"),
            "1:4: an anchor (`&name`); aliases are not read, so it is of no use"
        );
        assert!(problems("a: &x 1\nb: *x")[1].contains("2:4: an alias"));
        assert!(problem("a: !!str 1").contains("a tag"));
        assert!(problem("a: 1\n---\nb: 2").starts_with("2:1: a second document"));
        assert!(problem("? [a]\n: 1").contains("a key that is no word"));
        assert!(problem("").contains("the file is empty"));
        assert!(problem("# nothing\n").contains("the file is empty"));
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let all = problems("a: 1\na: 2\nb: !!str x\nb: &y 3\n");
        assert_eq!(all.len(), 4, "{all:?}");
    }

    #[test]
    fn broken_files_say_where() {
        assert!(problem("a: [1, 2").contains("expected ',' or ']'"));
        assert!(problem("a: 1\n b: 2").starts_with("2:"));
        assert!(problem("a: 'x").starts_with("1:"));
        assert!(problem("a: x\u{0}y").starts_with("1:5: a control character"));
        let not_utf8 = Document::parse(b"a: 1\nb: \xff").unwrap_err();
        assert_eq!(not_utf8[0].place, Place { line: 2, column: 4 });
    }

    #[test]
    fn bombs_do_not_go_off() {
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n";
        assert!(problems(bomb).iter().any(|problem| problem.contains("an alias")));
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
