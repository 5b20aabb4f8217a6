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
mod trace;

use clap::{Args, ValueEnum};
use std::io::{self, Write};
use tidegate_core::{Algorithm, Ask, Cost, Limit, LimitError, Outcome, Span, Timestamp, Written};

#[derive(Args)]
pub(crate) struct SimulateOptions {
    /// When the requests arrive.
    #[arg(long, value_enum, default_value_t = Trace::Boundary)]
    trace: Trace,
    /// How many requests pass per period.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    amount: u64,
    /// The length of a period in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Draws with ASCII characters only.
    #[arg(long)]
    ascii: bool,
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

/// What happened to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It passed at this instant, immediately or after a delay.
    Passed(u64),
    /// It was refused at this instant.
    Refused(u64),
}

/// Runs the simulation and writes the picture.
pub(crate) fn run(options: &SimulateOptions, out: &mut impl Write) -> io::Result<()> {
    let period = Span::from_secs(options.seconds);
    let requests = options.trace.requests(options.amount, period.as_nanos());
    let screen = draw::Screen::new(period.as_nanos(), options.ascii);
    screen.heading(out, options.trace, options.amount, period)?;
    screen.requests(out, &requests)?;
    for algorithm in Algorithm::ALL {
        let fates = play(algorithm, options.amount, period, &requests).map_err(io::Error::other)?;
        screen.fates(out, algorithm.name(), &fates, period.as_nanos())?;
    }
    screen.legend(out)
}

/// The fate of every request under one algorithm.
fn play(
    algorithm: Algorithm,
    amount: u64,
    period: Span,
    requests: &[u64],
) -> Result<Vec<Fate>, LimitError> {
    let limit = Limit::new(amount, period, algorithm)?;
    let mut written = Written::empty(&limit);
    // Requests may wait for up to one period, which shows the queue of the leaky bucket.
    let fate = |nanos: u64| {
        let ask = Ask::new(Timestamp::from_nanos(nanos), Cost::ONE).waiting(period);
        match limit.take(&mut written, &ask).decision.outcome {
            Outcome::Allow => Fate::Passed(nanos),
            Outcome::Delay(wait) => Fate::Passed(nanos.saturating_add(wait.as_nanos())),
            Outcome::Deny(_) => Fate::Refused(nanos),
        }
    };
    Ok(requests.iter().copied().map(fate).collect())
}

/// The most requests that passed in any interval of one period.
fn most_in_a_period(fates: &[Fate], period: u64) -> usize {
    let mut passed: Vec<u64> = fates
        .iter()
        .filter_map(|fate| match fate {
            Fate::Passed(at) => Some(*at),
            Fate::Refused(_) => None,
        })
        .collect();
    passed.sort_unstable();
    let within = |from: &u64| {
        passed.iter().filter(|at| (*from..from.saturating_add(period)).contains(at)).count()
    };
    passed.iter().map(within).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(algorithm: Algorithm, trace: Trace) -> usize {
        let period = Span::from_secs(10);
        let requests = trace.requests(6, period.as_nanos());
        most_in_a_period(&play(algorithm, 6, period, &requests).unwrap(), period.as_nanos())
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
