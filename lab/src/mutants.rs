//! Mutation tests: small bugs (mutants) are put into the code one by one, and the tests must notice each. A
//! test suite that does not notice one has a gap.
//!
//! ```text
//!   lab mutants            lab/mutants/core.txt     the core        laws, unit tests, timelines
//!   lab mutants --cluster  lab/mutants/cluster.txt  store, limiter  2,000 simulated deployments
//!   lab mutants --leases   lab/mutants/leases.txt   core, store     2,000 deployments with leases, directed tests
//! ```
//!
//! The crates are copied to a folder under `target`, so that no mutant can stay in the real source. For each
//! mutant one text is replaced in the copy, and the tests run until one of them fails. A mutant that passes
//! all tests, that no longer applies, or that does not compile is a failure.

mod cluster;
mod copy;
mod core;
mod leases;

use crate::{root, say};
use clap::Args;
use copy::WorkspaceCopy;
use std::{fs, io};

/// The command-line options of `lab mutants`.
#[derive(Args)]
pub(crate) struct MutantOptions {
    /// Change the store and the limiter instead of the core; the simulator must find the mutants
    #[arg(long)]
    cluster: bool,
    /// Change leases; the simulator or a directed test must find the mutants
    #[arg(long, conflicts_with = "cluster")]
    leases: bool,
    /// Run only the mutants whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
}

/// One replacement of a text in a file.
#[derive(Debug, Default, Clone)]
struct Mutant {
    name: String,
    file: String,
    from: String,
    to: String,
}

/// A list of mutants, the crates that they change, and the tests that must catch them.
#[derive(Clone, Copy)]
enum MutantSet {
    Core,
    Cluster,
    Leases,
}

impl MutantSet {
    /// The path of the list.
    const fn list(self) -> &'static str {
        match self {
            Self::Core => "lab/mutants/core.txt",
            Self::Cluster => "lab/mutants/cluster.txt",
            Self::Leases => "lab/mutants/leases.txt",
        }
    }

    /// Copies the crates.
    fn copy(self) -> io::Result<WorkspaceCopy> {
        match self {
            Self::Core => WorkspaceCopy::new("target/mutants", &core::CRATES),
            Self::Cluster | Self::Leases => {
                WorkspaceCopy::new("target/mutants-cluster", &cluster::CRATES)
            }
        }
    }

    /// The first test that fails on the copy, if any. A compile error is an `Err`.
    fn first_failure(self, copy: &WorkspaceCopy) -> Result<Option<String>, String> {
        match self {
            Self::Core => core::first_failure(copy),
            Self::Cluster => cluster::first_failure(copy, &[]),
            Self::Leases => leases::first_failure(copy),
        }
    }

    /// Whether the tests catch a mutant, and by which test or why not.
    fn test(self, copy: &WorkspaceCopy, mutant: &Mutant) -> (bool, String) {
        match copy.with_mutant(mutant, || self.first_failure(copy)) {
            Ok(Some(failed_test)) => (true, failed_test),
            Ok(None) => (false, "NOT CAUGHT".to_owned()),
            Err(why) => (false, format!("NOT APPLIED: {why}")),
        }
    }
}

/// Tests every mutant; fails if one was not caught.
pub(crate) fn run(options: &MutantOptions) -> Result<(), String> {
    let set = match (options.cluster, options.leases) {
        (true, _) => MutantSet::Cluster,
        (_, true) => MutantSet::Leases,
        (false, false) => MutantSet::Core,
    };
    let list = fs::read_to_string(root().join(set.list())).map_err(context(set.list()))?;
    let mut mutants = parse(set.list(), &list)?;
    mutants.retain(|mutant| mutant.name.contains(&options.only));
    let copy = set.copy().map_err(context("target"))?;
    let count = mutants.len();
    say(&format!("mutants: {count} of {}; first the tests run on the unchanged copy", set.list()));
    if let Some(failure) = set.first_failure(&copy)? {
        return Err(format!("the tests fail on the unchanged copy:\n{failure}"));
    }
    let mut alive = 0usize;
    for (number, mutant) in (1usize..).zip(&mutants) {
        let (is_caught, verdict) = set.test(&copy, mutant);
        alive = alive.saturating_add(usize::from(!is_caught));
        say(&format!("{number:>3} of {count}: {:<92} {verdict}", mutant.name));
    }
    say(&format!("mutants: {} of {count} caught", count.saturating_sub(alive)));
    if alive == 0 { Ok(()) } else { Err(format!("{alive} mutants were not caught")) }
}

/// Parses a list; `path` is for error messages.
fn parse(path: &str, list: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    for (number, line) in (1usize..).zip(list.lines()) {
        let Some((word, text)) = line.split_once(' ').filter(|(word, _)| *word != "#") else {
            continue;
        };
        let text = text.trim().to_owned();
        if word == "mutant" {
            mutants.push(Mutant { name: text, ..Mutant::default() });
            continue;
        }
        let field = mutants.last_mut().and_then(|mutant| match word {
            "file" => Some(&mut mutant.file),
            "from" => Some(&mut mutant.from),
            "to" => Some(&mut mutant.to),
            _ => None,
        });
        let expected = || format!("{path}:{number}: expected mutant, file, from or to");
        *field.ok_or_else(expected)? = text;
    }
    Ok(mutants)
}

fn context(what: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("{what}: {error}")
}
