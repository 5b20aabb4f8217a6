//! Mutants of leases. The simulator must find each within 2,000 seeds with leases; or else a directed test
//! does: the laws of slices, one busy key on eight nodes, the search over all orders of a few steps, or nodes
//! on a real Redis.

use super::cluster;
use super::copy::{WorkspaceCopy, output};

/// The time limit for building and running a directed test.
const MOST_SECONDS: u32 = 1_800;

/// The first seed in which a promise is broken, or the directed test that fails.
pub(super) fn first_failure(copy: &WorkspaceCopy) -> Result<Option<String>, String> {
    if let Some(seed) = cluster::first_failure(copy, &["--leases"])? {
        return Ok(Some(seed));
    }
    let tests: [&[&str]; 4] = [
        &["-p", "tidegate-core", "--test", "laws", "leases"],
        &["-p", "tidegate-simulator", "--test", "main", "leases::"],
        &["-p", "tidegate-store", "--features", "testing,redis", "--lib", "leases"],
        &[
            "-p",
            "tidegate-store",
            "--features",
            "testing,redis",
            "--test",
            "main",
            "leases::settling",
        ],
    ];
    for test in tests {
        copy.build(MOST_SECONDS, &[&["test", "--no-run"], test].concat())?;
        let tested = output(copy.cargo(MOST_SECONDS, &[&["test"], test].concat()))?;
        if !tested.status.success() {
            let printed = String::from_utf8_lossy(&tested.stdout);
            let failed = printed.lines().find_map(|line| line.strip_suffix(" stdout ----"));
            let name = failed.unwrap_or("caught").trim_start_matches("---- ");
            return Ok(Some(format!("test: {name}")));
        }
    }
    Ok(None)
}
