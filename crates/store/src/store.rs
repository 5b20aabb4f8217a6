//! The contract of every store: [`Store`], and the values that it takes and returns.

use crate::error::StoreError;
use crate::reports::{DurableReport, Gauges, LeaseReport, NodeReport, StoreReport};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::{
    Decision, Limit, Plan, PlanOutcome, Span, StateId, Take, TakeReceipt, Taken, Timestamp,
};

/// Keeps states and decides takes. Every store guarantees:
///
/// 1. **All or none.** The takes of a plan are decided at one instant, by `Plan::take` of `tidegate_core`: if the plan passes, all takes that fit are
///    counted, otherwise none. (Refused costs that are charged are counted in both cases.) Other callers see all of it or
///    nothing. Plans of one call are independent and are decided in order.
/// 2. **Exact.** The answers are as if all calls had come one after another. Never more than the limit passes, and never less
///    if there is enough demand.
/// 3. **An error means that the outcome is unknown**, unless its documentation says that nothing was counted. The takes may have
///    been counted or not.
/// 4. **A receipt is settled once**, however often and by however many clients it is presented. A store without room to
///    remember a receipt does not settle it.
/// 5. **Bounded.** The store removes states that have expired by itself.
///
/// Exceptions to 1 and 2:
///
/// - A plan over several slots of a Redis Cluster is not decided at one instant. If one slot refuses, the other slots have counted
///   their takes already, and these are given back. Until then, other callers may be refused too early. If giving back fails, they
///   may be refused until the period of the limit is over.
/// - `Redis` sends the plans of one call in order. A plan that must be sent again may be decided later than the plans after it. So
///   may a plan that is sent to another server.
/// - The denial cache of `Redis` may refuse for up to half a second after a reset, or after something was given back.
/// - [`Memory`](crate::Memory), when it is full, may refuse too early, or let pass what it does not count
///   ([`WhenFull`](tidegate_core::WhenFull)). The head of `memory.rs` lists its other exceptions: batches and rare coincidences.
///
/// The conformance suite in `testing` checks the guarantees.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Span};
/// use tidegate_store::{Clock, Memory, Store};
/// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// assert!(Memory::new(Clock::system()).supports(&limit).is_ok());
/// ```
pub trait Store: Send + Sync {
    /// Whether the states are in this process. Then every future of the store is ready when it is first polled.
    const IN_PROCESS: bool = false;

    /// A random number of this set of states, if it ends with this process; `None` if states outlive the process, or nodes share them.
    /// A receipt of another set must not be settled here: it would give back what these states have not counted.
    fn incarnation(&self) -> Option<u64> {
        None
    }

    /// Decides plans. Returns an answer or an error for each, in order.
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

