//! `tidegate simulate`, run as a user would.

#![allow(clippy::unwrap_used, reason = "a test fails loudly")]

use std::process::{Command, Output};

fn tidegate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(words).output().unwrap()
}

fn stdout(words: &[&str]) -> String {
    let output = tidegate(words);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The picture in the page about algorithms is the output of the program.
#[test]
fn the_page_about_algorithms_shows_what_simulate_prints() {
    let page = include_str!("../../../docs/algorithms.md");
    let picture = stdout(&["simulate"]);
    let (picture, _) = picture.split_once("\n\n▁").unwrap();
    assert!(page.contains(picture), "docs/algorithms.md does not show:\n{picture}");
}

#[test]
fn every_trace_is_drawn_with_plain_characters_too() {
    for trace in ["boundary", "steady", "burst", "greedy"] {
        let picture =
            stdout(&["simulate", "--trace", trace, "--ascii", "--amount", "20", "--seconds", "60"]);
        assert!(picture.is_ascii(), "{picture}");
        assert_eq!(picture.lines().filter(|line| line.contains(" pass, at most ")).count(), 6);
    }
}

#[test]
fn bad_words_are_answered_with_usage_and_exit_code_2() {
    for words in [
        ["simulate", "--amount", "0"],
        ["simulate", "--seconds", "-1"],
        ["simulate", "--trace", "none"],
    ] {
        let output = tidegate(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--help"), "{words:?}");
    }
}

#[test]
fn help_names_the_sub_commands() {
    assert!(stdout(&["--help"]).contains("simulate"));
}
