//! Decodes the body of a request piece by piece: of a given length, or in chunks.
//!
//! ```text
//!   4 CR LF  Wiki CR LF  0 CR LF  sum: 5 CR LF  CR LF          what is decoded: Data(Wiki), Trailers(sum: 5 …), End
//! ```
//!
//! The decoder keeps no bytes, it only takes them from the read buffer. So a body can be collected, or passed on while it arrives.

use super::head::Length;
use crate::bounds;
use crate::net::ReadBuffer;
use httparse::Status;

/// A body that is being decoded.
pub(crate) struct BodyDecoder {
    next: NextPart,
    /// Bytes of data that may still be announced.
    allowed: u64,
    most: u64,
}

/// The next part of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextPart {
    /// This many bytes of a body with a length.
    Bytes(u64),
    /// The line with the size of a chunk.
    ChunkLine,
    /// This many bytes of a chunk.
    Chunk(u64),
    /// The line end behind a chunk.
    ChunkEnd,
    Trailers,
    Nothing,
}

/// What was decoded, and taken from the read buffer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded<'i> {
    /// Bytes of the body, at most one piece.
    Data(&'i [u8]),
    /// The lines behind the last chunk. Each ends in `\r\n`, and the last one is empty.
    Trailers(&'i [u8]),
    End,
    /// More bytes must arrive first.
    NeedsMore,
}

/// Why a body is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It has more than this many bytes.
    TooLarge(usize),
    BadChunk,
}

impl BodyDecoder {
    /// A decoder of a body that may have at most `most` bytes.
    pub(crate) fn new(length: Length, most: u64) -> Result<Self, BodyError> {
        let next = match length {
            Length::None | Length::Bytes(0) => NextPart::Nothing,
            Length::Bytes(bytes) => NextPart::Bytes(u64::try_from(bytes).unwrap_or(u64::MAX)),
            Length::Chunks => NextPart::ChunkLine,
        };
        if matches!(next, NextPart::Bytes(bytes) if bytes > most) {
            return Err(too_large(most));
        }
        Ok(Self { next, allowed: most, most })
    }

    /// Whether there is nothing left to decode.
    pub(crate) fn is_done(&self) -> bool {
        self.next == NextPart::Nothing
    }

    /// How many bytes of data follow for certain: the rest of the body, or of the current chunk.
    pub(crate) const fn announced(&self) -> u64 {
        match self.next {
            NextPart::Bytes(left) | NextPart::Chunk(left) => left,
            NextPart::ChunkLine | NextPart::ChunkEnd | NextPart::Trailers | NextPart::Nothing => 0,
        }
    }

    /// Decodes the next piece of the bytes that have arrived.
    pub(crate) fn next<'i>(&mut self, input: &'i mut ReadBuffer) -> Result<Decoded<'i>, BodyError> {
        loop {
            match self.next {
                NextPart::Nothing => return Ok(Decoded::End),
                NextPart::Bytes(0) => self.next = NextPart::Nothing,
                NextPart::Chunk(0) => self.next = NextPart::ChunkEnd,
                _ if input.is_empty() => return Ok(Decoded::NeedsMore),
                NextPart::Bytes(left) => {
                    let data = piece(input, left);
                    self.next = NextPart::Bytes(left.saturating_sub(length_of(data)));
                    return Ok(Decoded::Data(data));
                }
                NextPart::Chunk(left) => {
                    let data = piece(input, left);
                    self.next = NextPart::Chunk(left.saturating_sub(length_of(data)));
                    return Ok(Decoded::Data(data));
                }
                NextPart::ChunkLine => {
                    let Some((read, size)) = chunk_size(input.unread())? else {
                        return Ok(Decoded::NeedsMore);
                    };
                    self.allowed =
                        self.allowed.checked_sub(size).ok_or_else(|| too_large(self.most))?;
                    input.consume(read);
                    self.next = if size == 0 { NextPart::Trailers } else { NextPart::Chunk(size) };
                }
                NextPart::ChunkEnd => match input.unread().get(..2) {
                    Some(b"\r\n") => {
                        input.consume(2);
                        self.next = NextPart::ChunkLine;
                    }
                    Some(_) => return Err(BodyError::BadChunk),
                    None => return Ok(Decoded::NeedsMore),
                },
                NextPart::Trailers => return self.trailers(input),
            }
        }
    }

    /// Decodes what follows the last chunk, which must have arrived completely.
    fn trailers<'i>(&mut self, input: &'i mut ReadBuffer) -> Result<Decoded<'i>, BodyError> {
        let here = input.unread();
        if here.starts_with(b"\r\n") {
            input.consume(2);
            self.next = NextPart::Nothing;
            return Ok(Decoded::End);
        }
        let end = memchr::memmem::find(here, b"\r\n\r\n").map(|at| at.saturating_add(4));
        // Some parsers accept a bare line feed or carriage return as a line end, so they would see the end of the body there.
        if has_bare_line_end(end.and_then(|end| here.get(..end)).unwrap_or(here)) {
            return Err(BodyError::BadChunk);
        }
        let Some(end) = end.filter(|end| *end <= bounds::TRAILERS) else {
            let long = here.len() > bounds::TRAILERS;
            return if long { Err(BodyError::BadChunk) } else { Ok(Decoded::NeedsMore) };
        };
        self.next = NextPart::Nothing;
        Ok(Decoded::Trailers(input.take(end)))
    }
}

