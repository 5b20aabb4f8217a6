//! A guard in front of HTTP/2: counts the frames that ask for nothing.
//!
//! ```text
//!   frame   | length 3 | type 1 | flags 1 | stream 4 | payload … |
//!             └──────── nine bytes, then skip the payload ───────┘
//! ```
//!
//! The library bounds streams, resets and headers, but answers every PING, SETTINGS and empty DATA frame for
//! as long as they come: work for nothing. So there is a budget of such frames that fills by a little every
//! second and by every request; whoever spends it is disconnected. To take a request back is free, once for each: a proxy
//! may do so with all that it has asked in one moment, and those who do nothing else are the library's to bound.
//!
//! It also sees to it that a connection ends without losing a call:
//!
//! ```text
//!   we       GOAWAY, any stream │ PING                                     GOAWAY, the last stream that we saw
//!   client                              PING ACK │ HEADERS 7 │ DATA 7
//!                                       └─────── is held back ───────►│
//! ```
//!
//! The library takes the answer to its PING for a sign that the client knows of the end and asks nothing more. But clients
//! answer a PING before they write what they had begun (grpc-core does), so HEADERS come behind the ACK. The library would
//! not look at them, and close the connection over the `WINDOW_UPDATE` that follows. So the ACK of a connection that ends is
//! held back until nothing more has come for a moment.

use crate::bounds;
use crate::net::{Stream, after};
use bytes::{Buf, Bytes};
use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A connection of HTTP/2: what was already read of it, then the rest.
pub(crate) struct Guarded {
    read: Bytes,
    stream: Stream,
    frames: Frames,
    ending: Ending,
    last: Option<Box<Last>>,
}

/// Says to the guard that its connection is about to end.
#[derive(Clone, Default)]
pub(crate) struct Ending(Rc<Cell<bool>>);

/// The last frames of a connection that is about to end.
struct Last {
    /// Where in the stream of frames it is.
    skip: usize,
    head: Vec<u8>,
    /// So much of the head was handed on before.
    handed_on: usize,
    /// The frame is held back.
    holds: bool,
    held: Vec<u8>,
    /// For the library.
    passed: Vec<u8>,
    quiet: Pin<Box<Sleep>>,
    /// When answers to pings are handed on at the latest.
    latest: Instant,
}

/// Where in the stream of frames a connection is, and what is left of its budget.
#[derive(Debug)]
struct Frames {
    /// The rest of the payload, or of the preface, that is skipped.
    skip: usize,
    head: [u8; 9],
    have: usize,
    budget: u32,
    /// Requests that may have been taken back by nobody yet.
    requests: u32,
    filled: Instant,
}

const PREFACE: usize = 24;
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const ACK: u8 = 1;

impl Guarded {
    pub(crate) fn new(stream: Stream, read: Vec<u8>, ending: Ending) -> Self {
        let frames = Frames::new(Instant::now());
        Self { read: read.into(), stream, frames, ending, last: None }
    }

    /// Reads what there is, and counts its frames.
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
        if self.frames.count(fresh, Instant::now()) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "too many idle frames")))
    }

    /// The same for a connection that is about to end: answers to pings come last.
    fn poll_last(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut last = self.last.take().unwrap_or_else(|| Box::new(Last::new(&self.frames)));
        let polled = loop {
            if last.hand_on(buffer) {
                break Poll::Ready(Ok(()));
            }
            let mut bytes = [0; 2 * 1024];
            let mut fresh = ReadBuf::new(&mut bytes);
            match self.poll_counted(context, &mut fresh) {
                Poll::Ready(Ok(())) if fresh.filled().is_empty() => break Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => last.read(fresh.filled()),
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending if last.is_quiet(context) => {}
                Poll::Pending => break Poll::Pending,
            }
        };
        self.last = Some(last);
        polled
    }
}

// === impl Ending ===

impl Ending {
    pub(crate) fn begin(&self) {
        self.0.set(true);
    }
}

// === impl Last ===

impl Last {
    fn new(frames: &Frames) -> Self {
        let head = frames.head.get(..frames.have).unwrap_or_default().to_vec();
        Self {
            skip: frames.skip,
            handed_on: head.len(),
            head,
            holds: false,
            held: Vec::new(),
            passed: Vec::new(),
            quiet: Box::pin(sleep_until(Instant::now())),
            latest: after(Duration::from_millis(bounds::LINGER_MILLIS)),
        }
    }

