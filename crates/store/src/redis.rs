//! The store on Redis or Valkey: one script call per plan.
//!
//! ```text
//!   plan ──► wire: numbers ──► EVALSHA: read, decide, write all or none ──► time and states as they were
//!                                                                                    │
//!   answer ◄── Plan::take, the same function that decides in memory ◄────────────────┘
//! ```
//!
//! The script and the core must agree to the last integer. So the script decides only what it must, whether
//! the plan passes and what the states are then; everything that is told the caller is computed here, by the
//! core, from the states that the script found and the time it saw. If the two ever disagreed on whether a
//! plan passes, the answer is an error that says so, not a wrong decision.
//!
//! - **Time** is the server's, read in the script. A deadline goes along: a command that was stuck for longer
//!   than its caller waited does nothing.
//! - **Values** say for themselves when they are over; their time to live is for garbage only.
//! - **Keys** are 14 bytes: a hash tag of two letters that all states of one key share, so that they lie on one
//!   slot of a cluster, and 80 bits of the state's name. A million states share one with odds of 1 in 10¹².
//! - **Several servers.** Takes that share a slot of a cluster are one call. Takes on several slots are sent together; if
//!   one refuses, what the others took is given back: never more than a limit passes, and briefly less may.
//! - **Refusals** are remembered for half a second ([`seen`]): who is refused anyway need not be asked for.
//! - **Shapes.** A bucket's state carries a tag of three digits that a registry in the same Redis translates. A
//!   script that meets a tag it was not told of answers with it and does nothing; it is looked up and told. A
//!   shape that cannot be registered writes itself out instead, and takes more memory. A state whose shape nobody
//!   knows any more counts as full, once.

mod address;
mod board;
mod breaker;
mod connection;
mod fleet;
mod foreign;
mod late;
mod link;
mod nodes;
mod owed;
mod plans;
mod registry;
mod script;
mod seen;
mod sentinels;
#[cfg(feature = "testing")]
pub(crate) mod simulated;
mod slots;
mod trouble;
mod wire;

use crate::error::StoreError;
use crate::key::Secret;
use crate::store::{
    Answer, Charged, LinkReport, Part, ReceiptId, Settled, Settlement, SharedDocument, Store,
    StoreHealth, StoreReport,
};
use fleet::Fleet;
use foreign::Foreign;
use futures_util::future::{join_all, try_join_all};
use nodes::Nodes;
use owed::{Owed, Payer};
use plans::Found;
use registry::Registry;
use script::{Call, Reply, Told, Verb};
use seen::Seen;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{Ask, Cost, Decision, Limit, Now, Plan, Span, StateId, Take, Timestamp};
use tokio::sync::Semaphore;

/// The registry and the verifier of the secret; both on one slot.
const OURS: &[u8] = b"tidegate";
const REGISTRY_KEY: &str = "{tidegate}shapes";
const VERIFIER_KEY: &str = "{tidegate}secret";
/// Three years, from the last time that a node met a shape: longer than nearly every state matters.
const KEPT_SECONDS: u64 = 3 * 366 * 86_400;
/// Plans of one call that are asked for at the same time.
const AT_ONCE: usize = 128;
/// How often a call is made: once, once more for each shape that a script was not told of, and once more
/// for a calendar whose window has just ended.
const MOST_TRIES: usize = 18;

/// How to reach a store.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_store::RedisSettings;
/// let settings = RedisSettings { timeout: Span::from_millis(20), ..RedisSettings::new("redis://127.0.0.1/") };
/// assert_eq!(settings.connect_timeout, Span::from_secs(1));
/// let secret = RedisSettings::new("redis://user:password@127.0.0.1/");
/// assert!(!format!("{secret:?}").contains("password"));
/// ```
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://[user:password@]host[:port][/db]`, `redis+unix:///path`, `redis+cluster://host:port,host:port` or
    /// `redis+sentinel://host:port,host:port/name`; with `rediss` instead of `redis`, over TLS.
    pub url: String,
    /// What TLS is spoken with.
    pub tls: RedisTls,
    /// How long a decision may take, look-ups and redirections included.
    pub timeout: Span,
    /// How long connecting may take.
    pub connect_timeout: Span,
    /// How many questions may wait for the answer of one server; the next is an error at once.
    pub in_flight: usize,
    /// Whose clock decides.
    pub clock: RedisClock,
    /// How many nodes count in the store; otherwise they find out by themselves.
    pub nodes: Option<u32>,
    /// How many there were when this node last knew, for a start without the store.
    pub known_nodes: Option<u32>,
    /// Whether a refusal is remembered, for half a second, instead of asking again.
    pub remember_refusals: bool,
}

