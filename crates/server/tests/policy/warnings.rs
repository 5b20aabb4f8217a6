//! Warnings: valid but probably mistakes. They are reported, and refused only with `--deny-warnings`.

use super::run::{POLICY, Scratch, complaints, fits, same_in_json, tidegate};
use serde_json::Value;

const WARNED: [(&str, &str); 17] = [
    (
        "rules: [{ name: a, key: [ip], limits: [1/s, 100/min] }]",
        "2:9: warning: rule `a`: `100/min` has no effect, because `1/s` is stricter",
    ),
    (
        "rules: [{ name: a, key: [ip], limits: [{ concurrent: 5 }, { concurrent: 9, name: more }] }]",
        "2:9: warning: rule `a`: `9 concurrent` has no effect, because `5 concurrent` is stricter",
    ),
    (
        "identity: { trusted: [10.0.0.0/8] }\nrules: [{ name: a, key: [ip], limits: [{ concurrent: 5 }, 1/s] }]",
        "3:9: warning: rule `a`: forward auth cannot return the permit; it is held for the whole lease",
    ),
    (
        "rules: [{ name: a, key: [user], limits: [1/s] }]",
        "2:9: warning: rule `a`: no rule counts a request without `user`; write `user|ip`",
    ),
    (
        "rules: [{ name: a, key: [ip], limits: [1/s] }, { name: b, key: [ip], limits: [9/min] }]",
        "2:48: warning: rule `b` has the same conditions and key as `a` at 2:9",
    ),
    (
        "rules: [{ name: a, match: { pth: /a }, key: [ip], limits: [1/s] }]",
        "2:9: warning: rule `a`: `pth` is not an attribute of `identity`; did you mean `path`?",
    ),
    (
        "rules: [{ name: a, match: { path: '/a/:id' }, key: [ip], limits: [1/s] }]",
        "2:9: warning: rule `a`: `:id` is matched literally; write `*` for any one segment",
    ),
    (
        "rules: [{ name: a, match: { path: '/a/{id}/b' }, key: [ip], limits: [1/s] }]",
        "2:9: warning: rule `a`: `{id}` is matched literally; write `*` for any one segment",
    ),
    (
        "rules: [{ name: a, match: { user: 'a*' }, key: [ip], limits: [1/s] }]",
        "2:9: warning: rule `a`: `user: a*` is compared literally; a star has no special meaning here",
    ),
    (
        "rules: [{ name: a, match: { tier: gold }, key: [ip], limits: [1/s] }]",
        "2:9: warning: rule `a`: there is no tier `gold`; list the tiers above the rules",
    ),
    (
        "rules: [{ name: a, when: 'cost > 1 and pth == \"/x\"', key: [ip], limits: [1/s] }]",
        "2:9: warning: rule `a`: `pth` is not an attribute of `identity`; did you mean `path`?",
    ),
    (
        "identity: { trusted: [10.0.0.0/8], user: header:x-user }\nrules: [{ name: a, when: 'not usr in [\"x\"]', key: [ip], limits: [1/s] }]",
        "3:9: warning: rule `a`: `usr` is not an attribute of `identity`; did you mean `user`?",
    ),
    (
        "identity: { user: header:x-user }\nrules: [{ name: a, key: [user|ip], limits: [1/s] }]",
        "¤ warning: `identity.user` is read from requests, but `trusted` is empty",
    ),
    (
        "identity: { trusted: everyone }\nrules: [{ name: a, key: [ip], limits: [1/s] }]",
        "¤ warning: `trusted: everyone`: every client that reaches this port can forge these headers",
    ),
    (
        "identity: { api_key: { from: 'header:x-api-key', peers: any } }\nrules: [{ name: a, key: [api_key|ip], limits: [1/s] }]",
        "3:9: warning: rule `a`: `api_key` is read from every peer (`peers: any`), so a client that invents values gets a new counter for each of them; add a rule with `key: [ip]`",
    ),
    (
        "rules: [{ name: a, key: [ip], limits: [{ rate: 3/min, algorithm: sliding_log }], overrides: [{ key: { ip: 192.0.2.1 }, limits: [{ rate: 4/min, algorithm: token_bucket }] }] }]",
        "2:9: warning: rule `a`: an override: `4/min` is a token_bucket, but `3/min` of the rule, which it replaces, is a sliding_log",
    ),
    (
        "identity: { ip: { ipv6_prefix: 128 } }\nrules: [{ name: a, key: [ip], limits: [1/s] }]",
        "¤ warning: `ipv6_prefix: 128`: a single host has 2⁶⁴ addresses",
    ),
];

#[test]
fn warnings_are_reported_and_refused_only_on_demand() {
    let scratch = Scratch::new("warnings");
    for (content, expected) in WARNED {
        let file = scratch.file(format!("version: 1\n{content}\n"));
        let output = tidegate(&["lint", &file]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let found = complaints(&file, &output);
        assert!(found.len() == 1 && fits(&found[0], expected), "{expected}: {found:#?}");
        same_in_json(&file, "warnings", 1);
        let denied = tidegate(&["lint", "--deny-warnings", &file]);
        assert_eq!(denied.status.code(), Some(2), "{denied:?}");
        assert_eq!(denied.stdout, output.stdout);
        let json = tidegate(&["lint", "--deny-warnings", "--json", &file]);
        assert_eq!(json.status.code(), Some(2), "{json:?}");
    }
}

#[test]
fn json_lists_are_empty_without_problems() {
    let output = tidegate(&["lint", "--json", POLICY]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json, serde_json::json!({ "errors": [], "warnings": [] }));
}
