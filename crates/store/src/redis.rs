//! The store on Redis or Valkey: a program in Lua decides each plan.
//!
//! ```text
//!   plan ──► wire format ──► FCALL or EVALSHA: read, decide, write all or none ──► server time, states before the call
//!                                                                                    │
//!   answer ◄── Plan::take, the same function that decides in memory ◄────────────────┘
//! ```
//!
//! The script and the core must agree to the last integer. So the script decides only what it must: whether the plan passes,
//! and the new states. Everything else in the answer is computed by the core, from the states that the script found and the
//! time that it read. If the two ever disagreed on whether a plan passes, the answer would be an error, not a wrong decision.
//!
//! - **Time** is the server's clock, read in the script. Each call carries a deadline (fencing): a command that was delayed
//!   for longer than its caller waits does nothing.
//! - **Values** say for themselves when they are over. Their time to live only removes garbage.
//! - **Keys** have 14 bytes: a hash tag of two letters, the same for all states of one key, so that they are in one slot of a
//!   cluster; and 80 bits of the state's id. Among a million states, two share a key with odds of 1 in 10¹².
//! - **Several servers.** Takes in one slot are one call. Takes in several slots are sent at the same time; if one slot
//!   refuses, what the others took is given back. More than the limit never passes; for a moment less may pass.
//! - **Denial cache.** A node answers repeated refusals itself for half a second ([`denial_cache`]).
//! - **Shapes.** The value of a bucket names the limit it was written under by a tag of three digits, which a registry in the
//!   same Redis translates ([`shape_registry`]). A script that finds an unknown tag does nothing and replies with it; the caller
//!   looks it up and calls again. A shape that cannot be registered is written inline. A state whose shape is lost counts as full, once.

mod address;
mod batches;
mod canary;
mod command_error;
mod connection;
mod context;
mod dataset;
mod debts;
mod denial_cache;
mod documents;
mod foreign_data;
mod keeper;
mod lanes;
mod late_replies;
mod leasing;
mod library;
mod link;
mod link_state;
mod node_registry;
mod node_tally;
mod old_libraries;
mod packed_plan;
mod plans;
mod probe;
mod publications;
mod refunds;
mod reply_meter;
mod router;
mod script;
mod sentinels;
mod server_clock;
mod server_stream;
mod settings;
mod shape_registry;
mod shared_document;
#[cfg(feature = "testing")]
pub(crate) mod simulated;
mod slots;
mod stored_state;
mod topology;
mod wire;

pub use probe::RedisProbe;
pub use settings::{RedisClock, RedisSettings, RedisTls};

use crate::error::StoreError;
use crate::key::Secret;
use crate::leases::LeaseTable;
use crate::remote::{DebtCharger, DebtLedger, cost_of};
use crate::reports::{LeaseReport, NodeReport, StoreReport};
use crate::store::{Answer, Charged, Part, Settled, Settlement, Store, StoreHealth};
use denial_cache::DenialCache;
use foreign_data::ForeignData;
use futures_util::future::{join_all, try_join_all};
use leasing::LeaseKeeper;
use node_registry::NodeRegistry;
use router::Router;
use script::{ScriptCall, ScriptHints, ScriptReply, unexpected_reply};
use shape_registry::ShapeRegistry;
#[cfg(feature = "testing")]
pub(crate) use shape_registry::share_a_tag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stored_state::StoredState;
use tidegate_core::{Ask, Cost, Decision, Limit, Plan, Span, StateId, Take, Timestamp};
use tokio::sync::{Notify, Semaphore};
use wire::Verb;

/// Plans of one call that are decided at the same time.
const MAX_PARALLEL_PLANS: usize = 128;
/// How often a program is called for one plan: once, once more if it needs the long path, once more for each shape that it did
/// not know, and once more for a calendar whose window has just ended.
const MAX_TRIES: usize = 18;

