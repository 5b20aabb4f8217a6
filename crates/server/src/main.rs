//! The binary `tidegate`: parse, dispatch, exit code.

mod cli;

use clap::{Parser, Subcommand};
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
    /// Sends one trace of requests through all six algorithms and draws what each lets pass.
    Simulate(cli::simulate::Options),
    /// Checks and explains policy files.
    Policy(cli::policy::Options),
}

fn main() -> ExitCode {
    let out = &mut io::stdout().lock();
    let outcome = match Tidegate::parse().command {
        Command::Simulate(options) => cli::simulate::run(&options, out).map(|()| ExitCode::SUCCESS),
        Command::Policy(options) => cli::policy::run(&options, out),
    };
    match outcome {
        Ok(code) => code,
        // Whoever reads us has seen enough: `tidegate simulate | head -3`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do when even this cannot be written.
            let _ = writeln!(io::stderr(), "tidegate: {error}");
            ExitCode::from(2)
        }
    }
}
