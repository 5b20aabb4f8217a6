//! The binary `tidegate`: parse, dispatch, exit code.

#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "tests run with overflow checks and may fail loudly"
    )
)]

mod audit;
mod backend;
mod bounds;
mod call;
mod cli;
mod control;
mod files;
mod front;
mod health;
mod log;
mod metrics;
mod net;
mod rule_files;
mod rulebook;
mod settings;
mod shared_store;
mod supervise;
mod tls;
mod watch;

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
    /// Starts the server.
    Serve(cli::serve::Options),
    /// Asks a running server, or a policy file, whether a request may pass.
    ///
    /// The exit code is 0 when it may, 1 when not, 2 when nobody could say.
    Check(cli::check::Options),
    /// Sends one trace of requests through all six algorithms and draws what each lets pass.
    Simulate(cli::simulate::Options),
    /// Checks and explains policy files.
    Policy(cli::policy::Options),
}

fn main() -> ExitCode {
    let out = &mut io::stdout().lock();
    let outcome = match Tidegate::parse().command {
        Command::Serve(options) => cli::serve::run(&options, out),
        Command::Check(options) => cli::check::run(&options, out),
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
