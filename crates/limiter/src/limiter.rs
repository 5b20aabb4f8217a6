//! The limiter: a policy and a store, and what is asked of them.
//!
//! ```text
//!   attributes, cost ──► policy: which rules, whose buckets ──► a plan ──► store: all or none ──► verdict
//! ```

mod decide;
mod descriptors;
mod local;
mod named;
mod operate;
mod settle;

pub(crate) use decide::Want;
pub use descriptors::{
    DescribedLimit, Descriptor, DescriptorCall, DescriptorError, DescriptorStatus,
    DescriptorVerdict,
};
pub use named::{NamedLimit, NamedTake};

use crate::check::Check;
use crate::error::{CheckError, LimiterError};
use crate::live::{Lent, Live};
use crate::queue::Queues;
use crate::signals::Signals;
use crate::verdict::Verdict;
use arc_swap::ArcSwap;
use std::borrow::Cow;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tidegate_core::{Need, Span, Timestamp};
use tidegate_policy::{Attributes, Policy, Rule};
use tidegate_store::{Clock, Memory, Secret, Store};

/// How long a receipt can be settled, unless said otherwise.
const RECEIPT_TTL: Span = Span::from_secs(60);
/// What a refusal without an answer of the store tells the client.
const STORE_RETRY: Span = Span::from_secs(1);

/// A policy and a store: what requests are asked of. Clones are handles of the same limiter.
///
/// ```
/// use tidegate::{Attributes, Check, Limiter, Policy};
/// let policy = Policy::parse("
/// version: 1
/// rules: [{ name: per-client, key: [ip], limits: [15/s] }]")?;
/// let limiter = Limiter::in_memory(policy)?;
/// let client = Attributes::new().with("ip", "203.0.113.7")?;
/// let passed = (0..100).filter(|_| limiter.check_now(&Check::new(&client)).unwrap().allowed());
/// assert!((15..=16).contains(&passed.count())); // a bucket of 15, and it refills meanwhile
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Limiter<S = Memory> {
    pub(crate) inner: Arc<Inner<S>>,
    /// How long a receipt that this handle gives out can be settled.
    receipt_ttl: Span,
}

#[derive(Debug)]
pub(crate) struct Inner<S> {
    pub(crate) store: S,
    pub(crate) clock: Clock,
    secret: Secret,
    /// Read by every request, replaced whole.
    live: ArcSwap<Live>,
    /// Held while a successor of `live` is made, so that of two changes at once none is lost. Requests never
    /// wait for it.
    changing: Mutex<()>,
    /// Apart from `live`, because it changes every few moments.
    signals: ArcSwap<Signals>,
    /// Stands where no rule has a say: for limits that callers name.
    callers: Rule,
    /// Counts while the store is gone, for rules that say so.
    local: local::Local,
    pub(crate) queues: Queues,
    /// Drawn at random: tells our receipts from those of other nodes.
    node: u64,
    /// How many receipts were given out.
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

/// The time for which calendars are laid out: that of the store, where it has its own, because it looks for windows.
fn wall_clock(store: &impl Store, clock: &Clock) -> Timestamp {
    store.wall_clock().unwrap_or_else(|| clock.now().calendar)
}

// === impl Limiter ===

impl Limiter<Memory> {
    /// A limiter that counts in this process.
    pub fn in_memory(policy: Policy) -> Result<Self, LimiterError> {
        let clock = Clock::system();
        Self::new(policy, Memory::new(clock.clone()), Secret::random()?, clock)
    }

    /// Asks without `await`: a store in this process answers at once.
    pub fn check_now(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        now(self.check(check))
    }
}

/// The value of a future that never waits.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        // In memory everything is ready at once; were it not, this would be asked again, not be wrong.
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
    /// A limiter on this store. Nodes that share a store share the secret too.
    ///
    /// ```
    /// use tidegate::{Clock, Limiter, Memory, Policy, Secret, Timestamp};
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s] }] }")?;
    /// let clock = Clock::manual(Timestamp::EPOCH);
    /// let limiter = Limiter::new(policy, Memory::new(clock.clone()), Secret::new([7; 32]), clock)?;
    /// assert_eq!(limiter.version(), 1);
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
        let node = getrandom::u64().map_err(std::io::Error::other)?.max(1);
        let inner = Inner {
            store,
            callers: Rule::of_callers(),
            local: local::Local::new(clock.clone()),
            clock,
            secret,
            live: ArcSwap::from_pointee(live),
            changing: Mutex::new(()),
            signals: ArcSwap::default(),
            queues: Queues::default(),
            node,
            receipts: AtomicU64::new(0),
            unmatched: AtomicU64::new(0),
            unknown_tiers: AtomicU64::new(0),
            store_errors: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner), receipt_ttl: RECEIPT_TTL })
    }

    /// The same limiter, giving out receipts that can be settled for this long; it is a minute unless said otherwise.
    /// Clones that were made before keep their own time.
    ///
    /// ```
    /// # use tidegate::{Limiter, Policy, Span};
    /// # let policy = Policy::parse("{ version: 1, rules: [{ name: a, key: [], limits: [1/s] }] }")?;
    /// let limiter = Limiter::in_memory(policy)?.settling_within(Span::from_secs(600));
    /// # let _ = limiter;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn settling_within(self, span: Span) -> Self {
        Self { receipt_ttl: span, ..self }
    }

    /// Whether a request may pass. What may, is counted.
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
        self.decide(self.live(), check, Want::Answer)
    }

    /// What the limiter works by, with calendars that are fresh enough.
    pub(crate) fn live(&self) -> Lent {
        let live = self.inner.live.load();
        match &live.laid_out_for {
            Some(times) if !times.contains(&self.inner.wall_clock()) => self.renew(),
            Some(_) | None => live,
        }
    }

    /// Attributes in which secrets are known by their digests.
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

    /// Counts an answer: once for each rule, by the worst of its limits.
    pub(crate) fn count(&self, verdict: &Verdict) {
        if verdict.entries.is_empty() {
            self.inner.unmatched.fetch_add(1, Ordering::Relaxed);
        }
        for entries in verdict.entries.chunk_by(|a, b| a.rule == b.rule) {
            let refused = entries.iter().find(|entry| !entry.decision.passes());
            let (Some(entry), Some(counters)) = (
                refused.or(entries.first()),
                entries.first().and_then(|entry| verdict.live.counters.get(entry.rule)),
            ) else {
                continue;
            };
            counters.count(entry.decision.outcome, entry.need == Need::Required);
        }
    }
}
