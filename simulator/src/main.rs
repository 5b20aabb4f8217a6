//! `make simulate-cluster`: runs many seeds, and prints the trace of one that breaks a promise.

use clap::Parser;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use tidegate_simulator::{Scenario, check, run, shrunk};

/// Simulates deployments with faults, one for each seed.
#[derive(Parser)]
#[command(name = "simulate-cluster")]
struct Cli {
    /// How many seeds to run.
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run only this seed and print its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: print the whole trace instead of its first 120 lines.
    #[arg(long, requires = "seed")]
    all: bool,
    /// Stop at the first seed that breaks a promise, without a trace.
    #[arg(long)]
    brief: bool,
    /// Lease the limits.
    #[arg(long)]
    leases: bool,
    /// Go on after a seed that breaks a promise, and count them.
    #[arg(long)]
    count: bool,
}

/// Seeds between two lines of progress, if the output is not a terminal.
const PER_LINE: u64 = 1_000;
/// Lines of a trace that are printed unless `--all` is given.
const MAX_LINES: usize = 120;
/// Part of the trace lines of canary calls, which are left out: canaries have a limit of 1,000,000.
const CANARY_LIMIT: &str = "1000000";

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(seed) = cli.seed {
        let lines = if cli.all { usize::MAX } else { MAX_LINES };
        return replay(seed, cli.leases, lines);
    }
    let mut broken: u64 = 0;
    let last = cli.first.saturating_add(cli.seeds);
    for seed in cli.first..last {
        let scenario = scenario(seed, cli.leases);
        let found = check(&scenario);
        progress(seed.saturating_sub(cli.first).saturating_add(1), cli.seeds, broken);
        if !found.is_empty() {
            broken = broken.saturating_add(1);
            let mut texts: Vec<String> = found.iter().map(ToString::to_string).collect();
            texts.dedup_by_key(|text| text.split(':').next().map(str::to_owned));
            if cli.brief {
                print(&format!("\nseed {seed}: {}", texts.first().map_or("", |text| text)));
                return ExitCode::FAILURE;
            }
            let faults = scenario.faults.iter().map(|fault| fault.kind).collect::<Vec<_>>();
            print(&format!("\nseed {seed}: {}; faults {faults:?}", texts.join("; ")));
            if !cli.count {
                return replay(seed, cli.leases, MAX_LINES);
            }
        }
    }
    print(&format!("\n{} histories, {broken} of them break a promise", cli.seeds));
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn scenario(seed: u64, leases: bool) -> Scenario {
    if leases { Scenario::leased(seed) } else { Scenario::of(seed) }
}

/// Runs one seed. If it breaks a promise, prints the trace of the smallest scenario that still breaks it.
fn replay(seed: u64, leases: bool, lines: usize) -> ExitCode {
    let scenario = scenario(seed, leases);
    let history = run(&scenario);
    print(&format!("seed {seed}, trace hash {:016x}", history.hash()));
    if check(&scenario).is_empty() {
        print("all promises are kept");
        return ExitCode::SUCCESS;
    }
    let small = shrunk(&scenario);
    let history = run(&small);
    print(&format!(
        "{} nodes, {:?}\n{} faults and {} requests are left of {} and {}:",
        small.clocks.len(),
        small.rules,
        small.faults.len(),
        small.arrivals.len(),
        scenario.faults.len(),
        scenario.arrivals.len()
    ));
    for line in history.trace.iter().filter(|line| !line.contains(CANARY_LIMIT)).take(lines) {
        print(line);
    }
    for violation in check(&small) {
        print(&format!("BROKEN {violation}"));
    }
    let leases = if leases { " LEASES=1" } else { "" };
    print(&format!("replay: make simulate-cluster SEED={seed}{leases}"));
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
fn print(line: &str) {
    println!("{line}");
}
