//! Several threads, a full store, batches and a moving clock together: no window and no bucket passes more than its limit.
//!
//! Each of these alone is tested elsewhere. Over-admissions were found where they meet: a state can expire, be demoted or be
//! written by another thread between the moment at which a batch reads the clock and the moment at which it decides.
//!
//! Nothing here depends on the speed of the machine: the threads themselves move the clock, by counted steps. Threads also yield
//! right after they read the clock, where a stall does the most harm.
//!
//! `STRESS_RUNS=100 cargo test -p tidegate-store --test main stress` tries a hundred seeds; `STRESS_SEED` sets the first.

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

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use support::concurrency::NOW;
use support::dice::Dice;
use tidegate_core::{
    Algorithm, Cost, Limit, Now, Plan, Span, StateId, Take, TakeReceipt, Timestamp, Written,
};
use tidegate_store::{Clock, Memory, Part, ReceiptId, Settlement};

/// How many seeds `make test` tries.
const RUNS: u64 = 10;
const THREADS: u64 = 4;
/// Calls of each thread, each a batch of up to 32.
const BATCHES: u64 = 150;
const KEYS: u64 = 1_500;
const MILLI: u64 = 1_000_000;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A limit of each kind that has a fast path, and one (the log) that has none.
struct Limits {
    window: Limit,
    bucket: Limit,
    log: Limit,
}

/// One take that passed.
struct Passed {
    key: u64,
    at: Timestamp,
    receipt: TakeReceipt,
}

/// One run: a store, and the clock that its threads move.
struct Run {
    limits: Limits,
    store: Memory,
    nanos: Arc<AtomicU64>,
    receipts: AtomicU64,
}

