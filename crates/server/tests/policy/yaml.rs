//! What YAML can do that a policy cannot, and what no file should hold.

use crate::run::{
    ANYTHING, IDENTITY, LIMIT, OPTION, OVERRIDE, RULE, SETTING, Scratch, TIER, TOP, check,
    check_row, refused, rules,
};

#[test]
fn what_else_yaml_can_do_is_refused() {
    let scratch = Scratch::new("yaml");
    let good = rules(0..1);
    for (content, expected) in [
        (good.replace("[ip]", "&k [ip]"), "3:44: error: an anchor (`&name`); aliases are not read"),
        (good.replace("[ip]", "!!seq [ip]"), "3:44: error: a tag (`!name`); tags are not read"),
        (format!("{good}---\n{good}"), "4:1: error: a second document; a policy is one document"),
        (format!("{good}? [a]\n: 1\n"), "4:3: error: a key that is no word; write `name: value`"),
        (format!("{good}version: 1\n"), "4:1: error: `version` stands here twice; it stood at 1:1"),
        (good.replace("/p0", "/p0, path: /p0"), "3:37: error: `path` stands here twice"),
        (good.replace(" }\n", "\n"), "4:1: error: while parsing a flow mapping"),
        (good.replace("r0", "\"r0"), "¤ error: ¤"),
        (good.replace("  - ", "\t- "), "3:2: error: tabs disallowed"),
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
fn bombs_do_not_go_off() {
    let scratch = Scratch::new("bombs");
    let list = |name: char| vec![format!("*{name}"); 9].join(",");
    let line = |(from, to): (char, char)| format!("{to}: &{to} [{}]\n", list(from));
    let lines: String = ('a'..'y').zip('b'..'z').map(line).collect();
    let found = refused(&scratch, format!("a: &a [x,x,x]\n{lines}"));
    assert!(found[0].starts_with("1:4: error: an anchor"), "{found:?}");
    assert!(found.iter().any(|line| line.starts_with("2:8: error: an alias")), "{found:?}");
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let scratch = Scratch::new("bytes");
    for (content, expected) in [
        (
            &b"version: 1\nrules:\n  - name: \xff\n"[..],
            "3:11: error: this is no UTF-8; save the file",
        ),
        (b"\xff\xfev\0e\0r\0", "1:1: error: this is no UTF-8; save the file as UTF-8"),
        (b"version: 1\nrules:\n\0\n", "3:1: error: a control character; remove it"),
        (b"version: 1 # \x1b[31m\n", "1:14: error: a control character; remove it"),
        (b"\0", "1:1: error: a control character; remove it"),
    ] {
        check(&scratch, content, &[expected]);
    }
}

#[test]
fn names_are_fit_for_headers_and_metrics() {
    let long = "x".repeat(10 * 1024);
    let expected =
        "13 ¤ is no name for ¤; it has 1 to 64 of `A-Z a-z 0-9 . _ -`, and no point first";
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
    // However long it is, it is quoted in part.
    let content = format!("name: {long}, key: [ip], limits: [1/s]");
    let found = refused(&Scratch::new("long-name"), RULE.replace(ANYTHING, &content));
    assert!(found[0].len() < 200, "{found:?}");
}

#[test]
fn other_versions_are_not_read() {
    let scratch = Scratch::new("version");
    for (version, expected) in [
        ("2", "1:10: error: version 2 of the policy language; this tidegate reads version 1"),
        ("0", "1:10: error: version 0 of the policy language; this tidegate reads version 1"),
        ("1.0", "1:10: error: `version` is the number 1"),
        ("one", "1:10: error: `version` is the number 1"),
        ("'1'", "1:10: error: `version` is the number 1"),
        ("\"1\"", "1:10: error: `version` is the number 1"),
        ("01", "1:10: error: version 01 of the policy language; this tidegate reads version 1"),
        ("[1]", "1:10: error: `version` is the number 1"),
        ("~", "1:10: error: `version` is the number 1"),
    ] {
        let content = rules(0..1).replace("version: 1", &format!("version: {version}"));
        check(&scratch, content, &[expected]);
    }
}

/// Whatever is quoted from a file is quoted in part, and nothing of it is obeyed: [`refused`] looks for that.
#[test]
fn what_is_quoted_is_neither_long_nor_obeyed() {
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

/// Mistakes that quote what is wrong.
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
