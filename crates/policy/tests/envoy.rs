//! Rule files of Envoy's reference rate limit service. The verdicts and matches were observed there, and must be the same here.
//!
//! The few intended differences are listed below, each with its reason.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests may fail loudly"
)]

use std::fmt::Write;
use tidegate_policy::{EnvoyFile, Met, Policy};

const VERDICTS: &str = include_str!("envoy/verdicts.txt");
const MATCHES: &str = include_str!("envoy/matches.txt");

/// Files on which our verdict differs from the reference service: title, and why.
const OTHER_VERDICTS: [(&str, &str); 7] = [
    ("requests_per_unit with an explicit int tag", TAGS),
    ("requests_per_unit with a float tag", TAGS),
    ("a binary value that is not base64", TAGS),
    ("metadata with binary bytes that are not UTF-8", TAGS),
    ("metadata that is wrong on a descriptor without a limit", TAGS),
    ("a word with another tag", TAGS),
    (
        "a value of the wrong type before a good one",
        "only the last value of a duplicate key is checked; there is a warning",
    ),
];
const TAGS: &str = "tags, such as `!!int`, are ignored; each causes a warning";

/// Requests for which the reference service finds another limit: title, request, and why.
const OTHER_MATCHES: [(&str, &str, &str); 15] = [
    (PATTERN, "d a_b=c", JOINED),
    (PATTERN, "d a_bc=", JOINED),
    (PATTERN, "d a_b=", JOINED),
    (EXACT, "d a_b=c", JOINED),
    (EXACT, "d a_b_c=", JOINED),
    (EXACT, "d x=y", JOINED),
    ("a shared threshold found by another split of key and value", "d a_b=c", JOINED),
    (LOST, "d under=", JOINED),
    (LOST, "d detailed=1", NOT_LOST),
    (LOST, "d tometric=1", NOT_LOST),
    (LOST, "d outer=1,inner=2", NOT_LOST),
    (LOST, "d wild=a1", NOT_LOST),
    ("metadata", "d deep=1", "names in metadata stay as they are spelled"),
    ("metadata", "d big=1", "the number is rounded only when it is sent"),
    ("values that YAML reads as something else keep their spelling", "d k=hello", TAGS),
];
const PATTERN: &str = "the pattern is matched against key, underscore and value in one";
const EXACT: &str = "an exact rule is found by another split of key and value";
const LOST: &str = "metadata is lost where the name of the statistics changes";
const JOINED: &str =
    "`a_b` with `c` is not `a` with `b_c`: no client uses another client's counter";
const NOT_LOST: &str = "metadata in a file is always sent";

/// The cases of a file: the title after `=== `, and the lines below it.
fn cases(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let first = text.find("\n=== ").map_or("", |at| &text[at + 1..]);
    first.split("\n=== ").map(|case| {
        let case = case.strip_prefix("=== ").unwrap_or(case);
        case.split_once('\n').unwrap_or((case, ""))
    })
}

/// The files of a case: one, or several that each begin with `--- file NAME`.
fn files(text: &str) -> Vec<(String, String)> {
    if !text.contains("--- file ") {
        return vec![("case.yaml".to_owned(), text.to_owned())];
    }
    let parts = text.split("--- file ").skip(1);
    parts
        .map(|part| {
            let (name, text) = part.split_once('\n').unwrap_or((part, ""));
            (name.trim().to_owned(), text.to_owned())
        })
        .collect()
}

fn read(files: &[(String, String)]) -> Result<Policy, String> {
    let files: Vec<EnvoyFile<'_>> =
        files.iter().map(|(name, text)| EnvoyFile { name, text: text.as_bytes() }).collect();
    Policy::from_envoy(&files, false).map_err(|error| error.to_string())
}

