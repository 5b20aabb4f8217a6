//! Files at or above the size limits: refused or read within the bounds on time and memory.

use super::run::{
    ANYTHING, RULES, SETTING, Scratch, TOP, accepted, check, check_row, fits, refused, rules,
};

/// One after the other, so that they do not compete for the machine.
#[test]
fn huge_files_are_refused_within_the_bounds() {
    let scratch = Scratch::new("giants");
    let under = |start: &str, content: &str, n: usize| {
        format!("version: 1\nrules: {start}{}", content.repeat(n))
    };
    let stairs = (0..2_500).map(|n| format!("{}a:\n", " ".repeat(n)));
    for (content, expected) in [
        (rules(0..1_000_000), "1:1: error: the file has ¤4194304"),
        (rules(0..20_001), "3:3: error: 20001 rules; a policy has at most 20000"),
        (under("", "\n  - a", 699_000), "¤: error: more than 400000 values; split the policy"),
        (under("[", "a,", 2_097_000), "2:799999: error: more than 400000 values; split the policy"),
        (under("[", "{},", 1_398_000), "2:¤: error: more than 400000 values; split the policy"),
        (under("", "[", 10_000), "2:¤: error: nested deeper than 16 levels; no valid policy is"),
        (under("", "{a: ", 10_000), "2:¤: error: nested deeper than 16 levels; no valid policy is"),
        ("- ".repeat(10_000), "1:¤: error: nested deeper than 16 levels; no valid policy is"),
        (stairs.collect(), "16:16: error: nested deeper than 16 levels; no valid policy is"),
        ("#".repeat(4_000_000), "¤: error: more than 131072 characters without an end"),
        ("#\n".repeat(2_000_000), "¤: error: more than 131072 characters without an end"),
        ("\n".repeat(4_000_000), "¤: error: more than 131072 characters without an end"),
        (under("", "a", 4_000_000), "¤: error: more than 131072 characters without an end"),
        (under("", "a", 131_000), "2:8: error: `rules` is a list, not a text"),
        (under("\"", "a", 131_000) + "\"", "2:8: error: `rules` is a list, not a text"),
        (under("|\n", "  a\n", 1_000_000), "¤: error: more than 131072 characters without an end"),
        ("---\n".repeat(1_000_000), "2:1: error: a second document; a policy is a single document"),
    ] {
        check(&scratch, content, &[expected]);
    }
}

#[test]
fn twenty_thousand_mistakes_are_handled_within_the_bounds() {
    let scratch = Scratch::new("many");
    let keys: String = (0..9_000).map(|n| format!("key-{n}: 1,")).collect();
    let values = "x, ".repeat(20_000);
    for content in [
        rules(0..20_000).replace("limits", "limts"),
        SETTING.replace(ANYTHING, &keys),
        RULES.replace(ANYTHING, &format!("[{values}]")),
    ] {
        let found = refused(&scratch, content);
        assert_eq!(found.len(), 100, "{found:?}");
        assert!(found[99].ends_with("(more problems follow; fix these first)"), "{}", found[99]);
    }
    let found = refused(&scratch, rules(0..5_000) + &"version: 1\n".repeat(50));
    assert_eq!(found.len(), 50, "{found:?}");
}

/// The start of a file, followed by as many copies of a text as a file may contain.
fn filled(start: &str, with: &str) -> String {
    let most = 4 * 1024 * 1024_usize;
    let times = most.saturating_sub(start.len()).checked_div(with.len()).unwrap_or_default();
    format!("{start}{}", with.repeat(times))
}

/// Checks that a mistake that is made many times is reported a hundred times, with a note about the rest.
fn reported_a_hundred_times(scratch: &Scratch, content: String, expected: &str) {
    let found = refused(scratch, content);
    assert_eq!(found.len(), 100, "{expected}: {found:?}");
    let alike = found.iter().all(|line| fits(line, expected));
    assert!(alike && found[99].ends_with("(more problems follow; fix these first)"), "{found:?}");
}

