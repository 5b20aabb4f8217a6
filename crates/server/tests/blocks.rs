//! Every code block of the README and of the pages below docs/ is checked by a test, or says why not.
//!
//! | block | what checks it |
//! |---|---|
//! | `yaml`: a policy, or some keys of one | parsed here, without warnings |
//! | `yaml`: a routes file, or settings | checked by the server here |
//! | `json` | parsed here, as one value or a value in each line |
//! | `console` with `$ ` before commands | run by `readme.rs`, and their output compared |
//! | `sh`, and `console` without `$ ` | the syntax and the flags of `tidegate` are checked here |
//! | `rust` | the library's documentation tests, if it includes the page |
//! | `text` | nothing: outputs and drawings, but no commands after `$ ` |
//! | any other | a mark above the block: `<!-- run by: FILE -->` or `<!-- not run: REASON -->` |

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails loudly"
)]

use crate::support;
use crate::support::blocks;

use blocks::{Block, Mark, blocks, names, pages};
use std::process::{Command, Output};
use support::{folder, project};
use tidegate_policy::{Document, Policy, Value};

fn tidegate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(words).output().unwrap()
}

/// What is wrong with a block, if anything.
fn checked(block: &Block) -> Result<(), String> {
    match &block.mark {
        Some(Mark::NotRun(why)) if why.len() < 8 => return Err("the mark gives no reason".into()),
        Some(Mark::NotRun(_)) => return Ok(()),
        Some(Mark::RunBy(path)) if names(path, &block.page) => return Ok(()),
        Some(Mark::RunBy(path)) => return Err(format!("{path} does not name this page")),
        None => {}
    }
    match block.info.split(',').next().unwrap_or_default() {
        "yaml" => yaml(&block.text),
        "json" => json(&block.text),
        "console" if block.is_session() => Ok(()),
        "console" | "sh" => commands(&block.text),
        "rust" => rust(block),
        "text" if block.text.lines().any(|line| line.starts_with("$ ")) => {
            Err("commands are in a `console` block, or have a mark".into())
        }
        "text" => Ok(()),
        "" => Err("name its language; `text` if it has none".into()),
        other => Err(format!("no test checks `{other}`")),
    }
}

#[test]
fn every_code_block_is_checked_or_says_why_not() {
    let all: Vec<Block> = pages().iter().flat_map(|page| blocks(page)).collect();
    assert!(all.len() > 80, "{} blocks", all.len());
    let wrong = all.iter().filter_map(|block| {
        let why = checked(block).err()?;
        Some(format!("{}:{}: `{}`: {why}\n", block.page, block.line, block.info))
    });
    let wrong: String = wrong.collect();
    assert!(
        wrong.is_empty(),
        "correct these blocks, or write `<!-- run by: FILE -->` or `<!-- not run: REASON -->` above them:\n{wrong}"
    );
}

// === yaml ===

/// The names of the keys of a map, or `-` for a list.
fn keys(text: &str) -> Result<Vec<String>, String> {
    let document = Document::parse(text.as_bytes()).map_err(|problems| format!("{problems:?}"))?;
    Ok(match document.value {
        Value::Map(entries) => entries.iter().map(|entry| entry.name.to_string()).collect(),
        Value::List(_) => vec!["-".to_owned()],
        Value::Nothing | Value::Text(..) => vec![],
    })
}

fn yaml(text: &str) -> Result<(), String> {
    let keys = keys(text)?;
    let has = |names: &[&str]| keys.iter().any(|key| names.contains(&&**key));
    let (policy, whole) =
        (["identity", "tiers", "paths", "priorities", "rules"], has(&["version"]));
    if whole && has(&["rules"]) {
        return policy_without_warnings(text);
    }
    let rule = "rules: [{ name: a, key: [ip], limits: [15/s] }]";
    if has(&policy) {
        let rules = if has(&["rules"]) { "" } else { rule };
        return policy_that_is_valid(&format!("version: 1\n{text}\n{rules}"));
    }
    if has(&["-"]) {
        return policy_without_warnings(&format!("version: 1\nrules:\n{text}"));
    }
    if has(&["match", "when", "key", "limits", "mode", "on_limit"]) {
        let rest =
            [("key", "[ip]"), ("limits", "[15/s]")].into_iter().filter(|(key, _)| !has(&[key]));
        let rest: String = rest.map(|(key, value)| format!("    {key}: {value}\n")).collect();
        let own: String = text.lines().map(|line| format!("    {line}\n")).collect();
        return policy_that_is_valid(&format!("version: 1\nrules:\n  - name: a\n{rest}{own}"));
    }
    if has(&["groups", "routes", "refusals"]) {
        let groups = "groups: { site: { servers: [http://127.0.0.1:3000] } }\n";
        let groups = if has(&["groups"]) { "" } else { groups };
        return server_accepts("--proxy-routes", &format!("{groups}{text}"));
    }
    Err("it is neither a policy, nor a routes file".into())
}

fn policy_that_is_valid(text: &str) -> Result<(), String> {
    Policy::parse(text).map(drop).map_err(|error| error.to_string())
}

fn policy_without_warnings(text: &str) -> Result<(), String> {
    let policy = Policy::parse(text).map_err(|error| error.to_string())?;
    let warnings = policy.warnings();
    if warnings.is_empty() { Ok(()) } else { Err(format!("{warnings:?}")) }
}

