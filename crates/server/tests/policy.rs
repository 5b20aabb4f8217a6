//! `tidegate policy`, run as a user would: files that are broken in every way we could think of.
//!
//! Each of them is refused with exit code 2, at the place of the mistake and with what to write instead,
//! within a second and within 64 MiB: `ulimit -v` bounds all that a process maps, so what is resident too.

#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policy.yaml");
/// Seconds of a processor.
const MOST_SECONDS: &str = "1";
/// 64 MiB, in the unit of `ulimit -v`.
const MOST_MEMORY: &str = "65536";
/// Stands in an expectation for whatever the program writes there, and in a frame for what is put into it.
const ANYTHING: char = '¤';

// === running it ===

/// A directory of its own for each test, gone when the test is.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let name = format!("policy-{test}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, content: impl AsRef<[u8]>) -> String {
        let path = self.path("policy.yaml");
        fs::write(&path, content).unwrap();
        path
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed lies in the target directory and harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tidegate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("policy").args(words).output().unwrap()
}

/// Runs it with as much memory and as much of a processor as it may take. It is one thread, so a second of a
/// processor is a second; and a machine that is busy with something else turns no test red.
fn bounded(words: &[&str]) -> Output {
    let script = format!("ulimit -v {MOST_MEMORY} && ulimit -t {MOST_SECONDS} && exec \"$@\"");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_tidegate"), "policy"]).args(words);
    command.output().unwrap()
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

/// The lines that complain, without the name of the file: `3:7: error: …`.
fn complaints(file: &str, output: &Output) -> Vec<String> {
    let prefix = format!("{file}:");
    let lines = stdout(output).lines().filter_map(|line| line.strip_prefix(&prefix));
    lines.map(str::to_owned).collect()
}

// === what is expected ===

/// Lints a file that is broken: within the bounds, with exit code 2, and nothing that a terminal obeys.
fn refused(scratch: &Scratch, content: impl AsRef<[u8]>) -> Vec<String> {
    let file = scratch.file(content);
    let output = bounded(&["lint", &file]);
    let text = stdout(&output);
    let shown: String = text.chars().take(2_000).collect();
    assert_eq!(output.status.code(), Some(2), "{shown}\n{}", stderr(&output));
    assert_eq!(stderr(&output), "", "{shown}");
    let obeyed = text.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(obeyed, None, "{shown:?}");
    complaints(&file, &output)
}

/// Whether a line begins as expected, whatever stands for [`ANYTHING`].
fn fits(line: &str, expected: &str) -> bool {
    let mut pieces = expected.split(ANYTHING);
    let mut rest = pieces.next().and_then(|first| line.strip_prefix(first));
    for piece in pieces {
        rest = rest.and_then(|rest| rest.split_once(piece)).map(|(_, rest)| rest);
    }
    rest.is_some()
}

/// A file has these complaints, in this order, and no others.
fn check(scratch: &Scratch, content: impl AsRef<[u8]>, expected: &[&str]) {
    let found = refused(scratch, content.as_ref());
    let fit = found.len() == expected.len()
        && found.iter().zip(expected).all(|(line, expected)| fits(line, expected));
    let start: Vec<u8> = content.as_ref().iter().copied().take(1_000).collect();
    let start = String::from_utf8_lossy(&start).into_owned();
    assert!(fit, "{start}\nexpected: {expected:#?}\nfound: {found:#?}");
}

/// Each row is what is put into a frame, the column where that is wrong, and why.
fn check_table(test: &str, frame: &str, rows: &str) {
    for row in rows.lines().filter(|row| !row.is_empty()) {
        let (content, expected) = row.split_once("=>").unwrap();
        check_row(test, frame, content.trim(), expected.trim());
    }
}

fn check_row(test: &str, frame: &str, content: &str, expected: &str) {
    let (before, after) = frame.split_once(ANYTHING).unwrap();
    let (column, expected) = expected.split_once(' ').unwrap();
    let line = before.matches('\n').count().saturating_add(1);
    let expected = format!("{line}:{column}: error: {expected}");
    check(&Scratch::new(test), format!("{before}{content}{after}"), &[expected.as_str()]);
}

// === frames ===

const TOP: &str = "version: 1\n¤\nrules: [{ name: a, key: [ip], limits: [1/s] }]\n";
const RULES: &str = "version: 1\nrules: ¤\n";
const RULE: &str = "version: 1\nrules:\n  - { ¤ }\n";
const LIMIT: &str = "version: 1\nrules:\n  - { name: a, key: [ip], limits: [¤] }\n";
const OPTION: &str = "version: 1\nrules:\n  - { name: a, key: [ip], limits: [{ rate: 1/s, ¤ }] }\n";
const SETTING: &str = "version: 1\nrules:\n  - { name: a, key: [ip], limits: [1/s], ¤ }\n";
const TIER: &str = "version: 1\ntiers: { default: free, known: [free, pro] }\nrules:\n  - { name: a, key: [ip], limits: [1/s], tiers: { ¤ } }\n";
const OVERRIDE: &str =
    "version: 1\nrules:\n  - { name: a, key: [user, ip], limits: [1/s], overrides: [¤] }\n";
const IDENTITY: &str =
    "version: 1\nidentity: { ¤ }\nrules: [{ name: a, key: [ip], limits: [1/s] }]\n";
const WHEN: &str =
    "version: 1\nrules:\n  - name: a\n    key: [ip]\n    limits: [1/s]\n    when: '¤'\n";

/// Rules about one path each, so that many of them do not meet.
fn rules(numbers: std::ops::Range<u32>) -> String {
    let rule =
        |n| format!("  - {{ name: r{n}, match: {{ path: /p{n} }}, key: [ip], limits: [1/s] }}\n");
    format!("version: 1\nrules:\n{}", numbers.map(rule).collect::<String>())
}

// === what is right ===

#[test]
fn the_whole_language_in_one_file_is_right() {
    let output = bounded(&["lint", POLICY]);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).ends_with("2 rules, nothing to complain of\n"), "{output:?}");
    assert!(tidegate(&["lint", "--deny-warnings", POLICY]).status.success());
}