/// States in Redis or Valkey: one server, a primary with its sentinels, or a cluster.
///
/// ```no_run
/// use tidegate_store::{Redis, RedisSettings, Secret};
/// # async fn example() -> Result<(), tidegate_store::StoreError> {
/// let secret = Secret::new([7; 32]);
/// let store = Redis::connect(&RedisSettings::new("redis://127.0.0.1/"), &secret).await?;
/// # Ok(())
/// # }
/// ```
pub struct Redis {
    router: Arc<Router>,
    shapes: Arc<ShapeRegistry>,
    denials: Arc<DenialCache>,
    nodes: Arc<NodeRegistry>,
    timeout: Span,
    /// A random number that tells this process from others: in the registries, and in the receipts of its charges. It differs after
    /// a restart, because receipts are numbered from 0.
    node_id: u64,
    /// Numbers the receipts of the charges of this node's debts. Relaxed: the numbers only have to differ.
    next_receipt: Arc<AtomicU64>,
    /// One permit for each background task that refunds the takes of one slot.
    refund_permits: Arc<Semaphore>,
    /// One permit for each background task that waits for a late reply.
    late_permits: Arc<Semaphore>,
    /// Costs that were granted without the store, to be charged later.
    debts: Arc<DebtLedger>,
    /// Charges them; ends with the store.
    charger: Option<Arc<DebtCharger>>,
    /// What this node holds of limits that it shares with others.
    leases: Arc<LeaseTable>,
    /// Notified when a lease begins.
    leases_begun: Arc<Notify>,
    /// Looks at the leases; ends with the store.
    lease_keeper: Option<Arc<LeaseKeeper>>,
    /// Keys that hold data of other programs.
    foreign: Arc<ForeignData>,
    /// Time in microseconds that scripts use instead of the server's clock; `u64::MAX` for none. For tests. Relaxed: a test
    /// orders its own calls.
    test_time: Arc<AtomicU64>,
    /// Every plan takes the long path. For tests; Relaxed as well.
    long_path_only: Arc<AtomicBool>,
}

// === impl Redis ===

impl Redis {
    /// Connects, and checks that the store holds no states of another secret.
    pub async fn connect(settings: &RedisSettings, secret: &Secret) -> Result<Self, StoreError> {
        let (router, connected) = Router::open(settings, secret).await?;
        let store = Self::with_router(router, settings).await?;
        connected.map(|()| store)
    }

    /// Like [`Redis::connect`], but starts even if the store is unreachable: background tasks go on connecting, and until they
    /// succeed every call fails immediately. An error that retrying cannot fix, such as another secret, is returned.
    pub async fn open(settings: &RedisSettings, secret: &Secret) -> Result<Self, StoreError> {
        let (router, _connected) = Router::open(settings, secret).await?;
        Self::with_router(router, settings).await
    }

    /// The store over simulated servers, each behind a network: one server, or several that divide the slots evenly. Like
    /// [`Redis::open`], it starts even if they are unreachable.
    #[cfg(feature = "testing")]
    pub async fn simulated(
        settings: &RedisSettings,
        secret: &Secret,
        clock: crate::clock::Clock,
        networks: Vec<Arc<dyn simulated::Network>>,
    ) -> Result<Self, StoreError> {
        let (router, _connected) = Router::simulated(settings, secret, clock, networks).await?;
        Self::with_router(router, settings).await
    }

    async fn with_router(router: Router, settings: &RedisSettings) -> Result<Self, StoreError> {
        let router = Arc::new(router);
        let node_id = getrandom::u64().map_err(|error| StoreError::Broken(error.to_string()))?;
        let mut store = Self {
            shapes: Arc::new(ShapeRegistry::new(Arc::clone(&router), node_id, settings.timeout)),
            nodes: Arc::new(NodeRegistry::join(&router, settings, node_id).await),
            router,
            denials: Arc::new(DenialCache::new(settings.remember_refusals)),
            timeout: settings.timeout,
            node_id,
            next_receipt: Arc::new(AtomicU64::new(0)),
            refund_permits: Arc::new(Semaphore::new(settings.in_flight)),
            late_permits: Arc::new(Semaphore::new(settings.in_flight)),
            debts: Arc::default(),
            charger: None,
            leases: Arc::new(LeaseTable::new()),
            leases_begun: Arc::default(),
            lease_keeper: None,
            foreign: Arc::default(),
            test_time: Arc::new(AtomicU64::new(u64::MAX)),
            long_path_only: Arc::default(),
        };
        let for_charger = store.for_task();
        let charger = DebtCharger::start(store.router.restarts(), move || for_charger.for_task());
        store.charger = Some(Arc::new(charger));
        store.lease_keeper = Some(Arc::new(LeaseKeeper::start(&store)));
        store.router.started();
        Ok(store)
    }

