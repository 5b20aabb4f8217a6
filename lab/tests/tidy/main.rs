//! Keeps the house as ARCHITECTURE.md and CONTRIBUTING.md describe it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

mod directions;
mod links;
mod packages;
mod patience;
mod sizes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All files below a folder, as paths from the root; build output and hidden folders but `.ci` left out.
fn files(below: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(below)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().unwrap().is_dir() {
                let hidden = name.starts_with('.') && name != ".ci";
                if !hidden && name != "target" && name != "node_modules" {
                    folders.push(entry.path());
                }
            } else {
                let path =
                    entry.path().strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rust_files(below: &str) -> Vec<String> {
    files(below).into_iter().filter(|path| path.ends_with(".rs")).collect()
}

/// Which of our crates each of our crates depends on, by kind; `None` is an ordinary dependency.
fn edges() -> BTreeMap<String, Vec<(String, Option<String>)>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let dependencies = |package: &serde_json::Value| {
        package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| (text(&d["name"]).unwrap(), text(&d["kind"])))
            .collect()
    };
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| (text(&package["name"]).unwrap(), dependencies(package)))
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("tidegate-core", [].as_slice()),
        ("tidegate-policy", &["tidegate-core"]),
        ("tidegate-store", &["tidegate-core"]),
        ("tidegate", &["tidegate-core", "tidegate-policy", "tidegate-store"]),
        (
            "tidegate-server",
            &[
                "tidegate-core",
                "tidegate-policy",
                "tidegate-store",
                "tidegate-timelines",
                "tidegate",
            ],
        ),
        ("tidegate-timelines", &["tidegate-core"]),
        ("tidegate-simulator", &["tidegate-core", "tidegate-policy", "tidegate-store", "tidegate"]),
        (
            "tidegate-lab",
            &[
                "tidegate-core",
                "tidegate-policy",
                "tidegate-store",
                "tidegate",
                "tidegate-server",
                "tidegate-simulator",
            ],
        ),
    ]);
    for (package, dependencies) in edges() {
        let allowed = allowed
            .get(&*package)
            .unwrap_or_else(|| panic!("{package} has no place in ARCHITECTURE.md"));
        for (dependency, kind) in dependencies {
            let ours = dependency.starts_with("tidegate");
            let for_tests = kind.as_deref() == Some("dev") && dependency == "tidegate-timelines";
            assert!(
                !ours || for_tests || allowed.contains(&&*dependency),
                "{package} must not use {dependency}"
            );
        }
    }
}

#[test]
fn the_core_depends_on_nothing() {
    let core = &edges()["tidegate-core"];
    assert!(core.iter().all(|(_, kind)| kind.as_deref() == Some("dev")), "{core:?}");
}

#[test]
fn the_core_is_pure() {
    for path in rust_files("crates/core/src") {
        let source = read(&path);
        for word in [
            "f32",
            "f64",
            "unsafe",
            "std::time",
            "std::io",
            "std::fs",
            "std::net",
            "async ",
            "println",
        ] {
            let used = source
                .lines()
                .find(|line| !line.trim_start().starts_with("//") && line.contains(word));
            assert!(used.is_none(), "{path} uses {word}: {}", used.unwrap_or_default());
        }
    }
}

/// A wildcard arm takes every algorithm that is added later, and nothing tells its author. Bytes of a file format have no other
/// way to say "anything else".
#[test]
fn the_core_handles_every_algorithm_by_name() {
    for path in rust_files("crates/core/src") {
        let source = read(&path);
        let wildcards = source.lines().filter(|line| line.trim_start().starts_with("_ =>"));
        let allowed = usize::from(path.ends_with("/state.rs"));
        assert!(wildcards.count() <= allowed, "{path} has a wildcard arm");
    }
}

#[test]
fn every_module_opens_with_its_idea() {
    for path in rust_files("") {
        assert!(read(&path).starts_with("//!"), "{path} does not open with a doc comment");
    }
}

#[test]
fn every_file_of_source_is_reached() {
    for path in
        rust_files("").iter().filter(|path| path.contains("/src/") || path.contains("/tests/laws/"))
    {
        let file = Path::new(path);
        let stem = file.file_stem().unwrap().to_string_lossy();
        if stem == "lib" || stem == "main" {
            continue;
        }
        let folder = file.parent().unwrap();
        let parents = ["lib.rs", "main.rs"]
            .map(|name| folder.join(name))
            .into_iter()
            .chain([folder.with_extension("rs")]);
        let declared = parents.filter(|parent| root().join(parent).exists()).any(|parent| {
            read(&parent.to_string_lossy())
                .lines()
                .any(|line| line.trim().ends_with(&format!("mod {stem};")))
        });
        assert!(declared, "{path} is declared nowhere");
    }
}

