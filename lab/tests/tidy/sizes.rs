//! How long functions and files are. Tests are left out: a table of cases may be long.

use super::{read, rust_files};

/// A function fits on one screen.
const LONGEST_FUNCTION: usize = 60;
/// A longer file should be two.
const LONGEST_FILE: usize = 600;

/// The files of source that are not tests, with their text before the tests at the end.
fn sources() -> Vec<(String, String)> {
    let folders = ["crates", "simulator/src", "timelines/src", "lab/src"];
    let files = folders.iter().flat_map(|folder| rust_files(folder));
    let files = files.filter(|file| !file.contains("/tests/") && !file.ends_with("/tests.rs"));
    let text =
        |file: &str| read(file).split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
    files.map(|file| (text(&file), file)).map(|(text, file)| (file, text)).collect()
}

/// Each function's name and how many lines its body has; `rustfmt` closes it in the column where it began.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let start = line.trim_start();
        let words = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe "];
        let mut rest = start;
        while let Some(next) = words.iter().find_map(|word| rest.strip_prefix(word)) {
            rest = next;
        }
        let Some(name) = rest.strip_prefix("fn ") else { continue };
        let indent = line.len() - start.len();
        let close = format!("{}}}", &line[..indent]);
        let signature = lines[at..]
            .iter()
            .position(|line| line.ends_with('{') || line.ends_with(';') || line.ends_with('}'));
        let Some(signature) = signature.filter(|n| lines[at + n].ends_with('{')) else { continue };
        let Some(body) = lines[at + signature..].iter().position(|line| *line == close) else {
            continue;
        };
        found.push((name.split(['(', '<']).next().unwrap(), body.saturating_sub(1)));
    }
    found
}

#[test]
fn functions_fit_on_a_screen() {
    let sources = sources();
    let mut seen = 0;
    let mut long = Vec::new();
    for (file, text) in &sources {
        for (name, length) in functions(text) {
            seen += 1;
            if length > LONGEST_FUNCTION {
                long.push(format!("{file}: {name} has {length} lines"));
            }
        }
    }
    assert!(seen > 1_000, "only {seen} functions were found");
    assert!(long.is_empty(), "longer than {LONGEST_FUNCTION} lines:\n{}", long.join("\n"));
}

#[test]
fn files_are_short() {
    let mut long = Vec::new();
    for (file, text) in sources() {
        let lines = text.lines().count();
        if lines > LONGEST_FILE {
            long.push(format!("{file}: {lines}"));
        }
    }
    assert!(long.is_empty(), "longer than {LONGEST_FILE} lines:\n{}", long.join("\n"));
}
