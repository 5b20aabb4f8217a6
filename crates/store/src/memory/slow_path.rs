//! The slow path, for every kind of plan: lock all its states, read the clock, decide, and write the states back.
//!
//! ```text
//!   lock_states      lock the buckets, find the states, read the sketch, then read the clock
//!   current_states   copy the states
//!   …                the caller changes the copies: takes, charges or gives back
//!   write_back       write the copies, unlock
//! ```

use super::Memory;
use super::bucket::Entry;
use super::expiry::SWEPT_FOR_NUMBERS;
use super::limit_numbers::LimitNumber;
use super::lookup::{FoundState, StateRequest};
use super::table::{Location, LockedBuckets};
use super::tag::Tag;
use crate::plan_vec::PlanVec;
use crate::store::{Answer, AnsweredBy};
use crate::sync::yield_point;
use std::sync::atomic::Ordering;
use tidegate_core::{
    Decision, Limit, NamedBy, Now, Plan, State, Take, Taken, Timestamp, Usage, WhenFull, Written,
};

/// Buckets that are added together when a state has no room.
const GROWN_TOGETHER: usize = 8;
/// A bucket is swept for expired states with one in this many new states, chosen by tag. Buckets have seven slots, so they
/// are swept faster than they fill.
const SWEEP_EVERY: u64 = 4;

/// States that are locked, and the instant at which they are decided.
pub(super) struct LockedStates<'m> {
    held: LockedBuckets<'m>,
    pub(super) now: Now,
    rows: PlanVec<Row>,
}

/// What is known of one requested state while it is locked.
struct Row {
    tag: Tag,
    /// What is remembered of it, if it was not found.
    recalled: Option<Usage>,
    /// The number of the request's limit.
    number: Option<LimitNumber>,
    /// `number`, while it is pinned: until a state is written under it.
    pin: Option<u16>,
    /// A slot for the state, if it was not found and no other state must be demoted for it.
    reserved: Option<Location>,
    /// The new state is not written: there is no room, and the rule says that nothing is demoted for it.
    left_out: bool,
}

impl Row {
    const fn new(tag: Tag, number: Option<LimitNumber>) -> Self {
        Self { tag, number, recalled: None, pin: None, reserved: None, left_out: false }
    }

    /// The number of the request's limit, unless the state's slot mentions it already.
    fn number_to_pin(&self, held: &LockedBuckets<'_>) -> Option<u16> {
        let LimitNumber { number, .. } = self.number?;
        let entry = held.find(self.tag).and_then(|at| held.get(at));
        entry.is_none_or(|entry| entry.limit_number != number).then_some(number)
    }
}

impl Memory {
    /// Decides a plan by a clock that is read while its states are locked. So no state is newer than that reading, unless the
    /// clock was set back. Also returns the reading.
    pub(super) fn take_slowly(&self, plan: &Plan<'_>) -> (Now, Answer) {
        let requests: PlanVec<StateRequest<'_>> =
            plan.takes().iter().map(StateRequest::of).collect();
        let (mut locked, found) = self.lock_states(&requests);
        let mut written = self.current_states(&mut locked, &requests, &found);
        let now = locked.now;
        let done = plan.take(now, &mut written);
        self.write_back(locked, &requests, &found, &written);
        (now, Answer { at: now.steady, done, by: AnsweredBy::Store })
    }

    /// Decides one take by a clock that is read while its state is locked. Also returns the reading. The result is boxed, so
    /// that the fast path can keep its own answer in registers.
    #[cold]
    pub(super) fn take_one_slowly(&self, take: &Take<'_>) -> Box<(Now, Taken)> {
        let (now, answer) = self.take_slowly(&Plan::from(*take));
        // An answer without a decision would be a bug; it must not let anything pass.
        let refused = Taken { decision: Decision::NEVER, receipt: None };
        Box::new((now, answer.done.only().unwrap_or(refused)))
    }

