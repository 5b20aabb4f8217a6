//! Prints the policy language as a JSON Schema, so that editors can complete keys and mark mistakes.
//!
//! It is printed from the table that the reader uses, so every key that the reader knows is in the schema.

use crate::document::{self, Document};
use crate::language::grammar::{
    Choice, ChoiceWord, Field, Instead, POLICY, Record, Required, Shape, TextKind, WhenAbsent,
};
use serde_json::{Map, Value, json};

/// The JSON Schema (draft 2020-12) of a policy file.
///
/// ```
/// let schema = tidegate_policy::schema();
/// assert!(schema.contains("\"on_store_error\""));
/// ```
#[must_use]
pub fn schema() -> String {
    let mut root = record(&POLICY);
    if let Value::Object(fields) = &mut root {
        fields.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
        fields.insert("title".into(), "tidegate policy".into());
    }
    format!("{root:#}\n")
}

fn record(record: &Record) -> Value {
    let properties: Map<String, Value> =
        record.fields.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    let required = record.fields.iter().filter(|field| field.required == Required::Yes);
    let mut value = json!({
        "type": "object",
        "properties": properties,
        "required": required.map(|field| field.name).collect::<Vec<_>>(),
        "additionalProperties": record.others.map_or(Value::Bool(false), shape),
    });
    let replaceable = record.fields.iter().filter_map(|field| match field.required {
        Required::Unless(all) => Some(either(field.name, all)),
        Required::Yes | Required::No => None,
    });
    let replaceable: Vec<Value> = replaceable.collect();
    if let (false, Value::Object(fields)) = (replaceable.is_empty(), &mut value) {
        fields.insert("allOf".into(), replaceable.into());
    }
    value
}

/// A key, or what the record may have instead of it.
fn either(name: &str, all: &[Instead]) -> Value {
    let others = all.iter().map(|instead| match instead {
        Instead::Key(other) => json!({ "required": [other] }),
        Instead::Word(other, word) => {
            json!({ "required": [other], "properties": { *other: { "const": word } } })
        }
    });
    let any: Vec<Value> = [json!({ "required": [name] })].into_iter().chain(others).collect();
    json!({ "anyOf": any })
}

fn property(field: &Field) -> Value {
    let mut value = shape(&field.shape);
    if let Value::Object(fields) = &mut value {
        let (default, words) = match field.absent {
            WhenAbsent::Value(text) => {
                (parsed(&format!("{}: {text}", field.name), field.name), text)
            }
            WhenAbsent::Words(words) => (None, words),
        };
        let words = match (field.required, words) {
            (Required::Yes, _) | (_, "") => String::new(),
            (Required::No, words) => format!(" Default: {words}."),
            (Required::Unless(_), words) => format!(" It is {words}."),
        };
        fields.insert("description".into(), format!("{}{words}", field.doc).into());
        fields.extend(default.map(|value| ("default".to_owned(), value)));
        let example = parsed(field.example, field.name);
        fields.extend(example.map(|value| ("examples".to_owned(), json!([value]))));
    }
    value
}

/// The value of a key in entries such as `rate: 10/s, burst: 30`.
fn parsed(entries: &str, name: &str) -> Option<Value> {
    let document = Document::parse(format!("{{ {entries} }}").as_bytes()).ok()?;
    as_json(&document).get(name).cloned()
}

/// A document as JSON. Numbers and booleans without quotes have their JSON types.
fn as_json(document: &Document) -> Value {
    match &document.value {
        document::Value::Nothing => Value::Null,
        document::Value::Text(text, true) => text.as_str().into(),
        document::Value::Text(text, false) => match text.as_str() {
            "true" => true.into(),
            "false" => false.into(),
            text => text.parse::<serde_json::Number>().map_or_else(|_| text.into(), Value::Number),
        },
        document::Value::List(list) => list.iter().map(as_json).collect(),
        document::Value::Map(entries) => {
            let entry = |entry: &document::Entry| (entry.name.to_string(), as_json(&entry.node));
            Value::Object(entries.iter().map(entry).collect())
        }
    }
}

fn shape(this: &Shape) -> Value {
    match this {
        Shape::Text(TextKind { name, doc, pattern, example }) => json!({
            "type": "string", "title": name, "description": doc, "pattern": pattern, "examples": [example],
        }),
        Shape::Plain => json!({ "type": ["string", "number", "boolean"] }),
        Shape::Whole { least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Shape::Scale => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::List(of) => json!({ "type": "array", "items": shape(of) }),
        Shape::OneOrMore(of) => {
            json!({ "anyOf": [shape(of), { "type": "array", "items": shape(of), "minItems": 1 }] })
        }
        Shape::Record(of) => record(of),
        Shape::Map(of) => json!({ "type": "object", "additionalProperties": shape(of) }),
        Shape::Choice(of) => choice(of),
        Shape::ShortOrLong(short, long) => json!({ "anyOf": [shape(short), shape(long)] }),
    }
}

/// Words, and maps with exactly one key.
fn choice(choice: &Choice) -> Value {
    let word = |word: &ChoiceWord| json!({ "const": word.name, "description": word.doc });
    let form = |field: &Field| {
        json!({
            "type": "object",
            "properties": { field.name: property(field) },
            "required": [field.name],
            "additionalProperties": false,
        })
    };
    let words = choice.words.iter().map(word);
    let options: Vec<Value> = words.chain(choice.forms.iter().map(form)).collect();
    json!({ "anyOf": options })
}
