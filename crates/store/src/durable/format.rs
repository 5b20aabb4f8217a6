//! The headers of files and frames, byte by byte. `docs/data-format.md` draws them.
//!
//! All numbers are little-endian. A checksum is XXH3 (64 bits) under a seed. The seed of a frame is the random id of its file, so
//! that old bytes of another file, which a file system may leave behind, never pass for a frame.

use tidegate_core::{Now, Timestamp};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The version of the format that this code writes, and the newest that it reads.
pub(crate) const VERSION: u16 = 1;

pub(crate) const FILE_HEADER: usize = 128;
pub(crate) const FRAME_HEADER: usize = 80;
/// A frame with a longer body is damaged.
pub(crate) const MOST_BODY: usize = 64 << 20;

const FILE_MAGIC: &[u8; 8] = b"tidegate";
pub(crate) const FRAME_MAGIC: &[u8; 8] = b"tgframe1";

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFileKind {
    /// What changed.
    Log,
    /// Everything, apart from what later logs have.
    Snapshot,
}

/// The beginning of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) kind: DataFileKind,
    /// Later files have larger numbers.
    pub(crate) number: u64,
    /// A random number that no other file has.
    pub(crate) id: u64,
    /// A hash of the secret that names the states.
    pub(crate) verifier: u128,
    /// Which run of the machine this was.
    pub(crate) boot: u128,
    /// In a log: its frames come after the frame with this sequence number; frames of earlier logs with larger numbers do not
    /// count. In a snapshot: it has everything that frames up to this one have.
    pub(crate) after: u64,
    /// When the file was created.
    pub(crate) time: FrameTime,
}

/// Why the beginning of a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// The file is too short, has another beginning, or its checksum is wrong.
    Damaged,
    /// A newer version of tidegate wrote it.
    Newer(u16),
}

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) length: u32,
    /// In a snapshot: it is complete. In a log: the process ended as it should, and nothing follows.
    pub(crate) is_last: bool,
    /// One more than that of the frame before, in all logs together. In a snapshot, counted from 1.
    pub(crate) sequence: u64,
    /// The sequence number up to which all frames were certainly on disk when this one was written.
    pub(crate) synced: u64,
    pub(crate) time: FrameTime,
    /// How many buckets the table had.
    pub(crate) buckets: u64,
    pub(crate) checksum: u64,
}

/// When a frame or a file was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameTime {
    pub(crate) now: Now,
    pub(crate) since_boot: Timestamp,
}

/// Reads numbers from the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'b>(pub(crate) &'b [u8]);

// === impl FrameTime ===

impl FrameTime {
    fn words(&self) -> [u64; 3] {
        [self.now.steady, self.now.calendar, self.since_boot].map(Timestamp::as_nanos)
    }

    fn of(words: [u64; 3]) -> Self {
        let [steady, calendar, since_boot] = words.map(Timestamp::from_nanos);
        Self { now: Now { steady, calendar }, since_boot }
    }
}

// === impl FileHeader ===

impl FileHeader {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let kind = match self.kind {
            DataFileKind::Log => 1u8,
            DataFileKind::Snapshot => 2,
        };
        let mut bytes = FILE_MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([kind, 0, 0, 0, 0, 0]);
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.verifier.to_le_bytes());
        bytes.extend(self.boot.to_le_bytes());
        bytes.extend(self.after.to_le_bytes());
        bytes.extend(self.time.words().into_iter().flat_map(u64::to_le_bytes));
        bytes.resize(FILE_HEADER.saturating_sub(8), 0);
        let checksum = xxh3_64_with_seed(&bytes, 0);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, HeaderError> {
        let mut cursor = Cursor(bytes);
        Self::read_from(&mut cursor, bytes).unwrap_or(Err(HeaderError::Damaged))
    }

    fn read_from(cursor: &mut Cursor<'_>, bytes: &[u8]) -> Option<Result<Self, HeaderError>> {
        let magic: [u8; 8] = cursor.array()?;
        let version = u16::from_le_bytes(cursor.array()?);
        if &magic == FILE_MAGIC && version > VERSION {
            return Some(Err(HeaderError::Newer(version)));
        }
        let [kind, ..]: [u8; 6] = cursor.array()?;
        let (number, id) = (cursor.u64()?, cursor.u64()?);
        let (verifier, boot) = (cursor.array()?, cursor.array()?);
        let [verifier, boot] = [verifier, boot].map(u128::from_le_bytes);
        let after = cursor.u64()?;
        let time = FrameTime::of([cursor.u64()?, cursor.u64()?, cursor.u64()?]);
        let (content, rest) = bytes.split_at_checked(FILE_HEADER.checked_sub(8)?)?;
        let checksum = Cursor(rest).u64()?;
        let kind = match kind {
            1 => DataFileKind::Log,
            2 => DataFileKind::Snapshot,
            _ => return None,
        };
        let intact =
            &magic == FILE_MAGIC && version == VERSION && checksum == xxh3_64_with_seed(content, 0);
        let header = Self { kind, number, id, verifier, boot, after, time };
        Some(if intact { Ok(header) } else { Err(HeaderError::Damaged) })
    }
}

