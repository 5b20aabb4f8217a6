//! A flood of 100 million unknown clients through a memory budget of 256 MiB. It checks that a client that
//! has used up its limit gains nothing, that few new clients lose some of theirs, and that the store stays as
//! fast as before.
//!
//! Every unknown client sends one request under a limit of 20 per day. A *victim* has used up its 20 before
//! the flood, and tries again after each tenth of it. *Newcomers* arrive after the flood, and send requests
//! until they are refused. At the end, keys that collide under hash functions that hash tables commonly use
//! are compared with random keys.

#![expect(clippy::float_arithmetic, reason = "times and bytes, for people")]

use crate::rounds::{float, median};
use crate::say;
use clap::Args;
use std::hint::black_box;
use std::thread;
use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, Take, Timestamp};
use tidegate_store::{Clock, KeyName, LimitName, Memory, Secret};

/// The command-line options of `lab flood`.
#[derive(Args)]
pub(crate) struct FloodOptions {
    /// Number of unknown clients, in millions
    #[arg(long, default_value_t = 100)]
    millions: u64,
    /// The memory budget of the store, in MiB
    #[arg(long, default_value_t = 256)]
    budget: usize,
    /// Print lines of JSON
    #[arg(long)]
    json: bool,
}

const PER_DAY: u64 = 20;
const THREADS: u64 = 2;
/// One take of 64 is timed.
const TIMED: u64 = 64;
const NEWCOMERS: u64 = 1_000;
/// Rounds in which colliding and random keys are compared.
const ROUNDS: u64 = 5;
const KEYS: u64 = 1_000_000;

/// A store, and the one limit that all clients have.
struct LimitedStore {
    store: Memory,
    secret: Secret,
    limit: Limit,
    key: KeyName,
    name: LimitName,
}

pub(crate) fn run(options: &FloodOptions) -> Result<(), String> {
    let budget = options.budget << 20;
    let before = status("VmRSS:");
    let limited = LimitedStore::new(budget)?;
    let victim = key(u64::MAX, 1);
    let taken = limited.passes(&victim, PER_DAY);
    let (gained, growth) = flood_in_tenths(options, &limited, &victim);
    let got = (0..NEWCOMERS).map(|n| limited.passes(&key(n, 2), PER_DAY)).min();
    let peak = status("VmHWM:").saturating_sub(before);
    let allowed = float(u64::try_from(budget).unwrap_or(0)) * 1.05 + float(40 << 20);
    report(options.json, "peak-mib", float(peak) / float(1 << 20), allowed / float(1 << 20), true);
    report(options.json, "victim-used", float(taken), float(PER_DAY), false);
    report(options.json, "victim-gained", float(gained), 0.0, true);
    report(options.json, "newcomer-least", float(got.unwrap_or(0)), 10.0, false);
    report(options.json, "p99-last-to-first", growth, 3.0, true);
    drop(limited);
    collisions(options)
}

/// Sends the whole flood. Returns how many takes of the victim passed, and the p99 of the last tenth divided by that of
/// the first.
fn flood_in_tenths(
    options: &FloodOptions,
    limited: &LimitedStore,
    victim: &[u8; 16],
) -> (u64, f64) {
    let tenth = options.millions.saturating_mul(1_000_000) / 10;
    let (mut gained, mut p99s) = (0u64, Vec::new());
    for part in 0..10 {
        let times = flood(limited, part, tenth);
        gained = gained.saturating_add(limited.passes(victim, PER_DAY));
        let [p50, p99] = percentiles(times, [50, 99]);
        let gauges = limited.store.gauges();
        say(&format!(
            "{:>3} % of {} M clients: p50 {p50:.0} ns, p99 {p99:.0} ns, {} entries, {} MiB, {} demoted, a new client starts with a count of {:.3}",
            (part.saturating_add(1)).saturating_mul(10),
            options.millions,
            gauges.entries,
            gauges.bytes >> 20,
            gauges.demotions,
            float(gauges.overcount_thousandths) / 1_000.0
        ));
        p99s.push(p99);
    }
    let (first, last) = (p99s.first().copied().unwrap_or(1.0), p99s.last().copied().unwrap_or(0.0));
    (gained, last / first)
}

/// Sends a tenth of the flood on two threads, and returns the latencies of the timed takes in nanoseconds.
fn flood(limited: &LimitedStore, part: u64, clients: u64) -> Vec<f64> {
    thread::scope(|scope| {
        let each = clients / THREADS;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let from = part.saturating_mul(clients).saturating_add(thread.saturating_mul(each));
                scope.spawn(move || limited.time(from..from.saturating_add(each), |n| key(n, 0)))
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    })
}

/// Makes the n-th key of a kind.
type KeyMaker = fn(u64) -> [u8; 16];

