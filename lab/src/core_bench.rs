//! One decision of each algorithm: how long it takes, how many instructions it needs, and how many bytes its
//! state has.
//!
//! Times on a shared machine vary by tens of percent, so the rounds of all algorithms alternate and the
//! median counts. Instructions do not vary: valgrind runs the same loop with few and with many decisions, and
//! the difference of the two counts, divided by the difference in decisions, is the cost of one decision.

use crate::{root, say};
use clap::Args;
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::process::Command;
use tidegate_core::{Algorithm, Ask, Cost, Limit, Refill, Span, Timestamp, Written};

/// The command-line options of `lab core`.
#[derive(Args)]
pub(crate) struct CoreOptions {
    /// Only run the loop of this case, with this many decisions: what valgrind measures
    #[arg(long, num_args = 2, value_names = ["CASE", "TIMES"], hide = true)]
    watched: Option<Vec<String>>,
    /// Print the result without rewriting BENCHMARKS.md
    #[arg(long)]
    dry: bool,
}

/// Number of rounds, of which the median counts.
const ROUNDS: usize = 9;
/// Decisions per round. They take some milliseconds, which is longer than one time slice of the scheduler.
const TIMES: u64 = 200_000;
/// Decisions of the two runs under valgrind.
const WATCHED: [u64; 2] = [1_000, 11_000];
/// The current time of the benchmark: a realistic one, so that ticks and window numbers are as large as in
/// production.
const NOW: u64 = 1_800_000_000_000_000_000;

/// Under a limit of 500 per hour a token is refilled every 7.2 s.
const ABOVE_A_TOKEN: u64 = 7_920_000_000;
const A_TENTH_OF_A_TOKEN: u64 = 720_000_000;

/// An algorithm under a kind of load.
struct Case {
    name: String,
    limit: Limit,
    /// Nanoseconds from one decision to the next.
    gap: u64,
}

/// The measurements of one case.
struct Row {
    name: String,
    nanos: f64,
    instructions: Option<u64>,
}

/// Measures all cases and writes the first part of BENCHMARKS.md.
pub(crate) fn run(options: &CoreOptions) -> Result<(), String> {
    let cases = cases()?;
    if let Some([name, times]) = options.watched.as_deref() {
        let case = cases
            .iter()
            .find(|case| case.name == *name)
            .ok_or("there is no case with this name")?;
        let times = times.parse().map_err(|_| "TIMES must be a whole number")?;
        black_box(decide(case, times));
        return Ok(());
    }
    let rows = measure(&cases);
    let text = document(&rows, &memory()?);
    say(&text);
    if options.dry {
        return Ok(());
    }
    fs::write(root().join("BENCHMARKS.md"), text).map_err(|error| format!("BENCHMARKS.md: {error}"))
}

/// Each algorithm twice: a client within its limit, and a client that sends ten times its rate.
fn cases() -> Result<Vec<Case>, String> {
    let interval = Algorithm::TokenBucket { burst: None, refill: Refill::Interval };
    let mut cases = Vec::new();
    for algorithm in Algorithm::ALL.into_iter().chain([interval]) {
        let limit = Limit::new(500, Span::from_secs(3_600), algorithm)
            .map_err(|error| error.to_string())?;
        let name = if algorithm == interval { "token_bucket-interval" } else { algorithm.name() };
        cases.push(Case {
            name: format!("{name}-allowed"),
            limit: limit.clone(),
            gap: ABOVE_A_TOKEN,
        });
        cases.push(Case { name: format!("{name}-refused"), limit, gap: A_TENTH_OF_A_TOKEN });
    }
    Ok(cases)
}

/// Makes `times` decisions about one state, at equal intervals, and returns how many passed.
fn decide(case: &Case, times: u64) -> u64 {
    let mut written = Written::empty(&case.limit);
    let mut now = NOW;
    let mut passed = 0u64;
    for _ in 0..times {
        now = now.saturating_add(case.gap);
        let ask = Ask::new(Timestamp::from_nanos(black_box(now)), Cost::ONE);
        let taken = case.limit.take(&mut written, &ask);
        passed = passed.saturating_add(u64::from(black_box(taken).decision.passes()));
    }
    passed
}

fn measure(cases: &[Case]) -> Vec<Row> {
    let mut rounds: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (case, times) in cases.iter().zip(&mut rounds) {
            times.push(nanos_per_decision(case));
        }
    }
    let row = |(case, mut times): (&Case, Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        let nanos = times.get(ROUNDS / 2).copied().unwrap_or(0.0);
        Row { name: case.name.clone(), nanos, instructions: instructions(&case.name) }
    };
    cases.iter().zip(rounds).map(row).collect()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures time, it does not decide by it"
)]
#[expect(
    clippy::float_arithmetic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "a figure for a table"
)]
fn nanos_per_decision(case: &Case) -> f64 {
    let start = std::time::Instant::now();
    black_box(decide(case, TIMES));
    start.elapsed().as_nanos() as f64 / TIMES as f64
}

/// Instructions of one decision; `None` when valgrind is not installed.
fn instructions(case: &str) -> Option<u64> {
    let [few, many] = WATCHED.map(|times| watched(case, times));
    let [least, most] = WATCHED;
    many?.checked_sub(few?)?.checked_div(most.saturating_sub(least))
}

