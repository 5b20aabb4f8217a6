//! Frames: records as bytes, and back.
//!
//! The body of a frame has sections. Each begins with its kind and the number of its entries, four bytes each:
//!
//! ```text
//!   1  limits     number u16, who named it u8, length u32, bytes (`limit_bytes.rs`)
//!   2  words      tag u64, word u64, limit number u16                                   18 bytes for most states
//!   3  states     tag u64, limit number u16, length u32, bytes
//!   4  pages      bucket u64, count u8, count × (tag u64, bits u64)
//!   5  geometry   8 × u64, how the lines of the sketch are divided                      one entry
//!   6  lines      number u32, 64 bytes
//!   7  receipts   tag u64, second u32
//!   8  gone       tag u64
//! ```
//!
//! A frame has all limits that its states mention, because a number may mean another limit in another frame. The sections are
//! applied in this order.

use super::format::{self, Cursor, FRAME_HEADER, FrameHeader, FrameTime};
use super::limit_bytes;
use crate::memory::{Record, Recorder, SettledReceipt, SketchGeometry, SketchLine};
use tidegate_core::{Limit, NamedBy};

/// A frame is usually closed when its body has this many bytes.
pub(crate) const FRAME_BYTES: usize = 256 << 10;
/// Limit numbers have 16 bits.
const NUMBERS: usize = 1 << 16;
const KINDS: usize = 8;

const LIMITS: usize = 0;
const WORDS: usize = 1;
const STATES: usize = 2;
const PAGES: usize = 3;
const GEOMETRY: usize = 4;
const LINES: usize = 5;
const RECEIPTS: usize = 6;
const GONE: usize = 7;

/// A frame that is being filled.
#[derive(Debug)]
pub(crate) struct FrameBuilder {
    sections: [Section; KINDS],
    /// Which limit numbers the frame has, one bit each.
    limits: Vec<u64>,
    /// The bytes of the finished frame.
    bytes: Vec<u8>,
    /// The frame is full when its body has this many bytes.
    full: usize,
}

#[derive(Debug, Default)]
struct Section {
    count: u32,
    bytes: Vec<u8>,
}

/// What the header of a finished frame says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameFacts {
    pub(crate) is_last: bool,
    pub(crate) sequence: u64,
    pub(crate) synced: u64,
    pub(crate) time: FrameTime,
    pub(crate) buckets: u64,
}

// === impl FrameBuilder ===

impl FrameBuilder {
    pub(crate) fn new(full: usize) -> Self {
        let limits = vec![0; NUMBERS / 64];
        Self { sections: Default::default(), limits, bytes: vec![], full }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sections.iter().all(|section| section.count == 0)
    }

    /// Says how the lines of the sketch are divided, if the frame has any.
    pub(crate) fn geometry(&mut self, geometry: &SketchGeometry) {
        let [_, _, _, _, section, lines, ..] = &mut self.sections;
        if lines.count > 0 && section.count == 0 {
            section.count = 1;
            section.bytes.extend(geometry.iter().flat_map(|lines| lines.to_le_bytes()));
        }
    }

    /// The frame as bytes, for the file with this id. The builder is empty afterwards.
    pub(crate) fn finish(&mut self, facts: &FrameFacts, id: u64) -> &[u8] {
        self.bytes.clear();
        self.bytes.resize(FRAME_HEADER, 0);
        for (kind, section) in (1u32..).zip(&mut self.sections) {
            if section.count > 0 {
                self.bytes.extend(kind.to_le_bytes());
                self.bytes.extend(section.count.to_le_bytes());
                self.bytes.append(&mut section.bytes);
                section.count = 0;
            }
        }
        self.limits.iter_mut().for_each(|bits| *bits = 0);
        if let Some((header, body)) = self.bytes.split_first_chunk_mut::<FRAME_HEADER>() {
            let FrameFacts { is_last, sequence, synced, time, buckets } = *facts;
            let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
            let checksum = format::checksum(body, id);
            let facts = FrameHeader { length, is_last, sequence, synced, time, buckets, checksum };
            *header = facts.bytes(id);
        }
        &self.bytes
    }

    fn section(&mut self, kind: usize) -> &mut Vec<u8> {
        #[expect(clippy::indexing_slicing, reason = "the kinds are below the number of sections")]
        let section = &mut self.sections[kind];
        section.count = section.count.saturating_add(1);
        &mut section.bytes
    }
}

impl Recorder for FrameBuilder {
    fn has_limit(&self, number: u16) -> bool {
        let bits = self.limits.get(usize::from(number >> 6)).copied().unwrap_or(0);
        bits >> (number & 63) & 1 == 1
    }

    fn limit(&mut self, number: u16, limit: &Limit, by: NamedBy) {
        if let Some(bits) = self.limits.get_mut(usize::from(number >> 6)) {
            *bits |= 1 << (number & 63);
        }
        let mut shape = vec![];
        limit_bytes::write(limit, &mut shape);
        let section = self.section(LIMITS);
        section.extend(number.to_le_bytes());
        section.push(u8::from(by == NamedBy::Caller));
        section.extend(u32::try_from(shape.len()).unwrap_or(0).to_le_bytes());
        section.extend(shape);
    }

