//! The limiter joins a policy and a store: the policy says which counters a request touches, the store counts.
//!
//! ```text
//!   attributes, cost ──► policy: which rules apply, which counters ──► plan ──► store: all or none ──► verdict
//! ```
//!
//! | file | part |
//! |---|---|
//! | `decide.rs` | from a request to a verdict |
//! | `local.rs` | the fallback: deciding while the store, or a part of it, does not answer |
//! | `issue.rs` | receipts |
//! | `settle.rs` | reports and resets, after the answer |
//! | `planning.rs` | which takes a request needs |
//! | `renew.rs` | renewing permits of concurrency limits |
//! | `operate.rs` | what operators do: reload, change, signal, statistics |
//! | `person.rs` | what is counted for a person of whom some attributes are known |
//! | `named.rs` | limits that the caller names, outside of the policy |
//! | `descriptors.rs` | Envoy's calls: several descriptors decided together |

mod decide;
mod descriptors;
mod issue;
mod local;
mod named;
mod operate;
mod person;
mod planning;
mod renew;
mod settle;

pub(crate) use decide::DecideFor;
pub use descriptors::{
    DescribedLimit, Descriptor, DescriptorCall, DescriptorError, DescriptorStatus,
    DescriptorVerdict,
};
pub(crate) use issue::CountedBy;
pub use named::{NamedLimit, NamedTake};
pub use person::{PersonLimit, PersonReport, PersonRuleReport, UncoveredRule};
pub use renew::Renewal;

use crate::check::Check;
use crate::error::{CheckError, LimiterError};
use crate::give_backs::GiveBacks;
use crate::live::{Live, LiveGuard};
use crate::queue::Queues;
use crate::signals::Signals;
use crate::turns::Turns;
use crate::verdict::{Entry, Verdict};
use arc_swap::ArcSwap;
use std::borrow::Cow;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tidegate_core::{Need, Span, Timestamp};
use tidegate_policy::{Attributes, Policy, Rule};
use tidegate_store::{Clock, Memory, Secret, Store};

/// The default lifetime of a receipt.
const RECEIPT_TTL: Span = Span::from_secs(60);
/// The retry time of a denial that is due to a store failure.
const STORE_RETRY: Span = Span::from_secs(1);

/// Decides whether requests may pass, by a [`Policy`] and with counters in a [`Store`].
///
/// A clone is a cheap handle to the same limiter. All methods take `&self`, and requests never wait for a change of the
/// policy.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: per-client, key: [ip], limits: [15/h] }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let client = Attributes::new().with("ip", "203.0.113.7")?;
/// let passed = (0..100).filter(|_| limiter.check_now(&Check::new(&client)).unwrap().allowed());
/// assert_eq!(passed.count(), 15);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Limiter<S = Memory> {
    pub(crate) inner: Arc<Inner<S>>,
    /// How long a receipt that this handle issues can be settled.
    receipt_ttl: Span,
}

#[derive(Debug)]
pub(crate) struct Inner<S> {
    pub(crate) store: S,
    pub(crate) clock: Clock,
    secret: Secret,
    /// The policy in force. Every request reads it; a change replaces it whole.
    live: ArcSwap<Live>,
    /// Held while a successor of `live` or `signals` is built, so that two concurrent changes cannot overwrite each other.
    /// Requests never wait for it.
    changing: Mutex<()>,
    /// Separate from `live`, because signals change every few seconds.
    signals: ArcSwap<Signals>,
    /// The placeholder rule of limits that callers name.
    callers: Rule,
    /// Counters in this process, for rules with `on_store_error: local` while the store does not answer.
    local: local::LocalCounters,
    pub(crate) queues: Queues,
    pub(crate) turns: Turns,
    pub(crate) give_backs: GiveBacks,
    /// A random number other than 0 that distinguishes the receipts of this node from those of other nodes.
    pub(crate) node: u64,
    /// The number of receipts issued.
    receipts: AtomicU64,
    unmatched: AtomicU64,
    unknown_tiers: AtomicU64,
    store_errors: AtomicU64,
}

impl<S: Store> Inner<S> {
    fn wall_clock(&self) -> Timestamp {
        wall_clock(&self.store, &self.clock)
    }
}

/// The time for which calendars are laid out. A store with a clock of its own finds windows by that clock, so its time is
/// used.
fn wall_clock(store: &impl Store, clock: &Clock) -> Timestamp {
    store.wall_clock().unwrap_or_else(|| clock.now().calendar)
}

// === impl Limiter ===

impl Limiter<Memory> {
    /// Builds a limiter with counters in this process, the system clock and a random secret.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Limiter, Policy};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?;
    /// let request = Attributes::new();
    /// assert!(limiter.check_now(&Check::new(&request))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_memory(policy: Policy) -> Result<Self, LimiterError> {
        Self::in_memory_with(policy, Clock::system())
    }

    /// [`Limiter::in_memory`] with another clock, for tests: [`Clock::manual`], or a clock that follows tokio's paused time
    /// (`testing::tokio_clock`, feature `testing`).
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Clock, Limiter, Policy, Timestamp};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// let clock = Clock::manual(Timestamp::EPOCH);
    /// let limiter = Limiter::in_memory_with(policy, clock.clone())?;
    /// let request = Attributes::new();
    /// assert!(limiter.check_now(&Check::new(&request))?.allowed());
    /// assert!(!limiter.check_now(&Check::new(&request))?.allowed());
    /// clock.set(Timestamp::from_nanos(3_600_000_000_000)); // one hour later
    /// assert!(limiter.check_now(&Check::new(&request))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_memory_with(policy: Policy, clock: Clock) -> Result<Self, LimiterError> {
        Self::new(policy, Memory::new(clock.clone()), Secret::random()?, clock)
    }

    /// [`Limiter::check`] without `await`, because a store in this process answers immediately.
    pub fn check_now(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        now(self.check(check))
    }
}

