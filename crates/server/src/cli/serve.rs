//! `tidegate serve`: reads the settings from the file, the environment and the command line, and runs the server.

use crate::settings::{self, Flags, Settings};
use crate::wiring;
use clap::Args;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_policy::printable;
use tokio::runtime::{Builder, LocalOptions};

#[derive(Args)]
pub(crate) struct ServeOptions {
    /// The file of settings. Without it, tidegate.yaml is read if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prints all settings and the source of each, and does not start the server.
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    flags: Flags,
}

pub(crate) fn run(options: &ServeOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    let variables = match variables() {
        Ok(variables) => variables,
        Err(error) => return refused(&error),
    };
    let settings =
        match Settings::load(options.config.as_deref(), variables.into_iter(), &options.flags) {
            Ok(settings) => settings,
            Err(error) => return refused(&error),
        };
    if options.print_config {
        write!(out, "{}", settings.print())?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    match runtime.block_on(wiring::start(settings, out)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => refused(&*error),
    }
}

/// The environment variables with the prefix of settings. A value that is not valid UTF-8 is an error, because ignoring it
/// would ignore a setting.
fn variables() -> io::Result<Vec<(String, String)>> {
    let ours = std::env::vars_os()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(settings::PREFIX.as_bytes()));
    let text = |(name, value): (OsString, OsString)| {
        let shown = name.to_string_lossy().into_owned();
        let wrong = || {
            let text = format!("{}: its value is not valid UTF-8", printable(&shown));
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else {
            return Err(wrong());
        };
        Ok((name, value))
    };
    ours.map(text).collect()
}

/// Prints why the server could not start or had to stop.
fn refused(error: &dyn Error) -> io::Result<ExitCode> {
    for line in error.to_string().lines() {
        writeln!(io::stderr(), "tidegate: {line}")?;
    }
    Ok(ExitCode::from(2))
}
