//! The store in memory: a table made for states, within a budget of bytes that nothing can break.
//!
//! ```text
//!   plan [ user:alice 2/s │ user:alice 500/h ]
//!              │                   │
//!          buckets 12, 40      buckets 7, 31        locked in ascending order: 7, 12, 31, 40
//!              └── one instant, Plan::take ──┘      then unlocked
//! ```
//!
//! | file | what it knows |
//! |---|---|
//! | `region` | memory from the system, zero until it is written |
//! | `bucket` | seven states and a lock in two cache lines |
//! | `table` | which two buckets a state may be in; growing by one bucket at a time |
//! | `blocks` | states that are larger than a word |
//! | `shapes` | limits by numbers of 16 bits |
//! | `sketch` | what is remembered of states for which there is no room |
//! | `marks` | the same for states that used more than half of their limit: two bits of a Bloom filter in the table |
//! | `receipts` | which receipts are settled |
//! | `known` | the short way: states of a word that are there |
//! | `bring` | the long way, for every plan |
//! | `room` | making room: what has expired goes, what can move moves, what is used least is demoted |
//!
//! Keys are never stored: a state is known by 64 bits of its name. It decides as [`Plain`](crate::Plain) does, which
//! is its reference.
//!
//! **Why it is exact** (linearizable): every decision belongs to one instant, a reading of the clock, and whatever order
//! threads run in, no window and no bucket passes more than its limit by these instants. The argument assumes that the clock
//! does not go back by itself, and has three parts.
//!
//! 1. *The slow path* (`bring`) reads the clock while it holds the locks of all buckets in which the states of the plan may
//!    be. Two takes of one state therefore read the clock in the order in which they write. A state that is missing was
//!    removed by a thread that held one of these locks, because it had ended by a reading from before; so it has ended by
//!    this one. The same holds for marks, which are in one of these buckets. What else was demoted is in the sketch, whose
//!    lines another thread may clear under a later reading, without any of these locks: so the sketch is read first and the
//!    clock afterwards, and what was cleared has ended by then, too.
//! 2. *The fast path* (`known`) decides by a reading that is older than the decision, and writes only if the state still is
//!    what it read. Such a reading may only find *more* in use than a new one would. That is so for a window that is the
//!    window of the reading or an earlier one, and for a bucket, whose word only grows by what is taken and shrinks by what is
//!    given back. It is not so for a state that lies ahead of the reading (a later window, or a word beyond all that can be
//!    in use), which would be *mended*, nor for one that is missing or empty, which does not say when it became that. These
//!    go the slow way.
//! 3. *A plan* is decided by one reading, and its states are written while all of them are locked.
//!
//! What the fast path refuses by the reading of a batch is refused as of that reading; a single take is then decided again.

mod blocks;
mod bring;
mod bucket;
mod budget;
mod known;
mod marks;
#[cfg(loom)]
pub(crate) mod models;
mod receipts;
mod region;
mod room;
mod shapes;
mod sketch;
mod steps;
mod table;
#[cfg(test)]
mod tests;

use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::{
    Answer, Charged, Settled, Settlement, SharedDocument, SingleAnswer, Store, StoreHealth,
};
use crate::sync::{Mutex, lock};
use blocks::Blocks;
use bring::Asked;
use budget::Budget;
use known::Reading;
use receipts::Receipts;
use shapes::{NUMBERS, Shapes};
use sketch::Sketch;
use std::sync::atomic::{AtomicU64, Ordering};
use table::{Table, Tag};
use tidegate_core::{
    Ask, Cost, Decision, Limit, NamedBy, Now, Plan, StateId, Take, Taken, WhenFull,
};

/// What [`Memory::new`] may use: eleven million keys of one word.
const DEFAULT_BUDGET: usize = 256 << 20;
/// What [`Store::shortage`] says when callers' limits are refused.
const TOO_MANY_LIMITS: &str = "too many different limits that clients name are in use: further ones are refused until some of \
                               them have no states left";
/// What [`Store::shortage`] says when receipts are not settled.
const TOO_MANY_RECEIPTS: &str = "there is no memory to remember further settled receipts: none is settled until some have ended";
/// Plans of a batch that are fetched ahead of being decided.
const AHEAD: usize = 16;

/// States in this process's memory.
///
/// ```
/// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take, Timestamp};
/// use tidegate_store::{Clock, Memory};
/// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
/// let store = Memory::new(Clock::manual(Timestamp::EPOCH));
/// let plan = Plan::new(Take::new(StateId(7), &limit, Cost::ONE), Span::ZERO).unwrap();
/// assert!(store.take_now(&plan).done.passes);
/// assert!(!store.take_now(&plan).done.passes);
/// ```
#[derive(Debug)]
pub struct Memory {
    clock: Clock,
    budget: Budget,
    table: Table,
    blocks: Blocks,
    shapes: Shapes,
    sketch: Sketch,
    /// Locked before no other lock.
    settled: Mutex<Receipts>,
    /// States that were demoted or marked; until one was, nobody looks for what is remembered of others.
    demotions: AtomicU64,
    /// While positive, nobody looks for a place to move a state to: there was none lately.
    packed: AtomicU64,
}

