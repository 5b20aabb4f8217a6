//! The long way, open to every plan: its states are locked together, read at one instant, and kept as they are then.

use super::Memory;
use super::bucket::Entry;
use super::marks;
use super::room::LOOKED_AT_FOR_NUMBERS;
use super::shapes::Number;
use super::sketch;
use super::table::{At, Four, Held, Tag};
use crate::store::Answer;
use crate::sync::yield_point;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_core::{
    Limit, NamedBy, Now, Plan, State, StateId, Take, Timestamp, Usage, WhenFull, Written,
};

/// Buckets that are added when a state has no room.
const GROWN_AT_ONCE: usize = 8;
/// With one in so many states that are added, by its tag, a bucket is looked at for what has expired. Buckets have seven
/// slots, so that is faster than they are filled.
const LOOK_EVERY: u64 = 4;
/// How many strangers are asked what they would begin with.
const STRANGERS: u64 = 1_024;
/// Spreads their tags.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A state that somebody asks for.
pub(super) struct Asked<'l> {
    pub(super) id: StateId,
    pub(super) limit: &'l Limit,
    pub(super) when_full: WhenFull,
    pub(super) named_by: NamedBy,
}

/// Where a state was found, and under which limit it was written if not under the one that asks.
pub(super) struct Found {
    pub(super) at: At,
    pub(super) entry: Entry,
    other: Option<Arc<Limit>>,
}

/// Buckets that are locked, and the numbers of limits, of which those are pinned that the buckets do not mention.
struct Numbered<'m> {
    numbers: Four<Option<Number>>,
    pins: Four<Option<u16>>,
    held: Held<'m>,
}

/// States that are locked, and the instant at which they are looked at.
pub(super) struct Brought<'m> {
    held: Held<'m>,
    pub(super) now: Now,
    tags: Four<Tag>,
    /// What is remembered of those that were not found.
    recalled: Four<Option<Usage>>,
    /// Of the limits that ask.
    numbers: Four<Option<Number>>,
    /// Those numbers that are pinned, because no state was found under them; until a state is written under them.
    pins: Four<Option<u16>>,
    /// Slots for those that were not found, where that takes no demotion.
    reserved: Four<Option<At>>,
    /// Whether what becomes of a new state is not kept: there is no room, and nothing is demoted for it.
    left_out: Four<bool>,
}

impl Memory {
    /// Decides a plan as of when the clock is read, which is while its states are locked: no state lies in the future of
    /// that reading, unless the clock was put back. Answers the reading, too.
    pub(super) fn take_any(&self, plan: &Plan<'_>) -> (Now, Answer) {
        let asked: Four<Asked<'_>> = plan.takes().iter().map(Asked::of).collect();
        let (mut brought, found) = self.bring(&asked);
        let mut written = self.states(&mut brought, &asked, &found);
        let now = brought.now;
        let done = plan.take(now, &mut written);
        self.keep(brought, &asked, &found, &written);
        (now, Answer { at: now.steady, done, remembered: false })
    }

