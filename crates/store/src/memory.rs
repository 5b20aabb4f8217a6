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
//! | `room` | making room: what has expired goes, what can move moves, what is used least is demoted |
//!
//! Keys are never stored: a state is known by 64 bits of its name. It decides as [`Plain`](crate::Plain) does, which
//! is its reference.

mod blocks;
mod bucket;
mod budget;
mod region;
mod room;
mod shapes;
mod sketch;
mod table;

use crate::clock::Clock;
use crate::error::StoreError;
use crate::settled::SettledReceipts;
use crate::store::{Answer, Charged, Settled, Settlement, Store};
use crate::sync::{Mutex, lock};
use blocks::Blocks;
use bucket::{Entry, Read};
use budget::Budget;
use shapes::{Number, Shapes};
use sketch::Sketch;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use table::{At, Few, Held, Table, Tag};
use tidegate_core::{
    Ask, Cost, Decision, Done, InUse, Limit, Need, Now, Overflow, Plan, Refused, State, StateId,
    Take, Taken, Timestamp, Written,
};

/// What [`Memory::new`] may use: eleven million keys of one word.
const DEFAULT_BUDGET: usize = 256 << 20;
/// Buckets that are added when a state has no room.
const GROWN_AT_ONCE: usize = 8;
/// With every so many states that are added, a bucket is looked at for what has expired. Buckets have seven slots, so
/// that is faster than they are filled.
const LOOK_EVERY: u64 = 4;
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
    settled: Mutex<SettledReceipts>,
    /// States that were demoted; until one was, nobody looks into the sketch.
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

/// A state that somebody asks for.
struct Asked<'l> {
    id: StateId,
    limit: &'l Limit,
    overflow: Overflow,
}

/// Where a state was found, and under which limit it was written if not under the one that asks.
struct Found {
    at: At,
    entry: Entry,
    other: Option<Arc<Limit>>,
}

