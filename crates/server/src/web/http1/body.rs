//! The body of a request: of a given length, or in chunks.
//!
//! Memory grows with the bytes that arrive, not with the announced length.

use super::head::Length;
use crate::bounds;
use crate::net::ReadBuffer;
use httparse::Status;

/// How large a body may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyBound {
    /// Bytes of a body in general.
    pub(crate) one: usize,
    /// Bytes of a batch: a body that begins like a JSON list.
    pub(crate) batch: usize,
}

/// A body that is being read.
pub(crate) struct Body {
    bytes: Vec<u8>,
    most: BodyBound,
    left: Left,
}

/// The next part of the body.
enum Left {
    Nothing,
    /// This many bytes of a body with a length.
    Bytes(usize),
    /// The line with the size of a chunk.
    ChunkLine,
    /// This many bytes of a chunk.
    Chunk(usize),
    /// The line end behind a chunk.
    ChunkEnd,
    /// Trailers, of which this many bytes were skipped.
    Trailers(usize),
}

/// Why a body is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It has more than this many bytes.
    TooLarge(usize),
    BadChunk,
}

impl BodyBound {
    pub(crate) const fn bytes(bytes: usize) -> Self {
        Self { one: bytes, batch: bytes }
    }

    /// The bound for a body that begins with these bytes.
    pub(crate) fn of(self, beginning: &[u8]) -> usize {
        if is_list(beginning) { self.batch } else { self.one }
    }
}

/// Whether a body that begins with these bytes is a JSON list.
pub(crate) fn is_list(beginning: &[u8]) -> bool {
    beginning.trim_ascii_start().first() == Some(&b'[')
}

impl Body {
    pub(crate) fn new(length: Length, most: BodyBound) -> Result<Self, BodyError> {
        let left = match length {
            Length::None => Left::Nothing,
            Length::Bytes(bytes) if bytes > most.batch => {
                return Err(BodyError::TooLarge(most.batch));
            }
            Length::Bytes(bytes) => Left::Bytes(bytes),
            Length::Chunks => Left::ChunkLine,
        };
        Ok(Self { bytes: Vec::new(), most, left })
    }

    /// How many bytes have arrived.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// How much memory to reserve: the announced length or, for chunks, somewhat more than has arrived. The announced length is
    /// reserved whole, because two bodies that each have half of their memory would wait for each other (a deadlock).
    pub(crate) fn needs(&self, input: &ReadBuffer) -> usize {
        let here = self.bytes.len();
        match self.left {
            Left::Nothing => here,
            Left::Bytes(left) => here.saturating_add(left),
            Left::ChunkLine | Left::Chunk(_) | Left::ChunkEnd | Left::Trailers(_) => {
                here.saturating_add(input.unread().len()).next_power_of_two()
            }
        }
    }

    /// Takes the bytes that have arrived; true when the body is complete.
    pub(crate) fn take_from(&mut self, input: &mut ReadBuffer) -> Result<bool, BodyError> {
        loop {
            self.left = match self.left {
                Left::Nothing => return Ok(true),
                Left::Bytes(0) => Left::Nothing,
                Left::Chunk(0) => Left::ChunkEnd,
                _ if input.is_empty() => return Ok(false),
                Left::Bytes(left) => {
                    self.grow_within(left, input.unread().len());
                    Left::Bytes(self.move_from(input, left)?)
                }
                Left::Chunk(left) => Left::Chunk(self.move_from(input, left)?),
                Left::ChunkLine => match self.chunk_line(input)? {
                    Some(left) => left,
                    None => return Ok(false),
                },
                Left::ChunkEnd => match input.unread().get(..2) {
                    Some(b"\r\n") => {
                        input.consume(2);
                        Left::ChunkLine
                    }
                    Some(_) => return Err(BodyError::BadChunk),
                    None => return Ok(false),
                },
                Left::Trailers(read) => match trailer(input, read)? {
                    Some(left) => left,
                    None => return Ok(false),
                },
            }
        }
    }

    /// Enlarges the buffer for bytes that have arrived: it doubles, as usual, but not beyond the announced length.
    fn grow_within(&mut self, left: usize, arrived: usize) {
        if arrived.min(left) > self.bytes.capacity().saturating_sub(self.bytes.len()) {
            self.bytes.reserve_exact(arrived.max(self.bytes.len()).min(left));
        }
    }

    /// Moves at most `left` bytes, and returns how many are left.
    fn move_from(&mut self, input: &mut ReadBuffer, left: usize) -> Result<usize, BodyError> {
        let count = left.min(input.unread().len());
        self.bytes.extend_from_slice(input.unread().get(..count).unwrap_or_default());
        input.consume(count);
        // Whether it is a list is known from the first bytes on. So the announced rest is checked here.
        self.fits(left.saturating_sub(count))?;
        Ok(left.saturating_sub(count))
    }

    /// Checks that the body may have `more` bytes.
    fn fits(&self, more: usize) -> Result<(), BodyError> {
        let most = self.most.of(&self.bytes);
        // While only white space has arrived, it may still become a list.
        let more = if self.bytes.trim_ascii_start().is_empty() { 0 } else { more };
        let long = self.bytes.len().saturating_add(more) > most;
        if long { Err(BodyError::TooLarge(most)) } else { Ok(()) }
    }

    /// Reads the size of the next chunk.
    fn chunk_line(&self, input: &mut ReadBuffer) -> Result<Option<Left>, BodyError> {
        let Some((read, size)) = chunk_size(input.unread())? else { return Ok(None) };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if self.bytes.len().saturating_add(size) > self.most.batch {
            return Err(BodyError::TooLarge(self.most.batch));
        }
        input.consume(read);
        Ok(Some(if size == 0 { Left::Trailers(0) } else { Left::Chunk(size) }))
    }
}

