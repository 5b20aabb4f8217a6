//! The library `tidegate` is a facade: a program that embeds it names no other crate of this workspace.
//!
//! Two checks together make sure of that. The lint `unnameable_types` of the compiler rejects a public signature with a type
//! that its own crate does not export. The test below finds the types of other crates in public signatures of `tidegate`.

use super::directions::code;
use super::names::{declared, public};
use super::{read, rust_files};
use std::collections::{BTreeMap, BTreeSet};

/// What callers see of a file: heads of public functions, public fields, and public enums.
fn signatures(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines: Vec<&str> = code.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let ends: &[char] = match trimmed.strip_prefix("pub ") {
            None => continue,
            Some(rest) if rest.starts_with("enum ") => &['\u{0}'],
            Some(rest) if rest.split_whitespace().any(|word| word == "fn") => &['{', ';'],
            Some(rest) if rest.starts_with(char::is_lowercase) && rest.contains(": ") => &[','],
            Some(_) => continue,
        };
        let from_here = lines[at..].join("\n");
        let whole = match ends {
            ['\u{0}'] => from_here.split("\n}").next().unwrap(),
            _ => from_here.split(ends).next().unwrap(),
        };
        found.push(whole.to_owned());
    }
    found
}

fn type_names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(char::is_uppercase))
}

/// The types that the root of `tidegate` passes on from the crates below it, by their crate.
fn passed_on() -> BTreeMap<String, BTreeSet<String>> {
    let root = code("crates/limiter/src/lib.rs");
    let mut found = BTreeMap::new();
    for rest in root.split("pub use tidegate_").skip(1) {
        let (name, items) = rest.split(';').next().unwrap().split_once("::").unwrap_or((rest, ""));
        let names: &mut BTreeSet<String> = found.entry(name.to_owned()).or_default();
        names.extend(type_names(items).map(str::to_owned));
    }
    found
}

/// A reader of the documentation met `NumberError` and `ChangeError` in signatures of `Limiter`, and could not name them without
/// a dependency on `tidegate-policy`, whose version had to match.
#[test]
fn types_in_signatures_of_the_library_can_be_named_through_it() {
    let passed_on = passed_on();
    let mut own: BTreeSet<String> = BTreeSet::new();
    let files = rust_files("crates/limiter/src");
    for file in &files {
        own.extend(code(file).lines().filter_map(declared).map(str::to_owned));
    }
    let (mut missing, mut seen) = (BTreeSet::new(), 0);
    for name in ["core", "policy", "store"] {
        let foreign: BTreeSet<String> = public(name).into_iter().collect();
        for file in &files {
            let code = code(file);
            // A name of another crate that this file does not import, such as `Value`, is a type of the same name.
            let imported: BTreeSet<&str> = code
                .split(&format!("tidegate_{name}::"))
                .skip(1)
                .flat_map(|rest| type_names(rest.split(';').next().unwrap()))
                .collect();
            for signature in signatures(&code) {
                for word in type_names(&signature) {
                    if foreign.contains(word) && imported.contains(word) && !own.contains(word) {
                        seen += 1;
                        if !passed_on.get(name).is_some_and(|names| names.contains(word)) {
                            missing.insert(format!("tidegate_{name}::{word}, in {file}"));
                        }
                    }
                }
            }
        }
    }
    assert!(seen > 60, "only {seen} types found: the test looks in the wrong place");
    assert!(missing.is_empty(), "not exported by crates/limiter/src/lib.rs: {missing:#?}");
}

#[test]
fn examples_and_guides_use_no_other_crate_of_the_workspace() {
    let guides = rust_files("crates/limiter/src/guide");
    let files: Vec<String> =
        rust_files("crates/limiter/examples").into_iter().chain(guides).collect();
    assert!(files.len() >= 11, "{files:?}");
    for file in files.iter().map(String::as_str).chain(["README.md"]) {
        let text = read(file);
        let line = text.lines().find(|line| line.contains("tidegate_") && line.contains("::"));
        assert_eq!(line, None, "{file} names a crate other than tidegate");
    }
}