#[test]
fn a_mistake_that_fills_a_file_is_reported_within_the_bounds() {
    let scratch = Scratch::new("filled");
    let twice: String = (0..50_000).map(|n| format!("key-{n}: 1\n")).collect();
    let unknown: String = (0..100_000).map(|n| format!("    key-{n}: 1\n")).collect();
    let rule = "version: 1\nrules:\n  - name: a\n    key: [ip]\n    limits: [1/s]\n";
    for (content, expected) in [
        (filled("", "- &a x\n"), "¤:3: error: anchors (`&name`) are not supported"),
        (filled("", "- !a x\n"), "¤:3: error: tags (`!name`) are not supported"),
        (
            rules(0..1) + &"a: 1\n".repeat(100_000),
            "¤:1: error: duplicate key `a`; it is already set at ",
        ),
        (twice.repeat(2), "¤:1: error: duplicate key `key-¤`; it is already set at "),
        (format!("{rule}{unknown}"), "¤:5: error: unknown key `key-¤`"),
        (filled("version: 1\nrules:\n", "  a: 1\n"), "¤:3: error: duplicate key `a`"),
    ] {
        reported_a_hundred_times(&scratch, content, expected);
    }
}

#[test]
fn lists_that_fill_a_file_are_refused_within_the_bounds() {
    let scratch = Scratch::new("lists");
    for (content, expected) in [
        (filled("[", "a,"), "¤: error: more than 131072 characters without an end"),
        (filled("{", "a,"), "¤: error: more than 131072 characters without an end"),
        (filled("version: 1\nrules:\n", " - a\n"), "399998:4: error: more than 400000 values"),
        (filled("version: 1\nrules:\n  - [", "a,\n"), "4:1: error: invalid indentation"),
        (filled("version: 1\nrules:\n  - {", "a,\n"), "4:1: error: invalid indentation"),
    ] {
        check(&scratch, content, &[expected]);
    }
}

/// The parser buffers everything in brackets until it knows that it is not a key, so the content of brackets is bounded,
/// also if it contains escaped quotes or texts of several lines.
#[test]
fn brackets_that_hold_too_much_are_refused_within_the_bounds() {
    let scratch = Scratch::new("brackets");
    let keys = words("k", 100_000, ": 1,");
    let tiers = format!("tiers: {{\n{}    }}", words("u", 100_000, ": unlimited,"));
    let item = "version: 1\nrules:\n  - ";
    for content in [
        filled("[", "a,\n"),
        filled("{", "a,\n"),
        filled(&format!("{item}["), "a,\n    "),
        SETTING.replace(ANYTHING, &format!("\n{keys}")),
        SETTING.replace(ANYTHING, &tiers),
        filled(&(rules(0..10) + "  - ["), "a,\n    "),
        json(20_000),
        filled("[\"\\\" ]\",", "a,\n"),
        filled("[''' ]',", "a,\n"),
        filled("{\"\\\" }\": 1,", "a,\n"),
        filled("[ \"\n ]\",", "a,\n"),
        filled(&format!("{item}[\"\\\" ]\","), "a,\n    "),
    ] {
        check(&scratch, content, &["¤: error: more than 131072 characters without an end"]);
    }
    for content in [
        filled("version: 1\nrules: [\n", " a,\n"),
        filled("version: 1\nrules: {\n", " a,\n"),
        filled("version: 1\nrules:\n  [", "a,\n    "),
    ] {
        let found = refused(&scratch, content);
        let known = |line: &String| line.contains("more than") || line.contains("duplicate key");
        assert!(found.iter().all(known), "{found:?}");
    }
}

/// A policy of `rules` rules in JSON, as programs write it.
fn json(rules: u32) -> String {
    let rule = |n| {
        format!(
            r#"{{"name": "r{n}", "match": {{"path": "/p{n}"}}, "key": ["ip"], "limits": ["1/s"]}}"#
        )
    };
    let rules = (0..rules).map(rule).collect::<Vec<_>>().join(",\n");
    format!("{{\"version\": 1, \"rules\": [\n{rules}]}}\n")
}