#[test]
fn files_of_windows_and_of_json_are_right_too() {
    let scratch = Scratch::new("windows");
    let unix = fs::read_to_string(POLICY).unwrap();
    let windows = format!("\u{feff}{}", unix.replace('\n', "\r\n"));
    let json = r#"{ "version": 1, "rules": [{ "name": "a", "key": ["ip"], "limits": ["1/s"] }] }"#;
    for content in [windows.as_str(), json] {
        let output = tidegate(&["lint", "--deny-warnings", &scratch.file(content)]);
        assert!(output.status.success(), "{output:?}");
    }
    // Places are counted as an editor does, in such files too.
    let wrong = "\u{feff}version: 1\r\nrules:\r\n  - { nmae: a, key: [ip], limits: [1/s] }\r\n";
    check(&scratch, wrong, &["3:7: error: unknown key `nmae`, did you mean `name`?"]);
}

// === keys ===

#[test]
fn misspelt_keys_are_named_with_what_was_meant() {
    check_table(
        "keys-top",
        TOP,
        "
tires: {}        => 1 unknown key `tires`, did you mean `tiers`?
identiy: {}      => 1 unknown key `identiy`, did you mean `identity`?
limits: [1/s]    => 1 unknown key `limits`
tiers: { default: a, knwon: [a] }  => 22 unknown key `knwon`, did you mean `known`?
tiers: { defualt: a, known: [a] }  => 10 unknown key `defualt`, did you mean `default`?
",
    );
    check_table(
        "keys-rule",
        RULE,
        "
nmae: a, key: [ip], limits: [1/s]  => 7 unknown key `nmae`, did you mean `name`?
name: a, keey: [ip], limits: [1/s] => 16 unknown key `keey`, did you mean `key`?
name: a, key: [ip], limts: [1/s]   => 27 unknown key `limts`, did you mean `limits`?
",
    );
    check_table(
        "keys-setting",
        SETTING,
        "
descripton: x    => 42 unknown key `descripton`, did you mean `description`?
mach: {}         => 42 unknown key `mach`, did you mean `match`?
wehn: cost > 1   => 42 unknown key `wehn`, did you mean `when`?
teirs: {}        => 42 unknown key `teirs`, did you mean `tiers`?
overides: []     => 42 unknown key `overides`, did you mean `overrides`?
moed: hard       => 42 unknown key `moed`, did you mean `mode`?
on-limit: reject => 42 unknown key `on-limit`, did you mean `on_limit`?
onLimit: reject  => 42 unknown key `onLimit`, did you mean `on_limit`?
Denied: free     => 42 unknown key `Denied`, did you mean `denied`?
conut: all       => 42 unknown key `conut`, did you mean `count`?
consistancy: x   => 42 unknown key `consistancy`, did you mean `consistency`?
on_store_eror: x => 42 unknown key `on_store_eror`, did you mean `on_store_error`?
overfow: shared  => 42 unknown key `overfow`, did you mean `overflow`?
shaddow: true    => 42 unknown key `shaddow`, did you mean `shadow`?
enable: true     => 42 unknown key `enable`, did you mean `enabled`?
stopp: true      => 42 unknown key `stopp`, did you mean `stop`?
",
    );
}

#[test]
fn misspelt_keys_further_down_are_named_too() {
    check_table(
        "keys-limit",
        OPTION,
        "
algoritm: x => 49 unknown key `algoritm`, did you mean `algorithm`?
brust: 5    => 49 unknown key `brust`, did you mean `burst`?
refil: x    => 49 unknown key `refil`, did you mean `refill`?
qeue: 5     => 49 unknown key `qeue`, did you mean `queue`?
bukets: 5   => 49 unknown key `bukets`, did you mean `buckets`?
algin: x    => 49 unknown key `algin`, did you mean `align`?
blok: true  => 49 unknown key `blok`, did you mean `block`?
nmae: x     => 49 unknown key `nmae`, did you mean `name`?
",
    );
    check_table(
        "keys-forms",
        SETTING,
        "
limits: [1/s], mode: hard           => 42 `limits` stands here twice; it stood at 3:27 before
mode: { sfot: 10% }                 => 50 unknown key `sfot`, did you mean `soft`?
mode: { elastic: { upto: 200%, while: load < 1 } }  => 61 unknown key `upto`, did you mean `up_to`?
mode: { elastic: { up_to: 200%, whle: load < 1 } }  => 74 unknown key `whle`, did you mean `while`?
on_limit: { deprioritise: low }     => 54 unknown key `deprioritise`, did you mean `deprioritize`?
on_limit: { flga: challenge }       => 54 unknown key `flga`, did you mean `flag`?
on_limit: { delya: {} }             => 54 unknown key `delya`, did you mean `delay`?
on_limit: { delay: { maxwait: 2s } } => 63 unknown key `maxwait`, did you mean `max_wait`?
consistency: { writeback: {} }      => 57 unknown key `writeback`, did you mean `write_back`?
consistency: { write_back: { batch: 5, intervall: 1s } } => 81 unknown key `intervall`, did you mean `interval`?
",
    );
    check_row("keys-rate", LIMIT, "{ rat: 1/s }", "38 unknown key `rat`, did you mean `rate`?");
    check_row(
        "keys-tier",
        TIER,
        "pro: { scal: 10 }",
        "58 unknown key `scal`, did you mean `scale`?",
    );
    check_table(
        "keys-override",
        OVERRIDE,
        "
{ kye: { user: x }, limits: [1/s] }  => 62 unknown key `kye`, did you mean `key`?
{ key: { user: x }, limts: [1/s] }   => 80 unknown key `limts`, did you mean `limits`?
{ key: { user: x }, limits: [1/s], mode: hard } => 95 unknown key `mode`
",
    );
    let prefix = "19 unknown key `ipv6_prefx`, did you mean `ipv6_prefix`?";
    check_row("keys-ip", IDENTITY, "ip: { ipv6_prefx: 64 }", prefix);
}

