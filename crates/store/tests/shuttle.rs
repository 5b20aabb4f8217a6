//! Models of the whole store under shuttle, a scheduler that tries many orders of its steps (`make models`).

#![cfg(shuttle)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Arc;
use shuttle::thread;
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take, Timestamp};
use tidegate_store::{Clock, Memory, Part, ReceiptId, Settled, Settlement, models};

/// How many orders are tried for each model.
const ORDERS: usize = 2_000;
/// How many interruptions each order has, for models with few of them.
const INTERRUPTIONS: usize = 3;

fn check(model: impl Fn() + Send + Sync + 'static) {
    check_orders(ORDERS, model);
}

/// For models of many steps.
fn check_few(model: impl Fn() + Send + Sync + 'static) {
    check_orders(ORDERS / 10, model);
}

fn check_orders(orders: usize, model: impl Fn() + Send + Sync + 'static) {
    shuttle::Runner::new(RandomScheduler::new(orders), config()).run(model);
}

/// For races in which one thread makes many steps between two steps of another: threads run without interruption, except for a
/// few interruptions at random steps (probabilistic concurrency testing).
fn check_interrupted(model: impl Fn() + Send + Sync + 'static) {
    shuttle::Runner::new(PctScheduler::new(INTERRUPTIONS, ORDERS), config()).run(model);
}

fn config() -> shuttle::Config {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    config
}

fn limit(amount: u64) -> &'static Limit {
    let limit = Limit::new(amount, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    Box::leak(Box::new(limit)) // threads of a model outlive its closure
}

fn plan(ids: &[u128], limit: &'static Limit) -> Plan<'static> {
    let takes: Vec<_> = ids.iter().map(|id| Take::new(StateId(*id), limit, Cost::ONE)).collect();
    Plan::new(takes, Span::ZERO).unwrap()
}

fn store() -> Arc<Memory> {
    Arc::new(Memory::new(Clock::manual(Timestamp::EPOCH)))
}

/// Three plans, any two of which share a state with room for one take. They do not deadlock, and exactly one passes.
#[test]
fn overlapping_plans_are_all_or_none() {
    let limit = limit(1);
    check(move || {
        let store = store();
        let takers: Vec<_> = [[1, 2], [2, 3], [3, 1]]
            .into_iter()
            .map(|ids| {
                let store = Arc::clone(&store);
                thread::spawn(move || store.take_now(&plan(&ids, limit)).done.passes)
            })
            .collect();
        let passed =
            takers.into_iter().map(|taker| taker.join().unwrap()).filter(|passed| *passed).count();
        // Any two of the three share a state with room for one take.
        assert_eq!(passed, 1);
        let left: u64 = store.peek_now(&plan(&[1, 2, 3], limit)).iter().map(|d| d.remaining).sum();
        assert_eq!(left, 1, "a refused plan took something");
    });
}

/// Plans that overlap are all or none also when their states are in the table: then the fast path reads them without a lock first.
#[test]
fn overlapping_plans_of_the_fast_path_are_all_or_none() {
    let limit = limit(3);
    check(move || {
        let store = store();
        assert!(store.take_now(&plan(&[1, 2, 3], limit)).done.passes);
        let takers: Vec<_> = [[1, 2], [2, 3], [3, 1]]
            .into_iter()
            .map(|ids| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    (0..2).filter(|_| store.take_now(&plan(&ids, limit)).done.passes).count()
                })
            })
            .collect();
        let passed: usize = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
        let decisions = store.peek_now(&plan(&[1, 2, 3], limit));
        let left: u64 = decisions.iter().map(|decision| decision.remaining).sum();
        assert_eq!(u64::try_from(passed).unwrap() * 2 + left, 6, "a take was lost or doubled");
        assert!(left <= 2, "a plan was refused although there was room: {decisions:?}");
    });
}

/// Two threads present the same receipt, while a third one takes: the receipt is settled once.
#[test]
fn a_receipt_is_settled_once_by_several_threads() {
    let limit = limit(3);
    check(move || {
        let store = store();
        let receipt = store.take_now(&plan(&[1], limit)).done.receipts[0].unwrap();
        let settlers: Vec<_> = (0..2)
            .map(|_| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    let parts = [Part { state: StateId(1), limit, receipt }];
                    store.give_back_now(&Settlement {
                        id: ReceiptId(9),
                        until: Timestamp::END,
                        parts: &parts,
                    })
                })
            })
            .collect();
        let taker = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.take_now(&plan(&[1], limit)).done.passes)
        };
        let settled: Vec<Settled> =
            settlers.into_iter().map(|settler| settler.join().unwrap()).collect();
        assert!(taker.join().unwrap());
        assert_eq!(settled.iter().filter(|settled| **settled == Settled::Done).count(), 1);
        assert_eq!(store.peek_now(&plan(&[1], limit))[0].remaining, 2);
    });
}

/// Two threads take from two states while one of the states is reset: the other state counts all takes.
#[test]
fn reset_and_take_do_not_mix() {
    let limit = limit(5);
    check(move || {
        let store = store();
        store.take_now(&plan(&[1, 65], limit));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let store = Arc::clone(&store);
                thread::spawn(move || store.take_now(&plan(&[1, 65], limit)).done.passes)
            })
            .collect();
        store.reset_now(&[StateId(1)]);
        for other in others {
            assert!(other.join().unwrap());
        }
        let left = store.peek_now(&plan(&[1, 65], limit));
        assert_eq!(left[1].remaining, 2);
        assert!((2..=5).contains(&left[0].remaining));
    });
}

