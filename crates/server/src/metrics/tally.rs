//! The counters of one protocol on one worker.

use super::families::Families;
use super::single_writer::{TimeHistogram, bump, read};
use std::array;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate::{DecidedBy, LimitReport, Outcome, Verdict};
use tidegate_core::Need;

/// Counters with a single writer, the worker that created them. They can be read from any thread at any time.
#[derive(Debug)]
pub(crate) struct Tally {
    front: &'static str,
    /// Replaced by the writer when the policy has changed; locked by readers for a moment.
    table: Mutex<Arc<Table>>,
    /// For answers without a verdict, to which no rule applied.
    bare: Arc<Row>,
    times: TimeHistogram<{ BUCKETS.len() }>,
}

/// A row for each rule of one version of the policy.
#[derive(Debug, Default)]
struct Table {
    version: u64,
    rules: Vec<Arc<Row>>,
    /// For requests to which no rule applies.
    none: Arc<Row>,
}

/// The counters of one rule, by outcome and by what decided.
#[derive(Debug)]
struct Row {
    rule: Box<str>,
    cells: [AtomicU64; OUTCOMES.len() * DECIDERS.len()],
    /// The hits that descriptors asked for; and those above 80 % of a limit.
    hits: AtomicU64,
    near_limit: AtomicU64,
}

const OUTCOMES: [&str; 4] = ["allow", "delay", "deny", "would_deny"];
const DECIDERS: [DecidedBy; 5] =
    [DecidedBy::Store, DecidedBy::Cache, DecidedBy::Lease, DecidedBy::Fallback, DecidedBy::Policy];

/// The upper bounds of the histogram's buckets in nanoseconds: from one microsecond to one second, by factors of about three,
/// and infinity.
const BUCKETS: [u64; 14] = [
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    u64::MAX,
];

// === impl Tally ===

impl Tally {
    pub(super) fn new(front: &'static str) -> Self {
        let times = TimeHistogram::new(&BUCKETS);
        Self { front, table: Mutex::default(), bare: Arc::default(), times }
    }

    /// Counts a verdict, once for each rule, by the most severe outcome of its limits.
    pub(crate) fn count(&self, verdict: &Verdict) {
        self.table_for(verdict).count(verdict);
    }

    /// The same for a call with descriptors. Like Envoy's reference service, it also counts the hits that were asked for, and
    /// those near a limit.
    pub(crate) fn count_descriptors(&self, verdict: &Verdict) {
        let table = self.table_for(verdict);
        table.count(verdict);
        for limit in verdict.limits() {
            if let Some(row) = table.rules.get(limit.number) {
                bump(&row.hits, limit.cost.get());
                bump(&row.near_limit, near_limit(&limit));
            }
        }
    }

    /// Counts an answer to which no rule applied.
    pub(crate) fn count_bare(&self, outcome: Outcome, by: DecidedBy) {
        self.bare.count(outcome, Need::Required, by);
    }

    /// Counts how long an answer took.
    pub(crate) fn took(&self, time: Duration) {
        self.took_each(time, 1);
    }

