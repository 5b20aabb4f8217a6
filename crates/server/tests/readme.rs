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

use crate::support;
use crate::support::blocks;

use blocks::{Block, blocks, pages};
use std::process::Command;
use support::{Server, project};

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

/// Runs the commands of a page, one after another at one server, and returns how many they are.
fn run(page: &str) -> usize {
    let sessions: Vec<Block> = blocks(page).into_iter().filter(Block::is_session).collect();
    let commands = || sessions.iter().flat_map(Block::commands);
    if sessions.is_empty() {
        return 0;
    }
    let server = Server::start(&[]);
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    for (command, said) in commands() {
        let command = command
            .replace("tidegate admin ", "tidegate admin --admin http://127.0.0.1:8082 ")
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
            "{page}: $ {command}\n{found}{errors}\nand not\n{said}"
        );
    }
    commands().count()
}

#[test]
fn the_readme_and_the_book_say_what_happens() {
    let run: usize = pages().iter().map(|page| run(page)).sum();
    assert!(run >= 13, "only {run} commands");
}

/// The pages, and what `make cluster` and the server print to try.
fn texts() -> Vec<(String, String)> {
    let programs = ["lab/cluster.sh", "crates/server/src/wiring/greeting.rs"];
    let found = pages().into_iter().chain(programs.map(str::to_owned));
    let read = |name: String| {
        let text = std::fs::read_to_string(project(&name)).unwrap();
        (name, text)
    };
    found.map(read).collect()
}

/// `--json` needs curl 7.82 and `%header{…}` needs 7.84. Debian 11 and Ubuntu 22.04 have older ones, on which the first command of
/// the README failed.
#[test]
fn every_curl_command_runs_with_an_old_curl() {
    for (page, text) in texts() {
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
    for (page, text) in texts().iter().filter(|(page, _)| page != "README.md") {
        assert!(!text.contains("cat target/run/"), "{page}");
    }
}
