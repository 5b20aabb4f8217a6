//! The store on memcached: counters that all nodes add to.
//!
//! ```text
//!   plan ──► counters of its takes ──► `ma`: add, and read ──► Plan::take of the core, with what was found ──► answer
//!                                                                └── refused: what was added is taken back
//! ```
//!
//! memcached has no programs and no transactions, so this store does exactly what memcached can do exactly, and names the bound of
//! the rest (`docs/memcached.md`):
//!
//! - **Fixed windows never pass too much**: a request that sees more than the limit after adding is refused.
//! - **Weighted windows and token buckets** pass too much only if clocks differ, or if a command of a refused request arrives after
//!   its bucket has drained: by the cost of that request.
//! - **Clocks of the nodes decide.** They are compared with each other, and a difference is reported ([`clocks`]).
//! - **Counters can be lost** without a word: memcached is restarted, flushed, or evicts values when it is full. Then every limit may
//!   pass once more. [`losses`] notices.
//! - **A server that is down** keeps its keys; the rule says how they are decided meanwhile. What was granted is charged later.
//! - Leaky buckets, logs, sub-windows and permits are refused when a policy is loaded.
//!
//! Changes of operators are not kept in memcached, which may evict them: they stay in the files of each node.

mod address;
mod call;
mod charges;
mod clocks;
mod connection;
mod counters;
mod decide;
mod losses;
mod meta;
mod placement;
mod probe;
mod receipts;
mod refused_lately;
mod server;
mod settings;
mod shapes;

pub use probe::MemcachedProbe;
pub use settings::MemcachedSettings;

use crate::clock::Clock;
use crate::error::StoreError;
use crate::remote::{DebtCharger, DebtLedger, cost_of, keep, supervised, timers, update_breaker};
use crate::reports::{LinkReport, StoreReport};
use crate::secret::Secret;
use crate::store::{
    Answer, Charged, Part, Settled, Settlement, SharedDocument, Store, StoreHealth,
};
use clocks::{ClockWatch, WallTime};
use counters::CounterShape;
use futures_util::future::join_all;
use placement::Placement;
use refused_lately::RefusedLately;
use server::{Failed, MemcachedContext, MemcachedServer};
use shapes::CountedShapes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{Decision, Limit, Plan, Span, StateId, Take, Timestamp};
use tokio::task::JoinHandle;

/// States in memcached, on one server or several.
///
/// ```no_run
/// use tidegate_store::{Clock, Memcached, MemcachedSettings, Secret};
/// # async fn example() -> Result<(), tidegate_store::StoreError> {
/// let settings = MemcachedSettings::new("memcached://10.0.0.1:11211,10.0.0.2:11211");
/// let store = Memcached::connect(&settings, &Secret::new([7; 32]), Clock::system()).await?;
/// # Ok(())
/// # }
/// ```
pub struct Memcached {
    context: Arc<MemcachedContext>,
    servers: Arc<[Arc<MemcachedServer>]>,
    placement: Arc<Placement>,
    shapes: Arc<CountedShapes>,
    refused: Arc<RefusedLately>,
    /// Buckets that a wrong clock filled into the future.
    far_ahead: Arc<RefusedLately>,
    clocks: Arc<ClockWatch>,
    /// Costs that were granted without the store, to be charged later.
    debts: Arc<DebtLedger>,
    /// A random number that tells this process from others in the receipts of its charges.
    node_id: u64,
    /// Numbers them. Relaxed: the numbers only have to differ.
    next_receipt: Arc<AtomicU64>,
    /// Background tasks; they end with the store.
    tasks: Option<Arc<Tasks>>,
}

struct Tasks {
    /// The keepers of the connections, and the comparison of clocks.
    running: Vec<JoinHandle<()>>,
    _charger: DebtCharger,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.running {
            task.abort();
        }
    }
}

/// The number of nodes if the settings do not say it: memcached cannot count them.
const ASSUMED_NODES: u32 = 8;
/// How long a bucket is known to be filled into the future after that was last seen.
const FAR_AHEAD_SECONDS: u64 = 600;
/// Plans of one call that are decided at the same time.
const MAX_PARALLEL_PLANS: usize = 128;

// === impl Memcached ===

impl Memcached {
    /// Connects to all servers, and checks that they hold no states of another secret. Limits are decided by `clock`, which should
    /// agree with those of the other nodes.
    pub async fn connect(
        settings: &MemcachedSettings,
        secret: &Secret,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let (store, connected) = Self::start(settings, secret, clock).await?;
        connected.map(|()| store)
    }