/// The value of a future that never waits, for stores in this process.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        // The first poll is ready. If it were not, polling again would still be correct.
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), receipt_ttl: self.receipt_ttl }
    }
}

impl<S: Store> Limiter<S> {
    /// Builds a limiter on this store. Nodes that share a store must use the same secret: it names the counters and signs
    /// the receipts. The [warnings](Policy::warnings) of the policy are logged through `tracing`, here and when the policy is
    /// replaced.
    ///
    /// A manual clock makes tests independent of real time:
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Clock, Limiter, Memory, Policy, Secret, Timestamp};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s] }] }")?;
    /// let clock = Clock::manual(Timestamp::EPOCH);
    /// let limiter =
    ///     Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock.clone())?;
    /// let request = Attributes::new();
    /// assert!(limiter.check_now(&Check::new(&request))?.allowed());
    /// assert!(!limiter.check_now(&Check::new(&request))?.allowed());
    /// clock.set(Timestamp::from_nanos(1_000_000_000)); // one second later
    /// assert!(limiter.check_now(&Check::new(&request))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        policy: Policy,
        store: S,
        secret: Secret,
        clock: Clock,
    ) -> Result<Self, LimiterError> {
        let live = Live::first(policy, wall_clock(&store, &clock));
        live.supported_by(&store)?;
        live.log_warnings(None);
        let node = getrandom::u64().map_err(std::io::Error::other)?.max(1);
        let inner = Inner {
            store,
            callers: Rule::of_callers(),
            local: local::LocalCounters::new(clock.clone()),
            clock,
            secret,
            live: ArcSwap::from_pointee(live),
            changing: Mutex::new(()),
            signals: ArcSwap::default(),
            queues: Queues::default(),
            turns: Turns::default(),
            give_backs: GiveBacks::default(),
            node,
            receipts: AtomicU64::new(0),
            unmatched: AtomicU64::new(0),
            unknown_tiers: AtomicU64::new(0),
            store_errors: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner), receipt_ttl: RECEIPT_TTL })
    }

    /// Sets how long the receipts that this handle issues can be settled; the default is one minute. Clones made before
    /// keep their own setting.
    ///
    /// ```
    /// use tidegate::{Attributes, Check, Clock, Limiter, Memory, Policy, Report, Secret, Settled, Span};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let clock = Clock::manual(tidegate::Timestamp::EPOCH);
    /// # let store = Memory::new(clock.clone());
    /// # let limiter = Limiter::new(policy, store, Secret::new([7; 32]), clock.clone())?;
    /// let limiter = limiter.settling_within(Span::from_secs(600));
    /// let job = Attributes::new();
    /// let verdict = limiter.check_now(&Check::new(&job).with_receipt())?;
    /// clock.set(tidegate::Timestamp::from_nanos(599_000_000_000)); // the job took almost ten minutes
    /// let settled = limiter.report_now(verdict.receipt().unwrap(), Report::Cancelled)?;
    /// assert_eq!(settled, Settled::Done);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn settling_within(self, span: Span) -> Self {
        Self { receipt_ttl: span, ..self }
    }

    /// Decides whether a request may pass, and counts it if it may.
    ///
    /// A request that is denied counts under no limit, except under rules with `count_rejected`. An `Err` does not mean
    /// that the request was denied, but that it could not be decided.
    ///
    /// ```
    /// # use tidegate::{Attributes, Check, Limiter, Policy};
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/h] }] }")?;
    /// # let limiter = Limiter::in_memory(policy)?;
    /// # let request = Attributes::new();
    /// let verdict = limiter.check(&Check::new(&request)).await?;
    /// assert!(verdict.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(
        &self,
        check: &Check<'_>,
    ) -> impl Future<Output = Result<Verdict, CheckError>> + Send {
        self.decide(self.live(), check, DecideFor::Check)
    }

    /// The policy in force, with calendars that cover the current time.
    pub(crate) fn live(&self) -> LiveGuard {
        let live = self.inner.live.load();
        match &live.laid_out_for {
            Some(times) if !times.contains(&self.inner.wall_clock()) => self.renew_calendars(),
            Some(_) | None => live,
        }
    }

    /// The attributes with secrets, such as API keys, replaced by their digests.
    fn concealed<'a>(
        &self,
        live: &Live,
        attributes: &'a Attributes<'a>,
    ) -> Cow<'a, Attributes<'a>> {
        let identity = live.policy.identity();
        if !identity.reveals(attributes) {
            return Cow::Borrowed(attributes);
        }
        let mut concealed = attributes.clone();
        identity.conceal(&mut concealed, &|secret| self.inner.secret.digest(secret));
        Cow::Owned(concealed)
    }

    /// Adds a verdict to the statistics: once for each rule, by the worst of its limits.
    pub(crate) fn count(&self, verdict: &Verdict) {
        if verdict.entries.is_empty() {
            self.inner.unmatched.fetch_add(1, Ordering::Relaxed);
        }
        for entry in verdict.entries_by_rule() {
            let Some(counters) = verdict.live.counters.get(entry.rule) else { continue };
            counters.count(entry.decision.outcome, entry.need == Need::Required);
            let is_over = |one: &Entry| one.rule == entry.rule && one.decision.over;
            if verdict.over && verdict.entries.iter().any(is_over) {
                counters.count_over();
            }
        }
    }
}
