//! Many threads on few keys: what passed is compared with what passes when the same takes come one after another.

use super::dice::Dice;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use tidegate_core::{
    Algorithm, Ask, Cost, Limit, Now, Plan, Span, StateId, Take, Timestamp, Written,
};
use tidegate_store::{Answer, Clock, Memory, Plain};

/// A whole minute in 2023.
pub(crate) const NOW: u64 = 1_699_999_980_000_000_000;
/// Takes of one thread in one round.
const TAKES: u64 = 200;
const PATIENT: Span = Span::from_secs(86_400);

pub(crate) fn plan(id: u128, limit: &Limit) -> Plan<'_> {
    Plan::new(vec![Take::new(StateId(id), limit, Cost::ONE)], PATIENT).unwrap()
}

/// Offers far more than the limit at one instant, from many threads; returns how many passed.
pub(crate) fn hammer(threads: usize, passes: impl Fn() -> bool + Sync) -> u64 {
    let (passed, start) = (AtomicU64::new(0), Barrier::new(threads));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                start.wait();
                for _ in 0..TAKES {
                    passed.fetch_add(u64::from(passes()), Ordering::Relaxed);
                }
            });
        }
    });
    passed.into_inner()
}

/// A store with a race: it checks, and then adds. Tests must catch it.
pub(crate) struct Racy<'l> {
    limit: &'l Limit,
    state: Mutex<Written<'l>>,
    reads: AtomicU64,
}

impl<'l> Racy<'l> {
    pub(crate) fn new(limit: &'l Limit) -> Self {
        Self { limit, state: Mutex::new(Written::empty(limit)), reads: AtomicU64::new(0) }
    }

    pub(crate) fn passes(&self) -> bool {
        let ask = Ask::new(Timestamp::from_nanos(NOW), Cost::ONE);
        let mut copy = self.state.lock().unwrap().clone();
        let passes = self.limit.take(&mut copy, &ask).decision.passes();
        // Wait until another thread has read the same state, as it would over a slow network.
        let read = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
        for _ in 0..1_000 {
            if self.reads.load(Ordering::SeqCst) > read {
                break;
            }
            thread::yield_now();
        }
        if passes {
            *self.state.lock().unwrap() = copy;
        }
        passes
    }
}

/// A store in this process: [`Memory`], or [`Plain`], with which it is compared.
pub(crate) trait InProcess: Sync {
    fn take(&self, plan: &Plan<'_>) -> Answer;
    fn clock(&self) -> &Clock;
}

impl InProcess for Memory {
    fn take(&self, plan: &Plan<'_>) -> Answer {
        self.take_now(plan)
    }

    fn clock(&self) -> &Clock {
        Self::clock(self)
    }
}

impl InProcess for Plain {
    fn take(&self, plan: &Plan<'_>) -> Answer {
        self.take_now(plan)
    }

    fn clock(&self) -> &Clock {
        Self::clock(self)
    }
}

/// A decision that a thread saw: for which key, at which instant, and whether it passed.
pub(crate) struct Seen {
    pub(crate) key: u128,
    pub(crate) at: Timestamp,
    pub(crate) passed: bool,
}

/// A key of 10,000; key k comes about 1/k as often as key 1.
pub(crate) fn zipf_key(dice: &mut Dice) -> u128 {
    let spread = 10_000u64 >> dice.roll(14);
    u128::from(dice.roll(spread.max(1)))
}

/// Takes of 10,000 keys, some far more often than others, while another thread moves the clock. Then the history of every key is
/// replayed, one take after another. Returns how many takes there were.
pub(crate) fn zipf(store: &impl InProcess, limit: &Limit, threads: u64, takes: u64) -> u64 {
    store.clock().set(Timestamp::from_nanos(NOW));
    let ended = AtomicBool::new(false);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let takers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || take_at_random(store, limit, thread, takes / threads))
            })
            .collect();
        let clock = scope.spawn(|| {
            let (mut now, mut dice) = (NOW, Dice::new(1));
            while !ended.load(Ordering::Relaxed) {
                now += dice.roll(2_000_000);
                store.clock().set(Timestamp::from_nanos(now));
                thread::yield_now();
            }
        });
        let seen = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
        ended.store(true, Ordering::Relaxed);
        clock.join().unwrap();
        seen
    });
    replay(limit, &seen);
    u64::try_from(seen.len()).unwrap()
}

fn take_at_random(store: &impl InProcess, limit: &Limit, thread: u64, takes: u64) -> Vec<Seen> {
    let mut dice = Dice::new(thread + 7);
    let mut seen = Vec::new();
    for _ in 0..takes {
        let key = zipf_key(&mut dice);
        let answer = store.take(&plan(key, limit));
        seen.push(Seen { key, at: answer.at, passed: answer.done.passes });
    }
    seen
}

/// Checks that at each instant exactly as many takes passed as the core lets pass.
pub(crate) fn replay(limit: &Limit, seen: &[Seen]) {
    let mut histories: HashMap<u128, BTreeMap<Timestamp, (u64, u64)>> = HashMap::new();
    for Seen { key, at, passed } in seen {
        let (offered, admitted) = histories.entry(*key).or_default().entry(*at).or_default();
        *offered += 1;
        *admitted += u64::from(*passed);
    }
    for (key, history) in histories {
        let mut written = [Written::empty(limit)];
        let plan = plan(key, limit);
        for (at, (offered, admitted)) in history {
            let passes =
                (0..offered).filter(|_| plan.take(Now::at(at), &mut written).passes).count();
            let name = limit.algorithm().name();
            assert_eq!(
                u64::try_from(passes).unwrap(),
                admitted,
                "{name}, key {key}, {offered} at {at:?}"
            );
        }
    }
}

/// Every algorithm, 50 per minute.
pub(crate) fn limits() -> [Limit; 6] {
    Algorithm::ALL.map(|algorithm| Limit::new(50, Span::from_secs(60), algorithm).unwrap())
}
