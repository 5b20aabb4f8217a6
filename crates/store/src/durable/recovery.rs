//! Recovery: the newest snapshot, and then the logs, back into memory.
//!
//! Which frames of the logs count:
//!
//! ```text
//!   snapshot, after 40        41 │ 42 │ 43 │ 44 │ ▒▒ │ 46          ▒ damaged
//!                             └────────┬────────┘      └── counts only if 45 was certainly on disk:
//!                                      count               a later frame says so
//! ```
//!
//! When the power fails, the last frames that were written and not yet synced may be on disk or not, in any combination, also
//! where a new log has begun meanwhile. A frame after a missing one must not count then: it could have a state to which something was
//! given back, while the missing one has the receipt. So a gap in the frames that were never synced ends the log; that is normal.
//! Every frame says up to which sequence number everything was synced when it was written. A gap below that number is damage: it is
//! reported, and the frames after it count.
//!
//! The next log says after which frame it comes. So frames that did not count once never count later.

use super::directory::{DataError, ListedFile, Listing};
use super::disk::Disk;
use super::format::{DataFileKind, FrameHeader, FrameTime};
use super::frame::{self, Content, WORD_BYTES};
use super::limit_bytes;
use super::segment::NextFrame;
use crate::memory::{Memory, Record, SketchGeometry};
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_core::{Limit, NamedBy, State};

/// States that are fetched ahead.
const AHEAD: usize = 16;
/// Different limits that are remembered from frame to frame.
const MOST_LIMITS: usize = 1 << 16;

/// What a recovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records of states that were read.
    pub states: u64,
    /// Frames that were read.
    pub frames: u64,
    /// Bytes of the files that were read.
    pub bytes: u64,
    /// What was damaged. The rest was read.
    pub damage: Vec<Damage>,
    /// Why the directory may not survive a restart, if its file system says so.
    pub warning: Option<&'static str>,
}

/// A part of a file that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Where the log goes on after a recovery.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogEnd {
    /// The sequence number of the last frame that counts.
    pub(crate) sequence: u64,
    /// The largest number of a file.
    pub(crate) number: u64,
    /// When the last frame was written, and the run of the machine.
    pub(crate) last: Option<(FrameTime, u128)>,
    /// Whether the last process ended as it should, or there was none.
    pub(crate) is_closed: bool,
    /// The bytes of the logs, and of the snapshot.
    pub(crate) log_bytes: u64,
    pub(crate) snapshot_bytes: u64,
}

/// A recovery in progress.
pub(crate) struct Recovery<'r, D> {
    disk: &'r D,
    memory: &'r Memory,
    recovered: Recovered,
    end: LogEnd,
    /// Limits by their bytes.
    limits: HashMap<Vec<u8>, Arc<Limit>>,
    /// Called with how many bytes were read, of how many.
    progress: &'r mut dyn FnMut(u64, u64),
    total: u64,
}

/// Which frames of a log count.
struct Counting<'l> {
    after: u64,
    /// Up to this sequence number, if a later file says so.
    up_to: Option<u64>,
    logs: &'l [&'l ListedFile],
}