#[test]
fn missing_keys_are_asked_for() {
    check_table(
        "missing-rule",
        RULE,
        "
key: [ip], limits: [1/s] => 5 a rule needs the key `name`
name: a, limits: [1/s]   => 5 a rule needs the key `key`
name: a, key: [ip]       => 5 a rule needs the key `limits`
",
    );
    check_table(
        "missing-setting",
        SETTING,
        "
on_limit: { delay: {} }            => 61 `delay` needs the key `max_wait`
mode: { elastic: { up_to: 200% } } => 59 `elastic` needs the key `while`
mode: soft                         => 48 `soft` needs a value here: `{ soft: … }`
on_limit: flag                     => 52 `flag` needs a value here: `{ flag: … }`
consistency: { write_back: { interval: 1s } } => 69 `write_back` has `lease` or `batch`: one of them
consistency: { write_back: { batch: 5 } }     => 69 `write_back` needs the key `interval`
",
    );
    check_row("missing-rate", LIMIT, "{ name: x }", "36 a limit needs the key `rate`");
    let scratch = Scratch::new("missing-top");
    let [version, rule] =
        ["version", "rules"].map(|key| format!("1:1: error: a policy needs the key `{key}`"));
    check(&scratch, rules(0..1).replace("version: 1\n", ""), &[&version]);
    check(
        &scratch,
        rules(0..1).replace("version", "verison"),
        &["1:1: error: unknown key `verison`, did you mean `version`?"],
    );
    check(&scratch, "version: 1\n", &[&rule]);
    check(&scratch, "{}", &[&version, &rule]);
}

// === kinds of values ===

#[test]
fn values_of_the_wrong_kind_are_refused() {
    check_table(
        "kinds-top",
        RULES,
        "
none         => 8 `rules` is a list
{ a: 1 }     => 8 `rules` is a list, not a map
~            => 8 `rules` is a list, not nothing
[]           => 8 `rules` is empty; a policy has at least one rule
[per-client] => 9 a rule is a map with keys such as `name`¤not a text
[[a]]        => 9 a rule is a map¤not a list
[~]          => 9 a rule is a map¤not nothing
",
    );
    check_table(
        "kinds-rule",
        RULE,
        "
name: a, key: ip, limits: [1/s]     => 21 `key` is a list; write `[ip]`
name: a, key: ~, limits: [1/s]      => 21 `key` is a list, not nothing
name: a, key: {}, limits: [1/s]     => 21 `key` is a list, not a map
name: a, key: [[ip]], limits: [1/s] => 22 a part of a key is a text, not a list
name: a, key: [ip], limits: 1/s     => 35 `limits` is a list; write `[1/s]`
name: a, key: [ip], limits: {}      => 35 `limits` is a list, not a map
name: a, key: [ip], limits: []      => 35 `limits` is empty; write a rate such as `15/s`
name: [a], key: [ip], limits: [1/s] => 13 ¤ is a text, not a list
",
    );
    check_table(
        "kinds-match",
        SETTING,
        "
match: /a                 => 49 `match` is a map, not a text
match: [/a]               => 49 `match` is a map, not a list
match: { path: { a: b } } => 57 a path is a text, not a map
match: { path: [] }       => 57 `path` lists nothing, so the rule could never match
match: { method: [] }     => 59 `method` lists nothing, so the rule could never match
match: { user: [] }       => 57 `user` lists nothing, so the rule could never match
match: { user: '' }       => 57 `user` is never empty; an empty value is an absent one
match: { user: null }     => 57 `user` is a text, not nothing
match: { cost: 5 }        => 51 `cost` is compared in `when`
match: { 'a b': 5 }       => 51 `a b` is no name of an attribute
when: [cost > 1]          => 48 a condition is a text, not a list
tiers: [pro]              => 49 `tiers` is a map, not a list
overrides: {}             => 53 `overrides` is a list, not a map
",
    );
    let scratch = Scratch::new("kinds-whole");
    for (content, kind) in [("hello", "a text"), ("[]", "a list"), ("null", "nothing")] {
        let expected =
            format!("1:1: error: a policy is a map with keys such as `version`¤not {kind}");
        check(&scratch, content, &[expected.as_str()]);
    }
}

#[test]
fn flags_words_and_percentages_are_written_in_one_way() {
    check_table(
        "words",
        SETTING,
        "
shadow: yes        => 50 `shadow` is `true` or `false`, not `yes`
shadow: on         => 50 `shadow` is `true` or `false`, not `on`
enabled: no        => 51 `enabled` is `true` or `false`, not `no`
enabled: off       => 51 `enabled` is `true` or `false`, not `off`
stop: 1            => 48 `stop` is `true` or `false`, not `1`
stop: True         => 48 `stop` is `true` or `false`, not `True`
stop: ~            => 48 `stop` is `true` or `false`, not nothing
stop: [true]       => 48 `stop` is `true` or `false`, not a list
mode: sotf         => 48 `mode` is `hard` or ¤, not `sotf`, did you mean `soft`?
mode: Hard         => 48 `mode` is `hard` or ¤, not `Hard`, did you mean `hard`?
mode: {}           => 48 `mode` is `hard` or ¤: one of them, not 0
mode: [hard]       => 48 `mode` is `hard` or ¤, not a list
mode: { soft: 10 } => 56 `soft` is `1%` to `900%`, not `10`
mode: { soft: 0% } => 56 `soft` is `1%` to `900%`, not `0%`
mode: { elastic: 200% } => 59 `elastic` is a map with keys such as `up_to`, `while`, not a text
mode: { elastic: { up_to: 99%, while: load < 1 } } => 68 `up_to` is `100%` to `1000%`, not `99%`
on_limit: rejct    => 52 `on_limit` is `reject` or ¤, not `rejct`, did you mean `reject`?
on_limit: [reject] => 52 `on_limit` is `reject` or ¤, not a list
on_limit: { delay: 2s } => 61 `delay` is a map with keys such as `max_wait`, `max_queue`, not a text
on_limit: { delay: { max_wait: 2m } } => 73 `max_wait`: unknown period `m`; did you mean `min`?
on_limit: { delay: { max_wait: 2h } } => 73 `max_wait` is at most 1h, not `2h`
on_limit: { delay: { max_wait: 2s, max_queue: '9' } } => 88 `max_queue` is a number; write 9 without quotes
on_limit: { deprioritize: high } => 68 `deprioritize` is `low`, not `high`
on_limit: { flag: 'a b' } => 60 `a b` is no name for a flag
denied: charge     => 50 `denied` is `free` or `charged`, not `charge`, did you mean `charged`?
count: failure     => 49 `count` is ¤, not `failure`, did you mean `failures`?
consistency: exactly => 55 `consistency` is ¤, not `exactly`, did you mean `exact`?
consistency: { write_back: { lease: 5%, batch: 5, interval: 1s } } => 69 `write_back` has `lease` or `batch`: one of them
on_store_error: open => 58 `on_store_error` is `local` or `allow` or `deny`, not `open`
overflow: sahred   => 52 `overflow` is ¤, not `sahred`, did you mean `shared`?
",
    );
}

