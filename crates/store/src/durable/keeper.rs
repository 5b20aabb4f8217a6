//! The threads of a durable store: one writes, one syncs. A sync may take long, and writes go on meanwhile.
//!
//! ```text
//!   writer    write ─ 50 ms ─ write ─ 50 ms ─ write ─ …        parts of a snapshot in between, if one is being written
//!   syncer              sync ──────── sync ───                 the log as it was when the sync began
//! ```

use super::DurableSettings;
use super::disk::Disk;
use super::sync_work::SyncWork;
use super::writer::{LogWriter, SNAPSHOT_PER_LOG};
use crate::clock::Clock;
use crate::reports::DurableReport;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tidegate_core::{Span, Timestamp};

/// After an error, the disk is tried again after this long.
const RETRY_AFTER: Span = Span::from_secs(1);
/// How long the end of the process waits for the last write and sync.
const MOST_STOPPING: Duration = Duration::from_secs(10);
/// Changes that wait for this many intervals are reported.
const LATE: u32 = 4;

/// Runs the threads.
#[derive(Debug)]
pub(super) struct Keeper {
    shared: Arc<Shared>,
    clock: Clock,
    settings: DurableSettings,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Locked for a moment, never while the disk is used.
    state: Mutex<KeeperState>,
    /// The state has changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct KeeperState {
    report: DurableReport,
    /// Since when a write, and a sync, have been going on.
    writing_since: Option<Timestamp>,
    syncing_since: Option<Timestamp>,
    is_stopping: bool,
    has_stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, KeeperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this long, or until the keeper is told to stop; returns whether it was.
    fn waits_for(&self, time: Span) -> bool {
        let waiting = |state: &mut KeeperState| !state.is_stopping;
        let time = Duration::from_nanos(time.as_nanos());
        let waited = self.changed.wait_timeout_while(self.lock(), time, waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_stopping
    }
}

impl Keeper {
    /// Starts the threads.
    pub(super) fn start<D: Disk>(
        writer: LogWriter<D>,
        settings: &DurableSettings,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (work, to_sync) = mpsc::sync_channel::<SyncWork<D>>(1);
        let (results, synced) = mpsc::channel();
        let clock = writer.memory().clock().clone();
        let syncer = Syncer { clock: clock.clone(), shared: Arc::clone(&shared), to_sync, results };
        let worker = Worker {
            writer,
            clock: clock.clone(),
            shared: Arc::clone(&shared),
            settings: settings.clone(),
            syncer: Some(SyncerLink { work, synced, is_busy: false }),
            last_sync: Timestamp::EPOCH,
            retry_at: None,
        };
        let spawn = |name: &str| thread::Builder::new().name(name.to_owned());
        let threads = vec![
            spawn("tidegate-sync").spawn(move || syncer.run())?,
            spawn("tidegate-write").spawn(move || worker.run())?,
        ];
        let (settings, threads) = (settings.clone(), Mutex::new(threads));
        Ok(Self { shared, clock, settings, threads })
    }

    pub(super) fn report(&self) -> DurableReport {
        let now = self.clock.since_boot();
        let (report, writing, syncing) = {
            let state = self.shared.lock();
            (state.report.clone(), state.writing_since, state.syncing_since)
        };
        let hanging = hanging("write", writing, self.settings.write_every, now)
            .or_else(|| hanging("sync", syncing, self.settings.sync_every, now));
        DurableReport { problem: hanging.or(report.problem), ..report }
    }