impl<'r, D: Disk> Recovery<'r, D> {
    /// Reads a data directory into memory, which is empty.
    pub(crate) fn run(
        disk: &'r D,
        listing: &Listing,
        memory: &'r Memory,
        progress: &'r mut dyn FnMut(u64, u64),
    ) -> Result<(Recovered, LogEnd), DataError> {
        let snapshot = listing.snapshot();
        let after = snapshot.map_or(0, |file| file.header.after);
        let total = snapshot.into_iter().chain(listing.logs()).map(|file| file.bytes).sum();
        let (number, is_closed) = (listing.last_number, true);
        let end = LogEnd { sequence: after, number, is_closed, ..LogEnd::default() };
        let (recovered, limits) = (Recovered::default(), HashMap::new());
        let mut recovery = Self { disk, memory, recovered, end, limits, progress, total };
        let damaged = listing.damaged.iter();
        let damaged = damaged.map(|file| Damage { file: file.clone(), offset: 0, bytes: 0 });
        recovery.recovered.damage.extend(damaged);
        if let Some(snapshot) = snapshot {
            recovery.end.snapshot_bytes = snapshot.bytes;
            recovery.read_snapshot(snapshot)?;
        }
        let logs: Vec<&ListedFile> = listing.logs().collect();
        recovery.end.log_bytes = logs.iter().map(|log| log.bytes).sum();
        for (at, log) in logs.iter().enumerate() {
            let later = logs.iter().skip(at.saturating_add(1));
            let up_to = later.map(|log| log.header.after).min();
            let has_ended = recovery.read_log(log, &Counting { after, up_to, logs: &logs })?;
            if has_ended {
                recovery.end.is_closed = false;
                break;
            }
        }
        let Self { recovered, end, .. } = recovery;
        Ok((recovered, end))
    }

    fn read_snapshot(&mut self, file: &ListedFile) -> Result<(), DataError> {
        let mut frames = file.open(self.disk)?;
        let (mut last, before) = (false, self.end.sequence);
        loop {
            match frames.next().map_err(DataError::io(&file.name))? {
                NextFrame::Frame(header, body) => {
                    last |= header.is_last;
                    self.restore(file, &header, body);
                }
                NextFrame::Damaged { offset, bytes } => self.damaged(file, offset, bytes),
                NextFrame::End => break,
            }
        }
        self.end.sequence = before;
        if !last {
            self.damaged(file, file.bytes, 0);
        }
        Ok(())
    }

    /// Reads a log. Returns whether the log ends here, so that no later file counts.
    fn read_log(&mut self, file: &ListedFile, counting: &Counting<'_>) -> Result<bool, DataError> {
        let mut frames = file.open(self.disk)?;
        let mut gap = None;
        self.end.is_closed = false;
        if counting.up_to.is_some_and(|up_to| file.header.after >= up_to) {
            return Ok(false); // none of its frames count
        }
        if file.header.after > self.end.sequence {
            // The end of the log before is missing.
            if self.is_end(counting)? {
                return Ok(true);
            }
            self.damaged(file, 0, 0);
            self.end.sequence = file.header.after;
        }
        loop {
            let (header, body) = match frames.next().map_err(DataError::io(&file.name))? {
                NextFrame::Frame(header, body) => (header, body),
                NextFrame::Damaged { offset, bytes } => {
                    gap = gap.or(Some((offset, bytes)));
                    continue;
                }
                NextFrame::End => return Ok(false),
            };
            let is_missing = header.sequence > self.end.sequence.saturating_add(1);
            if header.sequence <= counting.after && !is_missing {
                continue; // the snapshot has it
            }
            if counting.up_to.is_some_and(|up_to| header.sequence > up_to) {
                return Ok(false);
            }
            if is_missing || gap.is_some() {
                let (offset, bytes) = gap.take().unwrap_or_default();
                if self.is_end(counting)? {
                    return Ok(true);
                }
                self.damaged(file, offset, bytes);
            }
            self.restore(file, &header, body);
        }
    }