    /// Like [`Memcached::connect`], but starts even if servers are unreachable: background tasks go on connecting, and until they
    /// succeed every call fails immediately. An error that retrying cannot fix, such as another secret, is returned.
    pub async fn open(
        settings: &MemcachedSettings,
        secret: &Secret,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        Ok(Self::start(settings, secret, clock).await?.0)
    }

    async fn start(
        settings: &MemcachedSettings,
        secret: &Secret,
        clock: Clock,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let addresses = address::parse(&settings.url)?;
        let context = Arc::new(MemcachedContext {
            settings: settings.clone(),
            verifier: format!("{:032x}", secret.verifier()),
            wall: WallTime(clock),
            timer: Clock::system(),
            errors: Default::default(),
            losses: Default::default(),
            restarts: Arc::default(),
        });
        let placement = Arc::new(Placement::new(&addresses));
        let server = |address| Arc::new(MemcachedServer::new(address, &context));
        let servers: Arc<[_]> = addresses.into_iter().map(server).collect();
        let mut first = Ok(());
        let connecting = servers.iter().map(async |server: &Arc<MemcachedServer>| {
            let connected = update_breaker(&**server).await;
            connected.map_err(|error| server::named(server.name(), error))
        });
        for connected in join_all(connecting).await {
            match connected {
                Err(error) if error.is_for_good() => return Err(error),
                connected => first = first.and(connected),
            }
        }
        let mut store = Self {
            context,
            servers,
            placement,
            shapes: Arc::default(),
            refused: Arc::new(RefusedLately::new(1)),
            far_ahead: Arc::new(RefusedLately::new(FAR_AHEAD_SECONDS)),
            clocks: Arc::default(),
            debts: Arc::default(),
            node_id: getrandom::u64().map_err(|error| StoreError::Broken(error.to_string()))?,
            next_receipt: Arc::default(),
            tasks: None,
        };
        let for_charger = store.for_task();
        let restarts = &store.context.restarts;
        let charger = DebtCharger::start(restarts, move || for_charger.for_task());
        let keeper = |server: &Arc<MemcachedServer>| {
            let server = Arc::clone(server);
            tokio::spawn(supervised(Arc::clone(restarts), move || keep(Arc::clone(&server))))
        };
        let mut running: Vec<_> = store.servers.iter().map(keeper).collect();
        let comparing = store.for_task();
        let compare =
            supervised(Arc::clone(restarts), move || comparing.for_task().compare_clocks());
        running.push(tokio::spawn(compare));
        store.tasks = Some(Arc::new(Tasks { running, _charger: charger }));
        Ok((store, first))
    }

    /// How exactly memcached counts under a limit, in a sentence; or why it cannot.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// use tidegate_store::Memcached;
    /// let limit = |algorithm| Limit::new(5, Span::from_secs(1), algorithm).unwrap();
    /// let exact = Memcached::exactness(&limit(Algorithm::FIXED_WINDOW)).unwrap();
    /// assert!(exact.contains("never more"));
    /// assert!(Memcached::exactness(&limit(Algorithm::SLIDING_LOG)).is_err());
    /// ```
    pub fn exactness(limit: &Limit) -> Result<&'static str, &'static str> {
        Ok(match CounterShape::of(limit)? {
            None => "it keeps no count",
            Some(CounterShape::Window { .. } | CounterShape::Calendar) => {
                "never more than the limit in a window; once more after each loss of counters"
            }
            Some(CounterShape::Weighted { .. }) => {
                "as exactly as the clocks of the nodes agree; once more after each loss of counters"
            }
            Some(CounterShape::Bucket { .. }) => {
                "as exactly as the clocks of the nodes agree, and the cost of requests that were refused within a round trip before the bucket drained; it begins full after each edit and each loss of counters, and while nodes with the limit before and after an edit run side by side, a key can use both"
            }
        })
    }

    /// A handle to the same store for a background task. It does not hold the background tasks, so they end with the store.
    fn for_task(&self) -> Self {
        Self {
            context: Arc::clone(&self.context),
            servers: Arc::clone(&self.servers),
            placement: Arc::clone(&self.placement),
            shapes: Arc::clone(&self.shapes),
            refused: Arc::clone(&self.refused),
            far_ahead: Arc::clone(&self.far_ahead),
            clocks: Arc::clone(&self.clocks),
            debts: Arc::clone(&self.debts),
            node_id: self.node_id,
            next_receipt: Arc::clone(&self.next_receipt),
            tasks: None,
        }
    }

