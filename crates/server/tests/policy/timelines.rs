//! `tidegate policy test`: all timelines of the project, and what a user is told about a timeline that differs or has mistakes.

use super::run::{Scratch, assert_safe_to_print, stderr, stdout, tidegate};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The fewest scenarios of policies there must be, so that none is lost unnoticed.
const FEWEST: usize = 120;

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The files of a folder whose names end like this.
fn files(folder: &str, end: &str) -> Vec<String> {
    let entries = fs::read_dir(project(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path().to_str().unwrap().to_owned());
    let mut paths: Vec<String> = paths.filter(|path| path.ends_with(end)).collect();
    paths.sort();
    paths
}

/// Plays files of which every step must be answered as expected, and returns how many scenarios they have.
fn play(files: &[String]) -> usize {
    let words: Vec<&str> =
        ["test", "--json"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let output = tidegate(&words);
    let json: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(&output), stderr(&output)));
    let scenarios: Vec<&Value> = json["files"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|file| file["scenarios"].as_array().unwrap())
        .collect();
    let steps = scenarios.iter().flat_map(|scenario| scenario["steps"].as_array().unwrap());
    let wrong: Vec<String> = steps
        .filter(|step| step["passed"] != true)
        .map(|step| {
            format!("{}: {} -> {}: {}", step["line"], step["step"], step["expected"], step["wrong"])
        })
        .collect();
    assert!(wrong.is_empty() && output.status.success(), "{}", wrong.join("\n"));
    scenarios.len()
}

#[test]
fn the_limiter_agrees_with_every_timeline() {
    let played = play(&files("timelines/policies", ".txt"));
    println!("{played} timelines of policies played");
    assert!(played >= FEWEST, "only {played} timelines");
}

#[test]
fn the_recipes_keep_what_their_timelines_promise() {
    let files = files("docs/recipes", ".timeline");
    assert!(files.len() >= 10, "{files:?}");
    assert!(play(&files) >= 20);
}

/// The player itself must notice every wrong answer, also a mark that the step does not mention.
#[test]
fn a_wrong_answer_is_noticed() {
    let scratch = Scratch::new("wrong-answer");
    for (line, difference) in [
        ("at 0s take -> allow, a/s remaining 2", "a/s remaining 1, not remaining 2"),
        ("at 0s take -> allow, b/s remaining 1", "b/s did not decide; these did: a/s"),
        ("at 0s take 2 -> allow, a/s reset 2s", "a/s reset 1s, not reset 2s"),
        ("at 0s take -> deny", "allow, not deny"),
        ("at 0s take -> allow, a/s deny", "a/s allow, not deny"),
        ("at 0s take 3 -> allow", "over, which the line does not mention"),
        ("at 0s take -> allow, over", "not over"),
        ("at 0s take 4 -> deny, retry 1s", "never, not retry 1s"),
        ("at 0s take -> allow, version 2", "version 1, not 2"),
        ("at 0s take -> allow, no rules", "limits 1, not 0"),
        ("at 0s take -> allow, flag x", "flags none, not x"),
        ("at 0s take -> allow, low priority", "not low priority"),
        ("at 0s take -> allow, shadow deny", "not shadow deny"),
        ("at 0s reset a -> 1", "0, not 1"),
        ("at 0s report a success", "nothing was taken as `a`; write `as a` at a take that passes"),
        ("at 0s enable b off", "there is no rule `b`"),
        ("at 0s ip=nowhere take -> allow", "`nowhere` is not a valid address"),
    ] {
        let policy = "rules: [{ name: a, key: [], limits: [2/s], mode: { soft: 50% } }]";
        let file = scratch.file(format!("scenario s\npolicy\nversion: 1\n{policy}\nend\n{line}"));
        let output = tidegate(&["test", &file]);
        assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
        let text = stdout(&output);
        assert!(text.contains(&format!("{file}:6: ")), "{line}: {text}");
        assert!(text.contains(&format!("wrong     {difference}")), "{line}: {text}");
        assert!(text.ends_with("failed: 1 of 1 scenario, 1 of 1 step\n"), "{text}");
    }
}