/// How full a [`Memory`] is.
///
/// ```
/// use tidegate_store::{Clock, Memory};
/// let gauges = Memory::new(Clock::system()).gauges();
/// assert_eq!((gauges.demotions, gauges.overcount_thousandths), (0, 0));
/// assert!(gauges.bytes <= gauges.budget);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// States in the table.
    pub entries: usize,
    /// Bytes in use, apart from a fixed few.
    pub bytes: usize,
    /// Bytes that may be used.
    pub budget: usize,
    /// States that had to go while they still counted.
    pub demotions: u64,
    /// What a key that was never seen would begin with, on average: thousandths of a cost of 1.
    pub overcount_thousandths: u64,
}

impl Memory {
    /// An empty store that goes by this clock, with a budget of 256 MiB. What it does not need it does not use.
    ///
    /// ```
    /// use tidegate_store::{Clock, Memory};
    /// assert_eq!(Memory::new(Clock::system()).len(), 0);
    /// ```
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self::with_budget(clock, DEFAULT_BUDGET)
    }

    /// An empty store that never uses more than so many bytes (and a fixed few), 8 KiB at least.
    ///
    /// ```
    /// use tidegate_store::{Clock, Memory};
    /// let store = Memory::with_budget(Clock::system(), 64 << 20);
    /// assert_eq!(store.gauges().budget, 64 << 20);
    /// ```
    #[must_use]
    pub fn with_budget(clock: Clock, bytes: usize) -> Self {
        Self::with_limit_numbers(clock, bytes, NUMBERS)
    }

    /// The same with so many numbers for limits. Tests and models ask for few, so that numbers are used again soon.
    pub(crate) fn with_limit_numbers(clock: Clock, bytes: usize, numbers: usize) -> Self {
        let budget = Budget::new(bytes);
        Self {
            clock,
            table: Table::new(&budget),
            blocks: Blocks::new(&budget),
            shapes: Shapes::new(numbers),
            sketch: Sketch::new(&budget),
            settled: Mutex::new(Receipts::new(&budget)),
            demotions: AtomicU64::new(0),
            packed: AtomicU64::new(0),
            budget,
        }
    }

    /// Decides a plan, without async.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// use tidegate_store::{Clock, Memory};
    /// let nothing = Plan::new(vec![], Span::ZERO).unwrap();
    /// assert!(Memory::new(Clock::system()).take_now(&nothing).done.passes);
    /// ```
    pub fn take_now(&self, plan: &Plan<'_>) -> Answer {
        let reading = self.fetch(plan.takes());
        let answer = match self.take_fast(plan, &reading) {
            Some(answer) => answer,
            None => self.take_any(plan).1,
        };
        Self::remember(answer.done.passes);
        answer
    }

    /// Decides one take, without async and without a plan.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let taken = Memory::new(Clock::system()).take_one_now(&Take::new(StateId(7), &limit, Cost::ONE));
    /// assert_eq!(taken.decision.remaining, 14);
    /// ```
    pub fn take_one_now(&self, take: &Take<'_>) -> Taken {
        let reading = self.fetch(std::slice::from_ref(take));
        let ready = |now| take.limit.prepare(&take.ask(now));
        let known = self.shapes.number(take.limit);
        let taken = match known.and_then(|shape| self.take_known(take, shape, ready, &reading)) {
            Some((_, taken)) => taken,
            None => self.take_alone(take).1,
        };
        Self::remember(taken.decision.passes());
        taken
    }

    /// Decides takes in order, each by itself, without async: what [`take_batch_now`](Self::take_batch_now) does for plans
    /// of one take, for less.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(1, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let take = Take::new(StateId(7), &limit, Cost::ONE);
    /// let taken = Memory::new(Clock::system()).take_each_now(&[take, take]);
    /// assert_eq!([taken[0].decision.passes(), taken[1].decision.passes()], [true, false]);
    /// ```
    pub fn take_each_now(&self, takes: &[Take<'_>]) -> Vec<Taken> {
        let mut now = self.clock.now();
        let fetch = |take: &Take<'_>| self.table.prefetch(Tag::of(take.state));
        takes.iter().take(AHEAD).for_each(fetch);
        let mut ahead = takes.iter().skip(AHEAD);
        let mut taken = Vec::with_capacity(takes.len());
        // Takes that ask for the same have most of the arithmetic in common.
        for run in takes.chunk_by(Take::asks_the_same) {
            let Some(first) = run.first() else { continue };
            let mut ready = first.limit.prepare(&first.ask(now));
            let known = self.shapes.number(first.limit);
            for take in run {
                ahead.next().into_iter().for_each(fetch);
                let short = known.and_then(|shape| {
                    self.take_known(take, shape, |_| ready, &Reading::<fn() -> Now>::Given(now))
                });
                taken.push(match short {
                    Some((_, taken)) => taken,
                    None => {
                        let taken;
                        (now, taken) = *self.take_alone(take);
                        ready = first.limit.prepare(&first.ask(now));
                        taken
                    }
                });
            }
        }
        taken
    }

    /// Decides plans in order, without async. The clock is read once for all of them, and what they need is fetched
    /// before it is used: many at a time cost far less than one at a time.
    ///
    /// That one reading decides only plans whose states are in the table, in the usual form, and do not lie ahead of it.
    /// Every other plan is decided as of a reading of its own, which those that follow use instead.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// use tidegate_store::{Clock, Memory};
    /// let nothing = Plan::new(vec![], Span::ZERO).unwrap();
    /// assert_eq!(Memory::new(Clock::system()).take_batch_now(&[nothing.clone(), nothing]).len(), 2);
    /// ```
    pub fn take_batch_now(&self, plans: &[Plan<'_>]) -> Vec<Answer> {
        let mut now = self.clock.now();
        let fetch = |plan: &Plan<'_>| {
            plan.takes().iter().for_each(|take| self.table.prefetch(Tag::of(take.state)));
        };
        plans.iter().take(AHEAD).for_each(fetch);
        let mut ahead = plans.iter().skip(AHEAD);
        let take = |plan: &Plan<'_>| {
            ahead.next().into_iter().for_each(fetch);
            let reading = Reading::<fn() -> Now>::Given(now);
            self.take_fast(plan, &reading).unwrap_or_else(|| {
                let answer;
                (now, answer) = self.take_any(plan);
                answer
            })
        };
        plans.iter().map(take).collect()
    }

    /// Whether a caller may name this limit now: there is a number for it among those that callers have. Costs as much
    /// however many limits there are.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// assert!(Memory::new(Clock::system()).admit_limit_now(&limit).is_ok());
    /// ```
    pub fn admit_limit_now(&self, limit: &Limit) -> Result<(), StoreError> {
        let known = self.shapes.number(limit).or_else(|| self.number_of(limit, NamedBy::Caller));
        known.map(|_| ()).ok_or(StoreError::TooManyLimits)
    }

    /// Counts takes whether or not they pass, without async.
    ///
    /// ```
    /// use tidegate_store::{Clock, Memory};
    /// assert!(Memory::new(Clock::system()).charge_now(&[]).receipts.is_empty());
    /// ```
    pub fn charge_now(&self, takes: &[Take<'_>]) -> Charged {
        let mut charged =
            Charged { at: self.clock.now().steady, decisions: vec![], receipts: vec![] };
        // One after another: charges are independent, and a take may stand here twice.
        for take in takes {
            let asked = [Asked::of(take)];
            let (mut brought, found) = self.bring(&asked);
            let mut written = self.states(&mut brought, &asked, &found);
            charged.at = brought.now.steady;
            let ask = Ask::new(brought.now.of(take.limit), take.cost).bounded(take.bound);
            for written in &mut written {
                charged.receipts.push(take.limit.charge(written, &ask));
                let after = Ask { cost: Cost::default(), ..ask };
                charged.decisions.push(take.limit.decide(written, &after));
            }
            self.keep(brought, &asked, &found, &written);
        }
        charged
    }

    /// Gives back what a plan took, once, without async.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// use tidegate_store::{Clock, Memory, ReceiptId, Settled, Settlement};
    /// let store = Memory::new(Clock::system());
    /// let nothing = Settlement { id: ReceiptId(1), until: Timestamp::END, parts: &[] };
    /// assert_eq!(store.give_back_now(&nothing), Settled::Done);
    /// assert_eq!(store.give_back_now(&nothing), Settled::Already);
    /// ```
    pub fn give_back_now(&self, settlement: &Settlement<'_>) -> Settled {
        // Marked first: who is interrupted here refunds too little, never too much.
        let now = self.clock.now().steady;
        match lock(&self.settled).settle(settlement, now, &self.budget) {
            Settled::Done => {}
            refused @ (Settled::Already | Settled::Late | Settled::Full) => return refused,
        }
        for part in settlement.parts {
            let (when_full, named_by) = (WhenFull::Shared, NamedBy::Policy);
            let asked = [Asked { id: part.state, limit: part.limit, when_full, named_by }];
            let (mut brought, found) = self.bring(&asked);
            let mut written = self.states(&mut brought, &asked, &found);
            for written in &mut written {
                written.give_back(brought.now.of(part.limit), part.limit, &part.receipt);
            }
            self.keep(brought, &asked, &found, &written);
        }
        Settled::Done
    }

    /// How the takes of a plan would be answered alone, without async; changes nothing.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// use tidegate_store::{Clock, Memory};
    /// let nothing = Plan::new(vec![], Span::ZERO).unwrap();
    /// assert!(Memory::new(Clock::system()).peek_now(&nothing).is_empty());
    /// ```
    pub fn peek_now(&self, plan: &Plan<'_>) -> Vec<Decision> {
        let peek = |take: &Take<'_>| {
            let (tag, asked) = (Tag::of(take.state), Asked::of(take));
            let held = self.table.lock_all(&[tag]);
            let found = self.find(&held, tag, None);
            let recalled = self.recall(&asked, found.as_ref());
            let now = self.clock.now();
            let written = self.written(found.as_ref(), recalled, &asked, now);
            take.limit.decide(&written, &plan.ask(take, now))
        };
        plan.takes().iter().map(peek).collect()
    }

    /// Forgets states, without async; answers how many there were.
    ///
    /// ```
    /// use tidegate_core::StateId;
    /// use tidegate_store::{Clock, Memory};
    /// assert_eq!(Memory::new(Clock::system()).reset_now(&[StateId(7)]), 0);
    /// ```
    pub fn reset_now(&self, states: &[StateId]) -> usize {
        states.iter().filter(|id| self.reset_one(Tag::of(**id))).count()
    }

    /// How many states are remembered.
    ///
    /// ```
    /// use tidegate_store::{Clock, Memory};
    /// assert_eq!(Memory::new(Clock::system()).len(), 0);
    /// ```
    pub fn len(&self) -> usize {
        let mut live = 0usize;
        self.table.walk(|bucket| {
            let here = bucket.entries().filter(|(_, entry)| entry.word != 0).count();
            live = live.saturating_add(here);
        });
        live
    }

    /// Whether nothing is remembered.
    ///
    /// ```
    /// use tidegate_store::{Clock, Memory};
    /// assert!(Memory::new(Clock::system()).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How full it is.
    ///
    /// ```
    /// use tidegate_store::{Clock, Memory};
    /// assert_eq!(Memory::new(Clock::system()).gauges().entries, 0);
    /// ```
    pub fn gauges(&self) -> Gauges {
        let demotions = self.demotions.load(Ordering::Relaxed);
        Gauges {
            entries: usize::try_from(self.table.entries()).unwrap_or(0),
            bytes: self.budget.used().saturating_add(if demotions > 0 {
                self.budget.sketch()
            } else {
                0
            }),
            budget: self.budget.total(),
            demotions,
            overcount_thousandths: self.overcount_thousandths(),
        }
    }

    /// The clock it goes by.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// use tidegate_store::{Clock, Memory};
    /// let store = Memory::new(Clock::manual(Timestamp::EPOCH));
    /// store.clock().set(Timestamp::END);
    /// assert_eq!(store.clock().now().steady, Timestamp::END);
    /// ```
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }
}

