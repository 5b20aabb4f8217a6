//! The activity of an HTTP/2 connection: requests in flight, and answers that the client has not read.
//!
//! ```text
//!   request ──InFlightRequest──► answer ──UnreadResponse──► sent          both are counted until they are dropped
//! ```
//!
//! The protocol bounds how much a client may leave unread, but not for how long. A client that grants no flow control window
//! for its answers, and sends a small request now and then, would otherwise never be idle.
//!
//! The memory of both counts against the connection budget.

use crate::bounds;
use crate::net::{Account, ListenerContext, Reservation};
use crate::timers;
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Request};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// The activity of one connection.
pub(super) struct Activity {
    /// Requests in flight.
    streams: Cell<usize>,
    /// When the last request was answered.
    since: Cell<Instant>,
    /// When each answer was given, the oldest first. `None` if the client has read it; the first entry is always unread.
    unread: RefCell<VecDeque<Option<Instant>>>,
    /// The number of the first entry.
    first: Cell<u64>,
    /// The batches of this connection wait here for each other, so that a connection with a hundred batches has one entry in
    /// the worker's queue for long work.
    batches: Semaphore,
    account: Rc<Account>,
    /// Bytes of each stream that do not count against the budget.
    uncounted: usize,
    /// Counts progress: parts of requests that arrived, parts of answers that the client has read.
    steps: Cell<u64>,
    /// `steps` at the last check.
    seen: Cell<u64>,
}

/// A request in flight: until it is answered or the client cancels it.
pub(crate) struct InFlightRequest {
    activity: Rc<Activity>,
    /// Whether the budget had room for the stream.
    fits: bool,
    stream: Reservation,
}

/// The body of an answer, until its last byte is sent.
pub(crate) struct UnreadResponse {
    bytes: Bytes,
    activity: Rc<Activity>,
    /// Its number among the answers of the connection.
    number: u64,
    _reserved: Reservation,
    /// The memory of the stream, which lives as long.
    stream: Reservation,
}

/// The body of a request while it is read and decided. Its memory counts against the connection budget.
pub(crate) struct BudgetedBody {
    bytes: BytesMut,
    activity: Rc<Activity>,
    reserved: Reservation,
}

impl Activity {
    pub(super) fn new(account: &Rc<Account>, listener: &ListenerContext) -> Rc<Self> {
        Rc::new(Self {
            streams: Cell::new(0),
            since: Cell::new(timers::now()),
            unread: RefCell::default(),
            first: Cell::new(0),
            batches: Semaphore::new(listener.long_work.open_batches()),
            account: Rc::clone(account),
            uncounted: listener.streams.uncounted,
            steps: Cell::new(0),
            seen: Cell::new(0),
        })
    }

    /// Counts a new request and reserves the memory of its stream.
    pub(super) fn begin<B>(self: &Rc<Self>, request: &Request<B>) -> InFlightRequest {
        self.streams.set(self.streams.get().saturating_add(1));
        let reserved = self.account.reserve();
        let takes = bounds::STREAM.saturating_add(size(request.headers()));
        let fits = reserved.resize(takes.saturating_sub(self.uncounted));
        InFlightRequest { activity: Rc::clone(self), fits, stream: reserved }
    }

    /// An answer that takes `room` bytes. It exists already, so it is counted even if the budget is used up.
    pub(super) fn answered(self: &Rc<Self>, bytes: Bytes, room: usize) -> UnreadResponse {
        let reserved = self.account.reserve();
        reserved.resize_anyway(room);
        let mut unread = self.unread.borrow_mut();
        let behind = u64::try_from(unread.len()).unwrap_or(u64::MAX);
        let (number, now) = (self.first.get().wrapping_add(behind), timers::now());
        unread.push_back(Some(now));
        let activity = Rc::clone(self);
        UnreadResponse {
            bytes,
            activity,
            number,
            _reserved: reserved,
            stream: Reservation::default(),
        }
    }

    /// The answer with this number was read or dropped. Removes the entries at the front that are done.
    fn mark_read(&self, number: u64) {
        let mut unread = self.unread.borrow_mut();
        let index = usize::try_from(number.wrapping_sub(self.first.get())).ok();
        if let Some(since) = index.and_then(|index| unread.get_mut(index)) {
            *since = None;
        }
        while let Some(None) = unread.front() {
            unread.pop_front();
            self.first.set(self.first.get().wrapping_add(1));
        }
    }