/// Whose clock decides.
///
/// ```
/// assert_eq!(tidegate_store::RedisClock::default(), tidegate_store::RedisClock::Server);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedisClock {
    /// The server's, read in the script: the same for all nodes, and a command that comes late does nothing.
    #[default]
    Server,
    /// Each node's idea of it, for engines that let no script read the time: the server is asked once a second, outside of
    /// scripts, or if it does not tell, our own clock is taken. Two nodes then disagree by as much as their ideas do, and
    /// each rewrite of a state may gain that much time; what was sent and not answered may have been counted.
    Node,
}

/// What TLS is spoken with, in PEM.
#[derive(Clone, Default)]
pub struct RedisTls {
    /// Who must have signed the servers' certificates, instead of those whom this machine trusts.
    pub authority: Option<Vec<u8>>,
    /// Our certificate and its key, for servers that ask who we are.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

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
    fleet: Arc<Fleet>,
    registry: Arc<Registry>,
    seen: Arc<Seen>,
    nodes: Arc<Nodes>,
    timeout: Span,
    /// Names what we give back ourselves. Relaxed: only different numbers are wanted.
    debts: Arc<AtomicU64>,
    /// Room for tasks that try again to give back.
    debtors: Arc<Semaphore>,
    /// Room for replies that come too late.
    latecomers: Arc<Semaphore>,
    /// What was granted without the store, and is charged when it is back.
    owed: Arc<Owed>,
    /// Charges it; ends with the store.
    payer: Option<Arc<Payer>>,
    /// Keys that hold data of other programs.
    foreign: Arc<Foreign>,
    /// Drawn at random: tells our debts from those of others.
    ours: u64,
    /// The time that scripts are told instead of reading it, in microseconds; the largest number is none. For
    /// tests. Relaxed: a test that sets it and calls that read it are ordered by the test itself.
    test_time: Arc<AtomicU64>,
}

// === impl RedisSettings ===

impl RedisSettings {
    /// This store, with ordinary timeouts: 50 ms for a decision, a second to connect.
    ///
    /// ```
    /// use tidegate_core::Span;
    /// use tidegate_store::RedisSettings;
    /// assert_eq!(RedisSettings::new("redis://127.0.0.1/").timeout, Span::from_millis(50));
    /// ```
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            tls: RedisTls::default(),
            timeout: Span::from_millis(50),
            connect_timeout: Span::from_secs(1),
            in_flight: 1_024,
            clock: RedisClock::Server,
            nodes: None,
            known_nodes: None,
            remember_refusals: true,
        }
    }
}

impl RedisSettings {
    /// The longest that anything takes.
    fn patience(&self) -> Span {
        self.timeout.max(self.connect_timeout)
    }
}

/// The address may hold a password, so it shows in no log.
impl std::fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisSettings").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// A key shows in no log.
impl std::fmt::Debug for RedisTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisTls").finish_non_exhaustive()
    }
}

// === impl Redis ===

impl Redis {
    /// Connects, and checks that this deployment's secret is the one whose states the store holds.
    pub async fn connect(settings: &RedisSettings, secret: &Secret) -> Result<Self, StoreError> {
        let (store, first) = Self::over(settings, secret).await?;
        first.map(|()| store)
    }

    /// The same, but a store that cannot be reached yet is no reason not to begin: it is tried again and again, and until
    /// it answers, every call is an error at once. What no patience would mend, such as another secret, is an error here.
    pub async fn open(settings: &RedisSettings, secret: &Secret) -> Result<Self, StoreError> {
        Ok(Self::over(settings, secret).await?.0)
    }

    async fn over(
        settings: &RedisSettings,
        secret: &Secret,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let (fleet, first) = Fleet::open(settings, secret).await?;
        Self::on(fleet, first, settings).await
    }