    /// Compares the clock of this node with those of others, through the server that all of them choose; never returns.
    async fn compare_clocks(self) {
        loop {
            timers::sleep(clocks::pause()).await;
            let server = self.server_of(StateId(0)).and_then(MemcachedServer::connection);
            if let Ok((connection, _)) = server {
                // If that fails, the keeper of the connection notices it.
                let (wall, timer) = (&self.context.wall, || self.now());
                let _ = self.clocks.compare(&connection, self.node_id, wall, timer).await;
            }
        }
    }

    /// The time by which callers wait.
    fn now(&self) -> Timestamp {
        self.context.timer.now().steady
    }

    /// The deadline of a call that begins now, for a caller that may wait for less than the store's timeout.
    fn deadline_within(&self, patience: Option<Span>) -> Timestamp {
        let timeout = self.context.settings.timeout;
        let patience = patience.unwrap_or(timeout).min(timeout);
        self.now().after(patience).unwrap_or(Timestamp::END)
    }

    /// Counts an error by its class.
    fn counted(&self, Failed(class, error): Failed) -> StoreError {
        if !matches!(error, StoreError::Unsupported { .. }) {
            self.context.errors.count(class);
        }
        error
    }
}

// === the contract ===

impl Store for Memcached {
    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        if let [plan] = plans {
            return vec![self.take_one(plan).await];
        }
        // The commands of all plans are sent in order. A plan that is tried again is decided after later ones.
        let mut answers = Vec::with_capacity(plans.len());
        for plans in plans.chunks(MAX_PARALLEL_PLANS) {
            answers.extend(join_all(plans.iter().map(|plan| self.take_one(plan))).await);
        }
        answers
    }

    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        self.decide(plan, self.deadline_within(plan.patience())).await
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        let until = self.deadline_within(None);
        let at = self.context.wall.now().steady;
        let mut charged = Charged { at, decisions: vec![], receipts: vec![] };
        for take in takes {
            let (decision, receipt) =
                self.charge_one(*take, until).await.map_err(|failed| self.counted(failed))?;
            charged.decisions.push(decision);
            charged.receipts.push(receipt);
        }
        Ok(charged)
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        let until = self.deadline_within(None);
        self.settle_receipt(settlement, until).await.map_err(|failed| self.counted(failed))
    }

    fn owe(&self, takes: &[Take<'_>]) {
        self.debts.add(takes, self.nodes(), self.now());
    }

    fn owe_less(&self, parts: &[Part<'_>]) {
        for part in parts {
            self.debts.cancel(part.state, cost_of(part.limit, &part.receipt), self.now());
        }
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        let until = self.deadline_within(plan.patience());
        self.look(plan, until).await.map_err(|failed| self.counted(failed))
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        let until = self.deadline_within(None);
        let mut count = 0_usize;
        for state in states {
            let had = self.delete(*state, until).await.map_err(|failed| self.counted(failed))?;
            count = count.saturating_add(usize::from(had));
        }
        Ok(count)
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        match CounterShape::of(limit) {
            Ok(shape) => {
                if let Some(shape) = shape {
                    self.shapes.remember(shape);
                }
                Ok(())
            }
            Err(reason) => Err(StoreError::Unsupported { limit: Box::new(limit.clone()), reason }),
        }
    }

    fn nodes(&self) -> u32 {
        self.context.settings.nodes.unwrap_or(ASSUMED_NODES).max(1)
    }

    fn timeout(&self) -> Option<Span> {
        Some(self.context.settings.timeout)
    }
}

impl StoreHealth for Memcached {
    const WATCHED: bool = true;

    fn complaint(&self) -> Option<String> {
        let complaint = |server: &Arc<MemcachedServer>| {
            Some(format!("{}: {}", server.name(), server.complaint()?))
        };
        let mut complaints: Vec<String> = self.servers.iter().filter_map(complaint).collect();
        complaints.extend(self.debts.complaint());
        complaints.extend(self.clocks.complaint(self.now()));
        (!complaints.is_empty()).then(|| complaints.join("; "))
    }

    fn report(&self) -> Option<StoreReport> {
        let link = |server: &Arc<MemcachedServer>| LinkReport {
            name: server.name().to_owned(),
            asked: server.down().is_none(),
        };
        Some(StoreReport {
            links: self.servers.iter().map(link).collect(),
            errors: self.context.errors.all(),
            losses: self.context.losses.all(),
            restarts: self.context.restarts.load(Ordering::Relaxed),
        })
    }
}

impl SharedDocument for Memcached {}

impl std::fmt::Debug for Memcached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memcached")
            .field("settings", &self.context.settings)
            .finish_non_exhaustive()
    }
}
