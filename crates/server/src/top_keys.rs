//! Top keys: who uses each rule most, and who is refused most.
//!
//! ```text
//!   worker 0 ── tables ─┐
//!   worker 1 ── tables ─┼──► lists of this node ──► the store ──► lists of all nodes
//!                       │         (on reading)      (every five seconds)
//! ```
//!
//! Every rule has three tallies: the cost that each key was granted (`used`), its refusals (`denied`), and the requests that a rule in
//! shadow mode would have refused (`would_deny`). A tally of a worker is a [`table`] that has only that worker as its writer, so
//! counting costs no lock and no contention. The lists of workers and nodes are merged when they are read.
//!
//! The lists are about the last ten to twenty minutes, in two halves of ten minutes by the wall clock, which all nodes begin
//! together. When a half ends, its list is kept and its table starts empty; the list of the half before is dropped.
//!
//! All tables share one budget of bytes. A table begins with eight buckets and grows when many keys replace each other in it, so a
//! flood in one rule takes memory that no other rule uses, and does not push the keys of other rules out of theirs.

mod list;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use list::TopList;
pub(crate) use summary::NodeSummary;
pub(crate) use worker::WorkerTop;

use crate::recent_denials::{DenialRing, RecentDenials};
use crate::shown_key::KeyForm;
use foldhash::fast::SeedableRandomState;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{FIRST_BUCKETS, MOST_BUCKETS, TopTable};
use tidegate::{Clock, Secret};
use tokio::time::interval;

/// How much memory top keys may use, and how keys are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopKeysSettings {
    pub(crate) memory: usize,
    pub(crate) show: KeyForm,
}

/// Which requests of a key are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum TopBy {
    /// The cost of the requests that passed.
    Used,
    /// Requests that the rule refused.
    Denied,
    /// Requests that the rule would have refused, if it were not in shadow mode or only a mark.
    WouldDeny,
}

/// The top keys of this node, if they are counted.
#[derive(Clone, Default)]
pub(crate) struct TopKeys(Option<Arc<NodeTop>>);

/// What the workers of this node share.
struct NodeTop {
    form: KeyForm,
    secret: Secret,
    clock: Clock,
    /// Makes fingerprints of keys that clients name. Its keys are random, so no client can choose two keys with one fingerprint.
    prints: SeedableRandomState,
    /// The number of the current half: ten minutes of Unix time. Workers only read it.
    half: AtomicU64,
    /// When this node began to count, in Unix time.
    since_ms: u64,
    /// Bytes for the tables, and for the ring, of one worker.
    room: [usize; 2],
    recent: RecentDenials,
    workers: Mutex<Vec<Arc<WorkerTallies>>>,
}

/// The tallies of one worker.
struct WorkerTallies {
    /// Locked when a rule is seen for the first time, and by readers.
    rules: Mutex<Vec<Arc<RuleTallies>>>,
    /// Memory of the tables. The worker is its only writer.
    bytes: AtomicUsize,
    /// How many tables are open.
    tables: AtomicUsize,
    room: usize,
}

/// The three tallies of one rule on one worker.
struct RuleTallies {
    /// Empty for limits that clients name.
    rule: Box<str>,
    /// Locked when a table is opened, grows or ends, and by readers.
    tallies: [Mutex<TallyHalves>; TopBy::ALL.len()],
}

/// A table, and the list of the half before.
#[derive(Default)]
struct TallyHalves {
    table: Option<Arc<TopTable>>,
    /// The list of the half before, with the number of that half.
    previous: Option<(u64, TopList)>,
}

/// The lists of one node, by tally and rule.
pub(crate) type RuleLists = Vec<(TopBy, String, TopList)>;

/// The length of a half in milliseconds.
const HALF_MS: u64 = 600_000;
/// How often the clock is read for the workers.
const TICK_EVERY: Duration = Duration::from_secs(1);
/// The part of the memory that recent denials get.
const RING_PART: usize = 8;

// === impl TopKeys ===

impl TopKeys {
    /// Counts on this many workers.
    pub(crate) fn new(
        settings: Option<TopKeysSettings>,
        workers: usize,
        clock_and_secret: (&Clock, &Secret),
    ) -> Self {
        Self::with_prints(settings, workers, clock_and_secret, SeedableRandomState::random())
    }

