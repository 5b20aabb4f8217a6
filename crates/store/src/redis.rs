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
//! - **Shapes.** A bucket's state carries a tag of three digits that a registry in the same Redis translates. A
//!   script that meets a tag it was not told of answers with it and does nothing; it is looked up and told. A
//!   shape whose tag is taken by another writes itself out instead, and takes more memory.

mod breaker;
mod link;
mod registry;
mod script;
mod wire;

use crate::error::StoreError;
use crate::key::Secret;
use crate::store::{Answer, Charged, Part, ReceiptId, Settled, Settlement, Store};
use link::Link;
use registry::Registry;
use script::{Call, Reply, Times, Verb};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{
    Ask, Cost, Decision, Limit, Now, Plan, Span, StateId, Take, Timestamp, Written,
};
use wire::WrittenUnder;

/// The registry and the verifier of the secret; both on one slot.
const REGISTRY_KEY: &str = "{tidegate}shapes";
const VERIFIER_KEY: &str = "{tidegate}secret";
/// Three years, from the last time that a node met a shape: longer than nearly every state matters. A shape that
/// is lost all the same is read as the limit that asks.
const KEPT_SECONDS: u64 = 3 * 366 * 86_400;
/// How often a call is made: once, once more for each shape that a script was not told of, and once more
/// for a calendar whose window has just ended.
const MOST_TRIES: usize = 18;

/// How to reach a server.
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
    /// `redis://[user:password@]host[:port][/db]` or `redis+unix:///path`.
    pub url: String,
    /// How long a decision may take, look-ups and reconnecting included.
    pub timeout: Span,
    /// How long connecting may take.
    pub connect_timeout: Span,
    /// How many questions may wait for their answer; the next is an error at once.
    pub in_flight: usize,
}

/// States in a Redis or Valkey server.
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
    link: Arc<Link>,
    registry: Registry,
    timeout: Span,
    /// The time that scripts are told instead of reading it, in microseconds; the largest number is none. For
    /// tests. Relaxed: a test that sets it and calls that read it are ordered by the test itself.
    test_time: AtomicU64,
}

// === impl RedisSettings ===

