//! The command line: parses it, runs the subcommand, and returns the exit code. Each subcommand has a file of its own.

mod admin;
mod check;
mod client;
mod completions;
mod data;
mod duration;
#[cfg(test)]
mod help_page;
mod man;
mod policy;
mod replay;
mod secret;
mod serve;
mod simulate;
mod style;
mod table;
mod top;

use anstream::AutoStream;
use clap::{CommandFactory, Parser, Subcommand};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// A distributed API rate limiter.
#[derive(Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
struct Tidegate {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts the server.
    Serve(serve::ServeOptions),
    /// Asks a running server, or a policy file, whether a request may pass.
    ///
    /// The exit code is 0 if the request may pass, 1 if it may not, and 2 on error.
    Check(check::CheckOptions),
    /// Looks at a running server and changes it, through the admin API.
    ///
    /// The exit code is 0, or 1 if a change was declined, or 2 on error.
    Admin(Box<admin::AdminOptions>),
    /// Sends one trace of requests through all six algorithms and draws which requests each lets pass.
    Simulate(simulate::SimulateOptions),
    /// Checks, explains and tests policy files.
    Policy(policy::PolicyOptions),
    /// Runs a policy over an access log, and shows what it would have refused.
    ///
    /// The exit code is 0, or 1 if more is refused than `--fail-over` allows, or 2 on error.
    Replay(Box<replay::ReplayOptions>),
    /// Shows who uses the limits and who is refused, live in the terminal.
    ///
    /// It asks the admin API of a running server, and shows the keys of the last ten to twenty minutes with rules, nodes and problems.
    /// Keys: q quits, tab changes what is counted, r shows one rule after the other.
    Top(top::TopOptions),
    /// Looks into the data directory of a server that is not running.
    Data(data::DataOptions),
    /// Shows and sets the secret that all nodes of a deployment share.
    Secret(secret::SecretOptions),
    /// Prints the script with which a shell completes commands of tidegate.
    Completions(completions::CompletionsOptions),
    /// Writes the man pages into a directory, one for each sub-command.
    Man(man::ManOptions),
}

/// Parses the command line and runs its subcommand.
pub fn run() -> ExitCode {
    let out = &mut AutoStream::auto(io::stdout().lock());
    let outcome = match Tidegate::parse().command {
        Command::Serve(options) => serve::run(&options, out),
        Command::Check(options) => check::run(&options, out),
        Command::Admin(options) => admin::run(&options, out),
        Command::Simulate(options) => simulate::run(&options, out).map(|()| ExitCode::SUCCESS),
        Command::Policy(options) => policy::run(&options, out),
        Command::Replay(options) => replay::run(&options, out),
        Command::Top(options) => top::run(&options, out).map(|()| ExitCode::SUCCESS),
        Command::Data(options) => data::run(&options, out),
        Command::Secret(options) => secret::run(&options, out),
        Command::Completions(options) => {
            completions::run(&options, Tidegate::command(), out).map(|()| ExitCode::SUCCESS)
        }
        Command::Man(options) => {
            man::run(&options, Tidegate::command(), out).map(|()| ExitCode::SUCCESS)
        }
    };
    match outcome {
        Ok(code) => code,
        // The program that reads the output has closed the pipe, as in `tidegate simulate | head -3`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // If this cannot be written either, the exit code still says that the command failed.
            let _ = writeln!(io::stderr(), "tidegate: {error}");
            ExitCode::from(2)
        }
    }
}

/// An error about a file or a folder, with its name, and what to do if the system only says that it failed.
fn explained(name: &impl Display, error: &io::Error) -> io::Error {
    let kind = error.kind();
    let advice = if error.raw_os_error().is_none() {
        ""
    } else if kind == ErrorKind::NotFound {
        "; check the path"
    } else if kind == ErrorKind::PermissionDenied {
        "; check its owner and mode, or run this as its owner"
    } else {
        ""
    };
    io::Error::new(kind, format!("{name}: {error}{advice}"))
}
