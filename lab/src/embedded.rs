//! The store in memory against the crates that people embed today, on the same keys and in one run.
//!
//! All of them limit each of a million keys to 15 per second. tidegate hashes the key under the store's
//! secret, identifies the state, and returns a complete answer: what remains, when to retry, and a receipt.
//! `governor` runs with its default clock and store. `throttlecrab` is made for one thread, so it is behind a
//! mutex.

#![expect(clippy::float_arithmetic, reason = "rates and bytes, for people")]

use crate::rounds::{Comparison, float, median, rate, write_section};
use clap::Args;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::borrow::Borrow;
use std::hash::Hash;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::thread;
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
use tidegate_store::{Clock, KeyName, LimitName, Memory, Secret};

/// The command-line options of `lab embedded`.
#[derive(Args)]
pub(crate) struct EmbeddedOptions {
    /// Print one line of JSON per case
    #[arg(long)]
    json: bool,
    /// Run only the cases whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// Write the section of BENCHMARKS.md
    #[arg(long)]
    write: bool,
    /// Measure only tidegate, for a profiler
    #[arg(long, hide = true)]
    alone: bool,
    /// Number of rounds, of which the median counts
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Number of keys for the `bytes` cases of algorithms with small states
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
}

/// Number of different keys.
const KEYS: u32 = 1_000_000;
/// Takes per thread and round.
const TAKES: usize = 1 << 20;
const PER_SECOND: u32 = 15;

/// One combination of keys, threads and batch size.
struct StoreCase {
    name: String,
    threads: usize,
    batch: usize,
    spread: Spread,
    text: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Spread {
    Uniform,
    Zipf,
    Hot,
}

pub(crate) fn run(options: &EmbeddedOptions) -> Result<(), String> {
    let mut rows = Vec::new();
    // First: later, the process could reuse memory that it has freed, and the figure would be too small.
    let governor = governor_bytes(options.keys);
    for case in cases().iter().filter(|case| case.name.contains(&options.only)) {
        measure(case, options, &mut rows)?;
    }
    measure_bytes(options, governor, &mut rows)?;
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

const TITLE: &str = "The table in memory";
const TEXT: &str = "\
Decisions per second of the store in memory, without a network, against the crates that people embed: a million keys,
each with a limit of 15 per second. The case names combine:

- `u64` or `str25`: the key is an integer, or a string of 25 bytes. Strings are in memory in the order in which they are
  used, like the keys of requests that have just been read.
- `uniform`, `zipf` or `hot`: all keys are equally frequent, a few are very frequent (Zipf's law), or one key is used
  all the time.
- `single`, `batch16` or `batch64`: one take per call, or 16 or 64.
- `1t` or `2t`: threads.

tidegate hashes the key under a secret, identifies the state, and returns what remains, when to retry, and a receipt.
The peers return yes or no, and when to retry.

**What a batch ratio measures.** A batch reads the clock once and prefetches the memory that it will need. The peers
have no such call, so the ratio compares one batch of tidegate with the same number of single calls of the peer. It
shows what a server gains that has many requests at hand. It does not show how much faster one request is; `single`
shows that.

`bytes`: the memory per key, under a limit of 500 per hour that is used up. It is the smallest budget that holds all
keys without demoting any, divided by their number: a million keys for states of one word, 20,000 for sub-windows,
10,000 for logs. The peer is what governor adds to the resident memory for each `u64` key, or the figure of the textbook
answer (`textbook`).";

fn cases() -> Vec<StoreCase> {
    let mut cases = Vec::new();
    for (key, text) in [("u64", false), ("str25", true)] {
        for (spread_name, spread) in
            [("uniform", Spread::Uniform), ("zipf", Spread::Zipf), ("hot", Spread::Hot)]
        {
            for (how, batch) in [("single", 1), ("batch16", 16), ("batch64", 64)] {
                for threads in [1, 2] {
                    let name = format!("{key}-{spread_name}-{how}-{threads}t");
                    cases.push(StoreCase { name, threads, batch, spread, text });
                }
            }
        }
    }
    cases
}

fn measure(
    case: &StoreCase,
    options: &EmbeddedOptions,
    rows: &mut Vec<String>,
) -> Result<(), String> {
    let turns: Vec<Vec<u32>> =
        (1..).take(case.threads).map(|seed| turns(case.spread, seed)).collect();
    let ours = OurStore::new()?;
    let rounds = Rounds { case, options, ours: &ours };
    let rates =
        if case.text { rounds.with_text_keys(&turns)? } else { rounds.with_numbers(&turns)? };
    // The first round fills the tables.
    let [ours, governor, crab] = rates.map(|rates| median(rates.into_iter().skip(1).collect()));
    for (peer, peer_name) in [(governor, "governor"), (crab, "throttlecrab")] {
        if peer > 0.0 || (options.alone && peer_name == "governor") {
            let (bench, unit) = ("embedded", "1/s");
            let row = Comparison { bench, case: &case.name, ours, peer, peer_name, unit };
            rows.push(row.print(options.json));
        }
    }
    Ok(())
}

/// The alternating rounds of one case.
struct Rounds<'r> {
    case: &'r StoreCase,
    options: &'r EmbeddedOptions,
    ours: &'r OurStore,
}

/// The takes per second of each round: tidegate's, governor's and throttlecrab's.
type Rates = [Vec<f64>; 3];

impl Rounds<'_> {
    /// Keys of 25 bytes, against both peers.
    fn with_text_keys(&self, turns: &[Vec<u32>]) -> Result<Rates, String> {
        // In the order of their use, because a caller has just read its key from a request.
        let text = |turn: &u32| format!("customer-{:016x}", number(*turn));
        let keys: Vec<Vec<String>> =
            turns.iter().map(|turns| turns.iter().map(text).collect()).collect();
        let governor: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota(PER_SECOND)?);
        let (crab, mut rates) = (Mutex::new(crab()), Rates::default());
        for _ in 0..=self.options.rounds {
            let [our_rates, governor_rates, crab_rates] = &mut rates;
            our_rates.push(self.rate(&keys, |keys| {
                self.ours.take_all(keys, self.case.batch, |key| self.ours.take(key.as_bytes()));
            }));
            if self.options.alone {
                continue;
            }
            governor_rates.push(self.rate(&keys, |keys| governed(&governor, keys.iter())));
            crab_rates.push(self.rate(&keys, |keys| crabbed(&crab, keys)));
        }
        Ok(rates)
    }

