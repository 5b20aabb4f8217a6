//! The table in this process against the crates that people embed today, on the same keys, in one run.
//!
//! All of them limit each of a million keys to 15 a second. OurStore hashes the key under the store's secret, names the
//! state, and gets a whole answer: what remains, when to come back, a receipt. `governor` runs on its
//! default clock and store; `throttlecrab` is made for one thread and stands behind a lock.

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
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, Take};
use tidegate_store::{Clock, KeyName, LimitName, Memory, Secret};

/// What the experiment takes from the command line.
#[derive(Args)]
pub(crate) struct EmbeddedOptions {
    /// Prints a line of JSON for each case.
    #[arg(long)]
    json: bool,
    /// Only cases whose name holds this.
    #[arg(long, default_value = "")]
    only: String,
    /// Writes its section of BENCHMARKS.md.
    #[arg(long)]
    write: bool,
    /// Measures ours alone, for a profile.
    #[arg(long, hide = true)]
    alone: bool,
    /// Rounds whose median counts.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Keys of which bytes are counted, for states of one word.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
}

/// Keys that take turns.
const KEYS: u32 = 1_000_000;
/// Takes of one thread in a round.
const TAKES: usize = 1 << 20;
const A_SECOND: u32 = 15;

/// Keys as they come, and how a limiter takes them.
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
    // First, while this process has nothing that it could use again.
    let resident = governor_bytes(options.keys);
    for case in cases().iter().filter(|case| case.name.contains(&options.only)) {
        measure(case, options, &mut rows)?;
    }
    bytes(options, resident, &mut rows)?;
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
answer (`seed`).";

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
    let limit = Limit::new(u64::from(A_SECOND), Span::from_secs(1), Algorithm::TOKEN_BUCKET)
        .map_err(|error| error.to_string())?;
    let ours = OurStore {
        store: Memory::new(Clock::system()),
        secret: Secret::random().map_err(|error| error.to_string())?,
        key: KeyName::new(["user"]),
        name: LimitName::new("per-user", "s", &limit),
        limit,
    };
    let quota = Quota::per_second(NonZeroU32::new(A_SECOND).ok_or("no limit")?);
    let mut rates: [Vec<f64>; 3] = Default::default();
    let operations = f64::from(u32::try_from(TAKES.saturating_mul(case.threads)).unwrap_or(0));
    let [our_rates, governor_rates, crab_rates] = &mut rates;
    if case.text {
        // In the order in which they come: whoever asks has just read its key from somewhere.
        let text = |turn: &u32| format!("customer-{:016x}", number(*turn));
        let keys: Vec<Vec<String>> =
            turns.iter().map(|turns| turns.iter().map(text).collect()).collect();
        let governor: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota);
        let crab = Mutex::new(crab());
        for _ in 0..=options.rounds {
            our_rates.push(rate(operations, || {
                each(&keys, |keys| {
                    ours.take_all(keys, case.batch, |key| ours.take(key.as_bytes()));
                });
            }));
            if options.alone {
                continue;
            }
            governor_rates.push(rate(operations, || {
                each(&keys, |keys| governed(&governor, keys.iter()));
            }));
            crab_rates.push(rate(operations, || {
                each(&keys, |keys| crabbed(&crab, keys));
            }));
        }
    } else {
        let governor: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(quota);
        for _ in 0..=options.rounds {
            our_rates.push(rate(operations, || {
                each(&turns, |turns| {
                    ours.take_all(turns, case.batch, |turn| {
                        ours.take(&number(*turn).to_le_bytes())
                    });
                });
            }));
            if options.alone {
                continue;
            }
            governor_rates.push(rate(operations, || {
                each(&turns, |turns| governed(&governor, turns.iter().map(|turn| number(*turn))));
            }));
        }
    }
    // The first round fills the tables.
    let [ours, governor, crab] = rates.map(|rates| median(rates.into_iter().skip(1).collect()));
    for (peer, peer_name) in [(governor, "governor"), (crab, "throttlecrab")] {
        if peer > 0.0 || (options.alone && peer_name == "governor") {
            let line = Comparison {
                bench: "embedded",
                case: &case.name,
                ours,
                peer,
                peer_name,
                unit: "1/s",
            };
            rows.push(line.print(options.json));
        }
    }
    Ok(())
}

/// Which key comes when.
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
        // Key k comes about 1/k as often as the first.
        Spread::Zipf => dice().checked_rem(KEYS >> (dice() % 20)).unwrap_or(0),
    };
    (0..TAKES).map(|_| turn()).collect()
}

/// Runs each list of keys on a thread of its own.
fn each<K: Sync>(keys: &[Vec<K>], work: impl Fn(&[K]) + Sync) {
    thread::scope(|scope| {
        for keys in keys {
            let work = &work;
            scope.spawn(move || work(keys));
        }
    });
}

// === the three ===

struct OurStore {
    store: Memory,
    secret: Secret,
    key: KeyName,
    name: LimitName,
    limit: Limit,
}