// === how much ===

#[test]
fn rates_that_are_none_are_refused_with_what_was_meant() {
    check_table(
        "rates",
        LIMIT,
        "
0/s           => 36 `0/s`: an amount of 0 lets nothing pass; if that is meant, add `block: true`
{ rate: 0/s, block: false } => 44 `0/s`: an amount of 0 lets nothing pass
{ rate: 0/s, block: yes }   => 56 `block` is `true` or `false`, not `yes`
{ rate: 5/s, block: true }  => 44 `block: true` goes with an amount of 0
-1/s          => 36 `-1` is no amount; write a whole number
+5/s          => 36 `+5` is no amount
1.5/s         => 36 `1.5` is no amount
1e3/s         => 36 `1e3` is no amount
1_000/s       => 36 `1_000` is no amount
99999999999999999999/s => 36 `99999999999999999999` is no amount
18446744073709551615/s => 36 `18446744073709551615/s`: the rate is above 1000000000 a second
15            => 36 `15` is no rate; write an amount and a period, such as `15/s`
15 per s      => 36 `15 per s` is no rate; write an amount and a period, such as `15/s`
true          => 36 `true` is no rate
15/           => 36 unknown period ``
15 / s        => 36 `15 ` is no amount
15/m          => 36 unknown period `m`; did you mean `min`?
15/M          => 36 unknown period `M`; did you mean `calendar-month`?
15/sec        => 36 unknown period `sec`; did you mean `s`?
15/hour       => 36 unknown period `hour`; did you mean `h`?
15/month      => 36 unknown period `month`; did you mean `calendar-month`?
15/fortnight  => 36 unknown period `fortnight`
15/0s         => 36 `0s` is no length; write a whole number of units, such as `30s`
15/99999999999999999999s => 36 `99999999999999999999s` is no length
15/60week     => 36 `15/60week`: the period is longer than 400 days
15/calendar-day@Europe/Berln     => 36 ¤there is no time zone `Europe/Berln`; write it like `Europe/Berlin`
15/calendar-day@../../etc/passwd => 36 `../../etc/passwd` is no time zone
15/calendar-day@ => 36 `` is no time zone; write it like `Europe/Berlin`
{ rate: 15 }     => 44 `15` is no rate
{ rate: [1/s] }  => 44 `rate` is a text, not a list
[1/s]            => 36 a limit is ¤not a list
1/s, 2/s         => 41 two limits of this rule are called `s`; give one of them another name: `{ rate: 2/s, name: … }`
1/s, { rate: 9/min, name: s } => 41 two limits of this rule are called `s`
1/1s,1/2s,1/3s,1/4s,1/5s,1/6s,1/7s,1/8s,1/9s,1/10s,1/11s,1/12s,1/13s,1/14s,1/15s,1/16s,1/17s => 35 17 limits; a rule has at most 16
",
    );
}

#[test]
fn options_belong_to_their_algorithm() {
    check_table(
        "options",
        OPTION,
        "
queue: 5     => 49 `queue` belongs to leaky_bucket; this limit is a token_bucket
buckets: 5   => 49 `buckets` belongs to sliding_buckets; this limit is a token_bucket
align: first => 49 `align` belongs to fixed_window; this limit is a token_bucket
algorithm: sliding_log, burst: 5          => 73 `burst` belongs to token_bucket; this limit is a sliding_log
algorithm: leaky_bucket, refill: interval => 74 `refill` belongs to token_bucket; this limit is a leaky_bucket
algorithm: token-bucket   => 60 `algorithm` is ¤, not `token-bucket`, did you mean `token_bucket`?
algorithm: gcra           => 60 `algorithm` is `fixed_window` or ¤, not `gcra`
algorithm: [token_bucket] => 60 `algorithm` is `fixed_window` or ¤, not a list
refill: intervall         => 57 `refill` is ¤, not `intervall`, did you mean `interval`?
algorithm: fixed_window, align: frist => 81 `align` is ¤, not `frist`, did you mean `first`?
burst: 0   => 56 `burst` is a whole number from 1, not `0`
burst: -1  => 56 `burst` is a whole number from 1, not `-1`
burst: 1.5 => 56 `burst` is a whole number from 1, not `1.5`
burst: '5' => 56 `burst` is a number; write 5 without quotes
burst: ~   => 56 `burst` is a whole number from 1, not nothing
burst: 18446744073709551615 => 36 `1/s`: burst or queue¤takes over 100 years to fill
algorithm: leaky_bucket, queue: -1         => 81 `queue` is a whole number from 0, not `-1`
algorithm: sliding_buckets, buckets: 1     => 86 `buckets` is a whole number from 2 to 1000, not `1`
algorithm: sliding_buckets, buckets: 1001  => 86 `buckets` is a whole number from 2 to 1000, not `1001`
name: 'a b' => 55 `a b` is no name for a limit
",
    );
    check_table(
        "options-rate",
        LIMIT,
        "
{ rate: 1/calendar-day, burst: 5 }                => 60 `burst` belongs to token_bucket; this limit is a fixed_window
{ rate: 1/calendar-day, algorithm: token_bucket } => 36 `1/calendar-day`: calendar periods need fixed_window
{ rate: 10001/s, algorithm: sliding_log }         => 36 `10001/s`: this algorithm counts at most 10000 per period
",
    );
}

