//! The store in memory: a hash table made for counters, within a fixed budget of bytes.
//!
//! ```text
//!   plan [ user:alice 2/s │ user:alice 500/h ]
//!              │                   │
//!          buckets 12, 40      buckets 7, 31        locked in ascending order: 7, 12, 31, 40
//!              └── one instant, Plan::take ──┘      then unlocked
//! ```
//!
//! The files; each uses only those above it:
//!
//! | file | what it does |
//! |---|---|
//! | `dirty` | what changed since it was last written to the log on disk |
//! | `region` | memory from the operating system, zero until it is written |
//! | `budget` | divides the bytes among everything that grows with the keys |
//! | `linear_hashing` | how a table grows by one bucket at a time |
//! | `steps` | counts the steps of a call, in tests |
//! | `bucket` | seven states and a seqlock in two cache lines |
//! | `blocks` | states that are larger than a word |
//! | `limit_numbers` | limits by 16-bit number |
//! | `receipts` | which receipts were settled |
//! | `models` | models for loom |
//! | `tag` | the 64 bits by which a state is known |
//! | `table` | which two buckets may hold a state (cuckoo hashing), and growing |
//! | `sketch` | a count-min sketch of demoted states |
//! | `bloom` | Bloom filters of demoted states that used more than half of their limit |
//! | `lookup` | finding a state in the table, or what is remembered of it |
//! | `expiry` | removing expired states |
//! | `demotion` | moving a state that still counts to the sketch or a Bloom filter |
//! | `eviction` | writing states into slots, and making room for them |
//! | `slow_path` | every kind of plan, under locks |
//! | `fast_path` | optimistic takes of states that are in the table |
//! | `batches` | many takes with one reading of the clock |
//! | `collect` | what changed, as records for the log on disk |
//! | `restore` | records of the log on disk, back into memory |
//! | `measure` | how full the store is |
//! | `contract` | the trait `Store` |
//!
//! Keys are not stored: a state is known by 64 bits of its name, and two keys with the same 64 bits share it (`tag.rs` has the
//! odds). Apart from that, while there is room for all states and limits, the store decides exactly as [`Plain`](crate::Plain)
//! does, which is its reference in tests. When the budget is spent, a state may be *demoted*: it leaves the table while it still
//! counts, and the sketch or a Bloom filter remembers its use. They may overestimate it and never underestimate it. So a demoted
//! key may be refused too early, and gets no more than its limit, with one exception: if a bucket limit is edited so that it
//! fills more than four times as fast or as slowly, its demoted states may begin anew. With [`WhenFull::Allow`], a key for which
//! there is no room and of which nothing is remembered passes without being counted.
//!
//! # Why it is exact with many threads
//!
//! **The claim.** Every decision belongs to one instant, a reading of the clock. In whatever order threads run, the takes that
//! pass, put in order of their instants, never exceed the limit of a window or a bucket. One thing is assumed: a clock goes
//! back only when it is set back. The calls that decide a single take or plan are also linearizable: each is answered as if it
//! had happened at one point between its beginning and its end. These are not, and none of them lets more pass:
//!
//! - *Refusals of single takes in batches*, which are as of the reading of the batch and may come too early.
//! - *Calls that charge, give back, peek or reset.* They lock one state after another.
//! - *One wrong refusal*, if the version of a bucket repeats during an optimistic read (`bucket.rs`).
//!
//! **The difficulty.** A thread reads the clock and then may stall for any time before it decides. Meanwhile other threads
//! change the state, move it to another bucket, or remove it because it has expired. A decision by the old reading must not
//! admit too much.
//!
//! **Words.** Each has one meaning in the files of this store:
//!
//! - A slot is *free* if it holds nothing. A state is *missing* if no slot holds it.
//! - A state is *empty* if a slot holds it with the word 0: nothing of it is in use. Once any state was demoted, a reset leaves
//!   such a state, which hides what is remembered of the key.
//! - The *candidates* of a state are the two buckets that may hold it. The first is its *home*. A demoted state that used more
//!   than half of its limit leaves a *mark* in the Bloom filter of its home.
//! - A state is *newer* than a reading of the clock if it was written by a later reading. With several threads that is normal.
//! - A state is *ahead* of a reading if it is so much newer that the core takes it for the work of a clock that was set back
//!   since. The core would *mend* it: count its content as of the reading.
//!
//! **1. Where a state is.** Three rules hold for the table:
//!
//! - *One slot.* Of the buckets that are not locked, at most one has a slot with the state. It is one of the state's
//!   candidates.
//! - *Moves.* A thread puts a state into a bucket, or takes it out, only while it holds the lock of that bucket. To move a state
//!   between buckets (cuckoo displacement, a move to its home, a split), a thread locks both. It writes the state into the new
//!   bucket, and clears the old slot before it unlocks the old bucket. So no other thread sees the state in both.
//! - *Growth.* The table grows by splits (linear hashing). A split changes the candidates only of states whose candidate is
//!   the bucket that is split, the parent: for some of them the new bucket, the child, takes its place. The splitting thread
//!   holds the locks of parent and child while it moves these states and publishes the new count of buckets. A child gets a
//!   copy of the parent's Bloom filter, so no mark is lost.
//!
//! To lock a state, a thread computes its candidates, locks them, and computes them again (`table.rs`). If a split came in
//! between, they differ, and it starts over. From then on they do not change, because a split needs the lock of one of them.
//! So a thread that has locked a state finds it if it is in the table, and no other thread moves, changes, removes or creates
//! it meanwhile.
//!
//! *Locks put the readings in order.* Suppose that a thread changes a state under the lock of its bucket, by a reading made
//! before it unlocks the bucket, and that another thread locks the state later and then reads the clock. Then the second
//! reading is later. If the bucket is still a candidate of the state, both threads held its lock. If it was split in between,
//! the splitting thread held the parent after the first thread and the child before the second. A chain of several splits is
//! the same, step by step.
//!
//! **2. The slow path** reads the clock while it has locked all states of the plan. Three cases:
//!
//! - *The state is in the table.* Takes of it on this path read the clock in the order in which they write.
//! - *The state is missing.* If there was one, a thread removed it under the lock of its bucket, because it had expired by an
//!   earlier reading. So it has expired by this reading, too. The same holds for marks in the Bloom filter of its home. (Or
//!   the state was reset: then nothing of it counts.)
//! - *The state was demoted to the sketch.* Another thread may clear a line of the sketch by a later reading, without any of
//!   these locks. So the sketch is read first and the clock afterwards: what was cleared by then has ended by this reading.
//!
//! **3. The fast path** reads a state without a lock and decides by a reading that may be older than the state. It locks the
//! bucket only if its head is the one that was read: the version in it shows that no thread locked it since. It writes only if
//! the slot still holds the same tag, limit number and word, and if no limit number was claimed for another limit since this one
//! was looked up (the epoch, see `limit_numbers.rs`). Moves and growth do no harm:
//!
//! - It may miss a state: the state moves from one candidate to the other while the thread looks at them one after another, or
//!   the count of buckets was outdated. Then the slow path decides.
//! - A state that it finds may move before it writes. Then the old slot does not hold the state any more, and the thread reads
//!   again. If the slot does hold the same tag and word, it is the state, because the state is in no other slot.
//!
//! It decides only where an older reading may find *more* in use than a later one would, and never less:
//!
//! - *A fixed window*, aligned to the epoch, that is the window of the reading or an earlier one.
//! - *A token bucket* with continuous refill. Its word is the tick at which all tokens are back, and what is in use is the word
//!   minus the tick of the reading.
//!
//! Everything else goes to the slow path:
//!
//! - *A state of a later window, or one that is ahead of the reading.* The core mends a state that is ahead. By an old reading
//!   it would move a full window into the past, and the next take would begin a new one.
//! - *A state that is missing or empty.* It does not say since when. After the reading, the limit may have been used up, and the
//!   state removed when that had expired.
//! - *A state that is larger than a word, or was written under another limit.*
//! - *Every other kind of limit*, and takes that may use the headroom, are optional or are charged when refused.
//! - *A plan of several takes of which one is refused.*
//!
//! **4. A plan** is decided by one reading, and its states are written while all of them are locked. So no other thread sees a
//! part of it.
//!
//! **5. Refusals.** An old reading may refuse a take that a later one would let pass. So outside of
//! batches, a single take is refused only by a reading made after its state was read. The slow path reads the clock while the
//! states are locked, so it refuses correctly in batches as well.

