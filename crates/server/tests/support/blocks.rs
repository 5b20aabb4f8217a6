//! The code blocks of the documentation, and the marks before them.
//!
//! A mark is a comment in the line above a block: `<!-- run by: crates/limiter/tests/examples.rs -->` names the test that runs it, and
//! `<!-- not run: it needs root -->` says why none does.

#![allow(dead_code, reason = "every file of tests uses its own part of this")]

use super::project;
use std::path::Path;

/// A fenced block of a page.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) page: String,
    /// The line of its fence.
    pub(crate) line: usize,
    /// What its fence says: `yaml`, `rust,no_run`.
    pub(crate) info: String,
    pub(crate) text: String,
    pub(crate) mark: Option<Mark>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Mark {
    RunBy(String),
    NotRun(String),
}

impl Block {
    /// Its commands, each with the output that the page shows: the lines after `$ `.
    pub(crate) fn commands(&self) -> Vec<(String, String)> {
        let mut commands: Vec<(String, String)> = vec![];
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((command.to_owned(), String::new())),
                (None, Some((_, said))) => said.extend([line, "\n"]),
                (None, None) => {}
            }
        }
        commands
    }

    /// Whether its commands are run and their output is compared.
    pub(crate) fn is_session(&self) -> bool {
        self.info == "console" && self.mark.is_none() && !self.commands().is_empty()
    }
}

/// The README and all pages below docs/.
pub(crate) fn pages() -> Vec<String> {
    let mut found = vec!["README.md".to_owned()];
    let mut folders = vec![project("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|kind| kind == "md") {
                let page = entry.strip_prefix(project("")).unwrap();
                found.push(page.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The blocks of a page, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(project(page)).unwrap();
    let mut blocks: Vec<Block> = vec![];
    let mut open = None;
    let mut above = "";
    for (number, line) in (1..).zip(text.lines()) {
        let indent = line.len() - line.trim_start().len();
        match (line.trim_start().strip_prefix("```"), open) {
            (Some(info), None) => {
                let (page, info) = (page.to_owned(), info.trim().to_owned());
                let mark = mark(above);
                blocks.push(Block { page, line: number, info, text: String::new(), mark });
                open = Some(indent);
            }
            (Some(_), Some(_)) => open = None,
            (None, Some(indent)) => {
                let line = line.get(indent..).unwrap_or_default();
                blocks.last_mut().unwrap().text.extend([line, "\n"]);
            }
            (None, None) => {}
        }
        if !line.trim().is_empty() {
            above = line;
        }
    }
    assert_eq!(open, None, "{page}: a block has no end");
    blocks
}

fn mark(line: &str) -> Option<Mark> {
    let text = line.trim().strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    let run = text.strip_prefix("run by: ").map(|path| Mark::RunBy(path.to_owned()));
    run.or_else(|| text.strip_prefix("not run: ").map(|why| Mark::NotRun(why.to_owned())))
}

/// Whether the file of a mark exists and names the page.
pub(crate) fn names(path: &str, page: &str) -> bool {
    let name = Path::new(page).file_name().unwrap().to_str().unwrap();
    std::fs::read_to_string(project(path)).is_ok_and(|text| text.contains(name))
}
