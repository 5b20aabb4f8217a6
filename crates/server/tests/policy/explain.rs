//! `tidegate policy explain` and `schema`.

use super::run::{
    ANYTHING, POLICY, SETTING, Scratch, assert_safe_to_print, rules, stderr, stdout, tidegate,
};
use serde_json::Value;
use std::fs;

fn explained(words: &[&str]) -> String {
    let output = tidegate(&[&["explain", POLICY], words].concat());
    assert!(output.status.success(), "{output:?}");
    stdout(&output).to_owned()
}

/// The explanation of `create-url` for a request to it, with these attributes added or replaced.
fn create_url(words: &str) -> String {
    let name = |word: &str| word.split('=').next().map(str::to_owned);
    let given: Vec<_> = words.split_whitespace().map(name).collect();
    let post = ["ip=203.0.113.7", "method=POST", "path=/urls"];
    let post = post.into_iter().filter(|word| !given.contains(&name(word)));
    let text = explained(&post.chain(words.split_whitespace()).collect::<Vec<_>>());
    let of_health = |line: &&str| line.starts_with("✗ health");
    let text: String = text.split_inclusive('\n').filter(|line| !of_health(line)).collect();
    let anonymous = "✓ anonymous   ip=203.0.113.7\n    15 per s  token_bucket  from rule\n";
    text.strip_suffix(anonymous).unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn explain_says_where_limits_come_from() {
    for (words, expected) in [
        (
            "user=bob",
            "tier free
priority high
✓ create-url  user=bob
    2 per s     token_bucket                 from rule
    10 per min  sliding_weighted             from rule
    500 per h   sliding_buckets, 60 buckets  from rule
    priority: high
",
        ),
        (
            "user=bob tier=pro",
            "tier pro
priority high
✓ create-url  user=bob
    20 per s     token_bucket                 from tier pro
    100 per min  sliding_weighted             from tier pro
    5000 per h   sliding_buckets, 60 buckets  from tier pro
    priority: high
",
        ),
        (
            "user=bob tier=enterprise",
            "tier enterprise
priority high
✓ create-url  user=bob
    unlimited  from tier enterprise
    priority: high
",
        ),
        (
            "user=alice tier=pro",
            "tier pro
priority high
✓ create-url  user=alice
    1000 per s  token_bucket                 from override
    5000 per h  sliding_buckets, 60 buckets  from override
    priority: high
",
        ),
    ] {
        assert_eq!(create_url(words), expected, "{words}");
    }
    assert!(explained(&["ip=2001:db8:1:2:3::9"]).contains("✓ anonymous   ip=2001:db8:1:2::/64\n"));
    let health = explained(&["ip=203.0.113.7", "path=/healthz"]);
    assert!(
        health.contains("    unlimited  from rule\n    stop: later rules are skipped\n"),
        "{health}"
    );
    assert!(
        health.ends_with("✗ anonymous   `health` applied first and has `stop: true`\n"),
        "{health}"
    );
}

#[test]
fn explain_says_why_a_rule_does_not_apply() {
    let when = "`when` does not hold: cost <= 100 and not user.starts_with(\"internal-\")";
    for (words, expected) in [
        ("", "the request has no `user`, which the key needs"),
        ("user=", "the request has no `user`, which the key needs"),
        ("user=bob method=GET", "`method` is GET, not POST"),
        ("user=bob path=/login/", "`path` is /login, not /urls/**"),
        ("user=internal-7", when),
        ("user=bob --cost 101", when),
    ] {
        assert_eq!(
            create_url(words),
            format!("tier free\npriority normal\n✗ create-url  {expected}\n"),
            "{words}"
        );
    }
    let spelled = create_url("user=bob path=/x/../login");
    let readings = "servers read this path in several ways; a rule applies if it applies to any of them: /login, /x/../login";
    let expected = format!(
        "tier free\npriority normal\n{readings}\n✗ create-url  `path` is /login, not /urls/**\n"
    );
    assert_eq!(spelled, expected);
    let without = explained(&[]);
    assert!(
        without.contains("✗ create-url  the request has no `method`; the rule needs POST"),
        "{without}"
    );
    assert!(
        without.contains("✗ anonymous   the request has no `ip`, which the key needs"),
        "{without}"
    );
    assert!(
        without.ends_with("no rule applies: the request passes and is not counted\n"),
        "{without}"
    );
}

#[test]
fn explain_says_the_same_in_json() {
    let words = ["--json", "ip=203.0.113.7", "method=POST", "path=/urls", "user=bob", "tier=pro"];
    let json: Value = serde_json::from_str(&explained(&words)).unwrap();
    assert_eq!(json["tier"], "pro");
    let create = &json["rules"][1];
    assert_eq!((&create["rule"], &create["applies"]), (&"create-url".into(), &true.into()));
    assert_eq!((&create["key"], &create["from"]), (&"user=bob".into(), &"tier pro".into()));
    assert_eq!(create["limits"][0], "20/s token_bucket");
    assert_eq!(json["rules"][2]["from"], "rule");
    let json: Value = serde_json::from_str(&explained(&["--json", "user=bob"])).unwrap();
    assert_eq!(json["rules"][2]["applies"], false);
    assert_eq!(json["rules"][2]["why"], "the request has no `ip`, which the key needs");
}

#[test]
fn explain_shows_rules_that_stop_or_are_disabled() {
    let scratch = Scratch::new("stop");
    let file = scratch.file(
        "version: 1
rules:
  - { name: off, key: [ip], limits: [1/s], enabled: false }
  - { name: users, key: [user], limits: [2/s], stop: true, mode: { soft: 10% } }
  - { name: rest, key: [ip], limits: [3/s], shadow: true }
",
    );
    let output = tidegate(&["explain", &file, "user=bob", "ip=203.0.113.7"]);
    let expected = "✗ off    the rule is disabled
✓ users  user=bob
    2 per s  token_bucket  from rule
    soft: 10 % more pass, marked as over the limit
    stop: later rules are skipped
✗ rest   `users` applied first and has `stop: true`
";
    assert_eq!(stdout(&output), expected);
    let output = tidegate(&["explain", &file, "ip=203.0.113.7"]);
    let expected = "✗ off    the rule is disabled
✗ users  the request has no `user`, which the key needs
✓ rest   ip=203.0.113.7
    3 per s  token_bucket  from rule
    shadow: counts and reports, but denies nothing
";
    assert_eq!(stdout(&output), expected);
}

#[test]
fn explain_refuses_invalid_attributes() {
    let long = format!("user={}", "x".repeat(9_000));
    for (word, expected) in [
        ("user", "`user` is not a valid attribute; write it like `user=alice`"),
        ("=x", "`` is not a valid attribute name"),
        ("ip=nowhere", "`nowhere` is not a valid address; write it like `203.0.113.7`"),
        ("path=urls", "a path begins with a slash"),
        ("path=/a%zz", "a percent sign needs two hexadecimal digits"),
        ("method=GET /", "`GET /` is not a valid method; write it like `POST`"),
        (&long, "the value of `user` has more than 8192 bytes"),
        ("cost=5", "`cost`: the cost is given with --cost"),
        ("--cost=-1", "invalid value '-1' for '--cost <COST>'"),
        ("--cost=many", "invalid value 'many' for '--cost <COST>'"),
    ] {
        let output = tidegate(&["explain", POLICY, word]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).contains(expected), "{expected}: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn explain_shows_only_digests_of_secrets() {
    let scratch = Scratch::new("secrets");
    let file = scratch.file(
        "version: 1
identity: { trusted: [10.0.0.0/8], api_key: header:x-api-key, session: 'digest:cookie:session' }
rules:
  - { name: keys, match: { api_key: '#00000000000000000000000000000000' }, key: [api_key], limits: [1/s] }
  - { name: sessions, key: [api_key, session], limits: [1/s] }
",
    );
    let secret = scratch.path("secret");
    fs::write(&secret, [7; 32]).unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let said = |words: &[&str]| {
        let output =
            tidegate(&[&["explain", &file, "api_key=s3cr3t", "session=t0ps3cr3t"], words].concat());
        assert!(output.status.success(), "{output:?}");
        let text = stdout(&output).to_owned();
        assert!(!text.contains("s3cr3t"), "{text}");
        text
    };
    for words in [&[][..], &["--json"]] {
        assert!(said(words).contains("api_key=#(hidden; give --secret-file)"), "{}", said(words));
        let shown = said(&[&["--secret-file", secret.as_str()], words].concat());
        let (_, digest) = shown.split_once("api_key=#").unwrap();
        let hexadecimal = digest.chars().take_while(char::is_ascii_hexdigit).count();
        assert_eq!(hexadecimal, 32, "{shown}");
    }
}

#[test]
fn explain_reports_an_unknown_tier() {
    let shown = explained(&["tier=platinum", "ip=203.0.113.7"]);
    assert!(shown.starts_with("tier free; there is no tier `platinum`\n"), "{shown}");
    let json: Value = serde_json::from_str(&explained(&["--json", "tier=platinum"])).unwrap();
    assert_eq!((&json["tier"], &json["unknown_tier"]), (&"free".into(), &"platinum".into()));
    let json: Value = serde_json::from_str(&explained(&["--json", "tier=pro"])).unwrap();
    assert_eq!((&json["tier"], &json["unknown_tier"]), (&"pro".into(), &Value::Null));
}

#[test]
fn explain_prints_arguments_safely() {
    for word in [
        "us\u{1b}er",
        "ip=\u{1b}[31m",
        "user=\u{1b}[31m",
        "user=\u{202e}x",
        "tier=\u{202e}x",
        "path=/\u{202e}",
    ] {
        for words in [&["explain", POLICY, word][..], &["explain", "--json", POLICY, word]] {
            let output = tidegate(words);
            assert_safe_to_print(stdout(&output));
            assert_safe_to_print(stderr(&output));
        }
    }
}

#[test]
fn explain_prints_texts_of_the_file_safely() {
    let scratch = Scratch::new("explain-obeyed");
    for text in ["\\e[31mx", "\\u202ex", "\\u061cx", "\\u2028x", "\\x9bm"] {
        for setting in [
            format!("match: {{ user: \"{text}\" }}"),
            format!("match: {{ user: [a, \"{text}\"] }}"),
            format!("match: {{ path: \"/{text}\" }}"),
            format!("when: \"user == '{text}'\""),
            format!("when: \"user.starts_with('{text}')\""),
            format!("description: \"{text}\""),
        ] {
            let file = scratch.file(SETTING.replace(ANYTHING, &setting));
            for words in [&["explain", &file][..], &["explain", "--json", &file]] {
                let output = tidegate(&[words, &["user=bob", "path=/a", "ip=192.0.2.1"]].concat());
                // A path with control characters is refused, and the error quotes it.
                let code = if setting.contains("/\\e") { 2 } else { 0 };
                assert_eq!(output.status.code(), Some(code), "{setting}: {output:?}");
                assert_safe_to_print(stdout(&output));
                assert_safe_to_print(stderr(&output));
            }
        }
    }
}

/// The value of an argument may be a secret.
#[test]
fn errors_do_not_repeat_values() {
    let secret = "s3cr3t".repeat(2_000);
    let long = ["api_key", "user"].map(|name| format!("{name}={secret}"));
    for word in [&long[0], &long[1], "cost=s3cr3t", "path=s3cr3t", "path=/s3cr3t%zz", "=s3cr3t"] {
        let output = tidegate(&["explain", POLICY, word]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(stdout(&output), "");
        assert!(!stderr(&output).contains("s3cr3t"), "{}", stderr(&output));
    }
}

#[test]
fn explain_refuses_a_broken_file_as_lint_does() {
    let scratch = Scratch::new("explain-broken");
    let file = scratch.file(rules(0..1).replace("limits", "limts"));
    let explained = tidegate(&["explain", &file, "user=bob"]);
    assert_eq!(explained.status.code(), Some(2), "{explained:?}");
    assert_eq!(explained.stdout, tidegate(&["lint", &file]).stdout);
}

// === schema ===

#[test]
fn the_schema_is_json_and_knows_the_keys_of_a_rule() {
    let output = tidegate(&["schema"]);
    assert!(output.status.success(), "{output:?}");
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["required"], serde_json::json!(["version", "rules"]));
    assert_eq!(schema["additionalProperties"], false);
    let rule = &schema["properties"]["rules"]["items"];
    for key in ["name", "match", "when", "key", "limits", "tiers", "overrides", "mode", "on_limit"]
    {
        assert!(rule["properties"][key]["description"].is_string(), "{key}");
    }
}