    /// Why a store on Redis cannot count under this limit, if it cannot.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// assert_eq!(tidegate_store::Redis::can_count(&limit), Ok(()));
    /// ```
    pub fn can_count(limit: &Limit) -> Result<(), &'static str> {
        wire::supports(limit)
    }

    /// A handle to the same store for a background task. It does not hold the background tasks, so they end with the store.
    fn for_task(&self) -> Self {
        Self {
            router: Arc::clone(&self.router),
            shapes: Arc::clone(&self.shapes),
            denials: Arc::clone(&self.denials),
            nodes: Arc::clone(&self.nodes),
            timeout: self.timeout,
            node_id: self.node_id,
            next_receipt: Arc::clone(&self.next_receipt),
            refund_permits: Arc::clone(&self.refund_permits),
            late_permits: Arc::clone(&self.late_permits),
            debts: Arc::clone(&self.debts),
            charger: None,
            leases: Arc::clone(&self.leases),
            leases_begun: Arc::clone(&self.leases_begun),
            lease_keeper: None,
            foreign: Arc::clone(&self.foreign),
            test_time: Arc::clone(&self.test_time),
            long_path_only: Arc::clone(&self.long_path_only),
        }
    }

    /// Scripts use this time instead of the server's clock, in whole microseconds.
    #[cfg(feature = "testing")]
    pub fn set_test_time(&self, now: Timestamp) {
        self.test_time.store(now.as_nanos() / 1_000, Ordering::Relaxed);
    }

    /// Lets every plan take the long path, or those that need it.
    #[cfg(feature = "testing")]
    pub fn set_long_path_only(&self, only: bool) {
        self.long_path_only.store(only, Ordering::Relaxed);
    }

    fn test_time(&self) -> Option<u64> {
        Some(self.test_time.load(Ordering::Relaxed)).filter(|micros| *micros < u64::MAX)
    }

    /// The deadline of a call that begins now.
    fn deadline(&self) -> Timestamp {
        self.deadline_within(None)
    }

    /// The deadline of a call that begins now, for a caller that may wait for less than the store's timeout.
    fn deadline_within(&self, patience: Option<Span>) -> Timestamp {
        let patience = patience.unwrap_or(self.timeout).min(self.timeout);
        self.router.now().after(patience).unwrap_or(Timestamp::END)
    }

    /// Calls the script on the owner of a slot, again and again until it knows all shapes that it finds.
    async fn call(
        &self,
        slot: u16,
        until: Timestamp,
        call: ScriptCall<'_>,
    ) -> Result<ScriptReply, StoreError> {
        for limit in call.limits() {
            self.supports(limit)?;
        }
        let tags = self.shapes.tags(call.limits(), until).await;
        let (mut shapes, mut lost) = (Vec::new(), Vec::new());
        let (mut guess, mut long) = (None, self.long_path_only.load(Ordering::Relaxed));
        for _ in 0..MAX_TRIES {
            let (tags, test) = (&tags[..], self.test_time());
            let hints = ScriptHints { tags, shapes: &shapes, lost: &lost, long, test, guess };
            let reply = self.router.call(slot, until, &call, &hints).await?;
            match reply {
                ScriptReply::UnknownShape(tag) => match self.shapes.shape(tag, until).await? {
                    Some(shape) => shapes.push((tag, shape)),
                    None => lost.push(tag),
                },
                ScriptReply::Moved(now) => guess = Some(now),
                ScriptReply::NeedsLong(now) => (long, guess) = (true, Some(now)),
                // Perhaps late only because the estimate of the server's clock was wrong. This reply has corrected it.
                ScriptReply::Late(_) if self.router.now() < until => {}
                ScriptReply::Late(_) => return Err(StoreError::TimedOut(self.timeout)),
                ScriptReply::Found { .. }
                | ScriptReply::Granted { .. }
                | ScriptReply::Over
                | ScriptReply::Already => {
                    return Ok(reply);
                }
            }
        }
        Err(StoreError::Broken("a script asks again for what it was told".to_owned()))
    }

    /// Parses the states that a script found, for the core to decide from.
    fn parse_states<'l>(
        &self,
        limits: impl Iterator<Item = &'l Limit>,
        found: &[Vec<u8>],
    ) -> Result<Vec<StoredState<'l>>, StoreError> {
        let mut values = found.iter();
        let mut states = Vec::with_capacity(found.len());
        for limit in limits {
            let value = values.next().ok_or_else(unexpected_reply);
            let state = value.and_then(|value| StoredState::parse(limit, value, &self.shapes));
            states.push(state.inspect_err(|_| self.router.count_wrong())?);
        }
        if values.next().is_some() {
            self.router.count_wrong();
            return Err(unexpected_reply());
        }
        Ok(states)
    }

    /// Items grouped by the slots of their states, in their order.
    fn by_slot<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        state: impl Fn(&T) -> StateId,
    ) -> Vec<(u16, Vec<T>)> {
        let mut slots: Vec<(u16, Vec<T>)> = Vec::new();
        for item in items {
            let slot = self.router.slot(state(&item));
            match slots.iter_mut().find(|(known, _)| *known == slot) {
                Some((_, items)) => items.push(item),
                None => slots.push((slot, vec![item])),
            }
        }
        slots
    }

    /// Charges one take; adds the result to `charged`.
    async fn charge_one(
        &self,
        take: Take<'_>,
        until: Timestamp,
        charged: &mut Charged,
    ) -> Result<(), StoreError> {
        let takes = [take];
        let call = ScriptCall::of_takes(Verb::Charge, &takes, Span::ZERO);
        let reply = self.call(self.router.slot(take.state), until, call).await?;
        let ScriptReply::Found { now, values, .. } = reply else { return Err(unexpected_reply()) };
        let found = self.parse_states([take.limit].into_iter(), &values)?;
        for mut written in found.iter().map(StoredState::written) {
            let ask = Ask::new(now, take.cost).bounded(take.bound);
            charged.receipts.push(take.limit.charge(&mut written, &ask));
            let nothing = Ask { cost: Cost::default(), ..ask };
            charged.decisions.push(take.limit.decide(&written, &nothing));
        }
        charged.at = now;
        Ok(())
    }
}