#[test]
fn the_repetition_that_differs_is_named_and_the_scenario_goes_on() {
    let scratch = Scratch::new("repetition");
    let text =
        "scenario s\npolicy\nversion: 1\nrules: [{ name: a, key: [user], limits: [3/s] }]\nend
at 0s user=u take times 5 -> allow\nat 0s user=u{n} take times 5 -> allow, a/s remaining 2\n";
    let output = tidegate(&["test", "--verbose", &scratch.file(text)]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = stdout(&output);
    assert!(
        text.contains("got       deny, retry 334ms   (repetition 4)\n")
            || text.contains("(repetition 4)\n"),
        "{text}"
    );
    assert!(text.contains("failed: 1 of 1 scenario, 1 of 2 steps\n"), "{text}");
    // The second step, which is shown because of --verbose.
    assert!(text.contains("got       allow\n      limit  left  of  full again in  its answer\n      a/s       2   3  "), "{text}");
}

#[test]
fn errors_say_the_line_and_what_to_do() {
    let scratch = Scratch::new("timeline-errors");
    let policy = scratch.path("good.yaml");
    fs::write(&policy, "version: 1\nrules: [{ name: a, key: [], limits: [2/s] }]\n").unwrap();
    fs::write(scratch.path("bad.yaml"), "version: 1\nrulez: []\n").unwrap();
    for (text, expected) in [
        ("", "policy.yaml:1:1: error: there is no scenario; begin one with `scenario TITLE`"),
        (
            "at 0s take -> allow",
            "policy.yaml:1:1: error: expected `policy`, `start DATE` or `scenario TITLE` before anything else",
        ),
        (
            "policy good.yaml\nscenario s\n  at 0s tak -> allow",
            "policy.yaml:3:3: error: expected attributes, `take`, `peek`",
        ),
        (
            "policy good.yaml\nscenario s\nat soon take -> allow",
            "error: expected a time such as 1.5s or 1day+2h, found `soon`",
        ),
        (
            "policy good.yaml\nscenario s\nat 0s take -> yes",
            "error: expected `allow`, `delay SPAN` or `deny`, found `yes`",
        ),
        (
            "policy good.yaml\nscenario s",
            "policy.yaml:2:1: error: a scenario needs a policy and at least one event",
        ),
        ("policy gone.yaml\nscenario s\nat 0s take -> allow", "policy.yaml:1: "),
        (
            "policy bad.yaml\nscenario s\nat 0s take -> allow",
            "bad.yaml:2:1: error: unknown key `rulez`, did you mean `rules`?",
        ),
        // The place of an error in a policy within the timeline is that in the timeline.
        (
            "scenario s\npolicy\n  version: 1\n  rulez: []\nend\nat 0s take -> allow",
            "policy.yaml:4:3: error: unknown key `rulez`, did you mean `rules`?",
        ),
        (
            "scenario \u{1b}[31m\npolicy \u{1b}\nat 0s \u{202e} -> \u{202e}",
            "policy.yaml:3:1: error: ",
        ),
    ] {
        let output = tidegate(&["test", &scratch.file(text)]);
        assert_eq!(output.status.code(), Some(2), "{text}: {output:?}");
        let said = [stdout(&output), stderr(&output)].concat();
        assert!(said.contains(expected), "{text}: {said}");
        assert_safe_to_print(&said);
    }
    let output = tidegate(&["test", &scratch.path("gone.timeline")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("; check the path"), "{output:?}");
}

#[test]
fn what_is_printed_is_safe_to_print() {
    let scratch = Scratch::new("timeline-safe");
    let text = "scenario \u{1b}[31m\u{202e}\npolicy\nversion: 1\nrules: [{ name: a, key: [user], limits: [2/s] }]\nend
at 0s user=\u{1b}[31m\u{202e} take -> deny\nat 0s user=\u{1b}x take -> allow, \u{1b}/\u{202e} deny\n";
    let file = scratch.file(text);
    for words in [&["test", &file][..], &["test", "--verbose", &file], &["test", "--json", &file]] {
        let output = tidegate(words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_safe_to_print(stdout(&output));
    }
}

/// The commands of a page, each with what it prints.
fn shown(page: &str) -> Vec<(String, String)> {
    let sessions = page.split("```text\n$ ").skip(1).filter_map(|rest| rest.split("```").next());
    sessions
        .flat_map(|session| session.split("\n$ ").map(str::trim_end))
        .map(|command| command.split_once('\n').unwrap_or((command, "")))
        .map(|(command, said)| (command.to_owned(), said.to_owned()))
        .collect()
}

/// The page for users shows a policy, a timeline and commands with their output. They must be what happens.
#[test]
fn the_page_says_what_happens() {
    let page = fs::read_to_string(project("docs/testing-policies.md")).unwrap();
    let block = |kind: &str| {
        let (_, rest) = page.split_once(&format!("```{kind}\n")).unwrap();
        rest.split("```").next().unwrap().to_owned()
    };
    let scratch = Scratch::new("testing-policies");
    fs::write(scratch.path("login.yaml"), block("yaml")).unwrap();
    fs::write(scratch.path("login.timeline"), block("text")).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let commands = shown(&page);
    assert_eq!(commands.len(), 3, "{commands:?}");
    for (command, said) in commands {
        let mut shell = std::process::Command::new("sh");
        let output = shell.args(["-c", &command]).env("PATH", &path).current_dir(scratch.path("."));
        let found = output.output().unwrap();
        assert_eq!(stdout(&found).trim_end(), said, "$ {command}\n{}", stderr(&found));
    }
}

/// The example of `policy test --help` is a timeline of the policy that the page shows.
#[test]
fn the_example_of_the_help_plays() {
    let help = tidegate(&["test", "--help"]);
    let help = stdout(&help);
    let (_, example) = help.split_once("beside the policy login.yaml\n").unwrap();
    let (example, _) = example.split_once("$ tidegate").unwrap();
    let scratch = Scratch::new("test-help");
    let page = fs::read_to_string(project("docs/testing-policies.md")).unwrap();
    let policy = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    fs::write(scratch.path("login.yaml"), policy).unwrap();
    let output = tidegate(&["test", &scratch.file(example)]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
}