    /// The client has made progress.
    fn step(&self) {
        self.steps.set(self.steps.get().wrapping_add(1));
    }

    /// Whether it has made no progress since the last check, while other connections need the memory that it holds.
    pub(super) fn blocks_others(&self) -> bool {
        let steps = self.steps.get();
        self.seen.replace(steps) == steps && self.account.is_over()
    }

    /// How long no request has been in flight.
    pub(super) fn idle_for(&self) -> Duration {
        if self.streams.get() > 0 { Duration::ZERO } else { timers::since(self.since.get()) }
    }

    /// How long the oldest answer has not been read.
    pub(super) fn unread_for(&self) -> Duration {
        let unread = self.unread.borrow();
        let oldest = unread.front().copied().flatten();
        oldest.map_or(Duration::ZERO, timers::since)
    }
}

impl InFlightRequest {
    /// Whether the budget had room for it. If not, it is refused and nothing of it is kept.
    pub(crate) const fn fits(&self) -> bool {
        self.fits
    }

    /// Waits for the turn of a batch among those of this connection. The turn ends when the permit is dropped.
    pub(super) async fn batch(&self) -> Option<SemaphorePermit<'_>> {
        self.activity.batches.acquire().await.ok()
    }

    /// An empty buffer for the body.
    pub(crate) fn body(&self) -> BudgetedBody {
        let reserved = self.reserve();
        BudgetedBody { bytes: BytesMut::new(), activity: Rc::clone(&self.activity), reserved }
    }

    /// A new reservation in the account of the connection.
    pub(crate) fn reserve(&self) -> Reservation {
        self.activity.account.reserve()
    }

    /// The memory of its stream while the rest of its body is discarded after the answer.
    pub(crate) fn lingers(&self) -> Reservation {
        let reserved = self.reserve();
        reserved.resize_anyway(bounds::STREAM);
        reserved
    }

    /// Its whole answer, which takes `room` bytes. The stream counts until all of it is sent: the client may never read it.
    pub(crate) fn ended(mut self, bytes: Bytes, room: usize) -> UnreadResponse {
        let mut unread = self.activity.answered(bytes, room);
        unread.stream = std::mem::take(&mut self.stream);
        unread
    }

    /// A part of its answer, which counts until it is sent.
    pub(crate) fn answered(&self, bytes: Bytes) -> UnreadResponse {
        let room = bytes.len();
        self.activity.answered(bytes, room)
    }
}

// === impl BudgetedBody ===

impl BudgetedBody {
    /// Reserves room for the whole body in the connection budget; false when there is not enough. Unlike over HTTP/1, the request
    /// does not wait for room: the client could send up to 64 KiB meanwhile, which the budget does not count.
    pub(crate) fn expect(&mut self, length: usize) -> bool {
        self.reserved.resize(length.max(self.reserved.bytes()))
    }

    /// Adds bytes; false when the budget has no room for them. It does not wait for room, because proxies have short timeouts.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        self.activity.step();
        let length = self.bytes.len().saturating_add(bytes.len());
        let counts = length > self.activity.uncounted;
        if counts && length > self.reserved.bytes() && !self.reserved.resize(larger(length)) {
            return false;
        }
        if length > self.bytes.capacity() {
            let more = self.reserved.bytes().max(length).saturating_sub(self.bytes.len());
            self.bytes.reserve(more.min(self.bytes.len().max(bytes.len())));
        }
        self.bytes.extend_from_slice(bytes);
        true
    }
}

impl Deref for BudgetedBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A little more than is needed, so that not every part has to be counted and moved.
const fn larger(length: usize) -> usize {
    length.saturating_add(length / 8).next_multiple_of(4 * 1024)
}

/// The size of header fields, as HTTP/2 counts them (RFC 9113, section 6.5.2).
fn size(headers: &HeaderMap) -> usize {
    let field = |name: &str, value: usize| name.len().saturating_add(value).saturating_add(32);
    headers
        .iter()
        .fold(0, |sum, (name, value)| sum.saturating_add(field(name.as_str(), value.len())))
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let Self { activity, .. } = self;
        activity.streams.set(activity.streams.get().saturating_sub(1));
        activity.since.set(timers::now());
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        self.activity.mark_read(self.number);
    }
}

