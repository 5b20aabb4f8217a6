//! As much of HPACK (the header compression of HTTP/2) as the load generator needs: it writes the headers of
//! a call once, and of received headers it reads two numbers.
//!
//! A header block is a sequence of these items, which differ in their first bits:
//!
//! ```text
//! 1 index                  a field of the static or dynamic table
//! 01 name, value           a field that both sides add to their dynamic table, so that next time it is an index
//! 0000 or 0001 name, value a field that is not added to the table
//! 001 size                 the new size of the dynamic table
//! ```
//!
//! Of an answer only `:status` and `grpc-status` matter. But the meaning of an index depends on all blocks
//! before. So the decoder keeps the dynamic table: of every field its size and, for these two fields, the
//! number. After the first answer nearly every field is an index, which costs one lookup. Texts are decoded
//! when they occur, which is rare.

use std::collections::VecDeque;

// === writing ===

/// The fields `:method POST` and `:scheme http` of the static table.
const POST_HTTP: [u8; 2] = [0x83, 0x86];
/// The number of fields that the first call adds to the server's dynamic table.
const REMEMBERED: u8 = 4;

/// The headers of the first call of a connection. The server adds them to its dynamic table.
pub(crate) fn first_head(path: &str, authority: &str) -> Vec<u8> {
    let mut block = POST_HTTP.to_vec();
    // The names of the first three are in the static table: 1, 4 and 31.
    for (name, value) in
        [([0x41].as_slice(), authority), (&[0x44], path), (&[0x5f], "application/grpc")]
    {
        block.extend_from_slice(name);
        text(&mut block, value);
    }
    block.push(0x40);
    text(&mut block, "te");
    text(&mut block, "trailers");
    block
}

/// The headers of every further call: the same fields by their indices in the dynamic table, which begins
/// after the 61 static ones. The newest entry has the lowest index. It is written last here, because
/// pseudo-headers (with a colon) must precede others.
pub(crate) fn next_head() -> Vec<u8> {
    let places = (0..REMEMBERED).rev().map(|place| 0x80 | 62u8.saturating_add(place));
    POST_HTTP.into_iter().chain(places).collect()
}

fn text(block: &mut Vec<u8>, text: &str) {
    integer(block, 0x7f, text.len());
    block.extend_from_slice(text.as_bytes());
}

/// An integer with a prefix: it begins in the low bits of a byte, and continues in further bytes if it does
/// not fit.
fn integer(block: &mut Vec<u8>, low: u8, value: usize) {
    match u8::try_from(value) {
        Ok(small) if small < low => block.push(small),
        _ => {
            block.push(low);
            varint(block, value.saturating_sub(low.into()));
        }
    }
}

/// A variable-length integer: seven bits per byte, the lowest first.
pub(crate) fn varint(bytes: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        bytes.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap_or(0));
}

// === reading ===

/// The two status fields of a block, if it has them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statuses {
    pub(crate) http: Option<u16>,
    pub(crate) grpc: Option<u16>,
}

/// Decodes the header blocks of one connection, in the order of their arrival.
pub(crate) struct HpackDecoder {
    /// The dynamic table, the newest entry first.
    table: VecDeque<Field>,
    /// The size of the table in bytes, and its limit.
    size: usize,
    limit: usize,
    huffman: Huffman,
}

/// The default limit of the table, which the generator does not change.
const TABLE: usize = 4096;

/// What the decoder keeps of a field.
#[derive(Debug, Clone, Copy)]
struct Field {
    name: FieldName,
    /// The value of a status field, if it is a number.
    value: Option<u16>,
    /// Its size in the table.
    size: usize,
}

#[derive(Debug, Clone, Copy)]
struct FieldName {
    of: StatusKind,
    length: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusKind {
    HttpStatus,
    GrpcStatus,
    Other,
}

impl HpackDecoder {
    pub(crate) fn new() -> Self {
        Self { table: VecDeque::new(), size: 0, limit: TABLE, huffman: Huffman::new() }
    }

    /// Decodes a block; `None` when it is invalid. After that no other block of the connection can be
    /// decoded.
    pub(crate) fn read(&mut self, block: &[u8]) -> Option<Statuses> {
        let (mut statuses, mut rest) = (Statuses::default(), BlockReader(block));
        while let Some(first) = rest.0.first().copied() {
            let field = if first & 0x80 != 0 {
                self.known(rest.integer(0x7f)?)?
            } else if first & 0x40 != 0 {
                let field = self.literal(&mut rest, 0x3f)?;
                self.remember(field);
                field
            } else if first & 0x20 != 0 {
                self.limit = rest.integer(0x1f)?.min(TABLE);
                self.shrink(0);
                continue;
            } else {
                self.literal(&mut rest, 0x0f)?
            };
            match field.name.of {
                StatusKind::HttpStatus => statuses.http = field.value,
                StatusKind::GrpcStatus => statuses.grpc = field.value,
                StatusKind::Other => {}
            }
        }
        Some(statuses)
    }

