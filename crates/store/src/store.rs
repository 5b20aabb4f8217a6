//! The contract of every store.

use crate::error::StoreError;
use std::sync::Arc;
use tidegate_core::{
    Decision, Limit, Plan, PlanOutcome, StateId, Take, TakeReceipt, Taken, Timestamp,
};

/// Where states live.
///
/// 1. **All or none.** The takes of a plan are decided at one instant, and counted all or none, whatever
///    other callers do at the same time ([`Plan::take`] is the rule). Plans of one call are independent, and
///    are decided in order.
/// 2. **Exact.** As if all calls had come one after another: never more than the limit, and never less
///    when demand is there.
/// 3. **An error means that nothing is known.**
/// 4. **A receipt is settled once**, whoever asks and however often. A store that has no room to remember it does not settle it.
/// 5. **Bounded.** What no longer counts is forgotten by itself.
///
/// The conformance suite in `testing` is this list, in code.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Span};
/// use tidegate_store::{Clock, Memory, Store};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// assert!(Memory::new(Clock::system()).supports(&limit).is_ok());
/// ```
pub trait Store: Send + Sync {
    /// Whether its states are in this process. Every future of such a store is ready when it is first polled.
    const IN_PROCESS: bool = false;

    /// Decides plans: an answer or an error for each, in order.
    fn take(
        &self,
        plans: &[Plan<'_>],
    ) -> impl Future<Output = Vec<Result<Answer, StoreError>>> + Send;

    /// Decides one plan.
    fn take_one(&self, plan: &Plan<'_>) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        async move {
            let answer = self.take(std::slice::from_ref(plan)).await.pop();
            answer.unwrap_or_else(|| Err(StoreError::Unavailable("no answer".into())))
        }
    }

