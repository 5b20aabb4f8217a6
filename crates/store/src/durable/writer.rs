//! The writer: changes go to the log, and now and then everything to a snapshot. It has no thread and reads no timer, so tests
//! drive it step by step.
//!
//! ```text
//!   log-1  ████████████████│                         a snapshot comes after the frames of the logs before it
//!   log-2                  │██████████████ …         changes from then on
//!   snapshot-3.new          ░░░░░░░░░░░│             everything, part by part, while changes go on
//!                                      └── sync, rename, sync the folder: then log-1 and older snapshots are removed
//! ```
//!
//! A sync may take seconds, so the writer makes none: it hands out what to sync ([`SyncWork`]), and is told the result.
//!
//! **When something fails.** Decisions are made in memory, so they go on. The file that failed is never used again: after a failed
//! write its end is unknown, and after a failed sync the system may have dropped what it could not write, while the next sync
//! would succeed. A new log and a snapshot of everything replace it. If that log fails, too, it is removed: nothing relies on it, and
//! a disk that fails for hours must not be filled with logs.
//!
//! **How much space it takes.** The logs have at most 64 MiB, or one and a half times the last snapshot. While a snapshot is written,
//! at most one byte is logged for two bytes of it. So with the old snapshot and the new one, there are never more than 64 MiB and four
//! times the larger snapshot, apart from one frame.

use super::directory;
use super::disk::{AppendedFile, Disk};
use super::format::{DataFileKind, FileHeader, FrameTime};
use super::frame::{FrameBuilder, FrameFacts};
use super::recovery::LogEnd;
use super::sync_work::{SnapshotPoint, SyncPoint, SyncWork};
use crate::memory::{Collected, Hand, Memory, Writing};
use std::io;
use std::sync::Arc;

/// A log that is shorter than this is not replaced by a snapshot.
const LEAST_LOG: u64 = 64 << 20;
/// Logs that are longer than the last snapshot by this much of it, in hundredths, are replaced by a snapshot.
const LOG_PERCENT: u64 = 150;
/// For each byte that is logged while a snapshot is written, this many bytes of the snapshot are.
pub(crate) const SNAPSHOT_PER_LOG: u64 = 2;

/// Writes the changes of a store to a data directory.
pub(crate) struct LogWriter<D: Disk> {
    disk: Arc<D>,
    memory: Arc<Memory>,
    identity: Identity,
    /// The number of the last file.
    number: u64,
    /// The sequence number of the last frame.
    sequence: u64,
    /// Up to this sequence number, all frames are certainly on disk.
    synced: u64,
    /// The log, unless the last one failed.
    log: Option<OpenFile<D>>,
    /// Logs before it, which are not synced yet, from the oldest to the newest.
    replaced: Vec<OpenFile<D>>,
    snapshot: Option<SnapshotJob<D>>,
    /// Whether something is in memory that neither the files nor the dirty bits have, until a snapshot is complete.
    is_incomplete: bool,
    /// Whether a log has failed since the last snapshot. If the next one fails, too, it is removed.
    has_failed: bool,
    frame: FrameBuilder,
    /// A frame is closed when it has this many bytes.
    frame_bytes: usize,
    /// How far the writing of changes has come, between two frames.
    flushing: Option<Hand>,
    /// Bytes of all logs since the last snapshot.
    log_bytes: u64,
    /// Bytes of the last snapshot.
    snapshot_bytes: u64,
    /// The last frame before a snapshot of this process, be it complete or not.
    snapshot_after: u64,
}

/// What all files of a run say in their headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) verifier: u128,
    pub(crate) boot: u128,
}

struct OpenFile<D: Disk> {
    file: Arc<D::Appended>,
    name: String,
    number: u64,
    id: u64,
    /// The sequence number before its first frame.
    after: u64,
    /// Whether the file is certainly in the folder after a power failure.
    is_in_folder: bool,
}

/// A snapshot that is being written.
struct SnapshotJob<D: Disk> {
    file: OpenFile<D>,
    hand: Hand,
    frame: FrameBuilder,
    frames: u64,
    bytes: u64,
    /// Logs with smaller numbers than this one are not needed when it is complete.
    log: Arc<D::Appended>,
    first_log: u64,
    /// The bytes of those logs.
    replaces: u64,
    /// Whether nothing was lost since it began.
    is_complete: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Parts of it are missing.
    Writing,
    /// Everything is in the file.
    Written,
    /// It is being synced.
    Syncing,
}

