//! Finding a state: in the locked buckets, or what the sketch and the Bloom filter remember of a demoted one.

use super::Memory;
use super::bloom;
use super::bucket::Entry;
use super::limit_numbers::LimitNumber;
use super::sketch;
use super::table::{Location, LockedBuckets};
use super::tag::Tag;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_core::{Limit, NamedBy, Now, State, StateId, Take, Usage, WhenFull, Written};

/// How many made-up keys are looked up to estimate what a new key would begin with.
const SAMPLE: u64 = 1_024;
/// Spreads their tags.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A state that a call needs.
pub(super) struct StateRequest<'l> {
    pub(super) id: StateId,
    pub(super) limit: &'l Limit,
    pub(super) when_full: WhenFull,
    pub(super) named_by: NamedBy,
}

/// A state in the table.
pub(super) struct FoundState {
    pub(super) at: Location,
    pub(super) entry: Entry,
    /// The limit under which it was written, if that is not the limit of the request.
    written_under: Option<Arc<Limit>>,
}

impl<'l> StateRequest<'l> {
    pub(super) const fn of(take: &Take<'l>) -> Self {
        Self {
            id: take.state,
            limit: take.limit,
            when_full: take.when_full,
            named_by: take.named_by,
        }
    }
}

impl Memory {
    /// Finds a state in the locked buckets. `number` is that of the request's limit.
    pub(super) fn find(
        &self,
        held: &LockedBuckets<'_>,
        tag: Tag,
        number: Option<LimitNumber>,
    ) -> Option<FoundState> {
        let at = held.find(tag)?;
        let entry = held.get(at)?;
        let same = number.is_some_and(|number| number.number == entry.limit_number);
        let written_under = if same {
            None
        } else {
            self.limit_numbers.limits().limit(entry.limit_number).cloned()
        };
        Some(FoundState { at, entry, written_under })
    }

    /// The state that was found, or one made of what is remembered.
    pub(super) fn written<'s>(
        &self,
        found: Option<&'s FoundState>,
        recalled: Option<Usage>,
        request: &StateRequest<'s>,
        now: Now,
    ) -> Written<'s> {
        let Some(FoundState { entry, written_under, .. }) = found else {
            return recalled.map_or(Written::empty(request.limit), |in_use| {
                request.limit.with_in_use(now.of(request.limit), in_use)
            });
        };
        let shape = written_under.as_deref().unwrap_or(request.limit);
        Written { shape, state: self.state(entry) }
    }

    /// The state of an entry.
    pub(super) fn state(&self, entry: &Entry) -> State {
        match (entry.in_blocks, entry.word) {
            (true, word) => State::read(&self.blocks.read(word)),
            (false, 0) => State::Empty,
            (false, word) => State::Word(word),
        }
    }

    /// What is remembered of a state that was not found. To be called before the clock is read, see [`sketch`].
    pub(super) fn recall(
        &self,
        request: &StateRequest<'_>,
        found: Option<&FoundState>,
    ) -> Option<Usage> {
        match found {
            Some(_) => None,
            None => self.remembered(Tag::of(request.id), request.limit),
        }
    }

    /// What the sketch and the Bloom filter remember of a state. Without the lock of the state's home, the filter is only a
    /// hint.
    pub(super) fn remembered(&self, tag: Tag, limit: &Limit) -> Option<Usage> {
        if self.demotions.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let marked = bloom::find(self.table.home(tag), tag, limit);
        marked.into_iter().chain(self.sketch.get(tag, limit)).reduce(sketch::larger_of)
    }

    /// What a new key would begin with, on average: thousandths of a cost of 1.
    pub(super) fn overcount_thousandths(&self) -> u64 {
        if self.demotions.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let now = self.clock.now();
        let tags = (1..=SAMPLE).map(|n| Tag::of(StateId(u128::from(n.wrapping_mul(SPREAD)))));
        let begins_with = |tag| {
            let marked = bloom::find_any(self.table.home(tag), tag, now).min(1 << 32);
            self.sketch.expected(tag, now.steady).max(marked.saturating_mul(1_000))
        };
        tags.map(begins_with).fold(0, u64::saturating_add) / SAMPLE
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::SketchClass;
    use super::*;
    use crate::Clock;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;
    use tidegate_core::{Algorithm, Cost, Span, Timestamp};

    /// A key had used its whole limit and was demoted. A thread that needed its state had read the clock just before the window
    /// ended. Just after that, another thread cleared the lines of the sketch, which had ended for it. The first thread found
    /// nothing in the sketch, and let the key pass in a window that was full.
    #[test]
    fn lines_that_are_cleared_after_the_clock_was_read_admit_nothing() {
        const SECOND: u64 = 1_000_000_000;
        let at = Timestamp::from_nanos;
        let limit = Limit::new(3, Span::from_secs(1), Algorithm::FIXED_WINDOW).unwrap();
        let (shared, readings): (Arc<OnceLock<Memory>>, _) = (Arc::default(), AtomicU64::new(0));
        let (others, theirs) = (Arc::clone(&shared), SketchClass::of(&limit));
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
        store.sketch.add(Tag(7), SketchClass::of(&limit), full, Now::at(at(SECOND - 2)));
        let take = Take::new(StateId(7), &limit, Cost::ONE);
        assert!(!store.take_one_now(&take).decision.passes());
    }
}