    /// Counts on this many workers, with fingerprints that `prints` computes.
    fn with_prints(
        settings: Option<TopKeysSettings>,
        workers: usize,
        (clock, secret): (&Clock, &Secret),
        prints: SeedableRandomState,
    ) -> Self {
        let Some(TopKeysSettings { memory, show }) = settings else { return Self(None) };
        let of_worker = memory.checked_div(workers).unwrap_or(memory);
        let ring = of_worker / RING_PART;
        let node = NodeTop {
            form: show,
            secret: secret.clone(),
            clock: clock.clone(),
            prints,
            half: AtomicU64::new(0),
            since_ms: now_ms(clock),
            room: [of_worker.saturating_sub(ring), ring],
            recent: RecentDenials::new(show, (clock, secret)),
            workers: Mutex::default(),
        };
        node.tick();
        Self(Some(Arc::new(node)))
    }

    /// What one worker counts with. It stays on the worker's thread.
    pub(crate) fn on_worker(&self) -> WorkerTop {
        match &self.0 {
            Some(node) => WorkerTop::new(node),
            None => WorkerTop::default(),
        }
    }

    pub(crate) fn recent(&self) -> RecentDenials {
        self.0.as_ref().map(|node| node.recent.clone()).unwrap_or_default()
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The lists of this node now, and since when they count.
    pub(crate) fn lists(&self) -> (u64, RuleLists) {
        let Some(node) = &self.0 else { return (0, vec![]) };
        node.tick();
        (node.since_ms(), node.lists())
    }

    /// The memory of tables, lists and rings; `None` if they are off.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let node = self.0.as_ref()?;
        let tables =
            node.workers().iter().map(|worker| worker.bytes()).fold(0, usize::saturating_add);
        Some(tables.saturating_add(node.recent.bytes()))
    }

    /// Reads the clock for the workers; never returns if top keys are on.
    pub(crate) async fn watch_clock(self) {
        let Some(node) = self.0 else { return };
        let mut ticks = interval(TICK_EVERY);
        loop {
            ticks.tick().await;
            node.tick();
        }
    }
}

// === impl NodeTop ===

impl NodeTop {
    fn tick(&self) {
        self.half.store(now_ms(&self.clock) / HALF_MS, Ordering::Relaxed);
        self.recent.tick();
    }

    fn half(&self) -> u64 {
        self.half.load(Ordering::Relaxed)
    }

    /// The begin of the half before, or of this node.
    fn since_ms(&self) -> u64 {
        self.half().saturating_sub(1).saturating_mul(HALF_MS).max(self.since_ms)
    }

    fn ring(&self) -> Option<DenialRing> {
        let [_, room] = self.room;
        self.recent.ring(room)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Arc<WorkerTallies>>> {
        lock(&self.workers)
    }

    fn lists(&self) -> RuleLists {
        let now = self.half();
        let workers: Vec<_> = self.workers().iter().map(Arc::clone).collect();
        let rules: Vec<Arc<RuleTallies>> =
            workers.iter().flat_map(|worker| lock(&worker.rules).clone()).collect();
        let mut names: Vec<&str> = rules.iter().map(|rule| &*rule.rule).collect();
        names.sort_unstable();
        names.dedup();
        let list = |name: &str, by: TopBy| {
            let of_rule = rules.iter().filter(|rule| *rule.rule == *name);
            let list = TopList::merged(of_rule.flat_map(|rule| rule.lists(by, now)));
            (!list.keys.is_empty()).then(|| (by, name.to_owned(), list))
        };
        let by_rule = |name: &&str| TopBy::ALL.map(|(by, _)| list(name, by));
        names.iter().flat_map(by_rule).flatten().collect()
    }
}

fn now_ms(clock: &Clock) -> u64 {
    clock.now().calendar.as_nanos() / 1_000_000
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl TopBy ===

impl TopBy {
    pub(crate) const ALL: [(Self, &'static str); 3] =
        [(Self::Used, "used"), (Self::Denied, "denied"), (Self::WouldDeny, "would_deny")];

    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(by, _)| *by)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Denied => "denied",
            Self::WouldDeny => "would_deny",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Used => 0,
            Self::Denied => 1,
            Self::WouldDeny => 2,
        }
    }
}

// === impl WorkerTallies ===

impl WorkerTallies {
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Reserves memory, if so much is free and `spare` remains after it.
    fn reserve(&self, bytes: usize, spare: usize) -> bool {
        let sum = self.bytes().saturating_add(bytes);
        let fits = sum.saturating_add(spare) <= self.room;
        if fits {
            self.bytes.store(sum, Ordering::Relaxed);
        }
        fits
    }

    fn release(&self, bytes: usize) {
        self.bytes.store(self.bytes().saturating_sub(bytes), Ordering::Relaxed);
    }

