//! Builds the tree from the events of the YAML parser, and stops when a bound is exceeded.

use super::merge::{self, Kinds};
use super::paced::{MOST_LOOKAHEAD, Pace};
use super::{
    Dialect, Document, Entry, MOST_NODES, MOST_PROBLEMS, PacedChars, Place, Problem, ReadFile,
    Value, narrow, shown,
};
use saphyr_parser::{BufferedInput, Event, Marker, Parser, ScalarStyle};
use std::collections::HashMap;
use std::rc::Rc;

pub(super) struct Builder<'t> {
    text: &'t str,
    parser: Parser<'t, BufferedInput<PacedChars<'t>>>,
    pace: Rc<Pace>,
    dialect: Dialect,
    /// Errors after which the rest of the file is still readable.
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// The nodes that aliases refer to.
    anchors: HashMap<usize, Document>,
    /// Every key of the file, once: equal keys share one allocation.
    names: HashMap<String, Rc<str>>,
    nodes: usize,
}

impl<'t> Builder<'t> {
    pub(super) fn new(text: &'t str, dialect: Dialect) -> Self {
        let (chars, pace) = PacedChars::new(text);
        Self {
            text,
            parser: Parser::new_from_iter(chars),
            pace,
            dialect,
            problems: Vec::new(),
            warnings: Vec::new(),
            anchors: HashMap::new(),
            names: HashMap::new(),
            nodes: 0,
        }
    }

    pub(super) fn build(mut self) -> ReadFile {
        let document = self.file().map_err(|last| self.note(last)).ok();
        ReadFile { document, problems: self.problems, warnings: self.warnings }
    }

    /// Records an error, unless there are too many to read already.
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