#[test]
fn a_thousand_rules_in_brackets_are_accepted() {
    let scratch = Scratch::new("brackets-full");
    assert_eq!(accepted(&scratch, json(1_000)), [""; 0]);
    check(&scratch, json(2_000), &["¤: error: more than 131072 characters without an end"]);
}

/// If brackets in texts and comments counted, the rest of a large file would seem to be inside them.
#[test]
fn brackets_in_texts_and_comments_do_not_count() {
    let scratch = Scratch::new("brackets-text");
    let others = rules(0..5_000);
    for description in [
        "see [1",
        "it's {",
        "\"x \\\" [\"",
        "'it''s [ so'",
        "'it'' [ so'",
        "\"one\n      [ two\"",
        "|\n      one [ two",
        "x # [ {",
    ] {
        let rule = format!(
            "# [ {{\nrules:\n  - description: {description}\n    name: a\n    match: {{ path: /a }}\n    key: [ip]\n    limits: [1/s]\n"
        );
        let content = others.replace("rules:\n", &rule);
        assert_eq!(accepted(&scratch, content), [""; 0], "{description}");
    }
}

/// Lines with `{name}0`, `{name}1` and so on.
fn words(name: &str, number: u32, what: &str) -> String {
    (0..number).map(|n| format!("        {name}{n}{what}\n")).collect()
}

/// Two rules with this setting, which spans several lines.
fn twice(setting: &str) -> String {
    let rule = |name| format!("  - name: {name}\n    key: [ip]\n    limits: [1/s]\n    {setting}");
    format!("version: 1\nrules:\n{}{}", rule('a'), rule('b'))
}

#[test]
fn too_many_values_of_a_condition_are_refused_within_the_bounds() {
    let users = format!("match:\n      user:\n{}", words("- user-", 50_000, ""));
    let expected = ["8:9", "50013:9"]
        .map(|place| format!("{place}: error: 50000 values; a condition has at most 1000"));
    check(&Scratch::new("more"), twice(&users), &expected.each_ref().map(String::as_str));
    let addresses = format!("match: {{ ip: [{}] }}", "x, ".repeat(20_000));
    let expected = "55 20000 values; a condition has at most 1000";
    check_row("more-addresses", SETTING, &addresses, expected);
}

#[test]
fn too_many_tiers_are_refused_within_the_bounds() {
    let scratch = Scratch::new("more-tiers");
    let known = |n| format!("tiers:\n  default: k0\n  known:\n{}", words("- k", n, ""));
    let expected = "3:3: error: 100000 tiers; there are at most 64";
    check(&scratch, TOP.replace(ANYTHING, &known(100_000)), &[expected]);
    // Without the bound, each unknown tier would be compared with each known one.
    let unknown = format!("tiers:\n{}", words("u", 2_000, ": unlimited"));
    let rules = twice(&unknown).replace("rules", &format!("{}rules", known(2_000)));
    let expected = ["3:3", "2010:9", "4014:9"]
        .map(|place| format!("{place}: error: 2000 tiers; there are at most 64"));
    check(&scratch, rules, &expected.each_ref().map(String::as_str));
}

/// Each mistake is shown with the text around it, however far along the line it is.
#[test]
fn many_mistakes_on_a_long_line_are_reported_within_the_bounds() {
    let long = "x".repeat(1_200);
    let keys: String = (0..100).map(|n| format!("key-{n}: {long}, ")).collect();
    let found = refused(&Scratch::new("long-line"), SETTING.replace(ANYTHING, &keys));
    assert_eq!(found.len(), 100, "{found:?}");
    assert!(found[99].starts_with("3:119822: error: unknown key `key-99`"), "{}", found[99]);
}

#[test]
fn twenty_thousand_networks_are_read_within_the_bounds() {
    let network = |n: u32| format!("10.{}.{}.0/24", n >> 8, n & 255);
    let rule = |n| {
        let ip = network(n);
        format!("  - {{ name: r{n}, match: {{ ip: {ip} }}, key: [ip], limits: [1/s] }}\n")
    };
    let rules: String = (0..20_000).map(rule).collect();
    let found = accepted(&Scratch::new("networks"), format!("version: 1\nrules:\n{rules}"));
    assert_eq!(found, [""; 0]);
}