impl<D: Disk> LogWriter<D> {
    /// Goes on after a recovery. The first log is created by [`Self::begin_first`].
    pub(crate) fn new(
        disk: D,
        memory: Arc<Memory>,
        identity: Identity,
        end: &LogEnd,
        frame_bytes: usize,
    ) -> Self {
        let LogEnd { sequence, number, log_bytes, snapshot_bytes, is_closed, .. } = *end;
        Self {
            disk: Arc::new(disk),
            memory,
            identity,
            number,
            sequence,
            synced: sequence,
            log: None,
            replaced: vec![],
            snapshot: None,
            // If the last process did not stop as it should, one of its syncs may have failed. Then the system may have dropped what
            // this process has just read from its cache, so everything is written again, to a snapshot.
            is_incomplete: !is_closed,
            has_failed: false,
            frame: FrameBuilder::new(frame_bytes),
            frame_bytes,
            flushing: None,
            log_bytes,
            snapshot_bytes,
            snapshot_after: sequence,
        }
    }

    /// Begins the first log, which says up to which frame those of earlier processes count. It must be on disk before anything
    /// relies on that.
    pub(crate) fn begin_first(&mut self) -> io::Result<()> {
        self.begin()?;
        let Some(log) = &mut self.log else { return Ok(()) };
        log.file.sync()?;
        self.disk.sync_folder()?;
        log.is_in_folder = true;
        Ok(())
    }

    /// Begins a new log.
    fn begin(&mut self) -> io::Result<()> {
        let log = self.create(DataFileKind::Log)?;
        let before = self.log.replace(log);
        self.replaced.extend(before.filter(|_| self.synced < self.sequence));
        if self.is_incomplete {
            self.write_receipts().inspect_err(|_| self.give_up_log())?;
        }
        Ok(())
    }

    /// Writes all settled receipts. Some may have been in a frame that was lost, and the next frames have what they gave back.
    fn write_receipts(&mut self) -> io::Result<()> {
        let mut hand = Memory::begin_receipts();
        loop {
            let (writing, _) = self.memory.collect(&mut hand, &mut self.frame);
            if !self.frame.is_empty() {
                self.write_frame(false)?;
            }
            if writing == Writing::Finished {
                return Ok(());
            }
        }
    }

    /// The states whose changes are written.
    pub(crate) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Writes everything that changed. Returns how many bytes were written. After an error, the log cannot be used any more, and
    /// a snapshot is needed.
    pub(crate) fn flush(&mut self) -> io::Result<u64> {
        let mut bytes = 0u64;
        loop {
            let (written, writing) = self.flush_part()?;
            bytes = bytes.saturating_add(written);
            if writing == Writing::Finished {
                return Ok(bytes);
            }
        }
    }

    /// Writes the next frame of what changed. Also says whether that was all.
    pub(crate) fn flush_part(&mut self) -> io::Result<(u64, Writing)> {
        if self.log.is_none() {
            self.flushing = None;
            return Ok((0, Writing::Finished));
        }
        let mut hand = self.flushing.take().unwrap_or_else(|| {
            let (hand, lost) = self.memory.begin_collection(Collected::Changes);
            self.note_lost(lost);
            hand
        });
        let (writing, lost) = self.memory.collect(&mut hand, &mut self.frame);
        self.note_lost(lost);
        let written = if self.frame.is_empty() {
            0
        } else {
            self.write_frame(false).inspect_err(|_| self.give_up_log())?
        };
        if writing == Writing::Unfinished {
            self.flushing = Some(hand);
        }
        Ok((written, writing))
    }

