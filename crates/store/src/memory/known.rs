//! The short way: takes of states that are there, of one word each, written under the limits that ask.
//!
//! Nearly all takes are that. What they cost is above all waiting for memory, so states are asked for before the clock
//! is read; then they are read without a lock, decided, and locked only to be written.
//!
//! Somebody may write a state after the clock was read and before the state is. It then lies ahead by as much, which
//! reads as more use of it, never as less: what passes would have passed anyway. What is refused is decided again, by the
//! same state and a clock that was read after it.

use super::Memory;
use super::bucket::{Bucket, Locked, Read, Seen};
use super::shapes::Epoch;
use super::table::{Candidate, Few, Tag};
use crate::store::Answer;
use crate::sync::spin_loop;
use tidegate_core::{Ask, Decision, Done, Need, Now, Plan, Refused, Take, Taken};

/// So often a state is read again that somebody else changes, before it is locked first and read then.
const TRIES: u32 = 128;

/// A take that was decided by what was read, and not yet written.
struct Sight<'m> {
    tag: Tag,
    candidate: Candidate,
    bucket: &'m Bucket,
    seen: Seen,
    epoch: Epoch,
    /// What the state becomes.
    word: u64,
    taken: Taken,
}

/// Why there is nothing to decide by.
enum Unseen {
    /// Somebody else is at it.
    Busy,
    /// It is not there, is larger than a word, was written under another limit, or is asked for in an unusual way.
    Unusual,
}

impl Memory {
    /// What time it is. Meanwhile the states are on their way.
    #[inline]
    pub(super) fn now_while_fetching(&self, takes: &[Take<'_>]) -> Now {
        takes.iter().for_each(|take| self.table.prefetch_both(Tag::of(take.state)));
        self.clock.now()
    }

    /// A plan, if the short way leads there. It is decided as of `now`, or of `later` if there is one.
    #[inline]
    pub(super) fn take_shortly(
        &self,
        plan: &Plan<'_>,
        now: Now,
        later: impl Fn() -> Option<Now>,
    ) -> Option<Answer> {
        let (now, done) = if let [take] = plan.takes() {
            let (now, taken) = self.take_known(take, |now| plan.ask(take, now), now, later)?;
            let Taken { decision, receipt } = taken;
            let passes = decision.passes();
            (now, Done { passes, decisions: decision.into(), receipts: receipt.into() })
        } else {
            (now, self.take_known_together(plan, now)?)
        };
        Some(Answer { at: now.steady, done, remembered: false })
    }

    /// One take. A refusal leaves the state as it is, so there is nothing to write, and those who are refused do not get
    /// into each other's way. Otherwise its bucket is locked; and if the state still is what was read, what became of
    /// it is written. `None` when anything is unusual, and nothing was done.
    #[inline(always)] // or the answer is copied from place to place, which takes as long as the rest
    pub(super) fn take_known(
        &self,
        take: &Take<'_>,
        ask: impl Fn(Now) -> Ask,
        mut now: Now,
        later: impl Fn() -> Option<Now>,
    ) -> Option<(Now, Taken)> {
        for _ in 0..TRIES {
            let mut sight = match self.sight(take, &ask(now)) {
                Ok(sight) => sight,
                Err(Unseen::Unusual) => return None,
                Err(Unseen::Busy) => {
                    spin_loop();
                    continue;
                }
            };
            if !sight.taken.decision.passes()
                && let Some(later) = later()
            {
                now = later;
                (sight.word, sight.taken) =
                    take.limit.take_word(sight.seen.entry.word, &ask(now))?;
            }
            if sight.is_unchanged() {
                return Some((now, sight.taken));
            }
            let Some(locked) = sight.bucket.lock_as(&sight.seen) else {
                spin_loop();
                continue;
            };
            if !self.shapes.is_current(sight.epoch) {
                return None;
            }
            let due = sight.write(&locked);
            drop(locked);
            self.tidy(&sight, due, now);
            return Some((now, sight.taken));
        }
        None
    }

    /// Several takes of one plan, all of which pass. They are decided one after another, then locked all together if all
    /// of them still are what was read: so they were, at one instant. Nobody waits for a lock here, so their order does not
    /// matter. `None` when anything is unusual, or one is refused, and nothing was done.
    pub(super) fn take_known_together(&self, plan: &Plan<'_>, now: Now) -> Option<Done> {
        let mut sights: Few<Sight<'_>> = Few::new();
        for take in plan.takes() {
            let sight = self.sight(take, &plan.ask(take, now)).ok()?;
            // How the others stand then is for the long way to say.
            if !sight.taken.decision.passes() {
                return None;
            }
            sights.push(sight);
        }
        let mut held: Few<Locked<'_>> = Few::new();
        for sight in &sights {
            held.push(sight.bucket.lock_as(&sight.seen)?);
        }
        if !sights.iter().all(|sight| self.shapes.is_current(sight.epoch)) {
            return None;
        }
        let due =
            held.iter().zip(&sights).fold(false, |due, (locked, sight)| sight.write(locked) || due);
        drop(held);
        for (number, sight) in sights.iter().enumerate() {
            self.tidy(sight, due && number == 0, now);
        }
        Some(Done {
            passes: true,
            decisions: sights.iter().map(|sight| sight.taken.decision).collect(),
            receipts: sights.iter().map(|sight| sight.taken.receipt).collect(),
        })
    }

    /// Reads a state without a lock, and decides by it.
    #[inline(always)] // as above
    fn sight(&self, take: &Take<'_>, ask: &Ask) -> Result<Sight<'_>, Unseen> {
        if (take.need, take.refused) != (Need::Required, Refused::Free) {
            return Err(Unseen::Unusual);
        }
        let tag = Tag::of(take.state);
        let shape = self.shapes.number(take.limit).ok_or(Unseen::Unusual)?;
        let (candidate, bucket, read) = self.table.read(tag);
        let seen = match read {
            Read::Found(seen) => seen,
            Read::Missing => return Err(Unseen::Unusual),
            Read::Busy => return Err(Unseen::Busy),
        };
        let usual = seen.entry.shape == shape.number && !seen.entry.elsewhere;
        if !usual || !self.shapes.is_current(shape.epoch) {
            return Err(Unseen::Unusual);
        }
        let decided = take.limit.take_word(seen.entry.word, ask);
        let (word, taken) = decided.ok_or(Unseen::Unusual)?;
        Ok(Sight { tag, candidate, bucket, seen, epoch: shape.epoch, word, taken })
    }

    /// What is done now and then after a take, with nothing locked.
    #[inline]
    fn tidy(&self, sight: &Sight<'_>, due: bool, now: Now) {
        if due {
            self.look_at_next(now);
        }
        if sight.candidate == Candidate::Second {
            self.table.bring_home(sight.tag);
        }
    }

    /// Decides one take of which something is unusual.
    #[cold]
    pub(super) fn take_alone(&self, take: &Take<'_>, clock: impl Fn() -> Now) -> Taken {
        let done = self.take_any(&Plan::from(*take), clock).done;
        // A plan without an answer would be a mistake of ours, and no reason to let anything pass.
        done.only().unwrap_or(Taken { decision: Decision::NEVER, receipt: None })
    }
}

impl Sight<'_> {
    #[inline]
    fn is_unchanged(&self) -> bool {
        self.word == self.seen.entry.word
    }

    /// Writes what became of the state; answers whether another bucket should be looked at.
    #[inline]
    fn write(&self, locked: &Locked<'_>) -> bool {
        locked.set_word(&self.seen, self.word);
        locked.is_due()
    }
}
