//! A batch reads the clock once. These tests let other threads act between that reading and the decision.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test fails loudly"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tidegate_core::{Algorithm, Cost, Limit, Now, Plan, Span, StateId, Take, Timestamp};
use tidegate_store::{Clock, Memory, Part, ReceiptId, Settlement};

/// Where a window of a second begins.
const NOW: u64 = 1_800_000_000_000_000_000;
const MILLI: u64 = 1_000_000;

fn at(millis: u64) -> Now {
    Now::at(Timestamp::from_nanos(NOW + millis * MILLI))
}

/// What other threads do while one thread stalls right after it has read the clock.
type Stall = Box<dyn FnOnce(&Memory) + Send + Sync>;

/// A store, its clock, and a stall that happens at the next reading of the clock.
struct Stage {
    store: Arc<OnceLock<Memory>>,
    millis: Arc<AtomicU64>,
    stall: Arc<std::sync::Mutex<Option<Stall>>>,
    readings: Arc<AtomicU64>,
}

impl Stage {
    fn new() -> Self {
        let stage = Self {
            store: Arc::default(),
            millis: Arc::default(),
            stall: Arc::default(),
            readings: Arc::default(),
        };
        let (store, millis) = (Arc::clone(&stage.store), Arc::clone(&stage.millis));
        let (stall, readings) = (Arc::clone(&stage.stall), Arc::clone(&stage.readings));
        let clock = Clock::borrowed(move || {
            let now = at(millis.load(Ordering::Relaxed));
            readings.fetch_add(1, Ordering::Relaxed);
            let stall = stall.lock().unwrap().take();
            if let (Some(stall), Some(store)) = (stall, store.get()) {
                stall(store);
            }
            now
        });
        stage.store.get_or_init(|| Memory::new(clock));
        stage
    }

    fn store(&self) -> &Memory {
        self.store.get().unwrap()
    }

    /// After the next reading of the clock, the clock moves on to `millis` and other threads run.
    fn stall_until(&self, millis: u64, others: impl FnOnce(&Memory) + Send + Sync + 'static) {
        let clock = Arc::clone(&self.millis);
        *self.stall.lock().unwrap() = Some(Box::new(move |store| {
            clock.store(millis, Ordering::Relaxed);
            others(store);
        }));
    }
}

fn limit(algorithm: Algorithm) -> &'static Limit {
    Box::leak(Box::new(Limit::new(10, Span::from_millis(1_000), algorithm).unwrap()))
}

fn take(limit: &Limit) -> Take<'_> {
    Take::new(StateId(7), limit, Cost::ONE)
}

/// How many of twenty takes pass, each by itself.
fn passed(store: &Memory, limit: &Limit) -> usize {
    (0..20).filter(|_| store.take_one_now(&take(limit)).decision.passes()).count()
}

/// Both kinds of batches, each of one take.
fn batches() -> [fn(&Memory, &Limit) -> bool; 2] {
    [
        |store, limit| store.take_each_now(&[take(limit)])[0].decision.passes(),
        |store, limit| store.take_batch_now(&[Plan::from(take(limit))])[0].done.passes,
    ]
}

/// A batch stalled for more than a second. Meanwhile other threads filled the next window. The batch decided by its old reading,
/// and that window was too far ahead of it. So the store took it for the work of a wrong clock and moved it into the past. Then
/// the window began anew, and ten more takes passed.
#[test]
fn a_batch_that_stalls_does_not_move_a_full_window_into_the_past() {
    for algorithm in [Algorithm::FIXED_WINDOW, Algorithm::SLIDING_LOG, Algorithm::SLIDING_BUCKETS] {
        for batch in batches() {
            let (stage, limit) = (Stage::new(), limit(algorithm));
            assert!(batch(stage.store(), limit));
            stage.stall_until(3_000, move |store| assert_eq!(passed(store, limit), 10));
            assert!(!batch(stage.store(), limit), "{}", algorithm.name());
            assert_eq!(passed(stage.store(), limit), 0, "{}: more passed", algorithm.name());
        }
    }
}

