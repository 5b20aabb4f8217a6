//! YAML features that a policy must not use, and bytes that no text file should contain.

use super::run::{
    ANYTHING, IDENTITY, LIMIT, OPTION, OVERRIDE, RULE, SETTING, Scratch, TIER, TOP, check,
    check_row, refused, rules,
};

#[test]
fn advanced_yaml_is_refused() {
    let scratch = Scratch::new("yaml");
    let good = rules(0..1);
    for (content, expected) in [
        (good.replace("[ip]", "&k [ip]"), "3:44: error: anchors (`&name`) are not supported"),
        (good.replace("[ip]", "!!seq [ip]"), "3:44: error: tags (`!name`) are not supported"),
        (
            format!("{good}---\n{good}"),
            "4:1: error: a second document; a policy is a single document",
        ),
        (
            format!("{good}? [a]\n: 1\n"),
            "4:3: error: a key must be a plain word; write `name: value`",
        ),
        (
            format!("{good}version: 1\n"),
            "4:1: error: duplicate key `version`; it is already set at 1:1",
        ),
        (good.replace("/p0", "/p0, path: /p0"), "3:37: error: duplicate key `path`"),
        (good.replace(" }\n", "\n"), "4:1: error: while parsing a flow mapping"),
        (good.replace("r0", "\"r0"), "¤ error: ¤"),
        (
            good.replace("  - ", "\t- "),
            "3:1: error: a tab in the indentation; YAML is indented by spaces only",
        ),
        (
            "version: 1\nrules:\n  - name: a\n\tkey: [ip]\n\tlimits: [1/s]\n".to_owned(),
            "4:1: error: a tab in the indentation; YAML is indented by spaces only",
        ),
        (
            "version: 1\nrules:\n  - name: a\n  \t key: [ip]\n".to_owned(),
            "4:3: error: a tab in the indentation; YAML is indented by spaces only",
        ),
        // Between brackets, as in JSON, tabs are allowed, so they are not blamed for another mistake.
        (
            "{\n\t\"version\": 1,\n\t\"rules\" []\n}\n".to_owned(),
            "3:10: error: invalid trailing content",
        ),
        ("version: 1\n rules: []\n".to_owned(), "2:7: error: mapping values are not allowed"),
        ("version:1\nrules: []\n".to_owned(), "2:6: error: mapping values are not allowed"),
        (String::new(), "1:1: error: the file is empty; a policy needs `version` and `rules`"),
        ("# to be written\n".to_owned(), "2:1: error: the file is empty"),
        ("\u{feff}".to_owned(), "1:1: error: the file is empty"),
    ] {
        check(&scratch, content, &[expected]);
    }
}

#[test]
fn alias_bombs_are_refused() {
    let scratch = Scratch::new("bombs");
    let list = |name: char| vec![format!("*{name}"); 9].join(",");
    let line = |(from, to): (char, char)| format!("{to}: &{to} [{}]\n", list(from));
    let lines: String = ('a'..'y').zip('b'..'z').map(line).collect();
    let found = refused(&scratch, format!("a: &a [x,x,x]\n{lines}"));
    assert!(found[0].starts_with("1:4: error: anchors"), "{found:?}");
    assert!(found.iter().any(|line| line.starts_with("2:8: error: aliases")), "{found:?}");
}

#[test]
fn bytes_that_are_not_text_are_refused() {
    let scratch = Scratch::new("bytes");
    for (content, expected) in [
        (
            &b"version: 1\nrules:\n  - name: \xff\n"[..],
            "3:11: error: this is not valid UTF-8; save the file",
        ),
        (b"\xff\xfev\0e\0r\0", "1:1: error: this is not valid UTF-8; save the file as UTF-8"),
        (b"version: 1\nrules:\n\0\n", "3:1: error: a control character; remove it"),
        (b"version: 1 # \x1b[31m\n", "1:14: error: a control character; remove it"),
        (b"\0", "1:1: error: a control character; remove it"),
    ] {
        check(&scratch, content, &[expected]);
    }
}

