//! Floods of keys that use up their limits, in a store in memory with room for a tenth of them.
//!
//! The store must remember all of these keys until their use ends. It used to remember them in the sketch, which all new keys
//! share. After eight million of them in 16 MiB, a new client got nothing of its limit.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test fails loudly, and says how much it tried"
)]

use crate::support;

use std::collections::HashMap;
use support::concurrency::NOW;
use support::dice::Dice;
use tidegate_core::{Algorithm, Cost, Limit, Plan, Refill, Span, StateId, Take, Timestamp};
use tidegate_store::{Clock, Memory, Plain};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400;
const MIB: usize = 1 << 20;
/// Keys of a flood: eight million for 16 MiB.
const KEYS_PER_MIB: u64 = 500_000;
const FIRST_NEWCOMER: u64 = 1 << 40;

fn store(budget: usize) -> Memory {
    Memory::with_budget(Clock::manual(Timestamp::from_nanos(NOW)), budget)
}

fn bucket(seconds: u64) -> Limit {
    Limit::new(20, Span::from_secs(seconds), Algorithm::TOKEN_BUCKET).unwrap()
}

/// Bits as random as those of a hash (SplitMix64): that decides how full buckets and pages get.
fn spread(key: u64) -> StateId {
    let mixed = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    StateId(u128::from(mixed ^ (mixed >> 31)))
}

fn take(store: &Memory, key: u64, limit: &Limit, cost: u64) -> bool {
    store.take_one_now(&Take::new(spread(key), limit, Cost::new(cost))).decision.passes()
}

/// What a key has left. A peek changes nothing, so one key does not influence the next.
fn left(store: &Memory, key: u64, limit: &Limit) -> u64 {
    let take = Take::new(spread(key), limit, Cost::default());
    store.peek_now(&Plan::new(take, Span::ZERO).unwrap())[0].remaining
}

fn flood(store: &Memory, keys: impl Iterator<Item = u64>, limit: &Limit, cost: u64) {
    keys.for_each(|key| _ = take(store, key, limit, cost));
}

/// How many takes of cost 1 pass for each of 500 new clients, under a limit of 20.
fn newcomers(store: &Memory, limit: &Limit, first: u64) -> Vec<u64> {
    let keys = FIRST_NEWCOMER + first..FIRST_NEWCOMER + first + 500;
    keys.map(|key| (0..25).map(|_| u64::from(take(store, key, limit, 1))).sum()).collect()
}

fn mean(got: &[u64]) -> u64 {
    got.iter().sum::<u64>() / u64::try_from(got.len()).unwrap()
}

fn with_all(got: &[u64]) -> usize {
    got.iter().filter(|got| **got == 20).count()
}

// === what a flood takes from new clients ===

/// Every key of the flood takes all of a daily bucket in one take. Of the new clients of that rule, two of three get all of
/// their 20, and the others nothing. Clients of rules whose buckets fill sooner lose next to nothing. No key of the flood passes
/// again.
#[test]
fn after_a_flood_of_full_costs_most_new_clients_get_all_of_their_limit() {
    let (store, daily) = (store(MIB), bucket(DAY));
    flood(&store, 0..KEYS_PER_MIB, &daily, 20);
    assert!(store.gauges().demotions > KEYS_PER_MIB * 9 / 10, "{:?}", store.gauges());
    assert!((0..KEYS_PER_MIB).step_by(7).all(|key| !take(&store, key, &daily, 1)));
    let got = newcomers(&store, &daily, 0);
    assert!(mean(&got) >= 13, "{} on average", mean(&got));
    assert!(with_all(&got) * 3 >= got.len() * 2, "{} of {}", with_all(&got), got.len());
    for (seconds, first) in [(3_600, 1_000), (60, 2_000), (1, 3_000)] {
        let got = newcomers(&store, &bucket(seconds), first);
        assert!(mean(&got) >= 18, "{} on average, of 20 in {seconds} s", mean(&got));
    }
}

/// After a flood under a limit of windows, whose states end together, new clients get half of their limit on average.
#[test]
fn after_a_flood_of_windows_new_clients_get_half_of_their_limit_on_average() {
    for algorithm in [Algorithm::FIXED_WINDOW, Algorithm::SLIDING_WEIGHTED] {
        let limit = Limit::new(20, Span::from_secs(DAY), algorithm).unwrap();
        let store = store(MIB / 4);
        flood(&store, 0..KEYS_PER_MIB / 4, &limit, 20);
        let got = newcomers(&store, &limit, 0);
        assert!(mean(&got) >= 10, "{}: {} on average", algorithm.name(), mean(&got));
    }
}

/// The sketch remembers uses of up to half a limit, and Bloom filters remember larger ones. So whatever the flood takes, a new
/// client that the filter does not contain gets half of its limit or more. That holds for most of them.
#[test]
fn whatever_a_flood_costs_most_new_clients_get_half_of_their_limit() {
    for (cost, half_get) in [(1, 12), (7, 12), (10, 10), (11, 20), (19, 20)] {
        let (store, daily) = (store(MIB / 4), bucket(DAY));
        flood(&store, 0..KEYS_PER_MIB / 4, &daily, cost);
        let mut got = newcomers(&store, &daily, 0);
        got.sort_unstable();
        let median = got[got.len() / 2];
        assert!(median >= half_get, "cost {cost}: half got {median} or less");
    }
}

// === a demoted key gets no more than its limit ===

