//! The counters of [`sliding_buckets`](crate::algorithm::sliding_buckets): a ring buffer with one counter per sub-window.
//!
//! ```text
//!   newest = 7, ring of 5      slot      0    1    2    3    4
//!                              number    5    6    7    3    4        sub-window i is in slot i mod 5
//! ```

use super::{State, StateContents};
use crate::varint;

/// The counters of one key.
///
/// ```
/// use tidegate_core::algorithm::sliding_buckets::Buckets;
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
/// let limit = Limit::new(9, Span::from_secs(1), Algorithm::SlidingBuckets { buckets: 2 }).unwrap();
/// let mut written = Written::empty(&limit);
/// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
/// let State::Buckets(buckets) = written.state else { panic!() };
/// assert_eq!(buckets.sum(), 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// The number of the newest sub-window.
    newest: u64,
    /// The sum of all counters, kept so that most decisions need not add them up.
    sum: u64,
    /// The ring: sub-window `i` is in slot `i mod (n + 1)`.
    counts: Counts,
}

/// Counters of two or four bytes, as the limit needs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Counts {
    Narrow(Box<[u16]>),
    Wide(Box<[u32]>),
}

impl Buckets {
    /// A ring of `ring` counters of 0, of which `newest` is the newest sub-window.
    pub(crate) fn new(ring: usize, wide: bool, newest: u64) -> Self {
        let counts = if wide {
            Counts::Wide(vec![0; ring].into_boxed_slice())
        } else {
            Counts::Narrow(vec![0; ring].into_boxed_slice())
        };
        Self { newest, sum: 0, counts }
    }

    /// The sum of all counters.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
    /// let limit = Limit::new(9, Span::from_secs(1), Algorithm::SLIDING_BUCKETS).unwrap();
    /// let mut written = Written::empty(&limit);
    /// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
    /// assert!(matches!(written.state, State::Buckets(buckets) if buckets.sum() == 4));
    /// ```
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    pub(crate) const fn newest(&self) -> u64 {
        self.newest
    }

    /// The oldest sub-window in the ring.
    pub(crate) fn oldest(&self) -> u64 {
        self.newest.saturating_sub(self.ring().saturating_sub(1))
    }

    /// The count of a sub-window in the ring.
    pub(crate) fn get(&self, number: u64) -> u64 {
        let slot = self.slot(number);
        match &self.counts {
            Counts::Narrow(counts) => counts.get(slot).map_or(0, |count| u64::from(*count)),
            Counts::Wide(counts) => counts.get(slot).map_or(0, |count| u64::from(*count)),
        }
    }

    /// The sub-windows that no longer count when `current` is the running one.
    pub(crate) fn leaving(&self, current: u64) -> impl Iterator<Item = u64> + use<> {
        let first_kept = current.saturating_sub(self.ring().saturating_sub(1));
        self.oldest()..first_kept.min(self.newest.saturating_add(1))
    }

    /// Makes `current` the newest sub-window, unless the ring already has a newer one.
    pub(crate) fn advance(&mut self, current: u64) {
        for number in self.leaving(current) {
            self.sum = self.sum.saturating_sub(self.get(number));
            self.set(number, 0);
        }
        self.newest = self.newest.max(current);
    }

    /// Adds hits to the newest sub-window.
    pub(crate) fn add(&mut self, hits: u64) {
        self.set(self.newest, self.get(self.newest).saturating_add(hits));
        self.sum = self.sum.saturating_add(hits);
    }

    /// Removes hits from a sub-window, if it is still in the ring.
    pub(crate) fn remove(&mut self, number: u64, hits: u64) {
        if (self.oldest()..=self.newest).contains(&number) {
            let hits = hits.min(self.get(number));
            self.set(number, self.get(number).saturating_sub(hits));
            self.sum = self.sum.saturating_sub(hits);
        }
    }

    /// Takes over the counts of a ring with the same sub-windows; its counters may have another width.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.sum = other.sum;
        for number in other.oldest()..=other.newest {
            self.set(number, other.get(number));
        }
    }

    /// Fills an empty ring with these counts, and skips those outside the ring.
    pub(crate) fn filled_with(mut self, counts: &[(u64, u64)]) -> State {
        let kept = self.oldest()..=self.newest;
        for (number, count) in counts.iter().filter(|(number, _)| kept.contains(number)) {
            self.set(*number, *count);
            self.sum = self.sum.saturating_add(self.get(*number));
        }
        if self.sum == 0 { State::Empty } else { State::Buckets(Box::new(self)) }
    }

    pub(crate) fn contents(&self) -> StateContents {
        let counts = (self.oldest()..=self.newest).map(|number| (number, self.get(number)));
        StateContents::Buckets {
            newest: self.newest,
            counts: counts.filter(|(_, count)| *count > 0).collect(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let counters = match &self.counts {
            Counts::Narrow(counts) => size_of_val::<[u16]>(counts),
            Counts::Wide(counts) => size_of_val::<[u32]>(counts),
        };
        counters.saturating_add(16) // newest and sum
    }

    /// Appends the counters as bytes, in the order of the ring. Their sum is not written.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let wide = matches!(self.counts, Counts::Wide(_));
        varint::encode(bytes, u64::from(wide));
        varint::encode(bytes, self.newest);
        match &self.counts {
            Counts::Narrow(counts) => {
                counts.iter().for_each(|count| varint::encode(bytes, u64::from(*count)));
            }
            Counts::Wide(counts) => {
                counts.iter().for_each(|count| varint::encode(bytes, u64::from(*count)));
            }
        }
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (wide, at) = varint::decode(bytes, 0)?;
        let (newest, mut at) = varint::decode(bytes, at)?;
        let mut sum = 0u64;
        let mut next = || {
            let (count, end) = varint::decode(bytes, at)?;
            (at, sum) = (end, sum.saturating_add(count));
            Some(u32::try_from(count).unwrap_or(u32::MAX))
        };
        let counts = if wide == 1 {
            Counts::Wide(core::iter::from_fn(next).collect())
        } else {
            let narrow = || next().map(|count| u16::try_from(count).unwrap_or(u16::MAX));
            Counts::Narrow(core::iter::from_fn(narrow).collect())
        };
        Some(Self { newest, sum, counts })
    }

    /// The number of counters: `n + 1`.
    fn ring(&self) -> u64 {
        let ring = match &self.counts {
            Counts::Narrow(counts) => counts.len(),
            Counts::Wide(counts) => counts.len(),
        };
        u64::try_from(ring).unwrap_or(u64::MAX)
    }

    fn slot(&self, number: u64) -> usize {
        usize::try_from(number.checked_rem(self.ring()).unwrap_or(0)).unwrap_or(0)
    }

    /// A limit never writes a count above its `most`, and the width is chosen for `most`. So the conversion never saturates.
    fn set(&mut self, number: u64, count: u64) {
        let slot = self.slot(number);
        match &mut self.counts {
            Counts::Narrow(counts) => {
                if let Some(counter) = counts.get_mut(slot) {
                    *counter = u16::try_from(count).unwrap_or(u16::MAX);
                }
            }
            Counts::Wide(counts) => {
                if let Some(counter) = counts.get_mut(slot) {
                    *counter = u32::try_from(count).unwrap_or(u32::MAX);
                }
            }
        }
    }
}
