//! Counters with a single writer, the worker that created them. They can be read from any thread at any time.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{array, fmt};

/// A histogram of times with `N` buckets.
#[derive(Debug)]
pub(super) struct TimeHistogram<const N: usize> {
    /// The upper bounds of the buckets in nanoseconds. The last one is `u64::MAX`, which is shown as infinity.
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    /// The sum of all times in nanoseconds.
    nanos: AtomicU64,
}

/// Adds without a read-modify-write instruction: there is only one writer, so the loaded value is the last stored one.
pub(super) fn bump(cell: &AtomicU64, by: u64) {
    cell.store(read(cell).wrapping_add(by), Ordering::Relaxed);
}

pub(super) fn read(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

/// The sum of some counters.
pub(super) fn sum<'c>(cells: impl IntoIterator<Item = &'c AtomicU64>) -> u64 {
    cells.into_iter().map(read).fold(0, u64::wrapping_add)
}

// === impl TimeHistogram ===

impl<const N: usize> TimeHistogram<N> {
    pub(super) fn new(bounds: &'static [u64; N]) -> Self {
        let counts = array::from_fn(|_| AtomicU64::new(0));
        Self { bounds, counts, nanos: AtomicU64::new(0) }
    }

    /// Counts `count` times of this length.
    #[inline]
    pub(super) fn count(&self, time: Duration, count: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds.iter().zip(&self.counts).find(|(most, _)| nanos <= **most);
        if let Some((_, cell)) = bucket {
            bump(cell, count);
        }
        bump(&self.nanos, nanos.saturating_mul(count));
    }

    /// Adds the times of another histogram with the same buckets.
    pub(super) fn add(&self, other: &Self) {
        self.counts.iter().zip(&other.counts).for_each(|(sum, cell)| bump(sum, read(cell)));
        bump(&self.nanos, read(&other.nanos));
    }

    /// How many times were counted, and their sum in nanoseconds.
    pub(super) fn totals(&self) -> (u64, u64) {
        (sum(&self.counts), read(&self.nanos))
    }
}

impl<const N: usize> TypedMetric for TimeHistogram<N> {
    const TYPE: MetricType = MetricType::Histogram;
}

impl<const N: usize> EncodeMetric for TimeHistogram<N> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().map(|most| seconds(*most));
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts.iter().map(read)).collect();
        let (count, nanos) = self.totals();
        encoder.encode_histogram::<NoLabelSet>(seconds(nanos), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Nanoseconds as seconds; `u64::MAX` is infinite.
#[allow(
    clippy::float_arithmetic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "metrics are in fractions of seconds, and the sixteenth digit does not matter"
)]
fn seconds(nanos: u64) -> f64 {
    if nanos == u64::MAX { f64::INFINITY } else { nanos as f64 / 1e9 }
}
