//! What a connection is doing: requests that are worked on, answers that wait to be taken.
//!
//! ```text
//!   request ──Work──► answer ──Untaken──► on its way          both are counted until they are dropped
//! ```
//!
//! The protocol bounds how much a client may leave unread, but not for how long. A client that opens no
//! window for its answers, and asks for something small now and then, would otherwise never be idle.
//!
//! What they hold counts against the budget of all connections.

use crate::bounds;
use crate::net::{Account, Hold, Place};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request};
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
    /// Batches wait here for each other, so that a connection with a hundred of them has one place in the queue of its worker.
    batches: Semaphore,
    account: Rc<Account>,
    /// Bytes of each stream that do not count.
    uncounted: usize,
    /// Steps of its clients: pieces of requests that came, pieces of answers that were taken.
    steps: Cell<u64>,
    /// So many when somebody looked last.
    seen: Cell<u64>,
}

/// A request that is worked on, until it is answered or its client takes it back.
pub(crate) struct Work {
    busy: Rc<Busy>,
    /// Whether there was room for what the stream takes.
    fits: bool,
    stream: Hold,
}

/// The body of an answer, until the last of its bytes is on its way.
pub(crate) struct Untaken {
    bytes: Bytes,
    busy: Rc<Busy>,
    number: u64,
    _hold: Hold,
    /// What the stream takes, which lives as long.
    stream: Hold,
}

/// The body of a request while it is read and decided.
pub(crate) struct Held {
    bytes: BytesMut,
    busy: Rc<Busy>,
    hold: Hold,
}

impl Busy {
    pub(super) fn new(account: &Rc<Account>, place: &Place) -> Rc<Self> {
        Rc::new(Self {
            streams: Cell::new(0),
            since: Cell::new(Instant::now()),
            untaken: RefCell::default(),
            first: Cell::new(0),
            batches: Semaphore::new(place.turns.open_batches()),
            account: Rc::clone(account),
            uncounted: place.streams.uncounted,
            steps: Cell::new(0),
            seen: Cell::new(0),
        })
    }

    pub(super) fn begin<B>(self: &Rc<Self>, request: &Request<B>) -> Work {
        self.streams.set(self.streams.get().saturating_add(1));
        let hold = self.account.hold();
        let takes = bounds::STREAM.saturating_add(size(request.headers()));
        let fits = hold.resize(takes.saturating_sub(self.uncounted));
        Work { busy: Rc::clone(self), fits, stream: hold }
    }

    /// Bytes of an answer that take this room; nothing can be done about them any more but to count them.
    pub(super) fn answered(self: &Rc<Self>, bytes: Bytes, room: usize) -> Untaken {
        let hold = self.account.hold();
        hold.resize_anyway(room);
        let mut untaken = self.untaken.borrow_mut();
        let behind = u64::try_from(untaken.len()).unwrap_or(u64::MAX);
        let (number, now) = (self.first.get().wrapping_add(behind), Instant::now());
        untaken.push_back(Some(now));
        let busy = Rc::clone(self);
        Untaken { bytes, busy, number, _hold: hold, stream: Hold::default() }
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

    fn step(&self) {
        self.steps.set(self.steps.get().wrapping_add(1));
    }

    /// Whether it has not gone on since the last look, and others need what it holds.
    pub(super) fn stands_in_the_way(&self) -> bool {
        let steps = self.steps.get();
        self.seen.replace(steps) == steps && self.account.is_over()
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
    /// Whether there was room for it. One without room is refused, and nothing of it is kept.
    pub(crate) const fn fits(&self) -> bool {
        self.fits
    }

    /// Waits for the turn of a batch among those of this connection; it lasts until what is answered is dropped.
    pub(super) async fn batch(&self) -> Option<SemaphorePermit<'_>> {
        self.busy.batches.acquire().await.ok()
    }

    /// Room for a body, of which nothing has come yet.
    pub(crate) fn body(&self) -> Held {
        let hold = self.hold();
        Held { bytes: BytesMut::new(), busy: Rc::clone(&self.busy), hold }
    }

    /// Room for something else of this request.
    pub(crate) fn hold(&self) -> Hold {
        self.busy.account.hold()
    }

    /// Room for its stream while the rest of a body is read over that has been answered already.
    pub(crate) fn lingers(&self) -> Hold {
        let hold = self.hold();
        hold.resize_anyway(bounds::STREAM);
        hold
    }

    /// Its whole answer, which takes this room. The stream counts until all of it is on its way: a client may leave it untaken.
    pub(super) fn ended(mut self, bytes: Bytes, room: usize) -> Untaken {
        let mut untaken = self.busy.answered(bytes, room);
        untaken.stream = std::mem::take(&mut self.stream);
        untaken
    }

    /// A part of its answer, which counts until it is on its way.
    pub(crate) fn answered(&self, bytes: Bytes) -> Untaken {
        let room = bytes.len();
        self.busy.answered(bytes, room)
    }
}

// === impl Held ===

impl Held {
    /// Reserves room for the whole body in the connection budget; false when there is not enough. Unlike over HTTP/1, the request
    /// does not wait for room: the client could send up to 64 KiB meanwhile, which the budget does not count.
    pub(crate) fn expect(&mut self, length: usize) -> bool {
        self.hold.resize(length.max(self.hold.bytes()))
    }

