//! What has been read of a connection and not yet looked at.

use super::budget::Hold;
use super::stream::Stream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes in the order of their arrival: read at the end, consumed at the start.
#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    hold: Hold,
    start: usize,
    end: usize,
    most: usize,
}

/// As much as most requests need.
const USUAL: usize = 4 * 1024;

impl Input {
    /// Keeps at most so much; what does not fit is refused by whoever looks at it before it comes to that.
    pub(crate) fn new(most: usize, hold: Hold) -> Self {
        Self { most, hold, ..Self::default() }
    }

    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    pub(crate) fn here(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
    }

    pub(crate) fn clear(&mut self) {
        self.start = self.end;
    }

    /// Skips empty lines, and says how many bytes they had.
    pub(crate) fn skip_empty_lines(&mut self) -> usize {
        let ends = self.here().iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
        let count = ends.count();
        self.consume(count);
        count
    }

    /// Reads once into the room that was made; 0 is the end.
    pub(crate) fn poll_read_from(
        &mut self,
        stream: &mut Stream,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let room = self.bytes.get_mut(self.end..).unwrap_or_default();
        let mut buffer = ReadBuf::new(room);
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        let read = buffer.filled().len();
        self.end = self.end.saturating_add(read);
        Poll::Ready(Ok(read))
    }

    /// There is room at the end then; what is here moves to the start if that makes some. False when there may be none.
    pub(super) fn make_room(&mut self) -> bool {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            // A large request is over, and its connection may be idle for long.
            if self.bytes.len() > USUAL {
                self.bytes = Vec::new();
                self.hold.resize(0);
            }
        }
        if self.start > 0 && self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end = self.end.saturating_sub(self.start);
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let larger = self.bytes.len().saturating_mul(2).clamp(USUAL, self.most.max(USUAL));
            // One byte more at least, or a reader would take a full buffer for the end.
            let larger = larger.max(self.end.saturating_add(1));
            if !self.hold.resize(larger) {
                return false;
            }
            self.bytes.reserve_exact(larger.saturating_sub(self.bytes.len()));
            self.bytes.resize(larger, 0);
        }
        true
    }
}

#[cfg(test)]
impl Input {
    pub(crate) fn arrived(&mut self, bytes: &[u8]) {
        self.bytes.truncate(self.end);
        self.bytes.extend_from_slice(bytes);
        self.end = self.bytes.len();
    }
}
