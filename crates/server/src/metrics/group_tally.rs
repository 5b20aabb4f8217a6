//! The counters of one group of upstream servers on one worker.
//!
//! Like a [`Tally`](super::Tally), it has a single writer: the worker that created it.

use super::tally::bump;
use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the proxy counted for one group on one worker. It can be read from any thread at any time.
#[derive(Debug)]
pub(crate) struct GroupTally {
    pub(super) group: Box<str>,
    answers: [AtomicU64; ProxyAnswer::ALL.len()],
    /// Requests that are held now.
    held: AtomicU64,
    waited: TimeHistogram,
    first_byte: TimeHistogram,
    retries: AtomicU64,
    connections: AtomicU64,
}

/// How a request of a client was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyAnswer {
    /// The status of the upstream server's answer, by its first digit.
    Informational,
    Success,
    Redirection,
    ClientError,
    ServerError,
    /// A limit refused the request.
    Refused,
    /// The proxy rejected the request for another reason, with a status from 400 to 499.
    Rejected,
    /// The group has as many requests as it may, or no server that gets requests.
    Unavailable,
    Unreachable,
    Timeout,
    /// The connection broke after the request was sent.
    Broken,
    /// The answer could be understood in two ways.
    Invalid,
    /// The client went away, or did not send its body correctly or in time.
    CutShort,
}

/// A histogram of times.
#[derive(Debug)]
struct TimeHistogram {
    counts: [AtomicU64; TIME_BUCKETS.len()],
    nanos: AtomicU64,
}

/// The values of a histogram: counts by bucket, and the sum of all times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeSums {
    pub(super) counts: [u64; TIME_BUCKETS.len()],
    pub(super) nanos: u64,
}

/// The values of the tallies of one group, over all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupSums {
    pub(super) answers: [u64; ProxyAnswer::ALL.len()],
    pub(super) held: u64,
    pub(super) waited: TimeSums,
    pub(super) first_byte: TimeSums,
    pub(super) retries: u64,
    pub(super) connections: u64,
}

/// The upper bounds of the buckets in nanoseconds: from 0.1 milliseconds to 30 seconds, by factors of about three, and infinity.
/// Upstream servers and waiting requests take longer than decisions.
pub(super) const TIME_BUCKETS: [u64; 13] = [
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
    u64::MAX,
];

// === impl GroupTally ===

impl GroupSums {
    /// How many heads of answers arrived, and the sum of the times until then in nanoseconds.
    pub(super) fn first_bytes(&self) -> (u64, u64) {
        let count =
            self.first_byte.counts.iter().fold(0_u64, |sum, count| sum.wrapping_add(*count));
        (count, self.first_byte.nanos)
    }
}

impl GroupTally {
    pub(super) fn new(group: &str) -> Self {
        Self {
            group: group.into(),
            answers: array::from_fn(|_| AtomicU64::new(0)),
            held: AtomicU64::new(0),
            waited: TimeHistogram::default(),
            first_byte: TimeHistogram::default(),
            retries: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        }
    }

    /// Counts a request that is over.
    pub(crate) fn answered(&self, answer: ProxyAnswer) {
        let at = ProxyAnswer::ALL.iter().position(|(one, _)| *one == answer);
        if let Some(cell) = at.and_then(|at| self.answers.get(at)) {
            bump(cell, 1);
        }
    }

    /// A request is held from now on.
    pub(crate) fn hold(&self) {
        bump(&self.held, 1);
    }

    /// A request is no longer held.
    pub(crate) fn release(&self) {
        // Adding this number is subtracting one.
        bump(&self.held, u64::MAX);
    }

    /// Counts how long a request waited for its turn.
    pub(crate) fn waited(&self, time: Duration) {
        self.waited.count(time);
    }

    /// Counts how long a server took until the head of its answer.
    pub(crate) fn first_byte(&self, time: Duration) {
        self.first_byte.count(time);
    }

    /// A request that was not sent is tried again.
    pub(crate) fn retried(&self) {
        bump(&self.retries, 1);
    }

