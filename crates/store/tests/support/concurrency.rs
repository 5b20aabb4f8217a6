//! Many threads on few keys: what passed is compared with what would have passed one after another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take, Timestamp};
use tidegate_store::Memory;

/// Takes of one thread in one round.
const TAKES: u64 = 200;

/// Offers far more than the limit at one instant, from 2, 4, 16 and 64 threads, for every algorithm.
pub(crate) fn hammer(make: impl Fn() -> Memory) {
    for threads in [2, 4, 16, 64] {
        for algorithm in Algorithm::ALL {
            let limit = Limit::new(50, Span::from_secs(60), algorithm).unwrap();
            let store = make();
            store.clock().set(Timestamp::from_nanos(1_699_999_980_000_000_000));
            let passed = one_key(&store, &limit, threads);
            assert_eq!(passed, limit.capacity(), "{} by {threads} threads", algorithm.name());
        }
    }
}

fn one_key(store: &Memory, limit: &Limit, threads: usize) -> u64 {
    let (passed, start) = (AtomicU64::new(0), Arc::new(Barrier::new(threads)));
    thread::scope(|scope| {
        for _ in 0..threads {
            let start = Arc::clone(&start);
            let passed = &passed;
            scope.spawn(move || {
                let take = Take::new(StateId(7), limit, Cost::ONE);
                let plan = Plan::new(vec![take], Span::from_secs(600)).unwrap();
                start.wait();
                for _ in 0..TAKES {
                    passed
                        .fetch_add(u64::from(store.take_now(&plan).done.passes), Ordering::Relaxed);
                }
            });
        }
    });
    passed.into_inner()
}
