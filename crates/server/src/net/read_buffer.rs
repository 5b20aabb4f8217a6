//! A read buffer: bytes that were read from a connection and are not parsed yet.

use super::budget::Reservation;
use super::stream::Stream;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes in the order of their arrival: read at the end, consumed at the start. Its memory is reserved in the connection budget.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    reserved: Reservation,
    /// The unread bytes are `bytes[start..end]`.
    start: usize,
    end: usize,
    /// The most bytes that it may grow to.
    most: usize,
    /// The size that it has while little arrives.
    usual: usize,
}

/// The usual size of a buffer: enough for most requests.
pub(crate) const USUAL: usize = 4 * 1024;

impl Default for ReadBuffer {
    fn default() -> Self {
        let (bytes, reserved) = (Vec::new(), Reservation::default());
        Self { bytes, reserved, start: 0, end: 0, most: 0, usual: USUAL }
    }
}

impl ReadBuffer {
    /// A buffer of at most `most` bytes. The parser refuses a request that could not fit before the buffer is full.
    pub(crate) fn new(most: usize, reserved: Reservation) -> Self {
        Self { most, reserved, ..Self::default() }
    }

    /// Uses another size from now on: larger for a body that is passed on, smaller while nothing but the end of the connection
    /// is expected. The bytes that it holds stay.
    pub(crate) fn set_usual(&mut self, usual: usize) {
        self.usual = usual;
        if self.is_empty() && self.bytes.len() != usual {
            self.free();
        }
    }

    /// Gives the memory of an empty buffer back.
    fn free(&mut self) {
        (self.bytes, self.start, self.end) = (Vec::new(), 0, 0);
        self.reserved.resize(0);
    }

    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    pub(crate) fn unread(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
    }

    /// Consumes at most `most` bytes, and returns them.
    pub(crate) fn take(&mut self, most: usize) -> &[u8] {
        let start = self.start;
        self.consume(most);
        self.bytes.get(start..self.start).unwrap_or_default()
    }

    pub(crate) fn clear(&mut self) {
        self.start = self.end;
    }

    /// Skips empty lines and returns how many bytes they had.
    pub(crate) fn skip_empty_lines(&mut self) -> usize {
        let ends = self.unread().iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
        let count = ends.count();
        self.consume(count);
        count
    }

    /// Reads once into the free part of the buffer; 0 is the end of the stream.
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

    /// Makes room at the end: moves the bytes to the start, or enlarges the buffer. False if the connection budget does not
    /// allow a larger one.
    pub(super) fn make_room(&mut self) -> bool {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            // A large request is done, and its connection may now be idle for a long time; or a large body has begun behind its
            // head, and is read in larger pieces from here on.
            if self.bytes.len() != self.usual {
                self.free();
            }
        }
        if self.start > 0 && self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end = self.end.saturating_sub(self.start);
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let most = self.most.max(self.usual);
            let larger = self.bytes.len().saturating_mul(2).clamp(self.usual, most);
            // At least one more byte: a read into an empty slice returns 0, which would look like the end of the stream.
            let mut larger = larger.max(self.end.saturating_add(1));
            // Without memory for a large buffer, a body goes on through a small one, which does not count.
            if !self.reserved.resize(larger) {
                larger = USUAL;
                if !self.bytes.is_empty() || !self.reserved.resize(larger) {
                    return false;
                }
            }
            self.bytes.reserve_exact(larger.saturating_sub(self.bytes.len()));
            self.bytes.resize(larger, 0);
        }
        true
    }
}

impl ReadBuffer {
    /// Adds bytes as if they had been read, for tests.
    pub(crate) fn arrived(&mut self, bytes: &[u8]) {
        self.bytes.truncate(self.end);
        self.bytes.extend_from_slice(bytes);
        self.end = self.bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of a body arrived behind the head, in a small buffer. Once they are consumed, the buffer has the size
    /// that is usual for bodies. It once stayed small, and uploads were read 4 KiB at a time.
    #[test]
    fn an_empty_buffer_takes_its_usual_size() {
        let mut buffer = ReadBuffer::new(8 * 1024, Reservation::default());
        assert!(buffer.make_room());
        assert_eq!(buffer.bytes.len(), USUAL);
        buffer.end = 3;
        buffer.set_usual(64 * 1024);
        assert!(buffer.make_room());
        assert_eq!((buffer.unread().len(), buffer.bytes.len()), (3, USUAL));
        buffer.consume(3);
        assert!(buffer.make_room());
        assert_eq!(buffer.bytes.len(), 64 * 1024);
        buffer.set_usual(USUAL);
        assert!(buffer.make_room());
        assert_eq!(buffer.bytes.len(), USUAL);
    }
}