/// The line before a chunk: how long the line is, and the size of the chunk. `None`: it has not arrived completely.
///
/// Some parsers end the line at a bare line feed, also within an extension, and would see another request where we see data
/// (request smuggling). `httparse` skips extensions without looking at them, so every control character is refused here.
pub(crate) fn chunk_size(here: &[u8]) -> Result<Option<(usize, u64)>, BodyError> {
    let line = here.get(..here.len().min(bounds::CHUNK_LINE)).unwrap_or_default();
    let end = memchr::memchr(b'\r', line).unwrap_or(line.len());
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if line.get(..end).is_none_or(|text| text.iter().any(is_control)) {
        return Err(BodyError::BadChunk);
    }
    let (read, size) = match httparse::parse_chunk_size(line) {
        Ok(Status::Complete(read)) => read,
        Ok(Status::Partial) if line.len() < bounds::CHUNK_LINE => return Ok(None),
        Ok(Status::Partial) | Err(_) => return Err(BodyError::BadChunk),
    };
    let has_line_end = line.get(end..read) == Some(b"\r\n");
    if !has_line_end || !line.first().is_some_and(u8::is_ascii_hexdigit) {
        return Err(BodyError::BadChunk);
    }
    Ok(Some((read, size)))
}

/// Skips one line after the last chunk. An empty line ends the body.
fn trailer(input: &mut ReadBuffer, read: usize) -> Result<Option<Left>, BodyError> {
    let here = input.unread();
    let Some(end) = memchr::memchr(b'\n', here) else {
        let long = read.saturating_add(here.len()) > bounds::TRAILERS;
        return if long { Err(BodyError::BadChunk) } else { Ok(None) };
    };
    let length = end.saturating_add(1);
    let line = here.get(..length).unwrap_or_default();
    let read = read.saturating_add(length);
    // The only carriage return is the one before the line feed.
    let has_line_end = memchr::memchr(b'\r', line).and_then(|at| line.get(at..)) == Some(b"\r\n");
    if !has_line_end || read > bounds::TRAILERS {
        return Err(BodyError::BadChunk);
    }
    let left = if line == b"\r\n" { Left::Nothing } else { Left::Trailers(read) };
    input.consume(length);
    Ok(Some(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a body that arrives in pieces of this size.
    fn read(
        length: Length,
        most: BodyBound,
        text: &[u8],
        piece: usize,
    ) -> Result<Option<Vec<u8>>, BodyError> {
        let mut body = Body::new(length, most)?;
        let mut input = ReadBuffer::default();
        for piece in text.chunks(piece) {
            input.arrived(piece);
            if body.take_from(&mut input)? {
                return Ok(Some(body.into_bytes()));
            }
        }
        Ok(None)
    }

    #[test]
    fn chunks_arrive_in_any_pieces() {
        let text = b"4\r\nWiki\r\n6;x=y\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\nA: b\r\n\r\n";
        for piece in 1..=text.len() {
            let body = read(Length::Chunks, BodyBound::bytes(1_000), text, piece).unwrap().unwrap();
            assert_eq!(body, b"Wikipedia in \r\n\r\nchunks.", "pieces of {piece}");
        }
    }

    #[test]
    fn a_body_longer_than_the_bound_is_refused() {
        let five = BodyBound::bytes(5);
        assert_eq!(read(Length::Bytes(5), five, b"hello", 2), Ok(Some(b"hello".to_vec())));
        assert_eq!(read(Length::Bytes(6), five, b"hello!", 2), Err(BodyError::TooLarge(5)));
        assert_eq!(read(Length::Bytes(5), five, b"hell", 2), Ok(None));
        let chunks = b"3\r\nabc\r\n3\r\nabc\r\n";
        assert_eq!(read(Length::Chunks, five, chunks, 1), Err(BodyError::TooLarge(5)));
    }

    #[test]
    fn only_a_list_may_be_as_large_as_a_batch() {
        let most = BodyBound { one: 5, batch: 8 };
        for (text, expected) in [
            (&b"[1,2,34]"[..], Ok(Some(b"[1,2,34]".to_vec()))),
            (b" [1,2,3]", Ok(Some(b" [1,2,3]".to_vec()))),
            (b"{1,2,34}", Err(BodyError::TooLarge(5))),
            (b"        ", Err(BodyError::TooLarge(5))),
        ] {
            for piece in [1, 8] {
                assert_eq!(read(Length::Bytes(8), most, text, piece), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn invalid_chunks_are_refused() {
        let long = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(bounds::CHUNK_LINE));
        let trailers = format!("0\r\n{}\r\n", "a: b\r\n".repeat(bounds::TRAILERS / 6 + 1));
        let bad = [
            "-1\r\n",
            "FFFFFFFFFFFFFFFFF\r\n",
            "x\r\n",
            "\r\n",
            ";a\r\n",
            " 1\r\nx",
            "1\nx\r\n0\r\n\r\n",
            "1\r\nxy0\r\n\r\n",
            "0\r\nA: b\n\r\n",
            "0\r\nA: b\rc\r\n\r\n",
            "1;a\nx\r\nx\r\n0\r\n\r\n",
            "1;a=\"\n\"\r\nx\r\n0\r\n\r\n",
            "1;\0\r\nx\r\n0\r\n\r\n",
            &long,
            &trailers,
        ];
        for text in bad {
            for piece in [1, 7, text.len()] {
                let read = read(Length::Chunks, BodyBound::bytes(1_000), text.as_bytes(), piece);
                assert_eq!(read, Err(BodyError::BadChunk), "{text:?} in pieces of {piece}");
            }
        }
    }
}
