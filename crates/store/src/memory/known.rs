//! The fast path: takes of states that are in the table, of one word each, written under the limits that ask.
//!
//! Nearly all takes are that. What they cost is above all waiting for memory, so states are fetched before the clock
//! is read; then they are read without a lock, decided, and locked only to be written.
//!
//! Another thread may write a state after the clock was read and before the state is. It then lies ahead by as much, which
//! reads as more use of it, never as less: what passes would have passed anyway. What is refused is decided again, by the
//! same state and a clock that was read after it. A thread that was refused is likely to be refused again: then the clock is
//! read after the state in the first place.
//!
//! The reading of a batch may be much older, when the batch was stalled. A state that lies too far ahead of a reading, that
//! is empty or that is missing is not decided here: the slow path reads the clock under the lock. See the head of
//! `memory.rs` for why that is exact.

use super::Memory;
use super::bucket::{Bucket, Locked, Read, Seen};
use super::shapes::{Epoch, Number};
use super::table::{Candidate, Tag};
use crate::store::Answer;
use crate::sync::spin_loop;
use std::cell::Cell;
use tidegate_core::{
    Decision, InlineVec, Need, Now, Plan, PlanOutcome, PreparedTake, RejectedCost, Take, Taken,
};

/// Optimistic retries on a state that other threads change, before falling back to the slow path.
const TRIES: u32 = 128;

thread_local! {
    /// Whether what this thread asked for last was refused.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// As of when it is decided.
pub(super) enum Reading<C> {
    /// As of this, which a batch read before; or not at all.
    Given(Now),
    /// As of this, which was read before the states were; what it refuses, as of the clock.
    Early(Now, C),
    /// As of the clock, when the states have been read.
    Unread(C),
}

impl<C: Fn() -> Now> Reading<C> {
    /// The time by which to decide about a state of this word, and what is ready for then.
    #[inline(always)] // or what is ready is copied from place to place
    fn now<'l>(
        &self,
        word: u64,
        ready: impl Fn(Now) -> Option<PreparedTake<'l>>,
    ) -> Option<(Now, PreparedTake<'l>)> {
        let now = match self {
            Self::Given(now) => *now,
            Self::Early(now, clock) => match ready(*now) {
                Some(ready) if ready.passes(word) => return Some((*now, ready)),
                Some(_) | None => clock(),
            },
            Self::Unread(clock) => clock(),
        };
        Some((now, ready(now)?))
    }

    /// The time by which to decide about several; what it refuses goes the long way.
    fn first(&self) -> Now {
        match self {
            Self::Given(now) | Self::Early(now, _) => *now,
            Self::Unread(clock) => clock(),
        }
    }
}

/// A state as it was read without a lock, and where.
struct Known<'m> {
    candidate: Candidate,
    bucket: &'m Bucket,
    seen: Seen,
    epoch: Epoch,
}

/// Why there is nothing to decide by.
enum Unseen {
    /// Somebody else is at it.
    Busy,
    /// It is not there, is larger than a word, was written under another limit, or is asked for in an unusual way.
    Unusual,
}

impl Memory {
    /// Asks for the states, and reads the clock while they are on their way, unless it is better read afterwards.
    #[inline]
    pub(super) fn fetch(&self, takes: &[Take<'_>]) -> Reading<impl Fn() -> Now> {
        takes.iter().for_each(|take| self.table.prefetch_both(Tag::of(take.state)));
        let clock = || self.clock.now();
        if REFUSED.get() { Reading::Unread(clock) } else { Reading::Early(clock(), clock) }
    }

    /// Remembers how it went, for the next time.
    #[inline]
    pub(super) fn remember(passes: bool) {
        REFUSED.set(!passes);
    }

    /// A plan, if the short way leads there.
    #[inline]
    pub(super) fn take_fast(
        &self,
        plan: &Plan<'_>,
        reading: &Reading<impl Fn() -> Now>,
    ) -> Option<Answer> {
        let (now, done) = if let [take] = plan.takes() {
            let shape = self.shapes.number(take.limit)?;
            let ready = |now| take.limit.prepare(&plan.ask(take, now));
            let (now, taken) = self.take_known(take, shape, ready, reading)?;
            let Taken { decision, receipt } = taken;
            let passes = decision.passes();
            (now, PlanOutcome { passes, decisions: decision.into(), receipts: receipt.into() })
        } else {
            let now = reading.first();
            (now, self.take_known_together(plan, now)?)
        };
        Some(Answer { at: now.steady, done, remembered: false })
    }

    /// One take. A refusal leaves the state as it is, so there is nothing to write, and those who are refused do not get
    /// into each other's way. Otherwise its bucket is locked; and if the state still is what was read, what became of
    /// it is written. `None` when anything is unusual, and nothing was done.
    #[inline(always)] // or the answer is copied from place to place, which takes as long as the rest
    pub(super) fn take_known<'l>(
        &self,
        take: &Take<'_>,
        shape: Number,
        ready: impl Fn(Now) -> Option<PreparedTake<'l>>,
        reading: &Reading<impl Fn() -> Now>,
    ) -> Option<(Now, Taken)> {
        for _ in 0..TRIES {
            let known = match self.known(take, shape) {
                Ok(known) => known,
                Err(Unseen::Unusual) => return None,
                Err(Unseen::Busy) => {
                    spin_loop();
                    continue;
                }
            };
            let word = known.seen.entry.word;
            let (now, ready) = reading.now(word, &ready)?;
            let (next, taken) = ready.take(word)?;
            if next == word {
                return Some((now, taken));
            }
            let Some(locked) = known.bucket.lock_as(&known.seen) else {
                spin_loop();
                continue;
            };
            if !self.shapes.is_current(known.epoch) {
                return None;
            }
            locked.set_word(&known.seen, next);
            let due = locked.is_due();
            drop(locked);
            if due {
                self.look_at_next(now);
            }
            self.bring_home(take, &known);
            return Some((now, taken));
        }
        None
    }

