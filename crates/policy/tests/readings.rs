//! Rules for paths that servers read in several ways: a limit applies if any reading matches, an exemption only if every
//! reading matches.

#![allow(clippy::unwrap_used, reason = "a test fails loudly")]

use tidegate_policy::{Attributes, Changes, Policy};

fn policy(rules: &str) -> Policy {
    Policy::parse(format!(
        "{{ version: 1, tiers: {{ default: free, known: [free, pro] }}, rules: [{rules}] }}"
    ))
    .unwrap()
}

fn request(path: &str) -> Attributes<'_> {
    Attributes::new().with("ip", "203.0.113.7").unwrap().with("path", path).unwrap()
}

/// The rules that apply, with the values of their keys.
fn applying(rules: &str, path: &str) -> Vec<String> {
    let (policy, request) = (policy(rules), request(path));
    let name = |(rule, values): (&tidegate_policy::Rule, tidegate_policy::KeyValues<'_>)| {
        format!("{} {values}", rule.name())
    };
    policy.applying(&request, 1).map(name).collect()
}

/// `/x%2fy/../login`: `/login` for Node, `/x/login` for nginx, and as it stands for Express.
const SPELLED: &str = "/x%2fy/../login";

#[test]
fn match_and_when_must_hold_in_the_same_reading() {
    let one = |rule: &str| {
        let rules = format!("{{ name: a, {rule}, key: [], limits: [1/s] }}");
        !applying(&rules, SPELLED).is_empty()
    };
    for applies in [
        "match: { path: /login }",
        "match: { path: /x/login }",
        "match: { path: /x/** }",
        "match: { path: /*/*/login }",
        "match: { path: /** }, when: 'path == \"/login\"'",
        "when: 'path.starts_with(\"/x/\")'",
        // Negated: there is a reading that equals none of these.
        "when: 'not path.starts_with(\"/x\")'",
        "when: 'path != \"/login\"'",
        "when: 'not path in [\"/login\", \"/x/login\"]'",
        "match: { path: /x/** }, when: 'not path == \"/x/login\"'",
    ] {
        assert!(one(applies), "{applies}");
    }
    for does_not in [
        "match: { path: /y }",
        "match: { path: /login }, when: 'path != \"/login\"'",
        "when: 'not path.ends_with(\"login\")'",
    ] {
        assert!(!one(does_not), "{does_not}");
    }
}