impl RedisSettings {
    /// This server, with ordinary timeouts: 50 ms for a decision, a second to connect.
    ///
    /// ```
    /// use tidegate_core::Span;
    /// use tidegate_store::RedisSettings;
    /// assert_eq!(RedisSettings::new("redis://127.0.0.1/").timeout, Span::from_millis(50));
    /// ```
    #[must_use]
    pub fn new(url: &str) -> Self {
        let (timeout, connect_timeout) = (Span::from_millis(50), Span::from_secs(1));
        Self { url: url.to_owned(), timeout, connect_timeout, in_flight: 1_024 }
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

// === impl Redis ===

impl Redis {
    /// Connects, and checks that this deployment's secret is the one whose states the server holds.
    pub async fn connect(settings: &RedisSettings, secret: &Secret) -> Result<Self, StoreError> {
        let (store, first) = Self::over(settings, secret).await?;
        first.map(|()| store)
    }

    /// The same, but a server that cannot be reached yet is no reason not to begin: it is tried again and again, and until
    /// it answers, every call is an error at once. What no patience would mend, such as another secret, is an error here.
    pub async fn open(settings: &RedisSettings, secret: &Secret) -> Result<Self, StoreError> {
        Ok(Self::over(settings, secret).await?.0)
    }

    async fn over(
        settings: &RedisSettings,
        secret: &Secret,
    ) -> Result<(Self, Result<(), StoreError>), StoreError> {
        let (link, first) = Link::open(settings, secret).await?;
        let link = Arc::new(link);
        let store = Self {
            registry: Registry::new(Arc::clone(&link)),
            link,
            timeout: settings.timeout,
            test_time: AtomicU64::new(u64::MAX),
        };
        Ok((store, first))
    }

    /// Tells scripts this time instead of the server's, in whole microseconds.
    #[cfg(feature = "testing")]
    pub fn set_test_time(&self, now: Timestamp) {
        self.test_time.store(now.as_nanos() / 1_000, Ordering::Relaxed);
    }

    /// Calls the script; whatever happens on the way, no longer than the timeout.
    async fn call(&self, call: Call<'_>) -> Result<Reply, StoreError> {
        let _room = self.link.enter()?;
        let answered = tokio::time::timeout(self.timeout.into(), self.call_until_told(call)).await;
        let answered = answered.unwrap_or(Err(StoreError::TimedOut(self.timeout)));
        self.link.heard(&answered);
        answered
    }

    /// Runs a script until it knows all shapes it meets.
    async fn call_until_told(&self, call: Call<'_>) -> Result<Reply, StoreError> {
        for limit in call.limits() {
            self.supports(limit)?;
        }
        let started = self.link.now();
        let tags = self.registry.tags(call.limits()).await?;
        let mut told = Vec::new();
        let mut guess = None;
        for _ in 0..MOST_TRIES {
            let sent = self.link.now();
            let mut times = self.times(sent);
            times.guess = guess.unwrap_or(times.guess);
            let reply = script::run(&self.link, &call, &tags, &told, times).await?;
            if times.test.is_none() {
                self.link.learn_time(sent, &reply);
            }
            match reply {
                Reply::UnknownShape(tag, place) => {
                    let asking = call.limits().nth(place).ok_or_else(garbled)?;
                    told.push((tag, self.registry.shape(tag, asking).await?));
                }
                Reply::Moved(now) => guess = Some(now),
                // Late by a clock we had misjudged, perhaps: now we know it better.
                Reply::Late(_) if self.link.now().since(started) < self.timeout => {}
                Reply::Late(_) => return Err(StoreError::TimedOut(self.timeout)),
                Reply::Found { .. } | Reply::Over | Reply::Already => return Ok(reply),
            }
        }
        Err(StoreError::Broken("a script does not know what it was told".to_owned()))
    }

    /// The states that a script found, for the core to decide from.
    fn states<'l>(
        &'l self,
        limits: impl Iterator<Item = &'l Limit>,
        found: &[Vec<u8>],
    ) -> Result<Vec<Found<'l>>, StoreError> {
        limits.zip(found).map(|(limit, value)| Found::read(limit, value, &self.registry)).collect()
    }

    fn test_time(&self) -> Option<u64> {
        Some(self.test_time.load(Ordering::Relaxed)).filter(|micros| *micros < u64::MAX)
    }

    /// The server's time as far as we know it, and when the caller of now will have gone.
    fn times(&self, sent: Timestamp) -> Times {
        let test = self.test_time();
        if let Some(micros) = test {
            let guess = Timestamp::from_nanos(micros.saturating_mul(1_000));
            return Times { test, deadline: 0, guess };
        }
        let guess = self.link.theirs(sent);
        let deadline = guess.as_nanos().saturating_add(self.timeout.as_nanos()) / 1_000;
        Times { test, deadline, guess }
    }
}

/// A state that a script found, and the shape that it was written under.
struct Found<'l> {
    shape: wire::Shape<'l>,
    value: tidegate_core::Remembered,
}

impl<'l> Found<'l> {
    fn read(limit: &'l Limit, value: &[u8], registry: &Registry) -> Result<Self, StoreError> {
        let (value, under) = wire::parse(limit, value)?;
        let shape = match under {
            WrittenUnder::Registered(tag) => wire::Shape::Kept(registry.known(tag)?),
            WrittenUnder::Whole(shape) => wire::Shape::Kept(Arc::new(shape)),
            WrittenUnder::Room(room) => wire::Shape::with_room(limit, room, &value),
            WrittenUnder::Asking => wire::Shape::wide_enough(limit, &value)?,
        };
        Ok(Self { shape, value })
    }

    fn written(&self) -> Written<'_> {
        Written { shape: self.shape.limit(), state: self.shape.limit().remember(&self.value) }
    }
}

// === the contract ===

