//! Runs `tidegate policy` within its bounds, and compares its output with the expected one.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policy.yaml");
/// The processor time that any file may take, on the machine where it was measured.
const MOST: Duration = Duration::from_secs(1);
/// On a slower machine: this many times what the largest ordinary policy takes there. Usually it is at most 1.3; work that is
/// quadratic in the size of a file takes hundreds.
const MOST_TIMES: u32 = 5;
/// In seconds: stops a process that would not end by itself.
const BACKSTOP: &str = "600";
/// 64 MiB, in the unit of `ulimit -d`.
const MOST_MEMORY: &str = "65536";
/// In an expected text, a placeholder for anything; in a frame, the place where a row's text is inserted.
pub(crate) const ANYTHING: char = '¤';

// === running it ===

/// A directory for one test, which is removed after the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(test: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("policy-{test}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, content: impl AsRef<[u8]>) -> String {
        let path = self.path("policy.yaml");
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that cannot be removed stays in the target directory, where it does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn tidegate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("policy").args(words).output().unwrap()
}

/// Runs the program with bounds on memory and processor time. It has one thread, so a busy machine makes no difference; the
/// bound is adjusted to a slow machine.
pub(crate) fn bounded(words: &[&str]) -> Output {
    let (output, taken) = measured(words);
    if taken > MOST {
        let scratch = Scratch::new("ordinary");
        let (_, ordinary) = measured(&["lint", &scratch.file(rules(0..20_000))]);
        assert!(
            taken <= ordinary * MOST_TIMES,
            "{words:?}: {taken:?}, an ordinary one {ordinary:?}"
        );
    }
    output
}

/// Runs the program with a bound on its memory, and returns the processor time that it took.
fn measured(words: &[&str]) -> (Output, Duration) {
    let scratch = Scratch::new("measured");
    let times = scratch.path("times");
    let script = format!(
        "ulimit -d {MOST_MEMORY} && ulimit -t {BACKSTOP} && {{ \"$@\"; code=$?; times >{times}; exit $code; }}"
    );
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_tidegate"), "policy"]).args(words);
    let output = command.output().unwrap();
    let times = fs::read_to_string(&times).unwrap();
    // The second line is about the shell's children: `0m0.29s 0m0.02s`.
    let taken = times.lines().nth(1).unwrap().split(' ').map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        let minutes = Duration::from_secs(60) * minutes.parse::<u32>().unwrap();
        minutes + Duration::from_secs_f64(seconds.parse().unwrap())
    });
    (output, taken.sum())
}

pub(crate) fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

/// The lines with problems, without the name of the file: `3:7: error: …`.
pub(crate) fn complaints(file: &str, output: &Output) -> Vec<String> {
    let prefix = format!("{file}:");
    let lines = stdout(output).lines().filter_map(|line| line.strip_prefix(&prefix));
    lines.map(str::to_owned).collect()
}

// === what is expected ===

/// Lints a file that must be refused: within the bounds, with exit code 2, and with output that is safe to print.
pub(crate) fn refused(scratch: &Scratch, content: impl AsRef<[u8]>) -> Vec<String> {
    let file = scratch.file(content);
    let output = bounded(&["lint", &file]);
    let text = stdout(&output);
    let shown: String = text.chars().take(2_000).collect();
    assert_eq!(output.status.code(), Some(2), "{shown}\n{}", stderr(&output));
    assert_eq!(stderr(&output), "", "{shown}");
    assert_safe_to_print(text);
    complaints(&file, &output)
}

/// Lints a file that must be accepted, within the bounds, and returns its warnings.
pub(crate) fn accepted(scratch: &Scratch, content: impl AsRef<[u8]>) -> Vec<String> {
    let file = scratch.file(content);
    let output = bounded(&["lint", &file]);
    let shown: String = stdout(&output).chars().take(2_000).collect();
    assert_eq!(output.status.code(), Some(0), "{shown}\n{}", stderr(&output));
    assert_eq!(stderr(&output), "", "{shown}");
    assert_safe_to_print(stdout(&output));
    let found = complaints(&file, &output);
    found.into_iter().filter(|line| !line.ends_with("no problems found")).collect()
}

/// Checks that a text contains no characters that a terminal acts on instead of showing them.
pub(crate) fn assert_safe_to_print(text: &str) {
    let obeyed = text.chars().find(|c| match c {
        '\n' => false,
        // These change the direction of writing, so that a text can look like another one.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        // These begin another line.
        '\u{2028}' | '\u{2029}' => true,
        c => c.is_control(),
    });
    assert_eq!(obeyed, None, "{:?}", text.chars().take(2_000).collect::<String>());
}

