//! Mutants of what nodes do during store outages. The simulator must find each within 2,000 seeds.

use super::copy::{WorkspaceCopy, bounded, output};

pub(super) const CRATES: [&str; 6] =
    ["crates/core", "crates/limiter", "crates/policy", "crates/store", "simulator", "timelines"];

/// The number of simulated deployments, from the first seed on.
const SEEDS: &str = "2000";
/// The time limit for building the simulator; the first build includes all its dependencies.
const MOST_SECONDS_BUILDING: u32 = 1_800;
/// The time limit for simulating. One deployment takes a few milliseconds on a quiet machine; one that does
/// not end is stopped.
const MOST_SECONDS_PLAYING: u32 = 1_800;

/// The exit code of `timeout` for a program that it had to stop.
const TIMED_OUT: i32 = 124;

/// The first seed in which a promise is broken. `options` are further options of the simulator.
pub(super) fn first_failure(
    copy: &WorkspaceCopy,
    options: &[&str],
) -> Result<Option<String>, String> {
    copy.build(MOST_SECONDS_BUILDING, &["build", "-p", "tidegate-simulator"])?;
    let mut play = bounded(MOST_SECONDS_PLAYING, copy.built("simulate-cluster"));
    play.args(["--seeds", SEEDS, "--brief"]).args(options);
    let played = output(play)?;
    let found = String::from_utf8_lossy(&played.stdout).into_owned();
    let seed = found.lines().find(|line| line.starts_with("seed "));
    match (played.status.code(), seed) {
        (Some(0), _) => Ok(None),
        (_, Some(seed)) => Ok(Some(seed.to_owned())),
        (Some(TIMED_OUT), None) => Ok(Some("a simulated deployment does not end".to_owned())),
        (_, None) => Err(format!(
            "the simulator ended without a verdict ({}):\n{}",
            played.status,
            String::from_utf8_lossy(&played.stderr)
        )),
    }
}
