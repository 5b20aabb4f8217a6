//! The plain store: maps in shards, a lock each.
//!
//! ```text
//!   plan [ user:alice 2/s │ user:alice 500/h │ ip:… 15/s ]
//!            │                   │                 │
//!        shard 12             shard 40          shard 12       locked in ascending order: 12, 40
//!            └───────── one instant, Plan::take ───┘            then unlocked
//! ```
//!
//! It is meant to be obviously right, because it is the reference for every other store. A plan locks the shards of all its
//! states, lowest first, so that two plans never wait for each other. The clock is read while they are locked, so that no take
//! sees a state from its own future. Locks are held for arithmetic only.
//!
//! Expired states are found by a sweep, oldest first: two states for every state that is added to a shard, and one for every
//! few calls that add nothing.

mod interned_limits;
mod shard;

use crate::clock::Clock;
use crate::error::StoreError;
use crate::plan_vec::PlanVec;
use crate::settled::SettledReceipts;
use crate::store::{Answer, AnsweredBy, Charged, Settled, Settlement, Store, new_incarnation};
use crate::sync::{Mutex, MutexGuard, lock};
use interned_limits::InternedLimits;
use shard::Shard;
use std::sync::Arc;
use tidegate_core::{Ask, Cost, Decision, Limit, Now, Plan, State, StateId, Take, Written};

/// For each state the limit under which it was written; `None` for a state that is not there.
type LimitsOfStates = PlanVec<Option<Arc<Limit>>>;

/// Enough that 64 threads seldom wait for each other, and few enough that a plan can lock sixteen of them.
const SHARDS: usize = 64;
const SHARDS_WIDE: u128 = 64;

/// States in the memory of this process, in plain maps: the reference for [`Memory`](crate::Memory).
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take, Timestamp};
/// use tidegate_store::{Clock, Plain};
/// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let store = Plain::new(Clock::manual(Timestamp::EPOCH));
/// let plan = Plan::new(vec![Take::new(StateId(7), &limit, Cost::ONE)], Span::ZERO).unwrap();
/// assert!(store.take_now(&plan).done.passes);
/// assert!(!store.take_now(&plan).done.passes);
/// ```
#[derive(Debug)]
pub struct Plain {
    clock: Clock,
    /// A state is in the shard of its id. The locks are mutexes, not read-write locks, because every call may write.
    shards: [Mutex<Shard>; SHARDS],
    limits: InternedLimits,
    settled: Mutex<SettledReceipts>,
    /// See [`Store::incarnation`].
    incarnation: u64,
}

