//! Laws that every algorithm keeps. Each is tested on thousands of random histories, some against a naive model.
//!
//! `cargo test -p tidegate-core --test laws` prints a table of laws and cases. Environment variables: `LAWS_CASES` is the
//! number of cases per law and algorithm, `LAWS_SEED` the seed, `LAWS_ONLY` a part of the name of the laws to run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "tests run with overflow checks and fail loudly; the model is written to be read"
)]

mod history;
mod law;
mod leases;
mod model;

use history::Family;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The default number of cases per law and algorithm.
const CASES: u32 = 10_000;

fn main() -> ExitCode {
    let cases = setting("LAWS_CASES").and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let seed = setting("LAWS_SEED").and_then(|seed| seed.parse().ok()).unwrap_or(20_261_115);
    let only = setting("LAWS_ONLY").unwrap_or_default();
    let jobs: Vec<(&law::Law, Family)> = law::LAWS
        .iter()
        .filter(|law| law.name.contains(&only))
        .flat_map(|law| Family::ALL.into_iter().map(move |family| (law, family)))
        .collect();
    let failed = run_all(&jobs, cases, seed);
    for law in law::LAWS.iter().filter(|law| law.name.contains(&only)) {
        println!(
            "law: {:<48} {cases} cases for each of {} algorithms",
            law.name,
            Family::ALL.len()
        );
    }
    println!("{} cases in all, seed {seed}", jobs.len() * usize::try_from(cases).unwrap());
    println!("{} passed, {failed} failed", jobs.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs every law for every family on all cores, and returns how many failed.
fn run_all(jobs: &[(&law::Law, Family)], cases: u32, seed: u64) -> usize {
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                // Relaxed: the counters order nothing else, and the scope joins its threads before they are read.
                while let Some((law, family)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(story) = run(law, *family, cases, seed) {
                        failed.fetch_add(1, Ordering::Relaxed);
                        println!("BROKEN: {} of {family:?}\n{story}\n", law.name);
                    }
                }
            });
        }
    });
    failed.into_inner()
}

fn run(law: &law::Law, family: Family, cases: u32, seed: u64) -> Result<(), String> {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&history::cases(family), |case| (law.holds)(&case));
    result.map_err(|error| error.to_string())
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