    /// Keys that are integers, against governor; throttlecrab takes only text.
    fn with_numbers(&self, turns: &[Vec<u32>]) -> Result<Rates, String> {
        let governor: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(quota(PER_SECOND)?);
        let mut rates = Rates::default();
        for _ in 0..=self.options.rounds {
            let [our_rates, governor_rates, _] = &mut rates;
            our_rates.push(self.rate(turns, |turns| {
                let take = |turn: &u32| self.ours.take(&number(*turn).to_le_bytes());
                self.ours.take_all(turns, self.case.batch, take);
            }));
            if self.options.alone {
                continue;
            }
            governor_rates.push(self.rate(turns, |turns| {
                governed(&governor, turns.iter().map(|turn| number(*turn)));
            }));
        }
        Ok(rates)
    }

    /// Works through each list of keys on a thread of its own, and returns the takes per second of all threads.
    fn rate<K: Sync>(&self, keys: &[Vec<K>], work: impl Fn(&[K]) + Sync) -> f64 {
        let takes = u32::try_from(TAKES.saturating_mul(self.case.threads)).unwrap_or(0);
        rate(f64::from(takes), || {
            thread::scope(|scope| {
                for keys in keys {
                    let work = &work;
                    scope.spawn(move || work(keys));
                }
            });
        })
    }
}

pub(crate) fn quota(per_second: u32) -> Result<Quota, String> {
    Ok(Quota::per_second(NonZeroU32::new(per_second).ok_or("the limit is 0")?))
}