impl Store for Redis {
    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        let mut answers = Vec::with_capacity(plans.len());
        // One after another for now: plans of one call are decided in order.
        for plan in plans {
            answers.push(self.take_one(plan).await);
        }
        answers
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        let now = self.times(self.link.now()).guess;
        let mut charged = Charged { at: now, decisions: vec![], receipts: vec![] };
        for take in takes {
            let call = Call {
                verb: Verb::Charge,
                takes: &[*take],
                parts: &[],
                max_wait: Span::ZERO,
                receipt: None,
            };
            let Reply::Found { now, values, .. } = self.call(call).await? else {
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
        // A script reads each state once, so the second part of a state has a call of its own.
        let (mut first, mut more): (Vec<Part<'_>>, Vec<Part<'_>>) = (Vec::new(), Vec::new());
        for part in settlement.parts {
            let seen = first.iter().any(|earlier| earlier.state == part.state);
            if seen { more.push(*part) } else { first.push(*part) }
        }
        let receipt = Some((settlement.id, settlement.until));
        let settled = match self.call(giving_back(&first, receipt)).await? {
            Reply::Over => Settled::Late,
            Reply::Already => Settled::Already,
            Reply::Found { .. } => Settled::Done,
            Reply::UnknownShape(..) | Reply::Moved(_) | Reply::Late(_) => return Err(garbled()),
        };
        if settled == Settled::Done {
            for part in more {
                self.call(giving_back(&[part], None)).await?;
            }
        }
        Ok(settled)
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        let max_wait = whole_micros(plan.max_wait());
        let call =
            Call { verb: Verb::Peek, takes: plan.takes(), parts: &[], max_wait, receipt: None };
        let Reply::Found { now, values, .. } = self.call(call).await? else {
            return Err(garbled());
        };
        let found = self.states(plan.takes().iter().map(|take| take.limit), &values)?;
        let decide = |(take, found): (&Take<'_>, &Found<'_>)| {
            let ask = plan.ask(take, Now::at(now));
            take.limit.decide(&found.written(), &Ask { max_wait, ..ask })
        };
        Ok(plan.takes().iter().zip(&found).map(decide).collect())
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        if states.is_empty() {
            return Ok(0);
        }
        let mut delete = ::redis::cmd("DEL");
        for state in states {
            delete.arg(wire::key(*state).as_slice());
        }
        let delete = &delete;
        let ask = self
            .link
            .ask(|mut connection| async move { delete.query_async(&mut connection).await });
        let asked = tokio::time::timeout(self.timeout.into(), ask).await;
        asked.unwrap_or(Err(StoreError::TimedOut(self.timeout)))
    }

    fn complaint(&self) -> Option<String> {
        self.link.complaint()
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        wire::supports(limit)
            .map_err(|reason| StoreError::Unsupported { limit: Box::new(limit.clone()), reason })
    }
}

impl Redis {
    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        let max_wait = whole_micros(plan.max_wait());
        let call =
            Call { verb: Verb::Take, takes: plan.takes(), parts: &[], max_wait, receipt: None };
        let Reply::Found { now, passes, values } = self.call(call).await? else {
            return Err(garbled());
        };
        let found = self.states(plan.takes().iter().map(|take| take.limit), &values)?;
        let mut states: Vec<Written<'_>> = found.iter().map(Found::written).collect();
        let plan = Plan::new(plan.takes().to_vec(), max_wait)
            .map_err(|error| StoreError::Broken(error.to_string()))?;
        let done = plan.take(Now::at(now), &mut states);
        if done.passes != passes {
            return Err(StoreError::Broken(format!(
                "the script says passes = {passes}, the core {} at {now:?} for {values:?}",
                done.passes
            )));
        }
        Ok(Answer { at: now, done })
    }
}

fn giving_back<'c>(parts: &'c [Part<'c>], receipt: Option<(ReceiptId, Timestamp)>) -> Call<'c> {
    Call { verb: Verb::GiveBack, takes: &[], parts, max_wait: Span::ZERO, receipt }
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