impl OurStore {
    fn take(&self, key: &[u8]) -> Take<'_> {
        let state = self.secret.subject_by(self.key, key).state(self.name);
        Take::new(state, &self.limit, Cost::ONE)
    }

    fn take_all<'l, K>(&self, keys: &[K], batch: usize, take: impl Fn(&K) -> Take<'l>) {
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

/// The key whose turn it is, as a number that is nowhere in memory: what is measured is the limiter.
fn number(turn: u32) -> u64 {
    u64::from(turn).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn governed<K: Hash + Eq + Clone, B: Borrow<K>>(
    governor: &DefaultKeyedRateLimiter<K>,
    keys: impl Iterator<Item = B>,
) {
    for key in keys {
        let _ = black_box(governor.check_key(key.borrow()));
    }
}

type Crab = throttlecrab::RateLimiter<throttlecrab::PeriodicStore>;

fn crab() -> Crab {
    // Its adaptive store looks at all keys every few thousand takes, for minutes in all.
    let keys = usize::try_from(KEYS).unwrap_or(0);
    throttlecrab::RateLimiter::new(throttlecrab::PeriodicStore::with_capacity(keys))
}

#[expect(clippy::disallowed_methods, reason = "the peer wants the time of day")]
fn crabbed(crab: &Mutex<Crab>, keys: &[String]) {
    for key in keys {
        let Ok(mut crab) = crab.lock() else { return };
        let per_second = i64::from(A_SECOND);
        let now = std::time::SystemTime::now();
        let _ = black_box(crab.rate_limit(key, per_second, per_second, 1, 1, now));
    }
}

// === bytes ===

/// The smallest budget that holds so many keys without demoting any, for each algorithm.
fn bytes(options: &EmbeddedOptions, resident: f64, rows: &mut Vec<String>) -> Result<(), String> {
    for algorithm in Algorithm::ALL {
        let name = format!("bytes-{}", algorithm.name());
        if !name.contains(&options.only) {
            continue;
        }
        let limit = Limit::new(500, Span::from_secs(3_600), algorithm)
            .map_err(|error| error.to_string())?;
        // States that are written five hundred times are counted on fewer keys.
        let (keys, takes, most) = match algorithm {
            Algorithm::SlidingLog => (options.keys / 100, 500, 1_500),
            Algorithm::SlidingBuckets { .. } => (options.keys / 50, 61, 320),
            Algorithm::FixedWindow { .. }
            | Algorithm::SlidingWeighted
            | Algorithm::TokenBucket { .. }
            | Algorithm::LeakyBucket { .. } => (options.keys, 1, 60),
        };
        let ours = smallest(&limit, keys, takes, most);
        let (peer, peer_name) = match algorithm {
            Algorithm::TokenBucket { .. } => (resident, "governor"),
            Algorithm::FixedWindow { .. } => (36.0, "seed"),
            Algorithm::SlidingLog => (12_000.0, "seed"),
            Algorithm::SlidingBuckets { .. } => (1_600.0, "seed"),
            Algorithm::SlidingWeighted | Algorithm::LeakyBucket { .. } => (resident, "governor"),
        };
        let line =
            Comparison { bench: "embedded", case: &name, ours, peer, peer_name, unit: "B/key" };
        rows.push(line.print(options.json));
    }
    Ok(())
}

/// Bytes a key of the smallest budget.
fn smallest(limit: &Limit, keys: u64, takes: u64, most: u64) -> f64 {
    let (mut too_small, mut enough) = (keys.saturating_mul(4), keys.saturating_mul(most));
    while enough.saturating_sub(too_small) > keys / 8 {
        let budget = too_small.midpoint(enough);
        if holds(limit, keys, takes, budget) { enough = budget } else { too_small = budget }
    }
    float(enough) / float(keys)
}

fn holds(limit: &Limit, keys: u64, takes: u64, budget: u64) -> bool {
    let start = tidegate_core::Timestamp::from_nanos(1_700_000_000_000_000_000);
    let store = Memory::with_budget(Clock::manual(start), usize::try_from(budget).unwrap_or(0));
    let secret = Secret::new([7; 32]);
    let (by_user, name) = (KeyName::new(["user"]), LimitName::new("bytes", "h", limit));
    let states: Vec<_> =
        (0..keys).map(|key| secret.subject_by(by_user, &key.to_le_bytes()).state(name)).collect();
    let apart = 3_590_000_000_000u64.checked_div(takes).unwrap_or(0);
    for take in 0..takes {
        let now = start.after(Span::from_nanos(take.saturating_mul(apart))).unwrap_or(start);
        store.clock().set(now);
        // All of a key's 500, in as many takes as it needs sub-windows or entries.
        let cost = Cost::new(500u64.checked_div(takes).unwrap_or(1));
        let cost = if takes == 1 { Cost::ONE } else { cost };
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

/// What the peer adds to this process for each key.
fn governor_bytes(keys: u64) -> f64 {
    let Some(quota) = NonZeroU32::new(A_SECOND).map(Quota::per_second) else { return 0.0 };
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
