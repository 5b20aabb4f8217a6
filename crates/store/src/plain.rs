//! The plain store: maps in shards, a lock each.
//!
//! ```text
//!   plan [ user:alice 2/s │ user:alice 500/h │ ip:… 15/s ]
//!            │                   │                 │
//!        shard 12             shard 40          shard 12       locked in ascending order: 12, 40
//!            └───────── one instant, Plan::take ───┘            then unlocked
//! ```
//!
//! It is meant to be obviously right: it is the reference for every other store. A plan locks the shards
//! of all its states, lowest first, so that two plans cannot wait for each other; the clock is read while
//! they are locked, so that no take sees a state from its own future; and locks are held for arithmetic.
//!
//! What has expired is found by walking, oldest first: two states for every state that is added to a shard,
//! and one for every few calls that add nothing.

mod shapes;
mod shard;

use crate::clock::Clock;
use crate::error::StoreError;
use crate::settled::SettledReceipts;
use crate::store::{Answer, Charged, Settled, Settlement, Store};
use crate::sync::{Mutex, MutexGuard, lock};
use shapes::Shapes;
use shard::Shard;
use smallvec::SmallVec;
use std::sync::Arc;
use tidegate_core::{Ask, Cost, Decision, Limit, Now, Plan, State, StateId, Take, Written};

/// Most plans have a few takes; those need no memory of their own while they are decided.
type Four<T> = SmallVec<[T; 4]>;
type Shapes4 = Four<Option<Arc<Limit>>>;

/// Enough that 64 threads seldom meet, few enough to lock sixteen of them for a plan.
const SHARDS: usize = 64;
const SHARDS_WIDE: u128 = 64;

/// States in this process's memory.
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
    /// A state is in the shard of its id. Mutexes, not read-write locks: every call may write.
    shards: [Mutex<Shard>; SHARDS],
    shapes: Shapes,
    settled: Mutex<SettledReceipts>,
}