/// Compares keys that collide under weak hash functions with random keys.
fn collisions(options: &FloodOptions) -> Result<(), String> {
    /// The inverse modulo 2⁶⁴ of the multiplier of `FxHash`: products with it are small numbers again.
    const FX_INVERSE: u64 = inverse(0x517c_c1b7_2722_0a95);
    let kinds: [(&str, KeyMaker); 3] = [
        ("collide-identity", |n| both(n << 40)),
        ("collide-fx", |n| both((n << 40).wrapping_mul(FX_INVERSE))),
        ("collide-slot", |n| {
            // The same hash tag (the text in braces), by which a Redis Cluster chooses the slot.
            let mut key = *b"{same}----------";
            for (to, byte) in key.iter_mut().skip(8).zip(n.to_be_bytes()) {
                *to = byte;
            }
            key
        }),
    ];
    for (name, kind) in kinds {
        let ratios: Result<Vec<f64>, String> =
            (0..ROUNDS).map(|round| collision_ratio(options, kind, round)).collect();
        report(options.json, name, median(ratios?), 2.0, true);
    }
    Ok(())
}

/// The p99 with colliding keys, divided by the p99 with random keys. Each is measured in an empty store.
fn collision_ratio(options: &FloodOptions, kind: KeyMaker, round: u64) -> Result<f64, String> {
    let budget = options.budget << 20;
    let random = |n: u64| key(n, round.saturating_add(7));
    let [colliding] = percentiles(LimitedStore::new(budget)?.time(0..KEYS, kind), [99]);
    let [random] = percentiles(LimitedStore::new(budget)?.time(0..KEYS, random), [99]);
    Ok(colliding / random)
}

impl LimitedStore {
    fn new(budget: usize) -> Result<Self, String> {
        let limit = Limit::new(PER_DAY, Span::from_secs(86_400), Algorithm::FIXED_WINDOW)
            .map_err(|error| error.to_string())?;
        let now = Timestamp::from_nanos(1_700_000_000_000_000_000);
        let store = Memory::with_budget(Clock::manual(now), budget);
        let name = LimitName::new("per-ip", "d", &limit);
        Ok(Self {
            store,
            secret: Secret::random().map_err(|error| error.to_string())?,
            limit,
            key: KeyName::new(["ip"]),
            name,
        })
    }

    fn take(&self, key: &[u8; 16]) -> bool {
        let state = self.secret.subject_by(self.key, key).state(self.name);
        let plan = Plan::new(Take::new(state, &self.limit, Cost::ONE), Span::ZERO);
        plan.is_ok_and(|plan| black_box(self.store.take_now(&plan)).done.passes)
    }

    /// How many of `takes` takes pass.
    fn passes(&self, key: &[u8; 16], takes: u64) -> u64 {
        (0..takes).map(|_| u64::from(self.take(key))).sum()
    }

    /// Takes once from each key, and returns the latencies of the timed takes in nanoseconds.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
    fn time(&self, numbers: std::ops::Range<u64>, key: impl Fn(u64) -> [u8; 16]) -> Vec<f64> {
        let mut times = Vec::new();
        for n in numbers {
            let key = key(n);
            if n % TIMED == 0 {
                let start = std::time::Instant::now();
                self.take(&key);
                times.push(start.elapsed().as_secs_f64() * 1e9);
            } else {
                self.take(&key);
            }
        }
        times
    }
}

/// The key of an unknown client, as long as an IPv6 address.
pub(crate) fn key(n: u64, kind: u64) -> [u8; 16] {
    let mixed = n.wrapping_add(kind << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (u128::from(mixed ^ (mixed >> 31)) << 64 | u128::from(n)).to_be_bytes()
}

fn both(n: u64) -> [u8; 16] {
    u128::from(n).to_be_bytes()
}

/// The inverse of an odd number modulo 2⁶⁴, by Newton's method.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0u32;
    while step < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step = u32::wrapping_add(step, 1);
    }
    inverse
}

pub(crate) fn percentiles<const N: usize>(mut times: Vec<f64>, percents: [usize; N]) -> [f64; N] {
    times.sort_by(f64::total_cmp);
    let at = |percent| times.len().saturating_mul(percent) / 100;
    percents.map(|percent| times.get(at(percent)).copied().unwrap_or(0.0))
}

pub(crate) fn report(json: bool, case: &str, ours: f64, goal: f64, at_most: bool) {
    let (word, met) = if at_most { ("at most", ours <= goal) } else { ("at least", ours >= goal) };
    say(&if json {
        format!(
            "{{\"bench\":\"flood\",\"case\":\"{case}\",\"ours\":{ours:.2},\"goal\":{goal:.2},\"met\":{met}}}"
        )
    } else {
        format!(
            "{case:20} {ours:>10.2}   goal: {word} {goal:.2}   {}",
            if met { "met" } else { "MISSED" }
        )
    });
}

/// A memory figure of this process from `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1_024)
}
