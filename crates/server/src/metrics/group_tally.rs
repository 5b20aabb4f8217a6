//! The counters of one group of upstream servers on one worker.
//!
//! Like a [`Tally`](super::Tally), it has a single writer: the worker that created it.

use super::families::Families;
use super::single_writer::{TimeHistogram, bump, sum};
use std::array;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// What the proxy counted for one group on one worker. It can be read from any thread at any time.
#[derive(Debug)]
pub(crate) struct GroupTally {
    group: Box<str>,
    answers: [AtomicU64; ProxyAnswer::ALL.len()],
    /// Requests that are held now.
    held: AtomicU64,
    waited: GroupTimes,
    first_byte: GroupTimes,
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

type GroupTimes = TimeHistogram<{ TIME_BUCKETS.len() }>;

/// The upper bounds of the buckets in nanoseconds: from 0.1 milliseconds to 30 seconds, by factors of about three, and infinity.
/// Upstream servers and waiting requests take longer than decisions.
const TIME_BUCKETS: [u64; 13] = [
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

impl GroupTally {
    pub(super) fn new(group: &str) -> Self {
        Self {
            group: group.into(),
            answers: array::from_fn(|_| AtomicU64::new(0)),
            held: AtomicU64::new(0),
            waited: TimeHistogram::new(&TIME_BUCKETS),
            first_byte: TimeHistogram::new(&TIME_BUCKETS),
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
        self.waited.count(time, 1);
    }

    /// Counts how long a server took until the head of its answer.
    pub(crate) fn first_byte(&self, time: Duration) {
        self.first_byte.count(time, 1);
    }

    /// A request that was not sent is tried again.
    pub(crate) fn retried(&self) {
        bump(&self.retries, 1);
    }

    /// A connection to a server was opened.
    pub(crate) fn connected(&self) {
        bump(&self.connections, 1);
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

// === as metrics ===

/// What the proxy counted, summed over the workers.
pub(super) fn declare(tallies: &[Arc<GroupTally>], families: &mut Families) {
    let mut groups = BTreeMap::<&str, Vec<&GroupTally>>::new();
    for tally in tallies {
        groups.entry(&tally.group).or_default().push(tally);
    }
    let sums = |cell: fn(&GroupTally) -> &AtomicU64| {
        let groups = groups.iter();
        groups.map(move |(group, workers)| ([*group], sum(workers.iter().map(|one| cell(one)))))
    };
    let times = |times: fn(&GroupTally) -> &GroupTimes| {
        let groups = groups.iter();
        groups.map(move |(group, workers)| {
            let sum = TimeHistogram::new(&TIME_BUCKETS);
            workers.iter().for_each(|one| sum.add(times(one)));
            ([*group], sum)
        })
    };
    families.counters(
        "tidegate_proxy_requests",
        "Requests that the proxy has finished, by group and by how they were answered: the class of the upstream server's status, or the proxy's own reason",
        ["group", "answer"],
        answers(&groups),
    );
    families.gauges(
        "tidegate_proxy_held_requests",
        "Requests that are held: they wait for their turn, or for a store outside this process",
        ["group"],
        sums(|tally| &tally.held),
    );
    families.add(
        "tidegate_proxy_wait_seconds",
        "How long requests waited for their turn; requests that did not wait are not counted",
        ["group"],
        times(|tally| &tally.waited),
    );
    families.add(
        "tidegate_upstream_first_byte_seconds",
        "Time from sending a request to the head of the upstream server's answer",
        ["group"],
        times(|tally| &tally.first_byte),
    );
    families.counters(
        "tidegate_upstream_retries",
        "Requests that were tried again, because nothing of them was sent",
        ["group"],
        sums(|tally| &tally.retries),
    );
    families.counters(
        "tidegate_upstream_connections",
        "Connections to upstream servers that were opened",
        ["group"],
        sums(|tally| &tally.connections),
    );
}

/// How requests were answered, by group. Answers that never happened have no series.
fn answers<'g>(groups: &BTreeMap<&'g str, Vec<&GroupTally>>) -> Vec<([&'g str; 2], u64)> {
    let mut answers = Vec::new();
    for (group, workers) in groups {
        for (at, (_, answer)) in ProxyAnswer::ALL.iter().enumerate() {
            let count = sum(workers.iter().filter_map(|one| one.answers.get(at)));
            if count > 0 {
                answers.push(([*group, *answer], count));
            }
        }
    }
    answers
}

/// The heads of answers of a group, and the time until them in nanoseconds.
pub(super) fn first_bytes(tallies: &[Arc<GroupTally>], group: &str) -> (u64, u64) {
    let sum = GroupTimes::new(&TIME_BUCKETS);
    let of_group = tallies.iter().filter(|one| *one.group == *group);
    of_group.for_each(|one| sum.add(&one.first_byte));
    sum.totals()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_those_of_all_workers() {
        let workers = [(); 2].map(|()| Arc::new(GroupTally::new("api")));
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
        let mut families = Families::default();
        declare(&workers, &mut families);
        let text = families.text();
        let lines = [
            r#"proxy_requests_total{group="api",answer="2xx"} 2"#,
            r#"proxy_requests_total{group="api",answer="cut_short"} 2"#,
            r#"proxy_held_requests{group="api"} 2"#,
            r#"upstream_retries_total{group="api"} 2"#,
            r#"upstream_connections_total{group="api"} 2"#,
            r#"upstream_first_byte_seconds_sum{group="api"} 0.004"#,
            r#"upstream_first_byte_seconds_bucket{le="0.001",group="api"} 0"#,
            r#"upstream_first_byte_seconds_bucket{le="0.003",group="api"} 2"#,
            r#"proxy_wait_seconds_sum{group="api"} 80.0"#,
            r#"proxy_wait_seconds_bucket{le="30.0",group="api"} 0"#,
            r#"proxy_wait_seconds_bucket{le="+Inf",group="api"} 2"#,
        ];
        let missing = lines.iter().find(|line| !text.contains(&format!("tidegate_{line}\n")));
        assert_eq!(missing, None, "{text}");
        assert_eq!(text.matches("proxy_requests_total").count(), 2, "{text}");
        assert_eq!(first_bytes(&workers, "api"), (2, 4_000_000));
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