// === impl FrameHeader ===

impl FrameHeader {
    pub(crate) fn bytes(&self, id: u64) -> [u8; FRAME_HEADER] {
        let flags = u32::from(self.is_last);
        let [steady, calendar, since_boot] = self.time.words();
        let numbers = [self.sequence, self.synced, steady, calendar, since_boot, self.buckets];
        let content = FRAME_MAGIC
            .iter()
            .copied()
            .chain(self.length.to_le_bytes())
            .chain(flags.to_le_bytes())
            .chain(numbers.into_iter().flat_map(u64::to_le_bytes))
            .chain(self.checksum.to_le_bytes());
        let mut bytes = [0; FRAME_HEADER];
        for (to, byte) in bytes.iter_mut().zip(content) {
            *to = byte;
        }
        if let Some((content, checksum)) = bytes.split_last_chunk_mut::<8>() {
            *checksum = xxh3_64_with_seed(content, id).to_le_bytes();
        }
        bytes
    }

    /// Reads a frame header of the file with this id; `None` when there is none at the beginning of these bytes.
    pub(crate) fn read(bytes: &[u8], id: u64) -> Option<Self> {
        let bytes: &[u8; FRAME_HEADER] = bytes.first_chunk()?;
        let (content, checksum) = bytes.split_last_chunk::<8>()?;
        let mut cursor = Cursor(content);
        let magic: [u8; 8] = cursor.array()?;
        if &magic != FRAME_MAGIC || u64::from_le_bytes(*checksum) != xxh3_64_with_seed(content, id)
        {
            return None;
        }
        let [length, flags] = [cursor.u32()?, cursor.u32()?];
        let (sequence, synced) = (cursor.u64()?, cursor.u64()?);
        let time = FrameTime::of([cursor.u64()?, cursor.u64()?, cursor.u64()?]);
        let (buckets, checksum) = (cursor.u64()?, cursor.u64()?);
        let is_last = flags & 1 == 1;
        (usize::try_from(length).is_ok_and(|length| length <= MOST_BODY)).then_some(Self {
            length,
            is_last,
            sequence,
            synced,
            time,
            buckets,
            checksum,
        })
    }
}

/// The checksum of a frame's body, in the file with this id.
pub(crate) fn checksum(body: &[u8], id: u64) -> u64 {
    xxh3_64_with_seed(body, id)
}

// === impl Cursor ===

impl<'b> Cursor<'b> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> FileHeader {
        FileHeader {
            kind: DataFileKind::Snapshot,
            number: 7,
            id: 0x1122_3344_5566_7788,
            verifier: 3 << 100,
            boot: 5 << 99,
            after: 41,
            time: frame().time,
        }
    }

    fn frame() -> FrameHeader {
        let at = Timestamp::from_nanos;
        FrameHeader {
            length: 1_000,
            is_last: true,
            sequence: 42,
            synced: 40,
            time: FrameTime { now: Now { steady: at(5), calendar: at(6) }, since_boot: at(7) },
            buckets: 64,
            checksum: 99,
        }
    }

    #[test]
    fn a_file_header_is_read_back_and_every_changed_bit_is_noticed() {
        let bytes = file().bytes();
        assert_eq!(bytes.len(), FILE_HEADER);
        assert_eq!(FileHeader::read(&bytes), Ok(file()));
        for bit in 0..FILE_HEADER * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::read(&bytes).is_err(), "bit {bit}");
        }
        assert_eq!(FileHeader::read(&bytes[..100]), Err(HeaderError::Damaged));
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let mut bytes = file().bytes();
        bytes[8] = 9;
        assert_eq!(FileHeader::read(&bytes), Err(HeaderError::Newer(9)));
    }

    #[test]
    fn a_frame_header_is_read_back_in_its_own_file_only() {
        let bytes = frame().bytes(17);
        assert_eq!(FrameHeader::read(&bytes, 17), Some(frame()));
        assert_eq!(FrameHeader::read(&bytes, 18), None);
        for bit in 0..FRAME_HEADER * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::read(&bytes, 17), None, "bit {bit}");
        }
    }
}
