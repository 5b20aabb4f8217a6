//! Runs the commands of the README and of the guide, and compares their output with what the documents show.
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
    run("README.md", 4);
}

#[test]
fn the_guide_says_what_happens() {
    run("docs/server.md", 9);
}

#[test]
fn the_guide_names_every_setting() {
    let text = std::fs::read_to_string(project("docs/server.md")).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let flags: Vec<&str> = help
        .lines()
        .filter_map(|line| line.trim().strip_prefix("--"))
        .filter_map(|rest| rest.split(' ').next())
        .filter(|flag| !["config", "print-config"].contains(flag))
        .collect();
    assert!(flags.len() > 20, "{help}");
    for flag in flags {
        let row = format!("`--{flag}`");
        assert!(text.contains(&row), "{row} is not in docs/server.md");
    }
}