/// Costs of 1, 7 and 20 under every algorithm, by more keys than there is room for: no key gets more than its limit.
#[test]
fn demoted_keys_never_get_more_than_their_limit() {
    let interval = Algorithm::TokenBucket { burst: None, refill: Refill::Interval };
    for algorithm in Algorithm::ALL.into_iter().chain([interval]) {
        let limit = Limit::new(20, Span::from_secs(DAY), algorithm).unwrap();
        let (store, mut dice) = (store(16 << 10), Dice::new(5));
        let mut admitted: HashMap<u64, u64> = HashMap::new();
        for _ in 0..60_000 {
            let (key, cost) =
                (dice.roll(6_000), [1, 7, 20][usize::try_from(dice.roll(3)).unwrap()]);
            let sum = admitted.entry(key).or_default();
            *sum += if take(&store, key, &limit, cost) { cost } else { 0 };
            assert!(*sum <= 20, "{}: key {key} got {sum}", algorithm.name());
        }
        assert!(store.gauges().demotions > 10_000, "{}", algorithm.name());
        assert!(store.gauges().bytes <= store.gauges().budget);
    }
}

/// While time goes on, what passes in a full store would also pass in a store with room for all keys that sees only these takes.
#[test]
fn takes_that_pass_would_pass_in_a_store_with_room_for_all() {
    let interval = Algorithm::TokenBucket { burst: None, refill: Refill::Interval };
    for algorithm in Algorithm::ALL.into_iter().chain([interval]) {
        let limit = Limit::new(20, Span::from_secs(100), algorithm).unwrap();
        let start = Timestamp::from_nanos(NOW);
        let (store, plain) = (store(16 << 10), Plain::new(Clock::manual(start)));
        let (mut dice, mut nanos, mut passed) = (Dice::new(6), NOW, 0);
        for step in 0..60_000 {
            nanos += dice.roll(20 * SECOND / 1_000);
            store.clock().set(Timestamp::from_nanos(nanos));
            let (key, cost) =
                (dice.roll(4_000), [1, 7, 20][usize::try_from(dice.roll(3)).unwrap()]);
            if take(&store, key, &limit, cost) {
                plain.clock().set(Timestamp::from_nanos(nanos));
                let take = Take::new(spread(key), &limit, Cost::new(cost));
                let done = plain.take_now(&Plan::new(take, Span::ZERO).unwrap()).done;
                assert!(done.passes, "{}: step {step}, key {key}, {cost}", algorithm.name());
                passed += 1;
            }
        }
        assert!(store.gauges().demotions > 10_000, "{}", algorithm.name());
        assert!(passed > 5_000, "{}: {passed}", algorithm.name());
    }
}

// === the memory of a flood ends ===

/// A day after the flood nothing of it is left, for its own keys and for new ones.
#[test]
fn after_the_period_a_flood_is_forgotten() {
    for algorithm in [Algorithm::TOKEN_BUCKET, Algorithm::FIXED_WINDOW] {
        let limit = Limit::new(20, Span::from_secs(DAY), algorithm).unwrap();
        let store = store(MIB / 8);
        flood(&store, 0..KEYS_PER_MIB / 8, &limit, 20);
        assert!(store.gauges().overcount_thousandths > 1_000, "{:?}", store.gauges());
        let name = algorithm.name();
        store.clock().set(Timestamp::from_nanos(NOW + (DAY + 1) * SECOND));
        assert_eq!(store.gauges().overcount_thousandths, 0, "{name}");
        assert!((0..KEYS_PER_MIB / 8).all(|key| left(&store, key, &limit) == 20), "{name}");
        assert!(newcomers(&store, &limit, 0).iter().all(|got| *got == 20), "{name}");
    }
}

/// A spent key that keeps sending requests is refused until its period has passed, and not for longer: a refusal does not
/// prolong its mark in the Bloom filter.
#[test]
fn a_refusal_does_not_prolong_a_mark() {
    for (amount, seconds) in [(20, 100), (7, 60), (13, 97)] {
        let limit = Limit::new(amount, Span::from_secs(seconds), Algorithm::TOKEN_BUCKET).unwrap();
        let store = store(8 << 10);
        flood(&store, 0..3_000, &limit, amount);
        for second in 0..=seconds + 1 {
            store.clock().set(Timestamp::from_nanos(NOW + second * SECOND));
            (0..3_000).for_each(|key| _ = take(&store, key, &limit, amount + 1));
        }
        assert!(
            (0..3_000).all(|key| left(&store, key, &limit) == amount),
            "{amount} in {seconds} s"
        );
    }
}

/// A flood goes on for ten days, each day with as many keys as there is room for. The marks of the first days end, although
/// there are new ones every hour.
#[test]
fn a_flood_that_goes_on_takes_no_more_on_the_tenth_day_than_on_the_third() {
    const A_DAY: u64 = 10_000;
    let (store, daily) = (store(MIB / 8), bucket(DAY));
    let mut got = vec![];
    for day in 0..10 {
        for key in day * A_DAY..(day + 1) * A_DAY {
            let nanos = NOW + key * (DAY * SECOND / A_DAY);
            store.clock().set(Timestamp::from_nanos(nanos));
            let _ = take(&store, key, &daily, 20);
        }
        got.push(mean(&newcomers(&store, &daily, day * 1_000)));
    }
    assert!(got[9] + 2 >= got[2] && got[9] >= 15, "{got:?}");
}