/// Takes at most `most` bytes, and not more than one piece.
fn piece(input: &mut ReadBuffer, most: u64) -> &[u8] {
    input.take(usize::try_from(most).unwrap_or(usize::MAX).min(bounds::PROXY_PIECE))
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

/// Whether a line feed or a carriage return is not a part of `\r\n`. The last byte may be the first half of one.
fn has_bare_line_end(bytes: &[u8]) -> bool {
    let is_half = |pair: &[u8]| (pair.first() == Some(&b'\r')) != (pair.last() == Some(&b'\n'));
    bytes.starts_with(b"\n") || bytes.windows(2).any(is_half)
}

fn length_of(data: &[u8]) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

fn too_large(most: u64) -> BodyError {
    BodyError::TooLarge(usize::try_from(most).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body that arrives in pieces of `size` bytes: its data, its trailers, and what is left over.
    fn decode(
        length: Length,
        bytes: &[u8],
        size: usize,
    ) -> Result<(String, String, String), BodyError> {
        let mut decoder = BodyDecoder::new(length, 100)?;
        let mut input = ReadBuffer::default();
        let (mut data, mut trailers, mut pieces) = (Vec::new(), Vec::new(), bytes.chunks(size));
        loop {
            match decoder.next(&mut input)? {
                Decoded::Data(piece) => data.extend_from_slice(piece),
                Decoded::Trailers(lines) => trailers.extend_from_slice(lines),
                Decoded::End => break,
                Decoded::NeedsMore => {
                    let Some(piece) = pieces.next() else { panic!("it never ends") };
                    input.arrived(piece);
                }
            }
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&data), text(&trailers), text(input.unread())))
    }

    #[test]
    fn bodies_are_decoded_however_they_arrive() {
        let chunks = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        let trailers = b"3\r\nabc\r\n0\r\nsum: 5\r\nmore: 6\r\n\r\n";
        for size in 1..40 {
            let decoded = |length, bytes| decode(length, bytes, size).unwrap();
            let nothing = String::new;
            let abcde = ("abcde".to_owned(), nothing(), nothing());
            assert_eq!(decoded(Length::Bytes(5), b"abcde"), abcde);
            assert_eq!(decoded(Length::Chunks, chunks), abcde);
            let lines = "sum: 5\r\nmore: 6\r\n\r\n".to_owned();
            assert_eq!(decoded(Length::Chunks, trailers), ("abc".to_owned(), lines, nothing()));
        }
        let next = decode(Length::Bytes(2), b"abGET /", 100).unwrap();
        assert_eq!(next, ("ab".to_owned(), String::new(), "GET /".to_owned()));
    }

    #[test]
    fn bodies_that_are_not_well_formed_are_refused() {
        for bytes in [
            &b"x\r\n"[..],
            b" 3\r\nabc\r\n0\r\n\r\n",
            b"3\nabc\r\n0\r\n\r\n",
            b"3\r\nabcd\r\n",
            b"-1\r\n",
            b"0x3\r\nabc\r\n",
            b"3;x\nabc\r\nabc\r\n0\r\n\r\n",
            b"0;x\n\r\n\r\n",
            b"0\r\na: b\rc\r\n\r\n",
            // Everything up to the next empty line was once taken for trailers, and the part behind the line feed was lost.
            b"0\r\n\nGET /next HTTP/1.1\r\nhost: x\r\n\r\n",
            b"0\r\na: b\n\r\nGET /next HTTP/1.1\r\nhost: x\r\n\r\n",
            b"0\r\na: b\n\nGET /next HTTP/1.1\r\nhost: x\r\n\r\n",
            b"0\r\n\n",
            b"0\r\na: b\n",
        ] {
            let refused = decode(Length::Chunks, bytes, 1).unwrap_err();
            assert_eq!(refused, BodyError::BadChunk, "{:?}", String::from_utf8_lossy(bytes));
        }
        let long = [&b"0\r\nx: "[..], &[b'x'; bounds::TRAILERS]].concat();
        assert_eq!(decode(Length::Chunks, &long, 1_000).unwrap_err(), BodyError::BadChunk);
    }

    #[test]
    fn a_body_has_a_largest_size() {
        assert_eq!(decode(Length::Bytes(101), b"", 1).unwrap_err(), BodyError::TooLarge(100));
        let chunks = b"60\r\n";
        let more = [&chunks[..], &[b'x'; 96], b"\r\n5\r\n"].concat();
        assert_eq!(decode(Length::Chunks, &more, 7).unwrap_err(), BodyError::TooLarge(100));
    }
}
