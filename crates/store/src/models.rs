//! Models for the tests `tests/loom.rs` and `tests/shuttle.rs`, which need private parts of the store. Not part of an ordinary
//! build.

#[cfg(loom)]
pub use crate::{
    clock::models::a_clock_is_read_while_another_thread_renews_it,
    memory::models::{
        a_bucket_is_read_as_of_one_instant, a_number_is_not_written_after_another_limit_got_it,
        a_reader_sees_all_that_a_holder_wrote_or_nothing, optimistic_writes_lose_no_take,
    },
};

/// A store in memory with few limit numbers, so that they are used again soon.
#[cfg(shuttle)]
#[must_use]
pub fn with_limit_numbers(clock: crate::Clock, bytes: usize, numbers: usize) -> crate::Memory {
    crate::Memory::with_limit_numbers(clock, bytes, numbers)
}

/// A store in memory with few limit numbers, which notes what changes for a log on disk.
#[cfg(shuttle)]
#[must_use]
pub fn kept_on_disk(clock: crate::Clock, bytes: usize, numbers: usize) -> crate::Memory {
    crate::Memory::kept_on_disk_with(clock, bytes, numbers)
}

#[cfg(shuttle)]
pub use collecting::{all_states, changed_states};

#[cfg(shuttle)]
mod collecting {
    use crate::memory::{Collected, Memory, Record, Recorder, Writing};
    use std::collections::{BTreeMap, HashMap};
    use tidegate_core::{Limit, NamedBy};

    /// A frame that takes a few states, so that a collection has several.
    #[derive(Default)]
    struct SmallFrame {
        limits: HashMap<u16, u64>,
        states: Vec<(u64, (u64, u64))>,
    }

    impl Recorder for SmallFrame {
        fn has_limit(&self, number: u16) -> bool {
            self.limits.contains_key(&number)
        }

        fn limit(&mut self, number: u16, limit: &Limit, _by: NamedBy) {
            self.limits.insert(number, limit.amount());
        }

        fn record(&mut self, record: Record<'_>) {
            if let Record::Word { tag, number, word } = record {
                let amount = self.limits.get(&number).copied().unwrap_or(0);
                self.states.push((tag, (amount, word)));
            }
        }

        fn is_full(&self) -> bool {
            self.states.len() >= 2
        }
    }

    /// Collects what changed: the amount of the limit and the word of each state, by its tag.
    #[must_use]
    pub fn changed_states(store: &Memory) -> BTreeMap<u64, (u64, u64)> {
        states(store, Collected::Changes)
    }

    /// Collects everything: the amount of the limit and the word of each state, by its tag.
    #[must_use]
    pub fn all_states(store: &Memory) -> BTreeMap<u64, (u64, u64)> {
        states(store, Collected::Everything)
    }

    fn states(store: &Memory, what: Collected) -> BTreeMap<u64, (u64, u64)> {
        let (mut hand, _) = store.begin_collection(what);
        let mut states = BTreeMap::new();
        loop {
            let mut frame = SmallFrame::default();
            let (writing, _) = store.collect(&mut hand, &mut frame);
            states.extend(frame.states);
            if writing == Writing::Finished {
                return states;
            }
        }
    }
}