// === the contract ===

/// Nothing waits here: every future is ready when it is first polled, does nothing before, and none is boxed.
impl Store for Memory {
    const IN_PROCESS: bool = true;

    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        self.take_batch_now(plans).into_iter().map(Ok).collect()
    }

    async fn take_one(&self, plan: &Plan<'_>) -> Result<Answer, StoreError> {
        Ok(self.take_now(plan))
    }

    async fn take_each(&self, takes: &[Take<'_>]) -> Vec<Result<SingleAnswer, StoreError>> {
        let taken = self.take_each_now(takes).into_iter();
        taken.map(|taken| Ok(SingleAnswer { taken, remembered: false })).collect()
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

    fn admit_limit(&self, limit: &Limit) -> Result<(), StoreError> {
        self.admit_limit_now(limit)
    }

    fn supports(&self, _limit: &Limit) -> Result<(), StoreError> {
        Ok(())
    }
}

impl StoreHealth for Memory {
    fn shortage(&self) -> Option<&'static str> {
        if self.shapes.is_short() {
            Some(TOO_MANY_LIMITS)
        } else {
            lock(&self.settled).is_full().then_some(TOO_MANY_RECEIPTS)
        }
    }

    fn gauges(&self) -> Option<Gauges> {
        Some(Self::gauges(self))
    }
}

/// There is one node, and nothing to share.
impl SharedDocument for Memory {}