mod batches;
mod blocks;
mod bloom;
mod bucket;
mod budget;
mod collect;
mod contract;
mod demotion;
mod dirty;
mod eviction;
mod expiry;
mod fast_path;
mod limit_numbers;
mod linear_hashing;
mod lookup;
mod measure;
#[cfg(loom)]
pub(crate) mod models;
mod receipts;
mod region;
mod restore;
mod sketch;
mod slow_path;
mod steps;
mod table;
mod tag;
#[cfg(test)]
mod tests;

use crate::clock::Clock;
use crate::error::StoreError;
use crate::store::{Answer, Charged, Settled, Settlement, new_incarnation};
use crate::sync::{Mutex, lock};
use blocks::Blocks;
use budget::Budget;
pub(crate) use collect::{Collected, Hand, Record, Recorder, Writing};
use dirty::{ChangeList, Kept};
use limit_numbers::{LimitNumbers, NUMBERS};
use lookup::StateRequest;
use receipts::Receipts;
pub(crate) use receipts::SettledReceipt;
use sketch::Sketch;
pub(crate) use sketch::{SketchGeometry, SketchLine};
use std::sync::atomic::AtomicU64;
use table::Table;
use tag::Tag;
use tidegate_core::{Ask, Cost, Decision, Limit, NamedBy, Plan, StateId, Take, Taken, WhenFull};

