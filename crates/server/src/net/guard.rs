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

use super::stream::Stream;
use crate::bounds;
use bytes::{Buf, Bytes};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// A connection of HTTP/2: what was already read of it, then the rest.
pub(crate) struct Guarded {
    read: Bytes,
    stream: Stream,
    frames: Frames,
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
const HEADERS: u8 = 1;
const DATA: u8 = 0;
const RST_STREAM: u8 = 3;

impl Guarded {
    pub(crate) fn new(stream: Stream, read: Vec<u8>) -> Self {
        Self { read: read.into(), stream, frames: Frames::new(Instant::now()) }
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
        let this = &mut *self;
        let before = buffer.filled().len();
        if this.read.is_empty() {
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        } else {
            let count = this.read.len().min(buffer.remaining());
            buffer.put_slice(this.read.get(..count).unwrap_or_default());
            this.read.advance(count);
        }
        let fresh = buffer.filled().get(before..).unwrap_or_default();
        if this.frames.count(fresh, Instant::now()) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "too many idle frames")))
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

    #[test]
    fn empty_data_asks_for_nothing() {
        let now = Instant::now();
        let mut frames = after_preface(now);
        assert!((0..bounds::IDLE_FRAMES).all(|_| frames.count(&frame(0, 0), now)));
        assert!(!frames.count(&frame(0, 0), now));
    }
}
