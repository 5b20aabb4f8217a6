//! `tidegate simulate`, run as a user would.

#![allow(clippy::unwrap_used, reason = "a test fails loudly")]

use crate::support;

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

const TRACES: [&str; 4] = ["boundary", "steady", "burst", "greedy"];

/// `WRITE_DOCS=1` writes the pictures again.
#[test]
fn the_pictures_of_the_guide_are_what_the_program_draws() {
    let pictures = support::project("docs/pictures");
    let pictures = pictures.to_str().unwrap();
    if std::env::var_os("WRITE_DOCS").is_some() {
        assert_eq!(stdout(&["simulate", "--svg", pictures]).lines().count(), 4);
    }
    for trace in TRACES {
        let kept = std::fs::read_to_string(format!("{pictures}/simulate-{trace}.svg"));
        let drawn = stdout(&["simulate", "--trace", trace, "--svg"]);
        assert!(kept.unwrap_or_default() == drawn, "{trace}: `make references` writes the picture");
    }
}

/// The picture says the same as the text, also to those who do not see it.
#[test]
fn a_picture_is_small_and_described_and_fits_dark_pages() {
    for trace in TRACES {
        let svg = stdout(&["simulate", "--trace", trace, "--svg"]);
        assert!(svg.len() < 12_000, "{trace}: {} bytes", svg.len());
        assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("role=\"img\""));
        let described =
            svg.split("<desc id=\"d\">").nth(1).unwrap().split("</desc>").next().unwrap();
        let text = stdout(&["simulate", "--trace", trace]);
        for row in text.lines().filter(|line| line.contains(" pass, at most ")) {
            let words: Vec<&str> = row.rsplit('│').next().unwrap().split_whitespace().collect();
            let name = row.split_whitespace().next().unwrap();
            let said = format!("{name}: {}", words.join(" "));
            assert!(described.contains(&said), "{trace}: {said}: {described}");
        }
    }
}

#[test]
fn a_picture_goes_where_the_command_line_says() {
    let folder = support::folder("svg");
    let dir = folder.to_str().unwrap();
    let file = format!("{dir}/one.svg");
    stdout(&["simulate", "--trace", "burst", "--svg", &file]);
    assert_eq!(
        std::fs::read_to_string(&file).unwrap(),
        stdout(&["simulate", "--trace", "burst", "--svg", "-"])
    );
    let said = stdout(&["simulate", "--trace", "greedy", "--svg", dir]);
    assert_eq!(said, format!("the picture is in {dir}/simulate-greedy.svg\n"));
    let missing = format!("{dir}/none/one.svg");
    let output = tidegate(&["simulate", "--svg", &missing]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&missing) && said.contains("check the path"), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_trace_is_drawn_with_plain_characters_too() {
    for trace in TRACES {
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