    /// Finds states, which stay locked, at one instant.
    pub(super) fn bring(&self, asked: &[Asked<'_>]) -> (Brought<'_>, Four<Option<Found>>) {
        let tags: Four<Tag> = asked.iter().map(|asked| Tag::of(asked.id)).collect();
        loop {
            let Numbered { numbers, pins, mut held } = self.lock(asked, &tags);
            let found: Four<Option<Found>> = (tags.iter().zip(&numbers))
                .map(|(tag, number)| self.find(&held, *tag, *number))
                .collect();
            let recalled = (asked.iter().zip(&found))
                .map(|(asked, found)| self.recall(asked, found.as_ref()))
                .collect();
            // After the sketch was read: what another thread cleared there had ended by this reading, too.
            let now = self.clock.now();
            if let Some(reserved) = self.reserve(&mut held, now, asked, &tags, &found) {
                let left_out = Four::new();
                let brought =
                    Brought { held, now, tags, recalled, numbers, pins, reserved, left_out };
                return (brought, found);
            }
            drop(held);
            self.release_all(pins);
            self.table.grow_on(GROWN_AT_ONCE, &self.budget);
        }
    }

    /// A slot for each state that was not found. While the table can grow there must be one for all of them, so that no
    /// state is demoted for want of slots; `None`, and nothing is reserved, until there is. In a table that cannot grow only
    /// those get one that nothing may be demoted for, if there is room.
    ///
    /// A slot is taken at once, by an empty state: several states of a plan may be after the same one.
    fn reserve(
        &self,
        held: &mut Held<'_>,
        now: Now,
        asked: &[Asked<'_>],
        tags: &[Tag],
        found: &[Option<Found>],
    ) -> Option<Four<Option<At>>> {
        let can_grow = !self.table.is_full_grown(&self.budget);
        let mut reserved: Four<Option<At>> = Four::new();
        for ((asked, tag), found) in asked.iter().zip(tags).zip(found) {
            let wanted = found.is_none() && (can_grow || asked.when_full != WhenFull::Shared);
            let has_room = wanted && self.has_room(held, *tag, now, tags);
            if wanted && can_grow && !has_room {
                reserved.iter().flatten().for_each(|at| held.clear(*at));
                return None;
            }
            reserved.push(if has_room { held.reserve(*tag) } else { None });
        }
        Some(reserved)
    }

    /// The states as they stand, each under the limit it was written under.
    pub(super) fn states<'s>(
        &self,
        brought: &mut Brought<'_>,
        asked: &[Asked<'s>],
        found: &'s [Option<Found>],
    ) -> Four<Written<'s>> {
        let Brought { now, recalled, reserved, left_out, .. } = brought;
        let state = |((asked, found), (recalled, reserved)): (_, (&Option<Usage>, &Option<At>))| {
            let (asked, found): (&Asked<'s>, &'s Option<Found>) = (asked, found);
            let mut written = self.written(found.as_ref(), *recalled, asked, *now);
            // Where there is no room and nothing is demoted for it, that decides.
            let no_room = found.is_none()
                && asked.when_full != WhenFull::Shared
                && !(reserved.is_some() && self.has_blocks(asked.limit, *now));
            if no_room && asked.when_full == WhenFull::Deny {
                let all = Usage { units: u64::MAX, until: Timestamp::END };
                written = asked.limit.with_in_use(now.of(asked.limit), all);
            }
            let nothing_known = written.state == State::Empty;
            left_out.push(no_room && (asked.when_full == WhenFull::Deny || nothing_known));
            written
        };
        asked.iter().zip(found).zip(recalled.iter().zip(&*reserved)).map(state).collect()
    }

    /// Keeps states as somebody's work left them, and unlocks them.
    pub(super) fn keep(
        &self,
        brought: Brought<'_>,
        asked: &[Asked<'_>],
        found: &[Option<Found>],
        written: &[Written<'_>],
    ) {
        let Brought { mut held, now, tags, numbers, mut pins, reserved, left_out, .. } = brought;
        let (mut added, mut due) = (0usize, held.is_due());
        // First those that are there: making room for the others may move them.
        for (((asked, tag), (found, number)), (written, pin)) in (asked.iter().zip(&tags))
            .zip(found.iter().zip(&numbers))
            .zip(written.iter().zip(&mut pins))
        {
            let Some(found) = found else { continue };
            let rewritten = std::ptr::eq(written.shape, asked.limit);
            match (rewritten, number) {
                (true, Some(Number { number, .. })) => {
                    if self.replace(&mut held, *tag, found, *number, written, now) {
                        *pin = None;
                    }
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
        // Then those that have a slot, before anything is demoted for the others.
        let mut others: Four<(Tag, Option<Number>, &Written<'_>, &mut Option<u16>)> = Four::new();
        for (((tag, number), (found, left_out)), ((reserved, written), pin)) in tags
            .iter()
            .zip(&numbers)
            .zip(found.iter().zip(left_out))
            .zip(reserved.iter().zip(written).zip(&mut pins))
        {
            let kept = found.is_none() && !left_out && written.state != State::Empty;
            match (kept, reserved, number) {
                (true, Some(at), Some(Number { number, .. })) => {
                    if self.fill(&mut held, *at, *tag, *number, written, now) {
                        *pin = None;
                    }
                }
                (false, Some(at), _) | (true, Some(at), None) => held.clear(*at),
                (_, None, _) => {}
            }
            if kept {
                added = added.saturating_add(1);
                due |= tag.0.is_multiple_of(LOOK_EVERY);
                if reserved.is_none() || number.is_none() {
                    others.push((*tag, *number, written, pin));
                }
            }
        }
        for (tag, number, written, pin) in others {
            match number {
                Some(Number { number, .. }) => {
                    if self.insert(&mut held, tag, number, written, now) {
                        *pin = None;
                    }
                }
                None => self.demote_or_mark(&mut held, tag, written, now),
            }
        }
        drop(held);
        self.release_all(pins);
        (0..added).filter(|_| self.table.is_dense()).for_each(|_| self.table.grow(&self.budget));
        if due {
            self.look_at_next(now);
        }
    }

    /// Locks the buckets of states, and looks up the numbers of their limits in one epoch. A limit for which there is
    /// no number has none: its states are only ever remembered by the sketch and by marks.
    fn lock(&self, asked: &[Asked<'_>], tags: &[Tag]) -> Numbered<'_> {
        loop {
            let numbers: Four<Option<Number>> =
                asked.iter().map(|asked| self.number_of(asked.limit, asked.named_by)).collect();
            yield_point();
            let held = self.table.lock_all(tags);
            let unused = |(tag, number): (&Tag, &Option<Number>)| {
                let Number { number, .. } = (*number)?;
                let found = held.find(*tag).and_then(|at| held.get(at));
                found.is_none_or(|entry| entry.shape != number).then_some(number)
            };
            let pins: Four<Option<u16>> = tags.iter().zip(&numbers).map(unused).collect();
            pins.iter().flatten().for_each(|number| self.shapes.pin(*number));
            yield_point();
            // After they are pinned: see the head of `shapes.rs`.
            if numbers.iter().flatten().all(|number| self.shapes.is_current(number.epoch)) {
                return Numbered { numbers, pins, held };
            }
            drop(held);
            self.release_all(pins);
        }
    }

    /// The number of a limit. When none is left, some buckets are looked at for states that have expired: theirs may be
    /// idle then.
    pub(super) fn number_of(&self, limit: &Limit, by: NamedBy) -> Option<Number> {
        self.shapes.intern(limit, by).or_else(|| {
            self.look_for_expired(LOOKED_AT_FOR_NUMBERS, self.clock.now());
            self.shapes.intern(limit, by)
        })
    }

    fn release_all(&self, pins: Four<Option<u16>>) {
        pins.into_iter().flatten().for_each(|number| self.shapes.release(number));
    }

    pub(super) fn find(&self, held: &Held<'_>, tag: Tag, number: Option<Number>) -> Option<Found> {
        let at = held.find(tag)?;
        let entry = held.get(at)?;
        let same = number.is_some_and(|number| number.number == entry.shape);
        let other = if same { None } else { self.shapes.known().limit(entry.shape).cloned() };
        Some(Found { at, entry, other })
    }

    /// A state that was found, or one made of what is remembered.
    pub(super) fn written<'s>(
        &self,
        found: Option<&'s Found>,
        recalled: Option<Usage>,
        asked: &Asked<'s>,
        now: Now,
    ) -> Written<'s> {
        let Some(Found { entry, other, .. }) = found else {
            return recalled.map_or(Written::empty(asked.limit), |in_use| {
                asked.limit.with_in_use(now.of(asked.limit), in_use)
            });
        };
        Written { shape: other.as_deref().unwrap_or(asked.limit), state: self.state(entry) }
    }

    pub(super) fn state(&self, entry: &Entry) -> State {
        match (entry.elsewhere, entry.word) {
            (true, word) => State::read(&self.blocks.read(word)),
            (false, 0) => State::Empty,
            (false, word) => State::Word(word),
        }
    }

    /// What is remembered of a state that was not found. To be asked before the clock is read.
    pub(super) fn recall(&self, asked: &Asked<'_>, found: Option<&Found>) -> Option<Usage> {
        match found {
            Some(_) => None,
            None => self.remembered(Tag::of(asked.id), asked.limit),
        }
    }

    /// What the sketch and marks remember of a state. Without the lock of its home, marks are only a hint.
    pub(super) fn remembered(&self, tag: Tag, limit: &Limit) -> Option<Usage> {
        if self.demotions.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let marked = marks::find(self.table.home(tag), tag, limit);
        marked.into_iter().chain(self.sketch.get(tag, limit)).reduce(sketch::most)
    }

    /// What some strangers would begin with.
    pub(super) fn overcount_thousandths(&self) -> u64 {
        if self.demotions.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let now = self.clock.now();
        // Any tags will do: nobody chose them.
        let tags = (1..=STRANGERS).map(|n| Tag::of(StateId(u128::from(n.wrapping_mul(SPREAD)))));
        let begins_with = |tag| {
            let marked = marks::find_any(self.table.home(tag), tag, now).min(1 << 32);
            self.sketch.expected(tag, now.steady).max(marked.saturating_mul(1_000))
        };
        tags.map(begins_with).fold(0, u64::saturating_add) / STRANGERS
    }

    /// Forgets a state; where the sketch or marks may know of it too, an empty one stands for it.
    pub(super) fn reset_one(&self, tag: Tag) -> bool {
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
                    self.shapes.release(entry.shape);
                    self.table.removed();
                    held.clear(at);
                }
                entry.word != 0
            }
            None => {
                if let Some(at) = held.free(tag).filter(|_| shielded) {
                    self.shapes.pin(empty.shape);
                    self.table.added();
                    held.put(at, empty);
                }
                false
            }
        }
    }
}

impl<'l> Asked<'l> {
    pub(super) const fn of(take: &Take<'l>) -> Self {
        Self {
            id: take.state,
            limit: take.limit,
            when_full: take.when_full,
            named_by: take.named_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::Class;
    use super::*;
    use crate::Clock;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;
    use tidegate_core::{Algorithm, Cost, Span};

    /// A key was demoted when it had used its limit. A thread that came for it had read the clock just before the window
    /// ended. Another thread, just after that, cleared the lines of the sketch, which had ended for it. The first found
    /// nothing, and let the key pass in a window that was full.
    #[test]
    fn lines_that_others_clear_after_the_clock_was_read_let_nobody_pass() {
        const SECOND: u64 = 1_000_000_000;
        let at = Timestamp::from_nanos;
        let limit = Limit::new(3, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
        let (shared, readings): (Arc<OnceLock<Memory>>, _) = (Arc::default(), AtomicU64::new(0));
        let (others, theirs) = (Arc::clone(&shared), Class::of(&limit));
        let clock = Clock::borrowed(move || {
            // The second reading is the one under the lock: the fast path has found no state.
            if readings.fetch_add(1, Ordering::Relaxed) == 1
                && let Some(store) = others.get()
            {
                let next = Usage { units: 1, until: at(2 * SECOND) };
                (100..10_000)
                    .for_each(|tag| store.sketch.add(Tag(tag), theirs, next, Now::at(at(SECOND))));
            }
            Now::at(at(SECOND - 1))
        });
        let store = shared.get_or_init(|| Memory::with_budget(clock, 8 << 10));
        let full = Usage { units: 3, until: at(SECOND) };
        store.demotions.fetch_add(1, Ordering::Relaxed);
        store.sketch.add(Tag(7), Class::of(&limit), full, Now::at(at(SECOND - 2)));
        let take = Take::new(StateId(7), &limit, Cost::ONE);
        assert!(!store.take_one_now(&take).decision.passes());
    }
}