    /// Adds bytes; false when there is no room for them. Nobody waits for it here: proxies have little time.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        self.busy.step();
        let length = self.bytes.len().saturating_add(bytes.len());
        let counts = length > self.busy.uncounted;
        if counts && length > self.hold.bytes() && !self.hold.resize(larger(length)) {
            return false;
        }
        if length > self.bytes.capacity() {
            let more = self.hold.bytes().max(length).saturating_sub(self.bytes.len());
            self.bytes.reserve(more.min(self.bytes.len().max(bytes.len())));
        }
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

/// A little more than is needed, so that not every piece has to be counted and moved.
const fn larger(length: usize) -> usize {
    length.saturating_add(length / 8).next_multiple_of(4 * 1024)
}

/// What header fields take, as HTTP/2 counts them.
fn size(headers: &HeaderMap) -> usize {
    let field = |name: &str, value: usize| name.len().saturating_add(value).saturating_add(32);
    headers
        .iter()
        .fold(0, |sum, (name, value)| sum.saturating_add(field(name.as_str(), value.len())))
}

impl Drop for Work {
    fn drop(&mut self) {
        let Self { busy, .. } = self;
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
        self.busy.step();
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Budget, OfSource};
    use crate::net::{Timeouts, Versions};
    use std::sync::Arc;

    const MIB: usize = 1024 * 1024;

    fn busy(budget: &Arc<Budget>) -> Rc<Busy> {
        at(budget, |place| place)
    }

    fn at(budget: &Arc<Budget>, of: impl Fn(Place) -> Place) -> Rc<Busy> {
        let [handshake, head, body, idle] = [Duration::from_secs(9); 4];
        let timeouts = Timeouts { handshake, head, body, idle };
        let shared = (Arc::default(), Arc::clone(budget));
        let place = of(Place::new(timeouts, Versions::OneAndTwo, shared));
        Busy::new(&Account::new(Arc::clone(budget), OfSource::default()), &place)
    }

    /// Small calls of a proxy always have room, however many there are and whatever else it holds; long ones have it while
    /// there is some.
    #[test]
    fn small_calls_of_a_proxy_always_have_room() {
        let budget = Budget::new(64 * MIB);
        let busy = at(&budget, Place::for_proxies);
        let long = busy.begin(&Request::new(())).hold();
        assert!(long.resize(12 * MIB) && !long.resize(13 * MIB));
        let works: Vec<Work> = (0..10_000).map(|_| busy.begin(&Request::new(()))).collect();
        assert!(works.iter().all(Work::fits));
        let mut body = works[0].body();
        assert!(body.push(&[7; 100]) && body.push(&[7; bounds::GRPC_UNCOUNTED - 100]));
        let mut large = works[1].body();
        assert!(!large.push(&vec![7; MIB]));
        drop((long, body, large, works));
        assert_eq!(budget.held(), 0);
    }

    /// Streams, what is read of them and what is answered count until they are dropped.
    #[tokio::test(start_paused = true)]
    async fn all_that_a_connection_holds_counts() {
        let budget = Budget::new(64 * MIB);
        let busy = busy(&budget);
        let request = Request::builder().header("x-large", "x".repeat(10_000)).body(()).unwrap();
        let work = busy.begin(&request);
        let head = budget.held();
        assert!(work.fits() && head > 10_000 + bounds::STREAM - bounds::UNCOUNTED, "{head}");
        let megabyte = vec![7; MIB];
        let mut bodies = Vec::new();
        loop {
            let mut body = work.body();
            if !body.expect(MIB) {
                break;
            }
            assert!(body.push(&megabyte));
            bodies.push(body);
        }
        assert_eq!((bodies.len(), budget.held()), (12, head + 12 * MIB)); // a fifth of all
        let answer = busy.answered(megabyte.into(), MIB);
        assert_eq!(budget.held(), head + 13 * MIB);
        drop((bodies, answer, work));
        assert_eq!(budget.held(), 0);
    }

    /// A connection that holds more than its share may go on, but not stand still.
    #[tokio::test(start_paused = true)]
    async fn whoever_stands_still_and_holds_much_stands_in_the_way() {
        let budget = Budget::new(64 * MIB);
        let first = busy(&budget);
        let work = first.begin(&Request::new(()));
        let mut body = work.body();
        assert!(body.expect(12 * MIB) && body.push(b"x"));
        assert!(!first.stands_in_the_way() && !first.stands_in_the_way());
        let other = busy(&budget);
        let large = other.begin(&Request::new(())).hold();
        large.resize_anyway(40 * MIB);
        assert!(first.stands_in_the_way());
        assert!(body.push(b"x") && !first.stands_in_the_way());
        assert!(first.stands_in_the_way());
    }

    /// A stream for which there is no room takes none.
    #[test]
    fn a_stream_without_room_takes_none() {
        let budget = Budget::new(MIB);
        let (first, other) = (busy(&budget), busy(&budget));
        let large = other.begin(&Request::new(())).hold();
        large.resize_anyway(2 * MIB);
        let works: Vec<Work> = (0..100).map(|_| first.begin(&Request::new(()))).collect();
        let fit = works.iter().filter(|work| work.fits()).count();
        assert_eq!(fit, bounds::UNCOUNTED / bounds::STREAM);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_answer_that_waits_is_the_one_that_counts() {
        let busy = busy(&Budget::new(MIB));
        let answer = || busy.answered(Bytes::from_static(b"x"), 1);
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