    fn shared_name(&mut self, name: String) -> Rc<str> {
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
                    let text = "the file is empty; a policy needs `version` and `rules`";
                    return Err(problem(place, text));
                }
                (event, place) => {
                    let document = self.node(event, place, 1)?;
                    return self.end(document);
                }
            }
        }
    }

    /// Checks that no second document follows.
    fn end(&mut self, document: Document) -> Result<Document, Problem> {
        loop {
            match self.next()? {
                (Event::DocumentEnd, _) => {}
                (Event::StreamEnd, _) => return Ok(document),
                (_, place) if self.dialect == Dialect::Foreign => {
                    let text = "a second document; only the first document of a file is read";
                    self.warn(place, text);
                    return Ok(document);
                }
                (_, place) => {
                    let text = "a second document; a policy is a single document";
                    return Err(problem(place, text));
                }
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Place), Problem> {
        let next = self.parser.next_event();
        if self.pace.is_exceeded() {
            let place = match next {
                Some(Ok((_, span))) => place_of(&span.start),
                Some(Err(error)) => place_of(error.marker()),
                None => Place { line: 1, column: 1 },
            };
            let text = format!(
                "more than {MOST_LOOKAHEAD} characters without an end, in brackets (as all JSON is), in a text or in comments; write long lists line by line, with `-`"
            );
            return Err(problem(place, text));
        }
        self.pace.event_received();
        match next {
            Some(Ok((event, span))) => Ok((event, place_of(&span.start))),
            Some(Err(error)) => Err(self.parser_error(place_of(error.marker()), error.info())),
            None => Ok((Event::StreamEnd, Place { line: 1, column: 1 })),
        }
    }

    /// An error of the YAML parser, in our words where we have better ones.
    fn parser_error(&self, place: Place, text: &str) -> Problem {
        if text.contains("recursion limit") {
            // The parser counts brackets ahead of their events, so its own bound may be exceeded first.
            return too_deep(place, self.dialect.deepest());
        }
        if text.contains("unknown anchor") {
            return problem(place, "`*` begins a YAML alias; put the text in quotes");
        }
        if text.contains("tab") {
            let text = "a tab in the indentation; YAML is indented by spaces only";
            return problem(self.tab_near(place).unwrap_or(place), text);
        }
        problem(place, text)
    }

    /// The first tab in the indentation of the lines around a place. The parser takes a line with a tab for a part of the line
    /// above, and reports the end of that one.
    fn tab_near(&self, place: Place) -> Option<Place> {
        let first = usize::try_from(place.line).ok()?.saturating_sub(2);
        let mut lines = self.text.lines().skip(first).take(3).zip(first..);
        lines.find_map(|(line, above)| {
            let indentation = |c: &char| [' ', '\t'].contains(c);
            let at = line.chars().take_while(indentation).position(|c| c == '\t')?;
            let [line, column] = [above, at].map(|n| narrow(n.saturating_add(1)));
            Some(Place { line, column })
        })
    }

    fn node(&mut self, event: Event<'t>, place: Place, depth: usize) -> Result<Document, Problem> {
        self.check_bounds(place, depth)?;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.check_anchor_and_tag(place, anchor, tag.is_some());
                // The tag `!!str` has the same meaning as quotes.
                let is_text = tag.is_some_and(|tag| tag.suffix == "str");
                let style = if is_text { ScalarStyle::DoubleQuoted } else { style };
                (scalar(&text, style), anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_anchor_and_tag(place, anchor, tag.is_some());
                (Value::List(self.list(depth)?), anchor)
            }
            Event::MappingStart(anchor, tag) => {
                self.check_anchor_and_tag(place, anchor, tag.is_some());
                (Value::Map(self.map(depth)?), anchor)
            }
            Event::Alias(anchor) => return self.alias(anchor, place),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => return Err(problem(place, "a value is missing here")),
        };
        let document = Document { place, value };
        if anchor > 0 && self.dialect == Dialect::Foreign {
            self.anchors.insert(anchor, document.clone());
        }
        Ok(document)
    }

    fn check_bounds(&mut self, place: Place, depth: usize) -> Result<(), Problem> {
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > MOST_NODES {
            return Err(problem(place, format!("more than {MOST_NODES} values; split the policy")));
        }
        let deepest = self.dialect.deepest();
        if depth > deepest { Err(too_deep(place, deepest)) } else { Ok(()) }
    }

    /// A copy of the node that an alias refers to. The copy counts in full, so aliases of aliases cannot expand without
    /// bound.
    fn alias(&mut self, anchor: usize, place: Place) -> Result<Document, Problem> {
        if self.dialect == Dialect::Policy {
            let text = "aliases (`*name`) are not supported; write out the value";
            return Err(problem(place, text));
        }
        let found = self.anchors.get(&anchor);
        let found = found.ok_or_else(|| problem(place, "this alias has no anchor before it"))?;
        self.nodes = self.nodes.saturating_add(found.nodes(MOST_NODES));
        if self.nodes > MOST_NODES {
            let text = format!("the aliases expand to more than {MOST_NODES} values");
            return Err(problem(place, text));
        }
        Ok(found.clone())
    }

    /// Reports anchors and tags. The node itself is still readable.
    fn check_anchor_and_tag(&mut self, place: Place, anchor: usize, tagged: bool) {
        if anchor > 0 && self.dialect == Dialect::Policy {
            let text = "anchors (`&name`) are not supported; remove it, and write out the value wherever it is needed";
            self.note(problem(place, text));
        }
        match self.dialect {
            Dialect::Policy if tagged => {
                self.note(problem(place, "tags (`!name`) are not supported; remove it"));
            }
            Dialect::Foreign if tagged => self.warn(place, "tags (`!name`) are ignored; remove it"),
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
        // A hash map finds duplicates, so that reading a map of 100,000 keys takes linear time.
        let mut seen = HashMap::new();
        loop {
            let (event, place) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(entries);
            }
            let name = self.key(event, place, depth)?;
            let (event, at) = self.next()?;
            let node = self.node(event, at, depth.saturating_add(1))?;
            let name = self.shared_name(name);
            if &*name == "<<" && self.dialect == Dialect::Foreign {
                merge::merge(&mut entries, node)?;
                continue;
            }
            let first = seen.insert(Rc::clone(&name), place);
            self.add(&mut entries, Entry { place, name, node }, first);
        }
    }

    fn key(&mut self, event: Event<'t>, place: Place, depth: usize) -> Result<String, Problem> {
        match self.node(event, place, depth.saturating_add(1))?.value {
            Value::Text(name, _) => Ok(name),
            Value::Nothing if self.dialect == Dialect::Foreign => Ok("<nil>".to_owned()),
            Value::Nothing | Value::List(_) | Value::Map(_) => {
                Err(problem(place, "a key must be a plain word; write `name: value`"))
            }
        }
    }

    /// Adds an entry to a map. `first` is the position of an earlier entry with the same key.
    fn add(&mut self, entries: &mut Vec<Entry>, entry: Entry, first: Option<Place>) {
        let place = entry.place;
        let duplicate = first.map(|first| {
            format!("duplicate key `{}`; it is already set at {first}", shown(&entry.name))
        });
        match self.dialect {
            Dialect::Policy => {
                duplicate.into_iter().for_each(|text| self.note(problem(place, text)));
                entries.push(entry);
            }
            Dialect::Foreign => match (duplicate, merge::insert(entries, entry)) {
                (Some(text), Some(Kinds::Alike)) => {
                    self.warn(place, format!("{text}; the last one counts"));
                }
                (Some(text), Some(Kinds::Different)) => self.note(problem(place, text)),
                (None, _) | (_, None) => {}
            },
        }
    }
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

fn too_deep(place: Place, deepest: usize) -> Problem {
    problem(place, format!("nested deeper than {deepest} levels; no valid policy is"))
}

fn problem(place: Place, text: impl AsRef<str>) -> Problem {
    Problem::new(place, text)
}
