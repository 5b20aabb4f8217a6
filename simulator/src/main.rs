//! `make simulate-cluster`: plays many seeds, and tells the story of one that breaks a promise.

use clap::Parser;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use tidegate_simulator::{Scenario, check, run, shrunk};

/// Simulates deployments that break, one for each seed.
#[derive(Parser)]
#[command(name = "simulate-cluster")]
struct Cli {
    /// How many seeds to play.
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Plays this seed alone and tells its story.
    #[arg(long)]
    seed: Option<u64>,
    /// Ends at a seed that breaks a promise without telling its story.
    #[arg(long)]
    brief: bool,
    /// Goes on after a seed that breaks a promise, and counts them.
    #[arg(long)]
    count: bool,
}

/// Seeds between two lines of progress, where nobody watches.
const PER_LINE: u64 = 1_000;
/// Lines of a story.
const MOST_LINES: usize = 120;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(seed) = cli.seed {
        return story(seed);
    }
    let mut broken: u64 = 0;
    let last = cli.first.saturating_add(cli.seeds);
    for seed in cli.first..last {
        let scenario = Scenario::of(seed);
        let found = check(&scenario);
        progress(seed.saturating_sub(cli.first).saturating_add(1), cli.seeds, broken);
        if !found.is_empty() {
            broken = broken.saturating_add(1);
            let mut told: Vec<String> = found.iter().map(ToString::to_string).collect();
            told.dedup_by_key(|told| told.split(':').next().map(str::to_owned));
            if cli.brief {
                say(&format!("\nseed {seed}: {}", told.first().map_or("", |told| told)));
                return ExitCode::FAILURE;
            }
            let faults = scenario.faults.iter().map(|fault| fault.kind).collect::<Vec<_>>();
            say(&format!("\nseed {seed}: {}; faults {faults:?}", told.join("; ")));
            if !cli.count {
                return story(seed);
            }
        }
    }
    say(&format!("\n{} histories, {broken} of them break a promise", cli.seeds));
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays one seed, and if it breaks a promise, tells the shortest story that does.
fn story(seed: u64) -> ExitCode {
    let scenario = Scenario::of(seed);
    let history = run(&scenario);
    say(&format!("seed {seed}, trace hash {:016x}", history.hash()));
    if check(&scenario).is_empty() {
        say("all promises are kept");
        return ExitCode::SUCCESS;
    }
    let small = shrunk(&scenario);
    let history = run(&small);
    say(&format!(
        "{} nodes, {:?}\n{} faults and {} requests are left of {} and {}:",
        small.clocks.len(),
        small.rules,
        small.faults.len(),
        small.arrivals.len(),
        scenario.faults.len(),
        scenario.arrivals.len()
    ));
    for line in history.trace.iter().filter(|line| !line.contains("1000000")).take(MOST_LINES) {
        say(line);
    }
    for violation in check(&small) {
        say(&format!("BROKEN {violation}"));
    }
    say(&format!("replay: make simulate-cluster SEED={seed}"));
    ExitCode::FAILURE
}

fn progress(done: u64, all: u64, broken: u64) {
    let terminal = std::io::stdout().is_terminal();
    if terminal || done.is_multiple_of(PER_LINE) {
        let end = if terminal { "\r" } else { "\n" };
        let mut out = std::io::stdout();
        let _ = write!(out, "{done} of {all} histories, {broken} broken{end}");
        let _ = out.flush();
    }
}

#[expect(clippy::print_stdout, reason = "a program for a terminal")]
fn say(line: &str) {
    println!("{line}");
}
