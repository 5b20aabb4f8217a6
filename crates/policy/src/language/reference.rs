//! The page `docs/reference/policy.md`, which lists every key of the policy language. It is written from the grammar, and each
//! of its examples is parsed.
//!
//! `WRITE_DOCS=1 cargo test -p tidegate-policy reference` writes the page again.

use crate::language::grammar::{Choice, Field, POLICY, Record, Shape, TextKind, WhenAbsent};
use crate::{Document, Policy, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/reference/policy.md";

const HEAD: &str = "# Policy reference

<!-- Written by a test: WRITE_DOCS=1 cargo test -p tidegate-policy reference -->

This page lists every key of a policy file with its type, its default and an example. The same table is the JSON Schema that
`tidegate policy schema` prints, with which editors complete policies. [policy.yaml](../policy.yaml) shows the whole language in one file.

A section lists the keys of one map. Its examples show such a map: the key with a value, and the keys that it cannot be without.
";

/// A part of the grammar that has a section of its own.
#[derive(Clone, Copy)]
enum Part {
    Record(&'static Record),
    Choice(&'static Choice),
}

impl Part {
    /// Its title, and its keys or forms.
    fn named(self) -> (&'static str, &'static [Field]) {
        match self {
            Self::Record(record) => (record.title, record.fields),
            Self::Choice(choice) => (choice.title, choice.forms),
        }
    }
}

/// All parts of the grammar in the order of the page, and the kinds of text in it.
#[derive(Default)]
struct Parts {
    parts: Vec<Part>,
    titles: BTreeSet<&'static str>,
    kinds: Vec<&'static TextKind>,
}

impl Parts {
    fn of_the_grammar() -> Self {
        let mut all = Self::default();
        all.add(Part::Record(&POLICY));
        all
    }

    fn add(&mut self, part: Part) {
        let (title, fields) = part.named();
        if !self.titles.insert(title) {
            return;
        }
        self.parts.push(part);
        fields.iter().for_each(|field| self.add_shape(&field.shape));
        if let Part::Record(Record { others: Some(shape), .. }) = part {
            self.add_shape(shape);
        }
    }

    fn add_shape(&mut self, shape: &'static Shape) {
        match shape {
            Shape::Text(kind) if kind.doc.is_empty() => {}
            Shape::Text(kind) => {
                if !self.kinds.iter().any(|known| known.name == kind.name) {
                    self.kinds.push(kind);
                }
            }
            Shape::Plain | Shape::Whole { .. } | Shape::Scale | Shape::Flag => {}
            Shape::List(of) | Shape::OneOrMore(of) | Shape::Map(of) => self.add_shape(of),
            Shape::Record(record) => self.add(Part::Record(record)),
            Shape::Choice(choice) => self.add(Part::Choice(choice)),
            Shape::ShortOrLong(short, long) => {
                self.add_shape(short);
                self.add_shape(long);
            }
        }
    }
}

// === the page ===

fn page() -> String {
    let all = Parts::of_the_grammar();
    let mut text = HEAD.to_owned();
    for part in &all.parts {
        text.push_str(&match part {
            Part::Record(record) => section(record),
            Part::Choice(choice) => choices(choice),
        });
    }
    text.push_str("\n## Kinds of text\n\n| kind | how it is written | example |\n|---|---|---|\n");
    for kind in all.kinds {
        text.push_str(&format!(
            "| {} | {} | {} |\n",
            kind.name,
            cell(kind.doc),
            code(kind.example)
        ));
    }
    text
}

fn section(record: &Record) -> String {
    let rows: String = record.fields.iter().map(row).collect();
    let others = record.others.map_or(String::new(), |shape| {
        format!("\nAny other key is the name of an attribute: {}.\n", shape_words(shape))
    });
    let head = "| key | value | default | meaning | example |\n|---|---|---|---|---|";
    format!("\n## Keys of {}\n\n{head}\n{rows}{others}", record.title)
}

fn row(field: &Field) -> String {
    let default = match field.absent {
        WhenAbsent::Value(value) => code(value),
        WhenAbsent::Words(words) => cell(words),
    };
    let (shape, doc) = (shape_words(&field.shape), cell(field.doc));
    let example = code(&format!("{{ {} }}", field.example));
    format!("| `{}` | {shape} | {default} | {doc} | {example} |\n", field.name)
}

fn choices(choice: &Choice) -> String {
    let word = |word: &super::grammar::ChoiceWord| {
        format!("| {} | {} | |\n", code(word.name), cell(word.doc))
    };
    let form = |form: &Field| {
        let shape = shape_words(&form.shape);
        let example = code(&format!("{{ {} }}", form.example));
        format!("| `{{ {}: … }}`, with {shape} | {} | {example} |\n", form.name, cell(form.doc))
    };
    let words: String = choice.words.iter().map(word).collect();
    let forms: String = choice.forms.iter().map(form).collect();
    let (head, rows) = match &*forms {
        "" => ("| value | meaning |\n|---|---|", words.replace(" | |\n", " |\n")),
        _ => ("| value | meaning | example |\n|---|---|---|", words + &forms),
    };
    format!("\n## Values of {}\n\n{head}\n{rows}", choice.title)
}

/// The kind of a value in words, with links to the sections of its parts.
fn shape_words(shape: &Shape) -> String {
    match shape {
        Shape::Text(kind) if kind.doc.is_empty() => kind.name.to_owned(),
        Shape::Text(kind) => format!("[{}](#kinds-of-text)", kind.name),
        Shape::Plain => "a word or a number".to_owned(),
        Shape::Whole { least, most } if least == most => format!("the number {least}"),
        Shape::Whole { least, most: u64::MAX } => format!("a whole number from {least}"),
        Shape::Whole { least, most } => format!("a whole number from {least} to {most}"),
        Shape::Scale => "a number above 0".to_owned(),
        Shape::Flag => "`true` or `false`".to_owned(),
        Shape::List(of) => format!("list: {}", shape_words(of)),
        Shape::OneOrMore(of) => format!("{}, or a list of them", shape_words(of)),
        Shape::Record(record) => link("keys of", record.title),
        Shape::Map(of) => format!("map: a name, and {}", shape_words(of)),
        Shape::Choice(choice) => link("values of", choice.title),
        Shape::ShortOrLong(short, long) => {
            format!("{}, or {}", shape_words(short), shape_words(long))
        }
    }
}

/// A link to the section about a part.
fn link(heading: &str, title: &str) -> String {
    let anchor = format!("{heading} {title}").replace('`', "").replace(' ', "-");
    format!("[{title}](#{anchor})")
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

// === the policies of the examples ===

/// Entries as a map, without those that `given` has.
fn without(entries: &[(&str, &str)], given: &str) -> String {
    let given = Document::parse(format!("{{ {given} }}").as_bytes()).unwrap();
    let Value::Map(given) = &given.value else { panic!("{given:?}") };
    let absent = |name: &str| given.iter().all(|entry| *entry.name != *name);
    let entries = entries.iter().filter(|(name, _)| absent(name));
    entries.map(|(name, value)| format!("{name}: {value}, ")).collect()
}

fn policy(entries: &str) -> String {
    let rule = "[{ name: a, key: [ip], limits: [15/s] }]";
    let tiers = "{ default: free, known: [free, pro] }";
    let more = without(&[("version", "1"), ("tiers", tiers), ("rules", rule)], entries);
    format!("{{ {more}{entries} }}\n")
}

fn rule(entries: &str) -> String {
    let more = without(&[("name", "a"), ("key", "[ip]"), ("limits", "[15/s]")], entries);
    policy(&format!("rules: [{{ {more}{entries} }}]"))
}

/// A policy in which a map of the grammar, by its title, has these entries.
fn policy_with(title: &str, entries: &str) -> String {
    let map = format!("{{ {entries} }}");
    match title {
        "a policy" => policy(entries),
        "`identity`" => policy(&format!("identity: {map}")),
        "an attribute" => policy(&format!("identity: {{ user: {map} }}")),
        "`methods`" => policy(&format!("methods: {map}")),
        "`paths`" => policy(&format!("paths: {map}")),
        "`ip`" => policy(&format!("identity: {{ ip: {map} }}")),
        "`tiers`" => policy(&format!("tiers: {map}")),
        "a priority class" => {
            policy(&format!("priorities: [{{ name: normal, weight: 4, share: 20% }}, {map}]"))
        }
        "a rule" => rule(entries),
        "a limit" | "a concurrency limit" => rule(&format!("limits: [{map}]")),
        "a tier" => rule(&format!("tiers: {{ pro: {map} }}")),
        "an override" => rule(&format!("overrides: [{map}]")),
        "`mode`" => rule(&format!("mode: {map}")),
        "`elastic`" => rule(&format!("mode: {{ elastic: {map} }}")),
        "`on_limit`" => rule(&format!("on_limit: {map}")),
        "`delay`" => rule(&format!("on_limit: {{ delay: {map} }}")),
        "`consistency`" => rule(&format!("consistency: {map}")),
        "`lease`" => rule(&format!("consistency: {{ lease: {map} }}")),
        other => panic!("no policy shows {other}; add it here"),
    }
}

// === tests ===

#[test]
fn the_reference_page_is_written_from_the_grammar() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page(),
        "{PAGE} is not what the grammar says; write it with WRITE_DOCS=1 cargo test -p tidegate-policy reference"
    );
}

/// Every key of every map, with the title of its map.
fn keys() -> Vec<(&'static str, &'static Field)> {
    let of = |part: Part| {
        let (title, fields) = part.named();
        fields.iter().map(move |field| (title, field))
    };
    Parts::of_the_grammar().parts.into_iter().flat_map(of).collect()
}

#[test]
fn every_example_of_the_reference_is_a_valid_policy() {
    for (title, field) in keys() {
        let name = field.name;
        assert!(without(&[(name, "")], field.example).is_empty(), "{title}, `{name}`: no example");
        let text = policy_with(title, field.example);
        Policy::parse(&text).unwrap_or_else(|error| panic!("{title}, `{name}`: {error}\n{text}"));
    }
}

#[test]
fn every_word_of_the_reference_has_a_meaning_and_a_place() {
    for (title, field) in keys() {
        let Shape::Choice(choice) = &field.shape else { continue };
        for word in choice.words {
            assert!(word.doc.ends_with('.'), "`{}` of {}", word.name, choice.title);
            let algorithm = match (field.name, word.name) {
                ("align", _) => ", algorithm: fixed_window",
                _ => "",
            };
            let rest = match title {
                "a limit" => format!("rate: 100/s{algorithm}, "),
                "an attribute" => "from: cookie:city, ".to_owned(),
                _ => String::new(),
            };
            let text = policy_with(title, &format!("{rest}{}: {}", field.name, word.name));
            Policy::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        }
    }
}

#[test]
fn every_default_of_the_reference_is_what_the_reader_uses() {
    for (title, field) in keys() {
        let name = field.name;
        assert!(field.doc.ends_with('.'), "{title}, `{name}`: no meaning");
        let WhenAbsent::Value(default) = field.absent else {
            let form = Parts::of_the_grammar()
                .parts
                .into_iter()
                .any(|part| matches!(part, Part::Choice(choice) if choice.title == title));
            let WhenAbsent::Words(words) = field.absent else { continue };
            assert!(form || !words.is_empty(), "{title}, `{name}`: no default");
            continue;
        };
        // The other keys of the example stay; the key itself comes last, so that it moves nothing.
        let rest = others(field);
        let mean = |entries: &str| {
            let text = policy_with(title, entries);
            let read = Policy::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            // A limit remembers whether it has other keys than its rate, for tiers and overrides. That is not its meaning.
            format!("{read:?}").replace("only_rate: true", "only_rate: false")
        };
        let with = format!("{rest}{}{name}: {default}", if rest.is_empty() { "" } else { ", " });
        assert_eq!(mean(&rest), mean(&with), "{title}, `{name}`");
    }
}

/// The entries of an example besides its key.
fn others(field: &Field) -> String {
    let (name, example) = (field.name, field.example);
    let start = example.find(&format!("{name}: ")).unwrap();
    example.get(..start).unwrap().trim_end_matches(", ").to_owned()
}