impl Buf for UnreadResponse {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.activity.step();
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Budget, SourceBytes};
    use crate::net::{Timeouts, Versions};
    use std::sync::Arc;

    const MIB: usize = 1024 * 1024;

    fn activity(budget: &Arc<Budget>) -> Rc<Activity> {
        at(budget, |listener| listener)
    }

    fn at(budget: &Arc<Budget>, of: impl Fn(ListenerContext) -> ListenerContext) -> Rc<Activity> {
        let [handshake, head, body, idle] = [Duration::from_secs(9); 4];
        let timeouts = Timeouts { handshake, head, body, idle };
        let shared = (Arc::default(), Arc::clone(budget));
        let listener = of(ListenerContext::new(timeouts, Versions::OneAndTwo, shared));
        Activity::new(&Account::new(Arc::clone(budget), SourceBytes::default()), &listener)
    }

    /// Small calls of a proxy always have room, however many there are and however much the proxy holds. Long calls need room
    /// in the budget.
    #[test]
    fn small_calls_of_a_proxy_always_have_room() {
        let budget = Budget::new(64 * MIB);
        let activity = at(&budget, ListenerContext::for_proxies);
        let long = activity.begin(&Request::new(())).reserve();
        assert!(long.resize(12 * MIB) && !long.resize(13 * MIB));
        let works: Vec<InFlightRequest> =
            (0..10_000).map(|_| activity.begin(&Request::new(()))).collect();
        assert!(works.iter().all(InFlightRequest::fits));
        let mut body = works[0].body();
        assert!(body.push(&[7; 100]) && body.push(&[7; bounds::GRPC_UNCOUNTED - 100]));
        let mut large = works[1].body();
        assert!(!large.push(&vec![7; MIB]));
        drop((long, body, large, works));
        assert_eq!(budget.held(), 0);
    }

    /// Streams, their bodies and their answers count until they are dropped.
    #[tokio::test(start_paused = true)]
    async fn streams_bodies_and_answers_count() {
        let budget = Budget::new(64 * MIB);
        let activity = activity(&budget);
        let request = Request::builder().header("x-large", "x".repeat(10_000)).body(()).unwrap();
        let work = activity.begin(&request);
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
        assert_eq!((bodies.len(), budget.held()), (12, head + 12 * MIB)); // a fifth of the budget
        let answer = activity.answered(megabyte.into(), MIB);
        assert_eq!(budget.held(), head + 13 * MIB);
        drop((bodies, answer, work));
        assert_eq!(budget.held(), 0);
    }

    /// A connection that holds more than its share has to make progress.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_holds_much_without_progress_blocks_others() {
        let budget = Budget::new(64 * MIB);
        let first = activity(&budget);
        let work = first.begin(&Request::new(()));
        let mut body = work.body();
        assert!(body.expect(12 * MIB) && body.push(b"x"));
        assert!(!first.blocks_others() && !first.blocks_others());
        let other = activity(&budget);
        let large = other.begin(&Request::new(())).reserve();
        large.resize_anyway(40 * MIB);
        assert!(first.blocks_others());
        assert!(body.push(b"x") && !first.blocks_others());
        assert!(first.blocks_others());
    }

    /// A stream that does not fit into the budget is not counted.
    #[test]
    fn a_stream_without_room_is_not_counted() {
        let budget = Budget::new(MIB);
        let (first, other) = (activity(&budget), activity(&budget));
        let large = other.begin(&Request::new(())).reserve();
        large.resize_anyway(2 * MIB);
        let works: Vec<InFlightRequest> =
            (0..100).map(|_| first.begin(&Request::new(()))).collect();
        let fit = works.iter().filter(|work| work.fits()).count();
        assert_eq!(fit, bounds::UNCOUNTED / bounds::STREAM);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_unread_answer_counts() {
        let activity = activity(&Budget::new(MIB));
        let answer = || activity.answered(Bytes::from_static(b"x"), 1);
        let second = Duration::from_secs(1);
        let first = answer();
        tokio::time::advance(second).await;
        let (second_one, third) = (answer(), answer());
        tokio::time::advance(second).await;
        assert_eq!(activity.unread_for(), second * 2);
        drop(second_one);
        assert_eq!(activity.unread_for(), second * 2);
        drop(first);
        assert_eq!(activity.unread_for(), second);
        drop(third);
        assert_eq!(activity.unread_for(), Duration::ZERO);
        let again = answer();
        tokio::time::advance(second).await;
        assert_eq!(activity.unread_for(), second);
        drop(again);
        assert!(activity.unread.borrow().is_empty());
    }
}
