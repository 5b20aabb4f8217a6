//! The durable store: histories with crashes of the process and of the power, on a disk that fails.

use tidegate_store::testing::{CrashTally, play_crashes};

/// `make simulate-crashes` plays many more.
#[test]
fn no_state_is_older_than_the_promise() {
    let mut all = CrashTally::default();
    for seed in 0..400 {
        let tally = play_crashes(seed).unwrap_or_else(|broken| panic!("{broken}"));
        all.crashes += tally.crashes;
        all.disk_errors += tally.disk_errors;
        all.states += tally.states;
        all.snapshots += tally.snapshots;
    }
    assert!(all.crashes > 2_000 && all.disk_errors > 1_000 && all.snapshots > 500, "{all:?}");
}
