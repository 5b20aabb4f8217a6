//! One meaning for a type's name within a crate, and one public type of a name in the whole library.

use super::{read, rust_files};
use std::collections::BTreeMap;

/// The types that a line declares at any depth; aliases only at the left margin, since others belong to traits.
pub(super) fn declared(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        rest = public.trim_start();
        if rest.starts_with('(') {
            rest = rest.split_once(") ")?.1;
        }
    }
    let alias = !line.starts_with(' ');
    let kind =
        ["struct ", "enum ", "trait ", "union "].iter().find_map(|kind| rest.strip_prefix(*kind));
    let rest = kind.or_else(|| rest.strip_prefix("type ").filter(|_| alias))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    rest[..end].starts_with(|c: char| c.is_uppercase()).then_some(&rest[..end])
}

/// Where each type of a folder is declared.
fn types(folder: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_files(folder) {
        let text = read(&file);
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (number, name) in text.lines().enumerate().filter_map(|(n, l)| Some((n, declared(l)?)))
        {
            found.entry(name.to_owned()).or_default().push(format!("{file}:{}", number + 1));
        }
    }
    found
}

const CRATES: [&str; 5] = ["core", "policy", "store", "limiter", "server"];

#[test]
fn a_type_name_has_one_meaning_within_a_crate() {
    for name in CRATES {
        let mut types = types(&format!("crates/{name}/src"));
        types.retain(|_, places| places.len() > 1);
        assert!(types.is_empty(), "declared several times: {types:#?}");
    }
}

/// The types that a crate's root passes on from its own modules.
pub(super) fn public(name: &str) -> Vec<String> {
    let text = read(&format!("crates/{name}/src/lib.rs"));
    let uses = text.split("pub use ").skip(1).filter(|rest| !rest.starts_with("tidegate_"));
    let items =
        uses.flat_map(|rest| rest.split(';').next().unwrap().split(['{', '}', ',', ':', ' ']));
    let items = items.map(str::trim).filter(|item| item.starts_with(|c: char| c.is_uppercase()));
    items.map(str::to_owned).collect()
}

#[test]
fn a_public_type_name_has_one_meaning_in_the_library() {
    let mut owners: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in CRATES.into_iter().filter(|name| *name != "server") {
        for item in public(name) {
            owners.entry(item).or_default().push(name);
        }
    }
    owners.retain(|_, owners| owners.len() > 1);
    assert!(owners.is_empty(), "public in several crates: {owners:#?}");
}