/// What one thread saw.
#[derive(Default)]
struct Seen {
    /// Takes that passed a window and were not given back.
    windows: Vec<Passed>,
    given_back: Vec<Passed>,
    buckets: Vec<Passed>,
    logs: Vec<Passed>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let limit = |algorithm| Limit::new(3, Span::from_millis(100), algorithm).unwrap();
        let limits = Limits {
            window: limit(Algorithm::FIXED_WINDOW),
            bucket: limit(Algorithm::TOKEN_BUCKET),
            log: limit(Algorithm::SLIDING_LOG),
        };
        let nanos = Arc::new(AtomicU64::new(NOW));
        let (shown, readings) = (Arc::clone(&nanos), AtomicU64::new(seed));
        let clock = Clock::borrowed(move || {
            let now = Now::at(Timestamp::from_nanos(shown.load(Ordering::SeqCst)));
            // Other threads go on while this thread has an old reading.
            if Dice::new(readings.fetch_add(1, Ordering::Relaxed)).roll(8) == 0 {
                thread::yield_now();
            }
            now
        });
        let store = Memory::with_budget(clock, 8 << 10);
        Self { limits, store, nanos, receipts: AtomicU64::new(0) }
    }

    /// Moves the clock: mostly by a part of a window, sometimes by more than a state may be ahead of a reading.
    fn move_clock(&self, dice: &mut Dice) {
        let step = if dice.roll(16) == 0 { 1_500 * MILLI } else { dice.roll(20 * MILLI) };
        self.nanos.fetch_add(step, Ordering::SeqCst);
    }

    /// A take of a random key. The key decides under which limit.
    fn take(&self, dice: &mut Dice) -> (u64, Take<'_>) {
        // Half of the takes go to a few keys, which are at their limits.
        let key = if dice.roll(2) == 0 { dice.roll(40) } else { dice.roll(KEYS) };
        let limit = match key % 5 {
            0 => &self.limits.log,
            1 => &self.limits.bucket,
            _ => &self.limits.window,
        };
        (key, Take::new(StateId(u128::from(key + 1)), limit, Cost::ONE))
    }

    /// The work of one thread.
    fn play(&self, mut dice: Dice) -> Seen {
        let mut seen = Seen::default();
        for _ in 0..BATCHES {
            let batch: Vec<_> = (0..=dice.roll(32)).map(|_| self.take(&mut dice)).collect();
            if dice.roll(3) == 0 {
                self.each(&batch, &mut seen);
            } else {
                self.plans(&batch, &mut seen);
            }
            if dice.roll(4) == 0 {
                self.give_back(&mut seen);
            }
            self.move_clock(&mut dice);
        }
        seen
    }

    /// Only takes under windows: an answer without a plan does not have its instant.
    fn each(&self, batch: &[(u64, Take<'_>)], seen: &mut Seen) {
        let windows = batch.iter().filter(|(_, take)| *take.limit == self.limits.window);
        let (keys, takes): (Vec<u64>, Vec<Take<'_>>) = windows.copied().unzip();
        for (key, taken) in keys.into_iter().zip(self.store.take_each_now(&takes)) {
            if let Some(receipt) = taken.receipt {
                seen.windows.push(Passed { key, at: Timestamp::EPOCH, receipt });
            }
        }
    }

    fn plans(&self, batch: &[(u64, Take<'_>)], seen: &mut Seen) {
        let plans: Vec<Plan<'_>> = batch.iter().map(|(_, take)| Plan::from(*take)).collect();
        let answers = self.store.take_batch_now(&plans);
        for ((key, take), answer) in batch.iter().zip(answers) {
            let Some(receipt) = answer.done.receipts[0] else { continue };
            let kind = if *take.limit == self.limits.log {
                &mut seen.logs
            } else if *take.limit == self.limits.bucket {
                &mut seen.buckets
            } else {
                &mut seen.windows
            };
            kind.push(Passed { key: *key, at: answer.at, receipt });
        }
    }

    /// Gives back the last take that passed a window, perhaps after the window has ended.
    fn give_back(&self, seen: &mut Seen) {
        let Some(Passed { key, at, receipt }) = seen.windows.pop() else { return };
        let state = StateId(u128::from(key + 1));
        let parts = [Part { state, limit: &self.limits.window, receipt }];
        let id = ReceiptId(u128::from(self.receipts.fetch_add(1, Ordering::Relaxed)));
        self.store.give_back_now(&Settlement { id, until: Timestamp::END, parts: &parts });
        seen.given_back.push(Passed { key, at, receipt });
    }
}

/// How many windows passed more than their limit. Takes that were given back are not counted, though they may have come back too
/// late to make room. That can hide an over-admission, and never invents one.
fn windows_over(limit: &Limit, seen: &[Seen]) -> usize {
    let mut windows: HashMap<(u64, u64), u64> = HashMap::new();
    for passed in seen.iter().flat_map(|seen| &seen.windows) {
        *windows.entry((passed.key, passed.receipt.mark)).or_default() += passed.receipt.weight;
    }
    windows.values().filter(|count| **count > limit.capacity()).count()
}

/// How many keys passed takes that the core refuses when it decides them in the order of their instants.
///
/// That order is as strict as any other: a log or a bucket keeps its limit in every span of time, in whichever order its takes
/// were counted.
fn keys_over(limit: &Limit, passed: &[&Passed]) -> usize {
    let mut histories: BTreeMap<u64, Vec<Timestamp>> = BTreeMap::new();
    for passed in passed {
        histories.entry(passed.key).or_default().push(passed.at);
    }
    let conforms = |history: &mut Vec<Timestamp>| {
        history.sort_unstable();
        let mut written = [Written::empty(limit)];
        let plan = Plan::from(Take::new(StateId(1), limit, Cost::ONE));
        history.iter().all(|at| plan.take(Now::at(*at), &mut written).passes)
    };
    histories.values_mut().filter_map(|history| (!conforms(history)).then_some(())).count()
}

/// Runs one seed. Returns how many takes passed, and how many windows, logs and buckets passed too many.
fn run(seed: u64) -> (usize, usize) {
    let run = Run::new(seed);
    let dice = |thread: u64| Dice::new(seed * THREADS + thread + 1);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let play = |thread| {
            let run = &run;
            scope.spawn(move || run.play(dice(thread)))
        };
        let threads: Vec<_> = (0..THREADS).map(play).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(run.store.gauges().demotions > 0, "the store never was full");
    let logs: Vec<&Passed> = seen.iter().flat_map(|seen| &seen.logs).collect();
    let buckets: Vec<&Passed> = seen.iter().flat_map(|seen| &seen.buckets).collect();
    let windows = seen.iter().map(|seen| seen.windows.len()).sum::<usize>();
    let over = windows_over(&run.limits.window, &seen)
        + keys_over(&run.limits.log, &logs)
        + keys_over(&run.limits.bucket, &buckets);
    (windows + logs.len() + buckets.len(), over)
}

#[test]
fn no_window_passes_its_limit_in_a_full_store_with_batches_and_a_moving_clock() {
    let (runs, first) =
        (setting("STRESS_RUNS").unwrap_or(RUNS), setting("STRESS_SEED").unwrap_or(1));
    let (mut passed, mut over) = (0, Vec::new());
    for seed in first..first + runs {
        let (takes, windows) = run(seed);
        passed += takes;
        if windows > 0 {
            over.push((seed, windows));
        }
    }
    println!("{runs} runs, {passed} takes passed, over the limit in {} runs: {over:?}", over.len());
    assert!(over.is_empty(), "seeds and how many windows were over: {over:?}");
}
