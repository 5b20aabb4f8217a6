//! Mistakes that involve several rules, and files with several mistakes.

use super::run::{Scratch, accepted, check, difference, refused, rules, same_in_json};

#[test]
fn rules_that_conflict_are_refused() {
    let scratch = Scratch::new("together");
    let twice = rules(0..2).replace("r1", "r0");
    check(&scratch, twice, &["4:5: error: a second rule named `r0`; the first is at 3:5"]);
    let all = "rules:\n  - { name: all, key: [ip], limits: [1/s], stop: true }";
    check(
        &scratch,
        rules(0..1).replace("rules:", all),
        &[
            "4:5: error: rule `r0` is never reached: `all` at 3:5 matches all of its requests and has `stop: true`",
        ],
    );
    let many = rules(0..6).replace("1/s", "1/s, 10/min, 100/h");
    let many = (0..6).fold(many, |many, n| many.replace(&format!("/p{n}"), "/p"));
    check(
        &scratch,
        many,
        &[
            "3:5: error: more than 16 limits can apply to one request, such as one that matches `r0`; at most 16",
        ],
    );
}

#[test]
fn all_mistakes_are_reported_in_the_order_of_the_file() {
    let scratch = Scratch::new("several");
    let content = "
version: 2
identity: { trusted: [0.0.0.0/0], user: x-user }
tiers: { default: gold, known: [free] }
rules:
  - limits: [1/x, 0/s]
    name: a b
    wehn: 'cost > 1'
    on_limit: { delay: { max_wait: 2, max_queue: 0 } }
    shadow: yes
  - { name: b, key: [cost], limits: [{ rate: -1/s, burst: 0, name: c d }], mode: sotf }
";
    let expected = [
        "2:10: error: version 2",
        "3:22: error: these networks contain every address, so every client could forge headers",
        "3:41: error: `x-user` is not a valid source of an attribute",
        "4:19: error: `gold` is not listed in `known`",
        "6:5: error: a rule needs the key `key`",
        "6:14: error: unknown period `x`",
        "6:19: error: `0/s`: an amount of 0",
        "7:11: error: `a b` is not a valid name for ¤; use 1 to 64 of `A-Z a-z 0-9 . _ -`, not starting with a dot",
        "8:5: error: unknown key `wehn`, did you mean `when`?",
        "9:36: error: `max_wait`: unknown period",
        "9:50: error: `max_queue` is a whole number from 1",
        "10:13: error: `shadow` is `true` or `false`, not `yes`",
        "11:2¤ error: `cost` cannot be part of a key",
        "11:46: error: `-1` is not a valid amount",
        "11:59: error: `burst` is a whole number from 1, not `0`",
        "11:68: error: `c d` is not a valid name for a limit",
        "11:82: error: `mode` is",
    ];
    check(&scratch, content, &expected);
    same_in_json(&scratch.file(content), "errors", expected.len());
}

#[test]
fn at_most_a_hundred_mistakes_are_reported() {
    let found = refused(&Scratch::new("often"), rules(0..150).replace("limits", "limts"));
    assert_eq!(found.len(), 100, "{found:?}");
    let all_alike = found.iter().all(|line| line.contains("did you mean `limits`?"));
    assert!(all_alike && found[0].starts_with("3:50: error: "), "{found:?}");
    assert!(
        found[99].starts_with("102:")
            && found[99].ends_with("(more problems follow; fix these first)"),
        "{}",
        found[99]
    );
}

