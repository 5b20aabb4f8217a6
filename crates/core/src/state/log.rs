//! The entries of [`sliding_log`](crate::algorithm::sliding_log): one per take, delta-encoded as [varints](crate::varint).
//!
//! ```text
//!   first: u64 │ span: u32 │ total: u32 │ entries: [distance·2 + has_cost] [cost] …
//! ```
//!
//! An entry is the distance to the entry before it, doubled, plus 1 if a cost follows. A cost of 1 is not written.

use super::{State, StateContents};
use crate::varint;

/// The takes of one key.
///
/// ```
/// use tidegate_core::algorithm::sliding_log::Log;
/// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
/// let limit = Limit::new(9, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
/// let mut written = Written::empty(&limit);
/// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
/// let State::Log(log) = written.state else { panic!() };
/// assert_eq!(log.total(), 4);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The step of the oldest entry.
    first: u64,
    /// The number of steps from the oldest to the newest entry.
    span: u32,
    /// The sum of all costs.
    total: u32,
    /// The encoded entries, oldest first.
    entries: Vec<u8>,
}

/// One decoded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The time of the take, in steps.
    pub(crate) step: u64,
    pub(crate) cost: u64,
    /// The index at which the next entry begins.
    end: usize,
}

impl Log {
    /// The sum of the costs of all entries.
    ///
    /// ```
    /// use tidegate_core::{Algorithm, Ask, Cost, Limit, Span, State, Timestamp, Written};
    /// let limit = Limit::new(9, Span::from_secs(1), Algorithm::SLIDING_LOG).unwrap();
    /// let mut written = Written::empty(&limit);
    /// limit.take(&mut written, &Ask::new(Timestamp::EPOCH, Cost::new(4)));
    /// assert!(matches!(written.state, State::Log(log) if log.total() == 4));
    /// ```
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The step of the newest entry.
    pub(crate) fn newest(&self) -> u64 {
        self.first.saturating_add(u64::from(self.span))
    }

    /// All entries, oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        let mut step = self.first;
        let mut at = 0;
        core::iter::from_fn(move || {
            let (head, cost_at) = varint::decode(&self.entries, at)?;
            step = step.saturating_add(head >> 1);
            let (cost, end) =
                if head & 1 == 0 { (1, cost_at) } else { varint::decode(&self.entries, cost_at)? };
            at = end;
            Some(Entry { step, cost, end })
        })
    }

    /// The entries older than a step.
    pub(crate) fn before(&self, step: u64) -> impl Iterator<Item = Entry> {
        self.entries().take_while(move |entry| entry.step < step)
    }

    /// Appends a take and returns the step under which it is written: never before the newest entry.
    pub(crate) fn append(&mut self, step: u64, cost: u64) -> u64 {
        if self.entries.is_empty() {
            self.first = step;
        }
        let distance = u32::try_from(step.saturating_sub(self.newest())).unwrap_or(u32::MAX);
        encode(&mut self.entries, u64::from(distance), cost);
        self.span = self.span.saturating_add(distance);
        self.total = self.total.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        self.newest()
    }

    /// Drops the entries older than a step.
    pub(crate) fn drop_before(&mut self, step: u64) {
        if self.first >= step {
            return;
        }
        let Some(next) = self.entries().find(|entry| entry.step >= step) else {
            *self = Self::default();
            return;
        };
        let gone: u64 = self.before(step).map(|entry| entry.cost).sum();
        let mut entries = Vec::with_capacity(self.entries.len());
        encode(&mut entries, 0, next.cost);
        entries.extend_from_slice(self.entries.get(next.end..).unwrap_or_default());
        *self = Self {
            first: next.step,
            span: u32::try_from(self.newest().saturating_sub(next.step)).unwrap_or(u32::MAX),
            total: self.total.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX)),
            entries,
        };
    }

    /// Removes a cost from the entries of one step, the newest first. They expire together, so it does not matter which of them
    /// the take wrote. If they hold less than the cost, the take is not among them, and nothing is removed.
    pub(crate) fn remove(&mut self, step: u64, cost: u64) {
        let of_step = self.entries().filter(|entry| entry.step == step).map(|entry| entry.cost);
        let Some(mut stays) = of_step.sum::<u64>().checked_sub(cost) else { return };
        let mut rest = Self::default();
        for entry in self.entries() {
            let kept = if entry.step == step { entry.cost.min(stays) } else { entry.cost };
            if entry.step == step {
                stays = stays.saturating_sub(kept);
            }
            if kept > 0 {
                rest.append(entry.step, kept);
            }
        }
        *self = rest;
    }

    pub(crate) fn contents(&self) -> StateContents {
        StateContents::Log(self.entries().map(|entry| (entry.step, entry.cost)).collect())
    }

    /// The state with these entries: steps and costs.
    pub(crate) fn filled_with(entries: &[(u64, u64)]) -> State {
        let mut log = Self::default();
        for (step, cost) in entries {
            log.append(*step, *cost);
        }
        if log.entries.is_empty() { State::Empty } else { State::Log(Box::new(log)) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.len().saturating_add(16) // first, span and total
    }

    /// Appends the log as bytes. The entries are bytes already.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        for number in [self.first, u64::from(self.span), u64::from(self.total)] {
            varint::encode(bytes, number);
        }
        bytes.extend_from_slice(&self.entries);
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (first, at) = varint::decode(bytes, 0)?;
        let (span, at) = varint::decode(bytes, at)?;
        let (total, at) = varint::decode(bytes, at)?;
        let entries = bytes.get(at..)?.to_vec();
        Some(Self {
            first,
            span: u32::try_from(span).ok()?,
            total: u32::try_from(total).ok()?,
            entries,
        })
    }
}

fn encode(entries: &mut Vec<u8>, distance: u64, cost: u64) {
    let has_cost = u64::from(cost != 1);
    varint::encode(entries, (distance << 1) | has_cost);
    if cost != 1 {
        varint::encode(entries, cost);
    }
}