    /// Writes and syncs what changed, and ends the threads. Does not wait for a disk that hangs.
    pub(super) fn stop(&self) {
        let mut state = self.shared.lock();
        state.is_stopping = true;
        self.shared.changed.notify_all();
        let running = |state: &mut KeeperState| !state.has_stopped;
        let waited = self.shared.changed.wait_timeout_while(state, MOST_STOPPING, running);
        let has_stopped = waited.unwrap_or_else(PoisonError::into_inner).0.has_stopped;
        if has_stopped {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.drain(..).for_each(|thread| _ = thread.join());
        }
    }
}

/// What operators are told when the disk has not answered for several intervals.
fn hanging(what: &str, since: Option<Timestamp>, interval: Span, now: Timestamp) -> Option<String> {
    let lasts = now.since(since?);
    let is_late = lasts.as_nanos() > interval.as_nanos().saturating_mul(u64::from(LATE));
    let millis = lasts.as_nanos() / 1_000_000;
    is_late.then(|| {
        format!(
            "the disk has not answered a {what} for {millis} ms; decisions go on from memory, and a crash would lose what was counted since"
        )
    })
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread that syncs.
struct Syncer<D: Disk> {
    clock: Clock,
    shared: Arc<Shared>,
    to_sync: mpsc::Receiver<SyncWork<D>>,
    results: mpsc::Sender<(SyncWork<D>, io::Result<()>)>,
}

impl<D: Disk> Syncer<D> {
    /// Syncs until the writer ends.
    fn run(&self) {
        while let Ok(work) = self.to_sync.recv() {
            let began = self.clock.since_boot();
            self.shared.lock().syncing_since = Some(began);
            let result = work.run();
            let took = self.clock.since_boot().since(began);
            {
                let state = &mut *self.shared.lock();
                state.syncing_since = None;
                state.report.syncs = state.report.syncs.saturating_add(1);
                state.report.longest_sync = state.report.longest_sync.max(took);
            }
            if self.results.send((work, result)).is_err() {
                return;
            }
        }
    }
}

/// The writer's side of the syncing thread.
struct SyncerLink<D: Disk> {
    work: mpsc::SyncSender<SyncWork<D>>,
    synced: mpsc::Receiver<(SyncWork<D>, io::Result<()>)>,
    is_busy: bool,
}

/// The thread that writes.
struct Worker<D: Disk> {
    writer: LogWriter<D>,
    clock: Clock,
    shared: Arc<Shared>,
    settings: DurableSettings,
    syncer: Option<SyncerLink<D>>,
    last_sync: Timestamp,
    /// When the disk is tried again, after an error.
    retry_at: Option<Timestamp>,
}

impl<D: Disk> Worker<D> {
    /// Writes until the keeper is told to stop, and then once more.
    fn run(mut self) {
        let mut due = self.clock.since_boot();
        loop {
            let began = self.clock.since_boot();
            let bytes = self.step(began, due);
            let interval = self.settings.write_every.max(self.at_rate(bytes));
            let ended = self.clock.since_boot();
            self.report_delay(interval.max(ended.since(began)));
            due = began.after(interval).unwrap_or(ended);
            if self.shared.waits_for(due.since(ended)) {
                break;
            }
        }
        self.finish();
        self.shared.lock().has_stopped = true;
        self.shared.changed.notify_all();
    }

    /// How long so many bytes take at the rate of the settings.
    fn at_rate(&self, bytes: u64) -> Span {
        let nanos = u128::from(bytes).saturating_mul(1_000_000_000);
        let nanos = nanos.checked_div(u128::from(self.settings.bytes_per_second)).unwrap_or(0);
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Writes what changed, begins a sync if it is time, and writes parts of a snapshot. Returns how many bytes were written.
    fn step(&mut self, began: Timestamp, due: Timestamp) -> u64 {
        self.collect_syncs();
        let flushed = self.writing_since(due, LogWriter::flush);
        {
            // Also the time by which it began too late.
            let took = self.clock.since_boot().since(due);
            let report = &mut self.shared.lock().report;
            report.writes = report.writes.saturating_add(1);
            report.longest_write = report.longest_write.max(took);
        }
        let written = match flushed {
            Ok(bytes) => bytes,
            Err(error) => self.failed("writing the log", &error, began),
        };
        self.begin_sync(began);
        let bytes = written.saturating_add(self.snapshot(began, written));
        let report = &mut self.shared.lock().report;
        report.bytes_written = report.bytes_written.saturating_add(bytes);
        bytes
    }

    /// Lets the writer write, and operators see since when.
    fn writing_since<T>(
        &mut self,
        since: Timestamp,
        write: impl FnOnce(&mut LogWriter<D>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.shared.lock().writing_since = Some(since);
        let written = write(&mut self.writer);
        self.shared.lock().writing_since = None;
        written
    }

    /// Begins a snapshot if one is due, and writes parts of it, at the rate that is left. There are pauses between the parts, because
    /// the threads that decide requests may be waiting for this processor.
    fn snapshot(&mut self, began: Timestamp, written: u64) -> u64 {
        if self.writer.is_snapshot_due() && self.retry_at.is_none_or(|at| at <= began) {
            match self.writer.begin_snapshot() {
                Ok(()) => {}
                Err(error) => _ = self.failed("beginning a snapshot", &error, began),
            }
        }
        let most = u128::from(self.settings.bytes_per_second)
            .saturating_mul(u128::from(self.settings.write_every.as_nanos()))
            / 1_000_000_000;
        let most = u64::try_from(most).unwrap_or(u64::MAX).saturating_sub(written);
        // When the log alone needs the whole rate, the interval stretches, so that the snapshot comes to its end.
        let most = most.max(written.saturating_mul(SNAPSHOT_PER_LOG));
        let ends = self.settings.write_every.max(self.at_rate(written.saturating_add(most)));
        let mut bytes = 0u64;
        while self.writer.is_writing_snapshot() && bytes < most {
            let now = self.clock.since_boot();
            if bytes > 0 && now.since(began) >= ends {
                break; // the disk is slow, and the log comes first
            }
            match self.writing_since(now, LogWriter::continue_snapshot) {
                Ok(more) => bytes = bytes.saturating_add(more),
                Err(error) => {
                    self.failed("writing a snapshot", &error, began);
                    break;
                }
            }
            let next = began.after(self.at_rate(written.saturating_add(bytes))).unwrap_or(now);
            if self.shared.waits_for(next.since(self.clock.since_boot())) {
                break;
            }
        }
        bytes
    }

    /// Hands the log or a snapshot to the syncing thread, unless that is busy.
    fn begin_sync(&mut self, now: Timestamp) {
        let is_due = now.since(self.last_sync) >= self.settings.sync_every;
        let link = self.syncer.as_mut().filter(|link| is_due && !link.is_busy);
        let Some(link) = link else { return };
        if let Some(work) = self.writer.sync_work() {
            link.is_busy = link.work.send(work).is_ok();
            self.last_sync = now;
        }
    }

    /// Takes the results of syncs.
    fn collect_syncs(&mut self) {
        let Some(link) = &mut self.syncer else { return };
        let results: Vec<_> = link.synced.try_iter().collect();
        link.is_busy &= results.is_empty();
        for (work, result) in results {
            self.writer.synced(&work, &result);
            match (result, work) {
                (Err(error), SyncWork::Log(_)) => {
                    self.failed("syncing the log", &error, self.clock.since_boot());
                }
                (Err(error), SyncWork::Snapshot(_)) => {
                    self.failed("completing a snapshot", &error, self.clock.since_boot());
                }
                (Ok(()), SyncWork::Snapshot(_)) => self.snapshot_completed(),
                (Ok(()), SyncWork::Log(_)) => {}
            }
        }
    }

    fn snapshot_completed(&mut self) {
        let report = &mut self.shared.lock().report;
        report.snapshots = report.snapshots.saturating_add(1);
        if !self.writer.is_incomplete() {
            self.retry_at = None;
            report.problem = None;
        }
    }

    /// Reports an error. Returns 0, the bytes that were written.
    fn failed(&mut self, doing: &str, error: &io::Error, now: Timestamp) -> u64 {
        self.retry_at = now.after(RETRY_AFTER);
        let report = &mut self.shared.lock().report;
        report.errors = report.errors.saturating_add(1);
        report.problem = Some(format!(
            "{doing} failed: {error}; decisions go on from memory, and a crash would lose what was counted since"
        ));
        0
    }

    /// Reports that the disk cannot follow, or that it can again.
    fn report_delay(&self, interval: Span) {
        if self.writer.is_incomplete() {
            return;
        }
        let usual = self.settings.write_every.as_nanos();
        let is_late = interval.as_nanos() > usual.saturating_mul(u64::from(LATE));
        let problem = is_late.then(|| {
            let millis = interval.as_nanos() / 1_000_000;
            format!("the disk cannot follow: changes are written every {millis} ms, and a crash would lose as much")
        });
        self.shared.lock().report.problem = problem;
    }

    /// The last write and sync.
    fn finish(&mut self) {
        // The syncing thread ends; what it was doing is done again.
        self.syncer = None;
        if let Err(error) = self.writer.close() {
            self.failed("closing the log", &error, self.clock.since_boot());
        }
    }
}