#[test]
fn tiers_that_nobody_has_are_refused() {
    check_table(
        "tiers",
        TIER,
        "
pr: unlimited       => 51 unknown tier `pr`, did you mean `pro`?
gold: unlimited     => 51 unknown tier `gold`
pro: unlimted       => 56 a tier is `unlimited` or ¤, not `unlimted`, did you mean `unlimited`?
pro: 10             => 56 a tier is `unlimited` or `{ scale: … }` or `{ limits: … }`, not `10`
pro: [1/s]          => 56 a tier is ¤, not a list
pro: {}             => 56 a tier is ¤: one of them, not 0
pro: { scale: 10, limits: [1/s] } => 56 a tier is ¤: one of them, not 2
pro: { scale: 0 }   => 65 `scale` is a number above 0, such as 10 or 1.5, not `0`
pro: { scale: -1 }  => 65 `scale` is a number above 0¤, not `-1`
pro: { scale: 1e3 } => 65 `scale` is a number above 0¤, not `1e3`
pro: { scale: ten } => 65 `scale` is a number above 0¤, not `ten`
pro: { scale: 1000000000000 } => 65 scaled by 1000000000000: the rate is above 1000000000 a second
pro: { limits: [] }    => 66 `limits` is empty
pro: { limits: [0/s] } => 67 `0/s`: an amount of 0 lets nothing pass
",
    );
    check_table(
        "tiers-top",
        TOP,
        "
tiers: { default: fre, known: [free, pro] } => 19 `fre` is not among `known`, did you mean `free`?
tiers: { default: free, known: [] }         => 19 `free` is not among `known`
tiers: { known: [free] }                    => 8 `tiers` needs the key `default`
tiers: { default: free, known: free }       => 32 `known` is a list; write `[free]`
tiers: { default: free, known: [free, a b] } => 39 `a b` is no name for a tier
tiers: [free]                               => 8 `tiers` is a map with keys such as `default`, `known`, not a list
",
    );
    let unknown = "51 unknown tier `pro`; list the tiers above the rules";
    check_row("tiers-none", SETTING, "tiers: { pro: unlimited }", unknown);
}

#[test]
fn overrides_that_never_apply_are_refused() {
    check_table(
        "overrides",
        OVERRIDE,
        "
alice                                 => 60 an override is a map with keys such as `key`, `limits`, not a text
{ key: { user: x } }                  => 60 an override needs the key `limits`
{ limits: [1/s] }                     => 60 an override needs the key `key`
{ key: alice, limits: [1/s] }         => 67 an override's `key` is a map, not a text
{ key: {}, limits: [1/s] }            => 60 an override names somebody
{ key: { user: '' }, limits: [1/s] }  => 75 `user` is never empty; an empty value is an absent one
{ key: { user: x }, limits: [] }      => 88 `limits` is empty
{ key: { user: x }, limits: 5/s }     => 88 `limits` is a list; write `[5/s]`
{ key: { tenant: x }, limits: [1/s] } => ¤ `tenant` is no part of the rule's key [user, ip], so this could never apply
{ key: { ip: here }, limits: [1/s] }  => ¤ `here` is no value of `ip`: write an address
{ key: { user: x }, limits: [1/s] }, { key: { user: x }, limits: [2/s] }     => 97 a second override for the same
{ key: { user: x }, limits: [1/s] }, { key: { ip: 1.2.3.4 }, limits: [2/s] } => 97 another override names [user]; both could apply to one request
",
    );
}

// === who ===

#[test]
fn identities_that_nobody_has_are_refused() {
    check_table(
        "identity",
        IDENTITY,
        "
trusted: [10.0.0.0/33]      => 23 `10.0.0.0/33` is no network; write it like `10.0.0.0/8` or `2001:db8::/32`
trusted: ['2001:db8::/129'] => 23 `2001:db8::/129` is no network
trusted: [localhost]        => 23 `localhost` is no network
trusted: [10.0.0.1/8]       => 23 `10.0.0.1/8` names a host in a network; did you mean `10.0.0.0/8`?
trusted: [0.0.0.0/0]        => 23 0.0.0.0/0 is everybody¤write `trusted: everyone`
trusted: ['::/0']           => 23 ::/0 is everybody, and everybody could forge headers
trusted: 10.0.0.0/8         => 22 `trusted` is a list; write `[10.0.0.0/8]`
trusted: {}                 => 22 `trusted` is a list, not a map
trsuted: 10.0.0.0/8         => 22 `10.0.0.0/8` is no place to read an attribute¤did you mean `trusted`?
ip: 64                      => 17 `ip` is a map with keys such as `ipv6_prefix`, `header`, not a text
ip: { ipv6_prefix: 0 }      => 32 `ipv6_prefix` is a whole number from 1 to 128, not `0`
ip: { ipv6_prefix: 129 }    => 32 `ipv6_prefix` is a whole number from 1 to 128, not `129`
ip: { ipv6_prefix: '64' }   => 32 `ipv6_prefix` is a number; write 64 without quotes
ip: { header: x-forwarded-fro } => 27 `header` is ¤, not `x-forwarded-fro`, did you mean `x-forwarded-for`?
user: x-user-id             => 19 `x-user-id` is no place to read an attribute; write `header:NAME`
user: headr:x               => 19 `headr:x` is no place to read an attribute
'a b': header:x             => 13 `a b` cannot be an attribute of your own
path: header:x              => 13 `path` cannot be an attribute of your own
",
    );
    check_table(
        "networks",
        SETTING,
        "
match: { ip: 10.0.0.0/33 }  => 55 `10.0.0.0/33` is no network; write it like `10.0.0.0/8` or `2001:db8::/32`
match: { ip: 'fd00::/129' } => 55 `fd00::/129` is no network
match: { ip: 10.9.8.7/8 }   => 55 `10.9.8.7/8` names a host in a network; did you mean `10.0.0.0/8`?
match: { ip: [10.0.0.0/8, here] } => 68 `here` is no network
",
    );
}