    async fn on(
        fleet: Fleet,
        first: Result<(), StoreError>,
        settings: &RedisSettings,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let fleet = Arc::new(fleet);
        let ours = getrandom::u64().map_err(|error| StoreError::Broken(error.to_string()))?;
        let mut store = Self {
            registry: Arc::new(Registry::new(Arc::clone(&fleet), ours, settings.timeout)),
            nodes: Arc::new(Nodes::join(&fleet, settings, ours).await),
            fleet,
            seen: Arc::new(Seen::new(settings.remember_refusals)),
            timeout: settings.timeout,
            debts: Arc::new(AtomicU64::new(0)),
            debtors: Arc::new(Semaphore::new(settings.in_flight)),
            latecomers: Arc::new(Semaphore::new(settings.in_flight)),
            owed: Arc::default(),
            payer: None,
            foreign: Arc::default(),
            ours,
            test_time: Arc::new(AtomicU64::new(u64::MAX)),
        };
        store.payer = Some(Arc::new(Payer::start(&store)));
        Ok((store, first))
    }

    /// The same store, for a task of its own.
    fn another(&self) -> Self {
        Self {
            fleet: Arc::clone(&self.fleet),
            registry: Arc::clone(&self.registry),
            seen: Arc::clone(&self.seen),
            nodes: Arc::clone(&self.nodes),
            timeout: self.timeout,
            debts: Arc::clone(&self.debts),
            debtors: Arc::clone(&self.debtors),
            latecomers: Arc::clone(&self.latecomers),
            owed: Arc::clone(&self.owed),
            payer: None,
            foreign: Arc::clone(&self.foreign),
            ours: self.ours,
            test_time: Arc::clone(&self.test_time),
        }
    }

    /// Tells scripts this time instead of the server's, in whole microseconds.
    #[cfg(feature = "testing")]
    pub fn set_test_time(&self, now: Timestamp) {
        self.test_time.store(now.as_nanos() / 1_000, Ordering::Relaxed);
    }

    fn test_time(&self) -> Option<u64> {
        Some(self.test_time.load(Ordering::Relaxed)).filter(|micros| *micros < u64::MAX)
    }

    /// When somebody who asks now wants to have his answer.
    fn until(&self) -> Timestamp {
        self.until_within(None)
    }

    /// The same for somebody who may be in more of a hurry than we are.
    fn until_within(&self, patience: Option<Span>) -> Timestamp {
        let patience = patience.unwrap_or(self.timeout).min(self.timeout);
        self.fleet.now().after(patience).unwrap_or(Timestamp::END)
    }

    /// Calls the script where a slot is, until it knows all shapes it meets.
    async fn call(&self, slot: u16, until: Timestamp, call: Call<'_>) -> Result<Reply, StoreError> {
        for limit in call.limits() {
            self.supports(limit)?;
        }
        let tags = self.registry.tags(call.limits(), until).await;
        let (mut shapes, mut lost) = (Vec::new(), Vec::new());
        let mut guess = None;
        for _ in 0..MOST_TRIES {
            let (test, lost_tags) = (self.test_time(), &lost[..]);
            let told = Told { tags: &tags, shapes: &shapes, lost: lost_tags, test, guess };
            let reply = self.fleet.call(slot, until, &call, &told).await?;
            match reply {
                Reply::UnknownShape(tag) => match self.registry.shape(tag, until).await? {
                    Some(shape) => shapes.push((tag, shape)),
                    None => lost.push(tag),
                },
                Reply::Moved(now) => guess = Some(now),
                // Late by a clock we had misjudged, perhaps: now we know it better.
                Reply::Late(_) if self.fleet.now() < until => {}
                Reply::Late(_) => return Err(StoreError::TimedOut(self.timeout)),
                Reply::Found { .. } | Reply::Over | Reply::Already => return Ok(reply),
            }
        }
        Err(StoreError::Broken("a script does not know what it was told".to_owned()))
    }

