//! Reading a file of frames: what is damaged is skipped and reported.
//!
//! ```text
//!   header │ frame 1 │ frame 2 │ ▒▒▒▒▒▒▒ │ frame 5 │ fra         ▒ damaged: the next frame is searched for
//!                                                      └── the end of a frame is missing
//! ```

use super::disk::Disk;
use super::format::{
    self, FILE_HEADER, FRAME_HEADER, FRAME_MAGIC, FileHeader, FrameHeader, HeaderError,
};
use std::io::{self, Read};

/// Bytes that are read together.
const READ_BYTES: usize = 1 << 20;

/// A file that is being read.
pub(crate) struct FrameFile<R> {
    input: R,
    pub(crate) header: FileHeader,
    /// What was read and not used yet.
    buffer: Vec<u8>,
    /// Where in the buffer the next frame should begin.
    at: usize,
    /// How many bytes of the file were used, up to `at`.
    offset: u64,
    ended: bool,
}

/// What comes next in a file.
#[derive(Debug)]
pub(crate) enum NextFrame<'f> {
    Frame(FrameHeader, &'f [u8]),
    /// From this offset on, this many bytes are no frame; a frame follows, or the file ends.
    Damaged {
        offset: u64,
        bytes: u64,
    },
    End,
}

/// Why a file cannot be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Io(io::Error),
    Header(HeaderError),
}

/// What was found at the place where a frame should begin.
enum Found {
    Frame(FrameHeader),
    /// The header is right and the body is not: its length is known.
    WrongBody(usize),
    Nothing,
}

impl<R: Read> FrameFile<R> {
    /// Opens a file and reads its header.
    pub(crate) fn open<D: Disk<Read = R>>(disk: &D, name: &str) -> Result<Self, Unreadable> {
        let (mut input, _) = disk.open(name).map_err(Unreadable::Io)?;
        let mut header = Vec::new();
        let most = u64::try_from(FILE_HEADER).unwrap_or(u64::MAX);
        (&mut input).take(most).read_to_end(&mut header).map_err(Unreadable::Io)?;
        let header = FileHeader::read(&header).map_err(Unreadable::Header)?;
        Ok(Self { input, header, buffer: vec![], at: 0, offset: most, ended: false })
    }

    /// The next frame, or what is damaged before it.
    pub(crate) fn next(&mut self) -> io::Result<NextFrame<'_>> {
        self.fill(FRAME_HEADER)?;
        if self.rest().is_empty() {
            return Ok(NextFrame::End);
        }
        match self.found()? {
            Found::Frame(header) => {
                let length = usize::try_from(header.length).unwrap_or(0);
                let body = self.at.saturating_add(FRAME_HEADER);
                let end = body.saturating_add(length);
                self.advance(FRAME_HEADER.saturating_add(length));
                Ok(NextFrame::Frame(header, self.buffer.get(body..end).unwrap_or_default()))
            }
            Found::WrongBody(bytes) => {
                let (offset, bytes) = (self.offset, bytes.min(self.rest().len()));
                self.advance(bytes);
                Ok(NextFrame::Damaged { offset, bytes: u64::try_from(bytes).unwrap_or(0) })
            }
            Found::Nothing => self.search(),
        }
    }

    /// Searches for the next frame. The bytes before it are damaged.
    fn search(&mut self) -> io::Result<NextFrame<'_>> {
        let offset = self.offset;
        loop {
            self.advance(1);
            let magic =
                self.rest().windows(FRAME_MAGIC.len()).position(|eight| eight == FRAME_MAGIC);
            let skipped = magic
                .unwrap_or(self.rest().len().saturating_sub(FRAME_MAGIC.len().saturating_sub(1)));
            self.advance(skipped);
            self.fill(FRAME_HEADER)?;
            let found = matches!(self.found()?, Found::Frame(_) | Found::WrongBody(_));
            if found || (self.ended && self.rest().len() < FRAME_MAGIC.len()) {
                if !found {
                    self.advance(self.rest().len());
                }
                let bytes = self.offset.saturating_sub(offset);
                return Ok(NextFrame::Damaged { offset, bytes });
            }
        }
    }

    fn found(&mut self) -> io::Result<Found> {
        let id = self.header.id;
        let Some(header) = FrameHeader::read(self.rest(), id) else { return Ok(Found::Nothing) };
        let length = usize::try_from(header.length).unwrap_or(0);
        let whole = FRAME_HEADER.saturating_add(length);
        self.fill(whole)?;
        let body = self.rest().get(FRAME_HEADER..whole);
        let intact = body.is_some_and(|body| format::checksum(body, id) == header.checksum);
        Ok(if intact { Found::Frame(header) } else { Found::WrongBody(whole) })
    }

    fn rest(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    fn advance(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes).min(self.buffer.len());
        self.offset = self.offset.saturating_add(u64::try_from(bytes).unwrap_or(0));
    }

    /// Reads on until there are this many bytes, or the file ends.
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        if self.rest().len() >= wanted || self.ended {
            return Ok(());
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        while self.buffer.len() < wanted && !self.ended {
            let more = READ_BYTES.max(wanted.saturating_sub(self.buffer.len()));
            let most = u64::try_from(more).unwrap_or(u64::MAX);
            let read = (&mut self.input).take(most).read_to_end(&mut self.buffer)?;
            self.ended = read < more;
        }
        Ok(())
    }
}