    /// The field with this index: first those of the static table, then those of the dynamic table.
    fn known(&self, index: usize) -> Option<Field> {
        match index.checked_sub(KNOWN.len().saturating_add(1)) {
            Some(place) => self.table.get(place).copied(),
            None => {
                let name = known_name(index)?;
                let place = index.saturating_sub(STATUSES.0);
                let value =
                    STATUSES.1.get(place).copied().filter(|_| name.of == StatusKind::HttpStatus);
                Some(Field { name, value, size: 0 })
            }
        }
    }

    /// A literal field, whose name may be an index.
    fn literal(&self, rest: &mut BlockReader<'_>, low: u8) -> Option<Field> {
        let name = match rest.integer(low)? {
            0 => {
                let text = self.text(rest)?;
                let of = match &*text {
                    b":status" => StatusKind::HttpStatus,
                    b"grpc-status" => StatusKind::GrpcStatus,
                    _ => StatusKind::Other,
                };
                FieldName { of, length: text.len() }
            }
            index => self.known(index)?.name,
        };
        let text = self.text(rest)?;
        let number = || str::from_utf8(&text).ok()?.parse().ok();
        let value = if name.of == StatusKind::Other { None } else { number() };
        // The standard adds 32 bytes of overhead per entry.
        let size = name.length.saturating_add(text.len()).saturating_add(32);
        Some(Field { name, value, size })
    }

    fn text(&self, rest: &mut BlockReader<'_>) -> Option<Vec<u8>> {
        let is_coded = rest.0.first()? & 0x80 != 0;
        let length = rest.integer(0x7f)?;
        let bytes = rest.take(length)?;
        if is_coded { self.huffman.decoded(bytes) } else { Some(bytes.to_vec()) }
    }

    fn remember(&mut self, field: Field) {
        self.shrink(field.size);
        // A field that is larger than the table only empties it, as the standard demands.
        if field.size <= self.limit {
            self.table.push_front(field);
            self.size = self.size.saturating_add(field.size);
        }
    }

    /// Evicts the oldest entries until there is room.
    fn shrink(&mut self, room: usize) {
        while self.size.saturating_add(room) > self.limit {
            let Some(oldest) = self.table.pop_back() else { return };
            self.size = self.size.saturating_sub(oldest.size);
        }
    }
}

/// The rest of a block.
struct BlockReader<'b>(&'b [u8]);

impl<'b> BlockReader<'b> {
    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// An integer with a prefix in the low bits of the next byte.
    fn integer(&mut self, low: u8) -> Option<usize> {
        let first = self.take(1)?.first()? & low;
        if first < low {
            return Some(first.into());
        }
        let mut value = 0usize;
        // No number in a header block here has more than 28 bits.
        for shift in [0, 7, 14, 21] {
            let byte = self.take(1)?.first().copied()?;
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value.checked_add(low.into());
            }
        }
        None
    }
}

/// The `:status` fields of the static table, and the index of the first.
const STATUSES: (usize, [u16; 7]) = (8, [200, 204, 206, 304, 400, 404, 500]);

/// The lengths of the names in the static table, by index from 1. Except for `:status`, only the lengths
/// matter.
const KNOWN: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14,
    16, 13, 12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10,
    25, 17, 10, 4, 3, 16,
];

fn known_name(index: usize) -> Option<FieldName> {
    let length = KNOWN.get(index.checked_sub(1)?)?;
    let statuses = STATUSES.0..STATUSES.0.saturating_add(STATUSES.1.len());
    let of = if statuses.contains(&index) { StatusKind::HttpStatus } else { StatusKind::Other };
    Some(FieldName { of, length: (*length).into() })
}

// === Huffman-coded texts ===

/// HPACK's Huffman code. It is canonical: codes of the same length are consecutive numbers in the order of
/// their symbols. So the code lengths determine the whole code.
struct Huffman {
    /// For each length its first code, the number of its codes, and the position of their symbols.
    lengths: Vec<Codes>,
    /// All symbols, ordered by the length of their codes.
    symbols: Vec<usize>,
}

struct Codes {
    first: u32,
    many: u32,
    place: usize,
}

impl Huffman {
    fn new() -> Self {
        let (mut lengths, mut symbols) = (Vec::new(), Vec::new());
        let mut next = 0u32;
        for length in 0..=LONGEST_CODE {
            let place = symbols.len();
            let these = LENGTHS.iter().enumerate().filter(|(_, its)| **its == length);
            symbols.extend(these.map(|(symbol, _)| symbol));
            let many = u32::try_from(symbols.len().saturating_sub(place)).unwrap_or(0);
            lengths.push(Codes { first: next, many, place });
            next = next.wrapping_add(many) << 1;
        }
        Self { lengths, symbols }
    }

