//! The two stores in memory, `Memory` and `Plain`: the contract, the timelines, and many threads.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "a test fails loudly, and says how much it tried"
)]

use crate::support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use support::concurrency::{Racy, hammer, plan};
use support::{concurrency, timelines};
use tidegate_core::{Algorithm, Cost, Limit, Now, Outcome, Plan, Span, StateId, Take, Timestamp};
use tidegate_store::testing::{Declared, Faulty, Rig, conformance};
use tidegate_store::{Clock, Memory, Plain, ReceiptId, Settled, Settlement};

fn rig() -> Rig<Memory> {
    Rig {
        store: Memory::new(Clock::manual(Timestamp::EPOCH)),
        set_time: Box::new(|store: &Memory, now| store.clock().set(now)),
        declared: Declared::default(),
    }
}

fn plain_rig() -> Rig<Plain> {
    Rig {
        store: Plain::new(Clock::manual(Timestamp::EPOCH)),
        set_time: Box::new(|store: &Plain, now| store.clock().set(now)),
        declared: Declared::default(),
    }
}

/// A store with room for a few hundred keys, which is enough for the conformance suite.
fn small_rig() -> Rig<Memory> {
    Rig { store: Memory::with_budget(Clock::manual(Timestamp::EPOCH), 64 * 1_024), ..rig() }
}

#[tokio::test]
async fn plain_and_small_stores_keep_the_contract() {
    assert!(conformance(async || plain_rig()).await >= 22);
    assert!(conformance(async || small_rig()).await >= 22);
}

#[tokio::test]
async fn plain_agrees_with_every_timeline() {
    let played = timelines::play_all(async || plain_rig(), 1).await;
    assert!(played >= 300, "only {played} timelines");
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    let cases = conformance(async || rig()).await;
    println!("{cases} cases of the contract");
    assert!(cases >= 22);
}

#[tokio::test]
async fn a_faulty_store_without_faults_keeps_the_contract() {
    let set_time = |store: &Faulty<Memory>, now| store.inner().clock().set(now);
    conformance(async || Rig {
        store: Faulty::new(rig().store),
        set_time: Box::new(set_time),
        declared: Declared::default(),
    })
    .await;
}

#[tokio::test]
async fn memory_agrees_with_every_timeline() {
    let played = timelines::play_all(async || rig(), 1).await;
    assert!(played >= 300, "only {played} timelines");
}

fn at_the_minute() -> Memory {
    Memory::new(Clock::manual(Timestamp::from_nanos(concurrency::NOW)))
}

fn plainly_at_the_minute() -> Plain {
    Plain::new(Clock::manual(Timestamp::from_nanos(concurrency::NOW)))
}

#[test]
fn no_number_of_threads_admits_more_or_less_than_the_limit() {
    for threads in [2, 4, 16, 64] {
        for limit in concurrency::limits() {
            let (store, plain) = (at_the_minute(), plainly_at_the_minute());
            let name = limit.algorithm().name();
            let passed = hammer(threads, || store.take_now(&plan(7, &limit)).done.passes);
            assert_eq!(passed, limit.capacity(), "{name} by {threads} threads");
            let passed = hammer(threads, || plain.take_now(&plan(7, &limit)).done.passes);
            assert_eq!(passed, limit.capacity(), "{name} by {threads} threads, plainly");
        }
    }
}

/// The test above must fail for a store with a race: check, then add.
#[test]
fn a_store_that_checks_and_then_adds_is_caught() {
    let [limit, ..] = concurrency::limits();
    for _ in 0..5 {
        let racy = Racy::new(&limit);
        let passed = hammer(64, || racy.passes());
        assert!(passed > limit.capacity(), "a racy store was not caught");
    }
}

#[test]
fn ten_thousand_keys_under_a_moving_clock_are_decided_as_in_sequence() {
    for threads in [2, 4, 16, 64] {
        for limit in concurrency::limits() {
            let store = at_the_minute();
            let takes = concurrency::zipf(&store, &limit, threads, 20_000);
            concurrency::zipf(&plainly_at_the_minute(), &limit, threads, 20_000);
            println!("{} by {threads} threads: {takes} takes", limit.algorithm().name());
        }
    }
}

