//! Runs the commands of the README and of the book, and compares their output with what the documents show.
//!
//! In a `console` block, a line that begins with `$ ` is a command, and the lines after it are its output; `…` stands
//! for any text. Addresses and the data directory are those of a server that this test starts.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

mod support;

use std::process::Command;
use support::{Server, project};

/// The commands of a document, each with its output.
fn commands(text: &str) -> Vec<(String, String)> {
    let blocks =
        text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("console\n"));
    let mut commands: Vec<(String, String)> = vec![];
    for block in blocks {
        let mut within = false;
        for line in block.lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => {
                    commands.push((command.to_owned(), String::new()));
                    within = true;
                }
                (None, Some((_, said))) if within => {
                    said.push_str(line);
                    said.push('\n');
                }
                (None, _) => {}
            }
        }
    }
    commands
}

/// Whether a text equals another one, in which `…` stands for any text.
fn is_as(text: &str, said: &str) -> bool {
    let mut pieces: Vec<&str> = said.split('…').collect();
    let last = pieces.pop().unwrap_or_default();
    let Some(mut rest) = text.strip_suffix(last) else { return false };
    let mut first = true;
    for piece in pieces {
        let Some(at) = rest.find(piece).filter(|at| !first || *at == 0) else { return false };
        rest = &rest[at + piece.len()..];
        first = false;
    }
    !first || rest.is_empty()
}

fn run(document: &str, expected: usize) {
    let text = std::fs::read_to_string(project(document)).unwrap();
    let commands = commands(&text);
    assert_eq!(commands.len(), expected, "{commands:?}");
    let server = Server::start(&[]);
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    for (command, said) in commands {
        let command = command
            .replace("127.0.0.1:8080", &server.http.to_string())
            .replace("127.0.0.1:8082", &server.admin.to_string())
            .replace("target/run", server.folder.join("data").to_str().unwrap());
        let output = Command::new("bash")
            .args(["-c", &command])
            .env("PATH", &path)
            .env("TIDEGATE_DATA_DIR", server.folder.join("data"))
            .current_dir(project(""))
            .output()
            .unwrap();
        let found = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            is_as(found.trim_end(), said.trim_end()),
            "$ {command}\n{found}{errors}\nand not\n{said}"
        );
    }
}

#[test]
fn the_readme_says_what_happens() {
    run("README.md", 3);
}

/// The pages of the book whose commands are run like those of the README, each with the number of its commands.
const GUIDE: [(&str, usize); 3] =
    [("docs/http-api.md", 5), ("docs/health.md", 1), ("docs/admin.md", 10)];

#[test]
fn the_guide_says_what_happens() {
    for (page, expected) in GUIDE {
        run(page, expected);
    }
}

/// The pages of the documents, and what `make cluster` and the server print to try.
fn pages() -> Vec<(String, String)> {
    let mut found = vec!["README.md".to_owned(), "lab/cluster.sh".to_owned()];
    found.push("crates/server/src/wiring/greeting.rs".to_owned());
    let mut folders = vec![project("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.extension().and_then(|kind| kind.to_str()) {
                Some("md") => found.push(entry.to_str().unwrap().to_owned()),
                None if entry.is_dir() => folders.push(entry),
                _ => {}
            }
        }
    }
    assert!(found.len() >= 9, "{found:?}");
    let read = |name: String| {
        let text = std::fs::read_to_string(project(&name)).unwrap();
        (name, text)
    };
    found.into_iter().map(read).collect()
}

/// `--json` needs curl 7.82 and `%header{…}` needs 7.84. Debian 11 and Ubuntu 22.04 have older ones, on which the first command of
/// the README failed.
#[test]
fn every_curl_command_runs_with_an_old_curl() {
    for (page, text) in pages() {
        // A command may go on in the next line.
        let text = text.replace("\\\n", " ");
        for line in text.lines().filter(|line| line.contains("curl ")) {
            for new in ["--json", "%header{", "--variable", "--expand", "--ca-native"] {
                assert!(!line.contains(new), "{page}: {new} needs a newer curl: {line}");
            }
        }
    }
}

/// The guide read the token from `target/run`, where only `make run` keeps it. The README begins with `make run`.
#[test]
fn the_guide_reads_tokens_from_the_data_directory() {
    for (page, text) in pages().iter().filter(|(page, _)| page != "README.md") {
        assert!(!text.contains("cat target/run/"), "{page}");
    }
}
