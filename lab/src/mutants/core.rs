//! Mutants of the core. Its property tests (laws), unit tests and timelines must catch them.

use super::copy::{WorkspaceCopy, output};

pub(super) const CRATES: [&str; 2] = ["crates/core", "timelines"];

/// Cases per property: enough to catch every mutant, and a twentieth of what `make test` runs on the real
/// code.
const CASES: &str = "500";
/// The time limit for building or running one test.
const MOST_SECONDS: u32 = 120;

/// The first test that fails.
pub(super) fn first_failure(copy: &WorkspaceCopy) -> Result<Option<String>, String> {
    let tests: [&[&str]; 3] = [
        &["-p", "tidegate-core", "--test", "laws"],
        &["-p", "tidegate-core", "--lib"],
        &["-p", "tidegate-timelines", "--test", "core"],
    ];
    for test in tests {
        copy.build(MOST_SECONDS, &[&["test", "--no-run"], test].concat())?;
        let mut cargo = copy.cargo(MOST_SECONDS, &[&["test"], test].concat());
        cargo.env("LAWS_CASES", CASES);
        let tested = output(cargo)?;
        if !tested.status.success() {
            return Ok(Some(first_failed_test(&String::from_utf8_lossy(&tested.stdout))));
        }
    }
    Ok(None)
}

/// The name of the first law, test or timeline that failed.
fn first_failed_test(output: &str) -> String {
    let complaint = output.lines().find_map(|line| {
        let law = line.strip_prefix("BROKEN: ").map(|law| format!("law: {law}"));
        let test = line.strip_suffix(" stdout ----").map(|test| test.replace("---- ", "test: "));
        law.or(test)
    });
    complaint.unwrap_or_else(|| "caught".to_owned())
}
