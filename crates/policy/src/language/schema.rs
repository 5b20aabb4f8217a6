//! Prints the policy language as a JSON Schema, so that editors can complete keys and mark mistakes.
//!
//! It is printed from the table that the reader uses, so every key that the reader knows is in the schema.

use crate::language::grammar::{Choice, Field, POLICY, Record, Required, Shape};
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
    let names = |wanted: &dyn Fn(Required) -> bool| -> Vec<&str> {
        let fields = record.fields.iter().filter(|field| wanted(field.required));
        fields.map(|field| field.name).collect()
    };
    let mut value = json!({
        "type": "object",
        "properties": properties,
        "required": names(&|required| required == Required::Yes),
        "additionalProperties": record.others.map_or(Value::Bool(false), shape),
    });
    let replaced = names(&|required| matches!(required, Required::Unless(_)));
    let replacing = record.fields.iter().find_map(|field| match field.required {
        Required::Unless(other) => Some(other),
        Required::Yes | Required::No => None,
    });
    if let (Some(other), Value::Object(fields)) = (replacing, &mut value) {
        let either = json!([{ "required": replaced }, { "required": [other] }]);
        fields.insert("anyOf".into(), either);
    }
    value
}

fn property(field: &Field) -> Value {
    let mut value = shape(&field.shape);
    if let Value::Object(fields) = &mut value {
        fields.insert("description".into(), field.doc.into());
    }
    value
}

fn shape(this: &Shape) -> Value {
    match this {
        Shape::Text { pattern, example } => {
            json!({ "type": "string", "pattern": pattern, "examples": [example] })
        }
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
    let words = json!({ "enum": choice.words });
    let form = |field: &Field| {
        json!({
            "type": "object",
            "properties": { field.name: property(field) },
            "required": [field.name],
            "additionalProperties": false,
        })
    };
    let forms: Vec<Value> = [words].into_iter().chain(choice.forms.iter().map(form)).collect();
    match forms.as_slice() {
        [only] => only.clone(),
        several => json!({ "anyOf": several }),
    }
}
