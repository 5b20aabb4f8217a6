//! The fast path: optimistic takes of states that are in the table, of one word each, and written under the limit of the take.
//!
//! Nearly all takes are like that. Their cost is above all waiting for memory, so the order is:
//!
//! ```text
//!   1  prefetch the buckets
//!   2  read the clock meanwhile
//!   3  read the state without a lock, and decide
//!   4  refused: done, nothing to write
//!      passes:  lock the bucket if the state still is what was read, write the new word; otherwise try again from 3
//! ```
//!
//! **A state may be newer than the clock reading.** Another thread may write it between 2 and 3. By the older reading, more of
//! the limit seems to be in use, never less. So what passes would have passed anyway. What is refused is decided again, with the
//! same state and a clock that is read after it. A thread that was refused last is likely to be refused again; it reads the
//! clock after the state in the first place.
//!
//! A batch reads the clock once, so after a stall its reading may be old. The fast path does not decide by a state that is ahead
//! of the reading or in a later window, nor if the state is empty or missing: the slow path does, and reads the clock under the
//! lock. The head of `memory.rs` defines these words, and says why that is exact, also while states move and the table grows.

use super::Memory;
use super::bucket::{Bucket, Entry, EntrySnapshot, LockedBucket, Read};
use super::limit_numbers::{Epoch, LimitNumber};
use super::linear_hashing::TableSize;
use super::table::Candidate;
use super::tag::Tag;
use crate::store::{Answer, AnsweredBy};
use crate::sync::spin_loop;
use std::cell::Cell;
use tidegate_core::{
    InlineVec, Need, Now, Plan, PlanOutcome, PreparedTake, RejectedCost, Take, Taken,
};

/// Optimistic tries on a state that other threads change, before falling back to the slow path.
const OPTIMISTIC_TRIES: u32 = 128;

thread_local! {
    /// Whether the last take of this thread was refused.
    static WAS_REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// When the clock is read for a take that is not part of a batch.
pub(super) enum ClockReading<C> {
    /// Read before the state. If it refuses the take, the clock is read again.
    BeforeStates(Now, C),
    /// The clock, to be read after the state.
    AfterStates(C),
}

/// What the fast path decided about a state of one word.
pub(super) struct FastTake {
    /// The reading of the clock that decided.
    pub(super) now: Now,
    /// The new word of the state; the old one if nothing was taken.
    next: u64,
    pub(super) taken: Taken,
}

impl FastTake {
    /// By a reading for which the take is prepared. `None` when the take needs the slow path.
    #[inline(always)] // otherwise the answer is copied several times, which takes as long as the rest
    pub(super) fn by(now: Now, ready: &PreparedTake<'_>, word: u64) -> Option<Self> {
        let (next, taken) = ready.take(word)?;
        Some(Self { now, next, taken })
    }
}

impl<C: Fn() -> Now> ClockReading<C> {
    /// Decides about a state of this word, by a reading that does not refuse too early.
    #[inline(always)] // as above
    pub(super) fn decide<'l>(
        &self,
        word: u64,
        ready: impl Fn(Now) -> Option<PreparedTake<'l>>,
    ) -> Option<FastTake> {
        if let Self::BeforeStates(now, _) = self {
            let ready = ready(*now)?;
            if ready.passes(word) {
                return FastTake::by(*now, &ready, word);
            }
        }
        let (Self::BeforeStates(_, clock) | Self::AfterStates(clock)) = self;
        let now = clock();
        FastTake::by(now, &ready(now)?, word)
    }

    /// The reading by which to decide several takes. If it refuses one of them, the slow path decides.
    pub(super) fn first(&self) -> Now {
        match self {
            Self::BeforeStates(now, _) => *now,
            Self::AfterStates(clock) => clock(),
        }
    }
}

/// A state as it was read without a lock, and where.
struct OptimisticRead<'m> {
    candidate: Candidate,
    bucket: &'m Bucket,
    snapshot: EntrySnapshot,
    epoch: Epoch,
}

/// Why the fast path has no state to decide by.
enum NotRead {
    /// Another thread changes the bucket: try again.
    Busy,
    /// The state is missing, empty, larger than a word or written under another limit; or the take is optional or charged
    /// when refused.
    NeedsSlowPath,
}

impl From<FastTake> for Answer {
    #[inline]
    fn from(FastTake { now, taken: Taken { decision, receipt }, .. }: FastTake) -> Self {
        let (passes, decisions) = (decision.passes(), decision.into());
        let done = PlanOutcome { passes, decisions, receipts: receipt.into() };
        Self { at: now.steady, done, by: AnsweredBy::Store }
    }
}