/// A plan that the core does not accept: the caller's plan was accepted before, so this is a bug.
fn invalid_plan(error: tidegate_core::PlanError) -> StoreError {
    StoreError::Broken(error.to_string())
}

// === the contract ===

impl Store for Redis {
    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        // Plans are pipelined: sent in order over one connection for each server, and decided by the server in that order. A plan
        // that must be sent again (an unknown shape, a program that is not loaded, a redirect) is decided after later ones.
        let mut answers = Vec::with_capacity(plans.len());
        for plans in plans.chunks(MAX_PARALLEL_PLANS) {
            answers.extend(join_all(plans.iter().map(|plan| self.decide(plan))).await);
        }
        answers
    }

    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        self.decide(plan).await
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        let until = self.deadline();
        let mut charged = Charged { at: Timestamp::EPOCH, decisions: vec![], receipts: vec![] };
        for take in takes {
            self.charge_one(*take, until, &mut charged).await?;
        }
        Ok(charged)
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        self.give_back_until(settlement, self.deadline()).await
    }

    fn owe(&self, takes: &[Take<'_>]) {
        self.debts.add(takes, self.nodes(), self.router.now());
    }

    fn owe_less(&self, parts: &[Part<'_>]) {
        for part in parts {
            let cost = cost_of(part.limit, &part.receipt);
            self.debts.cancel(part.state, cost, self.router.now());
        }
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        let until = self.deadline_within(plan.patience());
        let takes = plan.takes().iter().copied().enumerate();
        let slots = self.by_slot(takes, |(_, take)| take.state);
        let peeks = slots.iter().map(|(slot, takes)| self.peek_in_slot(plan, *slot, until, takes));
        let mut decided: Vec<_> = try_join_all(peeks).await?.into_iter().flatten().collect();
        decided.sort_by_key(|(index, _)| *index);
        Ok(decided.into_iter().map(|(_, decision)| decision).collect())
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        self.denials.forget(states.iter().copied());
        self.leases.forget(states);
        let until = self.deadline();
        let mut count = 0_usize;
        for (slot, states) in self.by_slot(states.iter().copied(), |state| *state) {
            let mut delete = ::redis::cmd("DEL");
            for state in states {
                delete.arg(wire::key(state).as_slice());
            }
            let deleted = self.router.query(slot, until, &delete).await?;
            let ::redis::Value::Int(deleted) = deleted else { return Err(unexpected_reply()) };
            count = count.saturating_add(usize::try_from(deleted).unwrap_or(0));
        }
        Ok(count)
    }

    async fn release(&self) {
        self.give_back_leases().await;
        self.nodes.leave().await;
    }

    fn wall_clock(&self) -> Option<Timestamp> {
        if let Some(micros) = self.test_time() {
            return Some(Timestamp::from_nanos(micros.saturating_mul(1_000)));
        }
        self.router.server_time(0, self.router.now()).map(|(estimate, _)| estimate)
    }

    fn nodes(&self) -> u32 {
        self.nodes.count()
    }

    fn timeout(&self) -> Option<Span> {
        Some(self.timeout)
    }

    fn back_for(&self, state: StateId) -> Option<Span> {
        self.router.back_for(self.router.slot(state))
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        Self::can_count(limit)
            .map_err(|reason| StoreError::Unsupported { limit: Box::new(limit.clone()), reason })
    }
}

impl StoreHealth for Redis {
    const WATCHED: bool = true;

    fn complaint(&self) -> Option<String> {
        let unreachable = self.router.complaint();
        let complaints = [
            unreachable.clone(),
            self.nodes.complaint(unreachable.is_some()),
            self.shapes.complaint(),
            self.foreign.complaint(self.router.now()),
            self.debts.complaint(),
        ];
        let complaints: Vec<String> = complaints.into_iter().flatten().collect();
        (!complaints.is_empty()).then(|| complaints.join("; "))
    }

    fn known_nodes(&self) -> Option<u32> {
        self.nodes.known()
    }

    fn announce_policy(&self, hash: &str) {
        self.nodes.set_policy(hash);
    }

    fn node_reports(&self) -> Vec<NodeReport> {
        self.nodes.report()
    }

    fn report(&self) -> Option<StoreReport> {
        Some(self.router.report())
    }

    fn leases(&self) -> Vec<LeaseReport> {
        self.leases.report()
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