/// Lets `serve --check` read a file, without any listener but the proxy.
fn server_accepts(flag: &str, text: &str) -> Result<(), String> {
    let place = folder("blocks");
    let (file, data) = (place.join("file.yaml"), place.join("data"));
    std::fs::write(&file, text).unwrap();
    let [file, data] = [&file, &data].map(|path| path.to_str().unwrap());
    let listeners = ["--http-listen", "--grpc-listen", "--resp-listen", "--admin-listen"];
    let mut words =
        vec!["serve", "--check", "--data-dir", data, "--proxy-listen", "127.0.0.1:0", flag, file];
    words.extend(listeners.iter().flat_map(|listener| [*listener, "off"]));
    let output = tidegate(&words);
    std::fs::remove_dir_all(&place).unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).unwrap()) }
}

// === json, sh, rust ===

fn json(text: &str) -> Result<(), String> {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).map(drop);
    let lines = || text.lines().filter(|line| !line.is_empty()).try_for_each(read);
    read(text).or_else(|_| lines()).map_err(|error| error.to_string())
}

/// The syntax of commands for a shell, and whether sub-commands and flags of `tidegate` exist.
fn commands(text: &str) -> Result<(), String> {
    let bash = Command::new("bash").args(["-n", "-c", text]).output().unwrap();
    if !bash.status.success() {
        return Err(String::from_utf8(bash.stderr).unwrap());
    }
    let text = text.replace("\\\n", " ");
    let calls = text.lines().filter_map(|line| line.trim().strip_prefix("tidegate "));
    calls.map(|call| call.split(" #").next().unwrap_or_default()).try_for_each(flags)
}

fn flags(call: &str) -> Result<(), String> {
    let words: Vec<&str> = call.split_whitespace().collect();
    let ours = words.iter().position(|word| ["|", ">", "&&", "&"].contains(word));
    let words = &words[..ours.unwrap_or(words.len())];
    let names = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase());
    let group = ["policy", "data", "secret", "admin"].contains(&words[0]);
    let command: Vec<&str> =
        words.iter().take(if group { 2 } else { 1 }).take_while(names).copied().collect();
    let help = tidegate(&[&command[..], &["--help"]].concat());
    if !help.status.success() {
        return Err(format!("there is no `tidegate {}`", command.join(" ")));
    }
    let help = String::from_utf8(help.stdout).unwrap();
    let flag = |word: &&&str| word.starts_with("--") && word.len() > 2;
    for word in words.iter().filter(flag) {
        let name = word.split('=').next().unwrap_or_default();
        let known = help
            .split_whitespace()
            .any(|known| known.trim_end_matches(',').split('[').next() == Some(name));
        if !known {
            return Err(format!("`tidegate {}` has no flag {name}", command.join(" ")));
        }
    }
    Ok(())
}

fn rust(block: &Block) -> Result<(), String> {
    let included = format!("/{}\")", block.page);
    let library = std::fs::read_to_string(project("crates/limiter/src/lib.rs")).unwrap();
    if block.info.contains("ignore") {
        Err("it is not compiled".into())
    } else if library.contains(&included) {
        Ok(())
    } else {
        Err("the documentation of the library does not include this page".into())
    }
}

// === the checks themselves ===

/// Mistakes that these checks must find: a check that cannot fail checks nothing.
#[test]
fn a_block_with_a_mistake_is_found() {
    let block = |info: &str, text: &str, mark: Option<Mark>| Block {
        page: "docs/server.md".to_owned(),
        line: 1,
        info: info.to_owned(),
        text: text.to_owned(),
        mark,
    };
    let good = "version: 1\nrules: [{ name: a, key: [ip], limits: [15/s] }]\n";
    assert_eq!(checked(&block("yaml", good, None)), Ok(()));
    for (info, text) in [
        ("yaml", "version: 1\nrules: [{ name: a, key: [ip], limts: [15/s] }]\n"),
        ("yaml", "version: 1\nrules: [{ name: a, key: [user], limits: [15/s] }]\n"),
        ("yaml", "identity: { trusted: nobody }\n"),
        ("yaml", "- { name: a, key: [ip], limits: [15/fortnight] }\n"),
        ("yaml", "match: { path: /a }\nmod: hard\n"),
        ("yaml", "groups: { a: { servers: [nowhere] } }\n"),
        ("yaml", "colour: red\n"),
        ("json", "{\"a\":1}\n{\"a\":}\n"),
        ("sh", "if true; then\n"),
        ("sh", "tidegate srve\n"),
        ("sh", "tidegate serve --store file: --polcy my.yaml\n"),
        ("sh", "tidegate policy lnt my.yaml\n"),
        ("rust", "fn main() {}\n"),
        ("text", "$ ls\n"),
        ("toml", "a = 1\n"),
        ("", "a\n"),
    ] {
        assert!(checked(&block(info, text, None)).is_err(), "{info}: {text}");
    }
    let marked = |mark| checked(&block("toml", "a = 1\n", Some(mark)));
    assert_eq!(marked(Mark::NotRun("it needs root".to_owned())), Ok(()));
    assert!(marked(Mark::NotRun("no".to_owned())).is_err());
    assert!(marked(Mark::RunBy("crates/server/tests/none.rs".to_owned())).is_err());
    assert_eq!(marked(Mark::RunBy("crates/server/tests/blocks.rs".to_owned())), Ok(()));
}