    /// Counts `count` answers that were given together, each of which took `time`.
    pub(crate) fn took_each(&self, time: Duration, count: usize) {
        self.times.count(time, u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// All rows, as of now.
    fn rows(&self) -> Vec<Arc<Row>> {
        let table = Arc::clone(&self.table.lock().unwrap_or_else(PoisonError::into_inner));
        table.rules.iter().chain([&table.none, &self.bare]).cloned().collect()
    }

    /// The table for the policy version of a verdict. When the policy has changed, rules that remain keep their rows.
    fn table_for(&self, verdict: &Verdict) -> Arc<Table> {
        // The only other lock is in `rows`, which only copies a pointer.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.version != verdict.policy_version() {
            let old = Arc::clone(&table);
            let known = |rule: &str| old.rules.iter().find(|row| *row.rule == *rule).cloned();
            let names: Vec<&str> = verdict.rule_names().collect();
            let same = names.iter().copied().eq(old.rules.iter().map(|row| &*row.rule));
            let rules = if same {
                old.rules.clone()
            } else {
                names.iter().map(|rule| known(rule).unwrap_or_else(|| Row::new(rule))).collect()
            };
            let none = Arc::clone(&old.none);
            *table = Arc::new(Table { version: verdict.policy_version(), rules, none });
        }
        Arc::clone(&table)
    }
}

// === impl Table ===

impl Table {
    fn count(&self, verdict: &Verdict) {
        let mut has_rules = false;
        for rule in verdict.by_rule() {
            has_rules = true;
            let row = self.rules.get(rule.limit.number).unwrap_or(&self.none);
            row.count(rule.limit.decision.outcome, rule.limit.need, verdict.decided_by);
        }
        if !has_rules {
            self.none.count(verdict.outcome, Need::Required, verdict.decided_by);
        }
    }
}

/// How many of the hits are above 80 % of the limit.
fn near_limit(limit: &LimitReport<'_>) -> u64 {
    if !limit.decision.passes() {
        return 0;
    }
    let amount = limit.limit.amount();
    let near = u128::from(amount).saturating_mul(4).checked_div(5);
    let near = near.and_then(|near| u64::try_from(near).ok()).unwrap_or(amount);
    let used = amount.saturating_sub(limit.decision.remaining);
    used.saturating_sub(near).min(limit.cost.get())
}

// === impl Row ===

impl Row {
    fn new(rule: &str) -> Arc<Self> {
        Arc::new(Self { rule: rule.into(), ..Self::default() })
    }

    fn count(&self, outcome: Outcome, need: Need, by: DecidedBy) {
        let outcome = match (outcome, need) {
            (Outcome::Allow, _) => 0,
            (Outcome::Delay(_), _) => 1,
            (Outcome::Deny(_), Need::Required) => 2,
            (Outcome::Deny(_), Need::Optional) => 3_usize,
        };
        let by = DECIDERS.iter().position(|one| *one == by).unwrap_or(0);
        let at = outcome.saturating_mul(DECIDERS.len()).saturating_add(by);
        if let Some(cell) = self.cells.get(at) {
            bump(cell, 1);
        }
    }

    /// The counters: outcome, what decided, how often.
    fn cells(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let names = OUTCOMES.iter().flat_map(|outcome| DECIDERS.map(|by| (*outcome, by.name())));
        names.zip(self.cells.iter().map(read)).map(|((outcome, by), count)| (outcome, by, count))
    }
}

impl Default for Row {
    fn default() -> Self {
        let cells = array::from_fn(|_| AtomicU64::new(0));
        let (hits, near_limit) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { rule: "".into(), cells, hits, near_limit }
    }
}

// === as metrics ===

/// The decisions and their times, summed over the workers.
pub(super) fn declare(tallies: &[Arc<Tally>], families: &mut Families) {
    let mut decisions = BTreeMap::new();
    let mut hits = BTreeMap::new();
    let mut near_limit = BTreeMap::new();
    let mut times = BTreeMap::new();
    for tally in tallies {
        for row in tally.rows() {
            let labels = [tally.front, &row.rule];
            for (outcome, by, count) in row.cells().filter(|(_, _, count)| *count > 0) {
                add(&mut decisions, [tally.front, &row.rule, outcome, by], count);
            }
            if read(&row.hits) > 0 {
                add(&mut hits, labels, read(&row.hits));
                add(&mut near_limit, labels, read(&row.near_limit));
            }
        }
        let sum = times.entry([tally.front]).or_insert_with(|| TimeHistogram::new(&BUCKETS));
        sum.add(&tally.times);
    }
    families.counters(
        "tidegate_decisions",
        "Decisions, by protocol, rule, outcome, and what decided",
        ["protocol", "rule", "outcome", "decided_by"],
        decisions,
    );
    families.counters(
        "tidegate_hits",
        "Hits that descriptors asked for, by protocol and rule",
        ["protocol", "rule"],
        hits,
    );
    families.counters(
        "tidegate_near_limit_hits",
        "Hits that passed above 80 % of their limit",
        ["protocol", "rule"],
        near_limit,
    );
    families.add(
        "tidegate_decision_seconds",
        "Time from the complete request to the complete answer",
        ["protocol"],
        times,
    );
}

fn add<const N: usize>(sums: &mut BTreeMap<[String; N], u64>, labels: [&str; N], count: u64) {
    let sum = sums.entry(labels.map(str::to_owned)).or_default();
    *sum = sum.wrapping_add(count);
}
