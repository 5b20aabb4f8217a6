//! `tidegate completions`: prints the script with which a shell completes sub-commands, flags and file names.

use clap::{Args, Command};
use clap_complete::{Shell, generate};
use std::io::{self, Write};

#[derive(Args)]
#[command(after_long_help = "\
Where the script belongs:

  bash  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  zsh   tidegate completions zsh > ~/.zfunc/_tidegate
        and in ~/.zshrc, before compinit: fpath+=(~/.zfunc)
  fish  tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub(crate) struct CompletionsOptions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for `command`.
pub(crate) fn run(
    options: &CompletionsOptions,
    mut command: Command,
    out: &mut impl Write,
) -> io::Result<()> {
    // `generate` panics if it cannot write, and a pipe may be closed. So it writes to memory.
    let mut script = Vec::new();
    generate(options.shell, &mut command, "tidegate", &mut script);
    out.write_all(&script)
}
