//! How long functions and files are. Tests are left out: a table of cases may be long.

use super::{read, rust_files};

/// Most functions fit on a third of a screen, and all on one.
const NINE_OF_TEN: usize = 18;
const LONGEST_FUNCTION: usize = 60;
const LONGEST_FILE: usize = 500;

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
fn functions_are_short() {
    let sources = sources();
    let mut lengths = Vec::new();
    let mut long = Vec::new();
    for (file, text) in &sources {
        for (name, length) in functions(text) {
            lengths.push(length);
            if length > LONGEST_FUNCTION {
                long.push(format!("{file}: {name} has {length} lines"));
            }
        }
    }
    assert!(lengths.len() > 1_000, "only {} functions were found", lengths.len());
    lengths.sort_unstable();
    let tenth = lengths[lengths.len() * 9 / 10];
    assert!(long.is_empty(), "longer than {LONGEST_FUNCTION} lines:\n{}", long.join("\n"));
    assert!(
        tenth <= NINE_OF_TEN,
        "nine functions of ten have up to {tenth} lines, not {NINE_OF_TEN}"
    );
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