    /// Writes everything that changed, says that nothing follows, and syncs it.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.flush()?;
        // The last frame says that all others are on disk, so that a change in them is not taken for a power failure.
        self.sync_now()?;
        self.write_frame(!self.is_incomplete)?;
        self.sync_now()?;
        self.log = None;
        Ok(())
    }

    /// Syncs the log, and waits for that.
    fn sync_now(&mut self) -> io::Result<()> {
        let Some(point) = self.sync_point() else { return Ok(()) };
        let result = point.sync();
        self.log_synced(&point, result.is_ok());
        result
    }

    fn write_frame(&mut self, is_last: bool) -> io::Result<u64> {
        let Some(log) = &self.log else { return Ok(0) };
        self.frame.geometry(&self.memory.sketch_geometry());
        let sequence = self.sequence.saturating_add(1);
        let facts = self.facts(is_last, sequence, self.synced);
        let bytes = self.frame.finish(&facts, log.id);
        log.file.append(bytes)?;
        let written = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.sequence = sequence;
        self.log_bytes = self.log_bytes.saturating_add(written);
        Ok(written)
    }

    /// What there is to sync, a snapshot first. Its result must be [told](Self::synced) before the next.
    pub(crate) fn sync_work(&mut self) -> Option<SyncWork<D>> {
        if let Some(job) = self.snapshot.as_mut().filter(|job| job.stage == Stage::Written) {
            job.stage = Stage::Syncing;
            let (disk, file) = (Arc::clone(&self.disk), Arc::clone(&job.file.file));
            let (number, log, first_log) = (job.file.number, Arc::clone(&job.log), job.first_log);
            return Some(SyncWork::Snapshot(SnapshotPoint { disk, file, log, number, first_log }));
        }
        self.sync_point().map(SyncWork::Log)
    }

    /// The log as it is now, to be synced; `None` when all of it is on disk.
    fn sync_point(&self) -> Option<SyncPoint<D>> {
        let log = self.log.as_ref().filter(|_| self.synced < self.sequence)?;
        let files = self.replaced.iter().chain([log]).map(|log| Arc::clone(&log.file)).collect();
        let (disk, sync_folder) = (Arc::clone(&self.disk), !log.is_in_folder);
        let (name, number, sequence) = (log.name.clone(), log.number, self.sequence);
        Some(SyncPoint { disk, files, sync_folder, name, number, sequence })
    }

    /// A sync has ended. If it failed, its file cannot be used any more, and a snapshot is needed.
    pub(crate) fn synced(&mut self, work: &SyncWork<D>, result: &io::Result<()>) {
        match work {
            SyncWork::Log(point) => self.log_synced(point, result.is_ok()),
            SyncWork::Snapshot(point) => self.snapshot_synced(point, result.is_ok()),
        }
    }

    fn log_synced(&mut self, point: &SyncPoint<D>, is_synced: bool) {
        let logs = || self.replaced.iter().chain(&self.log);
        if !logs().any(|log| log.number == point.number) {
            // It was given up meanwhile: it has no frame that counts.
            return;
        }
        if !is_synced {
            self.give_up_log();
            return;
        }
        self.note_synced(point.sequence);
        self.replaced.retain(|log| log.number > point.number);
        let log = self.log.iter_mut().filter(|log| log.number == point.number);
        log.for_each(|log| log.is_in_folder = true);
    }

    fn snapshot_synced(&mut self, point: &SnapshotPoint<D>, is_synced: bool) {
        let Some(job) = self.snapshot.take_if(|job| job.file.number == point.number) else {
            return;
        };
        if !is_synced {
            // It may be away already, or the disk is; the next start removes it. Perhaps its log could not be synced.
            let _ = self.disk.remove(&job.file.name);
            self.give_up_log();
            return;
        }
        self.snapshot_bytes = job.bytes;
        self.log_bytes = self.log_bytes.saturating_sub(job.replaces);
        self.is_incomplete &= !job.is_complete;
        self.has_failed &= self.is_incomplete;
    }

    /// Frames up to this one are on disk, unless something before them is not.
    fn note_synced(&mut self, sequence: u64) {
        if !self.is_incomplete {
            self.synced = self.synced.max(sequence);
        }
    }

    /// Notes whether something was lost that only a later snapshot has.
    fn note_lost(&mut self, lost: bool) {
        self.is_incomplete |= lost;
        self.snapshot.iter_mut().for_each(|job| job.is_complete &= !lost);
    }

    /// The log is not used any more, and neither is a snapshot that relies on it.
    pub(crate) fn give_up_log(&mut self) {
        if let Some(log) = self.log.take().filter(|_| self.has_failed) {
            // If it cannot be removed, it is after the next snapshot.
            let _ = self.disk.remove(&log.name);
            // Its numbers are used again, so that none is missing, but not those that a snapshot may say it has.
            self.sequence = log.after.max(self.snapshot_after);
        }
        self.replaced.clear();
        self.has_failed = true;
        self.flushing = None;
        self.frame = FrameBuilder::new(self.frame_bytes);
        self.is_incomplete = true;
        self.give_up_snapshot();
    }

    /// Whether something is in memory that a crash would lose, however long ago it changed.
    pub(crate) const fn is_incomplete(&self) -> bool {
        self.log.is_none() || self.is_incomplete
    }

    /// Whether there is a snapshot that is not complete.
    pub(crate) const fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Whether parts of a snapshot have to be written.
    pub(crate) fn is_writing_snapshot(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|job| job.stage == Stage::Writing)
    }

    /// Whether a snapshot should be written: something is only in memory, or the logs are long.
    pub(crate) fn is_snapshot_due(&self) -> bool {
        let most = (self.snapshot_bytes / 100).saturating_mul(LOG_PERCENT).max(LEAST_LOG);
        !self.has_snapshot() && (self.is_incomplete() || self.log_bytes > most)
    }

    /// Begins a new log, and a snapshot of everything before it, unless the last one is not complete yet.
    pub(crate) fn begin_snapshot(&mut self) -> io::Result<()> {
        if self.has_snapshot() {
            return Ok(());
        }
        let replaces = self.log_bytes;
        self.begin()?;
        let Some(log) = self.log.as_ref().map(|log| Arc::clone(&log.file)) else { return Ok(()) };
        let first_log = self.number;
        let file = self.create(DataFileKind::Snapshot)?;
        self.snapshot_after = self.sequence;
        let (hand, _) = self.memory.begin_collection(Collected::Everything);
        self.snapshot = Some(SnapshotJob {
            file,
            hand,
            frame: FrameBuilder::new(self.frame_bytes),
            frames: 0,
            bytes: 0,
            log,
            first_log,
            replaces,
            is_complete: true,
            stage: Stage::Writing,
        });
        Ok(())
    }

    /// Writes the next part of the snapshot. Returns how many bytes were written.
    pub(crate) fn continue_snapshot(&mut self) -> io::Result<u64> {
        let Some(mut job) = self.snapshot.take_if(|job| job.stage == Stage::Writing) else {
            return Ok(0);
        };
        let (writing, _) = self.memory.collect(&mut job.hand, &mut job.frame);
        job.frame.geometry(&self.memory.sketch_geometry());
        job.frames = job.frames.saturating_add(1);
        let facts = self.facts(writing == Writing::Finished, job.frames, 0);
        let bytes = job.frame.finish(&facts, job.file.id);
        let written = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        job.bytes = job.bytes.saturating_add(written);
        if let Err(error) = job.file.file.append(bytes) {
            self.snapshot = Some(job);
            self.give_up_snapshot();
            return Err(error);
        }
        if writing == Writing::Finished {
            job.stage = Stage::Written;
        }
        self.snapshot = Some(job);
        Ok(written)
    }

    /// Gives up the snapshot, unless it is being synced: then it comes to its end, and something may be missing in it.
    fn give_up_snapshot(&mut self) {
        self.snapshot.iter_mut().for_each(|job| job.is_complete = false);
        if let Some(job) = self.snapshot.take_if(|job| job.stage != Stage::Syncing) {
            // It may be away already, or the disk is; the next start removes it.
            let _ = self.disk.remove(&job.file.name);
        }
    }

    fn create(&mut self, kind: DataFileKind) -> io::Result<OpenFile<D>> {
        // A number is never used again, not even after an error.
        self.number = self.number.saturating_add(1);
        let number = self.number;
        let name = match kind {
            DataFileKind::Log => directory::name(kind, number),
            DataFileKind::Snapshot => directory::unfinished(number),
        };
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        let id = u64::from_le_bytes(id);
        let Identity { verifier, boot } = self.identity;
        let (after, time) = (self.sequence, self.time());
        let header = FileHeader { kind, number, id, verifier, boot, after, time };
        let file = self.disk.create(&name)?;
        if let Err(error) = file.append(&header.bytes()) {
            // Without its header, it is nothing. A disk that is full for hours must not be filled with such files.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        Ok(OpenFile { file: Arc::new(file), name, number, id, after, is_in_folder: false })
    }

    fn facts(&self, is_last: bool, sequence: u64, synced: u64) -> FrameFacts {
        let buckets = u64::try_from(self.memory.buckets()).unwrap_or(u64::MAX);
        FrameFacts { is_last, sequence, synced, time: self.time(), buckets }
    }

    fn time(&self) -> FrameTime {
        let clock = self.memory.clock();
        FrameTime { now: clock.now(), since_boot: clock.since_boot() }
    }
}