/// Cargo does not look for programs in `tests/` of these crates, so a file that `main.rs` does not name would never run.
#[test]
fn every_file_of_tests_is_reached() {
    let manifests = files("").into_iter().filter(|path| path.ends_with("/Cargo.toml"));
    for manifest in manifests {
        let text = read(&manifest);
        if !text.contains("autotests = false") {
            continue;
        }
        let tests = format!("{}tests/", manifest.trim_end_matches("Cargo.toml"));
        let main = read(&format!("{tests}main.rs"));
        for path in rust_files(&tests) {
            let inside = path.trim_start_matches(&tests);
            let name = inside.trim_end_matches(".rs").trim_end_matches("/main");
            let is_reached = main.contains(&format!("\nmod {name};"))
                || text.contains(&format!("name = \"{name}\""))
                || name.contains('/');
            assert!(is_reached, "{path} is in no program; name it in {tests}main.rs");
        }
    }
}

/// The folders that ARCHITECTURE.md lists in its map.
fn mapped_folders() -> BTreeSet<String> {
    let page = read("ARCHITECTURE.md");
    let map = page.split("## Code map").nth(1).unwrap().split("```").nth(1).unwrap();
    let folder = |line: &str| {
        line.split_whitespace().next().filter(|word| word.ends_with('/')).map(str::to_owned)
    };
    map.lines().filter_map(folder).collect()
}

#[test]
fn the_map_lists_exactly_the_folders_that_exist() {
    let mut exist = BTreeSet::new();
    for file in files("") {
        let mut folder = Path::new(&file).parent();
        while let Some(path) = folder.filter(|path| !path.as_os_str().is_empty()) {
            exist.insert(format!("{}/", path.display()));
            folder = path.parent();
        }
    }
    assert_eq!(mapped_folders(), exist);
}

/// The doc comment right above a line, attributes in between skipped.
fn doc_above<'s>(lines: &[&'s str], at: usize) -> Vec<&'s str> {
    let above = lines[..at].iter().rev().map(|line| line.trim());
    above
        .skip_while(|line| line.starts_with("#[") || line.starts_with(")]") || line.ends_with(','))
        .take_while(|line| line.starts_with("///"))
        .collect()
}

#[test]
fn every_public_item_of_the_core_shows_an_example_that_asserts() {
    let mut items = 0;
    for path in rust_files("crates/core/src") {
        let source = read(&path);
        let lines: Vec<&str> = source.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let kinds = ["pub fn", "pub const", "pub struct", "pub enum", "pub trait", "pub type"];
            if !kinds.iter().any(|kind| line.trim_start().starts_with(kind)) {
                continue;
            }
            items += 1;
            let doc = doc_above(&lines, at).join("\n");
            assert!(
                doc.contains("```") && doc.contains("assert"),
                "{path}:{}: no example that asserts",
                at + 1
            );
        }
    }
    assert!(items > 60, "only {items} public items found: the test looks in the wrong place");
}

#[test]
fn every_chapter_has_the_same_headings() {
    let expected = [
        "The idea",
        "The formula",
        "A worked example",
        "State",
        "Step",
        "What it does not promise",
    ];
    let shared = ["drain.rs", "packed.rs", "fast_path.rs"];
    let chapters = rust_files("crates/core/src/algorithm");
    let chapters = chapters.iter().filter(|path| !shared.iter().any(|name| path.ends_with(name)));
    let mut count = 0;
    for path in chapters {
        count += 1;
        let source = read(path);
        let headings: Vec<&str> =
            source.lines().filter_map(|line| line.strip_prefix("//! ## ")).collect();
        assert_eq!(headings, expected, "{path}");
    }
    assert_eq!(count, 6);
}

#[test]
fn every_mutant_still_applies() {
    for list in ["lab/mutants/core.txt", "lab/mutants/cluster.txt"] {
        let (text, mut file, mut mutants) = (read(list), String::new(), 0);
        for line in text.lines() {
            if let Some(path) = line.strip_prefix("file ") {
                file = read(path.trim());
            }
            if let Some(from) = line.strip_prefix("from ") {
                mutants += 1;
                let places = file.matches(from.trim()).count();
                assert_eq!(places, 1, "{list}: `{}` must stand once in its file", from.trim());
            }
        }
        assert!(mutants > 20, "{list}: only {mutants} mutants");
    }
}

#[test]
fn the_readme_names_only_commands_that_exist() {
    let makefile = read("Makefile");
    for page in ["README.md", "CONTRIBUTING.md"] {
        for word in read(page).split("make ").skip(1) {
            let target: String = word.chars().take_while(char::is_ascii_lowercase).collect();
            let exists = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
            assert!(exists || target.is_empty(), "{page}: `make {target}` does not exist");
        }
    }
}

#[test]
fn ci_runs_what_the_readme_says() {
    assert!(read(".ci/run").contains("\nmake lint test\n"));
}