    /// Decides takes in order, each by itself: a plan of one take each, without what plans cost.
    fn take_each(
        &self,
        takes: &[Take<'_>],
    ) -> impl Future<Output = Vec<Result<SingleAnswer, StoreError>>> + Send {
        async move {
            let plans: Vec<Plan<'_>> = takes.iter().map(|take| Plan::from(*take)).collect();
            self.take(&plans).await.into_iter().map(|answer| single(&answer?)).collect()
        }
    }

    /// Counts takes whether or not they pass, at most one capacity deep into debt.
    fn charge(
        &self,
        takes: &[Take<'_>],
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send;

    /// Gives back what a plan took, once.
    fn give_back(
        &self,
        settlement: &Settlement<'_>,
    ) -> impl Future<Output = Result<Settled, StoreError>> + Send;

    /// Says that these takes were granted without the store, because it could not be asked. A store that can be away
    /// charges them when it is back: once, and as far as they still count then.
    fn owe(&self, _takes: &[Take<'_>]) {}

    /// Says that what was granted without the store was given back. What it has been told of already stays counted.
    fn owe_less(&self, _parts: &[Part<'_>]) {}

    /// What each take of a plan would be answered if it were alone; changes nothing.
    fn peek(
        &self,
        plan: &Plan<'_>,
    ) -> impl Future<Output = Result<Vec<Decision>, StoreError>> + Send;

    /// Forgets states; answers how many there were.
    fn reset(&self, states: &[StateId]) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Whether the store can count under this limit. Asked when a policy is loaded, so that a limit it
    /// cannot count is refused then and not at the first request.
    fn supports(&self, limit: &Limit) -> Result<(), StoreError>;

    /// Whether a caller may name this limit now. Asked before a take whose limit is not the policy's, which names as many as
    /// there are rules: a caller may name more than the store has room for.
    fn admit_limit(&self, _limit: &Limit) -> Result<(), StoreError> {
        Ok(())
    }

    /// The wall clock by which this store finds the windows of calendars, as far as it is known; `None` where that is
    /// the clock of whoever asks.
    fn wall_clock(&self) -> Option<Timestamp> {
        None
    }

    /// How many nodes count in it, this one included: for stores that several share.
    fn nodes(&self) -> u32 {
        1
    }
}

/// How a store is: for operators and health checks. A store without servers and without a bound has nothing to say.
pub trait StoreHealth {
    /// What it has no room for at the moment, and what it refuses therefore, for stores that can fill up.
    fn shortage(&self) -> Option<&'static str> {
        None
    }

    /// Why it is not asked at the moment, for stores that can be away.
    fn complaint(&self) -> Option<String> {
        None
    }

    /// How many nodes count in it, as far as they were counted and not assumed: what a node should know when it starts without
    /// the store.
    fn known_nodes(&self) -> Option<u32> {
        None
    }

    /// How its servers are, for stores that have some.
    fn report(&self) -> Option<StoreReport> {
        None
    }

    /// How full it is, for stores that can fill up.
    fn gauges(&self) -> Option<Gauges> {
        None
    }
}

/// A document that all nodes of a store share: the changes that operators made.
pub trait SharedDocument {
    /// Whether it keeps a document that all its nodes share.
    const SHARED: bool = false;

    /// The document that all nodes share, unless its version is `known`; version 0 is that there is none.
    fn document(
        &self,
        _known: u64,
    ) -> impl Future<Output = Result<Option<(u64, Vec<u8>)>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Puts the next version of that document in the place of the one that it was made from. Answers whether that was
    /// still the last; otherwise nothing changed.
    fn replace_document(
        &self,
        _versions: (u64, u64),
        _text: &[u8],
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }
}

/// A store that several limiters count in.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_store::{Clock, Memory, Store};
/// fn is_store(_: &impl Store) {}
/// is_store(&Arc::new(Memory::new(Clock::system())));
/// ```
impl<S: Store> Store for Arc<S> {
    const IN_PROCESS: bool = S::IN_PROCESS;

    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        S::take(self, plans).await
    }

    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        S::take_one(self, plan).await
    }

    async fn take_each(&self, takes: &[Take<'_>]) -> Vec<Result<SingleAnswer, StoreError>> {
        S::take_each(self, takes).await
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        S::charge(self, takes).await
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        S::give_back(self, settlement).await
    }

    fn owe(&self, takes: &[Take<'_>]) {
        S::owe(self, takes);
    }

    fn owe_less(&self, parts: &[Part<'_>]) {
        S::owe_less(self, parts);
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        S::peek(self, plan).await
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        S::reset(self, states).await
    }

    fn supports(&self, limit: &Limit) -> Result<(), StoreError> {
        S::supports(self, limit)
    }

    fn admit_limit(&self, limit: &Limit) -> Result<(), StoreError> {
        S::admit_limit(self, limit)
    }

    fn wall_clock(&self) -> Option<Timestamp> {
        S::wall_clock(self)
    }

    fn nodes(&self) -> u32 {
        S::nodes(self)
    }
}

impl<S: StoreHealth> StoreHealth for Arc<S> {
    fn shortage(&self) -> Option<&'static str> {
        S::shortage(self)
    }

    fn complaint(&self) -> Option<String> {
        S::complaint(self)
    }

    fn known_nodes(&self) -> Option<u32> {
        S::known_nodes(self)
    }

    fn report(&self) -> Option<StoreReport> {
        S::report(self)
    }

    fn gauges(&self) -> Option<Gauges> {
        S::gauges(self)
    }
}

impl<S: SharedDocument + Send + Sync> SharedDocument for Arc<S> {
    const SHARED: bool = S::SHARED;

    async fn document(&self, known: u64) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        S::document(self, known).await
    }

    async fn replace_document(
        &self,
        versions: (u64, u64),
        text: &[u8],
    ) -> Result<bool, StoreError> {
        S::replace_document(self, versions, text).await
    }
}

/// The answer to a plan.
///
/// ```
/// use tidegate_core::{Plan, Span, Timestamp};
/// use tidegate_store::{Clock, Memory};
/// let store = Memory::new(Clock::manual(Timestamp::from_nanos(5)));
/// let answer = store.take_now(&Plan::new(vec![], Span::ZERO).unwrap());
/// assert!(answer.done.passes); // nothing refuses
/// assert_eq!(answer.at, Timestamp::from_nanos(5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The instant of the decision, by the store's clock.
    pub at: Timestamp,
    /// What was decided.
    pub done: PlanOutcome,
    /// It is a refusal that was remembered; nobody was asked.
    pub remembered: bool,
}

/// The answer to a single take.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
/// use tidegate_store::{Clock, Memory, Store};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let take = Take::new(StateId(7), &limit, Cost::ONE);
/// let answers = Memory::new(Clock::system()).take_each(&[take, take]).await;
/// let passes: Vec<bool> = answers.into_iter().map(|answer| answer.unwrap().taken.decision.passes()).collect();
/// assert_eq!(passes, [true, false]);
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleAnswer {
    /// What was decided.
    pub taken: Taken,
    /// It is a refusal from the denial cache; the store was not asked.
    pub remembered: bool,
}

/// The answer to a plan of one take.
fn single(answer: &Answer) -> Result<SingleAnswer, StoreError> {
    let taken = answer.done.only();
    let taken = taken.ok_or_else(|| StoreError::Unavailable("no answer".into()))?;
    Ok(SingleAnswer { taken, remembered: answer.remembered })
}

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

/// How the servers of a store are.
///
/// ```
/// assert!(tidegate_store::StoreReport::default().links.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Each server.
    pub links: Vec<LinkReport>,
    /// How many questions were not answered, by what went wrong.
    pub errors: Vec<(&'static str, u64)>,
    /// How often a task that looks after them had to be started again.
    pub restarts: u64,
}

/// How one server of a store is.
///
/// ```
/// let away = tidegate_store::LinkReport { name: "10.0.0.1:6379".to_owned(), asked: false };
/// assert!(!away.asked);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// Where it is.
    pub name: String,
    /// Whether it is asked, or left alone until it was seen to answer.
    pub asked: bool,
}

/// The answer to charges.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take, Timestamp};
/// use tidegate_store::{Clock, Memory};
/// let limit = Limit::new(5, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
/// let store = Memory::new(Clock::manual(Timestamp::EPOCH));
/// let charged = store.charge_now(&[Take::new(StateId(1), &limit, Cost::new(7))]);
/// assert_eq!(charged.receipts[0].weight, 7);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The instant of the charge, by the store's clock.
    pub at: Timestamp,
    /// How things stand for each take: the answer to a cost of nothing.
    pub decisions: Vec<Decision>,
    /// What was counted for each take.
    pub receipts: Vec<TakeReceipt>,
}

/// Names the receipt of a plan, so that it is settled once.
///
/// ```
/// assert_ne!(tidegate_store::ReceiptId(1), tidegate_store::ReceiptId(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiptId(pub u128);

/// What is given back.
///
/// ```
/// use tidegate_core::Timestamp;
/// use tidegate_store::{ReceiptId, Settlement};
/// let nothing = Settlement { id: ReceiptId(1), until: Timestamp::END, parts: &[] };
/// assert!(nothing.parts.is_empty());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'s> {
    /// The receipt.
    pub id: ReceiptId,
    /// Until when it can be settled, by the store's clock; remembered until then.
    pub until: Timestamp,
    /// What the takes of the plan counted.
    pub parts: &'s [Part<'s>],
}

/// What one take counted.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, TakeReceipt, Span, StateId};
/// use tidegate_store::Part;
/// let limit = Limit::new(5, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
/// let part = Part { state: StateId(1), limit: &limit, receipt: TakeReceipt { mark: 0, weight: 2 } };
/// assert_eq!(part.receipt.weight, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'s> {
    /// Whose state.
    pub state: StateId,
    /// The limit it was taken under.
    pub limit: &'s Limit,
    /// Where and what was counted.
    pub receipt: TakeReceipt,
}

/// What became of a settlement.
///
/// ```
/// assert_ne!(tidegate_store::Settled::Done, tidegate_store::Settled::Already);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was given back.
    Done,
    /// It had been settled before: nothing changed.
    Already,
    /// It came too late: nothing changed.
    Late,
    /// There is no room to remember that it was settled: nothing changed. Try again later.
    Full,
}