    /// Several takes of one plan, all of which pass. They are decided one after another, then locked all together if all
    /// of them still are what was read: so they were, at one instant. Nobody waits for a lock here, so their order does not
    /// matter. `None` when anything is unusual, or one is refused, and nothing was done.
    pub(super) fn take_known_together(&self, plan: &Plan<'_>, now: Now) -> Option<PlanOutcome> {
        let decide = |take: &Take<'_>| {
            let known = self.known(take, self.shapes.number(take.limit)?).ok()?;
            let (next, taken) =
                take.limit.take_word(known.seen.entry.word, &plan.ask(take, now))?;
            // If it is refused, how the others stand is for the long way to say.
            taken.decision.passes().then_some((known, next, taken))
        };
        let decided: InlineVec<(Known<'_>, u64, Taken)> =
            plan.takes().iter().map(decide).collect::<Option<_>>()?;
        let held = decided.iter().map(|(known, ..)| known.bucket.lock_as(&known.seen));
        let held: InlineVec<Locked<'_>> = held.collect::<Option<_>>()?;
        if !decided.iter().all(|(known, ..)| self.shapes.is_current(known.epoch)) {
            return None;
        }
        for (locked, (known, next, _)) in held.iter().zip(&decided) {
            locked.set_word(&known.seen, *next);
        }
        let due = held.iter().any(Locked::is_due);
        drop(held);
        if due {
            self.look_at_next(now);
        }
        for (take, (known, ..)) in plan.takes().iter().zip(&decided) {
            self.bring_home(take, known);
        }
        Some(PlanOutcome {
            passes: true,
            decisions: decided.iter().map(|(_, _, taken)| taken.decision).collect(),
            receipts: decided.iter().map(|(_, _, taken)| taken.receipt).collect(),
        })
    }

    /// Reads a state without a lock.
    #[inline(always)] // as above
    fn known(&self, take: &Take<'_>, shape: Number) -> Result<Known<'_>, Unseen> {
        if (take.need, take.refused) != (Need::Required, RejectedCost::Free) {
            return Err(Unseen::Unusual);
        }
        let (candidate, bucket, read) = self.table.read(Tag::of(take.state));
        let seen = match read {
            Read::Found(seen) => seen,
            Read::Missing => return Err(Unseen::Unusual),
            Read::Busy => return Err(Unseen::Busy),
        };
        // An empty word does not say when it was emptied, which may be after the caller read the clock.
        let usual =
            seen.entry.shape == shape.number && !seen.entry.elsewhere && seen.entry.word != 0;
        if !usual || !self.shapes.is_current(shape.epoch) {
            return Err(Unseen::Unusual);
        }
        Ok(Known { candidate, bucket, seen, epoch: shape.epoch })
    }

    /// Brings a state to where it is looked for first, if it was not there. The caller holds no bucket.
    #[inline]
    fn bring_home(&self, take: &Take<'_>, known: &Known<'_>) {
        if known.candidate == Candidate::Second {
            self.table.bring_home(Tag::of(take.state));
        }
    }

    /// Decides one take of which something is unusual; and as of when. Boxed, so that the usual answer need not lie in
    /// memory only because this one would.
    #[cold]
    pub(super) fn take_alone(&self, take: &Take<'_>) -> Box<(Now, Taken)> {
        let (now, answer) = self.take_any(&Plan::from(*take));
        // A plan without an answer would be a mistake of ours, and no reason to let anything pass.
        let nothing = Taken { decision: Decision::NEVER, receipt: None };
        Box::new((now, answer.done.only().unwrap_or(nothing)))
    }
}
