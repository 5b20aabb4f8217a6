//! Every history keeps the promises, and every history can be replayed.

use tidegate_simulator::{Scenario, check, run};

/// Seeds that `make test` runs; `make simulate-cluster` runs more.
const SEEDS: u64 = 150;

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let (once, again) = (run(&Scenario::of(seed)), run(&Scenario::of(seed)));
        assert_eq!(once.hash(), again.hash(), "seed {seed}");
        assert!(once.trace.len() > 10, "seed {seed}: the trace is too short");
    }
    assert_ne!(run(&Scenario::of(1)).hash(), run(&Scenario::of(2)).hash());
}

#[test]
fn a_healthy_store_is_exact() {
    for seed in 0..SEEDS {
        let found = check(&Scenario::healthy(seed));
        assert!(found.is_empty(), "seed {seed}: {}", found[0]);
    }
}

#[test]
fn promises_are_kept_in_every_history() {
    for seed in 0..SEEDS {
        let found = check(&Scenario::of(seed));
        assert!(found.is_empty(), "make simulate-cluster SEED={seed}: {found:?}");
    }
}

/// Seeds that once broke a promise, and the bug.
const FIXED: [(u64, &str); 24] = [
    (15, "the fallback forgot its counts when the denial cache refused a request"),
    (23, "the fallback forgot its counts when the store answered another request"),
    (581, "a request whose caller had given up was sent and charged all the same"),
    (20, "the store was never charged for what fallbacks had granted"),
    (121, "a state whose shape the registry had lost was misread under another policy"),
    (459, "a state whose shape was lost was misread, and more passed than the ceiling"),
    (276, "buckets fell back while their shapes could not be registered"),
    (13, "a node did not complain that nodes or shapes could not be registered"),
    (364, "a node that started after the store had lost its data assumed that it was alone"),
    (3574, "a bucket refilled once on every node before what was granted was charged"),
    (
        3017,
        "a state that counts as full, because its shape cannot be looked up, was reported as overcharged",
    ),
    (3, "a caller waited until one server had refunded what another server refused"),
    (6, "the timeout of a request was ignored when one of two servers was down"),
    (1188, "a bucket counted as full because the server with the registry of shapes was down"),
    (1219, "a node complained that shapes cannot be registered when they could be again"),
    (1_000_995, "a server that lost its data between two commands was taken for a broken one"),
    (
        3_053_623,
        "a take in a sliding log could not be given back after a part of another take in the same step",
    ),
    (3_010_919, "the simulator did not allow for states that another policy refills sooner"),
    (3_000_956, "the simulator took an answer for an older one that looked the same"),
    (3_054_791, "the tag of a limit meant another limit after the registry of shapes was lost"),
    (
        3_056_376,
        "the simulator did not allow for takes that are given back after the store lost them",
    ),
    (3_009_085, "what was given back was given back again after the store had lost its data"),
    (4_053_011, "the simulator did not allow for a process that could not know the others"),
    (4_022_942, "what was given back and lost opened the breaker when all was well again"),
];

#[test]
fn fixed_bugs_stay_fixed() {
    for (seed, story) in FIXED {
        let found = check(&Scenario::of(seed));
        assert!(found.is_empty(), "seed {seed}, {story}: {}", found[0]);
    }
}
