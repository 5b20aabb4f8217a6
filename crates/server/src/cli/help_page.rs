//! The page `docs/reference/command-line.md`: the `--help` of every sub-command.

use super::Tidegate;
use crate::doc_pages::compare;
use clap::{Command, CommandFactory};

const HEAD: &str = "# Command line reference

<!-- Written by a test: `make references` -->

This page shows the help of every sub-command, as `tidegate COMMAND --help` prints it. `tidegate man --dir DIR` writes the same as man pages,
and `tidegate completions SHELL` completes sub-commands and flags. The exit codes are [among the errors](errors.md#exit-codes).
";

/// The sections of a command and of those below it.
fn sections(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let help = command.clone().render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let help = help.join("\n");
    let below: String = command.get_subcommands().map(sections).collect();
    format!("\n## {name}\n\n```text\n{}\n```\n{below}", help.trim_end())
}

#[test]
fn the_page_of_the_command_line_shows_the_help_of_every_sub_command() {
    let mut command = Tidegate::command().disable_help_subcommand(true).term_width(100);
    command.build();
    compare("docs/reference/command-line.md", &(HEAD.to_owned() + &sections(&command)));
}
