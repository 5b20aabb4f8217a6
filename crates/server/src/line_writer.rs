//! Writes a log with a line for each request, without ever delaying one.
//!
//! ```text
//!   worker 0 ── line ─┐
//!                     ├──► bounded queue ──► writer thread ──► file or standard output
//!   worker 1 ── line ─┘        └ full: the line is dropped and counted
//! ```
//!
//! A worker never waits for the log. Clients decide what is in a line, so [`shortened`] bounds each value and removes the
//! characters that a terminal acts on. The access log of the proxy, the denial log and the recording are written this way.

use crate::files;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::rotating_file::{FileBounds, RotatingFile};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use tidegate::Clock;
use tidegate_policy::printable;
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};

/// Where a log is written.
#[derive(Clone, Debug)]
pub(crate) enum LogPlace {
    Stdout,
    File(PathBuf),
    /// A file of bounded size and age.
    Bounded(PathBuf, FileBounds, Clock),
}

/// Which log it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogKind {
    /// Its name for people, also of its problem in `/ready`.
    pub(crate) name: &'static str,
    /// Counts lines that were written.
    pub(crate) written: Option<fn(&Metrics) -> &Counter>,
    /// Counts lines that were not written.
    pub(crate) dropped: fn(&Metrics) -> &Counter,
}

/// A log of the whole server, with its writer thread.
#[derive(Clone)]
pub(crate) struct LineWriter {
    queue: SyncSender<LogMessage>,
    kind: LogKind,
    metrics: Arc<Metrics>,
}

/// What the writer thread gets.
enum LogMessage {
    Line(Vec<u8>),
    /// Everything before it is written now.
    Flush(oneshot::Sender<()>),
}

/// An open log.
enum LogTarget {
    Stdout(io::Stdout),
    File(PathBuf, File),
    Bounded(RotatingFile),
}

/// Lines that wait for the writer. A line has at most about 4 KiB, so they use 16 MiB at most.
const QUEUE: usize = 4_096;
/// Bytes that are written together.
const BATCH_BYTES: usize = 64 * 1024;
/// How long a server that stops waits for the last lines, and how often it looks for room in the queue.
const LAST_LINES: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often a log without lines looks whether it is too old.
const IDLE: Duration = Duration::from_secs(60);

// === impl LogPlace ===

impl LogPlace {
    /// The file, or `stdout`.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Stdout => Path::new("stdout"),
            Self::File(path) | Self::Bounded(path, ..) => path,
        }
    }
}

// === impl LineWriter ===

impl LineWriter {
    /// Opens the log and starts its writer.
    pub(crate) fn start(
        place: &LogPlace,
        kind: LogKind,
        (metrics, health): (Arc<Metrics>, Arc<Health>),
    ) -> io::Result<Self> {
        let target = LogTarget::open(place)?;
        let (queue, lines) = sync_channel(QUEUE);
        let counted = Arc::clone(&metrics);
        let write = move || write_lines(&lines, target, kind, (&counted, &health));
        let thread = std::thread::Builder::new().name(kind.name.replace(' ', "-"));
        thread.spawn(write)?;
        Ok(Self { queue, kind, metrics })
    }

    /// Writes a line of JSON, unless the queue is full.
    pub(crate) fn write(&self, line: &impl Serialize) {
        let mut bytes = Vec::with_capacity(512);
        if serde_json::to_writer(&mut bytes, line).is_ok() {
            bytes.push(b'\n');
            self.send(bytes);
        }
    }

    fn send(&self, line: Vec<u8>) {
        if self.queue.try_send(LogMessage::Line(line)).is_err() {
            (self.kind.dropped)(&self.metrics).inc();
        }
    }

    /// Waits until all lines are written, for a second at most.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let all = async {
            let (mut looks, mut message) = (interval(LOOK_EVERY), LogMessage::Flush(done));
            while let Err(TrySendError::Full(unsent)) = self.queue.try_send(message) {
                message = unsent;
                looks.tick().await;
            }
            let _ = is_done.await;
        };
        let _ = timeout(LAST_LINES, all).await;
    }

    /// A log whose lines a test reads from the queue, and which the server's memory of this many lines bounds.
    #[cfg(test)]
    pub(crate) fn queued(kind: LogKind, room: usize) -> (Self, QueuedLines) {
        let (queue, lines) = sync_channel(room);
        (Self { queue, kind, metrics: Arc::default() }, QueuedLines(lines))
    }
}

/// The lines that a log without a writer has queued.
#[cfg(test)]
pub(crate) struct QueuedLines(Receiver<LogMessage>);

#[cfg(test)]
impl QueuedLines {
    /// The lines since the last call.
    pub(crate) fn take(&self) -> Vec<serde_json::Value> {
        let lines = self.0.try_iter().map(|message| match message {
            LogMessage::Line(line) => serde_json::from_slice(&line).unwrap(),
            LogMessage::Flush(_) => panic!("a flush"),
        });
        lines.collect()
    }
}

