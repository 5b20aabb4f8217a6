//! The command line itself: completions, man pages, colours, and what is said about words that it does not know.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails loudly"
)]

use crate::support;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::{folder, project};

fn tidegate(words: &[&str]) -> Output {
    tidegate_with(words, &[])
}

/// Runs it with these variables of colours, and without those of the machine.
fn tidegate_with(words: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.args(words).envs(variables.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

// === completions ===

#[test]
fn each_shell_gets_a_script_that_knows_commands_and_flags() {
    for (shell, first) in
        [("bash", "_tidegate() {"), ("zsh", "#compdef tidegate"), ("fish", "# Print an optspec")]
    {
        let output = tidegate(&["completions", shell]);
        assert!(output.status.success(), "{output:?}");
        let script = text(&output.stdout);
        assert!(script.starts_with(first), "{shell}: {}", script.lines().next().unwrap());
        for word in ["serve", "simulate", "explain", "http-listen", "deny-warnings"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

/// A real bash completes with the script.
#[test]
fn bash_completes_commands_and_flags() {
    let folder = folder("completions");
    let script = folder.join("tidegate.bash");
    std::fs::write(&script, tidegate(&["completions", "bash"]).stdout).unwrap();
    let complete = |words: &str, index: &str| {
        let asked = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={index}; _tidegate tidegate \"${{COMP_WORDS[{index}]}}\" ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &asked]).output().unwrap();
        text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("tidegate ser", "1"), ["serve"]);
    assert_eq!(complete("tidegate policy te", "2"), ["test"]);
    assert_eq!(complete("tidegate serve --print", "2"), ["--print-config"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

// === man pages ===

/// The sub-commands of a command, by its help.
fn sub_commands(words: &[&str]) -> Vec<String> {
    let output = tidegate(&[words, &["--help"]].concat());
    let help = text(&output.stdout).to_owned();
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return vec![] };
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

/// The names of a command's page and of those below it.
fn pages(words: &[&str]) -> Vec<String> {
    let mut pages = vec![[&["tidegate"], words].concat().join("-") + ".1"];
    for name in sub_commands(words) {
        pages.extend(self::pages(&[words, &[name.as_str()]].concat()));
    }
    pages.sort();
    pages
}

#[test]
fn each_command_has_a_man_page_without_mistakes() {
    let folder = folder("man");
    let target = folder.join("new/man1");
    let output = tidegate(&["man", "--dir", target.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let mut written: Vec<String> = std::fs::read_dir(&target)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    written.sort();
    let expected = pages(&[]);
    assert!(expected.len() >= 12 && expected.contains(&"tidegate-policy-test.1".to_owned()));
    assert_eq!(written, expected);
    for name in &written {
        check_page(&target.join(name));
    }
    let page = std::fs::read_to_string(target.join("tidegate-serve.1")).unwrap();
    assert!(page.contains("http\\-listen") && page.contains(".TH tidegate-serve 1"), "{page}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// mandoc finds no mistake in a page, except for what is as it should be: a page has no date, and the generator asks for some
/// empty lines twice.
fn check_page(page: &Path) {
    let lint = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(page).output();
    let lint = lint.unwrap_or_else(|error| panic!("mandoc: {error}; `make deps` installs it"));
    let harmless = ["cannot parse date", "skipping paragraph macro: br"];
    let mistakes = text(&lint.stdout).lines();
    let mistakes: Vec<_> =
        mistakes.filter(|line| !harmless.iter().any(|part| line.contains(part))).collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

// === colours ===

#[test]
fn colours_are_for_terminals_and_the_environment_decides() {
    let check = ["check", "--policy", "docs/policy.yaml", "ip=203.0.113.7"];
    let run = |variables: &[(&str, &str)]| {
        let policy = project("docs/policy.yaml");
        let words =
            check.map(|word| if word.ends_with(".yaml") { policy.to_str().unwrap() } else { word });
        text(&tidegate_with(&words, variables).stdout).to_owned()
    };
    let plain = run(&[]);
    assert!(plain.starts_with("allowed\n  rule "), "{plain}");
    assert_eq!(run(&[("NO_COLOR", "1")]), plain);
    let coloured = run(&[("CLICOLOR_FORCE", "1")]);
    assert!(coloured.starts_with("\u{1b}[32mallowed\u{1b}[0m\n"), "{coloured:?}");
    assert_eq!(run(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), plain);
}

/// `script` gives the program a terminal.
#[test]
fn a_terminal_gets_colours_unless_it_asks_for_none() {
    let policy = project("docs/policy.yaml");
    let run = |variables: &[(&str, &str)]| {
        let command = format!(
            "{} check --policy {} ip=203.0.113.7",
            env!("CARGO_BIN_EXE_tidegate"),
            policy.display()
        );
        let mut script = Command::new("script");
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            script.env_remove(name);
        }
        script.args(["--quiet", "--command", &command, "/dev/null"]).env("TERM", "xterm");
        script.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
    };
    assert!(text(&run(&[]).stdout).contains("\u{1b}[32mallowed"));
    assert!(!text(&run(&[("NO_COLOR", "1")]).stdout).contains('\u{1b}'));
}

// === mistakes ===

#[test]
fn a_mistake_is_answered_with_what_to_write() {
    for (words, parts) in [
        (&["serv"][..], &["unrecognized subcommand 'serv'", "'serve'", "try '--help'"][..]),
        (&["policy", "lnt", "x.yaml"], &["unrecognized subcommand 'lnt'", "'lint'"]),
        (
            &["serve", "--http-lisen", "x"],
            &["unexpected argument '--http-lisen'", "'--http-listen'"],
        ),
        (
            &["serve", "--connections", "7"],
            &["unexpected argument '--connections'", "try '--help'"],
        ),
        (&["policy", "test"], &["<FILES>..."]),
        (&["completions", "bsh"], &["invalid value 'bsh'", "'bash'"]),
        (&["completions"], &["<SHELL>"]),
        (&["man"], &["--dir <DIR>"]),
        (&["serve", "--check=now"], &["invalid value 'now'", "start, restart"]),
        (&["serve", "--config", "/nowhere.yaml"], &["/nowhere.yaml", "No such file"]),
        (&["policy", "lint", "/nowhere.yaml"], &["/nowhere.yaml", "check the path"]),
        (&["policy", "lint", "/dev"], &["/dev: it is not a regular file", "`-`"]),
        (&["man", "--dir", "/proc/man"], &["/proc/man: "]),
    ] {
        let output = tidegate(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        let said = text(&output.stderr);
        for part in parts {
            assert!(said.contains(part), "{words:?}: {part}: {said}");
        }
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    for words in ["completions zsh", "policy schema", "serve --help"] {
        let command = format!(
            "{} {words} | head -1; echo ${{PIPESTATUS[0]}}",
            env!("CARGO_BIN_EXE_tidegate")
        );
        let output = Command::new("bash").args(["-c", &command]).output().unwrap();
        assert!(text(&output.stdout).ends_with("\n0\n"), "{words}: {output:?}");
        assert_eq!(text(&output.stderr), "", "{words}");
    }
}
