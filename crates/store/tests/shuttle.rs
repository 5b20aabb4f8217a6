//! Models of the locks: the same code under a scheduler that tries many orders of its steps.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use shuttle::sync::Arc;
use shuttle::thread;
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take, Timestamp};
use tidegate_store::{Clock, Memory, Part, ReceiptId, Settled, Settlement};

/// Orders that are tried for each model.
const ORDERS: usize = 2_000;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20; // a store with all its shards stands on the stack of a model
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(ORDERS), config).run(model);
}

fn limit(amount: u64) -> &'static Limit {
    let limit = Limit::new(amount, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    Box::leak(Box::new(limit)) // threads of a model outlive its closure
}

fn plan(ids: &[u128], limit: &'static Limit) -> Plan<'static> {
    Plan::new(ids.iter().map(|id| Take::new(StateId(*id), limit, Cost::ONE)).collect(), Span::ZERO)
        .unwrap()
}

fn store() -> Arc<Memory> {
    Arc::new(Memory::new(Clock::manual(Timestamp::EPOCH)))
}

/// Plans over the same shards in opposite orders neither deadlock nor pass more than one of them may.
#[test]
fn plans_that_cross_are_all_or_none() {
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
        // Any two of the three share a state that lets one pass.
        assert_eq!(passed, 1);
        let left: u64 = store.peek_now(&plan(&[1, 2, 3], limit)).iter().map(|d| d.remaining).sum();
        assert_eq!(left, 1, "a refused plan took something");
    });
}

/// A receipt that several present at once is settled once, and while others take.
#[test]
fn a_receipt_is_settled_once_whoever_asks() {
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

/// A state that is swept, reset and taken at once is never half there.
#[test]
fn reset_and_take_do_not_mix() {
    let limit = limit(5);
    check(move || {
        let store = store();
        store.take_now(&plan(&[1, 65], limit)); // two states of one shard
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
