//! Decodes the body of an HTTP/1 request piece by piece, so that it can be passed on while it arrives.

use crate::bounds;
use crate::net::ReadBuffer;
use crate::web::head::Length;
use crate::web::{BodyError, chunk_size};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

/// A body that is being read.
pub(crate) struct BodyDecoder {
    next: NextPart,
    /// Bytes of data that may still come.
    allowed: u64,
    most: u64,
}

/// The next part of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextPart {
    Bytes(u64),
    ChunkLine,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    Nothing,
}

/// What was decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    /// More bytes must arrive first.
    NeedsMore,
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

    /// Decodes the next piece of the bytes that have arrived.
    pub(crate) fn next(&mut self, input: &mut ReadBuffer) -> Result<Decoded, BodyError> {
        loop {
            match self.next {
                NextPart::Nothing => return Ok(Decoded::End),
                NextPart::Bytes(0) => self.next = NextPart::Nothing,
                NextPart::Chunk(0) => self.next = NextPart::ChunkEnd,
                _ if input.is_empty() => return Ok(Decoded::NeedsMore),
                NextPart::Bytes(left) => {
                    let data = piece(input, left);
                    self.next = NextPart::Bytes(left.saturating_sub(length_of(&data)));
                    return Ok(Decoded::Data(data));
                }
                NextPart::Chunk(left) => {
                    let data = piece(input, left);
                    self.next = NextPart::Chunk(left.saturating_sub(length_of(&data)));
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
    fn trailers(&mut self, input: &mut ReadBuffer) -> Result<Decoded, BodyError> {
        let here = input.unread();
        if here.starts_with(b"\r\n") {
            input.consume(2);
            self.next = NextPart::Nothing;
            return Ok(Decoded::End);
        }
        let end = memchr::memmem::find(here, b"\r\n\r\n").map(|at| at.saturating_add(4));
        // Some parsers accept a bare line feed as a line end, so they would see the end of the body there.
        if has_bare_line_feed(end.and_then(|end| here.get(..end)).unwrap_or(here)) {
            return Err(BodyError::BadChunk);
        }
        let Some(end) = end.filter(|end| *end <= bounds::TRAILERS) else {
            let long = here.len() > bounds::TRAILERS;
            return if long { Err(BodyError::BadChunk) } else { Ok(Decoded::NeedsMore) };
        };
        let trailers = parse_trailers(here.get(..end).unwrap_or_default())?;
        input.consume(end);
        self.next = NextPart::Nothing;
        Ok(Decoded::Trailers(trailers))
    }
}

/// Takes at most `most` bytes, and not more than one piece.
fn piece(input: &mut ReadBuffer, most: u64) -> Bytes {
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(bounds::PROXY_PIECE);
    let count = most.min(input.unread().len());
    let bytes = Bytes::copy_from_slice(input.unread().get(..count).unwrap_or_default());
    input.consume(count);
    bytes
}

/// Whether a line feed is not the second half of `\r\n`.
fn has_bare_line_feed(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', bytes)
        .any(|at| at.checked_sub(1).and_then(|before| bytes.get(before)) != Some(&b'\r'))
}

fn length_of(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

fn too_large(most: u64) -> BodyError {
    BodyError::TooLarge(usize::try_from(most).unwrap_or(usize::MAX))
}

/// Parses trailers. Fields that frame or route a message are not allowed there (RFC 9110, 6.5.1).
fn parse_trailers(bytes: &[u8]) -> Result<HeaderMap, BodyError> {
    let mut lines = [httparse::EMPTY_HEADER; bounds::TRAILER_FIELDS];
    let Ok(httparse::Status::Complete((_, lines))) = httparse::parse_headers(bytes, &mut lines)
    else {
        return Err(BodyError::BadChunk);
    };
    let mut trailers = HeaderMap::new();
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes());
        let value = HeaderValue::from_bytes(line.value);
        let (Ok(name), Ok(value)) = (name, value) else { return Err(BodyError::BadChunk) };
        if FORBIDDEN.contains(&name.as_str()) {
            return Err(BodyError::BadChunk);
        }
        trailers.append(name, value);
    }
    Ok(trailers)
}

const FORBIDDEN: [&str; 9] = [
    "content-length",
    "transfer-encoding",
    "host",
    "authorization",
    "cookie",
    "content-encoding",
    "content-type",
    "content-range",
    "trailer",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body that arrives in pieces of `size` bytes: its data, its trailers, and what is left over.
    fn decode(
        length: Length,
        bytes: &[u8],
        size: usize,
    ) -> Result<(String, usize, String), BodyError> {
        let mut decoder = BodyDecoder::new(length, 100)?;
        let mut input = ReadBuffer::default();
        let (mut data, mut trailers, mut pieces) = (Vec::new(), 0, bytes.chunks(size));
        loop {
            match decoder.next(&mut input)? {
                Decoded::Data(piece) => data.extend_from_slice(&piece),
                Decoded::Trailers(fields) => trailers = fields.len(),
                Decoded::End => break,
                Decoded::NeedsMore => {
                    let Some(piece) = pieces.next() else { panic!("it never ends") };
                    input.arrived(piece);
                }
            }
        }
        let rest = String::from_utf8_lossy(input.unread()).into_owned();
        Ok((String::from_utf8(data).unwrap(), trailers, rest))
    }

    #[test]
    fn bodies_are_decoded_however_they_arrive() {
        let chunks = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        let trailers = b"3\r\nabc\r\n0\r\nsum: 5\r\nmore: 6\r\n\r\n";
        for size in 1..40 {
            let decoded = |length, bytes| decode(length, bytes, size).unwrap();
            assert_eq!(decoded(Length::Bytes(5), b"abcde"), ("abcde".into(), 0, "".into()));
            assert_eq!(decoded(Length::Chunks, chunks), ("abcde".into(), 0, "".into()));
            assert_eq!(decoded(Length::Chunks, trailers), ("abc".into(), 2, "".into()));
        }
        let next = decode(Length::Bytes(2), b"abGET /", 100).unwrap();
        assert_eq!(next, ("ab".into(), 0, "GET /".into()));
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
            b"0\r\ncontent-length: 5\r\n\r\n",
            b"0\r\ntransfer-encoding: chunked\r\n\r\n",
            b"0\r\nbad name: 5\r\n\r\n",
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
