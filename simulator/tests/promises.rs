//! What is promised holds in every history; and every history can be played again.

use tidegate_simulator::{Scenario, check, run};

/// Histories that `make test` plays; `make simulate-cluster` plays more.
const SEEDS: u64 = 200;

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

/// Seeds that break a promise, and what about it. They are here to be mended.
const HOLES: [(u64, &str); 6] = [
    // What a node counted by itself is forgotten when the store answers anybody, even by a remembered refusal.
    (15, "ceiling"),
    // A request that nobody waits for is sent and charged all the same.
    (581, "charges"),
    // The store does not learn what was granted without it.
    (20, "charges"),
    // A state whose shape the registry has lost is misread by a node with another version of the policy.
    (121, "replay"),
    // Buckets are not counted by the store while their shapes cannot be registered.
    (276, "healing"),
    // Nobody is told that nodes or shapes cannot be registered.
    (13, "honesty"),
];

#[test]
fn known_holes_are_found() {
    for (seed, kind) in HOLES {
        let found = check(&Scenario::of(seed));
        let told = found.iter().any(|found| found.to_string().starts_with(kind));
        assert!(told, "seed {seed}: {found:?}");
    }
}
