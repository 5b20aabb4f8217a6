//! Which module may import which: the block "Module directions" of ARCHITECTURE.md, against the `use` lines and paths.
//!
//! A section lists the modules of a folder, each line of them after those that they import. So a module imports modules of
//! lines above its own and none of its own line, and there is no cycle.

use super::{read, rust_files};
use std::collections::{BTreeMap, BTreeSet};

/// A folder of source, such as `crates/server/src`, and its modules, a line of them after another.
struct Section {
    folder: String,
    lines: Vec<Vec<String>>,
}

fn sections() -> Vec<Section> {
    let page = read("ARCHITECTURE.md");
    let block = page.split("## Module directions").nth(1).expect("a chapter on module directions");
    let block = block.split("```").nth(1).expect("a block");
    let mut sections = Vec::new();
    for line in block.lines().skip(1).filter(|line| !line.trim().is_empty()) {
        if line.starts_with(' ') {
            let section: &mut Section = sections.last_mut().expect("a folder first");
            section.lines.push(line.split_whitespace().map(str::to_owned).collect());
        } else {
            sections.push(Section { folder: line.trim().to_owned(), lines: Vec::new() });
        }
    }
    sections
}

/// The module below `folder` that a file belongs to: `redis` for `…/redis.rs` and `…/redis/link.rs`.
fn module_of(folder: &str, file: &str) -> Option<String> {
    let inside = file.strip_prefix(folder)?.strip_prefix('/')?;
    let first = inside.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first).to_owned())
}

/// The path of modules from the folder down to a file: `["redis", "link"]`.
fn path_of(folder: &str, file: &str) -> Vec<String> {
    let inside = file.strip_prefix(folder).unwrap().trim_start_matches('/');
    let inside = inside.strip_suffix(".rs").unwrap();
    inside.split('/').filter(|part| *part != "mod").map(str::to_owned).collect()
}

/// Code without comments, and without the tests at its end.
pub(super) fn code(file: &str) -> String {
    let text = read(file);
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The first words behind a path such as `crate::`: one, or those of a group in braces.
fn heads(rest: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut depth, mut start, mut found) = (0_usize, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(word(&group[start..at]));
                return found;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(word(&group[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// What a file names through `crate::` and `super::`, as paths of one module below `folder` or items of its root.
fn named(folder: &str, root: &str, file: &str) -> BTreeSet<String> {
    let code = code(file);
    let below: Vec<&str> =
        folder.strip_prefix(root).unwrap().split('/').filter(|p| !p.is_empty()).collect();
    let mut found = BTreeSet::new();
    let own = path_of(root, file);
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let mut rest = &code[at + "crate::".len()..];
        let inside = below.iter().all(|part| {
            let next = rest.strip_prefix(part).and_then(|rest| rest.strip_prefix("::"));
            next.inspect(|next| rest = next).is_some()
        });
        if inside {
            found.extend(heads(rest));
        }
    }
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with("super::")
            || code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
        {
            continue;
        }
        let mut rest = &code[at..];
        let mut up = 0;
        while let Some(next) = rest.strip_prefix("super::") {
            rest = next;
            up += 1;
        }
        // `super` of a file of depth n that goes up n - (depth of the folder) levels names modules of the folder.
        if own.len() - up.min(own.len()) == below.len() {
            found.extend(heads(rest));
        }
    }
    found
}

/// Items that the root of a folder passes on, and the module that each comes from.
fn passed_on(folder: &str) -> BTreeMap<String, String> {
    let mut from = BTreeMap::new();
    for file in [format!("{folder}/lib.rs"), format!("{folder}.rs")] {
        if !super::root().join(&file).exists() {
            continue;
        }
        let code = code(&file);
        for (at, _) in code.match_indices("use ") {
            let Some(statement) = code[at + 4..].split(';').next() else { continue };
            let statement = statement.trim_start_matches("self::");
            let Some((module, items)) = statement.split_once("::") else { continue };
            for item in items.split(['{', '}', ',', ':']).map(str::trim) {
                from.insert(item.rsplit(" as ").next().unwrap().to_owned(), module.to_owned());
            }
        }
    }
    from
}

#[test]
fn modules_import_only_what_stands_below_them() {
    let sections = sections();
    assert!(sections.len() >= 5, "a section for each crate");
    let mut wrong = Vec::new();
    for Section { folder, lines } in &sections {
        let root = format!("{}/src", folder.split("/src").next().unwrap());
        let height: BTreeMap<&str, usize> = lines
            .iter()
            .enumerate()
            .flat_map(|(height, line)| line.iter().map(move |module| (module.as_str(), height)))
            .collect();
        let items = passed_on(folder);
        for file in rust_files(folder) {
            let Some(module) = module_of(folder, &file) else { continue };
            if ["lib", "main", "tests", "testing"].contains(&module.as_str())
                && !height.contains_key(&*module)
            {
                continue;
            }
            let Some(own) = height.get(&*module) else {
                wrong.push(format!("{folder}: `{module}` is not listed"));
                continue;
            };
            for name in named(folder, &root, &file) {
                let name = items.get(&name).unwrap_or(&name);
                let upward = height.get(name.as_str()).is_some_and(|height| height >= own);
                if upward && *name != module {
                    wrong.push(format!("{file} imports `{name}`"));
                }
            }
        }
        let files: BTreeSet<_> =
            rust_files(folder).iter().filter_map(|file| module_of(folder, file)).collect();
        for module in height.keys().filter(|module| !files.contains(**module)) {
            wrong.push(format!("{folder}: there is no module `{module}`"));
        }
    }
    assert!(wrong.is_empty(), "against ARCHITECTURE.md:\n{}", wrong.join("\n"));
}
