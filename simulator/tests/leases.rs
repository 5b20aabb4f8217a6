//! Leases: every history keeps the promises, and one busy key on eight nodes gets what it may, with few calls.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly, and runs with overflow checks"
)]

use tidegate_core::{Algorithm, LeaseTerms, Limit, Refill, Span};
use tidegate_simulator::{Decider, Load, LoadResult, Scenario, check, play_load, run};

/// Seeds that `make test` runs; `make simulate-cluster LEASES=1` runs more.
const SEEDS: u64 = 60;

#[test]
fn leases_keep_the_promises_in_every_history() {
    for seed in 0..SEEDS {
        let found = check(&Scenario::leased(seed));
        assert!(found.is_empty(), "make simulate-cluster LEASES=1 SEED={seed}: {found:?}");
    }
}

#[test]
fn many_requests_are_spent_from_leases() {
    let spent = (0..20).map(|seed| {
        let history = run(&Scenario::leased(seed));
        history.answered.iter().filter(|answer| answer.by == Decider::Lease).count()
    });
    let spent: usize = spent.sum();
    assert!(spent > 2_000, "{spent}");
}

/// 20,000 a second, with this burst.
fn bucket(burst: u64) -> Limit {
    let refill = Refill::Continuous;
    let algorithm = Algorithm::TokenBucket { burst: Some(burst), refill };
    Limit::new(20_000, Span::from_secs(1), algorithm).unwrap()
}

/// Eight nodes with the same demand, together this many per cent of 20,000 a second.
fn even(limit: Limit, percent: u64) -> LoadResult {
    let requests = vec![20_000 * percent / 100 / 8; 8];
    play_load(&Load { limit, terms: Some(LeaseTerms::default()), requests, millis: 3_000, seed: 1 })
}

fn passed(result: &LoadResult) -> u64 {
    result.passed.iter().sum()
}

#[test]
fn below_the_limit_everything_passes_with_one_call_for_hundreds_of_requests() {
    for percent in [60, 90] {
        let result = even(bucket(20_000), percent);
        assert_eq!(passed(&result), result.asked.iter().sum::<u64>(), "{percent} %");
        assert!(result.calls * 200 <= passed(&result), "{percent} %: {result:?}");
    }
}

#[test]
fn above_the_limit_nearly_as_much_passes_as_an_exact_limiter_allows() {
    for (percent, least) in [(150, 950), (500, 990)] {
        let result = even(bucket(20_000), percent);
        assert!(passed(&result) * 1_000 >= result.exact * least, "{percent} %: {result:?}");
        assert!(result.calls * 50 <= passed(&result), "{percent} %: {result:?}");
    }
}

/// With a short burst a slice must be spent soon, or it is lost.
#[test]
fn short_bursts_lose_no_more_than_long_ones() {
    for burst in [1, 40, 130, 400, 2_000] {
        for (percent, least) in [(90, 999), (150, 950)] {
            let result = even(bucket(burst), percent);
            let enough = passed(&result) * 1_000 >= result.exact * least;
            assert!(enough, "burst {burst}, {percent} %: {result:?}");
        }
    }
}

/// Seven nodes ask for four times as much as the limit allows. The eighth needs little, and gets it.
#[test]
fn a_quiet_node_among_busy_ones_is_not_starved() {
    // A node that asks for 20 a second is not hot by itself: it is given a part because it was refused.
    for quiet in [20, 50, 1_000] {
        let mut requests = vec![12_500; 7];
        requests.push(quiet);
        let (limit, terms) = (bucket(20_000), Some(LeaseTerms::default()));
        let result = play_load(&Load { limit, terms, requests, millis: 3_000, seed: 1 });
        let (asked, passed) = (result.asked[7], result.passed[7]);
        assert!(passed * 10 >= asked * 8, "{quiet} a second: {passed} of {asked}");
    }
}

/// Whatever is held when a window ends is lost, so little may be held then.
#[test]
fn windows_lose_nothing_when_they_end() {
    let interval = Algorithm::TokenBucket { burst: None, refill: Refill::Interval };
    for algorithm in [Algorithm::FIXED_WINDOW, Algorithm::SLIDING_WEIGHTED, interval] {
        let limit = Limit::new(20_000, Span::from_secs(1), algorithm).unwrap();
        let result = even(limit, 90);
        assert_eq!(passed(&result), result.exact, "{algorithm:?}: {result:?}");
        assert!(result.calls * 20 <= passed(&result), "{algorithm:?}: {result:?}");
    }
}
