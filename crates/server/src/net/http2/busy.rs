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
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// What a connection is doing.
pub(super) struct Busy {
    streams: Cell<usize>,
    /// When the last request was answered.
    since: Cell<Instant>,
    /// When answers were given that have not been taken, by their numbers: the oldest is the first.
    untaken: RefCell<BTreeMap<u64, Instant>>,
    answers: Cell<u64>,
}

/// A request that is worked on, until it is answered or its client takes it back.
pub(super) struct Work(Rc<Busy>);

/// The body of an answer, until the last of its bytes is on its way.
pub(super) struct Untaken {
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
            answers: Cell::new(0),
        })
    }

    pub(super) fn begin(self: &Rc<Self>) -> Work {
        self.streams.set(self.streams.get().saturating_add(1));
        Work(Rc::clone(self))
    }

    pub(super) fn answered(self: &Rc<Self>, bytes: Bytes) -> Untaken {
        let number = self.answers.get();
        self.answers.set(number.wrapping_add(1));
        self.untaken.borrow_mut().insert(number, Instant::now());
        Untaken { bytes, busy: Rc::clone(self), number }
    }

    /// How long nobody has asked for anything.
    pub(super) fn idle_for(&self) -> Duration {
        if self.streams.get() > 0 { Duration::ZERO } else { self.since.get().elapsed() }
    }

    /// How long the oldest answer waits to be taken.
    pub(super) fn untaken_for(&self) -> Duration {
        let untaken = self.untaken.borrow();
        untaken.first_key_value().map_or(Duration::ZERO, |(_, since)| since.elapsed())
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
        self.busy.untaken.borrow_mut().remove(&self.number);
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