#[test]
fn long_paths_are_compared_within_the_bounds() {
    let long = "a".repeat(8_000);
    let paths = words(&format!("- /{long}"), 200, "");
    let content = twice(&format!("match:\n      path:\n{paths}"));
    let found = accepted(&Scratch::new("long-paths"), content);
    let twin = "208:5: warning: rule `b` has the same conditions and key as `a` at 3:5";
    assert!(found.len() == 1 && found[0].starts_with(twin), "{found:?}");
}

/// `number` rules named `r0`, `r1` and so on, one per line.
fn many(number: u32, rule: impl Fn(u32) -> String) -> String {
    let all = (0..number).map(|n| format!("  - {{ name: r{n}, {} }}\n", rule(n)));
    format!("version: 1\nrules:\n{}", all.collect::<String>())
}

/// `number` rules, each spanning several lines.
fn in_lines(number: u32) -> String {
    let rule = |n| {
        format!("- name: r{n}\n  match:\n    path: '/*/p{n}'\n  key:\n  - ip\n  limits:\n  - 1/s\n")
    };
    format!("version: 1\nrules:\n{}", (0..number).map(rule).collect::<String>())
}

#[test]
fn the_largest_policies_are_read_within_the_bounds() {
    let scratch = Scratch::new("rules");
    let of = |path: &'static str| {
        move |n| format!("match: {{ path: '{path}/p{n}' }}, key: [ip], limits: [1/s]")
    };
    for content in [
        rules(0..20_000),
        in_lines(20_000),
        many(20_000, of("/*")),
        many(10_000, of("/**")),
        many(20_000, of("/**")),
    ] {
        assert_eq!(accepted(&scratch, content), [""; 0]);
    }
}

#[test]
fn one_mistake_in_the_largest_policies_is_found() {
    let scratch = Scratch::new("one-of-many");
    let typo = "  - { name: z, key: [ip], limts: [1/s] }\n";
    let expected = "20002:27: error: unknown key `limts`, did you mean `limits`?";
    check(&scratch, rules(0..19_999) + typo, &[expected]);
    let stop = "rules:\n  - { name: stop, match: { path: /stop/** }, key: [ip], limits: [1/s], stop: true }\n";
    let hidden = "  - { name: hidden, match: { path: /stop/x }, key: [ip], limits: [1/s] }\n";
    let expected = "error: rule `hidden` is never reached: `stop` at 3:5 matches all of its requests and has `stop: true`";
    let simple = rules(0..19_998).replace("rules:\n", stop) + hidden;
    check(&scratch, simple, &[&format!("20002:5: {expected}")]);
    let long = |n| {
        format!(
            "match: {{ method: POST, path: /api/things/{n}/** }}, when: cost <= 100, key: [user|ip], limits: [2/s, {{ rate: 10/min, algorithm: sliding_weighted }}]"
        )
    };
    let long = many(17_000, long).replace("rules:\n", stop) + hidden;
    check(&scratch, long, &[&format!("17004:5: {expected}")]);
}

#[test]
fn rules_that_all_match_one_request_are_refused_within_the_bounds() {
    let scratch = Scratch::new("all-meet");
    for (number, rule) in [
        (20_000, "key: [ip], limits: [1/s]"),
        (20_000, "key: [user], limits: [1/s]"),
        (10_000, "match: { method: GET }, key: [ip], limits: [1/s]"),
    ] {
        let expected = "3:5: error: more than 16 limits can apply to one request, such as one that matches `r0`";
        check(&scratch, many(number, |_| rule.to_owned()), &[expected]);
    }
}

#[test]
fn of_twenty_thousand_warnings_a_hundred_are_reported() {
    let content = rules(0..20_000).replace("1/s", "1/s, 100/min");
    let found = accepted(&Scratch::new("warned"), content);
    assert_eq!(found.len(), 100, "{found:?}");
    assert!(found[99].starts_with("102:5: warning: rule `r99`: `100/min` has no effect"));
    assert!(found[99].ends_with("(more problems follow; fix these first)"), "{}", found[99]);
}