    /// Decides takes in order, each by itself. The result is that of plans of one take each, without the overhead of plans.
    fn take_each(
        &self,
        takes: &[Take<'_>],
    ) -> impl Future<Output = Vec<Result<SingleAnswer, StoreError>>> + Send {
        async move {
            let plans: Vec<Plan<'_>> = takes.iter().map(|take| Plan::from(*take)).collect();
            self.take(&plans).await.into_iter().map(|answer| single(&answer?)).collect()
        }
    }

    /// Counts takes whether or not they pass. The debt of a state grows to one capacity at most; that of a concurrency limit as
    /// [`Limit::deepest`] says.
    fn charge(
        &self,
        takes: &[Take<'_>],
    ) -> impl Future<Output = Result<Charged, StoreError>> + Send;

    /// Gives back what a plan took. A receipt can be settled once.
    fn give_back(
        &self,
        settlement: &Settlement<'_>,
    ) -> impl Future<Output = Result<Settled, StoreError>> + Send;

    /// Tells the store about takes that were granted without it, because it was unreachable. A store that can be unreachable
    /// charges them when it is back: once, and as far as they still count then.
    fn owe(&self, _takes: &[Take<'_>]) {}

    /// Tells the store that takes granted without it were given back. What it has charged already stays counted.
    fn owe_less(&self, _parts: &[Part<'_>]) {}

    /// What each take of a plan would be answered if it were alone. Changes nothing.
    fn peek(
        &self,
        plan: &Plan<'_>,
    ) -> impl Future<Output = Result<Vec<Decision>, StoreError>> + Send;

    /// Removes states; returns how many there were.
    fn reset(&self, states: &[StateId]) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Gives back what this node holds of limits that it shares with others, and tells them that it leaves. Call it once, before the
    /// node shuts down.
    fn release(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Whether the store can count under this limit. It is called when a policy is loaded, so that an unsupported limit is
    /// refused then and not at the first request.
    fn supports(&self, limit: &Limit) -> Result<(), StoreError>;

    /// Whether a client may use this limit of its own now. It is called before a take whose limit comes from the client. A policy
    /// has a bounded number of limits; clients may name more than the store has room for.
    fn admit_limit(&self, _limit: &Limit) -> Result<(), StoreError> {
        Ok(())
    }

    /// The wall clock by which this store computes calendar windows, as far as it is known. `None` if that is the clock of this
    /// process.
    fn wall_clock(&self) -> Option<Timestamp> {
        None
    }

    /// How many nodes share this store, this one included.
    fn nodes(&self) -> u32 {
        1
    }

    /// How long a call waits for an answer unless its caller waits for less; `None` if it never waits.
    fn timeout(&self) -> Option<Span> {
        None
    }

    /// For how long the server of a state is back, if it was away before. Meanwhile leases of permits may have ended in it, or it
    /// may have lost its data, so requests may be running that it does not count. `None` if it was never away.
    fn back_for(&self, _state: StateId) -> Option<Span> {
        None
    }
}

/// The condition of a store, for operators and health checks. The defaults are for a store without servers and without a bound.
pub trait StoreHealth {
    /// Whether the store can have problems that are worth watching for.
    const WATCHED: bool = false;

    /// What the store has no room for at the moment and therefore refuses. For stores that can fill up.
    fn shortage(&self) -> Option<&'static str> {
        None
    }

    /// Why the store is not used at the moment. For stores that can be unreachable.
    fn complaint(&self) -> Option<String> {
        None
    }

    /// How many nodes share the store, if they were really counted and not assumed. A node saves this number for a start without
    /// the store.
    fn known_nodes(&self) -> Option<u32> {
        None
    }

    /// Tells the other nodes the hash of the policy in force on this one. For stores that nodes share.
    fn announce_policy(&self, _hash: &str) {}

    /// The nodes that share the store, as far as this one knows them. For stores that nodes share.
    fn node_reports(&self) -> Vec<NodeReport> {
        vec![]
    }

    /// The condition of its servers. For stores that have some.
    fn report(&self) -> Option<StoreReport> {
        None
    }

    /// How full the store is. For stores that can fill up.
    fn gauges(&self) -> Option<Gauges> {
        None
    }

    /// What was written to disk, and what a crash would lose. For stores that have a data directory.
    fn durability(&self) -> Option<DurableReport> {
        None
    }

    /// What this node holds of limits that it shares with others, by group. For stores that lease.
    fn leases(&self) -> Vec<LeaseReport> {
        vec![]
    }
}

/// What all nodes of a store share besides counters: a document with the changes that operators made, and a text that each node
/// publishes for the others.
pub trait SharedDocument {
    /// Whether the store keeps such a document.
    const SHARED: bool = false;

    /// The document; `None` if it still is the `known` one. Version 0 means that there is no document.
    fn document(
        &self,
        _known: &DocumentTag,
    ) -> impl Future<Output = Result<Option<DocumentCopy>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Replaces the document, if it still is the `old` one (compare and swap). Returns whether it was replaced.
    fn replace_document(
        &self,
        _old: &DocumentTag,
        _new: &DocumentCopy,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }

    /// Publishes a text of this node for the others. It replaces the one before, and expires after this time.
    fn publish(
        &self,
        _text: &[u8],
        _keep: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// The texts that the other nodes have published.
    fn publications(&self) -> impl Future<Output = Result<Vec<Vec<u8>>, StoreError>> + Send {
        std::future::ready(Ok(vec![]))
    }
}

/// The shared document, as the store has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentCopy {
    /// Its version.
    pub version: u64,
    /// The ids of this document and of those that it was made from, separated by blanks, in the form that the writer chose. Of an
    /// earlier document if the writer did not know lineages.
    pub lineage: String,
    /// The document itself.
    pub text: Vec<u8>,
}

/// Which document it is, for comparisons. There can be two of one version, because a failover can lose one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentTag {
    /// Its version.
    pub version: u64,
    /// The first id of its lineage.
    pub id: String,
}

impl DocumentCopy {
    /// The tag with which this document is replaced.
    #[must_use]
    pub fn tag(&self) -> DocumentTag {
        let id = self.lineage.split(' ').next().unwrap_or_default();
        DocumentTag { version: self.version, id: id.to_owned() }
    }
}

/// A store that several limiters share.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_store::{Clock, Memory, Store};
/// fn is_store(_: &impl Store) {}
/// is_store(&Arc::new(Memory::new(Clock::system())));
/// ```
impl<S: Store> Store for Arc<S> {
    const IN_PROCESS: bool = S::IN_PROCESS;

    fn incarnation(&self) -> Option<u64> {
        S::incarnation(self)
    }

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

    async fn release(&self) {
        S::release(self).await;
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

    fn timeout(&self) -> Option<Span> {
        S::timeout(self)
    }

    fn back_for(&self, state: StateId) -> Option<Span> {
        S::back_for(self, state)
    }
}

impl<S: StoreHealth> StoreHealth for Arc<S> {
    const WATCHED: bool = S::WATCHED;

    fn durability(&self) -> Option<DurableReport> {
        S::durability(self)
    }

    fn shortage(&self) -> Option<&'static str> {
        S::shortage(self)
    }

    fn complaint(&self) -> Option<String> {
        S::complaint(self)
    }

    fn known_nodes(&self) -> Option<u32> {
        S::known_nodes(self)
    }

    fn announce_policy(&self, hash: &str) {
        S::announce_policy(self, hash);
    }

    fn node_reports(&self) -> Vec<NodeReport> {
        S::node_reports(self)
    }

    fn report(&self) -> Option<StoreReport> {
        S::report(self)
    }

    fn gauges(&self) -> Option<Gauges> {
        S::gauges(self)
    }

    fn leases(&self) -> Vec<LeaseReport> {
        S::leases(self)
    }
}

impl<S: SharedDocument + Send + Sync> SharedDocument for Arc<S> {
    const SHARED: bool = S::SHARED;

    async fn document(&self, known: &DocumentTag) -> Result<Option<DocumentCopy>, StoreError> {
        S::document(self, known).await
    }

    async fn replace_document(
        &self,
        old: &DocumentTag,
        new: &DocumentCopy,
    ) -> Result<bool, StoreError> {
        S::replace_document(self, old, new).await
    }

    async fn publish(&self, text: &[u8], keep: Duration) -> Result<(), StoreError> {
        S::publish(self, text, keep).await
    }

    async fn publications(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        S::publications(self).await
    }
}

/// A new [`Store::incarnation`]. It is never 0, which receipts use for states that outlive the process.
pub(crate) fn new_incarnation() -> u64 {
    // Without random numbers from the system no secret could have been made either; then all processes have the same one.
    getrandom::u64().unwrap_or(1).max(1)
}

/// The answer to a plan.
///
/// ```
/// use tidegate_core::{Plan, Span, Timestamp};
/// use tidegate_store::{Clock, Memory};
/// let store = Memory::new(Clock::manual(Timestamp::from_nanos(5)));
/// let answer = store.take_now(&Plan::new(vec![], Span::ZERO).unwrap());
/// assert!(answer.done.passes); // a plan without takes always passes
/// assert_eq!(answer.at, Timestamp::from_nanos(5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The instant of the decision, by the store's clock.
    pub at: Timestamp,
    /// What was decided.
    pub done: PlanOutcome,
    /// Who decided.
    pub by: AnsweredBy,
}

/// Who decided a plan.
///
/// ```
/// use tidegate_core::{Plan, Span, Timestamp};
/// use tidegate_store::{AnsweredBy, Clock, Memory};
/// let store = Memory::new(Clock::manual(Timestamp::EPOCH));
/// assert_eq!(store.take_now(&Plan::new(vec![], Span::ZERO).unwrap()).by, AnsweredBy::Store);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The store.
    Store,
    /// The denial cache refused; the store was not asked.
    Cache,
    /// What this node holds of the limits was spent; the store was not asked.
    Lease,
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
    /// Who decided.
    pub by: AnsweredBy,
}

/// The answer to a plan of one take.
fn single(answer: &Answer) -> Result<SingleAnswer, StoreError> {
    let taken = answer.done.only();
    let taken = taken.ok_or_else(|| StoreError::Unavailable("no answer".into()))?;
    Ok(SingleAnswer { taken, by: answer.by })
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
    /// The decision for each take after the charge, as for a cost of 0.
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

/// What a client gives back.
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
    /// Until when it can be settled, by the store's clock. The store remembers it until then.
    pub until: Timestamp,
    /// What the takes of the plan counted.
    pub parts: &'s [Part<'s>],
}

/// What one take of a plan counted.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, TakeReceipt, Span, StateId};
/// use tidegate_store::Part;
/// let limit = Limit::new(5, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
/// let part = Part { state: StateId(1), limit: &limit, receipt: TakeReceipt { mark: 0, weight: 2, is_slot: false } };
/// assert_eq!(part.receipt.weight, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'s> {
    /// The state in which it was counted.
    pub state: StateId,
    /// The limit of the take.
    pub limit: &'s Limit,
    /// What was counted, and when.
    pub receipt: TakeReceipt,
}

/// The result of a settlement.
///
/// ```
/// assert_ne!(tidegate_store::Settled::Done, tidegate_store::Settled::Already);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was given back.
    Done,
    /// The receipt was settled before: nothing changed.
    Already,
    /// The receipt has expired: nothing changed.
    Late,
    /// The store has no room to remember that the receipt was settled: nothing changed. Try again later.
    Full,
}
