//! The durable store against the store in memory: processor time and bytes at a constant rate, and how long a start takes.

#![expect(clippy::float_arithmetic, reason = "ratios, for people")]

mod servers;
mod steady_load;

use crate::rounds::{Comparison, float, median, write_section};
use clap::Args;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;
use steady_load::{Load, SteadyRun};
use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
use tidegate_store::{Clock, Durable, DurableSettings, Memory, Secret, StoreHealth};

/// The command-line options of `lab durable`.
#[derive(Args)]
pub(crate) struct DurableOptions {
    /// Print one line of JSON per case
    #[arg(long)]
    json: bool,
    /// Run only the cases whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
    /// Write the section of BENCHMARKS.md
    #[arg(long)]
    write: bool,
    /// Number of rounds, of which the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a round
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// The tidegate binary; by default the one in the directory of this program
    #[arg(long)]
    tidegate: Option<PathBuf>,
    /// The largest number of keys that are recovered, and that a snapshot has
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
}

const TITLE: &str = "The durable store";
const TEXT: &str = "\
The store `file:` against `memory:`, embedded, on the same takes and in one run. `cpu` is the processor time of the whole process,
with the threads that write and sync, for a second of one million takes in an open loop over a million keys: one take per call
(`single`) or 64 (`batch64`). `written` is what goes to the disk in that second; the peer is what the changed states alone would
take. `recovery` is the time to open a data directory of so many keys on one thread; the peer is reading its files once.

`resp-pipe64` and `resp-open` are servers with the two stores, over RESP, with 50 connections that send 64 commands together, in a closed
loop or a million a second. `snapshot` is how long one in a thousand callers waits at least, at 20,000 a second, while a snapshot of so many keys
is written, and afterwards.

Each changed state costs about 100 ns of processor time in all, for noting the change, collecting it and writing it. Of an embedded take that
is a third, of a take in a batch almost as much again, and of a take through the server a tenth.";

const KEYS: u64 = 1_000_000;

pub(crate) fn run(options: &DurableOptions) -> Result<(), String> {
    let mut rows = Vec::new();
    for (name, batch) in [("single", 1), ("batch64", 64)] {
        if name.contains(&options.only) {
            measure_load(name, batch, options, &mut rows)?;
        }
    }
    for keys in [options.keys / 10, options.keys] {
        let name = format!("recovery-{keys}");
        if name.contains(&options.only) {
            measure_recovery(&name, keys, options, &mut rows)?;
        }
    }
    rows.extend(servers::rows(options)?);
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

/// Rounds of memory and file take turns.
fn measure_load(
    name: &str,
    batch: usize,
    options: &DurableOptions,
    rows: &mut Vec<String>,
) -> Result<(), String> {
    let folder = Folder::new(name)?;
    let memory = Memory::with_budget(Clock::system(), 256 << 20);
    let (file, _) = open(&folder.0)?;
    let load = Load { keys: KEYS, per_second: 1_000_000, batch };
    let (mut in_memory, mut in_file) = (vec![], vec![]);
    for round in 0..=options.rounds {
        let one = load.run(&memory, options.seconds, None);
        let other = load.run(file.memory(), options.seconds, Some(&file));
        if round > 0 {
            in_memory.push(one);
            in_file.push(other);
        }
    }
    let of = |runs: &[SteadyRun], of: fn(&SteadyRun) -> f64| median(runs.iter().map(of).collect());
    let (ours, peer) = (of(&in_file, |run| run.cpu_millis), of(&in_memory, |run| run.cpu_millis));
    let case = format!("{name}-cpu");
    let row =
        Comparison { bench: "durable", case: &case, ours, peer, peer_name: "memory", unit: "ms/s" };
    rows.push(row.print(options.json));
    let ours = of(&in_file, |run| run.written_bytes / 1e6);
    let peer = of(&in_file, |run| run.changed_states * 18.0 / 1e6);
    let case = format!("{name}-written");
    let row =
        Comparison { bench: "durable", case: &case, ours, peer, peer_name: "states", unit: "MB/s" };
    rows.push(row.print(options.json));
    Ok(())
}

fn measure_recovery(
    name: &str,
    keys: u64,
    options: &DurableOptions,
    rows: &mut Vec<String>,
) -> Result<(), String> {
    let folder = Folder::new(name)?;
    let limit = limit()?;
    let (file, _) = open(&folder.0)?;
    for first in (0..keys).step_by(1_000) {
        let takes: Vec<Take<'_>> = (first..first.saturating_add(1_000))
            .map(|key| Take::new(id(key), &limit, Cost::ONE))
            .collect();
        file.memory().take_each_now(&takes);
    }
    drop(file);
    let (mut recovery, mut reading) = (vec![], vec![]);
    for _ in 0..options.rounds.min(3) {
        reading.push(millis(|| read_all(&folder.0))?);
        let mut opened = None;
        recovery.push(millis(|| open(&folder.0).map(|store| opened = Some(store)))?);
        let (store, recovered) = opened.ok_or("not opened")?;
        if recovered.states < keys {
            return Err(format!("{} of {keys} states are back", recovered.states));
        }
        drop(store);
    }
    let (ours, peer) = (median(recovery), median(reading));
    let row =
        Comparison { bench: "durable", case: name, ours, peer, peer_name: "reading", unit: "ms" };
    rows.push(row.print(options.json));
    Ok(())
}

fn limit() -> Result<Limit, String> {
    Limit::new(500, Span::from_secs(86_400), Algorithm::TOKEN_BUCKET)
        .map_err(|error| error.to_string())
}

/// The id of a key: spread like a hash.
fn id(key: u64) -> StateId {
    StateId(u128::from(key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn open(folder: &Path) -> Result<(Durable, tidegate_store::Recovered), String> {
    let settings = DurableSettings { budget: 512 << 20, ..DurableSettings::new(folder) };
    Durable::open(&settings, &Secret::new([7; 32]), Clock::system(), &mut |_, _| ())
        .map_err(|error| error.to_string())
}

/// Reads all files of a folder once.
fn read_all(folder: &Path) -> Result<(), String> {
    let mut buffer = vec![0; 1 << 20];
    for entry in fs::read_dir(folder).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let mut file = fs::File::open(path).map_err(|error| error.to_string())?;
        while file.read(&mut buffer).map_err(|error| error.to_string())? > 0 {}
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn millis(work: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

/// A folder of this benchmark, which is removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self, String> {
        let path = crate::root().join("target/durable-bench").join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bytes that a store has written.
fn written(store: &impl StoreHealth) -> f64 {
    float(store.durability().map_or(0, |report| report.bytes_written))
}