impl Memory {
    /// Prefetches the states and reads the clock while memory answers. A thread that was refused last reads it later.
    #[inline]
    pub(super) fn prefetch_and_read_clock(
        &self,
        takes: &[Take<'_>],
    ) -> ClockReading<impl Fn() -> Now> {
        let size = self.table.size();
        takes.iter().for_each(|take| self.table.prefetch_both(Tag::of(take.state), size));
        let clock = || self.clock.now();
        if WAS_REFUSED.get() {
            ClockReading::AfterStates(clock)
        } else {
            ClockReading::BeforeStates(clock(), clock)
        }
    }

    /// Remembers whether this thread was refused, for its next take.
    #[inline]
    pub(super) fn note_outcome(passes: bool) {
        WAS_REFUSED.set(!passes);
    }

    /// Decides a plan on the fast path; `None` when it needs the slow path, and nothing was done.
    #[inline]
    pub(super) fn take_fast(
        &self,
        plan: &Plan<'_>,
        reading: &ClockReading<impl Fn() -> Now>,
    ) -> Option<Answer> {
        let [take] = plan.takes() else {
            return self.take_all_optimistically(plan, reading.first());
        };
        let ready = |now| take.limit.prepare(&plan.ask(take, now));
        let number = self.limit_numbers.number(take.limit)?;
        let fast = self.take_optimistically(take, number, self.table.size(), |word| {
            reading.decide(word, ready)
        })?;
        Some(fast.into())
    }

    /// Takes a plan of a batch on the fast path, by the clock reading `now` that the batch made before.
    #[inline]
    pub(super) fn take_fast_at(
        &self,
        plan: &Plan<'_>,
        (now, size): (Now, TableSize),
    ) -> Option<Answer> {
        let [take] = plan.takes() else { return self.take_all_optimistically(plan, now) };
        let number = self.limit_numbers.number(take.limit)?;
        let ready = take.limit.prepare(&plan.ask(take, now))?;
        let decide = |word| FastTake::by(now, &ready, word);
        Some(self.take_optimistically(take, number, size, decide)?.into())
    }

    /// Decides one take. A refusal does not change the state, so it writes nothing, and refused threads do not slow each other
    /// down. A take that passes locks the bucket and writes, if the state still is what was read. `None` when the take needs
    /// the slow path, and nothing was done.
    #[inline(always)] // as above
    pub(super) fn take_optimistically(
        &self,
        take: &Take<'_>,
        number: LimitNumber,
        size: TableSize,
        decide: impl Fn(u64) -> Option<FastTake>,
    ) -> Option<FastTake> {
        for _ in 0..OPTIMISTIC_TRIES {
            let read = match self.read_optimistically(take, number, size) {
                Ok(read) => read,
                Err(NotRead::NeedsSlowPath) => return None,
                Err(NotRead::Busy) => {
                    spin_loop();
                    continue;
                }
            };
            let word = read.snapshot.word;
            let fast = decide(word)?;
            if fast.next == word {
                return Some(fast);
            }
            let Some(locked) = self.table.lock_if_unchanged(read.bucket, &read.snapshot) else {
                spin_loop();
                continue;
            };
            if !self.limit_numbers.is_current(number.epoch) {
                return None;
            }
            locked.set_word(&read.snapshot, fast.next);
            let due = locked.is_sweep_due();
            drop(locked);
            if due {
                self.sweep_next_bucket(fast.now);
            }
            if read.candidate == Candidate::Second {
                self.table.move_home(Tag::of(take.state));
            }
            return Some(fast);
        }
        None
    }

    /// Decides several takes of one plan, if all of them pass. Each is decided by what was read. Then all buckets are locked, if
    /// all states still are what was read; so they all had these values at one instant. The locks are only tried, never waited
    /// for, so their order does not matter. `None` when the plan needs the slow path or a take is refused, and nothing was done.
    pub(super) fn take_all_optimistically(&self, plan: &Plan<'_>, now: Now) -> Option<Answer> {
        let size = self.table.size();
        let decide = |take: &Take<'_>| {
            let number = self.limit_numbers.number(take.limit)?;
            let read = self.read_optimistically(take, number, size).ok()?;
            let (next, taken) = take.limit.take_word(read.snapshot.word, &plan.ask(take, now))?;
            // If one take is refused, the slow path answers all of them.
            taken.decision.passes().then_some((read, next, taken))
        };
        let decided: InlineVec<(OptimisticRead<'_>, u64, Taken)> =
            plan.takes().iter().map(decide).collect::<Option<_>>()?;
        let held = decided
            .iter()
            .map(|(read, ..)| self.table.lock_if_unchanged(read.bucket, &read.snapshot));
        let held: InlineVec<LockedBucket<'_>> = held.collect::<Option<_>>()?;
        if !decided.iter().all(|(read, ..)| self.limit_numbers.is_current(read.epoch)) {
            return None;
        }
        for (locked, (read, next, _)) in held.iter().zip(&decided) {
            locked.set_word(&read.snapshot, *next);
        }
        let due = held.iter().any(LockedBucket::is_sweep_due);
        drop(held);
        if due {
            self.sweep_next_bucket(now);
        }
        for (take, (read, ..)) in plan.takes().iter().zip(&decided) {
            if read.candidate == Candidate::Second {
                self.table.move_home(Tag::of(take.state));
            }
        }
        let done = PlanOutcome {
            passes: true,
            decisions: decided.iter().map(|(_, _, taken)| taken.decision).collect(),
            receipts: decided.iter().map(|(_, _, taken)| taken.receipt).collect(),
        };
        Some(Answer { at: now.steady, done, by: AnsweredBy::Store })
    }

    /// Reads a state without a lock.
    #[inline(always)] // as above
    fn read_optimistically(
        &self,
        take: &Take<'_>,
        number: LimitNumber,
        size: TableSize,
    ) -> Result<OptimisticRead<'_>, NotRead> {
        if (take.need, take.refused) != (Need::Required, RejectedCost::Free) {
            return Err(NotRead::NeedsSlowPath);
        }
        let (candidate, bucket, read) = self.table.read(Tag::of(take.state), size);
        let snapshot = match read {
            Read::Found(snapshot) => snapshot,
            Read::Missing => return Err(NotRead::NeedsSlowPath),
            Read::Busy => return Err(NotRead::Busy),
        };
        // An empty state does not say since when it is empty. That may be after the caller read the clock.
        let Entry { limit_number, in_blocks, word, .. } = snapshot.entry();
        let usual = limit_number == number.number && !in_blocks && word != 0;
        if !usual || !self.limit_numbers.is_current(number.epoch) {
            return Err(NotRead::NeedsSlowPath);
        }
        Ok(OptimisticRead { candidate, bucket, snapshot, epoch: number.epoch })
    }
}
