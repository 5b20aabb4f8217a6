//! The result of a load: how many requests passed, how many were refused, and their latencies.

#![expect(clippy::float_arithmetic, reason = "rates and times, for people")]

use crate::rounds::{Comparison, float, median};
use hdrhistogram::Histogram;
use std::time::Duration;

/// The result of a load on one server.
pub(crate) struct Tally {
    /// Nanoseconds from when a request was due to its answer.
    pub(crate) latency: Histogram<u64>,
    pub(crate) passed: u64,
    pub(crate) refused: u64,
    /// From the first request to the last answer.
    pub(crate) took: Duration,
}

impl Tally {
    pub(crate) fn new() -> Result<Self, String> {
        // Latencies of up to a minute, with three significant digits.
        let latency = Histogram::new_with_max(60_000_000_000, 3);
        let latency = latency.map_err(|error| error.to_string())?;
        Ok(Self { latency, passed: 0, refused: 0, took: Duration::ZERO })
    }

    /// Adds answers that arrived together.
    pub(crate) fn note(&mut self, passed: u64, refused: u64, latency: Duration) {
        self.passed = self.passed.saturating_add(passed);
        self.refused = self.refused.saturating_add(refused);
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record_n(nanos, passed.saturating_add(refused));
    }

    /// Answers per second.
    pub(crate) fn rate(&self) -> f64 {
        float(self.latency.len()) / self.took.as_secs_f64()
    }

    /// A quantile of the latencies, in microseconds.
    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        float(self.latency.value_at_quantile(quantile)) / 1e3
    }
}

/// A number that is reported of a round.
pub(crate) struct Figure {
    pub(crate) suffix: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) of: fn(&Tally) -> f64,
}

/// A case of an experiment that is ready to be reported: its rounds with tidegate.
pub(crate) struct Measured<'m> {
    pub(crate) bench: &'m str,
    pub(crate) case: &'m str,
    pub(crate) figures: &'m [Figure],
    pub(crate) ours: &'m [Tally],
}

impl Measured<'_> {
    /// Prints and returns one row per figure and peer, with the medians of the rounds.
    pub(crate) fn rows(&self, peers: &[(&str, &[Tally])], json: bool) -> Vec<String> {
        let mut rows = Vec::new();
        for figure in self.figures {
            let median = |tallies: &[Tally]| median(tallies.iter().map(figure.of).collect());
            let case = format!("{}{}", self.case, figure.suffix);
            for (peer_name, tallies) in peers {
                let (ours, peer) = (median(self.ours), median(tallies));
                let (bench, unit) = (self.bench, figure.unit);
                let row = Comparison { bench, case: &case, ours, peer, peer_name, unit };
                rows.push(row.print(json));
            }
        }
        rows
    }
}
