//! `tidegate serve`: reads the settings from the file, the environment and the command line, and runs the server or checks whether it
//! could run.

use super::style;
use crate::settings::{self, Flags, Settings};
use crate::wiring::{self, CheckFor, Findings};
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
    /// Checks everything that a start could fail at, lists all problems, and does not start the server.
    ///
    /// It reads the settings, the policy (with the warnings of `tidegate policy lint`), the routes, rule files, users, tokens,
    /// keys, certificates and the secret. It asks the store whether it answers and whether its counters belong to this secret,
    /// reads a data directory of counters, and binds each address for a moment. Nothing is written: a server that runs with
    /// the same data directory or store is not disturbed. The exit code is 0 if there is no problem, and 2 if there is one.
    ///
    /// `--check=restart` is for the settings of a server that is running: its data directory may be in use, and so may its
    /// addresses.
    #[arg(long, value_name = "FOR", num_args = 0..=1, require_equals = true, default_missing_value = "start", conflicts_with = "print_config")]
    check: Option<CheckFor>,
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
    if let Some(purpose) = options.check {
        let findings = runtime.block_on(wiring::check(&settings, purpose));
        return report(&findings, out);
    }
    match runtime.block_on(wiring::start(settings, out)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => refused(&*error),
    }
}

/// Prints what a check found.
fn report(findings: &Findings, out: &mut impl Write) -> io::Result<ExitCode> {
    for note in &findings.notes {
        writeln!(out, "{}: {}", style::notable("note"), printable(note))?;
    }
    for line in findings.problems.iter().flat_map(|problem| problem.lines()) {
        writeln!(io::stderr(), "tidegate: {line}")?;
    }
    match findings.problems.len() {
        0 => {
            writeln!(out, "{}: the server can start", style::good("no problems found"))?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Ok(ExitCode::from(2)),
    }
}

/// The environment variables with the prefix of settings. A value that is not valid UTF-8 is an error, because ignoring it
/// would ignore a setting.
pub(super) fn variables() -> io::Result<Vec<(String, String)>> {
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
