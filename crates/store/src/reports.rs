//! What stores report to operators.

use tidegate_core::Span;

/// How full a store in memory is.
///
/// ```
/// use tidegate_store::{Clock, Memory};
/// let gauges = Memory::with_budget(Clock::system(), 64 << 20).gauges();
/// assert_eq!(gauges.budget, 64 << 20);
/// assert!(gauges.bytes <= gauges.budget);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// States in the table.
    pub entries: usize,
    /// Bytes in use, apart from a small fixed amount.
    pub bytes: usize,
    /// Bytes that may be used.
    pub budget: usize,
    /// States that were removed from the table while they still counted.
    pub demotions: u64,
    /// What a new key would begin with, on average: thousandths of a cost of 1.
    pub overcount_thousandths: u64,
}

/// The condition of the servers of a store.
///
/// ```
/// use tidegate_store::{LinkReport, StoreReport};
/// let link = LinkReport { name: "10.0.0.1:6379".to_owned(), asked: false };
/// let report = StoreReport { links: vec![link], errors: vec![("timed_out", 3)], ..StoreReport::default() };
/// assert!(report.links.iter().any(|link| !link.asked)); // a server is unreachable
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Each server.
    pub links: Vec<LinkReport>,
    /// How many calls had no answer, by error class.
    pub errors: Vec<(&'static str, u64)>,
    /// How often a server turned out to have lost counters, by reason. For stores that do not keep them.
    pub losses: Vec<(&'static str, u64)>,
    /// How often a background task of the store was restarted.
    pub restarts: u64,
}

/// A node that shares a store with others.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_store::NodeReport;
/// let node = NodeReport { name: "0f".to_owned(), is_this: true, policy: "9f86d081884c".to_owned(), silent: Span::ZERO };
/// assert!(node.is_this && node.silent == Span::ZERO);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Its name, which it keeps when it restarts.
    pub name: String,
    /// Whether it is the node that reports.
    pub is_this: bool,
    /// The hash of the policy in force on it. Empty if it has not told.
    pub policy: String,
    /// For how long it was not announced while others were. A silent node is dead or cut off from the store; it is counted for half a
    /// minute.
    pub silent: Span,
}

/// The condition of one server of a store.
///
/// ```
/// let away = tidegate_store::LinkReport { name: "10.0.0.1:6379".to_owned(), asked: false };
/// assert!(!away.asked);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// The address of the server.
    pub name: String,
    /// Whether requests are sent to it. If not, its circuit breaker is open until the server answers a probe.
    pub asked: bool,
}

/// What a node holds of the limits of one group, and what became of the rest, in costs of 1, rounded down for each lease.
///
/// ```
/// use tidegate_store::LeaseReport;
/// let report = LeaseReport { group: 3, leases: 1, granted: 100, spent: 60, held: 40, ..LeaseReport::default() };
/// assert_eq!(report.granted, report.spent + report.held);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// The group; see [`LeaseTerms`](tidegate_core::LeaseTerms).
    pub group: u32,
    /// How many states are leased now.
    pub leases: u64,
    /// How many calls were made for leases: each asks for a part of a limit.
    pub asks: u64,
    /// How much is held now: what could be refused elsewhere although it is not used.
    pub held: u64,
    /// How much was granted.
    pub granted: u64,
    /// How much was spent.
    pub spent: u64,
    /// How much was given back.
    pub returned: u64,
    /// How much was not spent in time.
    pub drained: u64,
    /// How much was lost, for example with a connection. It still counts in the store, until its time has passed.
    pub lost: u64,
}

/// What a durable store wrote to its data directory, and what a crash would lose.
///
/// ```
/// let report = tidegate_store::DurableReport::default();
/// assert_eq!((report.bytes_written, report.problem), (0, None));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurableReport {
    /// Why a crash would lose more than usual.
    pub problem: Option<String>,
    /// Bytes that were written to logs and snapshots.
    pub bytes_written: u64,
    /// How often changes were written.
    pub writes: u64,
    /// How often they were synced.
    pub syncs: u64,
    /// How many snapshots were completed.
    pub snapshots: u64,
    /// How long the longest write took, from the time when it was due.
    pub longest_write: Span,
    /// How long the longest sync took.
    pub longest_sync: Span,
    /// How many writes or syncs failed.
    pub errors: u64,
}
