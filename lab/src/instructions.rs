//! How many instructions a decision takes, counted by valgrind's callgrind.
//!
//! Times on a shared machine vary by tens of percent, and their ratios differ between kinds of processors. A count hardly does: the
//! same program needs nearly the same instructions everywhere. So a row that grew is found without a quiet machine.
//!
//! ```text
//!   run A      start of the process + warm-up +  1,000 decisions   =  41,200,000 instructions
//!   run B      start of the process + warm-up + 11,000 decisions   =  44,300,000
//!   B − A                                       10,000 decisions   =   3,100,000, so one takes 310
//! ```
//!
//! The rows are in BENCHMARKS.md. Without `--write`, a row that is more than 5 % above the page is an error. Optimisers differ, so this holds
//! for the compiler that the page names.

mod callgrind;
mod loops;
mod page;
mod servers;

use crate::rig::install;
use crate::{root, say};
use callgrind::Profile;
use clap::Args;
use loops::LoopCase;
use servers::ServerCase;
use std::fs;
use std::path::PathBuf;

/// The command-line options of `lab instructions`.
#[derive(Args)]
pub(crate) struct InstructionOptions {
    /// Count only the cases whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// Write the section of BENCHMARKS.md; without it, a case that grew by more than 5 % is an error
    #[arg(long, conflicts_with = "only")]
    write: bool,
    /// The tidegate binary; by default the one in the directory of this program
    #[arg(long)]
    tidegate: Option<PathBuf>,
    /// Only run the loop of this case, with this many decisions: what valgrind counts
    #[arg(long, num_args = 2, value_names = ["CASE", "TIMES"], hide = true)]
    counted: Option<Vec<String>>,
}

/// What one decision of a case takes.
pub(crate) struct Row {
    name: &'static str,
    /// Instructions of one decision, by function.
    profile: Profile,
}

pub(crate) fn run(options: &InstructionOptions) -> Result<(), String> {
    if let Some([name, times]) = options.counted.as_deref() {
        let times = times.parse().map_err(|_| "TIMES must be a whole number")?;
        return loops::run(name, times);
    }
    install::provide("valgrind", "valgrind")?;
    let tidegate = install::tidegate(options.tidegate.as_deref())?;
    let wanted = |name: &str| name.contains(&options.only);
    let mut rows = vec![];
    for case in LoopCase::all().filter(|case| wanted(case.name())) {
        rows.push(shown(Row { name: case.name(), profile: case.count()? }));
    }
    for case in ServerCase::ALL.into_iter().filter(|case| wanted(case.name())) {
        rows.push(shown(Row { name: case.name(), profile: case.count(&tidegate)? }));
    }
    let path = root().join("BENCHMARKS.md");
    let page = fs::read_to_string(&path).map_err(|error| format!("BENCHMARKS.md: {error}"))?;
    if options.write {
        let page = page::with_rows(&page, &rows);
        return fs::write(&path, page).map_err(|error| format!("BENCHMARKS.md: {error}"));
    }
    let grown = page::grown(&page, &rows);
    if grown.is_empty() { Ok(()) } else { Err(grown.join("\n")) }
}

fn shown(row: Row) -> Row {
    say(&format!("{:28} {:>8}   {}", row.name, row.profile.total(), page::shares(&row.profile)));
    row
}