/// States that are locked, and the instant at which they are looked at.
struct Brought<'m> {
    held: Held<'m>,
    now: Now,
    tags: Few<Tag>,
    /// Of the limits that ask.
    numbers: Few<Option<Number>>,
    /// Whether what becomes of a new state is not kept: there is no room, and nobody is demoted for it.
    left_out: Few<bool>,
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
        let budget = Budget::new(bytes);
        Self {
            clock,
            table: Table::new(&budget),
            blocks: Blocks::new(&budget),
            shapes: Shapes::default(),
            sketch: Sketch::new(&budget),
            settled: Mutex::new(SettledReceipts::default()),
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
        self.take_at(plan, || self.clock.now())
    }

    /// Decides plans in order, without async. They are decided as of one reading of the clock, and what they need is
    /// fetched before it is used: many at a time cost far less than one at a time.
    ///
    /// ```
    /// use tidegate_core::{Plan, Span};
    /// use tidegate_store::{Clock, Memory};
    /// let nothing = Plan::new(vec![], Span::ZERO).unwrap();
    /// assert_eq!(Memory::new(Clock::system()).take_batch_now(&[nothing.clone(), nothing]).len(), 2);
    /// ```
    pub fn take_batch_now(&self, plans: &[Plan<'_>]) -> Vec<Answer> {
        let now = self.clock.now();
        let fetch = |plan: &Plan<'_>| {
            plan.takes().iter().for_each(|take| self.table.prefetch(Tag::of(take.state)));
        };
        plans.iter().take(AHEAD).for_each(fetch);
        let mut ahead = plans.iter().skip(AHEAD);
        let take = |plan| {
            ahead.next().into_iter().for_each(fetch);
            self.take_at(plan, || now)
        };
        plans.iter().map(take).collect()
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
            let (mut brought, found) = self.bring(&asked, || self.clock.now());
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
        match lock(&self.settled).settle(settlement, self.clock.now().steady) {
            Settled::Done => {}
            refused @ (Settled::Already | Settled::Late) => return refused,
        }
        for part in settlement.parts {
            let asked = [Asked { id: part.state, limit: part.limit, overflow: Overflow::Shared }];
            let (mut brought, found) = self.bring(&asked, || self.clock.now());
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
            let held = self.table.lock_all(&[Tag::of(take.state)]);
            let now = self.clock.now();
            let found = self.find(&held, Tag::of(take.state), None);
            let written = self.written(found.as_ref(), &Asked::of(take), now);
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
            overcount_thousandths: self.sketch.expected(self.clock.now().steady),
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

// === taking ===

impl Memory {
    /// Decides a plan as of when the clock is read, which is after its states are looked at.
    fn take_at(&self, plan: &Plan<'_>, clock: impl Fn() -> Now) -> Answer {
        if let [take] = plan.takes()
            && let Some(answer) = self.take_known(plan, take, &clock)
        {
            return answer;
        }
        let asked: Few<Asked<'_>> = plan.takes().iter().map(Asked::of).collect();
        let (mut brought, found) = self.bring(&asked, clock);
        let mut written = self.states(&mut brought, &asked, &found);
        let now = brought.now;
        let done = plan.take(now, &mut written);
        self.keep(brought, &asked, &found, &written);
        Answer { at: now.steady, done, remembered: false }
    }

    /// The common case: one state, of one word, that is there and was written under the limit that asks.
    ///
    /// It is read without a lock and decided. A refusal leaves it as it is, so there is nothing to write, and those who
    /// are refused do not get into each other's way. Otherwise its bucket is locked; and if the state still is what was
    /// read, what became of it is written. `None` when anything is unusual, and nothing was done.
    fn take_known(
        &self,
        plan: &Plan<'_>,
        take: &Take<'_>,
        clock: impl Fn() -> Now,
    ) -> Option<Answer> {
        if (take.need, take.refused) != (Need::Required, Refused::Free) {
            return None;
        }
        let tag = Tag::of(take.state);
        let shape = self.shapes.number(take.limit)?;
        let usual = |entry: &Entry| {
            entry.shape == shape.number && !entry.elsewhere && self.shapes.is_current(shape.epoch)
        };
        for candidate in 0..2 {
            let bucket = self.table.candidate(tag, candidate);
            let entry = match bucket.read_patiently(tag.0) {
                Read::Found(entry) if usual(&entry) => entry,
                Read::Missing => continue,
                Read::Found(_) | Read::Busy => return None,
            };
            // The clock is read after the state: nobody sees a state from its own future.
            let now = clock();
            let (word, Taken { decision, receipt }) =
                take.limit.take_word(entry.word, &plan.ask(take, now))?;
            let passes = decision.passes();
            let done = Done { passes, decisions: decision.into(), receipts: receipt.into() };
            let answer = Answer { at: now.steady, done, remembered: false };
            if word == entry.word {
                return Some(answer);
            }
            let locked = bucket.lock();
            let slot = locked.find(tag.0)?;
            if locked.get(slot) != entry || !usual(&entry) {
                return None;
            }
            locked.set_word(slot, word);
            let due = locked.is_due();
            drop(locked);
            if due {
                self.look_at_next(now);
            }
            if candidate == 1 {
                self.table.bring_home(tag);
            }
            return Some(answer);
        }
        None
    }

    /// Finds states, which stay locked, at one instant.
    fn bring(
        &self,
        asked: &[Asked<'_>],
        clock: impl Fn() -> Now,
    ) -> (Brought<'_>, Few<Option<Found>>) {
        let tags: Few<Tag> = asked.iter().map(|asked| Tag::of(asked.id)).collect();
        loop {
            let (numbers, mut held) = self.lock(asked, &tags);
            let now = clock();
            let found: Few<Option<Found>> = (tags.iter().zip(&numbers))
                .map(|(tag, number)| self.find(&held, *tag, *number))
                .collect();
            // Nobody is demoted while the table can grow.
            let crowded = !self.table.is_full_grown(&self.budget) && {
                let mut missing = tags.iter().zip(&found).filter(|(_, found)| found.is_none());
                missing.any(|(tag, _)| !self.has_room(&mut held, *tag, now, &tags))
            };
            if !crowded {
                return (Brought { held, now, tags, numbers, left_out: Few::new() }, found);
            }
            drop(held);
            self.table.grow_on(GROWN_AT_ONCE, &self.budget);
        }
    }

    /// The states as they stand, each under the limit it was written under.
    fn states<'s>(
        &self,
        brought: &mut Brought<'_>,
        asked: &[Asked<'s>],
        found: &'s [Option<Found>],
    ) -> Few<Written<'s>> {
        let Brought { held, now, tags, left_out, .. } = brought;
        let state = |((asked, found), tag): ((&Asked<'s>, &'s Option<Found>), &Tag)| {
            let mut written = self.written(found.as_ref(), asked, *now);
            // Where there is no room and nobody is demoted for it, that decides.
            let no_room = found.is_none()
                && asked.overflow != Overflow::Shared
                && !(self.has_blocks(asked.limit, *now) && self.has_room(held, *tag, *now, tags));
            if no_room && asked.overflow == Overflow::Deny {
                let all = InUse { units: u64::MAX, until: Timestamp::END };
                written = asked.limit.with_in_use(now.of(asked.limit), all);
            }
            let nothing_known = written.state == State::Empty;
            left_out.push(no_room && (asked.overflow == Overflow::Deny || nothing_known));
            written
        };
        asked.iter().zip(found).zip(&*tags).map(state).collect()
    }

    /// Keeps states as somebody's work left them, and unlocks them.
    fn keep(
        &self,
        brought: Brought<'_>,
        asked: &[Asked<'_>],
        found: &[Option<Found>],
        written: &[Written<'_>],
    ) {
        let Brought { mut held, now, tags, numbers, left_out } = brought;
        let (mut added, due) = (false, held.is_due());
        // First those that are there: making room for the others may move them.
        for (((asked, tag), (found, number)), written) in
            asked.iter().zip(&tags).zip(found.iter().zip(&numbers)).zip(written)
        {
            let Some(found) = found else { continue };
            let rewritten = std::ptr::eq(written.shape, asked.limit);
            match (rewritten, number) {
                (true, Some(Number { number, .. })) => {
                    self.replace(&mut held, *tag, found, *number, written, now);
                }
                (false, _) => {
                    self.replace(&mut held, *tag, found, found.entry.shape, written, now);
                }
                // Nothing in the table could say what it was written under.
                (true, None) => {
                    self.demote(*tag, written, now);
                    self.remove(&mut held, found.at, found.entry);
                }
            }
        }
        for (((tag, number), (found, left_out)), written) in
            tags.iter().zip(&numbers).zip(found.iter().zip(left_out)).zip(written)
        {
            match number {
                _ if found.is_some() || left_out || written.state == State::Empty => {}
                Some(Number { number, .. }) => {
                    self.insert(&mut held, *tag, *number, written, now);
                    added = true;
                }
                None => self.demote(*tag, written, now),
            }
        }
        drop(held);
        if added && self.table.is_dense() {
            self.table.grow(&self.budget);
        }
        if due || (added && self.table.entries().is_multiple_of(LOOK_EVERY)) {
            self.look_at_next(now);
        }
    }

    /// Locks the buckets of states, and looks up the numbers of their limits in one epoch. A limit for which there is
    /// no number has none: its states are only ever remembered by the sketch.
    fn lock(&self, asked: &[Asked<'_>], tags: &[Tag]) -> (Few<Option<Number>>, Held<'_>) {
        loop {
            let mut numbers: Few<Option<Number>> = Few::new();
            for asked in asked {
                let number = self.shapes.number(asked.limit).or_else(|| {
                    self.free_shapes();
                    self.shapes.number(asked.limit)
                });
                numbers.push(number);
            }
            let held = self.table.lock_all(tags);
            if numbers.iter().flatten().all(|number| self.shapes.is_current(number.epoch)) {
                return (numbers, held);
            }
        }
    }

    fn find(&self, held: &Held<'_>, tag: Tag, number: Option<Number>) -> Option<Found> {
        let at = held.find(tag)?;
        let entry = held.get(at)?;
        let same = number.is_some_and(|number| number.number == entry.shape);
        let other = if same { None } else { self.shapes.known().limit(entry.shape).cloned() };
        Some(Found { at, entry, other })
    }

    /// A state that was found, or what the sketch knows of one that was not.
    fn written<'s>(&self, found: Option<&'s Found>, asked: &Asked<'s>, now: Now) -> Written<'s> {
        let Some(Found { entry, other, .. }) = found else {
            let known = self.known_to_sketch(Tag::of(asked.id), asked.limit, now);
            return known.map_or(Written::empty(asked.limit), |in_use| {
                asked.limit.with_in_use(now.of(asked.limit), in_use)
            });
        };
        Written { shape: other.as_deref().unwrap_or(asked.limit), state: self.state(entry) }
    }

    fn state(&self, entry: &Entry) -> State {
        match (entry.elsewhere, entry.word) {
            (true, word) => State::read(&self.blocks.read(word)),
            (false, 0) => State::Empty,
            (false, word) => State::Word(word),
        }
    }

    fn known_to_sketch(&self, tag: Tag, limit: &Limit, now: Now) -> Option<InUse> {
        if self.demotions.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.sketch.get(tag, limit, now.of(limit))
    }

    /// Forgets a state; where the sketch may know of it too, an empty one stands for it.
    fn reset_one(&self, tag: Tag) -> bool {
        let mut held = self.table.lock_all(&[tag]);
        let found = held.find(tag).and_then(|at| Some((at, held.get(at)?)));
        let shielded = self.demotions.load(Ordering::Relaxed) > 0;
        let empty = Entry { tag: tag.0, shape: 0, elsewhere: false, word: 0 };
        match found {
            Some((at, entry)) => {
                if entry.elsewhere {
                    self.blocks.free(entry.word);
                }
                if shielded {
                    held.put(at, Entry { shape: entry.shape, ..empty });
                } else {
                    self.table.removed();
                    held.clear(at);
                }
                entry.word != 0
            }
            None => {
                if let Some(at) = held.free(tag).filter(|_| shielded) {
                    self.table.added();
                    held.put(at, empty);
                }
                false
            }
        }
    }
}

impl<'l> Asked<'l> {
    const fn of(take: &Take<'l>) -> Self {
        Self { id: take.state, limit: take.limit, overflow: take.overflow }
    }
}

// === the contract ===

/// Nothing waits here: every future is ready when it is first polled, does nothing before, and none is boxed.
impl Store for Memory {
    const AT_ONCE: bool = true;

    fn take_at_once(&self, plan: &Plan<'_>) -> Option<Answer> {
        Some(self.take_now(plan))
    }

    async fn take(&self, plans: &[Plan<'_>]) -> Vec<Result<Answer, StoreError>> {
        self.take_batch_now(plans).into_iter().map(Ok).collect()
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

    fn gauges(&self) -> Option<Gauges> {
        Some(Self::gauges(self))
    }

    fn supports(&self, _limit: &Limit) -> Result<(), StoreError> {
        Ok(())
    }
}