impl Plain {
    /// An empty store that uses this clock.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// use tidegate_store::{Clock, Plain};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Plain::new(Clock::system());
    /// assert!(store.take_now(&Plan::from(Take::new(StateId(7), &limit, Cost::ONE))).done.passes);
    /// ```
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let shards = core::array::from_fn(|_| Mutex::new(Shard::default()));
        let settled = Mutex::new(SettledReceipts::default());
        let (limits, incarnation) = (InternedLimits::default(), new_incarnation());
        Self { clock, shards, limits, settled, incarnation }
    }

    /// Decides a plan, without async.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// use tidegate_store::{Clock, Plain};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let plan = Plan::from(Take::new(StateId(7), &limit, Cost::ONE));
    /// assert_eq!(Plain::new(Clock::system()).take_now(&plan).done.decisions[0].remaining, 14);
    /// ```
    pub fn take_now(&self, plan: &Plan<'_>) -> Answer {
        let (mut held, limits) = self.lock_states(plan.takes().iter().map(|take| take.state));
        let mut written = held.written(&limits, plan.takes().iter().map(|take| take.limit));
        let done = plan.take(held.now, &mut written);
        self.write_back(&mut held, written, &limits);
        Answer { at: held.now.steady, done, by: AnsweredBy::Store }
    }

    /// Counts takes whether or not they pass, without async.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// use tidegate_store::{Clock, Plain};
    /// let limit = Limit::new(5, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let charged = Plain::new(Clock::system()).charge_now(&[Take::new(StateId(7), &limit, Cost::new(8))]);
    /// assert!(!charged.decisions[0].passes()); // 8 of 5 were used
    /// ```
    pub fn charge_now(&self, takes: &[Take<'_>]) -> Charged {
        let mut charged =
            Charged { at: self.clock.now().steady, decisions: vec![], receipts: vec![] };
        // One after another: charges are independent, and the list may have a take twice.
        for take in takes {
            let (mut held, limits) = self.lock_states([take.state].into_iter());
            let mut written = held.written(&limits, [take.limit].into_iter());
            let ask = Ask::new(held.now.of(take.limit), take.cost).bounded(take.bound);
            for written in &mut written {
                charged.receipts.push(take.limit.charge(written, &ask));
                let after = Ask { cost: Cost::default(), ..ask };
                charged.decisions.push(take.limit.decide(written, &after));
            }
            self.write_back(&mut held, written, &limits);
            charged.at = held.now.steady;
        }
        charged
    }

    /// Gives back what a plan took, once, without async.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// use tidegate_store::{Clock, Plain, ReceiptId, Settled, Settlement};
    /// let store = Plain::new(Clock::system());
    /// let nothing = Settlement { id: ReceiptId(1), until: Timestamp::END, parts: &[] };
    /// assert_eq!(store.give_back_now(&nothing), Settled::Done);
    /// assert_eq!(store.give_back_now(&nothing), Settled::Already);
    /// ```
    pub fn give_back_now(&self, settlement: &Settlement<'_>) -> Settled {
        // The receipt is marked first: if this thread is interrupted afterwards, too little is refunded, never too much.
        match lock(&self.settled).settle(settlement, self.clock.now().steady) {
            Settled::Done => {}
            refused @ (Settled::Already | Settled::Late | Settled::Full) => return refused,
        }
        for part in settlement.parts {
            let (mut held, limits) = self.lock_states([part.state].into_iter());
            let mut written = held.written(&limits, [part.limit].into_iter());
            for written in &mut written {
                written.give_back(held.now.of(part.limit), part.limit, &part.receipt);
            }
            self.write_back(&mut held, written, &limits);
        }
        Settled::Done
    }

    /// What each take of a plan would be answered if it were alone, without async. Changes nothing.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// use tidegate_store::{Clock, Plain};
    /// let limit = Limit::new(5, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Plain::new(Clock::system());
    /// let plan = Plan::from(Take::new(StateId(7), &limit, Cost::new(2)));
    /// assert!(store.peek_now(&plan)[0].passes());
    /// assert_eq!(store.peek_now(&plan)[0].remaining, 5); // a peek takes nothing
    /// ```
    pub fn peek_now(&self, plan: &Plan<'_>) -> Vec<Decision> {
        let peek = |take: &Take<'_>| {
            let shard = self.shard(place(take.state));
            let ask = plan.ask(take, self.clock.now());
            match shard.get(take.state) {
                Some((limit, state)) => {
                    take.limit.decide(&Written { shape: limit, state: state.clone() }, &ask)
                }
                None => take.limit.decide(&Written::empty(take.limit), &ask),
            }
        };
        plan.takes().iter().map(peek).collect()
    }

    /// Removes states, without async; returns how many there were.
    ///
    /// ```
    /// # use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// # use tidegate_store::{Clock, Plain};
    /// # let limit = Limit::new(1, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Plain::new(Clock::system());
    /// store.take_now(&Plan::from(Take::new(StateId(7), &limit, Cost::ONE)));
    /// assert_eq!(store.reset_now(&[StateId(7), StateId(8)]), 1);
    /// ```
    pub fn reset_now(&self, states: &[StateId]) -> usize {
        let now = self.clock.now();
        let reset = |id: &&StateId| {
            let mut shard = self.shard(place(**id));
            let removed = shard.remove(**id);
            shard.sweep(now);
            removed
        };
        states.iter().filter(reset).count()
    }

    /// How many states the store has.
    ///
    /// ```
    /// # use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// # use tidegate_store::{Clock, Plain};
    /// # let limit = Limit::new(1, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Plain::new(Clock::system());
    /// store.take_now(&Plan::from(Take::new(StateId(7), &limit, Cost::ONE)));
    /// assert_eq!(store.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether the store has no states.
    ///
    /// ```
    /// # use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// # use tidegate_store::{Clock, Plain};
    /// # let limit = Limit::new(1, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Plain::new(Clock::system());
    /// store.take_now(&Plan::from(Take::new(StateId(7), &limit, Cost::ONE)));
    /// assert!(!store.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The clock by which the store decides.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// use tidegate_store::{Clock, Plain};
    /// let store = Plain::new(Clock::manual(Timestamp::EPOCH));
    /// store.clock().set(Timestamp::END);
    /// assert_eq!(store.clock().now().steady, Timestamp::END);
    /// ```
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Locks the shards of some states, reads the clock, and copies the states and the limits under which they were written.
    /// States are replaced whole, so a panic before that changes nothing.
    fn lock_states(&self, ids: impl Iterator<Item = StateId>) -> (HeldStates<'_>, LimitsOfStates) {
        let ids: PlanVec<StateId> = ids.collect();
        let mut shards = self.lock_all(&ids);
        let now = self.clock.now();
        let (mut limits, mut states) = (LimitsOfStates::new(), PlanVec::new());
        for id in &ids {
            let (limit, state) = shards.copy(*id);
            limits.push(limit);
            states.push(state);
        }
        (HeldStates { ids, shards, now, states }, limits)
    }

    /// Writes states back as the caller changed them, each with the one copy of its limit.
    fn write_back(
        &self,
        held: &mut HeldStates<'_>,
        written: PlanVec<Written<'_>>,
        limits: &[Option<Arc<Limit>>],
    ) {
        for ((id, written), limit) in held.ids.iter().zip(written).zip(limits) {
            let limit = match limit {
                Some(limit) if **limit == *written.shape => Arc::clone(limit),
                Some(_) | None => self.limits.intern(written.shape),
            };
            held.shards.put(*id, limit, written.state);
        }
        held.shards.sweep(held.now);
    }

    /// Locks the shards of these states, lowest first: two plans never wait for each other.
    fn lock_all(&self, ids: &[StateId]) -> LockedShards<'_> {
        let mut places: PlanVec<usize> = ids.iter().copied().map(place).collect();
        places.sort_unstable();
        places.dedup();
        LockedShards(places.into_iter().map(|place| (place, self.shard(place))).collect())
    }

    #[expect(clippy::indexing_slicing, reason = "places are remainders by the number of shards")]
    fn shard(&self, place: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[place])
    }
}

