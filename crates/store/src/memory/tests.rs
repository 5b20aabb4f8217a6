//! Tests of the whole store that need its private parts: counted steps, and limit numbers.

use super::*;
use crate::store::StoreHealth as _;
use tidegate_core::{Algorithm, Limit, Span, StateId, Timestamp};

fn store(numbers: usize) -> Memory {
    let clock = Clock::manual(Timestamp::from_nanos(1_800_000_000_000_000_000));
    Memory::with_limit_numbers(clock, 64 << 20, numbers)
}

fn hourly(amount: u64) -> Limit {
    Limit::new(amount, Span::from_secs(3_600), Algorithm::TOKEN_BUCKET).unwrap()
}

fn take(id: u64, limit: &Limit, named_by: NamedBy) -> Take<'_> {
    Take { named_by, ..Take::new(StateId(u128::from(id)), limit, Cost::ONE) }
}

/// When 65,536 limits had states, every take under a further limit walked over all buckets in search of a free number. A batch
/// of 200 took seconds. The work per take must not depend on how many limits callers have named.
#[test]
fn steps_per_take_do_not_depend_on_how_many_limits_were_named() {
    let store = store(NUMBERS);
    let (mut most, mut admitted) = ([0u64; 3], 0usize);
    for (named, most) in
        [1..=40_000, 40_001..=66_000, 66_001..=1_000_000u64].into_iter().zip(&mut most)
    {
        for n in named {
            let limit = hourly(n);
            let steps = steps::of(|| {
                if store.admit_limit_now(&limit).is_ok() {
                    admitted += 1;
                    store.take_one_now(&take(n, &limit, NamedBy::Caller));
                }
            });
            *most = steps.max(*most);
        }
    }
    assert_eq!(admitted, NUMBERS / 4 * 3);
    // A policy with more limits than numbers are left: the sketch counts the rest.
    let policy = (2_000_001..=2_020_000u64).map(|n| {
        let limit = hourly(n);
        steps::of(|| _ = store.take_one_now(&take(n, &limit, NamedBy::Policy)))
    });
    let policy = policy.max();
    assert!(most.into_iter().chain(policy).all(|most| most <= 40), "{most:?}, {policy:?}");
}

/// While the store of several nodes is away, each counts in such a store. Strangers can invent keys, so a full store must not make a
/// take longer.
#[test]
fn steps_per_take_do_not_depend_on_how_many_keys_are_active() {
    let store = Memory::with_budget(Clock::manual(Timestamp::EPOCH), 256 << 10);
    let (limit, fit) = (hourly(9), 256 << 10 >> 4);
    let steps = |n| steps::of(|| _ = store.take_one_now(&take(n, &limit, NamedBy::Policy)));
    let most = (1..=10 * fit).map(steps).max();
    assert!(store.gauges().demotions > 0, "the store is full");
    // Looking two displacements far takes 129 steps. When it fails in a full table, a thousand insertions skip it.
    assert!(most <= Some(200), "{most:?}");
}

/// Callers name as many limits as they can. They get their share of the numbers. The limits of the policy still get numbers,
/// and so their states are exact.
#[test]
fn callers_have_a_share_of_the_numbers_and_the_policy_has_the_rest() {
    let store = store(64);
    let admitted = (1..=1_000u64).filter(|n| {
        let limit = hourly(*n);
        let admitted = store.admit_limit_now(&limit).is_ok();
        if admitted {
            assert!(store.take_one_now(&take(*n, &limit, NamedBy::Caller)).decision.passes());
        }
        admitted
    });
    assert_eq!(admitted.count(), 48);
    assert!(store.shortage().is_some());
    assert!(store.admit_limit_now(&hourly(7)).is_ok(), "it is in use, and has its number");
    for n in 2_001..=2_016u64 {
        let limit = hourly(n);
        let taken = store.take_one_now(&take(n, &limit, NamedBy::Policy));
        assert_eq!(taken.decision.remaining, n - 1);
    }
    assert_eq!(store.gauges().demotions, 0, "all of them are in the table");
}

/// When the states of callers' limits expire or are reset, callers may name other limits.
#[test]
fn a_limit_without_states_gives_its_number_to_another() {
    let store = store(8);
    let fill = |from: u64| {
        let limits = (from..from + 100).map(|n| (n, hourly(n)));
        let admitted = limits.filter(|(n, limit)| {
            let admitted = store.admit_limit_now(limit).is_ok();
            admitted && store.take_one_now(&take(*n, limit, NamedBy::Caller)).decision.passes()
        });
        admitted.count()
    };
    assert_eq!((fill(1_000), fill(2_000)), (6, 0));
    assert!(store.shortage().is_some());
    store.reset_now(&[StateId(1_000)]);
    assert!(store.shortage().is_none());
    assert_eq!(fill(3_000), 1);
    store.clock().set(Timestamp::from_nanos(1_800_000_000_000_000_000 + 7_200_000_000_000));
    // With every refusal a few buckets are swept for expired states.
    assert_eq!(fill(4_000), 6);
}

/// Takes, edits, refunds, resets, expiry and demotion: the count of a number always is how many slots mention it.
#[test]
fn the_count_of_a_number_is_how_many_slots_mention_it() {
    let clock = Clock::manual(Timestamp::EPOCH);
    let store = Memory::with_limit_numbers(clock, 64 << 10, 64);
    let algorithms = Algorithm::ALL;
    let mut seed = 7u64;
    let mut roll = |sides: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % sides
    };
    for round in 0..50_000u64 {
        let (amount, secs) = (1 + roll(20), 1 + roll(5));
        let algorithm = algorithms[usize::try_from(roll(6)).unwrap()];
        let limit = Limit::new(amount, Span::from_secs(secs), algorithm).unwrap();
        let by = if roll(2) == 0 { NamedBy::Policy } else { NamedBy::Caller };
        let (one, two) = (1 + roll(5_000), 5_001 + roll(5_000));
        match roll(8) {
            0 => _ = store.reset_now(&[StateId(u128::from(one))]),
            1 => _ = store.admit_limit_now(&limit),
            2 => _ = store.charge_now(&[take(one, &limit, by)]),
            3 => store.clock().set(Timestamp::from_nanos(round * 10_000_000)),
            _ => {
                let takes = vec![take(one, &limit, by), take(two, &limit, by)];
                store.take_now(&Plan::new(takes, Span::ZERO).unwrap());
            }
        }
    }
    let counts = store.limit_numbers.counts();
    let mut mentioned = vec![0; counts.len()];
    store.table.walk(|bucket| {
        bucket.entries().for_each(|(_, entry)| mentioned[usize::from(entry.limit_number)] += 1);
    });
    assert_eq!(counts, mentioned);
    assert!(store.gauges().demotions > 0, "it was never full");
}
