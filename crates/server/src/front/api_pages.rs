//! The pages `docs/reference/http.md` and `docs/reference/admin.md`: the endpoints of the `OpenAPI` documents, which are written from the
//! routes and the types of the bodies.

use crate::doc_pages::cell;
use ::http::StatusCode;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

pub(super) const HTTP: &str = "# HTTP API reference

<!-- Written by a test: `make references` -->

This page lists the endpoints of the HTTP listener. The server describes them at `/openapi.json` (OpenAPI 3.1), from which this page is
written. [The guide to the server](../server.md) explains them.

Bodies are JSON: send them with `content-type: application/json`. An error is a problem document (RFC 9457) with `title`, `status` and
`detail`, and often with `pointer`, the place in the body. [The errors](errors.md) are on a page of their own.

Besides these, `POST /json` and `GET /healthcheck` answer as in Envoy's reference rate limit service, see [Envoy](../envoy.md).
";

pub(super) const ADMIN: &str = "# Admin API reference

<!-- Written by a test: `make references` -->

This page lists the endpoints of the admin listener. The server describes them at `/admin/v1/openapi.json` (OpenAPI 3.1), from which this
page is written. [The guide to the admin API](../admin.md) explains them.

Every request except `/live` needs a token, `authorization: Bearer …`. The data directory has two: the token in `reader-token` may inspect,
the one in `operator-token` may also change; users can have [tokens of their own](../admin.md#which-server-which-token). Send `If-Match` with the `ETag` of `/admin/v1/control`, and a change is made only if the control
document still has that version. An error is a problem document (RFC 9457) with `title`, `status` and `detail`.
";

const STATUSES: &str = "| status | meaning |\n|---|---|\n";

/// An `OpenAPI` document.
struct Api(Value);

/// One endpoint of it.
struct Endpoint<'a> {
    method: String,
    path: &'a str,
    operation: &'a Value,
}

/// The page about a document.
pub(super) fn page(head: &str, document: &str) -> String {
    Api(serde_json::from_str(document).unwrap()).page(head)
}

