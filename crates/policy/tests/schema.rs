//! The JSON Schema and the reader must agree: a policy that one of them accepts has no structural error for the other.
//!
//! An independent validator checks the schema, the Python package that `make deps` installs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

use serde_json::{Value as Json, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use tidegate_policy::{Document, Policy, Value, schema};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A document as JSON. Unquoted numbers and booleans have their JSON types.
fn as_json(document: &Document) -> Json {
    match &document.value {
        Value::Nothing => Json::Null,
        Value::Text(text, true) => json!(text),
        Value::Text(text, false) => plain(text),
        Value::List(list) => list.iter().map(as_json).collect(),
        Value::Map(entries) => Json::Object(
            entries.iter().map(|entry| (entry.name.to_string(), as_json(&entry.node))).collect(),
        ),
    }
}

fn plain(text: &str) -> Json {
    match text {
        "true" => json!(true),
        "false" => json!(false),
        text => text.parse::<serde_json::Number>().map_or_else(|_| json!(text), Json::Number),
    }
}

/// Whether each document is valid by the schema.
fn valid(documents: &[Json]) -> Vec<bool> {
    let script = "
import json, sys
from jsonschema import Draft202012Validator
asked = json.load(sys.stdin)
Draft202012Validator.check_schema(asked['schema'])
validator = Draft202012Validator(asked['schema'])
print(json.dumps([validator.is_valid(document) for document in asked['documents']]))
";
    let schema: Json = serde_json::from_str(&schema()).unwrap();
    let asked = json!({ "schema": schema, "documents": documents }).to_string();
    let mut python = Command::new("python3")
        .args(["-c", script])
        .env("PYTHONPATH", format!("{ROOT}/target/python"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "the validator did not run; run `make deps` first");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn read(text: &str) -> Json {
    as_json(&Document::parse(text.as_bytes()).unwrap())
}

#[test]
fn every_policy_we_ship_is_valid_by_the_schema() {
    let mut files = vec![Path::new(ROOT).join("docs/policy.yaml")];
    let recipes = fs::read_dir(Path::new(ROOT).join("docs/recipes")).unwrap();
    files.extend(recipes.map(|entry| entry.unwrap().path()));
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    assert!(files.len() > 8);
    let documents: Vec<Json> =
        files.iter().map(|f| read(&fs::read_to_string(f).unwrap())).collect();
    for (file, valid) in files.iter().zip(valid(&documents)) {
        assert!(valid, "{}", file.display());
    }
}

/// Every form of every setting, and what is nearly one.
#[test]
fn the_schema_and_the_reader_agree_on_forms() {
    let rule = |setting: &str| {
        format!(
            "{{ version: 1, tiers: {{ default: free, known: [free, pro] }}, rules: [{{ name: a, key: [ip], limits: [15/s], {setting} }}] }}"
        )
    };
    let limit = |limit: &str| {
        format!("{{ version: 1, rules: [{{ name: a, key: [ip], limits: [{limit}] }}] }}")
    };
    let identity = |identity: &str| {
        format!(
            "{{ version: 1, identity: {identity}, rules: [{{ name: a, key: [ip], limits: [15/s] }}] }}"
        )
    };
    let mut texts: Vec<String> = [
        "mode: hard",
        "mode: { soft: 10% }",
        "mode: { elastic: { up_to: 200%, while: 'load < 0.7' } }",
        "mode: soft",
        "mode: { soft: ten }",
        "mode: { soft: 10%, elastic: 1 }",
        "mode: { elastic: { up_to: 200% } }",
        "on_limit: reject",
        "on_limit: { delay: { max_wait: 2s, max_queue: 100 } }",
        "on_limit: { delay: { max_wait: 2s } }",
        "on_limit: { delay: {} }",
        "on_limit: { deprioritize: low }",
        "on_limit: { deprioritize: high }",
        "on_limit: { flag: challenge }",
        "on_limit: flag",
        "count_rejected: true",
        "count_rejected: never",
        "count: failures",
        "count: fails",
        "consistency: exact",
        "consistency: lease",
        "consistency: { lease: { share: 5%, interval: 100ms } }",
        "consistency: { lease: {} }",
        "consistency: { lease: { shares: 5% } }",
        "consistency: { write_back: { lease: 5%, interval: 100ms } }",
        "on_store_error: deny",
        "on_store_error: panic",
        "when_full: allow",
        "when_full: more",
        "shadow: true",
        "shadow: maybe",
        "enabled: false",
        "enabled: 1",
        "stop: true",
        "stop: []",
        "when: 'cost <= 100'",
        "when: []",
        "match: { method: POST, path: [/a, /b/**], tenant: 42 }",
        "match: []",
        "get_includes_head: false",
        "get_includes_head: never",
        "case_insensitive: true",
        "case_insensitive: sometimes",
        "match: { path: { a: b } }",
        "tiers: { pro: { scale: 10 } }",
        "tiers: { pro: { scale: 1.5 } }",
        "tiers: { pro: { scale: 0 } }",
        "tiers: { pro: unlimited }",
        "tiers: { pro: { limits: [9/s] } }",
        "tiers: { pro: { limits: unlimited } }",
        "tiers: { pro: { limits: 9/s } }",
        "tiers: { pro: limited }",
        "tiers: [pro]",
        "overrides: [{ key: { ip: 10.0.0.1 }, limits: [9/s] }]",
        "overrides: [{ key: { ip: 10.0.0.1 }, limits: unlimited }]",
        "overrides: [{ limits: [9/s] }]",
        "overrides: { a: b }",
        "description: why",
        "description: [why]",
        "descripton: why",
    ]
    .iter()
    .map(|setting| rule(setting))
    .collect();
    texts.extend(
        [
            "15/s",
            "500/30s",
            "9/calendar-month@Europe/Berlin",
            "fifteen/s",
            "15",
            "-1/s",
            "{ rate: 15/s }",
            "{ rate: 15/s, algorithm: sliding_log }",
            "{ rate: 15/s, algorithm: slidding_log }",
            "{ rate: 15/s, burst: 30, refill: interval }",
            "{ rate: 15/s, burst: lots }",
            "{ rate: 15/s, algorithm: leaky_bucket, queue: 3 }",
            "{ rate: 15/s, algorithm: sliding_buckets, buckets: 1 }",
            "{ rate: 15/s, algorithm: fixed_window, align: first }",
            "{ rate: 15/s, align: last }",
            "{ rate: 0/s, block: true }",
            "{ algorithm: sliding_log }",
            "{ rate: 15/s, name: 'a b' }",
            "{ concurrent: 20 }",
            "{ concurrent: 20, name: jobs, lease: 1min }",
            "{ concurrent: 10000, lease: 1h }",
            "{ concurrent: 0 }",
            "{ concurrent: 10001 }",
            "{ concurrent: 20, rate: 15/s }",
            "{ concurrent: 20, algorithm: sliding_log }",
            "{ concurrent: 20, queue: 5 }",
            "{ concurrent: 20, lease: 30 }",
            "{ concurrent: many }",
            "{ lease: 30s }",
        ]
        .iter()
        .map(|text| limit(text)),
    );
    texts.extend(
        [
            "{ trusted: [10.0.0.0/8], user: 'header:x' }",
            "{ trusted: everyone }",
            "{ trusted: noone }",
            "{ ip: { ipv6_prefix: 64, header: forwarded } }",
            "{ ip: { ipv6_prefix: 129 } }",
            "{ ip: { ipv6: 64 } }",
            "{ user: 'cookie:x', q: 'digest:query' }",
            "{ user: x-user }",
            "{ user: 'jwt:sub', tenant: 'digest:jwt:https://example.com/tenant' }",
            "{ user: { from: 'jwt:sub' } }",
            "{ user: 'auth:X-User', tenant: { from: 'digest:auth:x-tenant' } }",
            "{ user: 'jwt:' }",
            "{ user: jwt }",
            "{ user: { from: 'cookie:sid' } }",
            "{ user: { from: 'cookie:sid', duplicates: first, decode: percent } }",
            "{ user: { from: 'digest:header:x', duplicates: last, decode: none } }",
            "{ user: { from: 'query:q', duplicates: reject, decode: form } }",
            "{ user: { from: sid } }",
            "{ user: { duplicates: first } }",
            "{ user: { from: 'cookie:sid', duplicates: both } }",
            "{ user: { from: 'cookie:sid', decode: base64 } }",
            "{ user: { from: 'header:x', peers: any } }",
            "{ user: { from: 'header:x', peers: trusted } }",
            "{ user: { from: 'header:x', peers: all } }",
            "{ user: { peers: any } }",
            "{ user: { from: 'cookie:sid', digest: true } }",
            "{ user: [] }",
            "[]",
        ]
        .iter()
        .map(|text| identity(text)),
    );
    texts.extend(
        [
            "{ version: 1 }",
            "{ version: 2, rules: [] }",
            "{ rules: [] }",
            "[]",
            "{ version: 1, rules: {} }",
            "{ version: 1, paths: { ambiguous: reject, case_insensitive: true }, rules: [{ name: a, key: [], limits: [1/s] }] }",
            "{ version: 1, paths: { ambiguous: match_any }, rules: [{ name: a, key: [], limits: [1/s] }] }",
            "{ version: 1, paths: { ambiguous: guess }, rules: [{ name: a, key: [], limits: [1/s] }] }",
            "{ version: 1, methods: { overrides: reject }, rules: [{ name: a, key: [], limits: [1/s] }] }",
            "{ version: 1, methods: { overrides: match_any }, rules: [{ name: a, key: [], limits: [1/s] }] }",
            "{ version: 1, methods: { overrides: strip }, rules: [{ name: a, key: [], limits: [1/s] }] }",
            "{ version: 1, methods: { head: get }, rules: [{ name: a, key: [], limits: [1/s] }] }",
            "{ version: 1, paths: reject, rules: [{ name: a, key: [], limits: [1/s] }] }",
            "{ version: 1, paths: { case: any }, rules: [{ name: a, key: [], limits: [1/s] }] }",
        ]
        .map(str::to_owned),
    );
    let one = |rule: &str| format!("{{ version: 1, rules: [{{ name: a, {rule} }}] }}");
    texts.extend(
        [
            "match: { path: /healthz }, limits: unlimited, stop: true",
            "key: [user], limits: unlimited",
            "priority: high",
            "priority: high, limits: unlimited",
            "key: [ip], limits: infinite",
            "limits: 15/s",
            "limits: [15/s]",
            "key: [ip]",
            "stop: true",
        ]
        .iter()
        .map(|rule| one(rule)),
    );
    let documents: Vec<Json> = texts.iter().map(|text| read(text)).collect();
    for (text, valid) in texts.iter().zip(valid(&documents)) {
        assert_eq!(Policy::parse(text).is_ok(), valid, "{text}");
    }
}