/// Instructions of a whole run under callgrind, including the start of the process.
fn watched(case: &str, times: u64) -> Option<u64> {
    let this = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(this)
        .args(["core", "--watched", case, &times.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected =
        text.lines().find_map(|line| line.split_once("Collected :"))?.1.trim().to_owned();
    collected.parse().ok()
}

/// For each algorithm the bytes of a full state under 500 per hour, filled evenly, and the figure of the textbook design.
fn memory() -> Result<Vec<(String, usize, &'static str)>, String> {
    let row = |algorithm: Algorithm| {
        let limit = Limit::new(500, Span::from_secs(3_600), algorithm)
            .map_err(|error| error.to_string())?;
        let mut written = Written::empty(&limit);
        for n in 0..500u64 {
            let now = NOW.saturating_add(n.saturating_mul(7_199_000_000));
            limit.take(&mut written, &Ask::new(Timestamp::from_nanos(now), Cost::ONE));
        }
        Ok((algorithm.name().to_owned(), written.state.bytes(), textbook_bytes(algorithm)))
    };
    Algorithm::ALL.into_iter().map(row).collect()
}

const fn textbook_bytes(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow { .. } => "12 (36 with table and lock)",
        Algorithm::SlidingLog | Algorithm::Concurrent => "12,000",
        Algorithm::SlidingBuckets { .. } => "1,600",
        Algorithm::SlidingWeighted
        | Algorithm::TokenBucket { .. }
        | Algorithm::LeakyBucket { .. } => "not stated",
    }
}

/// The beginning of the page, up to the line about the machine.
const HEAD: &str = "\
# Benchmarks

What tidegate costs, measured beside the libraries and servers that people use for the same purpose. `make bench` writes
this page: do not edit the figures by hand.

**How to read the tables.** A row is one case. `tidegate` is tidegate's result, `peer` names the program that it is
compared with, `peer's result` is that program's result, and `ratio` is the first divided by the second. For rates (`1/s`, per
second) a ratio above 1 means that tidegate is faster. For latencies (`µs`) and memory (`B/key`) a ratio below 1 means
that tidegate is quicker or smaller.

**How far to trust them.** tidegate and its peers are measured in alternating rounds of one run, and the median counts,
because the speed of a shared machine varies by tens of percent. So compare figures within one table only.

**How to rerun them.** `make bench` runs everything, takes about 40 minutes, and installs what it needs (valgrind,
nginx, Caddy, Envoy, Redis, `throttlecrab-server`). Use a machine with nothing else to do. To run one part, build the server with
`cargo build --release -p tidegate-server`, then run `cargo run --release -p tidegate-lab -- PART`. Without `--write` a
part only prints its results. `--only TEXT` selects cases by name (`core`, `flood` and `full-cost` have no such option).

| part | section |
|---|---|
| `core` (rewrites the whole page; `--dry` only prints) | One decision of the core, Memory of one key |
| `instructions` (without `--write`, it fails if a case grew by more than 5 %) | Instructions of a decision |
| `embedded` | The table in memory |
| `policy` | A full check behind tower |
| `http`, `resp`, `grpc` | A check over HTTP, RESP, gRPC |
| `redis`, `leases`, `memcached`, `durable` | The stores on Redis (and leases), on memcached, and in a file |
| `top-keys` | The cost of top keys |
| `proxy` | The reverse proxy; it also draws the plots of [docs/reverse-proxy.md](docs/reverse-proxy.md) |
| `flood`, `full-cost` | none: they print what a flood of unknown keys does to other clients |

## One decision of the core

The time and the number of instructions of one `Limit::take`, with its complete answer (outcome, remaining, reset,
retry). The limit is 500 per hour, and one state stays in the processor's cache. So this is the cost of the arithmetic
alone, without a table, a key or a lock.

- `allowed`: the client sends a tenth less than its rate, and every request passes.
- `refused`: the client sends ten times its rate, so nine of ten requests are refused.

Times are medians of nine alternating rounds and vary with the machine. Instructions, counted by valgrind, do not vary.

";
/// The text between the first table and the rows of the second.
const MEMORY: &str = "
## Memory of one key

The bytes of one state after 500 requests, evenly spread over an hour, under a limit of 500 per hour. tidegate's figure
is the state alone, without its place in a table (\"The table in memory\" below includes the table). The textbook figures
are those of the common system-design interview answer, with and without its table.

| algorithm | textbook, bytes | tidegate, bytes |
|---|--:|--:|
";

fn document(rows: &[Row], memory: &[(String, usize, &'static str)]) -> String {
    let mut text = String::from(HEAD);
    let _ = writeln!(text, "Machine: {}.\n", machine());
    text.push_str("| case | ns | instructions |\n|---|--:|--:|\n");
    for row in rows {
        let instructions =
            row.instructions.map_or("no valgrind".to_owned(), |count| count.to_string());
        let _ = writeln!(text, "| {} | {:.1} | {instructions} |", row.name, row.nanos);
    }
    text.push_str(MEMORY);
    for (name, bytes, textbook) in memory {
        let _ = writeln!(text, "| {name} | {textbook} | {bytes} |");
    }
    text
}

/// The processor, the number of cores and the compiler.
pub(crate) fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, name)| name);
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {cores} cores, {rustc}", model.unwrap_or("unknown processor"))
}
