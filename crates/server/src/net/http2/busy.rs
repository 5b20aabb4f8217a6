//! What a connection is doing: requests that are worked on, answers that wait to be taken.
//!
//! ```text
//!   request ──Work──► answer ──Untaken──► on its way          both are counted until they are dropped
//! ```
//!
//! The protocol bounds how much a client may leave unread, but not for how long. A client that opens no
//! window for its answers, and asks for something small now and then, would otherwise never be idle.

use crate::bounds;
use crate::net::Turns;
use bytes::{Buf, Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
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
    /// Bytes of long messages that are being read, or wait for their answer.
    held: Cell<usize>,
    /// Batches wait here for each other, so that a connection with a hundred of them has one place in the queue of its worker.
    batches: Semaphore,
}

/// A request that is worked on, until it is answered or its client takes it back.
pub(crate) struct Work(Rc<Busy>);

/// The body of an answer, until the last of its bytes is on its way.
pub(crate) struct Untaken {
    bytes: Bytes,
    busy: Rc<Busy>,
    number: u64,
}

/// A long message while it is read and decided. All of a connection have [`bounds::GRPC_UNREAD`] bytes together.
pub(crate) struct Held {
    bytes: BytesMut,
    busy: Rc<Busy>,
}

impl Busy {
    pub(super) fn new(turns: &Turns) -> Rc<Self> {
        Rc::new(Self {
            streams: Cell::new(0),
            since: Cell::new(Instant::now()),
            untaken: RefCell::default(),
            first: Cell::new(0),
            held: Cell::new(0),
            batches: Semaphore::new(turns.at_once()),
        })
    }

    /// Waits for the turn of a batch among those of this connection; it lasts until what is answered is dropped.
    pub(super) async fn batch(&self) -> Option<SemaphorePermit<'_>> {
        self.batches.acquire().await.ok()
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
    /// Room for a message of which this is the beginning.
    pub(crate) fn hold(&self, bytes: &[u8]) -> Option<Held> {
        let mut held = Held { bytes: BytesMut::new(), busy: Rc::clone(&self.0) };
        held.push(bytes).then_some(held)
    }

    /// A part of its answer, which counts until it is on its way.
    pub(crate) fn answered(&self, bytes: Bytes) -> Untaken {
        self.0.answered(bytes)
    }
}

// === impl Held ===

impl Held {
    /// Adds bytes; false when there is no room for them. Short messages always have room.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        let length = self.bytes.len().saturating_add(bytes.len());
        let all = self.busy.held.get().saturating_add(counted(length));
        let all = all.saturating_sub(counted(self.bytes.len()));
        if counted(length) > 0 && all > bounds::GRPC_UNREAD {
            return false;
        }
        self.busy.held.set(all);
        self.bytes.extend_from_slice(bytes);
        true
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let held = &self.busy.held;
        held.set(held.get().saturating_sub(counted(self.bytes.len())));
    }
}

/// What of a message counts: all of a long one, nothing of a short one.
const fn counted(length: usize) -> usize {
    if length > bounds::GRPC_SMALL_MESSAGE { length } else { 0 }
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

    /// Short messages always have room. Long ones have it while there is some, and leave it when they are dropped.
    #[test]
    fn long_messages_of_a_connection_share_their_room() {
        let busy = Busy::new(&Turns::new(true));
        let work = busy.begin();
        let megabyte = vec![7; 1024 * 1024];
        let mut all: Vec<Held> = Vec::new();
        while let Some(held) = work.hold(&megabyte) {
            all.push(held);
        }
        assert_eq!(all.len() * megabyte.len(), bounds::GRPC_UNREAD);
        let mut short = work.hold(&megabyte[..bounds::GRPC_SMALL_MESSAGE]).unwrap();
        assert!(!short.push(b"x") && short.len() == bounds::GRPC_SMALL_MESSAGE);
        all.pop();
        assert!(short.push(b"x"));
        drop(short);
        drop(all);
        assert_eq!(busy.held.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_answer_that_waits_is_the_one_that_counts() {
        let busy = Busy::new(&Turns::new(true));
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