    /// Locks states and finds them, as of one instant.
    pub(super) fn lock_states(
        &self,
        requests: &[StateRequest<'_>],
    ) -> (LockedStates<'_>, PlanVec<Option<FoundState>>) {
        loop {
            let (mut held, mut rows) = self.lock(requests);
            let found: PlanVec<Option<FoundState>> =
                rows.iter().map(|row| self.find(&held, row.tag, row.number)).collect();
            for ((row, request), found) in rows.iter_mut().zip(requests).zip(&found) {
                row.recalled = self.recall(request, found.as_ref());
            }
            // After the sketch was read: what another thread cleared there had ended by this reading, too.
            let now = self.clock.now();
            if self.reserve(&mut held, now, requests, &mut rows, &found) {
                return (LockedStates { held, now, rows }, found);
            }
            drop(held);
            self.release_pins(&rows);
            self.table.grow_by(GROWN_TOGETHER, &self.budget);
        }
    }

    /// Reserves a slot for each state that was not found.
    ///
    /// While the table can grow, all of them get a slot, so that no state is demoted for want of slots. If there is none for
    /// one of them, the result is `false` and nothing is reserved: the caller lets the table grow. In a table that cannot grow,
    /// only requests get a slot that must not demote other states, and only if there is one.
    ///
    /// A slot is taken immediately, by an empty state: several states of a plan may need the same one.
    fn reserve(
        &self,
        held: &mut LockedBuckets<'_>,
        now: Now,
        requests: &[StateRequest<'_>],
        rows: &mut [Row],
        found: &[Option<FoundState>],
    ) -> bool {
        let can_grow = !self.table.cannot_grow(&self.budget);
        let tags: PlanVec<Tag> = rows.iter().map(|row| row.tag).collect();
        let mut new = rows.iter_mut().zip(requests).zip(found);
        let enough = new.all(|((row, request), found)| {
            let wanted = found.is_none() && (can_grow || request.when_full != WhenFull::Shared);
            let has_room = wanted && self.find_or_free_slot(held, row.tag, now, &tags);
            row.reserved = if has_room { held.reserve(row.tag) } else { None };
            has_room || !(wanted && can_grow)
        });
        if !enough {
            rows.iter().filter_map(|row| row.reserved).for_each(|at| held.clear(at));
        }
        enough
    }

    /// Copies of the states, each with the limit under which it was written.
    pub(super) fn current_states<'s>(
        &self,
        locked: &mut LockedStates<'_>,
        requests: &[StateRequest<'s>],
        found: &'s [Option<FoundState>],
    ) -> PlanVec<Written<'s>> {
        let now = locked.now;
        let rows = requests.iter().zip(found).zip(&mut locked.rows);
        rows.map(|((request, found), row)| self.current_state(request, found.as_ref(), row, now))
            .collect()
    }

    /// A copy of one state. Where there is no room for a new state, `when_full` decides what it is.
    fn current_state<'s>(
        &self,
        request: &StateRequest<'s>,
        found: Option<&'s FoundState>,
        row: &mut Row,
        now: Now,
    ) -> Written<'s> {
        let mut written = self.written(found, row.recalled, request, now);
        let no_room = found.is_none()
            && request.when_full != WhenFull::Shared
            && !(row.reserved.is_some() && self.has_blocks(request.limit, now));
        if no_room && request.when_full == WhenFull::Deny {
            let all = Usage { units: u64::MAX, until: Timestamp::END };
            written = request.limit.with_in_use(now.of(request.limit), all);
        }
        let nothing_known = written.state == State::Empty;
        row.left_out = no_room && (request.when_full == WhenFull::Deny || nothing_known);
        written
    }

    /// Writes states back as the caller changed them, and unlocks them.
    pub(super) fn write_back(
        &self,
        locked: LockedStates<'_>,
        requests: &[StateRequest<'_>],
        found: &[Option<FoundState>],
        written: &[Written<'_>],
    ) {
        let LockedStates { mut held, now, mut rows } = locked;
        let mut sweep_is_due = held.is_sweep_due();
        // States that are in the table come first: making room for the others may move them.
        for ((request, found), (written, row)) in
            requests.iter().zip(found).zip(written.iter().zip(&mut rows))
        {
            if let Some(found) = found {
                self.write_found(&mut held, found, request.limit, written, row, now);
            }
        }
        let added = self.write_new(&mut held, found, written, &mut rows, now);
        sweep_is_due |= added.iter().any(|tag| tag.0.is_multiple_of(SWEEP_EVERY));
        drop(held);
        self.release_pins(&rows);
        added.iter().filter(|_| self.table.is_dense()).for_each(|_| self.table.grow(&self.budget));
        if sweep_is_due {
            self.sweep_next_bucket(now);
        }
    }

    /// Writes new states; returns their tags.
    fn write_new(
        &self,
        held: &mut LockedBuckets<'_>,
        found: &[Option<FoundState>],
        written: &[Written<'_>],
        rows: &mut [Row],
        now: Now,
    ) -> PlanVec<Tag> {
        let (mut tags, mut without_slot) = (PlanVec::new(), PlanVec::<(_, &mut Row)>::new());
        // States that have a slot come first, before anything is demoted for the others.
        for (found, (written, row)) in found.iter().zip(written.iter().zip(rows)) {
            let is_new = found.is_none() && !row.left_out && written.state != State::Empty;
            self.write_reserved(held, is_new, written, row, now);
            if is_new {
                tags.push(row.tag);
                if row.reserved.is_none() || row.number.is_none() {
                    without_slot.push((written, row));
                }
            }
        }
        for (written, row) in without_slot {
            self.write_without_slot(held, written, row, now);
        }
        tags
    }

    /// Writes a state that is in the table.
    fn write_found(
        &self,
        held: &mut LockedBuckets<'_>,
        found: &FoundState,
        limit: &Limit,
        written: &Written<'_>,
        row: &mut Row,
        now: Now,
    ) {
        let FoundState { at, entry, .. } = found;
        let under_new_limit = std::ptr::eq(written.shape, limit);
        match (under_new_limit, row.number) {
            (true, Some(LimitNumber { number, .. })) => {
                if self.overwrite(held, *at, *entry, number, written, now) {
                    row.pin = None;
                }
            }
            (false, _) => {
                self.overwrite(held, *at, *entry, entry.limit_number, written, now);
            }
            // The limit has no number, so the table cannot say under which limit the state was written.
            (true, None) => {
                self.demote_to_sketch(row.tag, written, now);
                self.note_gone(row.tag);
                self.remove(held, *at, *entry);
            }
        }
    }

    /// Writes a new state into its reserved slot. Frees the slot if the state is not new, or cannot be written.
    fn write_reserved(
        &self,
        held: &mut LockedBuckets<'_>,
        is_new: bool,
        written: &Written<'_>,
        row: &mut Row,
        now: Now,
    ) {
        match (is_new, row.reserved, row.number) {
            (true, Some(at), Some(LimitNumber { number, .. })) => {
                if self.fill(held, at, row.tag, number, written, now) {
                    row.pin = None;
                }
            }
            (false, Some(at), _) | (true, Some(at), None) => held.clear(at),
            (_, None, _) => {}
        }
    }

    /// Writes a new state for which no slot is reserved. Another state may be demoted for it, or the new state is.
    fn write_without_slot(
        &self,
        held: &mut LockedBuckets<'_>,
        written: &Written<'_>,
        row: &mut Row,
        now: Now,
    ) {
        match row.number {
            Some(LimitNumber { number, .. }) => {
                if self.insert(held, row.tag, number, written, now) {
                    row.pin = None;
                }
            }
            None => self.demote(held, row.tag, written, now),
        }
    }

    /// Locks the buckets of states, and looks up the numbers of their limits in one epoch. States of a limit that gets no number
    /// are only remembered by the sketch and the Bloom filter.
    fn lock(&self, requests: &[StateRequest<'_>]) -> (LockedBuckets<'_>, PlanVec<Row>) {
        loop {
            let new_row = |request: &StateRequest<'_>| {
                Row::new(Tag::of(request.id), self.number_of(request.limit, request.named_by))
            };
            let mut rows: PlanVec<Row> = requests.iter().map(new_row).collect();
            let tags: PlanVec<Tag> = rows.iter().map(|row| row.tag).collect();
            yield_point();
            let held = self.table.lock_all(&tags);
            for row in &mut rows {
                row.pin = row.number_to_pin(&held);
                row.pin.into_iter().for_each(|number| self.limit_numbers.pin(number));
            }
            yield_point();
            // After the pins: see the head of `limit_numbers.rs`.
            let mut numbers = rows.iter().filter_map(|row| row.number);
            if numbers.all(|number| self.limit_numbers.is_current(number.epoch)) {
                return (held, rows);
            }
            drop(held);
            self.release_pins(&rows);
        }
    }

    /// The number of a limit. When none is left, some buckets are swept: the numbers of expired states may be idle then.
    pub(super) fn number_of(&self, limit: &Limit, by: NamedBy) -> Option<LimitNumber> {
        self.limit_numbers.intern(limit, by).or_else(|| {
            self.sweep(SWEPT_FOR_NUMBERS, self.clock.now());
            self.limit_numbers.intern(limit, by)
        })
    }

    fn release_pins(&self, rows: &[Row]) {
        rows.iter().filter_map(|row| row.pin).for_each(|number| self.limit_numbers.release(number));
    }

    /// Resets a state; returns whether the table held it and it was not empty. Once any state was demoted, an empty state stays in
    /// the table: otherwise the key would begin with what the sketch or the Bloom filter remember. If neither of its buckets has
    /// a free slot for it, a key that was demoted is not reset.
    pub(super) fn reset_one(&self, tag: Tag) -> bool {
        let mut held = self.table.lock_all(&[tag]);
        let found = held.find(tag).and_then(|at| Some((at, held.get(at)?)));
        let keep_empty = self.demotions.load(Ordering::Relaxed) > 0;
        let empty = Entry { tag: tag.0, limit_number: 0, in_blocks: false, word: 0 };
        match found {
            Some((at, entry)) => {
                self.note_gone(tag);
                if keep_empty {
                    self.free_blocks(&entry);
                    held.put(at, Entry { limit_number: entry.limit_number, ..empty });
                } else {
                    self.remove(&mut held, at, entry);
                }
                entry.word != 0
            }
            None => {
                if let Some(at) = held.free(tag).filter(|_| keep_empty) {
                    self.note_gone(tag);
                    self.limit_numbers.pin(empty.limit_number);
                    self.table.added();
                    held.put(at, empty);
                }
                false
            }
        }
    }
}