/// Files with several mistakes, where a reader might stop at the first.
const AT_ONCE: [(&str, &[&str]); 11] = [
    (
        "rules:\n  - { name: a, key: [ip], limits: [0/s] }",
        &["1:1: error: a policy needs the key `version`", "2:36: error: `0/s`: an amount of 0"],
    ),
    (
        "version: 1\nversion: 1\nrules:\n  - { name: a, key: [ip], limts: [1/s] }",
        &["2:1: error: duplicate key `version`", "4:27: error: unknown key `limts`"],
    ),
    (
        "version: 1\nrules:\n  - { name: a, key: [ip], limits: [{ rate: bad, block: yes }] }",
        &[
            "3:44: error: `bad` is not a valid rate",
            "3:56: error: `block` is `true` or `false`, not `yes`",
        ],
    ),
    (
        "version: 1\nrules:\n  - { name: a, key: [ip], limits: [{ rate: 1/s, burst: x, refill: y }] }",
        &[
            "3:56: error: `burst` is a whole number from 1, not `x`",
            "3:67: error: `refill` is ¤, not `y`",
        ],
    ),
    (
        "version: 1\nrules:\n  - { name: a, key: [ip], limits: [{ rate: 1/s, algorithm: x, burst: 0 }] }",
        &[
            "3:60: error: `algorithm` is ¤, not `x`",
            "3:70: error: `burst` is a whole number from 1, not `0`",
        ],
    ),
    (
        "version: 1\nrules:\n  - { name: a, key: [ip], limits: [1/s], mode: { elastic: { up_to: 1%, while: load < } } }",
        &[
            "3:68: error: `up_to` is `101%` to `1000%`, not `1%`",
            "3:85: error: in `load <`: a value is missing",
        ],
    ),
    (
        "version: 1\ntiers: { default: [x], known: gold }\nrules: [{ name: a, key: [ip], limits: [1/s] }]",
        &[
            "2:19: error: a tier is a text, not a list",
            "2:31: error: `known` is a list; write `[gold]`",
        ],
    ),
    (
        "version: 1\nrules:\n  - { name: a, key: [ip], limits: [1/s] }\n  - { name: a, key: [ip], limits: [0/s] }",
        &[
            "4:5: error: a second rule named `a`; the first is at 3:5",
            "4:36: error: `0/s`: an amount of 0",
        ],
    ),
    (
        "version: 1\nrules:\n  - { name: a, key: [ip], limits: [0/s] }\n  - { name: a, key: [ip], limits: [1/s] }",
        &[
            "3:36: error: `0/s`: an amount of 0",
            "4:5: error: a second rule named `a`; the first is at 3:5",
        ],
    ),
    (
        "version: 1\nrules:\n  - { name: a, key: [ip], limits: [1/s] }\n  - { name: a, key: [ip], limits: [1/s] }\n  - { name: a, key: [ip], limits: [1/s] }",
        &[
            "4:5: error: a second rule named `a`; the first is at 3:5",
            "5:5: error: a second rule named `a`; the first is at 3:5",
        ],
    ),
    (
        "version: 1\nrules:\n  - { name: a, key: [user], limits: [1/s], overrides: [{ key: { user: '' }, limits: [0/s] }] }",
        &["3:71: error: `user` must not be empty", "3:86: error: `0/s`: an amount of 0"],
    ),
];

#[test]
fn one_mistake_does_not_hide_another() {
    let scratch = Scratch::new("at-once");
    let different = |(content, expected): (&str, &[&str])| difference(&scratch, content, expected);
    let differences: String = AT_ONCE.into_iter().filter_map(different).collect();
    assert!(differences.is_empty(), "{differences}");
}

/// `number` rules that differ only in their names.
fn alike(name: &str, number: u32, settings: &str) -> String {
    let rule = |n| format!("  - {{ name: {name}{n}, key: [ip], limits: [1/s], {settings} }}\n");
    (0..number).map(rule).collect()
}

/// Nine rules of each kind are allowed, but one request matches both kinds.
#[test]
fn limits_of_all_rules_that_match_one_request_are_added_up() {
    let by_method = alike("m", 9, "match: { method: GET }");
    let by_path = alike("p", 9, "match: { path: /a }");
    check(
        &Scratch::new("meet"),
        format!("version: 1\nrules:\n{by_method}{by_path}"),
        &[
            "3:5: error: more than 16 limits can apply to one request, such as one that matches `m0`",
        ],
    );
}

/// Requests that the first rule does not stop match all rules after it.
#[test]
fn limits_after_a_rule_that_stops_only_some_requests_are_added_up() {
    let scratch = Scratch::new("pass");
    let general: String =
        (0..17).map(|n| alike(&format!("g{n}-"), 1, &format!("when: cost > {n}"))).collect();
    for stop in ["match: { path: /x }, key: [ip]", "key: [user]"] {
        let stop = format!("  - {{ name: x, {stop}, limits: [1/s], stop: true }}\n");
        for behind in [&general, &alike("g", 17, "enabled: true")] {
            let content = format!("version: 1\nrules:\n{stop}{behind}");
            check(&scratch, content, &["¤: error: more than 16 limits can apply to one request"]);
        }
    }
}

#[test]
fn limits_after_a_rule_that_stops_do_not_count() {
    let scratch = Scratch::new("behind");
    let stop = "version: 1\nrules:\n  - { name: x, key: [ip], limits: [1/s], stop: true";
    // Sixteen limits for other requests, and one for those that stop: no request has seventeen.
    let general: String =
        (0..16).map(|n| alike(&format!("g{n}-"), 1, &format!("when: cost > {n}"))).collect();
    let content = format!("{stop}, match: {{ path: /x }} }}\n{general}");
    assert_eq!(accepted(&scratch, content), [""; 0]);
    // A disabled rule that is never reached is not a mistake.
    let content = format!("{stop} }}\n{}", alike("off", 1, "enabled: false"));
    assert_eq!(accepted(&scratch, content), [""; 0]);
}