    #[inline]
    fn record(&mut self, record: Record<'_>) {
        match record {
            Record::Word { tag, number, word } => {
                let mut bytes = [0; 18];
                let [tag_bytes @ .., _, _, _, _, _, _, _, _, _, _] = &mut bytes;
                *tag_bytes = tag.to_le_bytes();
                let [_, _, _, _, _, _, _, _, word_bytes @ .., _, _] = &mut bytes;
                *word_bytes = word.to_le_bytes();
                let [.., low, high] = &mut bytes;
                [*low, *high] = number.to_le_bytes();
                self.section(WORDS).extend_from_slice(&bytes);
            }
            Record::Bytes { tag, number, bytes } => {
                let section = self.section(STATES);
                section.extend(tag.to_le_bytes());
                section.extend(number.to_le_bytes());
                section.extend(u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes());
                section.extend_from_slice(bytes);
            }
            Record::Pages { bucket, pages } => {
                let section = self.section(PAGES);
                section.extend(bucket.to_le_bytes());
                section.push(u8::try_from(pages.len()).unwrap_or(0));
                let words = pages.iter().flat_map(|(tag, bits)| [*tag, *bits]);
                section.extend(words.flat_map(u64::to_le_bytes));
            }
            Record::Line(SketchLine { line, words }) => {
                let section = self.section(LINES);
                section.extend(line.to_le_bytes());
                section.extend(words.into_iter().flat_map(u64::to_le_bytes));
            }
            Record::Receipt(SettledReceipt { tag, second }) => {
                let section = self.section(RECEIPTS);
                section.extend(tag.to_le_bytes());
                section.extend(second.to_le_bytes());
            }
            Record::Gone { tag } => self.section(GONE).extend(tag.to_le_bytes()),
        }
    }

    fn is_full(&self) -> bool {
        self.sections.iter().map(|section| section.bytes.len()).sum::<usize>() >= self.full
    }
}

/// The content of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'b> {
    Limit {
        number: u16,
        by: NamedBy,
        bytes: &'b [u8],
    },
    /// The words of a frame, 18 bytes each.
    Words(&'b [u8]),
    State {
        tag: u64,
        number: u16,
        bytes: &'b [u8],
    },
    Pages {
        bucket: u64,
        pages: &'b [u8],
    },
    Geometry(SketchGeometry),
    Line(SketchLine),
    Receipt(SettledReceipt),
    Gone {
        tag: u64,
    },
}

/// A state of one word, as it is in a frame.
pub(crate) const WORD_BYTES: usize = 18;

/// Reads one of the words of a frame.
pub(crate) fn word(bytes: &[u8; WORD_BYTES]) -> (u64, u16, u64) {
    let [tag @ .., _, _, _, _, _, _, _, _, _, _] = bytes;
    let [_, _, _, _, _, _, _, _, word @ .., _, _] = bytes;
    let [.., low, high] = bytes;
    (u64::from_le_bytes(*tag), u16::from_le_bytes([*low, *high]), u64::from_le_bytes(*word))
}

/// Reads the body of a frame. `None` when it is not valid, although its checksum is right: then another program wrote it.
pub(crate) fn read(body: &[u8], mut visit: impl FnMut(Content<'_>)) -> Option<()> {
    let mut cursor = Cursor(body);
    while !cursor.0.is_empty() {
        let (kind, count) = (cursor.u32()?, cursor.u32()?);
        let kind = usize::try_from(kind).ok()?.checked_sub(1)?;
        if kind == WORDS {
            let length = usize::try_from(count).ok()?.checked_mul(WORD_BYTES)?;
            visit(Content::Words(cursor.bytes(length)?));
            continue;
        }
        for _ in 0..count {
            visit(entry(&mut cursor, kind)?);
        }
    }
    Some(())
}

fn entry<'b>(cursor: &mut Cursor<'b>, kind: usize) -> Option<Content<'b>> {
    Some(match kind {
        LIMITS => {
            let number = cursor.u16()?;
            let [by] = cursor.array()?;
            let by = if by == 1 { NamedBy::Caller } else { NamedBy::Policy };
            let length = usize::try_from(cursor.u32()?).ok()?;
            Content::Limit { number, by, bytes: cursor.bytes(length)? }
        }
        STATES => {
            let (tag, number) = (cursor.u64()?, cursor.u16()?);
            let length = usize::try_from(cursor.u32()?).ok()?;
            Content::State { tag, number, bytes: cursor.bytes(length)? }
        }
        PAGES => {
            let bucket = cursor.u64()?;
            let [count] = cursor.array()?;
            Content::Pages { bucket, pages: cursor.bytes(usize::from(count).checked_mul(16)?)? }
        }
        GEOMETRY => {
            let mut geometry = SketchGeometry::default();
            for lines in &mut geometry {
                *lines = cursor.u64()?;
            }
            Content::Geometry(geometry)
        }
        LINES => {
            let (line, mut words) = (cursor.u32()?, [0; 8]);
            for word in &mut words {
                *word = cursor.u64()?;
            }
            Content::Line(SketchLine { line, words })
        }
        RECEIPTS => Content::Receipt(SettledReceipt { tag: cursor.u64()?, second: cursor.u32()? }),
        GONE => Content::Gone { tag: cursor.u64()? },
        _ => return None,
    })
}

/// Reads the pages of a record.
pub(crate) fn pages(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let (pairs, _) = bytes.as_chunks::<16>();
    pairs.iter().filter_map(|pair| {
        let mut cursor = Cursor(pair);
        Some((cursor.u64()?, cursor.u64()?))
    })
}
