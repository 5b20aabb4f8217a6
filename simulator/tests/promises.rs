//! What is promised holds in every history; and every history can be played again.

use tidegate_simulator::{Scenario, check, run};

/// Histories that `make test` plays; `make simulate-cluster` plays more.
const SEEDS: u64 = 150;

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let (once, again) = (run(&Scenario::of(seed)), run(&Scenario::of(seed)));
        assert_eq!(once.hash(), again.hash(), "seed {seed}");
        assert!(once.trace.len() > 10, "seed {seed} has no story");
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
        kept(seed);
    }
}

/// Seeds that broke a promise once, and why.
const MENDED: [(u64, &str); 18] = [
    (15, "what a node counted by itself was forgotten when it remembered a refusal of the store"),
    (23, "the same when the store answered somebody else"),
    (581, "a request that nobody waited for was sent and charged all the same"),
    (20, "the store did not learn what was granted without it"),
    (121, "a state whose shape the registry had lost was misread under another policy"),
    (459, "the same, and more passed than the ceiling"),
    (276, "buckets fell back while their shapes could not be registered"),
    (13, "nobody was told that nodes or shapes could not be registered"),
    (364, "a node that started after the store had lost its data believed that it was alone"),
    (3574, "what was granted came back to a bucket once on every node before it was charged"),
    (3017, "a shape that cannot be looked up counts as full, which is no unexplained charge"),
    (3, "a caller waited until a server had taken back what another server refused"),
    (6, "a caller's own timeout was forgotten when one of two servers was away"),
    (1188, "a bucket counted as full because the server with the registry of shapes was away"),
    (1219, "a node said that shapes cannot be registered when they could be again"),
    (1_000_995, "a server that lost its data between two commands was taken for a broken one"),
    (
        3_053_623,
        "of two takes in one step of a sliding log the second could not be given back after a part of the first",
    ),
    (
        3_000_956,
        "the simulator took an answer for an older one that looked the same, before data was lost",
    ),
];

#[test]
fn what_was_mended_stays_mended() {
    for (seed, story) in MENDED {
        let found = check(&Scenario::of(seed));
        assert!(found.is_empty(), "seed {seed}, {story}: {}", found[0]);
    }
}

fn kept(seed: u64) {
    let found = check(&Scenario::of(seed));
    assert!(found.is_empty(), "make simulate-cluster SEED={seed}: {found:?}");
}