    /// Whether the next frame, which is missing, was never synced: then the log ends here.
    fn is_end(&self, counting: &Counting<'_>) -> Result<bool, DataError> {
        let missing = self.end.sequence.saturating_add(1);
        for log in counting.logs.iter().rev() {
            if self.synced_in(log)? >= missing {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Up to which sequence number everything was certainly on disk, by all frames of a log.
    fn synced_in(&self, file: &ListedFile) -> Result<u64, DataError> {
        let mut frames = file.open(self.disk)?;
        let mut synced = 0;
        loop {
            match frames.next().map_err(DataError::io(&file.name))? {
                NextFrame::Frame(header, _) => synced = synced.max(header.synced),
                NextFrame::Damaged { .. } => {}
                NextFrame::End => return Ok(synced),
            }
        }
    }

    fn damaged(&mut self, file: &ListedFile, offset: u64, bytes: u64) {
        self.recovered.damage.push(Damage { file: file.name.clone(), offset, bytes });
    }

    /// Restores the content of a frame.
    fn restore(&mut self, file: &ListedFile, header: &FrameHeader, body: &[u8]) {
        let mut limits: HashMap<u16, (Arc<Limit>, NamedBy)> = HashMap::new();
        let mut geometry = SketchGeometry::default();
        let memory = self.memory;
        memory.prepare_restore(header.buckets, &geometry);
        let mut states = 0u64;
        let read = frame::read(body, |content| match content {
            Content::Limit { number, by, bytes } => {
                if let Some(limit) = self.limit(bytes) {
                    limits.insert(number, (limit, by));
                }
            }
            Content::Words(bytes) => {
                let (words, _) = bytes.as_chunks::<WORD_BYTES>();
                states = states.saturating_add(u64::try_from(words.len()).unwrap_or(0));
                restore_words(memory, words, &limits);
            }
            Content::State { tag, number, bytes } => {
                states = states.saturating_add(1);
                if let Some((limit, by)) = limits.get(&number) {
                    memory.restore_state(tag, limit, *by, State::read(bytes));
                }
            }
            Content::Pages { bucket, pages } => {
                let pages: Vec<(u64, u64)> = frame::pages(pages).collect();
                memory.restore_other(&Record::Pages { bucket, pages: &pages }, &geometry);
            }
            Content::Geometry(lines) => {
                geometry = lines;
                memory.prepare_restore(header.buckets, &geometry);
            }
            Content::Line(line) => memory.restore_other(&Record::Line(line), &geometry),
            Content::Receipt(receipt) => {
                memory.restore_other(&Record::Receipt(receipt), &geometry);
            }
            Content::Gone { tag } => memory.restore_other(&Record::Gone { tag }, &geometry),
        });
        if read.is_none() {
            self.damaged(file, 0, u64::from(header.length));
        }
        self.recovered.states = self.recovered.states.saturating_add(states);
        self.recovered.frames = self.recovered.frames.saturating_add(1);
        self.recovered.bytes = self.recovered.bytes.saturating_add(u64::from(header.length));
        if file.header.kind == DataFileKind::Log {
            self.end.sequence = self.end.sequence.max(header.sequence);
            self.end.is_closed = header.is_last;
        }
        self.end.last = Some((header.time, file.header.boot));
        (self.progress)(self.recovered.bytes, self.total);
    }

    /// The limit that these bytes mean.
    fn limit(&mut self, bytes: &[u8]) -> Option<Arc<Limit>> {
        if let Some(limit) = self.limits.get(bytes) {
            return Some(Arc::clone(limit));
        }
        if self.limits.len() >= MOST_LIMITS {
            self.limits.clear();
        }
        let limit = Arc::new(limit_bytes::read(bytes)?);
        self.limits.insert(bytes.to_vec(), Arc::clone(&limit));
        Some(limit)
    }
}

/// Restores states of one word, whose buckets are fetched ahead.
fn restore_words(
    memory: &Memory,
    words: &[[u8; WORD_BYTES]],
    limits: &HashMap<u16, (Arc<Limit>, NamedBy)>,
) {
    let mut ahead = words.iter();
    let mut prefetch =
        || ahead.next().into_iter().for_each(|bytes| memory.prefetch_restore(frame::word(bytes).0));
    (0..AHEAD).for_each(|_| prefetch());
    for bytes in words {
        prefetch();
        let (tag, number, word) = frame::word(bytes);
        if let Some((limit, by)) = limits.get(&number) {
            memory.restore_word(tag, limit, *by, word);
        }
    }
}
