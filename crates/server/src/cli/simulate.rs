//! `tidegate simulate`: sends one trace of requests through all six algorithms and draws the results in the terminal.
//!
//! ```text
//!   requests           │                ▃▃ ▃▃                                         │   6
//!   fixed_window       │                ▃▃ ▃▃                                         │   6 passed, 6 in one period
//!   sliding_log        │                ▃▃    ××                                      │   3 passed, 3 in one period
//! ```
//!
//! It is for newcomers who have read that a fixed window lets twice the limit pass around a window boundary, and want to see
//! it. Time is a number here: nothing waits, and no clock is read.

mod draw;
mod svg;
mod trace;

use crate::algorithm_trace::{Fate, most_in_a_period, play};
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tidegate_core::{Algorithm, LimitError, Span};

#[derive(Args)]
pub(crate) struct SimulateOptions {
    /// When the requests arrive. The default is `boundary`; a directory of pictures gets all four.
    #[arg(long, value_enum)]
    trace: Option<Trace>,
    /// How many requests pass per period.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    amount: u64,
    /// The length of a period in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Draws with ASCII characters only.
    #[arg(long)]
    ascii: bool,
    /// Draws an SVG picture: into this file, into this directory, or to the standard output if nothing is named.
    #[arg(long, value_name = "FILE|DIR", num_args = 0..=1, default_missing_value = "-", conflicts_with = "ascii")]
    svg: Option<PathBuf>,
}

/// When the requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Trace {
    /// The whole amount at the end of a window and again at the start of the next.
    Boundary,
    /// Evenly, a quarter more than the limit.
    Steady,
    /// Three times the amount in one burst, then silence, then again.
    Burst,
    /// Twice as many requests as the limit allows, without a pause.
    Greedy,
}

/// One trace under all six algorithms: what is drawn.
struct Comparison {
    trace: Trace,
    amount: u64,
    period: Span,
    requests: Vec<u64>,
    rows: Vec<AlgorithmRow>,
}

/// What one algorithm made of the trace.
struct AlgorithmRow {
    name: &'static str,
    fates: Vec<Fate>,
    /// The most requests that passed in any interval of one period.
    most: usize,
}

/// Runs the simulation and writes the picture.
pub(crate) fn run(options: &SimulateOptions, out: &mut impl Write) -> io::Result<()> {
    let trace = options.trace.unwrap_or(Trace::Boundary);
    match &options.svg {
        None => draw::text(&options.compare(trace)?, options.ascii, out),
        Some(path) if path.as_os_str() == "-" => {
            out.write_all(svg::picture(&options.compare(trace)?).as_bytes())
        }
        Some(path) if path.is_dir() => options.fill(path, out),
        Some(path) => options.write(trace, path, out),
    }
}

impl SimulateOptions {
    fn compare(&self, trace: Trace) -> io::Result<Comparison> {
        let period = Span::from_secs(self.seconds);
        let requests = trace.requests(self.amount, period.as_nanos());
        let row = |algorithm: Algorithm| {
            // Requests may wait for up to one period, which shows the queue of the leaky bucket.
            let fates = play(algorithm, (self.amount, period), period, &requests)?;
            let most = most_in_a_period(&fates, period.as_nanos());
            Ok(AlgorithmRow { name: algorithm.name(), fates, most })
        };
        let rows: Result<Vec<AlgorithmRow>, LimitError> =
            Algorithm::ALL.into_iter().map(row).collect();
        let rows = rows.map_err(io::Error::other)?;
        Ok(Comparison { trace, amount: self.amount, period, requests, rows })
    }

    /// Writes the picture of the chosen trace, or of each trace, into a directory.
    fn fill(&self, dir: &Path, out: &mut impl Write) -> io::Result<()> {
        let chosen = self.trace.as_ref().map(std::slice::from_ref);
        for trace in chosen.unwrap_or(Trace::value_variants()) {
            let path = dir.join(format!("simulate-{}.svg", trace.name()));
            self.write(*trace, &path, out)?;
        }
        Ok(())
    }

    fn write(&self, trace: Trace, path: &Path, out: &mut impl Write) -> io::Result<()> {
        let shown = path.display();
        std::fs::write(path, svg::picture(&self.compare(trace)?))
            .map_err(|error| super::explained(&shown, &error))?;
        writeln!(out, "the picture is in {shown}")
    }
}

// === impl AlgorithmRow ===

impl AlgorithmRow {
    /// The instants at which requests passed.
    fn passed(&self) -> impl Iterator<Item = u64> {
        self.fates.iter().filter_map(Fate::passed)
    }

    /// The instants at which requests were refused.
    fn refused(&self) -> impl Iterator<Item = u64> {
        self.fates.iter().filter_map(Fate::refused)
    }

    /// How many passed, and how many of them within one period.
    fn summary(&self) -> (usize, usize) {
        (self.passed().count(), self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(algorithm: Algorithm, trace: Trace) -> usize {
        let period = Span::from_secs(10);
        let requests = trace.requests(6, period.as_nanos());
        let fates = play(algorithm, (6, period), period, &requests).unwrap();
        most_in_a_period(&fates, period.as_nanos())
    }

    #[test]
    fn a_fixed_window_passes_twice_the_amount_at_a_boundary() {
        assert_eq!(most(Algorithm::FIXED_WINDOW, Trace::Boundary), 12);
        assert_eq!(most(Algorithm::SLIDING_LOG, Trace::Boundary), 6);
        assert_eq!(most(Algorithm::SLIDING_BUCKETS, Trace::Boundary), 6);
    }

    #[test]
    fn a_queue_spreads_a_burst() {
        assert_eq!(most(Algorithm::LEAKY_BUCKET, Trace::Burst), 6);
    }

    #[test]
    fn nothing_exceeds_twice_the_amount() {
        for trace in Trace::value_variants() {
            for algorithm in Algorithm::ALL {
                assert!(most(algorithm, *trace) <= 12, "{} {trace:?}", algorithm.name());
            }
        }
    }
}