#[test]
fn verdicts_are_those_of_the_reference_service() {
    let (mut wrong, mut count) = (String::new(), 0);
    for (title, text) in cases(VERDICTS) {
        let (verdict, name) = title.split_once(": ").unwrap();
        let ours = read(&files(text));
        let other = OTHER_VERDICTS.iter().any(|(known, _)| *known == name);
        count += 1;
        if ours.is_ok() != ((verdict == "accept") != other) {
            let said = ours.err().unwrap_or_else(|| "accepted".to_owned());
            writeln!(wrong, "{title}\n    {said}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 300, "{count} cases");
}

#[test]
fn requests_find_the_same_limits_as_in_the_reference_service() {
    let (mut wrong, mut count) = (String::new(), 0);
    for (title, text) in cases(MATCHES) {
        let requests = text.lines().filter(|line| line.starts_with("--- ") && line.contains("->"));
        let file: Vec<&str> = text
            .lines()
            .take_while(|line| !(line.starts_with("--- ") && line.contains("->")))
            .collect();
        let policy = match read(&[("case.yaml".to_owned(), file.join("\n"))]) {
            Ok(policy) => policy,
            Err(error) => {
                writeln!(wrong, "{title}: {error}").unwrap();
                continue;
            }
        };
        for request in requests {
            let (asked, theirs) = request[4..].split_once(" ->").unwrap();
            let (domain, entries) = asked.split_once(' ').unwrap_or((asked, ""));
            let entries: Vec<(&str, &str)> = entries
                .split(',')
                .filter(|entry| !entry.is_empty())
                .map(|entry| entry.split_once('=').unwrap())
                .collect();
            let ours = shown(policy.descriptors().unwrap().find(domain, &entries), &entries);
            let other =
                OTHER_MATCHES.iter().any(|(of, request, _)| (*of, *request) == (title, asked));
            count += 1;
            if (ours == theirs.trim()) == other {
                writeln!(wrong, "{title}\n    {request}\n    ours {ours}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 200, "{count} requests");
}

/// A rule in the notation of the cases.
fn shown(met: Option<Met<'_>>, entries: &[(&str, &str)]) -> String {
    let Some(Met { rule, shared }) = met else { return "none".to_owned() };
    let mut text = match &rule.limit {
        None => "unlimited".to_owned(),
        Some(limit) => format!("{}/{}", limit.limit().amount(), limit.id()),
    };
    for (is, word) in [(rule.shadow, " shadow"), (rule.quota, " quota")] {
        text.push_str(if is { word } else { "" });
    }
    if !rule.name.is_empty() {
        write!(text, " name={}", rule.name).unwrap();
    }
    if let Some(metadata) = &rule.metadata {
        write!(text, " metadata={}", serde_json::Value::Object((**metadata).clone())).unwrap();
    }
    if !shared.is_empty() {
        let value = |(at, (key, value)): (usize, &(&str, &str))| {
            let pattern = shared.iter().find(|(number, _)| *number == at);
            format!("{key}={}", pattern.map_or(*value, |(_, pattern)| pattern))
        };
        let entries: Vec<String> = entries.iter().enumerate().map(value).collect();
        write!(text, " counter={}", entries.join(",")).unwrap();
    }
    text
}

/// The import of every accepted file must be a valid policy.
#[test]
fn every_import_is_a_valid_policy() {
    let (mut wrong, mut rules) = (String::new(), 0);
    let accepted = cases(VERDICTS).filter(|(title, _)| title.starts_with("accept"));
    let matched = cases(MATCHES).map(|(title, text)| {
        let end =
            text.lines().take_while(|line| !(line.starts_with("--- ") && line.contains("->")));
        (title, end.collect::<Vec<_>>().join("\n"))
    });
    let all = accepted.map(|(title, text)| (title, text.to_owned())).chain(matched);
    for (title, text) in all {
        let Ok(policy) = read(&files(&text)) else { continue };
        let imported = policy.descriptors().unwrap().import();
        match Policy::parse(&imported.text) {
            Ok(policy) => rules += policy.rules().len(),
            Err(error) if imported.text.contains("rules: []") => drop(error), // nothing to import
            Err(error) => writeln!(wrong, "{title}\n{error}\n{}", imported.text).unwrap(),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(rules > 200, "{rules} rules");
}

/// The imported policy must limit a request with one descriptor as the files did, if the import left nothing out.
#[test]
fn an_imported_policy_has_the_same_limits() {
    let text = "
domain: rl
descriptors:
  - key: foo
    rate_limit: { unit: minute, requests_per_unit: 2 }
    descriptors:
      - key: bar
        rate_limit: { unit: minute, requests_per_unit: 3 }
      - key: bar
        value: banned
        rate_limit: { unit: minute, requests_per_unit: 0 }
      - key: bar
        value: free
        rate_limit: { unlimited: true }
      - key: baz
        value: shady
        shadow_mode: true
        rate_limit: { unit: day, requests_per_unit: 5 }
  - key: remote_address
    rate_limit: { unit: second, requests_per_unit: 15 }
  - key: file
    value: /a/*
    share_threshold: true
    rate_limit: { unit: month, requests_per_unit: 9 }
  - key: file
    rate_limit: { unit: year, requests_per_unit: 7 }
";
    let policy = read(&[("rl.yaml".to_owned(), text.to_owned())]).unwrap();
    let imported = policy.descriptors().unwrap().import();
    assert_eq!(imported.left_out, Vec::<String>::new());
    let imported = Policy::parse(&imported.text).unwrap();
    for (entries, rate, key) in [
        (vec![("foo", "x")], "2/min", "foo=x"),
        (vec![("foo", "x"), ("bar", "y")], "3/min", "foo=x bar=y"),
        (vec![("foo", "x"), ("bar", "banned")], "0/min", "foo=x bar=banned"),
        (vec![("foo", "x"), ("bar", "free")], "unlimited", "foo=x bar=free"),
        (vec![("foo", "x"), ("baz", "shady")], "5/day", "foo=x"),
        (vec![("ip", "10.0.0.1")], "15/s", "ip=10.0.0.1"),
        (vec![("file", "/a/1")], "9/30day", "(one counter for all)"),
        (vec![("file", "/b/1")], "7/365day", "file=/b/1"),
    ] {
        let mut request = tidegate_policy::Attributes::new().with("domain", "rl").unwrap();
        for (name, value) in &entries {
            request.set(*name, *value).unwrap();
        }
        let found: Vec<_> = imported.applying(&request, 1).collect();
        let [(rule, values)] = found.as_slice() else { panic!("{entries:?}: {found:?}") };
        let (allowance, _) = rule.allowance_of(values, None);
        let said =
            allowance.limits().first().map_or("unlimited".to_owned(), |l| l.rate().to_string());
        assert_eq!((said.as_str(), values.to_string().as_str()), (rate, key), "{entries:?}");
    }
    let elsewhere = tidegate_policy::Attributes::new().with("foo", "x").unwrap();
    assert_eq!(imported.applying(&elsewhere, 1).count(), 0); // another domain
}

/// A descriptor that is deeper than the entries of a call could never be found, so a file that deep is refused. All others are
/// found.
#[test]
fn descriptors_may_be_as_deep_as_calls() {
    let nested = |depth: usize| {
        let open = "{ key: k, descriptors: [".repeat(depth - 1);
        let close = "] }".repeat(depth - 1);
        let limit = "{ key: k, rate_limit: { unit: day, requests_per_unit: 0 } }";
        read(&[("deep.yaml".to_owned(), format!("domain: d\ndescriptors: [{open}{limit}{close}]"))])
    };
    let policy = nested(60).unwrap();
    let rules = policy.descriptors().unwrap();
    assert!(rules.find("d", &vec![("k", "v"); 60]).is_some());
    assert!(rules.find("d", &vec![("k", "v"); 59]).is_none());
    let error = nested(128).unwrap_err();
    assert!(error.contains("nested deeper than 128"), "{error}");
}