    /// The tallies of a rule.
    fn rule(&self, name: &str) -> Arc<RuleTallies> {
        let mut rules = lock(&self.rules);
        if let Some(known) = rules.iter().find(|rule| *rule.rule == *name) {
            return Arc::clone(known);
        }
        let new = Arc::new(RuleTallies { rule: name.into(), tallies: Default::default() });
        rules.push(Arc::clone(&new));
        new
    }

    /// Forgets rules that no policy has any more.
    fn forget_unused(&self) {
        lock(&self.rules).retain(|rule| {
            let used = Arc::strong_count(rule) > 1;
            if !used {
                self.release(rule.bytes());
                let open = rule.tallies.iter().filter(|tally| lock(tally).table.is_some()).count();
                let tables = self.tables.load(Ordering::Relaxed).saturating_sub(open);
                self.tables.store(tables, Ordering::Relaxed);
            }
            used
        });
    }

    /// A table that counts in this half. The one that counted in an earlier half leaves its list.
    fn open(&self, rule: &RuleTallies, by: TopBy, half: u64) -> Option<Arc<TopTable>> {
        let mut tally = lock(rule.tallies.get(by.index())?);
        let mut tables = self.tables.load(Ordering::Relaxed);
        if let Some(old) = tally.table.take() {
            self.release(old.bytes());
            self.keep(&mut tally, &old);
            tables = tables.saturating_sub(1);
        }
        let is_open = self.reserve(TopTable::bytes_of(FIRST_BUCKETS), 0);
        self.tables.store(tables.saturating_add(usize::from(is_open)), Ordering::Relaxed);
        if !is_open {
            return None;
        }
        let table = Arc::new(TopTable::new(half, FIRST_BUCKETS));
        tally.table = Some(Arc::clone(&table));
        Some(table)
    }

    /// Keeps the list of a table that has ended.
    fn keep(&self, tally: &mut TallyHalves, ended: &TopTable) {
        let list = ended.list();
        if let Some((_, older)) = tally.previous.take() {
            self.release(older.bytes());
        }
        if self.reserve(list.bytes(), 0) {
            tally.previous = Some((ended.half, list));
        }
    }

    /// A larger table in place of a crowded one, if there is room for it.
    fn grow(&self, rule: &RuleTallies, by: TopBy, crowded: &TopTable) -> Option<Arc<TopTable>> {
        let mut tally = lock(rule.tallies.get(by.index())?);
        let buckets = crowded.buckets().saturating_mul(4).min(MOST_BUCKETS);
        let more =
            TopTable::bytes_of(buckets).saturating_sub(TopTable::bytes_of(crowded.buckets()));
        // Half of the room is left for names, and for the first tables of other rules.
        if buckets <= crowded.buckets() || !self.reserve(more, self.room / 2) {
            crowded.stay();
            return None;
        }
        let grown = Arc::new(crowded.grown(buckets));
        tally.table = Some(Arc::clone(&grown));
        Some(grown)
    }

    /// Names a key of a table, within the memory of this worker.
    fn name(&self, table: &TopTable, print: u32, label: table::KeyLabel) {
        let before = table.name_bytes();
        let free = self.room.saturating_sub(self.bytes()).saturating_add(before);
        // Every table can have its part of a quarter of the room, and more while half of it is free.
        let tables = self.tables.load(Ordering::Relaxed);
        let share = (self.room / 4).checked_div(tables).unwrap_or(0);
        let most = if self.bytes() < self.room / 2 { self.room / 8 } else { share };
        table.name(print, label, free.min(most));
        let after = table.name_bytes();
        self.release(before);
        self.bytes.store(self.bytes().saturating_add(after), Ordering::Relaxed);
    }
}

// === impl RuleTallies ===

impl RuleTallies {
    /// The lists that count now: of the current half and of the one before.
    fn lists(&self, by: TopBy, now: u64) -> Vec<TopList> {
        let Some(tally) = self.tallies.get(by.index()) else { return vec![] };
        let tally = lock(tally);
        let is_recent = |half: u64| half == now || half.saturating_add(1) == now;
        let table = tally.table.as_ref().filter(|table| is_recent(table.half));
        let previous = tally.previous.as_ref().filter(|(half, _)| is_recent(*half));
        let lists = [table.map(|table| table.list()), previous.map(|(_, list)| list.clone())];
        lists.into_iter().flatten().collect()
    }

    fn bytes(&self) -> usize {
        let bytes = |tally: &Mutex<TallyHalves>| {
            let tally = lock(tally);
            let table = tally.table.as_ref().map_or(0, |table| table.bytes());
            let previous = tally.previous.as_ref().map_or(0, |(_, list)| list.bytes());
            table.saturating_add(previous)
        };
        self.tallies.iter().map(bytes).fold(0, usize::saturating_add)
    }
}