/// The sequence of keys that one thread uses.
fn turns(spread: Spread, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut dice = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u32::try_from(state >> 32).unwrap_or(0)
    };
    let mut turn = move || match spread {
        Spread::Hot => 7,
        Spread::Uniform => dice() % KEYS,
        // Zipf's law: key k is about 1/k as frequent as the first.
        Spread::Zipf => dice().checked_rem(KEYS >> (dice() % 20)).unwrap_or(0),
    };
    (0..TAKES).map(|_| turn()).collect()
}

// === the three limiters ===

pub(crate) struct OurStore {
    store: Memory,
    secret: Secret,
    key: KeyName,
    name: LimitName,
    limit: Limit,
}

impl OurStore {
    fn new() -> Result<Self, String> {
        let limit = Limit::new(u64::from(PER_SECOND), Span::from_secs(1), Algorithm::TOKEN_BUCKET);
        Self::with_limit(limit.map_err(|error| error.to_string())?)
    }

    pub(crate) fn with_limit(limit: Limit) -> Result<Self, String> {
        Ok(Self {
            store: Memory::new(Clock::system()),
            // Always the same, so that the states are in the same buckets in every run.
            secret: Secret::new([7; 32]),
            key: KeyName::new(["user"]),
            name: LimitName::new("per-user", "s", &limit),
            limit,
        })
    }

    pub(crate) fn take(&self, key: &[u8]) -> Take<'_> {
        let state = self.secret.subject_by(self.key, key).state(self.name);
        Take::new(state, &self.limit, Cost::ONE)
    }

    pub(crate) fn take_all<'l, K>(&self, keys: &[K], batch: usize, take: impl Fn(&K) -> Take<'l>) {
        if batch == 1 {
            for key in keys {
                black_box(self.store.take_one_now(&take(key)));
            }
            return;
        }
        let mut takes = Vec::with_capacity(batch);
        for keys in keys.chunks(batch) {
            takes.extend(keys.iter().map(&take));
            black_box(self.store.take_each_now(&takes));
            takes.clear();
        }
    }
}

