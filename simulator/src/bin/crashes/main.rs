//! `make simulate-crashes`: histories of the durable store with crashes of the process and of the power, one for each seed.

use clap::Parser;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use tidegate_store::testing::{CrashTally, play_crashes};

/// Plays histories of the durable store, with crashes and a disk that fails, until there were this many crashes.
#[derive(Parser)]
#[command(name = "simulate-crashes")]
struct Cli {
    /// How many crashes to play.
    #[arg(long, default_value_t = 10_000)]
    crashes: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Play only this seed.
    #[arg(long)]
    seed: Option<u64>,
}

/// Seeds between two lines of progress, if the output is not a terminal.
const PER_LINE: u64 = 500;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (first, most) = cli.seed.map_or((cli.first, u64::MAX), |seed| (seed, 1));
    let mut all = CrashTally::default();
    for (seed, played) in (first..).zip(1..=most) {
        match play_crashes(seed) {
            Ok(tally) => add(&mut all, &tally),
            Err(broken) => {
                print(&format!("\nBROKEN {broken}\nreplay: make simulate-crashes SEED={seed}"));
                return ExitCode::FAILURE;
            }
        }
        progress(played, &all);
        if all.crashes >= cli.crashes {
            break;
        }
    }
    print(&format!(
        "\n{} crashes, {} errors of the disk, {} snapshots; {} states compared, all of them as promised",
        all.crashes, all.disk_errors, all.snapshots, all.states
    ));
    ExitCode::SUCCESS
}

fn add(all: &mut CrashTally, tally: &CrashTally) {
    all.crashes = all.crashes.saturating_add(tally.crashes);
    all.disk_errors = all.disk_errors.saturating_add(tally.disk_errors);
    all.states = all.states.saturating_add(tally.states);
    all.snapshots = all.snapshots.saturating_add(tally.snapshots);
}

fn progress(played: u64, all: &CrashTally) {
    let terminal = std::io::stdout().is_terminal();
    if terminal || played.is_multiple_of(PER_LINE) {
        let end = if terminal { "\r" } else { "\n" };
        let mut out = std::io::stdout();
        let _ = write!(out, "{played} histories, {} crashes{end}", all.crashes);
        let _ = out.flush();
    }
}

#[expect(clippy::print_stdout, reason = "a program for a terminal")]
fn print(line: &str) {
    println!("{line}");
}
