//! A guard in front of the HTTP/2 library: bounds control frames, and delays the last PING ACK of a connection.
//!
//! ```text
//!   frame   | length 3 | type 1 | flags 1 | stream 4 | payload … |
//!             └──────── nine bytes, then skip the payload ───────┘
//! ```
//!
//! **Control frames.** The library bounds streams, resets and headers, but it answers every PING, SETTINGS and empty DATA frame
//! without a bound, so a client can make the server work without sending a request (a control frame flood). The guard is a
//! token bucket of such frames, refilled a little every second and with every request. A client that empties it is
//! disconnected. Resetting a stream is free once for each request: a proxy may cancel all its requests in the same instant,
//! and clients that only open and reset streams are bounded by the library.
//!
//! **Graceful shutdown.** The guard also makes sure that a closing connection does not lose a call:
//!
//! ```text
//!   server   GOAWAY, any stream │ PING                                     GOAWAY, the last stream that was seen
//!   client                              PING ACK │ HEADERS 7 │ DATA 7
//!                                       └─────── is delayed ─────────►│
//! ```
//!
//! When the library gets the ACK of its PING, it assumes that the client has seen the GOAWAY and sends no more requests. But
//! some clients answer a PING before they write requests that they had begun (grpc-core does), so HEADERS follow the ACK. The
//! library would ignore these HEADERS, and close the connection with an error at the `WINDOW_UPDATE` that follows. So the guard
//! holds the ACK of a closing connection back until nothing more has arrived for a moment.

use crate::bounds;
use crate::net::{Stream, after};
use crate::timers;
use bytes::{Buf, Bytes};
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The stream of an HTTP/2 connection: first the bytes that were already read, then the rest.
pub(crate) struct GuardedStream {
    read: Bytes,
    stream: Stream,
    frames: FrameCounter,
    is_closing: ClosingFlag,
    closing: Option<Box<ClosingFrames>>,
}

/// Tells the guard that its connection is closing.
#[derive(Clone, Default)]
pub(crate) struct ClosingFlag(Rc<Cell<bool>>);

/// Reorders the frames of a closing connection: PING ACKs come last.
struct ClosingFrames {
    /// Bytes that are left of the payload of the current frame.
    skip: usize,
    /// The header of the current frame, as far as it has arrived.
    head: Vec<u8>,
    /// How many bytes of that header the library got before the connection was closing.
    passed_before: usize,
    /// Whether the current frame is a PING ACK, which is delayed.
    delays: bool,
    delayed: Vec<u8>,
    /// Bytes that the library may read now.
    passed: Vec<u8>,
    /// Fires when nothing has arrived for [`bounds::QUIET_MILLIS`].
    quiet: Pin<Box<Sleep>>,
    /// When delayed frames are passed on at the latest.
    latest: Instant,
}

/// Follows the stream of frames, and counts control frames against their budget.
#[derive(Debug)]
struct FrameCounter {
    /// Bytes that are left of the payload of the current frame, or of the connection preface.
    skip: usize,
    /// The header of the current frame, of which `have` bytes have arrived.
    head: [u8; 9],
    have: usize,
    /// Control frames that may still come.
    budget: u32,
    /// Requests whose stream may still be reset for free.
    requests: u32,
    /// When time last refilled the budget.
    filled: Instant,
}

/// Bytes of the connection preface, and of the header of a frame.
const PREFACE: usize = 24;
const HEAD: usize = 9;
/// Types of frames, and the flag of an ACK.
const HEADERS: u8 = 1;
const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const ACK: u8 = 1;

impl GuardedStream {
    pub(crate) fn new(stream: Stream, read: Vec<u8>, is_closing: ClosingFlag) -> Self {
        let frames = FrameCounter::new(timers::now());
        Self { read: read.into(), stream, frames, is_closing, closing: None }
    }

    /// Reads bytes and counts their frames.
    fn poll_counted(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.read.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        } else {
            let count = self.read.len().min(buffer.remaining());
            buffer.put_slice(self.read.get(..count).unwrap_or_default());
            self.read.advance(count);
        }
        let fresh = buffer.filled().get(before..).unwrap_or_default();
        if self.frames.count(fresh, timers::now()) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "too many idle frames")))
    }

    /// The same for a closing connection: PING ACKs come last.
    fn poll_closing(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut closing =
            self.closing.take().unwrap_or_else(|| Box::new(ClosingFrames::new(&self.frames)));
        let polled = loop {
            if closing.pass_on(buffer) {
                break Poll::Ready(Ok(()));
            }
            let mut bytes = [0; 2 * 1024];
            let mut fresh = ReadBuf::new(&mut bytes);
            match self.poll_counted(context, &mut fresh) {
                Poll::Ready(Ok(())) if fresh.filled().is_empty() => break Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => closing.read(fresh.filled()),
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending if closing.is_quiet(context) => {}
                Poll::Pending => break Poll::Pending,
            }
        };
        self.closing = Some(closing);
        polled
    }
}