    fn decoded(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (mut text, mut code, mut codes) = (Vec::new(), 0u32, self.lengths.iter().skip(1));
        for byte in bytes {
            for bit in (0..8).rev() {
                code = (code << 1) | u32::from((byte >> bit) & 1);
                let these = codes.next()?;
                let Some(place) = code.checked_sub(these.first).filter(|at| *at < these.many)
                else {
                    continue;
                };
                let place = these.place.checked_add(usize::try_from(place).ok()?)?;
                // The last symbol is the end marker, which never occurs in a text.
                text.push(u8::try_from(*self.symbols.get(place)?).ok()?);
                (code, codes) = (0, self.lengths.iter().skip(1));
            }
        }
        Some(text)
    }
}

const LONGEST_CODE: u8 = 30;

/// The number of bits in the code of each byte, and of the end marker.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let pairs = digits.chunks(2).map(|pair| str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    /// RFC 7541, C.6: three answers under a table of 256 bytes. The second and third evict older entries.
    #[test]
    fn the_examples_of_the_standard_are_decoded_and_the_table_has_the_stated_size() {
        let mut fields = HpackDecoder { limit: 256, ..HpackDecoder::new() };
        for (block, status, size) in [
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
                 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                302,
                222,
            ),
            ("4883 640e ffc1 c0bf", 307, 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
                 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
                 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                200,
                215,
            ),
        ] {
            let read = fields.read(&bytes(block));
            assert_eq!(read, Some(Statuses { http: Some(status), grpc: None }));
            assert_eq!(fields.size, size);
        }
    }

    #[test]
    fn huffman_coded_texts_are_decoded() {
        let huffman = Huffman::new();
        for (packed, text) in [
            ("f1e3 c2e5 f23a 6ba0 ab90 f4ff", "www.example.com"),
            (
                "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff",
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
            (
                "94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587
                 3160 65c0 03ed 4ee5 b106 3d50 07",
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ),
        ] {
            assert_eq!(huffman.decoded(&bytes(packed)).as_deref(), Some(text.as_bytes()));
        }
        // Thirty ones are the end marker, which is not a valid text.
        assert_eq!(huffman.decoded(&[0xff; 4]), None);
    }

    #[test]
    fn a_status_is_found_as_a_literal_by_its_index_and_by_the_index_of_its_name() {
        let mut fields = HpackDecoder::new();
        let grpc = |number| Some(Statuses { http: None, grpc: Some(number) });
        assert_eq!(fields.read(b"\x40\x0bgrpc-status\x010"), grpc(0));
        assert_eq!(fields.read(b"\xbe"), grpc(0));
        assert_eq!(fields.read(b"\x7e\x0214"), grpc(14));
        assert_eq!(fields.read(b"\xbe"), grpc(14));
        assert_eq!(fields.read(b"\xbf"), grpc(0));
        // A literal that is not added to the table.
        assert_eq!(fields.read(b"\x0f\x2f\x015"), grpc(5));
        assert_eq!(fields.read(b"\xbe"), grpc(14));
        // A table of size 0 is always empty.
        assert_eq!(fields.read(b"\x20\x88"), Some(Statuses { http: Some(200), grpc: None }));
        assert_eq!(fields.read(b"\xbe"), None);
    }

    #[test]
    fn an_incomplete_block_is_invalid() {
        let block = b"\x40\x0bgrpc-status\x010";
        for cut in 1..block.len() {
            assert_eq!(HpackDecoder::new().read(&block[..cut]), None, "{cut}");
        }
        assert_eq!(HpackDecoder::new().read(&[0xff; 9]), None);
    }

    /// Decodes the blocks that are written for servers. The sizes show that all four fields were added to the
    /// table, and only once.
    #[test]
    fn written_blocks_can_be_decoded() {
        let mut fields = HpackDecoder::new();
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        fields.read(&first_head(path, "localhost")).unwrap();
        let size = 10 + 9 + 5 + path.len() + 12 + 16 + 2 + 8 + 4 * 32;
        assert_eq!((fields.table.len(), fields.size), (4, size));
        fields.read(&next_head()).unwrap();
        assert_eq!((fields.table.len(), fields.size), (4, size));
        let mut long = vec![];
        text(&mut long, &"x".repeat(1337));
        let (length, texts) = long.split_at(3);
        assert_eq!((length, texts.len()), (&[0x7f, 0xba, 0x09][..], 1337));
    }
}
