//! The body of a request that is answered when all of it has arrived.
//!
//! Memory grows with the bytes that arrive, not with the announced length.

use super::body_decoder::{BodyDecoder, BodyError, Decoded};
use super::head::Length;
use crate::net::ReadBuffer;

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
    decoder: BodyDecoder,
    is_chunked: bool,
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
        let largest = u64::try_from(most.batch).unwrap_or(u64::MAX);
        let decoder = BodyDecoder::new(length, largest)?;
        Ok(Self { bytes: Vec::new(), most, decoder, is_chunked: length == Length::Chunks })
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
        if self.is_chunked && !self.decoder.is_done() {
            self.bytes.len().saturating_add(input.unread().len()).next_power_of_two()
        } else {
            self.bytes.len().saturating_add(self.announced())
        }
    }

    /// Takes the bytes that have arrived; true when the body is complete.
    pub(crate) fn take_from(&mut self, input: &mut ReadBuffer) -> Result<bool, BodyError> {
        loop {
            match self.decoder.next(input)? {
                Decoded::Data(data) => {
                    self.grow_for(data);
                    self.bytes.extend_from_slice(data);
                    self.fits()?;
                }
                Decoded::Trailers(_) => {}
                Decoded::End => return Ok(true),
                Decoded::NeedsMore => return Ok(false),
            }
        }
    }

    /// How many bytes follow for certain.
    fn announced(&self) -> usize {
        usize::try_from(self.decoder.announced()).unwrap_or(usize::MAX)
    }

    /// Enlarges the buffer for bytes that have arrived: it doubles, as usual, but not beyond the announced length.
    fn grow_for(&mut self, data: &[u8]) {
        let arrived = data.len();
        let held = self.bytes.len();
        if !self.is_chunked && arrived > self.bytes.capacity().saturating_sub(held) {
            let left = arrived.saturating_add(self.announced());
            self.bytes.reserve_exact(arrived.max(held).min(left));
        }
    }

    /// Checks that the body may have as many bytes as it is going to have. Whether it is a list is known from its first bytes on.
    fn fits(&self) -> Result<(), BodyError> {
        let most = self.most.of(&self.bytes);
        // While only white space has arrived, it may still become a list.
        let blank = self.bytes.trim_ascii_start().is_empty();
        let more = if blank { 0 } else { self.announced() };
        let long = self.bytes.len().saturating_add(more) > most;
        if long { Err(BodyError::TooLarge(most)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds;

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