/// The key of a turn. It is computed and not read from memory, so that only the limiter's memory accesses are
/// measured.
pub(crate) fn number(turn: u32) -> u64 {
    u64::from(turn).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn governed<K: Hash + Eq + Clone, B: Borrow<K>>(
    governor: &DefaultKeyedRateLimiter<K>,
    keys: impl Iterator<Item = B>,
) {
    for key in keys {
        let _ = black_box(governor.check_key(key.borrow()));
    }
}

type Crab = throttlecrab::RateLimiter<throttlecrab::PeriodicStore>;

fn crab() -> Crab {
    // Not its adaptive store: that one scans all keys every few thousand takes, which adds up to minutes.
    let keys = usize::try_from(KEYS).unwrap_or(0);
    throttlecrab::RateLimiter::new(throttlecrab::PeriodicStore::with_capacity(keys))
}

#[expect(clippy::disallowed_methods, reason = "throttlecrab takes the time of day as an argument")]
fn crabbed(crab: &Mutex<Crab>, keys: &[String]) {
    for key in keys {
        let Ok(mut crab) = crab.lock() else { return };
        let per_second = i64::from(PER_SECOND);
        let now = std::time::SystemTime::now();
        let _ = black_box(crab.rate_limit(key, per_second, per_second, 1, 1, now));
    }
}

// === bytes per key ===

/// Measures the bytes per key of each algorithm, and adds a row for each.
fn measure_bytes(
    options: &EmbeddedOptions,
    governor: f64,
    rows: &mut Vec<String>,
) -> Result<(), String> {
    for algorithm in Algorithm::ALL {
        let name = format!("bytes-{}", algorithm.name());
        if !name.contains(&options.only) {
            continue;
        }
        let limit = Limit::new(500, Span::from_secs(3_600), algorithm)
            .map_err(|error| error.to_string())?;
        let ours = bytes_per_key(&limit, &Filling::of(algorithm, options.keys));
        let (peer, peer_name) = bytes_of_peer(algorithm, governor);
        let (bench, unit) = ("embedded", "B/key");
        let row = Comparison { bench, case: &name, ours, peer, peer_name, unit };
        rows.push(row.print(options.json));
    }
    Ok(())
}

/// How the states of an algorithm are filled to their largest size.
struct Filling {
    keys: u64,
    /// Takes per key.
    takes: u64,
    /// More bytes per key than any state needs: where the search for the smallest budget begins.
    enough: u64,
}

impl Filling {
    /// Algorithms that need many takes per key are measured with fewer keys.
    fn of(algorithm: Algorithm, keys: u64) -> Self {
        match algorithm {
            Algorithm::SlidingLog | Algorithm::Concurrent => {
                Self { keys: keys / 100, takes: 500, enough: 1_500 }
            }
            Algorithm::SlidingBuckets { .. } => Self { keys: keys / 50, takes: 61, enough: 320 },
            Algorithm::FixedWindow { .. }
            | Algorithm::SlidingWeighted
            | Algorithm::TokenBucket { .. }
            | Algorithm::LeakyBucket { .. } => Self { keys, takes: 1, enough: 60 },
        }
    }
}

/// What the state is compared with: what governor was measured to use, or the figure of the textbook.
fn bytes_of_peer(algorithm: Algorithm, governor: f64) -> (f64, &'static str) {
    match algorithm {
        Algorithm::FixedWindow { .. } => (36.0, "textbook"),
        Algorithm::SlidingLog | Algorithm::Concurrent => (12_000.0, "textbook"),
        Algorithm::SlidingBuckets { .. } => (1_600.0, "textbook"),
        Algorithm::TokenBucket { .. }
        | Algorithm::SlidingWeighted
        | Algorithm::LeakyBucket { .. } => (governor, "governor"),
    }
}

/// The smallest budget that holds all keys without demoting any, divided by their number. Found by bisection.
fn bytes_per_key(limit: &Limit, filling: &Filling) -> f64 {
    let keys = filling.keys;
    let (mut too_small, mut enough) = (keys.saturating_mul(4), keys.saturating_mul(filling.enough));
    while enough.saturating_sub(too_small) > keys / 8 {
        let budget = too_small.midpoint(enough);
        if holds(limit, filling, budget) { enough = budget } else { too_small = budget }
    }
    float(enough) / float(keys)
}

/// Whether a store with this budget keeps all states, each of them full.
fn holds(limit: &Limit, filling: &Filling, budget: u64) -> bool {
    let start = tidegate_core::Timestamp::from_nanos(1_700_000_000_000_000_000);
    let store = Memory::with_budget(Clock::manual(start), usize::try_from(budget).unwrap_or(0));
    let states = states(limit, filling.keys);
    let takes = filling.takes;
    let apart = 3_590_000_000_000u64.checked_div(takes).unwrap_or(0);
    // The takes of one key together cost 500, unless one take already gives its state its full size.
    let cost = Cost::new(500u64.checked_div(takes).unwrap_or(1));
    let cost = if takes == 1 { Cost::ONE } else { cost };
    for take in 0..takes {
        let now = start.after(Span::from_nanos(take.saturating_mul(apart))).unwrap_or(start);
        store.clock().set(now);
        for state in &states {
            let Ok(plan) = Plan::new(Take::new(*state, limit, cost), Span::from_secs(3_600)) else {
                return false;
            };
            store.take_now(&plan);
        }
        if store.gauges().demotions > 0 {
            return false;
        }
    }
    true
}

fn states(limit: &Limit, keys: u64) -> Vec<StateId> {
    let secret = Secret::new([7; 32]);
    let (by_user, name) = (KeyName::new(["user"]), LimitName::new("bytes", "h", limit));
    (0..keys).map(|key| secret.subject_by(by_user, &key.to_le_bytes()).state(name)).collect()
}

/// What governor adds to the resident memory of this process, per key.
fn governor_bytes(keys: u64) -> f64 {
    let Some(quota) = NonZeroU32::new(PER_SECOND).map(Quota::per_second) else { return 0.0 };
    let before = resident();
    let governor: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(quota);
    for key in 0..keys {
        let _ = black_box(governor.check_key(&key));
    }
    float(resident().saturating_sub(before)) / float(keys)
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(4_096)
}
