//! `tidegate man`: writes the man pages, one for each sub-command, from the same descriptions as `--help`.

use clap::{Args, Command};
use clap_mangen::Man;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct ManOptions {
    /// The directory for the pages. It is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Writes the pages of `command` and its sub-commands.
pub(crate) fn run(options: &ManOptions, command: Command, out: &mut impl Write) -> io::Result<()> {
    let shown = options.dir.display();
    let named = |error: io::Error| super::explained(&shown, &error);
    fs::create_dir_all(&options.dir).map_err(named)?;
    // `help` would have a page for each command again.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, &options.dir).map_err(named)?;
    writeln!(out, "the man pages are in {shown}; read one with `man {shown}/tidegate.1`")
}

/// Writes the page of a command and those below it. They have no date, so that the same source always gives the same pages.
fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    command.get_subcommands().try_for_each(|command| write_pages(command, dir))?;
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let page = Man::new(command.clone()).title(name).manual("tidegate");
    page.source(concat!("tidegate ", env!("CARGO_PKG_VERSION"))).generate_to(dir).map(drop)
}
