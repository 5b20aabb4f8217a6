//! The short way: one take of a state that is there, of one word, written under the limit that asks.
//!
//! Nearly all takes are that. What they cost is above all waiting for memory, so the state is asked for before the clock
//! is read; then it is read without a lock, decided, and locked only to be written.

use super::Memory;
use super::bucket::Read;
use super::table::{Candidate, Tag};
use crate::store::Answer;
use crate::sync::spin_loop;
use tidegate_core::{Ask, Decision, Done, Need, Now, Plan, Refused, Take, Taken};

/// So often a state is read again that somebody else changes, before it is locked first and read then.
const TRIES: u32 = 128;

impl Memory {
    /// What time it is. Meanwhile the state is on its way.
    #[inline]
    pub(super) fn now_while_fetching(&self, take: &Take<'_>) -> Now {
        self.table.prefetch_both(Tag::of(take.state));
        self.clock.now()
    }

    /// The common case: one state, of one word, that is there and was written under the limit that asks.
    ///
    /// It is read without a lock and decided. A refusal leaves it as it is, so there is nothing to write, and those who
    /// are refused do not get into each other's way. Otherwise its bucket is locked; and if the state still is what was
    /// read, what became of it is written. `None` when anything is unusual, and nothing was done.
    ///
    /// Somebody may write the state after `now` and before it is read. Such a state lies ahead by as much, which reads as
    /// more use of it, never as less.
    #[inline(always)] // or the answer is copied from place to place, which takes as long as the rest
    pub(super) fn take_known(&self, take: &Take<'_>, ask: &Ask, now: Now) -> Option<Taken> {
        if (take.need, take.refused) != (Need::Required, Refused::Free) {
            return None;
        }
        let tag = Tag::of(take.state);
        let shape = self.shapes.number(take.limit)?;
        for _ in 0..TRIES {
            let (candidate, bucket, read) = self.table.read(tag);
            let seen = match read {
                Read::Found(seen) => seen,
                Read::Missing => return None,
                Read::Busy => {
                    spin_loop();
                    continue;
                }
            };
            let usual = seen.entry.shape == shape.number && !seen.entry.elsewhere;
            if !usual || !self.shapes.is_current(shape.epoch) {
                return None;
            }
            let (word, taken) = take.limit.take_word(seen.entry.word, ask)?;
            if word == seen.entry.word {
                return Some(taken);
            }
            let Some(locked) = bucket.lock_as(&seen) else {
                spin_loop();
                continue;
            };
            if !self.shapes.is_current(shape.epoch) {
                return None;
            }
            locked.set_word(&seen, word);
            let due = locked.is_due();
            drop(locked);
            if due {
                self.look_at_next(now);
            }
            if candidate == Candidate::Second {
                self.table.bring_home(tag);
            }
            return Some(taken);
        }
        None
    }

    /// Decides one take of which something is unusual.
    #[cold]
    pub(super) fn take_alone(&self, take: &Take<'_>, clock: impl Fn() -> Now) -> Taken {
        let done = self.take_any(&Plan::from(*take), clock).done;
        // A plan without an answer would be a mistake of ours, and no reason to let anything pass.
        done.only().unwrap_or(Taken { decision: Decision::NEVER, receipt: None })
    }
}

/// The answer to the only take of a plan.
#[inline]
pub(super) fn answer(now: Now, Taken { decision, receipt }: Taken) -> Answer {
    let passes = decision.passes();
    let done = Done { passes, decisions: decision.into(), receipts: receipt.into() };
    Answer { at: now.steady, done, remembered: false }
}