/// A rule with `stop` exempts requests from the rules after it.
#[test]
fn a_rule_stops_if_it_applies_in_every_reading() {
    let stopping = |matches: &str| {
        format!(
            "{{ name: a, {matches}, key: [], limits: [1/s], stop: true }}, {{ name: b, key: [ip], limits: [1/s] }}"
        )
    };
    let names = |matches: &str, path: &str| {
        let found = applying(&stopping(matches), path);
        found.iter().map(|text| text.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("match: { path: /login }", "/login"), ["a"]);
    assert_eq!(names("match: { path: /login }", SPELLED), ["a", "b"]);
    assert_eq!(names("match: { path: [/login, /x/**, '/*/*/login'] }", SPELLED), ["a"]);
    assert_eq!(names("match: { path: /static/** }", "/static/x%2f..%2f..%2fpay"), ["a", "b"]);
    assert_eq!(names("when: 'not path.starts_with(\"/pay\")'", "/x/../pay"), ["a", "b"]);
}

/// If the key contains the path, a request counts under every path that a server may read. So another spelling of a path
/// still uses the counter of that path.
#[test]
fn a_path_in_the_key_counts_in_every_reading() {
    let rule = "{ name: a, key: [path], limits: [1/s] }";
    assert_eq!(applying(rule, "/login"), ["a path=/login"]);
    assert_eq!(applying(rule, "/q/../login"), ["a path=/login", "a path=/q/../login"]);
    let mut found = applying(rule, SPELLED);
    found.sort();
    let all = ["/login", "/x%2Fy/../login", "/x/login", "/x/y/../login"];
    assert_eq!(found, all.map(|path| format!("a path={path}")));
    // Only where the rule applies.
    let rule = "{ name: a, match: { path: /login }, key: [path], limits: [1/s] }";
    assert_eq!(applying(rule, SPELLED), ["a path=/login"]);
    let rule = "{ name: a, key: [ip], limits: [1/s] }";
    assert_eq!(applying(rule, SPELLED), ["a ip=203.0.113.7"]);
}

/// An override that allows more applies to its own path only. An override that allows less also applies to an ambiguous path
/// that may be its own.
#[test]
fn an_override_for_a_path_applies_to_that_reading() {
    let limits = |path: &str| {
        let policy = policy(
            "{ name: a, key: [path], limits: [10/s], overrides: [{ key: { path: /health }, limits: unlimited }, { key: { path: /login }, limits: [1/s] }] }",
        );
        let (changes, request) = (Changes::default(), request(path));
        let resolved = policy.resolve(&changes, &request, 1);
        let allowances = resolved.rules.iter().flat_map(|rule| rule.allowance.limits());
        let mut amounts: Vec<u64> = allowances.map(|limit| limit.limit().amount()).collect();
        amounts.sort_unstable();
        amounts
    };
    assert_eq!(limits("/health"), [0; 0]);
    assert_eq!(limits("/login"), [1]);
    assert_eq!(limits("/x/../health"), [10]);
    assert_eq!(limits("/x/../login"), [1, 10]);
    assert_eq!(limits("/health%2f..%2flogin"), [1, 10, 10]);
}

/// A tier that an operator assigned to a path must not apply to an ambiguous path.
#[test]
fn a_tier_of_a_path_applies_to_that_path_only() {
    let policy = policy("{ name: a, key: [ip], limits: [1/s], tiers: { pro: unlimited } }");
    let mut changes = Changes::default();
    changes.assign_tier(&policy, ("path", "/health"), Some("pro")).unwrap();
    let tier = |path| policy.resolve(&changes, &request(path), 1).tier.map(str::to_owned);
    assert_eq!(tier("/health").as_deref(), Some("pro"));
    assert_eq!(tier("/x/../health").as_deref(), Some("free"));
}

#[test]
fn case_is_ignored_only_if_the_policy_says_so() {
    let rules = |policy: &str, rule: &str| {
        Policy::parse(format!(
            "{{ version: 1, paths: {{ {policy} }}, rules: [{{ name: a, {rule}, limits: [1/s] }}] }}"
        ))
        .unwrap()
    };
    let applies = |policy: &Policy, path: &str| {
        let request = request(path);
        policy.applying(&request, 1).map(|(_, values)| values.to_string()).next()
    };
    for (policy, rule, path, expected) in [
        ("", "match: { path: /Login }, key: [path]", "/Login", Some("path=/Login")),
        ("", "match: { path: /Login }, key: [path]", "/login", None),
        (
            "case_insensitive: true",
            "match: { path: /Login }, key: [path]",
            "/LOGIN",
            Some("path=/login"),
        ),
        (
            "case_insensitive: true",
            "match: { path: /**/Login }, key: [path]",
            "/A/LOGIN",
            Some("path=/a/login"),
        ),
        (
            "case_insensitive: true",
            "match: { path: /login }, key: []",
            "/x/../LOGIN",
            Some("(one counter for all)"),
        ),
        ("case_insensitive: true", "match: { path: /Größe }, key: []", "/GR%C3%96SSE", None),
        (
            "case_insensitive: true",
            "match: { path: /ÖL/** }, key: []",
            "/%C3%B6l/x",
            Some("(one counter for all)"),
        ),
        (
            "case_insensitive: true",
            "when: 'path == \"/Login\"', key: []",
            "/lOGIN",
            Some("(one counter for all)"),
        ),
        (
            "case_insensitive: true",
            "when: 'not path.starts_with(\"/Login\")', key: []",
            "/lOGIN",
            None,
        ),
        (
            "case_insensitive: true",
            "case_insensitive: false, match: { path: /login }, key: []",
            "/LOGIN",
            None,
        ),
        (
            "",
            "case_insensitive: true, match: { path: /login }, key: []",
            "/LOGIN",
            Some("(one counter for all)"),
        ),
    ] {
        let found = applies(&rules(policy, rule), path);
        assert_eq!(found.as_deref(), expected, "{policy} {rule} {path}");
    }
    let policy = rules(
        "case_insensitive: true",
        "key: [path], overrides: [{ key: { path: /Health }, limits: unlimited }]",
    );
    let request = request("/HEALTH");
    let (rule, values) = policy.applying(&request, 1).next().unwrap();
    assert!(rule.overrides().find(&values).is_some());
}

#[test]
fn an_explanation_shows_the_readings() {
    let policy = policy("{ name: a, match: { path: /login }, key: [path], limits: [1/s] }");
    let changes = Changes::default();
    let text = policy.explain(&changes, &request(SPELLED), 1).to_string();
    assert!(text.contains("/login, ") && text.contains("/x%2Fy/../login"), "{text}");
    assert!(text.contains("a  path=/login\n"), "{text}");
    let plain = policy.explain(&changes, &request("/login"), 1);
    assert!(plain.readings.is_empty());
}