    /// Puts the frames of some bytes where they belong.
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
                self.place().extend_from_slice(piece);
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
        let handed_on = std::mem::take(&mut self.handed_on);
        self.holds = kind == PING && flags & ACK != 0 && handed_on == 0;
        let head = std::mem::take(&mut self.head);
        self.place().extend(head.into_iter().skip(handed_on));
    }

    fn place(&mut self) -> &mut Vec<u8> {
        if self.holds { &mut self.held } else { &mut self.passed }
    }

    /// Hands on as much as there is room for; false when there is nothing.
    fn hand_on(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let count = self.passed.len().min(buffer.remaining());
        buffer.put_slice(self.passed.get(..count).unwrap_or_default());
        self.passed.drain(..count);
        count > 0
    }

    /// Whether nothing has come for a moment. What was held back is handed on then.
    fn is_quiet(&mut self, context: &mut Context<'_>) -> bool {
        let whole = self.skip == 0 || !self.holds;
        if self.held.is_empty() || !whole || self.quiet.as_mut().poll(context).is_pending() {
            return false;
        }
        self.passed.append(&mut self.held);
        true
    }
}

// === impl Frames ===

impl Frames {
    fn new(now: Instant) -> Self {
        let budget = bounds::IDLE_FRAMES;
        Self { skip: PREFACE, head: [0; 9], have: 0, budget, requests: 0, filled: now }
    }

    /// Counts the frames in some bytes; false when there were too many of the idle kind.
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

    /// A frame begins.
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

// === impl Guarded ===

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ending.0.get() {
            return self.poll_last(context, buffer);
        }
        self.poll_counted(context, buffer)
    }
}

impl AsyncWrite for Guarded {
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

    fn after_preface(now: Instant) -> Frames {
        let mut frames = Frames::new(now);
        assert!(frames.count(&[1; PREFACE], now));
        frames
    }

    #[test]
    fn pings_are_counted_however_they_are_cut() {
        let now = Instant::now();
        for piece in [1, 5, 17, 1_000] {
            let mut frames = after_preface(now);
            let most = usize::try_from(bounds::IDLE_FRAMES).unwrap();
            let pings: Vec<u8> = (0..most).flat_map(|_| frame(6, 8)).collect();
            assert!(pings.chunks(piece).all(|bytes| frames.count(bytes, now)), "pieces of {piece}");
            assert!(!frames.count(&frame(6, 8), now));
        }
    }

    #[test]
    fn requests_and_time_fill_the_budget() {
        let start = Instant::now();
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

    /// A proxy has a thousand calls under way, and its timers ring all at once.
    #[test]
    fn every_request_may_be_taken_back_once() {
        let now = Instant::now();
        let mut frames = after_preface(now);
        for _ in 0..3 {
            assert!((0..bounds::GRPC_STREAMS).all(|_| frames.count(&frame(1, 40), now)));
            assert!((0..bounds::GRPC_STREAMS).all(|_| frames.count(&frame(3, 4), now)));
            assert!(frames.count(&frame(6, 8), now));
        }
        let idle = (0..10_000).take_while(|_| frames.count(&frame(3, 4), now)).count();
        assert!(idle <= usize::try_from(bounds::IDLE_FRAMES).unwrap(), "{idle}");
    }

    /// Answers to pings come last, however the frames are cut, and all else stays as it is and in order.
    #[tokio::test(start_paused = true)]
    async fn answers_to_pings_come_last() {
        let now = Instant::now();
        let mut ack = frame(PING, 8);
        ack[4] = ACK;
        let before = [frame(HEADERS, 40), frame(PING, 8)].concat();
        let behind = [frame(DATA, 100), frame(8, 4), frame(DATA, 0)].concat();
        let all = [&before[..], &ack, &behind].concat();
        let expected = [&before[..], &behind].concat();
        for cut in 0..=before.len() {
            for piece in [1, 7, 1_000] {
                // The first bytes were handed on before the end began.
                let mut frames = after_preface(now);
                assert!(frames.count(&all[..cut], now));
                let mut last = Last::new(&frames);
                all[cut..].chunks(piece).for_each(|bytes| last.read(bytes));
                assert_eq!([&all[..cut], &last.passed].concat(), expected, "{cut} {piece}");
                assert_eq!(last.held, ack, "{cut} {piece}");
                last.passed.clear();
                let mut context = Context::from_waker(std::task::Waker::noop());
                assert!(!last.is_quiet(&mut context));
                tokio::time::advance(Duration::from_millis(bounds::QUIET_MILLIS + 1)).await;
                assert!(last.is_quiet(&mut context) && last.passed == ack);
            }
        }
    }

    #[test]
    fn empty_data_asks_for_nothing() {
        let now = Instant::now();
        let mut frames = after_preface(now);
        assert!((0..bounds::IDLE_FRAMES).all(|_| frames.count(&frame(0, 0), now)));
        assert!(!frames.count(&frame(0, 0), now));
    }
}