#[test]
fn keys_and_paths_that_match_nothing_are_refused() {
    // The column is the key's or that of its part: both show where to look.
    check_table(
        "key",
        "version: 1\nrules:\n  - { name: a, limits: [1/s], key: ¤ }\n",
        "
[user, user] => ¤ `user` stands in the key twice
[user||ip]   => ¤ `` is no attribute; a name has 1 to 64 of `A-Z a-z 0-9 _ - .`
['user,ip']  => ¤ `user,ip` is no attribute
[cost]       => ¤ `cost` is how much a request takes, not who sends it
[ip/0]       => ¤ `ip/0`: a prefix is `ip/1` to `ip/128`
[ip/129]     => ¤ `ip/129`: a prefix is `ip/1` to `ip/128`
[user/64]    => ¤ `user/64`: a prefix is `ip/1` to `ip/128`
[a, b, c, d, e, f, g, h, i] => ¤ a key has at most 8 attributes
",
    );
    check_table(
        "paths",
        SETTING,
        "
match: { path: urls }     => 57 `urls`: a path begins with a slash
match: { path: [/a, b] }  => 62 `b`: a path begins with a slash
match: { path: /url* }    => 57 `/url*`: `url*`: a star stands for a whole segment
match: { path: /**/a/** } => 57 `/**/a/**`: `**` may stand in a pattern once
match: { path: /a%zz }    => 57 `/a%zz`: a percent sign needs two hexadecimal digits
",
    );
}

// === conditions ===

#[test]
fn conditions_are_refused_where_they_go_wrong() {
    check_table(
        "when",
        WHEN,
        r#"
                     => 12 in ``: something is missing at the end
cost                 => 16 in `cost`: a comparison is missing, such as `==`
cost <               => 18 in `cost <`: something is missing at the end
cost = 3             => 17 in `cost = 3`: write `==` instead of `=`
user == "x           => 20 ¤: a text that does not end; close it with `"`
cost > 1 && cost < 5 => 21 ¤: write `and` instead of `&&`
cost > 1 || cost < 5 => 21 ¤: write `or` instead of `||`
!cost > 1            => 12 ¤: write `not` instead of `!`
(cost > 1            => 21 ¤: `)` is missing
cost > 1)            => 20 ¤: `)` here; write `and` or `or`
cost > 1 cost < 5    => 21 ¤: `cost` here; write `and` or `or`
cost > 1e3           => 19 ¤: `1e3` is no number; write it like `0.7`
cost + 1 > 2         => 17 ¤: `+` has no meaning here
cost == "5"          => 12 ¤: `cost` is a number; write it without quotes
user > "a"           => 17 ¤: `>` compares with a number
1 == 1               => 12 ¤: a comparison needs a name, such as `cost` or `user`
user.startswith("a") => 17 ¤: `startswith` is no test of a text; there are `starts_with`
user.starts_with(a)  => 29 ¤: write a text between quotes here
user in [x]          => 21 ¤: write a number or a text here
ip == "here"         => ¤ in ¤: `here` is no address; write it like `10.0.0.0/8`
path == "x"          => ¤ in ¤: `x`: a path begins with a slash
user == "日本" and @ => 29 ¤: `@` has no meaning here
"#,
    );
    let brackets = |n: usize| format!("{}cost > 1{}", "(".repeat(n), ")".repeat(n));
    let chain = format!("cost > 1{}", " and cost > 1".repeat(999));
    for (condition, expected) in [
        (brackets(17), "28 ¤: nested deeper than 16"),
        (brackets(1_000), "28 ¤: nested deeper than 16"),
        (brackets(10_000), "12 ¤: an expression has at most 2048 bytes"),
        (chain, "12 ¤: an expression has at most 2048 bytes"),
    ] {
        check_row("when-long", WHEN, &condition, expected);
    }
    let elastic = "mode: { elastic: { up_to: 200%, while: 'load <' } }";
    check_row("while", SETTING, elastic, "88 in `load <`: something is missing at the end");
}

// === what YAML can do, and what no file should hold ===

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
    let expected = "13 ¤ is no name for a rule; it has 1 to 64 of `A-Z a-z 0-9 . _ -`";
    for name in [
        "\"\"",
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
        ("[1]", "1:10: error: `version` is the number 1"),
        ("~", "1:10: error: `version` is the number 1"),
    ] {
        let content = rules(0..1).replace("version: 1", &format!("version: {version}"));
        check(&scratch, content, &[expected]);
    }
}

// === rules together ===

#[test]
fn rules_that_get_in_each_others_way_are_refused() {
    let scratch = Scratch::new("together");
    let twice = rules(0..2).replace("r1", "r0");
    check(&scratch, twice, &["4:5: error: a second rule named `r0`; the first is at 3:5"]);
    let all = "rules:\n  - { name: all, key: [ip], limits: [1/s], stop: true }";
    check(
        &scratch,
        rules(0..1).replace("rules:", all),
        &["4:5: error: rule `r0` is never reached: `all` at 3:5 covers it and says stop"],
    );
    let many = rules(0..6).replace("1/s", "1/s, 10/min, 100/h");
    let many = (0..6).fold(many, |many, n| many.replace(&format!("/p{n}"), "/p"));
    check(
        &scratch,
        many,
        &[
            "3:5: error: 18 limits can apply to one request, such as one that matches `r0`; at most 16",
        ],
    );
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
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
        "3:23: error: 0.0.0.0/0 is everybody",
        "3:41: error: `x-user` is no place to read an attribute",
        "4:19: error: `gold` is not among `known`",
        "6:5: error: a rule needs the key `key`",
        "6:14: error: unknown period `x`",
        "6:19: error: `0/s`: an amount of 0",
        "7:11: error: `a b` is no name for a rule",
        "8:5: error: unknown key `wehn`, did you mean `when`?",
        "9:36: error: `max_wait`: unknown period",
        "9:50: error: `max_queue` is a whole number from 1",
        "10:13: error: `shadow` is `true` or `false`, not `yes`",
        "11:2¤ error: `cost` is how much a request takes",
        "11:46: error: `-1` is no amount",
        "11:59: error: `burst` is a whole number from 1, not `0`",
        "11:68: error: `c d` is no name for a limit",
        "11:82: error: `mode` is",
    ];
    check(&scratch, content, &expected);
    same_in_json(&scratch.file(content), "errors", expected.len());
}

#[test]
fn a_mistake_made_often_is_told_a_hundred_times() {
    let found = refused(&Scratch::new("often"), rules(0..150).replace("limits", "limts"));
    assert_eq!(found.len(), 100, "{found:?}");
    let all_alike = found.iter().all(|line| line.contains("did you mean `limits`?"));
    assert!(all_alike && found[0].starts_with("3:50: error: "), "{found:?}");
    assert!(found[99].starts_with("102:") && found[99].contains("and 50 more"), "{}", found[99]);
}

// === giants ===

/// One after the other, so that each has the machine nearly for itself.
#[test]
fn giants_are_refused_within_the_bounds() {
    let scratch = Scratch::new("giants");
    let under = |start: &str, content: &str, n: usize| {
        format!("version: 1\nrules: {start}{}", content.repeat(n))
    };
    let stairs = (0..2_500).map(|n| format!("{}a:\n", " ".repeat(n)));
    for (content, expected) in [
        (rules(0..1_000_000), "1:1: error: the file has ¤4194304"),
        (rules(0..20_001), "3:3: error: 20001 rules; a policy has at most 20000"),
        (under("", "\n  - a", 699_000), "¤: error: more than 400000 values; split the policy"),
        (under("[", "a,", 2_097_000), "2:¤: error: more than 400000 values; split the policy"),
        (under("[", "{},", 1_398_000), "2:¤: error: more than 400000 values; split the policy"),
        (under("", "[", 10_000), "2:¤: error: nested deeper than 16; no part of a policy is"),
        (under("", "{a: ", 10_000), "2:¤: error: nested deeper than 16; no part of a policy is"),
        ("- ".repeat(10_000), "1:¤: error: nested deeper than 16; no part of a policy is"),
        (stairs.collect(), "16:16: error: nested deeper than 16; no part of a policy is"),
        ("#".repeat(4_000_000), "¤: error: the file is empty"),
        ("\n".repeat(4_000_000), "¤: error: the file is empty"),
        (under("", "a", 4_000_000), "2:8: error: `rules` is a list"),
        (under("\"", "a", 4_000_000) + "\"", "2:8: error: `rules` is a list"),
        (under("|\n", "  a\n", 1_000_000), "3:3: error: `rules` is a list"),
        ("---\n".repeat(1_000_000), "2:1: error: a second document; a policy is one document"),
    ] {
        check(&scratch, content, &[expected]);
    }
}

#[test]
fn twenty_thousand_mistakes_are_counted_within_the_bounds() {
    let scratch = Scratch::new("many");
    let keys: String = (0..20_000).map(|n| format!("key-{n}: 1,")).collect();
    let values = "x, ".repeat(20_000);
    for content in [
        rules(0..20_000).replace("limits", "limts"),
        SETTING.replace(ANYTHING, &keys),
        RULES.replace(ANYTHING, &format!("[{values}]")),
        SETTING.replace(ANYTHING, &format!("match: {{ ip: [{values}] }}")),
    ] {
        let found = refused(&scratch, content);
        assert_eq!(found.len(), 100, "{found:?}");
        assert!(found[99].contains("and 19900 more"), "{}", found[99]);
    }
    let found = refused(&scratch, rules(0..5_000) + &"version: 1\n".repeat(50));
    assert_eq!(found.len(), 50, "{found:?}");
}

/// It is not read to its end.
#[test]
fn a_file_of_a_hundred_megabytes_is_refused() {
    let scratch = Scratch::new("megabytes");
    let path = scratch.path("large.yaml");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"version: 1\n").unwrap();
    file.set_len(100_000_000).unwrap();
    let output = bounded(&["lint", &path]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let found = complaints(&path, &output);
    assert!(found.len() == 1 && fits(&found[0], "1:1: error: the file has ¤4194304"), "{found:?}");
}

// === files that are none ===

#[test]
fn what_is_no_file_is_refused_at_once() {
    let scratch = Scratch::new("no-file");
    let [fifo, missing, directory] = ["fifo", "missing.yaml", ""].map(|name| scratch.path(name));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (path, expected) in [
        (fifo.as_str(), "this is no regular file"),
        (&directory, "this is no regular file"),
        ("/dev/zero", "this is no regular file"),
        (&missing, "No such file or directory"),
    ] {
        for command in ["lint", "explain"] {
            let output = bounded(&[command, path]);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let expected = format!("tidegate: {path}: {expected}");
            assert!(stderr(&output).starts_with(&expected), "{output:?}");
            assert_eq!(stderr(&output).lines().count(), 1, "{output:?}");
        }
    }
}

#[test]
fn the_standard_input_is_read_no_further_than_a_file() {
    let read = |from: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["policy", "lint", "-"]).stdin(File::open(from).unwrap()).output().unwrap()
    };
    let output = read(POLICY);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("nothing to complain of"), "{output:?}");
    let output = read("/dev/zero");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stdout(&output).contains(":1:1: error: the file has "), "{output:?}");
}

// === warnings ===

/// What JSON lists is what the text lists.
fn same_in_json(file: &str, list: &str, number: usize) {
    let severity = list.trim_end_matches('s');
    let output = tidegate(&["lint", "--json", file]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = json[list].as_array().unwrap();
    let line = |problem: &Value| {
        let text = problem["text"].as_str().unwrap();
        format!("{}:{}: {severity}: {text}", problem["line"], problem["column"])
    };
    let text = tidegate(&["lint", file]);
    assert_eq!(problems.iter().map(line).collect::<Vec<_>>(), complaints(file, &text));
    assert_eq!(problems.len(), number, "{json:#}");
    let other = if list == "errors" { "warnings" } else { "errors" };
    assert_eq!(json[other], Value::Array(vec![]), "{json:#}");
    assert_eq!(output.status.code(), text.status.code());
}

const WARNED: [(&str, &str); 8] = [
    (
        "rules: [{ name: a, key: [ip], limits: [1/s, 100/min] }]",
        "2:9: warning: rule `a`: `100/min` can never bind, because `1/s` lets less through",
    ),
    (
        "rules: [{ name: a, key: [user], limits: [1/s] }]",
        "2:9: warning: rule `a`: a request without `user` is counted by no rule; write `user|ip`",
    ),
    (
        "rules: [{ name: a, key: [ip], limits: [1/s] }, { name: b, key: [ip], limits: [9/min] }]",
        "2:48: warning: rule `b` is about the same requests and keys as `a` at 2:9",
    ),
    (
        "rules: [{ name: a, key: [ip], limits: [1/s], denied: charged, on_limit: { flag: x } }]",
        "2:9: warning: rule `a`: `denied: charged` has no effect",
    ),
    (
        "rules: [{ name: a, match: { pth: /a }, key: [ip], limits: [1/s] }]",
        "2:9: warning: rule `a`: `pth` is no attribute of `identity`; did you mean `path`?",
    ),
    (
        "identity: { user: header:x-user }\nrules: [{ name: a, key: [user|ip], limits: [1/s] }]",
        "¤ warning: `identity.user` is read from requests, but `trusted` names nobody",
    ),
    (
        "identity: { trusted: everyone }\nrules: [{ name: a, key: [ip], limits: [1/s] }]",
        "¤ warning: `trusted: everyone`: whoever reaches this port can claim to be anybody",
    ),
    (
        "identity: { ip: { ipv6_prefix: 128 } }\nrules: [{ name: a, key: [ip], limits: [1/s] }]",
        "¤ warning: `ipv6_prefix: 128`: a single host has 2⁶⁴ addresses",
    ),
];

#[test]
fn warnings_are_told_and_refused_only_on_demand() {
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
fn json_says_when_there_is_nothing_to_say() {
    let output = tidegate(&["lint", "--json", POLICY]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json, serde_json::json!({ "errors": [], "warnings": [] }));
}

// === explain ===

fn explained(words: &[&str]) -> String {
    let output = tidegate(&[&["explain", POLICY], words].concat());
    assert!(output.status.success(), "{output:?}");
    stdout(&output).to_owned()
}

/// What becomes of `create-url` for a request to it, with these further words.
fn create_url(words: &str) -> String {
    let post = ["ip=203.0.113.7", "method=POST", "path=/urls"];
    let text = explained(&post.into_iter().chain(words.split_whitespace()).collect::<Vec<_>>());
    let anonymous = "✓ anonymous   ip=203.0.113.7\n    15/s token_bucket, from rule\n";
    text.strip_suffix(anonymous).unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn explain_says_where_limits_come_from() {
    for (words, expected) in [
        (
            "user=bob",
            "tier free
✓ create-url  user=bob
    2/s token_bucket, from rule
    10/min sliding_weighted, from rule
    500/h sliding_buckets, 60 buckets, from rule
",
        ),
        (
            "user=bob tier=pro",
            "tier pro
✓ create-url  user=bob
    20/s token_bucket, from tier pro
    100/min sliding_weighted, from tier pro
    5000/h sliding_buckets, 60 buckets, from tier pro
",
        ),
        (
            "user=bob tier=enterprise",
            "tier enterprise
✓ create-url  user=bob
    unlimited, from tier enterprise
",
        ),
        (
            "user=alice tier=pro",
            "tier pro
✓ create-url  user=alice
    1000/s token_bucket, from override
",
        ),
    ] {
        assert_eq!(create_url(words), expected, "{words}");
    }
    assert!(explained(&["ip=2001:db8:1:2:3::9"]).contains("✓ anonymous   ip=2001:db8:1:2::/64\n"));
}

#[test]
fn explain_says_why_a_rule_does_not_apply() {
    let when = "`when` does not hold: cost <= 100 and not user.starts_with(\"internal-\")";
    for (words, expected) in [
        ("", "there is no `user` to count by"),
        ("user=", "there is no `user` to count by"),
        ("user=bob method=GET", "`method` is GET, not POST"),
        ("user=bob path=/x/../login", "`path` is /login, not /urls/**"),
        ("user=internal-7", when),
        ("user=bob --cost 101", when),
    ] {
        assert_eq!(create_url(words), format!("tier free\n✗ create-url  {expected}\n"), "{words}");
    }
    let nobody = explained(&[]);
    assert!(nobody.contains("✗ create-url  there is no `method`; it should be POST"), "{nobody}");
    assert!(nobody.contains("✗ anonymous   there is no `ip` to count by"), "{nobody}");
    assert!(nobody.ends_with("no rule applies: the request passes uncounted\n"), "{nobody}");
}

#[test]
fn explain_says_the_same_in_json() {
    let words = ["--json", "ip=203.0.113.7", "method=POST", "path=/urls", "user=bob", "tier=pro"];
    let json: Value = serde_json::from_str(&explained(&words)).unwrap();
    assert_eq!(json["tier"], "pro");
    let create = &json["rules"][0];
    assert_eq!((&create["rule"], &create["applies"]), (&"create-url".into(), &true.into()));
    assert_eq!((&create["key"], &create["from"]), (&"user=bob".into(), &"tier pro".into()));
    assert_eq!(create["limits"][0], "20/s token_bucket");
    assert_eq!(json["rules"][1]["from"], "rule");
    let json: Value = serde_json::from_str(&explained(&["--json", "user=bob"])).unwrap();
    assert_eq!(json["rules"][1]["applies"], false);
    assert_eq!(json["rules"][1]["why"], "there is no `ip` to count by");
}

#[test]
fn explain_tells_of_rules_that_stop_or_are_switched_off() {
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
    let expected = "✗ off    it is not enabled
✓ users  user=bob
    2/s token_bucket, from rule
    soft, 10 % more pass marked
    stop: later rules are not looked at
✗ rest   `users` came first and says stop
";
    assert_eq!(stdout(&output), expected);
    let output = tidegate(&["explain", &file, "ip=203.0.113.7"]);
    let expected = "✗ off    it is not enabled
✗ users  there is no `user` to count by
✓ rest   ip=203.0.113.7
    3/s token_bucket, from rule
    shadow: it only pretends
";
    assert_eq!(stdout(&output), expected);
}

#[test]
fn explain_refuses_words_that_are_no_attributes() {
    let long = format!("user={}", "x".repeat(9_000));
    for (word, expected) in [
        ("user", "`user` is no attribute; write it like `user=alice`"),
        ("=x", "`` is no name of an attribute"),
        ("ip=nowhere", "`nowhere` is no address; write it like `203.0.113.7`"),
        ("path=urls", "a path begins with a slash"),
        ("path=/a%zz", "a percent sign needs two hexadecimal digits"),
        ("method=GET /", "`GET /` is no method; write it like `POST`"),
        (&long, "the value of `user` has more than 8192 bytes"),
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