/// Two threads add states, and the table grows meanwhile. All their plans share one state, with room for two takes.
#[test]
fn no_take_is_lost_while_the_table_grows() {
    let limit = limit(2);
    check(move || {
        let store = store();
        let adders: Vec<_> = [0, 100]
            .into_iter()
            .map(|from| {
                let store = Arc::clone(&store);
                // A table of four buckets grows at the seventeenth state.
                thread::spawn(move || {
                    (from..from + 12)
                        .all(|id| store.take_now(&plan(&[id, 7_777], limit)).done.passes)
                })
            })
            .collect();
        let all: Vec<bool> = adders.into_iter().map(|adder| adder.join().unwrap()).collect();
        assert_eq!(all, [false, false], "the shared state has room for two takes");
        let left = |id| store.peek_now(&plan(&[id], limit))[0].remaining;
        assert_eq!(left(7_777), 0);
        let taken: u64 = (0..12).chain(100..112).map(|id| 2 - left(id)).sum();
        assert_eq!(taken, 2);
    });
}

/// Two threads add states one by one, and the table grows meanwhile: afterwards each state is there once.
#[test]
fn no_state_is_lost_or_doubled_while_the_table_grows() {
    let limit = limit(2);
    check(move || {
        let store = store();
        let adders: Vec<_> = [0, 100]
            .into_iter()
            .map(|from| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    for id in from..from + 12 {
                        assert!(store.take_now(&plan(&[id], limit)).done.passes);
                    }
                })
            })
            .collect();
        for adder in adders {
            adder.join().unwrap();
        }
        assert_eq!(store.len(), 24);
        for id in (0..12).chain(100..112) {
            assert_eq!(store.peek_now(&plan(&[id], limit))[0].remaining, 1);
        }
    });
}

/// A key that has used its limit is refused, in whatever order other threads add keys and demote it.
#[test]
fn a_spent_key_gains_nothing_from_demotions() {
    let limit = limit(2);
    check_few(move || {
        let store = Arc::new(Memory::with_budget(Clock::manual(Timestamp::EPOCH), 1_024));
        for id in 0..42 {
            store.take_now(&plan(&[id], limit));
        }
        store.take_now(&plan(&[1], limit));
        let crowd: Vec<_> = [1_000, 2_000]
            .into_iter()
            .map(|from| {
                let store = Arc::clone(&store);
                thread::spawn(move || {
                    for id in from..from + 4 {
                        store.take_now(&plan(&[id], limit));
                        store.take_now(&plan(&[id], limit));
                    }
                })
            })
            .collect();
        for _ in 0..4 {
            assert!(!store.take_now(&plan(&[1], limit)).done.passes);
        }
        for one in crowd {
            one.join().unwrap();
        }
        assert!(store.gauges().demotions > 0, "the store never was full");
        for id in (1_000..1_004).chain(2_000..2_004).chain([1]) {
            assert!(!store.take_now(&plan(&[id], limit)).done.passes);
        }
    });
}

/// There are two numbers for three limits. One thread takes under a limit whose number is in the cache. Meanwhile another thread
/// claims that number for another limit. If the first thread still wrote its state under the number, the state would be read
/// under the other limit, as if it had ended long ago: a key that had used 2 of 2 got 2 more.
#[test]
fn a_state_is_never_read_under_the_next_limit_of_its_number() {
    let mine = limit(2);
    let [other, next] = [7, 9].map(|amount| {
        let limit = Limit::new(amount, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
        &*Box::leak(Box::new(limit))
    });
    check_interrupted(move || {
        let now = Timestamp::from_nanos(1_800_000_000_000_000_000);
        let clock = Clock::manual(now);
        let store = Arc::new(models::with_limit_numbers(clock, 1 << 20, 2));
        // The limit `other` has a state. The limit `mine` has none any more, and its number is in the cache.
        assert!(store.take_now(&plan(&[10], other)).done.passes);
        assert!(store.take_now(&plan(&[1], mine)).done.passes);
        store.reset_now(&[StateId(1)]);
        let taker = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                (0..3).filter(|_| store.take_now(&plan(&[1], mine)).done.passes).count()
            })
        };
        let passed = store.take_now(&plan(&[11], next)).done.passes;
        assert!(passed, "there is room in the table, or in the sketch");
        let passed = taker.join().unwrap();
        let more = (0..3).filter(|_| store.take_now(&plan(&[1], mine)).done.passes).count();
        assert_eq!(passed + more, 2);
    });
}

/// Two threads take from states under several limits, so that limit numbers are used again, while a third one collects what changed.
/// None waits for ever, and what was collected last is what there is.
#[test]
fn what_changes_is_collected_while_numbers_are_used_again() {
    let limits: Vec<&'static Limit> = (5..8).map(limit).collect();
    check_few(move || {
        let clock = Clock::manual(Timestamp::EPOCH);
        let store = Arc::new(models::kept_on_disk(clock, 1 << 16, 2));
        let takers: Vec<_> = (0..2u128)
            .map(|taker| {
                let (store, limits) = (Arc::clone(&store), limits.clone());
                thread::spawn(move || {
                    for (id, limit) in (0..).zip(limits) {
                        store.take_now(&plan(&[taker * 2 + id % 2], limit));
                    }
                })
            })
            .collect();
        let mut collected = models::changed_states(&store);
        collected.extend(models::changed_states(&store));
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        collected.extend(models::changed_states(&store));
        let all = models::all_states(&store);
        for (tag, state) in &all {
            assert_eq!(collected.get(tag), Some(state), "a change of {tag:x} was lost");
        }
    });
}