/// Plans of two states that are in the table, and that always pass: the fast path of plans.
#[test]
fn plans_of_four_threads_lose_no_take() {
    let limits = [Algorithm::TOKEN_BUCKET, Algorithm::FIXED_WINDOW]
        .map(|algorithm| Limit::new(10_000, Span::from_secs(86_400), algorithm).unwrap());
    let store = at_the_minute();
    // Each thread shares one of its two states with each of its neighbours.
    let plan = |thread: u128| {
        let states = [thread, (thread + 1) % 4];
        let take =
            |id: u128| Take::new(StateId(id), &limits[usize::try_from(id % 2).unwrap()], Cost::ONE);
        Plan::new(states.map(take).to_vec(), Span::ZERO).unwrap()
    };
    thread::scope(|scope| {
        for number in 0..4 {
            let (store, plan) = (&store, plan(number));
            scope.spawn(move || {
                assert!((0..4_000).all(|_| store.take_now(&plan).done.passes));
            });
        }
    });
    for number in 0..4 {
        let left =
            store.peek_now(&plan(number)).iter().map(|decision| decision.remaining).sum::<u64>();
        assert_eq!(left, 2 * (10_000 - 8_000));
    }
}

/// The clock is read while the state is being prefetched. Another thread may write the state after that reading.
#[test]
fn a_take_is_not_refused_for_use_after_its_clock_reading() {
    let limit = Limit::new(10, Span::from_secs(10), Algorithm::TOKEN_BUCKET).unwrap();
    let at =
        |seconds: u64| Now::at(Timestamp::from_nanos(concurrency::NOW + seconds * 1_000_000_000));
    let shared: Arc<OnceLock<Memory>> = Arc::default();
    let (store, readings) = (Arc::clone(&shared), AtomicU64::new(0));
    let take = |cost| Take::new(StateId(7), &limit, Cost::new(cost));
    let other = limit.clone();
    let clock = Clock::borrowed(move || match readings.fetch_add(1, Ordering::Relaxed) {
        // The first take creates the state: the fast path finds nothing, and the slow path reads the clock again.
        0 | 1 => at(0),
        // The second take reads the clock. Before it reads the state, another thread takes, five seconds later.
        2 => {
            let others = Take::new(StateId(7), &other, Cost::new(3));
            let passes =
                store.get().is_some_and(|store| store.take_one_now(&others).decision.passes());
            assert!(passes);
            at(0)
        }
        _ => at(5),
    });
    let store = shared.get_or_init(|| Memory::new(clock));
    assert!(store.take_one_now(&take(1)).decision.passes());
    // By the first reading eight are in use, and five more do not fit. By the second, three are in use.
    let taken = store.take_one_now(&take(5));
    assert_eq!((taken.decision.outcome, taken.decision.remaining), (Outcome::Allow, 2));
}

#[test]
fn refused_plans_of_four_threads_count_nothing_in_any_state() {
    let [_, log, _, _, token, _] = concurrency::limits();
    let large = Limit::new(1_000_000, Span::from_secs(60), Algorithm::FIXED_WINDOW).unwrap();
    let takes = [(1, &token), (2, &large), (3, &log)]
        .map(|(id, limit)| Take::new(StateId(id), limit, Cost::ONE));
    let plan = Plan::new(takes.to_vec(), Span::ZERO).unwrap();
    let (store, passed) = (at_the_minute(), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_500 {
                    passed
                        .fetch_add(u64::from(store.take_now(&plan).done.passes), Ordering::Relaxed);
                }
            });
        }
    });
    let counted = large.capacity() - store.peek_now(&plan)[1].remaining;
    assert_eq!((passed.into_inner(), counted), (50, 50));
}

/// 597,000 settled receipts took 72 MiB in addition to a budget of 1 MiB, and the gauges did not count them. A receipt that
/// cannot be remembered within the budget must not be settled, or it could be settled twice.
#[test]
fn settled_receipts_are_within_the_budget() {
    const RECEIPTS: u128 = 300_000;
    let store = Memory::with_budget(Clock::manual(Timestamp::from_nanos(1)), 1 << 20);
    let settle = |id: u128| {
        let until = Timestamp::from_nanos(60_000_000_000);
        store.give_back_now(&Settlement { id: ReceiptId(id), until, parts: &[] })
    };
    let before = store.gauges().bytes;
    let settled: Vec<u128> = (1..=RECEIPTS).filter(|id| settle(*id) == Settled::Done).collect();
    let gauges = store.gauges();
    assert!(gauges.bytes <= gauges.budget);
    // The gauges count twelve bytes for a receipt.
    assert!(settled.len() * 12 <= gauges.bytes - before, "{} settled, {gauges:?}", settled.len());
    assert!(settled.len() > 5_000);
    assert!(settled.iter().all(|id| settle(*id) == Settled::Already));
}