/// The shard of a state.
fn place(id: StateId) -> usize {
    usize::try_from(id.0 % SHARDS_WIDE).unwrap_or(0)
}

/// Copies of states as of one instant, and their shards, which stay locked until the copies are written back.
struct HeldStates<'m> {
    ids: PlanVec<StateId>,
    shards: LockedShards<'m>,
    now: Now,
    states: PlanVec<State>,
}

impl HeldStates<'_> {
    /// The states with the limits under which they were written. A state that was not there gets the requested limit.
    fn written<'s>(
        &mut self,
        limits: &'s [Option<Arc<Limit>>],
        requested: impl Iterator<Item = &'s Limit>,
    ) -> PlanVec<Written<'s>> {
        let states = std::mem::take(&mut self.states);
        (limits.iter().zip(requested).zip(states))
            .map(|((limit, requested), state)| Written {
                shape: limit.as_deref().unwrap_or(requested),
                state,
            })
            .collect()
    }
}

/// Shards that are locked together, by place.
struct LockedShards<'s>(PlanVec<(usize, MutexGuard<'s, Shard>)>);

impl LockedShards<'_> {
    fn copy(&mut self, id: StateId) -> (Option<Arc<Limit>>, State) {
        let found = self.of(id).and_then(|shard| shard.get(id));
        found
            .map_or((None, State::Empty), |(limit, state)| (Some(Arc::clone(limit)), state.clone()))
    }

    fn put(&mut self, id: StateId, limit: Arc<Limit>, state: State) {
        if let Some(shard) = self.of(id) {
            shard.put(id, limit, state);
        }
    }

    fn sweep(&mut self, now: Now) {
        for (_, shard) in &mut self.0 {
            shard.sweep(now);
        }
    }

    fn of(&mut self, id: StateId) -> Option<&mut Shard> {
        let shard = self.0.iter_mut().find(|(at, _)| *at == place(id));
        shard.map(|(_, shard)| &mut **shard)
    }
}

// === the contract ===

/// No future waits or is boxed: each does its work when it is first polled, and nothing before.
impl Store for Plain {
    const IN_PROCESS: bool = true;

    fn incarnation(&self) -> Option<u64> {
        Some(self.incarnation)
    }

    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        plans.iter().map(|plan| Ok(self.take_now(plan))).collect()
    }

    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        Ok(self.take_now(plan))
    }

    async fn charge(&self, takes: &[Take<'_>]) -> Result<Charged, StoreError> {
        Ok(self.charge_now(takes))
    }

    async fn give_back(&self, settlement: &Settlement<'_>) -> Result<Settled, StoreError> {
        Ok(self.give_back_now(settlement))
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Vec<Decision>, StoreError> {
        Ok(self.peek_now(plan))
    }

    async fn reset(&self, states: &[StateId]) -> Result<usize, StoreError> {
        Ok(self.reset_now(states))
    }

    fn supports(&self, _limit: &Limit) -> Result<(), StoreError> {
        Ok(())
    }
}