/// The budget of [`Memory::new`]: enough for eleven million states of one word.
const DEFAULT_BUDGET: usize = 256 << 20;
/// States in the memory of this process.
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
    limit_numbers: LimitNumbers,
    sketch: Sketch,
    /// No other lock is taken while this one is held.
    settled: Mutex<Receipts>,
    /// States that were demoted to the sketch or a Bloom filter. While it is 0, lookups skip both.
    demotions: AtomicU64,
    /// How many more insertions skip cuckoo displacement, after it failed in a full table.
    displacement_pause: AtomicU64,
    /// Tags of states that left the table although the log on disk may still have them, if there is a log. Locked while
    /// buckets are locked; no other lock is taken while it is held.
    gone: Option<Mutex<ChangeList<Tag>>>,
    /// See [`Store::incarnation`](crate::Store::incarnation).
    incarnation: u64,
}

impl Memory {
    /// A store without states that uses this clock, with a budget of 256 MiB. It takes memory only as it needs it.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Memory::new(Clock::system());
    /// assert!(store.take_one_now(&Take::new(StateId(7), &limit, Cost::ONE)).decision.passes());
    /// ```
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self::with_budget(clock, DEFAULT_BUDGET)
    }

    /// A store without states that never uses more than this many bytes, apart from a small fixed amount. The least budget is
    /// 8 KiB.
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

    /// A store for states that are also kept on disk: it notes what changes.
    pub(crate) fn kept_on_disk(clock: Clock, bytes: usize) -> Self {
        Self::build(clock, bytes, NUMBERS, Kept::OnDisk)
    }

    /// A store that notes what changes, and has `numbers` limit numbers, for a model.
    #[cfg(shuttle)]
    pub(crate) fn kept_on_disk_with(clock: Clock, bytes: usize, numbers: usize) -> Self {
        Self::build(clock, bytes, numbers, Kept::OnDisk)
    }

    /// A store with `numbers` limit numbers. Tests and models have few, so that numbers are used again soon.
    pub(crate) fn with_limit_numbers(clock: Clock, bytes: usize, numbers: usize) -> Self {
        Self::build(clock, bytes, numbers, Kept::InMemory)
    }

    fn build(clock: Clock, bytes: usize, numbers: usize, kept: Kept) -> Self {
        let budget = Budget::new(bytes);
        let gone = ChangeList::new(budget.most_changes());
        Self {
            clock,
            table: Table::new(&budget, kept),
            blocks: Blocks::new(&budget),
            limit_numbers: LimitNumbers::new(numbers),
            sketch: Sketch::new(&budget, kept),
            settled: Mutex::new(Receipts::new(&budget, kept)),
            demotions: AtomicU64::new(0),
            displacement_pause: AtomicU64::new(0),
            gone: (kept == Kept::OnDisk).then(|| Mutex::new(gone)),
            incarnation: new_incarnation(),
            budget,
        }
    }

    /// Decides a plan, without async.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let [second, hour] = [(2, 1), (500, 3600)].map(|(amount, secs)| {
    ///     Limit::new(amount, Span::from_secs(secs), Algorithm::TOKEN_BUCKET).unwrap()
    /// });
    /// let takes = vec![
    ///     Take::new(StateId(7), &second, Cost::ONE),
    ///     Take::new(StateId(8), &hour, Cost::ONE),
    /// ];
    /// let answer = Memory::new(Clock::system()).take_now(&Plan::new(takes, Span::ZERO).unwrap());
    /// assert!(answer.done.passes);
    /// assert_eq!(answer.done.decisions[1].remaining, 499);
    /// ```
    pub fn take_now(&self, plan: &Plan<'_>) -> Answer {
        let reading = self.prefetch_and_read_clock(plan.takes());
        let answer = match self.take_fast(plan, &reading) {
            Some(answer) => answer,
            None => self.take_slowly(plan).1,
        };
        Self::note_outcome(answer.done.passes);
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
        let reading = self.prefetch_and_read_clock(std::slice::from_ref(take));
        let ready = |now| take.limit.prepare(&take.ask(now));
        let number = self.limit_numbers.number(take.limit);
        let decide = |word| reading.decide(word, ready);
        let fast = number
            .and_then(|number| self.take_optimistically(take, number, self.table.size(), decide));
        let taken = match fast {
            Some(fast) => fast.taken,
            None => self.take_one_slowly(take).1,
        };
        Self::note_outcome(taken.decision.passes());
        taken
    }

    /// Gives a limit that a client names a limit number, unless it has one. It is an error if the clients' share of the numbers
    /// is used up. The work does not depend on how many limits there are.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Limit, Span};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(15, Span::from_secs(1), Algorithm::TOKEN_BUCKET).unwrap();
    /// assert!(Memory::new(Clock::system()).admit_limit_now(&limit).is_ok());
    /// ```
    pub fn admit_limit_now(&self, limit: &Limit) -> Result<(), StoreError> {
        let number =
            self.limit_numbers.number(limit).or_else(|| self.number_of(limit, NamedBy::Caller));
        number.map(|_| ()).ok_or(StoreError::TooManyLimits)
    }

    /// Counts takes whether or not they pass, without async.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(5, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let charged = Memory::new(Clock::system()).charge_now(&[Take::new(StateId(7), &limit, Cost::new(8))]);
    /// assert!(!charged.decisions[0].passes()); // 8 of 5 were used
    /// ```
    pub fn charge_now(&self, takes: &[Take<'_>]) -> Charged {
        let mut charged =
            Charged { at: self.clock.now().steady, decisions: vec![], receipts: vec![] };
        // One after another: charges are independent, and the list may have a take twice.
        for take in takes {
            let requests = [StateRequest::of(take)];
            let (mut locked, found) = self.lock_states(&requests);
            let mut written = self.current_states(&mut locked, &requests, &found);
            charged.at = locked.now.steady;
            let ask = Ask::new(locked.now.of(take.limit), take.cost).bounded(take.bound);
            for written in &mut written {
                charged.receipts.push(take.limit.charge(written, &ask));
                let after = Ask { cost: Cost::default(), ..ask };
                charged.decisions.push(take.limit.decide(written, &after));
            }
            self.write_back(locked, &requests, &found, &written);
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
        // The receipt is marked first: if this thread panics afterwards, too little is given back, never too much.
        let now = self.clock.now().steady;
        match lock(&self.settled).settle(settlement, now, &self.budget) {
            Settled::Done => {}
            refused @ (Settled::Already | Settled::Late | Settled::Full) => return refused,
        }
        for part in settlement.parts {
            // The defaults: a part does not say what its take said.
            let (when_full, named_by) = (WhenFull::Shared, NamedBy::Policy);
            let requests =
                [StateRequest { id: part.state, limit: part.limit, when_full, named_by }];
            let (mut locked, found) = self.lock_states(&requests);
            let mut written = self.current_states(&mut locked, &requests, &found);
            for written in &mut written {
                written.give_back(locked.now.of(part.limit), part.limit, &part.receipt);
            }
            self.write_back(locked, &requests, &found, &written);
        }
        Settled::Done
    }

    /// What each take of a plan would be answered if it were alone, without async. Changes nothing.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Plan, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(5, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let store = Memory::new(Clock::system());
    /// let plan = Plan::from(Take::new(StateId(7), &limit, Cost::new(2)));
    /// assert!(store.peek_now(&plan)[0].passes());
    /// assert_eq!(store.peek_now(&plan)[0].remaining, 5); // a peek takes nothing
    /// ```
    pub fn peek_now(&self, plan: &Plan<'_>) -> Vec<Decision> {
        let peek = |take: &Take<'_>| {
            let (tag, request) = (Tag::of(take.state), StateRequest::of(take));
            let held = self.table.lock_all(&[tag]);
            let found = self.find(&held, tag, None);
            let recalled = self.recall(&request, found.as_ref());
            let now = self.clock.now();
            let written = self.written(found.as_ref(), recalled, &request, now);
            take.limit.decide(&written, &plan.ask(take, now))
        };
        plan.takes().iter().map(peek).collect()
    }

    /// Resets states, without async; returns how many of them were in the table and not empty. Once any state was demoted, a reset
    /// needs a slot: in a full table, a key that was demoted keeps what is remembered of it.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Cost, Limit, Span, StateId, Take};
    /// use tidegate_store::{Clock, Memory};
    /// let limit = Limit::new(1, Span::from_secs(60), Algorithm::TOKEN_BUCKET).unwrap();
    /// let (store, take) = (Memory::new(Clock::system()), Take::new(StateId(7), &limit, Cost::ONE));
    /// assert!(store.take_one_now(&take).decision.passes());
    /// assert_eq!(store.reset_now(&[StateId(7), StateId(8)]), 1);
    /// assert!(store.take_one_now(&take).decision.passes()); // it may begin again
    /// ```
    pub fn reset_now(&self, states: &[StateId]) -> usize {
        states.iter().filter(|id| self.reset_one(Tag::of(**id))).count()
    }

    /// The clock by which the store decides.
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
