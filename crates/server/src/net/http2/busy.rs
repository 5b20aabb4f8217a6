//! What a connection is doing: requests that are worked on, answers that wait to be taken.
//!
//! ```text
//!   request ──Work──► answer ──Untaken──► on its way          both are counted until they are dropped
//! ```
//!
//! The protocol bounds how much a client may leave unread, but not for how long. A client that opens no
//! window for its answers, and asks for something small now and then, would otherwise never be idle.

use bytes::{Buf, Bytes};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// What a connection is doing.
pub(super) struct Busy {
    streams: Cell<usize>,
    /// When the last request was answered.
    since: Cell<Instant>,
    /// When answers were given that have not been taken: the oldest is the first. Those behind it may have been taken.
    untaken: RefCell<VecDeque<Option<Instant>>>,
    /// The number of the first of them.
    first: Cell<u64>,
}

/// A request that is worked on, until it is answered or its client takes it back.
pub(crate) struct Work(Rc<Busy>);

/// The body of an answer, until the last of its bytes is on its way.
pub(crate) struct Untaken {
    bytes: Bytes,
    busy: Rc<Busy>,
    number: u64,
}

impl Busy {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self {
            streams: Cell::new(0),
            since: Cell::new(Instant::now()),
            untaken: RefCell::default(),
            first: Cell::new(0),
        })
    }

    pub(super) fn begin(self: &Rc<Self>) -> Work {
        self.streams.set(self.streams.get().saturating_add(1));
        Work(Rc::clone(self))
    }

    pub(super) fn answered(self: &Rc<Self>, bytes: Bytes) -> Untaken {
        let mut untaken = self.untaken.borrow_mut();
        let behind = u64::try_from(untaken.len()).unwrap_or(u64::MAX);
        let (number, now) = (self.first.get().wrapping_add(behind), Instant::now());
        untaken.push_back(Some(now));
        Untaken { bytes, busy: Rc::clone(self), number }
    }

    fn taken(&self, number: u64) {
        let mut untaken = self.untaken.borrow_mut();
        let place = usize::try_from(number.wrapping_sub(self.first.get())).ok();
        if let Some(since) = place.and_then(|place| untaken.get_mut(place)) {
            *since = None;
        }
        while let Some(None) = untaken.front() {
            untaken.pop_front();
            self.first.set(self.first.get().wrapping_add(1));
        }
    }

    /// How long nobody has asked for anything.
    pub(super) fn idle_for(&self) -> Duration {
        if self.streams.get() > 0 { Duration::ZERO } else { self.since.get().elapsed() }
    }

    /// How long the oldest answer waits to be taken.
    pub(super) fn untaken_for(&self) -> Duration {
        let untaken = self.untaken.borrow();
        let oldest = untaken.front().copied().flatten();
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Work {
    /// A part of its answer, which counts until it is on its way.
    pub(crate) fn answered(&self, bytes: Bytes) -> Untaken {
        self.0.answered(bytes)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let Self(busy) = self;
        busy.streams.set(busy.streams.get().saturating_sub(1));
        busy.since.set(Instant::now());
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        self.busy.taken(self.number);
    }
}

impl Buf for Untaken {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_answer_that_waits_is_the_one_that_counts() {
        let busy = Busy::new();
        let answer = || busy.answered(Bytes::from_static(b"x"));
        let second = Duration::from_secs(1);
        let first = answer();
        tokio::time::advance(second).await;
        let (second_one, third) = (answer(), answer());
        tokio::time::advance(second).await;
        assert_eq!(busy.untaken_for(), second * 2);
        drop(second_one);
        assert_eq!(busy.untaken_for(), second * 2);
        drop(first);
        assert_eq!(busy.untaken_for(), second);
        drop(third);
        assert_eq!(busy.untaken_for(), Duration::ZERO);
        let again = answer();
        tokio::time::advance(second).await;
        assert_eq!(busy.untaken_for(), second);
        drop(again);
        assert!(busy.untaken.borrow().is_empty());
    }
}