/// A window was full and ended after a batch had read the clock. Another thread took once in the next window and gave that back,
/// which left an empty state. By its old reading, the batch then found nothing used in the window that was full.
#[test]
fn a_state_emptied_after_the_reading_does_not_reopen_a_full_window() {
    for algorithm in [Algorithm::FIXED_WINDOW, Algorithm::TOKEN_BUCKET] {
        for batch in batches() {
            let (stage, limit) = (Stage::new(), limit(algorithm));
            assert_eq!(passed(stage.store(), limit), 10);
            stage.stall_until(1_100, move |store| {
                let receipt = store.take_one_now(&take(limit)).receipt.unwrap();
                let parts = [Part { state: StateId(7), limit, receipt }];
                let until = Timestamp::END;
                store.give_back_now(&Settlement { id: ReceiptId(1), until, parts: &parts });
            });
            // It passes by a reading after the stall, so it counts in the present window.
            assert!(batch(stage.store(), limit), "{}", algorithm.name());
            assert_eq!(passed(stage.store(), limit), 9, "{}", algorithm.name());
        }
    }
}

/// A single take must not reopen a full window either. It reads the clock before it reads the state, and may stall in between.
#[test]
fn a_single_take_does_not_reopen_a_full_window() {
    let (stage, limit) = (Stage::new(), limit(Algorithm::FIXED_WINDOW));
    assert_eq!(passed(stage.store(), limit), 10);
    // A thread whose last take passed reads the clock before the state.
    let other = Take { state: StateId(8), ..take(limit) };
    assert!(stage.store().take_one_now(&other).decision.passes());
    stage.stall_until(1_100, move |store| {
        let receipt = store.take_one_now(&take(limit)).receipt.unwrap();
        let parts = [Part { state: StateId(7), limit, receipt }];
        store.give_back_now(&Settlement { id: ReceiptId(1), until: Timestamp::END, parts: &parts });
        assert!(store.take_one_now(&other).decision.passes());
    });
    assert!(stage.store().take_one_now(&take(limit)).decision.passes());
    assert_eq!(passed(stage.store(), limit), 9);
}

/// The first take of a key creates its state, by a later reading than that of the batch. The second take must not see this state
/// as use ahead of its own reading.
#[test]
fn a_batch_is_not_refused_for_the_time_that_passes_while_it_is_decided() {
    let millis = AtomicU64::new(0);
    let clock = Clock::borrowed(move || at(millis.fetch_add(1, Ordering::Relaxed)));
    let (store, limit) = (Memory::new(clock), limit(Algorithm::TOKEN_BUCKET));
    let ten = [take(limit); 10];
    assert!(store.take_each_now(&ten).iter().all(|taken| taken.decision.passes()));
    let plans = ten.map(|take| Plan::from(Take { state: StateId(8), ..take }));
    assert!(store.take_batch_now(&plans).iter().all(|answer| answer.done.passes));
}

/// This is what makes a batch fast.
#[test]
fn a_batch_of_states_in_the_table_reads_the_clock_once() {
    let (stage, limit) = (Stage::new(), limit(Algorithm::TOKEN_BUCKET));
    let takes: Vec<Take<'_>> =
        (1..=64).map(|id| Take { state: StateId(id), ..take(limit) }).collect();
    let plans: Vec<Plan<'_>> = takes.iter().copied().map(Plan::from).collect();
    stage.store().take_each_now(&takes);
    let before = stage.readings.load(Ordering::Relaxed);
    stage.store().take_each_now(&takes);
    assert_eq!(stage.readings.load(Ordering::Relaxed) - before, 1);
    stage.store().take_batch_now(&plans);
    assert_eq!(stage.readings.load(Ordering::Relaxed) - before, 2);
}