impl Api {
    fn endpoints(&self) -> Vec<Endpoint<'_>> {
        let paths = self.0["paths"].as_object().unwrap().iter();
        let each = paths.flat_map(|(path, methods)| {
            methods.as_object().unwrap().iter().map(move |(method, operation)| Endpoint {
                method: method.to_uppercase(),
                path,
                operation,
            })
        });
        each.collect()
    }

    /// What a value says, or what its reference points to.
    fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        let Some(reference) = value["$ref"].as_str() else { return value };
        self.0.pointer(reference.trim_start_matches('#')).unwrap()
    }

    fn page(&self, head: &str) -> String {
        let endpoints = self.endpoints();
        let row = |one: &Endpoint<'_>| {
            let anchor =
                one.heading().replace(['`', '/', '.'], "").to_lowercase().replace(' ', "-");
            let summary = cell(one.operation["summary"].as_str().unwrap());
            format!("| [{}](#{anchor}) | {summary} |\n", one.heading())
        };
        let table: String = endpoints.iter().map(row).collect();
        let sections: String = endpoints.iter().map(|one| self.section(one)).collect();
        let common = self.common().concat();
        format!(
            "{head}\n| request | what it does |\n|---|---|\n{table}\n## Statuses of most endpoints\n\n{STATUSES}{common}{sections}"
        )
    }

    fn section(&self, one: &Endpoint<'_>) -> String {
        let text = |name: &str| one.operation[name].as_str().unwrap_or_default();
        let more = match text("description") {
            "" => String::new(),
            more => format!(" {more}"),
        };
        let summary = text("summary");
        let role = match one.operation["security"].as_array().map(Vec::len) {
            Some(1) => "\nIt needs the operator's token.\n",
            _ => "",
        };
        let head = format!("\n## {}\n\n{summary}.{more}\n{role}", one.heading());
        head + &self.parameters(one) + &self.body(one) + &self.answers(one)
    }

    fn parameters(&self, one: &Endpoint<'_>) -> String {
        let parameters = one.operation["parameters"].as_array().into_iter().flatten();
        let row = |parameter: &Value| {
            let (name, place) = (&parameter["name"], &parameter["in"]);
            let kind = self.kind(&parameter["schema"]);
            let meaning = cell(parameter["description"].as_str().unwrap_or_default());
            let (name, place) = (name.as_str().unwrap(), place.as_str().unwrap());
            format!("| `{name}` | {place} | {kind} | {meaning} |\n")
        };
        let rows: String = parameters.map(|parameter| row(self.resolved(parameter))).collect();
        table("| parameter | in | value | meaning |\n|---|---|---|---|\n", &rows)
    }

    fn body(&self, one: &Endpoint<'_>) -> String {
        let Some(content) = one.operation["requestBody"]["content"].as_object() else {
            return String::new();
        };
        let (kind, body) = content.iter().next().unwrap();
        let schema = &body["schema"];
        let schema = self.resolved(schema["oneOf"].get(0).unwrap_or(schema));
        let Some(fields) = schema["properties"].as_object() else {
            return format!("\nThe body has the media type `{kind}`.\n");
        };
        let rows = self.fields(schema, fields);
        let example = schema["examples"]
            .get(0)
            .map_or_else(String::new, |example| format!("\n```json\n{example}\n```\n"));
        table("| field of the body | value | meaning |\n|---|---|---|\n", &rows) + &example
    }

    fn fields(&self, schema: &Value, fields: &Map<String, Value>) -> String {
        let required = schema["required"].as_array().into_iter().flatten();
        let required: Vec<&str> = required.filter_map(Value::as_str).collect();
        let row = |(name, field): (&String, &Value)| {
            let default = match (&field["default"], required.contains(&&**name)) {
                (_, true) => "; required".to_owned(),
                (Value::Null, false) => String::new(),
                (default, false) => format!("; {default} by default"),
            };
            let kind = self.kind(field);
            // Of a field that may be null, its type may say what it means.
            let places = [self.resolved(field), self.resolved(&field["anyOf"][0])];
            let meaning = places.iter().find_map(|place| place["description"].as_str());
            let meaning = cell(meaning.unwrap_or_default());
            format!("| `{name}` | {kind}{default} | {meaning} |\n")
        };
        fields.iter().map(row).collect()
    }

    /// The rows of the statuses of an endpoint.
    fn statuses(&self, one: &Endpoint<'_>) -> Vec<String> {
        let answers = one.operation["responses"].as_object().unwrap().iter();
        let row = |(status, answer): (&String, &Value)| {
            let title = StatusCode::from_bytes(status.as_bytes()).unwrap().canonical_reason();
            let meaning = self.resolved(answer)["description"].as_str().unwrap();
            format!("| {status} {} | {} |\n", title.unwrap(), cell(meaning))
        };
        let mut rows: Vec<String> = answers.map(row).collect();
        rows.sort();
        rows
    }

    /// The rows that most endpoints have; they are listed once.
    fn common(&self) -> Vec<String> {
        let endpoints = self.endpoints();
        let all: Vec<String> = endpoints.iter().flat_map(|one| self.statuses(one)).collect();
        let often =
            |row: &&String| all.iter().filter(|other| other == row).count() * 2 > endpoints.len();
        let rows: BTreeSet<&String> = all.iter().filter(often).collect();
        rows.into_iter().cloned().collect()
    }

    fn answers(&self, one: &Endpoint<'_>) -> String {
        let common = self.common();
        let rows = self.statuses(one).into_iter().filter(|row| !common.contains(row));
        table(STATUSES, &rows.collect::<String>())
    }

    /// The kind of a value in words.
    fn kind(&self, schema: &Value) -> String {
        let schema = self.resolved(schema);
        let joined = |values: &Value, kind: &dyn Fn(&Value) -> String| {
            let values = values.as_array().into_iter().flatten();
            values.map(kind).collect::<Vec<_>>().join(" or ")
        };
        for several in ["anyOf", "oneOf"] {
            if !schema[several].is_null() {
                return joined(&schema[several], &|one| self.kind(one));
            }
        }
        if !schema["enum"].is_null() {
            return joined(&schema["enum"], &|one| format!("`{one}`"));
        }
        if !schema["const"].is_null() {
            return format!("`{}`", schema["const"]);
        }
        let kind = match schema["type"].as_array() {
            Some(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
            None => schema["type"].as_str().unwrap_or("any value").to_owned(),
        };
        kind.replace("integer", "whole number").replace("array", "list")
    }
}

impl Endpoint<'_> {
    fn heading(&self) -> String {
        format!("`{} {}`", self.method, self.path)
    }
}

fn table(head: &str, rows: &str) -> String {
    if rows.is_empty() { String::new() } else { format!("\n{head}{rows}") }
}
