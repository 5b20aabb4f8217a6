//! Valid files, files that are too large, and paths that are not files.

use super::run::{
    POLICY, Scratch, assert_safe_to_print, bounded, check, complaints, fits, rules, stderr, stdout,
    tidegate,
};
use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

#[test]
fn the_policy_that_shows_the_whole_language_is_valid() {
    let output = bounded(&["lint", POLICY]);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).ends_with("3 rules, no problems found\n"), "{output:?}");
    assert!(tidegate(&["lint", "--deny-warnings", POLICY]).status.success());
}

#[test]
fn windows_line_ends_and_json_are_accepted() {
    let scratch = Scratch::new("windows");
    let unix = fs::read_to_string(POLICY).unwrap();
    let windows = format!("\u{feff}{}", unix.replace('\n', "\r\n"));
    let json = r#"{ "version": 1, "rules": [{ "name": "a", "key": ["ip"], "limits": ["1/s"] }] }"#;
    for content in [windows.as_str(), json] {
        let output = tidegate(&["lint", "--deny-warnings", &scratch.file(content)]);
        assert!(output.status.success(), "{output:?}");
    }
    // Positions are counted as an editor does, in these files too.
    let wrong = "\u{feff}version: 1\r\nrules:\r\n  - { nmae: a, key: [ip], limits: [1/s] }\r\n";
    check(&scratch, wrong, &["3:7: error: unknown key `nmae`, did you mean `name`?"]);
}

/// The file is not read to its end.
#[test]
fn a_file_of_a_hundred_megabytes_is_refused() {
    let scratch = Scratch::new("megabytes");
    let path = scratch.path("large.yaml");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"version: 1\n").unwrap();
    file.set_len(100_000_000).unwrap();
    let output = bounded(&["lint", &path]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let found = complaints(&path, &output);
    assert!(found.len() == 1 && fits(&found[0], "1:1: error: the file has ¤4194304"), "{found:?}");
}

#[test]
fn paths_that_are_not_regular_files_are_refused_immediately() {
    let scratch = Scratch::new("no-file");
    let [fifo, missing, directory] = ["fifo", "missing.yaml", ""].map(|name| scratch.path(name));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (path, expected) in [
        (fifo.as_str(), "it is not a regular file"),
        (&directory, "it is not a regular file"),
        ("/dev/zero", "it is not a regular file"),
        (&missing, "No such file or directory"),
    ] {
        for command in ["lint", "explain"] {
            let output = bounded(&[command, path]);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let expected = format!("tidegate: {path}: {expected}");
            assert!(stderr(&output).starts_with(&expected), "{output:?}");
            assert_eq!(stderr(&output).lines().count(), 1, "{output:?}");
        }
    }
}

#[test]
fn the_standard_input_has_the_same_size_limit_as_a_file() {
    let read = |from: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["policy", "lint", "-"]).stdin(File::open(from).unwrap()).output().unwrap()
    };
    let output = read(POLICY);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("no problems found"), "{output:?}");
    let output = read("/dev/zero");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stdout(&output).contains(":1:1: error: the file has "), "{output:?}");
}

#[test]
fn file_names_are_printed_safely() {
    let scratch = Scratch::new("file-names");
    for name in ["a\u{1b}[31mb.yaml", "a\u{202e}b.yaml", "a\nb.yaml"] {
        let path = scratch.path(name);
        let said = |code| {
            for words in [&["lint", &path][..], &["lint", "--json", &path], &["explain", &path]] {
                let output = tidegate(words);
                assert_eq!(output.status.code(), Some(code), "{output:?}");
                assert_safe_to_print(stdout(&output));
                assert_safe_to_print(stderr(&output));
            }
        };
        said(2);
        fs::write(&path, "version: 2\n").unwrap();
        said(2);
        fs::write(&path, rules(0..1)).unwrap();
        said(0);
    }
}