// === impl ClosingFlag ===

impl ClosingFlag {
    pub(crate) fn begin(&self) {
        self.0.set(true);
    }
}

// === impl ClosingFrames ===

impl ClosingFrames {
    fn new(frames: &FrameCounter) -> Self {
        let head = frames.head.get(..frames.have).unwrap_or_default().to_vec();
        Self {
            skip: frames.skip,
            passed_before: head.len(),
            head,
            delays: false,
            delayed: Vec::new(),
            passed: Vec::new(),
            quiet: Box::pin(timers::sleep_until(timers::now())),
            latest: after(Duration::from_millis(bounds::LINGER_MILLIS)),
        }
    }

    /// Sorts the frames of some bytes into `passed` and `delayed`.
    fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.skip == 0 {
                let missing = HEAD.saturating_sub(self.head.len()).min(bytes.len());
                let (head, rest) = bytes.split_at_checked(missing).unwrap_or_default();
                self.head.extend_from_slice(head);
                bytes = rest;
                self.begin_frame();
            } else {
                let (piece, rest) = bytes.split_at(self.skip.min(bytes.len()));
                self.skip = self.skip.saturating_sub(piece.len());
                bytes = rest;
                self.target().extend_from_slice(piece);
            }
        }
        let quiet = after(Duration::from_millis(bounds::QUIET_MILLIS)).min(self.latest);
        self.quiet.as_mut().reset(quiet);
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = *self.head.as_slice() else { return };
        if self.head.len() < HEAD {
            return;
        }
        self.skip = usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(0);
        let passed_before = std::mem::take(&mut self.passed_before);
        self.delays = kind == PING && flags & ACK != 0 && passed_before == 0;
        let head = std::mem::take(&mut self.head);
        self.target().extend(head.into_iter().skip(passed_before));
    }

    /// Where the bytes of the current frame go.
    fn target(&mut self) -> &mut Vec<u8> {
        if self.delays { &mut self.delayed } else { &mut self.passed }
    }

    /// Passes as much to the library as fits into its buffer; false when there is nothing.
    fn pass_on(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let count = self.passed.len().min(buffer.remaining());
        buffer.put_slice(self.passed.get(..count).unwrap_or_default());
        self.passed.drain(..count);
        count > 0
    }

    /// Whether nothing has arrived for a moment. If so, the delayed frames are passed on.
    fn is_quiet(&mut self, context: &mut Context<'_>) -> bool {
        let whole = self.skip == 0 || !self.delays;
        if self.delayed.is_empty() || !whole || self.quiet.as_mut().poll(context).is_pending() {
            return false;
        }
        self.passed.append(&mut self.delayed);
        true
    }
}

// === impl FrameCounter ===

impl FrameCounter {
    fn new(now: Instant) -> Self {
        let budget = bounds::IDLE_FRAMES;
        Self { skip: PREFACE, head: [0; 9], have: 0, budget, requests: 0, filled: now }
    }

    /// Counts the frames in some bytes; false when there were too many control frames.
    fn count(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip = self.skip.saturating_sub(skipped);
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            let (Some(slot), [first, rest @ ..]) = (self.head.get_mut(self.have), bytes) else {
                return false;
            };
            *slot = *first;
            bytes = rest;
            self.have = self.have.saturating_add(1);
            if self.have == self.head.len() && !self.frame(now) {
                return false;
            }
        }
        true
    }

    /// Counts one frame, whose header is complete; false when the budget is used up.
    fn frame(&mut self, now: Instant) -> bool {
        let [high, middle, low, kind, ..] = self.head;
        let length = u32::from_be_bytes([0, high, middle, low]);
        self.skip = usize::try_from(length).unwrap_or(usize::MAX);
        self.have = 0;
        match kind {
            HEADERS => {
                let more = self.budget.saturating_add(bounds::IDLE_FRAMES_PER_REQUEST);
                self.budget = more.min(bounds::IDLE_FRAMES);
                self.requests = self.requests.saturating_add(1).min(bounds::GRPC_STREAMS);
                true
            }
            RST_STREAM if self.requests > 0 => {
                self.requests = self.requests.saturating_sub(1);
                true
            }
            DATA if length > 0 => true,
            _ => self.spend(now),
        }
    }

    fn spend(&mut self, now: Instant) -> bool {
        if self.budget == 0 {
            let seconds = now.saturating_duration_since(self.filled).as_secs();
            let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
            let more = seconds.saturating_mul(bounds::IDLE_FRAMES_PER_SECOND);
            self.budget = more.min(bounds::IDLE_FRAMES);
            self.filled = now;
        }
        match self.budget.checked_sub(1) {
            Some(left) => {
                self.budget = left;
                true
            }
            None => false,
        }
    }
}