impl Plain {
    /// An empty store that goes by this clock.
    ///
    /// ```
    /// use tidegate_store::{Clock, Plain};
    /// assert_eq!(Plain::new(Clock::system()).len(), 0);
    /// ```
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let shards = core::array::from_fn(|_| Mutex::new(Shard::default()));
        let settled = Mutex::new(SettledReceipts::default());
        Self { clock, shards, shapes: Shapes::default(), settled }
    }

    /// Decides a plan, without async.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// use tidegate_store::{Clock, Plain};
    /// let nothing = Plan::new(vec![], Span::ZERO).unwrap();
    /// assert!(Plain::new(Clock::system()).take_now(&nothing).done.passes);
    /// ```
    pub fn take_now(&self, plan: &Plan<'_>) -> Answer {
        let (mut held, shapes) = self.hold(plan.takes().iter().map(|take| take.state));
        let mut written = held.written(&shapes, plan.takes().iter().map(|take| take.limit));
        let done = plan.take(held.now, &mut written);
        self.keep(&mut held, written, &shapes);
        Answer { at: held.now.steady, done, remembered: false }
    }

    /// Counts takes whether or not they pass, without async.
    ///
    /// ```
    /// use tidegate_store::{Clock, Plain};
    /// assert!(Plain::new(Clock::system()).charge_now(&[]).receipts.is_empty());
    /// ```
    pub fn charge_now(&self, takes: &[Take<'_>]) -> Charged {
        let mut charged =
            Charged { at: self.clock.now().steady, decisions: vec![], receipts: vec![] };
        // One after another: charges are independent, and a take may stand here twice.
        for take in takes {
            let (mut held, shapes) = self.hold([take.state].into_iter());
            let mut written = held.written(&shapes, [take.limit].into_iter());
            let ask = Ask::new(held.now.of(take.limit), take.cost).bounded(take.bound);
            for written in &mut written {
                charged.receipts.push(take.limit.charge(written, &ask));
                let after = Ask { cost: Cost::default(), ..ask };
                charged.decisions.push(take.limit.decide(written, &after));
            }
            self.keep(&mut held, written, &shapes);
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
        // Marked first: who is interrupted here refunds too little, never too much.
        match lock(&self.settled).settle(settlement, self.clock.now().steady) {
            Settled::Done => {}
            refused @ (Settled::Already | Settled::Late | Settled::Full) => return refused,
        }
        for part in settlement.parts {
            let (mut held, shapes) = self.hold([part.state].into_iter());
            let mut written = held.written(&shapes, [part.limit].into_iter());
            for written in &mut written {
                written.give_back(held.now.of(part.limit), part.limit, &part.receipt);
            }
            self.keep(&mut held, written, &shapes);
        }
        Settled::Done
    }

    /// How the takes of a plan would be answered alone, without async; changes nothing.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// use tidegate_store::{Clock, Plain};
    /// let nothing = Plan::new(vec![], Span::ZERO).unwrap();
    /// assert!(Plain::new(Clock::system()).peek_now(&nothing).is_empty());
    /// ```
    pub fn peek_now(&self, plan: &Plan<'_>) -> Vec<Decision> {
        let peek = |take: &Take<'_>| {
            let shard = self.shard(place(take.state));
            let ask = plan.ask(take, self.clock.now());
            match shard.get(take.state) {
                Some((shape, state)) => {
                    take.limit.decide(&Written { shape, state: state.clone() }, &ask)
                }
                None => take.limit.decide(&Written::empty(take.limit), &ask),
            }
        };
        plan.takes().iter().map(peek).collect()
    }

    /// Forgets states, without async; answers how many there were.
    ///
    /// ```
    /// use tidegate_core::StateId;
    /// use tidegate_store::{Clock, Plain};
    /// assert_eq!(Plain::new(Clock::system()).reset_now(&[StateId(7)]), 0);
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

    /// How many states are remembered.
    ///
    /// ```
    /// use tidegate_store::{Clock, Plain};
    /// assert_eq!(Plain::new(Clock::system()).len(), 0);
    /// ```
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether nothing is remembered.
    ///
    /// ```
    /// use tidegate_store::{Clock, Plain};
    /// assert!(Plain::new(Clock::system()).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The clock it goes by.
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

    /// Copies states out of their shards, which stay locked, at one instant; and what they were written
    /// under, where there was something. They are replaced whole: whoever panics in between changes nothing.
    fn hold(&self, ids: impl Iterator<Item = StateId>) -> (Held<'_>, Shapes4) {
        let ids: Four<StateId> = ids.collect();
        let mut shards = self.lock_all(&ids);
        let now = self.clock.now();
        let (mut shapes, mut states) = (Shapes4::new(), Four::new());
        for id in &ids {
            let (shape, state) = shards.copy(*id);
            shapes.push(shape);
            states.push(state);
        }
        (Held { ids, shards, now, states }, shapes)
    }

    /// Puts states back as the work left them, each under the one copy of its shape.
    fn keep(&self, held: &mut Held<'_>, written: Four<Written<'_>>, shapes: &[Option<Arc<Limit>>]) {
        for ((id, written), shape) in held.ids.iter().zip(written).zip(shapes) {
            let shape = match shape {
                Some(shape) if **shape == *written.shape => Arc::clone(shape),
                Some(_) | None => self.shapes.intern(written.shape),
            };
            held.shards.put(*id, shape, written.state);
        }
        held.shards.sweep(held.now);
    }

    /// Locks the shards of these states, lowest first: two plans never wait for each other.
    fn lock_all(&self, ids: &[StateId]) -> Locked<'_> {
        let mut places: Four<usize> = ids.iter().copied().map(place).collect();
        places.sort_unstable();
        places.dedup();
        Locked(places.into_iter().map(|place| (place, self.shard(place))).collect())
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

/// Copies of states, at one instant; nobody else sees or changes them until they are kept again.
struct Held<'m> {
    ids: Four<StateId>,
    shards: Locked<'m>,
    now: Now,
    states: Four<State>,
}

impl Held<'_> {
    /// The states with their shapes; one that was not there has the shape of the limit that asks.
    fn written<'s>(
        &mut self,
        shapes: &'s [Option<Arc<Limit>>],
        limits: impl Iterator<Item = &'s Limit>,
    ) -> Four<Written<'s>> {
        let states = std::mem::take(&mut self.states);
        (shapes.iter().zip(limits).zip(states))
            .map(|((shape, limit), state)| Written {
                shape: shape.as_deref().unwrap_or(limit),
                state,
            })
            .collect()
    }
}

/// Shards that are locked together, by place.
struct Locked<'s>(Four<(usize, MutexGuard<'s, Shard>)>);

impl Locked<'_> {
    fn copy(&mut self, id: StateId) -> (Option<Arc<Limit>>, State) {
        let found = self.of(id).and_then(|shard| shard.get(id));
        found
            .map_or((None, State::Empty), |(shape, state)| (Some(Arc::clone(shape)), state.clone()))
    }

    fn put(&mut self, id: StateId, shape: Arc<Limit>, state: State) {
        if let Some(shard) = self.of(id) {
            shard.put(id, shape, state);
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

/// Nothing waits here: every future is ready when it is first polled, does nothing before, and none is boxed.
impl Store for Plain {
    const IN_PROCESS: bool = true;

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