/// Whether a line begins with the expected text, in which [`ANYTHING`] stands for any text.
pub(crate) fn fits(line: &str, expected: &str) -> bool {
    let mut pieces = expected.split(ANYTHING);
    let mut rest = pieces.next().and_then(|first| line.strip_prefix(first));
    for piece in pieces {
        rest = rest.and_then(|rest| rest.split_once(piece)).map(|(_, rest)| rest);
    }
    rest.is_some()
}

/// Checks that a file has these problems, in this order, and no others.
pub(crate) fn check(scratch: &Scratch, content: impl AsRef<[u8]>, expected: &[&str]) {
    let difference = difference(scratch, content, expected);
    assert!(difference.is_none(), "{}", difference.unwrap_or_default());
}

/// The difference between the problems of a file and the expected ones.
pub(crate) fn difference(
    scratch: &Scratch,
    content: impl AsRef<[u8]>,
    expected: &[&str],
) -> Option<String> {
    let found = refused(scratch, content.as_ref());
    let fit = found.len() == expected.len()
        && found.iter().zip(expected).all(|(line, expected)| fits(line, expected));
    let start: Vec<u8> = content.as_ref().iter().copied().take(1_000).collect();
    let start = String::from_utf8_lossy(&start).into_owned();
    (!fit).then(|| format!("{start}\nexpected: {expected:#?}\nfound: {found:#?}\n"))
}

/// Each row has the text to insert into a frame, the column of the mistake, and the expected message. All rows that differ
/// are reported together.
pub(crate) fn check_table(test: &str, frame: &str, rows: &str) {
    let rows = rows.lines().filter(|row| !row.is_empty()).map(|row| row.split_once("=> ").unwrap());
    let differences: String =
        rows.filter_map(|(content, expected)| row(test, frame, content.trim(), expected)).collect();
    assert!(differences.is_empty(), "{differences}");
}

pub(crate) fn check_row(test: &str, frame: &str, content: &str, expected: &str) {
    let difference = row(test, frame, content, expected);
    assert!(difference.is_none(), "{}", difference.unwrap_or_default());
}

fn row(test: &str, frame: &str, content: &str, expected: &str) -> Option<String> {
    let (before, after) = frame.split_once(ANYTHING).unwrap();
    let (column, expected) = expected.split_once(' ').unwrap();
    let line = before.matches('\n').count().saturating_add(1);
    let expected = format!("{line}:{column}: error: {expected}");
    difference(&Scratch::new(test), format!("{before}{content}{after}"), &[expected.as_str()])
}

// === frames ===

pub(crate) const TOP: &str = "version: 1\n¤\nrules: [{ name: a, key: [ip], limits: [1/s] }]\n";
pub(crate) const RULES: &str = "version: 1\nrules: ¤\n";
pub(crate) const RULE: &str = "version: 1\nrules:\n  - { ¤ }\n";
pub(crate) const LIMIT: &str = "version: 1\nrules:\n  - { name: a, key: [ip], limits: [¤] }\n";
pub(crate) const OPTION: &str =
    "version: 1\nrules:\n  - { name: a, key: [ip], limits: [{ rate: 1/s, ¤ }] }\n";
pub(crate) const SETTING: &str =
    "version: 1\nrules:\n  - { name: a, key: [ip], limits: [1/s], ¤ }\n";
pub(crate) const TIER: &str = "version: 1\ntiers: { default: free, known: [free, pro] }\nrules:\n  - { name: a, key: [ip], limits: [1/s], tiers: { ¤ } }\n";
pub(crate) const OVERRIDE: &str =
    "version: 1\nrules:\n  - { name: a, key: [user, ip], limits: [1/s], overrides: [¤] }\n";
pub(crate) const IDENTITY: &str =
    "version: 1\nidentity: { ¤ }\nrules: [{ name: a, key: [ip], limits: [1/s] }]\n";
pub(crate) const WHEN: &str =
    "version: 1\nrules:\n  - name: a\n    key: [ip]\n    limits: [1/s]\n    when: '¤'\n";

/// Rules with one path each, so that no request matches several of them.
pub(crate) fn rules(numbers: std::ops::Range<u32>) -> String {
    let rule =
        |n| format!("  - {{ name: r{n}, match: {{ path: /p{n} }}, key: [ip], limits: [1/s] }}\n");
    format!("version: 1\nrules:\n{}", numbers.map(rule).collect::<String>())
}

// === JSON ===

/// Checks that the JSON output lists the same problems as the text output.
pub(crate) fn same_in_json(file: &str, list: &str, number: usize) {
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
