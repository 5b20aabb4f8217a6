//! Writes the `OpenAPI` documents of the HTTP API and of the admin API. Paths, methods and roles come from the tables of routes, and schemas
//! from the types of the bodies, with their comments as descriptions.
//!
//! ```text
//!   routes ──► an Operation for each ───┐
//!   types  ──► JSON Schema (schemars) ──┴──► openapi.json beside the routes ──► pages of docs/reference
//! ```
//!
//! Tests write the files (`make references`), so the server contains the finished documents and nothing of this.

#![allow(
    clippy::needless_pass_by_value,
    clippy::wildcard_enum_match_arm,
    reason = "schemas are made where they are passed; kinds of JSON values are an open set here"
)]

use crate::web::{JSON, PROBLEM};
use ::http::StatusCode;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

/// A document while it is written.
pub(crate) struct ApiDocument {
    pub(crate) document: Value,
    /// Makes the schemas of bodies that are read: a field with a default may be left out.
    reads: SchemaGenerator,
    /// Makes the schemas of bodies that are written: only a field that is skipped may be left out.
    writes: SchemaGenerator,
}

/// One endpoint.
pub(crate) struct Operation(Value);

/// An error, as problem details (RFC 9457).
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only the schema is used")]
struct Problem {
    title: String,
    status: u16,
    detail: String,
    /// The place in the body, as a JSON pointer.
    #[schemars(skip_serializing_if = "absent")]
    pointer: String,
    /// Of a policy: each of its errors.
    #[schemars(skip_serializing_if = "absent")]
    problems: Vec<PolicyProblem>,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(dead_code, reason = "only the schema is used")]
struct PolicyProblem {
    line: u64,
    column: u64,
    text: String,
}

// === impl ApiDocument ===

impl ApiDocument {
    /// A document without endpoints. `problems`: what a status means that several endpoints share.
    pub(crate) fn new(info: Value, problems: &[(u16, &str)]) -> Self {
        let settings = SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into());
        let mut api = Self {
            document: json!({ "openapi": "3.1.0", "info": info, "paths": {} }),
            reads: settings.clone().for_deserialize().into_generator(),
            writes: settings.for_serialize().into_generator(),
        };
        let license = "MIT OR Apache-2.0";
        api.document["info"]["version"] = json!("1");
        api.document["info"]["license"] = json!({ "name": license, "identifier": license });
        let schema = api.written::<Problem>();
        for (status, meaning) in problems {
            api.document["components"]["responses"][name(*status)] =
                answer(meaning, PROBLEM, &schema);
        }
        api
    }

    /// The schema of a body that is read.
    pub(crate) fn read<T: JsonSchema>(&mut self) -> Value {
        self.reads.subschema_for::<T>().to_value()
    }

    /// The schema of a body that is written.
    pub(crate) fn written<T: JsonSchema>(&mut self) -> Value {
        self.writes.subschema_for::<T>().to_value()
    }

    pub(crate) fn add(&mut self, method: &str, path: &str, Operation(operation): Operation) {
        self.document["paths"][path][method.to_lowercase()] = operation;
    }

    /// The document as it is served.
    pub(crate) fn text(mut self) -> String {
        let mut schemas = self.writes.take_definitions(false);
        schemas.values_mut().for_each(never_null);
        for (name, schema) in self.reads.take_definitions(false) {
            let same =
                schemas.insert(name.clone(), schema.clone()).is_none_or(|other| other == schema);
            assert!(same, "two types have the name {name}; rename one");
        }
        self.document["components"]["schemas"] = schemas.into();
        tidy(&mut self.document);
        format!("{:#}\n", self.document)
    }
}

/// A field that is left out when it is `None` is never null.
fn never_null(schema: &mut Value) {
    let required = schema["required"].clone();
    let is_required =
        |name: &str| required.as_array().is_some_and(|all| all.contains(&json!(name)));
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, field) in fields.into_iter().flatten() {
        if let Some([kind, null]) = field["type"].as_array().map(Vec::as_slice)
            && null == "null"
            && !is_required(name)
        {
            field["type"] = kind.clone();
        }
    }
}