    /// The states that a script found, for the core to decide from.
    fn states<'l>(
        &self,
        limits: impl Iterator<Item = &'l Limit>,
        found: &[Vec<u8>],
    ) -> Result<Vec<Found<'l>>, StoreError> {
        let mut values = found.iter();
        let mut states = Vec::with_capacity(found.len());
        for limit in limits {
            let value = values.next().ok_or_else(garbled);
            let state = value.and_then(|value| Found::read(limit, value, &self.registry));
            states.push(state.inspect_err(|_| self.fleet.count_wrong())?);
        }
        if values.next().is_some() {
            self.fleet.count_wrong();
            return Err(garbled());
        }
        Ok(states)
    }

    /// Things by where their states are, in the order in which they come.
    fn by_place<T>(
        &self,
        things: impl IntoIterator<Item = T>,
        state: impl Fn(&T) -> StateId,
    ) -> Vec<(u16, Vec<T>)> {
        let mut places: Vec<(u16, Vec<T>)> = Vec::new();
        for thing in things {
            let place = self.fleet.place(state(&thing));
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, there)) => there.push(thing),
                None => places.push((place, vec![thing])),
            }
        }
        places
    }
}

// === the contract ===

impl Store for Redis {
    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        // They are sent in order, and a server decides them in order.
        let mut answers = Vec::with_capacity(plans.len());
        for plans in plans.chunks(AT_ONCE) {
            answers.extend(join_all(plans.iter().map(|plan| self.decide(plan))).await);
        }
        answers
    }

    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        self.decide(plan).await
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        let until = self.until();
        let mut charged = Charged { at: Timestamp::EPOCH, decisions: vec![], receipts: vec![] };
        for take in takes {
            let call = Call {
                verb: Verb::Charge,
                takes: &[*take],
                parts: &[],
                max_wait: Span::ZERO,
                receipt: None,
                late: None,
            };
            let place = self.fleet.place(take.state);
            let Reply::Found { now, values, .. } = self.call(place, until, call).await? else {
                return Err(garbled());
            };
            let found = self.states([take.limit].into_iter(), &values)?;
            for mut written in found.iter().map(Found::written) {
                let ask = Ask::new(now, take.cost).bounded(take.bound);
                charged.receipts.push(take.limit.charge(&mut written, &ask));
                charged
                    .decisions
                    .push(take.limit.decide(&written, &Ask { cost: Cost::default(), ..ask }));
            }
            charged.at = now;
        }
        Ok(charged)
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        self.give_back_until(settlement, self.until()).await
    }

    fn owe(&self, takes: &[Take<'_>]) {
        self.owed.add(takes, self.nodes(), self.fleet.now());
    }

    fn owe_less(&self, parts: &[Part<'_>]) {
        for part in parts {
            let cost = owed::cost_of(part.limit, &part.receipt);
            self.owed.cancel(part.state, cost, self.fleet.now());
        }
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        let (max_wait, until) = (whole_micros(plan.max_wait()), self.until_within(plan.patience()));
        let takes = plan.takes().iter().copied().enumerate();
        let peek = async |place: u16, takes: &[(usize, Take<'_>)]| {
            let asked: Vec<Take<'_>> = takes.iter().map(|(_, take)| *take).collect();
            let call = Call {
                verb: Verb::Peek,
                takes: &asked,
                parts: &[],
                max_wait,
                receipt: None,
                late: None,
            };
            let Reply::Found { now, values, .. } = self.call(place, until, call).await? else {
                return Err(garbled());
            };
            let found = self.states(asked.iter().map(|take| take.limit), &values)?;
            let decide = |((number, take), found): (&(usize, Take<'_>), &Found<'_>)| {
                let ask = plan.ask(take, Now::at(now));
                (*number, take.limit.decide(&found.written(), &Ask { max_wait, ..ask }))
            };
            Ok(takes.iter().zip(&found).map(decide).collect::<Vec<_>>())
        };
        let places = self.by_place(takes, |(_, take)| take.state);
        let peeks = places.iter().map(|(place, takes)| peek(*place, takes));
        let mut decided: Vec<_> = try_join_all(peeks).await?.into_iter().flatten().collect();
        decided.sort_by_key(|(number, _)| *number);
        Ok(decided.into_iter().map(|(_, decision)| decision).collect())
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        self.seen.forget(states.iter().copied());
        let until = self.until();
        let mut count = 0_usize;
        for (place, states) in self.by_place(states.iter().copied(), |state| *state) {
            let mut delete = ::redis::cmd("DEL");
            for state in states {
                delete.arg(wire::key(state).as_slice());
            }
            let deleted = self.fleet.query(place, until, &delete).await?;
            let ::redis::Value::Int(deleted) = deleted else { return Err(garbled()) };
            count = count.saturating_add(usize::try_from(deleted).unwrap_or(0));
        }
        Ok(count)
    }

    fn wall_clock(&self) -> Option<Timestamp> {
        if let Some(micros) = self.test_time() {
            return Some(Timestamp::from_nanos(micros.saturating_mul(1_000)));
        }
        self.fleet.time_at(0, self.fleet.now()).map(|(theirs, _)| theirs)
    }

    fn nodes(&self) -> u32 {
        self.nodes.count()
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        wire::supports(limit)
            .map_err(|reason| StoreError::Unsupported { limit: Box::new(limit.clone()), reason })
    }
}

impl StoreHealth for Redis {
    fn complaint(&self) -> Option<String> {
        let complaints = [
            self.fleet.complaint(),
            self.nodes.complaint(),
            self.registry.complaint(),
            self.foreign.complaint(self.fleet.now()),
        ];
        let complaints: Vec<String> = complaints.into_iter().flatten().collect();
        (!complaints.is_empty()).then(|| complaints.join("; "))
    }

    fn known_nodes(&self) -> Option<u32> {
        self.nodes.known()
    }

    fn report(&self) -> Option<StoreReport> {
        Some(self.fleet.report())
    }
}

impl SharedDocument for Redis {
    const SHARED: bool = true;

    async fn document(&self, known: u64) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        board::read(&self.fleet, self.until(), known).await
    }

    async fn replace_document(
        &self,
        versions: (u64, u64),
        text: &[u8],
    ) -> Result<bool, StoreError> {
        board::replace(&self.fleet, self.until(), versions, text).await
    }
}

impl Redis {
    /// Gives back what a plan took, once, and within a time.
    async fn give_back_until(
        &self,
        settlement: &Settlement<'_>,
        until: Timestamp,
    ) -> Result<Settled, StoreError> {
        self.seen.forget(settlement.parts.iter().map(|part| part.state));
        let mut places = self.by_place(settlement.parts.iter().copied(), |part| part.state);
        if places.is_empty() {
            places.push((self.fleet.place(StateId(settlement.id.0)), vec![]));
        }
        // Each place marks the receipt for itself, so that a second try settles what the first could not.
        let lowest = |(_, parts): &(u16, Vec<Part<'_>>)| parts.iter().map(|part| part.state).min();
        places.sort_by_key(lowest);
        let mut settled = None;
        for (place, parts) in &places {
            let there = self.give_back_at(*place, until, settlement, parts).await?;
            settled.get_or_insert(there);
        }
        Ok(settled.unwrap_or(Settled::Done))
    }

    /// Gives back what was taken at one place, once.
    async fn give_back_at(
        &self,
        place: u16,
        until: Timestamp,
        settlement: &Settlement<'_>,
        parts: &[Part<'_>],
    ) -> Result<Settled, StoreError> {
        // A script reads each state once, so the second part of a state has a call of its own.
        let (mut first, mut more): (Vec<Part<'_>>, Vec<Part<'_>>) = (Vec::new(), Vec::new());
        for part in parts {
            let seen = first.iter().any(|earlier| earlier.state == part.state);
            if seen { more.push(*part) } else { first.push(*part) }
        }
        let receipt = Some((settlement.id, settlement.until));
        let settled = match self.call(place, until, giving_back(&first, receipt)).await? {
            Reply::Over => Settled::Late,
            Reply::Already => Settled::Already,
            Reply::Found { .. } => Settled::Done,
            Reply::UnknownShape(_) | Reply::Moved(_) | Reply::Late(_) => return Err(garbled()),
        };
        if settled == Settled::Done {
            for part in more {
                self.call(place, until, giving_back(&[part], None)).await?;
            }
        }
        Ok(settled)
    }
}

fn giving_back<'c>(parts: &'c [Part<'c>], receipt: Option<(ReceiptId, Timestamp)>) -> Call<'c> {
    Call { verb: Verb::GiveBack, takes: &[], parts, max_wait: Span::ZERO, receipt, late: None }
}

/// The clock of a script is no finer than that.
fn whole_micros(span: Span) -> Span {
    Span::from_nanos((span.as_nanos() / 1_000).saturating_mul(1_000))
}

fn garbled() -> StoreError {
    StoreError::Broken("a script answered another question".to_owned())
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