// === impl GuardedStream ===

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_closing.0.get() {
            return self.poll_closing(context, buffer);
        }
        self.poll_counted(context, buffer)
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        frame.extend(std::iter::repeat_n(7, usize::from(length)));
        frame
    }

    fn after_preface(now: Instant) -> FrameCounter {
        let mut frames = FrameCounter::new(now);
        assert!(frames.count(&[1; PREFACE], now));
        frames
    }

    #[test]
    fn pings_are_counted_in_pieces_of_any_size() {
        let now = timers::now();
        for piece in [1, 5, 17, 1_000] {
            let mut frames = after_preface(now);
            let most = usize::try_from(bounds::IDLE_FRAMES).unwrap();
            let pings: Vec<u8> = (0..most).flat_map(|_| frame(6, 8)).collect();
            assert!(pings.chunks(piece).all(|bytes| frames.count(bytes, now)), "pieces of {piece}");
            assert!(!frames.count(&frame(6, 8), now));
        }
    }

    #[test]
    fn requests_and_time_refill_the_budget() {
        let start = timers::now();
        let mut frames = after_preface(start);
        for _ in 0..10_000 {
            assert!(frames.count(&frame(1, 40), start)); // a request, its body, a window, a setting
            assert!(frames.count(&frame(0, 100), start));
            assert!(frames.count(&frame(8, 4), start));
            assert!(frames.count(&frame(4, 0), start));
        }
        let mut frames = after_preface(start);
        for second in 0..1_000 {
            let now = start + Duration::from_secs(second);
            assert!((0..5).all(|_| frames.count(&frame(6, 8), now)));
        }
    }

    /// A proxy has a thousand calls in flight, and all of them time out in the same instant.
    #[test]
    fn every_stream_may_be_reset_once_for_free() {
        let now = timers::now();
        let mut frames = after_preface(now);
        for _ in 0..3 {
            assert!((0..bounds::GRPC_STREAMS).all(|_| frames.count(&frame(1, 40), now)));
            assert!((0..bounds::GRPC_STREAMS).all(|_| frames.count(&frame(3, 4), now)));
            assert!(frames.count(&frame(6, 8), now));
        }
        let idle = (0..10_000).take_while(|_| frames.count(&frame(3, 4), now)).count();
        assert!(idle <= usize::try_from(bounds::IDLE_FRAMES).unwrap(), "{idle}");
    }

    /// PING ACKs come last, in pieces of any size, and all other frames stay unchanged and in order.
    #[tokio::test(start_paused = true)]
    async fn ping_acks_come_last() {
        let now = timers::now();
        let mut ack = frame(PING, 8);
        ack[4] = ACK;
        let before = [frame(HEADERS, 40), frame(PING, 8)].concat();
        let behind = [frame(DATA, 100), frame(8, 4), frame(DATA, 0)].concat();
        let all = [&before[..], &ack, &behind].concat();
        let expected = [&before[..], &behind].concat();
        for cut in 0..=before.len() {
            for piece in [1, 7, 1_000] {
                // The library got the first bytes before the connection was closing.
                let mut frames = after_preface(now);
                assert!(frames.count(&all[..cut], now));
                let mut closing = ClosingFrames::new(&frames);
                all[cut..].chunks(piece).for_each(|bytes| closing.read(bytes));
                assert_eq!([&all[..cut], &closing.passed].concat(), expected, "{cut} {piece}");
                assert_eq!(closing.delayed, ack, "{cut} {piece}");
                closing.passed.clear();
                let mut context = Context::from_waker(std::task::Waker::noop());
                assert!(!closing.is_quiet(&mut context));
                tokio::time::advance(Duration::from_millis(bounds::QUIET_MILLIS + 1)).await;
                assert!(closing.is_quiet(&mut context) && closing.passed == ack);
            }
        }
    }

    #[test]
    fn empty_data_frames_count_as_control_frames() {
        let now = timers::now();
        let mut frames = after_preface(now);
        assert!((0..bounds::IDLE_FRAMES).all(|_| frames.count(&frame(0, 0), now)));
        assert!(!frames.count(&frame(0, 0), now));
    }
}