/// A value for the log: at most so many characters, none of which a terminal acts on.
pub(crate) fn shortened(bytes: &[u8], most: usize) -> String {
    // Bytes beyond four for each character would be cut anyway.
    let bytes = bytes.get(..most.saturating_mul(4)).unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(most) {
        None => printable(&text),
        Some((end, _)) => {
            let mut cut = printable(text.get(..end).unwrap_or_default());
            cut.push('…');
            cut
        }
    }
}

// === the writer thread ===

/// Writes lines until no worker is left.
fn write_lines(
    lines: &Receiver<LogMessage>,
    mut target: LogTarget,
    kind: LogKind,
    (metrics, health): (&Metrics, &Health),
) {
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    loop {
        let first = match lines.recv_timeout(IDLE) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                target.look();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        batch.clear();
        let (mut count, mut waiting) = (0_u64, Vec::new());
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                LogMessage::Line(line) => {
                    batch.extend_from_slice(&line);
                    count = count.saturating_add(1);
                }
                LogMessage::Flush(done) => waiting.push(done),
            }
            next = if batch.len() < BATCH_BYTES { lines.try_recv().ok() } else { None };
        }
        let written = target.write(&batch);
        let problem =
            written.err().map(|error| format!("the {} cannot be written: {error}", kind.name));
        match &problem {
            None => {
                if let Some(written) = kind.written {
                    written(metrics).inc_by(count);
                }
            }
            Some(problem) => {
                (kind.dropped)(metrics).inc_by(count);
                tracing::error!("{problem}");
            }
        }
        health.set_problem(kind.name, problem);
        waiting.into_iter().for_each(|done| _ = done.send(()));
    }
}

// === impl LogTarget ===

impl LogTarget {
    fn open(place: &LogPlace) -> io::Result<Self> {
        match place {
            LogPlace::Stdout => Ok(Self::Stdout(io::stdout())),
            LogPlace::File(path) => Ok(Self::File(path.clone(), append_to(path)?)),
            LogPlace::Bounded(path, bounds, clock) => {
                RotatingFile::open(path, *bounds, clock).map(Self::Bounded)
            }
        }
    }

    /// Removes lines that are too old.
    fn look(&mut self) {
        if let Self::Bounded(file) = self
            && let Err(error) = file.look()
        {
            tracing::error!("a log cannot be rotated: {error}");
        }
    }

    fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => {
                let mut stdout = stdout.lock();
                stdout.write_all(batch)?;
                stdout.flush()
            }
            Self::File(path, file) => {
                // Programs that rotate logs rename the file, and expect a new one in its place.
                if !is_at(file, path) {
                    *file = append_to(path)?;
                }
                file.write_all(batch)
            }
            Self::Bounded(file) => file.write(batch),
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    files::open_regular(OpenOptions::new().append(true).create(true).mode(0o640), path)
}

/// Whether a file is still the one that this path names.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        (_, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Families;

    #[test]
    fn lines_that_find_the_queue_full_are_dropped_and_counted() {
        let kind = LogKind {
            name: "access log",
            written: None,
            dropped: |metrics| &metrics.access_lines_dropped,
        };
        let (writer, lines) = LineWriter::queued(kind, 2);
        (0..5).for_each(|number| writer.write(&number));
        assert_eq!(lines.take(), [0, 1]);
        let mut families = Families::default();
        writer.metrics.declare_proxy(&mut families);
        let text = families.text();
        assert!(text.contains("tidegate_access_log_lines_dropped_total{} 3"), "{text}");
    }

    #[test]
    fn values_are_short_and_harmless() {
        assert_eq!(shortened(b"/plain", 10), "/plain");
        assert_eq!(shortened("/äöü".as_bytes(), 3), "/äö…");
        assert_eq!(
            shortened("a\u{1b}[31m\u{2028}\n".as_bytes(), 99),
            "a\u{fffd}[31m\u{fffd}\u{fffd}"
        );
        assert_eq!(shortened(&[0xff, b'x'], 99), "\u{fffd}x");
        assert_eq!(shortened(&[b'x'; 10_000], 512).chars().count(), 513);
    }

    /// A file that was renamed is left alone, and a new one takes its place.
    #[test]
    fn a_log_can_be_rotated() {
        let name = format!("tidegate-access-{}.log", std::process::id());
        let path = std::env::temp_dir().join(name);
        let old = path.with_extension("old");
        let mut target = LogTarget::open(&LogPlace::File(path.clone())).unwrap();
        target.write(b"one\n").unwrap();
        std::fs::rename(&path, &old).unwrap();
        target.write(b"two\n").unwrap();
        target.write(b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\nthree\n");
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(old).unwrap();
    }
}