    /// A connection to a server was opened.
    pub(crate) fn connected(&self) {
        bump(&self.connections, 1);
    }

    /// Adds the values of this tally.
    pub(super) fn add_to(&self, sums: &mut GroupSums) {
        let add = |sum: &mut u64, cell: &AtomicU64| {
            *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
        };
        sums.answers.iter_mut().zip(&self.answers).for_each(|(sum, cell)| add(sum, cell));
        add(&mut sums.held, &self.held);
        add(&mut sums.retries, &self.retries);
        add(&mut sums.connections, &self.connections);
        self.waited.add_to(&mut sums.waited);
        self.first_byte.add_to(&mut sums.first_byte);
    }
}

// === impl ProxyAnswer ===

impl ProxyAnswer {
    /// Each with the value of its label.
    pub(crate) const ALL: [(Self, &'static str); 13] = [
        (Self::Informational, "1xx"),
        (Self::Success, "2xx"),
        (Self::Redirection, "3xx"),
        (Self::ClientError, "4xx"),
        (Self::ServerError, "5xx"),
        (Self::Refused, "refused"),
        (Self::Rejected, "rejected"),
        (Self::Unavailable, "unavailable"),
        (Self::Unreachable, "unreachable"),
        (Self::Timeout, "timeout"),
        (Self::Broken, "broken"),
        (Self::Invalid, "invalid"),
        (Self::CutShort, "cut_short"),
    ];

    /// The class of a status that an upstream server answered.
    pub(crate) const fn of_status(status: u16) -> Self {
        match status {
            0..200 => Self::Informational,
            200..300 => Self::Success,
            300..400 => Self::Redirection,
            400..500 => Self::ClientError,
            500.. => Self::ServerError,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(one, _)| *one == self).map_or("", |(_, name)| name)
    }
}

// === impl TimeHistogram ===

impl TimeHistogram {
    fn count(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = TIME_BUCKETS.iter().position(|most| nanos <= *most).unwrap_or(0);
        if let Some(cell) = self.counts.get(bucket) {
            bump(cell, 1);
        }
        bump(&self.nanos, nanos);
    }

    fn add_to(&self, sums: &mut TimeSums) {
        for (sum, cell) in sums.counts.iter_mut().zip(&self.counts) {
            *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
        }
        sums.nanos = sums.nanos.wrapping_add(self.nanos.load(Ordering::Relaxed));
    }
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self { counts: array::from_fn(|_| AtomicU64::new(0)), nanos: AtomicU64::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_those_of_all_workers() {
        let workers = [GroupTally::new("api"), GroupTally::new("api")];
        for tally in &workers {
            tally.answered(ProxyAnswer::Success);
            tally.answered(ProxyAnswer::CutShort);
            tally.hold();
            tally.hold();
            tally.release();
            tally.first_byte(Duration::from_millis(2));
            tally.waited(Duration::from_secs(40));
            tally.retried();
            tally.connected();
        }
        let mut sums = GroupSums::default();
        workers.iter().for_each(|tally| tally.add_to(&mut sums));
        let named = ProxyAnswer::ALL.iter().zip(sums.answers).filter(|(_, count)| *count > 0);
        let named: Vec<(&str, u64)> = named.map(|((_, name), count)| (*name, count)).collect();
        assert_eq!(named, [("2xx", 2), ("cut_short", 2)]);
        assert_eq!((sums.held, sums.retries, sums.connections), (2, 2, 2));
        assert_eq!((sums.first_byte.counts[3], sums.first_byte.nanos), (2, 4_000_000));
        assert_eq!((sums.waited.counts[12], sums.waited.nanos), (2, 80_000_000_000));
    }

    #[test]
    fn a_status_has_a_class() {
        for (status, class) in
            [(101, "1xx"), (200, "2xx"), (304, "3xx"), (404, "4xx"), (503, "5xx"), (999, "5xx")]
        {
            assert_eq!(ProxyAnswer::of_status(status).name(), class);
        }
    }
}