#[test]
fn names_are_safe_in_headers_and_metrics() {
    let long = "x".repeat(10 * 1024);
    let expected = "13 ¤ is not a valid name for ¤; use 1 to 64 of `A-Z a-z 0-9 . _ -`, not starting with a dot";
    for name in [
        "\"\"",
        ".",
        "..",
        ".hidden",
        "\"two words\"",
        "\"a\\r\\nSet-Cookie: b\"",
        "\"a\\0b\"",
        "\"\\e[31mred\"",
        "</script>",
        "../../etc/passwd",
        "größe",
        "\"\u{202e}txt\"",
        "\"\\u202etxt\"",
        &"x".repeat(65),
        &long,
    ] {
        check_row("names", RULE, &format!("name: {name}, key: [ip], limits: [1/s]"), expected);
    }
    // A long name is quoted only in part.
    let content = format!("name: {long}, key: [ip], limits: [1/s]");
    let found = refused(&Scratch::new("long-name"), RULE.replace(ANYTHING, &content));
    assert!(found[0].len() < 200, "{found:?}");
}

#[test]
fn other_versions_are_refused() {
    let scratch = Scratch::new("version");
    for (version, expected) in [
        ("2", "1:10: error: version 2 of the policy language is not supported; write `version: 1`"),
        ("0", "1:10: error: version 0 of the policy language is not supported; write `version: 1`"),
        ("1.0", "1:10: error: `version` is the number 1; write `version: 1`"),
        ("one", "1:10: error: `version` is the number 1; write `version: 1`"),
        ("'1'", "1:10: error: `version` is the number 1; write `version: 1`"),
        ("\"1\"", "1:10: error: `version` is the number 1; write `version: 1`"),
        (
            "01",
            "1:10: error: version 01 of the policy language is not supported; write `version: 1`",
        ),
        ("[1]", "1:10: error: `version` is the number 1; write `version: 1`"),
        ("~", "1:10: error: `version` is the number 1; write `version: 1`"),
    ] {
        let content = rules(0..1).replace("version: 1", &format!("version: {version}"));
        check(&scratch, content, &[expected]);
    }
}

/// Errors quote a file only in part, and without characters that a terminal acts on: [`refused`] checks that.
#[test]
fn quotations_are_short_and_safe_to_print() {
    let scratch = Scratch::new("quoted");
    let long = "x ".repeat(25_000);
    for text in [
        "\\e[31mred",
        "\\u202etxt",
        "\u{202e}txt",
        "\\u2066a",
        "\\x9bm",
        "\\r",
        "\\n",
        "\\u061ca",
        "\u{61c}a",
        "\\u2028a",
        "\\u2029a",
        &long,
    ] {
        for (frame, content) in QUOTING {
            let content = content.replace(ANYTHING, &format!("\"{text}\""));
            let found = refused(&scratch, frame.replace(ANYTHING, &content));
            assert!(found.iter().all(|line| line.chars().count() < 250), "{content}: {found:?}");
        }
    }
}

/// Mistakes whose error quotes the value.
const QUOTING: [(&str, &str); 24] = [
    (TOP, "¤: 1"),
    (TOP, "tiers: { default: ¤, known: [free] }"),
    (TOP, "tiers: { default: free, known: [¤] }"),
    (SETTING, "¤: 1"),
    (SETTING, "match: { ¤: 1 }"),
    (SETTING, "match: { path: ¤ }"),
    (SETTING, "match: { method: ¤ }"),
    (SETTING, "match: { ip: ¤ }"),
    (SETTING, "when: ¤"),
    (SETTING, "mode: ¤"),
    (SETTING, "mode: { soft: ¤ }"),
    (SETTING, "mode: { ¤: 1 }"),
    (SETTING, "shadow: ¤"),
    (SETTING, "tiers: { ¤: unlimited }"),
    (SETTING, "on_limit: { delay: { max_wait: ¤ } }"),
    (OPTION, "name: ¤"),
    (OPTION, "burst: ¤"),
    (LIMIT, "¤"),
    (TIER, "pro: ¤"),
    (OVERRIDE, "{ key: { ¤: x }, limits: [1/s] }"),
    (OVERRIDE, "{ key: { ip: ¤ }, limits: [1/s] }"),
    (IDENTITY, "¤: [x]"),
    (IDENTITY, "user: ¤"),
    (IDENTITY, "trusted: [¤]"),
];