/// Writes schemas as people would.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // Validators know bounds, and not formats of numbers such as `uint64`.
            let format = fields.get("format").and_then(Value::as_str).unwrap_or_default();
            let is_whole = format.starts_with("uint");
            if is_whole || format == "double" {
                fields.remove("format");
            }
            if is_whole {
                fields.entry("maximum").or_insert(u64::MAX.into());
            }
            // As a default, the largest number means that there is no bound, and null that there is no value.
            fields
                .retain(|name, value| name != "default" || !value.is_null() && *value != u64::MAX);
            // Comments have line breaks where the line is full.
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `/live`, which both listeners have.
pub(crate) fn live() -> Operation {
    let status = json!({ "status": { "const": "live" } });
    let schema = json!({ "type": "object", "required": ["status"], "properties": status });
    Operation::new("live", "Liveness: the process runs").answer(200, "The process runs", schema)
}

/// How the answers with a status are named, such as `BadRequest`.
fn name(status: u16) -> String {
    StatusCode::from_u16(status).unwrap().canonical_reason().unwrap().replace(' ', "")
}

fn answer(meaning: &str, kind: &str, schema: &Value) -> Value {
    json!({ "description": meaning, "content": { kind: { "schema": schema } } })
}

// === impl Operation ===

impl Operation {
    pub(crate) fn new(id: &str, summary: &str) -> Self {
        Self(json!({ "operationId": id, "summary": summary, "responses": {} }))
    }

    /// More than the summary says.
    pub(crate) fn about(mut self, text: &str) -> Self {
        self.0["description"] = json!(text);
        self
    }

    /// The kinds of tokens that are accepted.
    pub(crate) fn needs(mut self, tokens: &[&str]) -> Self {
        self.0["security"] = tokens.iter().map(|token| json!({ *token: [] })).collect();
        self
    }

    /// A parameter, in the `query` or in a `header`.
    pub(crate) fn parameter(
        mut self,
        place: &str,
        name: &str,
        meaning: &str,
        schema: Value,
    ) -> Self {
        let new = json!({ "in": place, "name": name, "description": meaning, "schema": schema });
        match &mut self.0["parameters"] {
            Value::Array(parameters) => parameters.push(new),
            parameters => *parameters = json!([new]),
        }
        self
    }

    /// The body that is read.
    pub(crate) fn body(self, schema: Value) -> Self {
        self.body_as(JSON, json!({ "schema": schema }))
    }

    pub(crate) fn body_as(mut self, kind: &str, content: Value) -> Self {
        self.0["requestBody"] = json!({ "required": true, "content": { kind: content } });
        self
    }

    pub(crate) fn answer(self, status: u16, meaning: &str, schema: Value) -> Self {
        self.answer_as(JSON, status, meaning, schema)
    }

    pub(crate) fn answer_as(
        mut self,
        kind: &str,
        status: u16,
        meaning: &str,
        schema: Value,
    ) -> Self {
        *self.response(status) = answer(meaning, kind, &schema);
        self
    }

    /// An answer without a body.
    pub(crate) fn empty(mut self, status: u16, meaning: &str) -> Self {
        *self.response(status) = json!({ "description": meaning });
        self
    }

    /// A header field of the answer with this status.
    pub(crate) fn field(mut self, status: u16, name: &str, meaning: &str, schema: Value) -> Self {
        self.response(status)["headers"][name] =
            json!({ "description": meaning, "schema": schema });
        self
    }

    /// Errors whose meaning the document says once.
    pub(crate) fn fails(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            let reference = format!("#/components/responses/{}", name(*status));
            *self.response(*status) = json!({ "$ref": reference });
        }
        self
    }

    /// An error that means something else here.
    pub(crate) fn fails_as(self, status: u16, meaning: &str) -> Self {
        self.answer_as(PROBLEM, status, meaning, json!({ "$ref": "#/components/schemas/Problem" }))
    }

    fn response(&mut self, status: u16) -> &mut Value {
        &mut self.0["responses"][status.to_string()]
    }
}
