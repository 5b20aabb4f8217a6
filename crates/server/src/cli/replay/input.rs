//! Reads log files line by line: plain or compressed by gzip, or the standard input.
//!
//! ```text
//!   file ──► reader thread: decompresses ──► four chunks at most ──► lines
//!   Ctrl-C ─────────────────────────────────┘ ends the lines
//! ```
//!
//! The reader is a thread of its own, so that decompression takes place beside the replay, and Ctrl-C is noticed while a pipe
//! has nothing to say.

use crate::cli::explained;
use flate2::read::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tidegate_policy::printable;

/// The lines of all files.
pub(super) struct LogInput {
    feed: Receiver<Feed>,
    progress: ProgressBar,
    /// Bytes of the files that were read, before decompression.
    read: Arc<AtomicU64>,
    /// The beginning of a line whose end is not known yet.
    partial: Vec<u8>,
    /// Whether the current line is longer than [`LONGEST_LINE`], and its rest is left out.
    overlong: bool,
    pub(super) place: LinePlace,
}

/// Where a line is.
#[derive(Clone, Debug, Default)]
pub(super) struct LinePlace {
    pub(super) file: Arc<str>,
    pub(super) line: u64,
}

/// What the reader thread sends.
enum Feed {
    File(Arc<str>),
    Chunk(Vec<u8>),
    FileEnd,
    End,
    Interrupted,
    Failed(io::Error),
}

/// How the lines ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputEnd {
    Complete,
    Interrupted,
}

/// A line, or that it is too long to be one.
pub(super) type LineBytes<'l> = Option<&'l [u8]>;

const CHUNK_BYTES: usize = 256 * 1024;
const CHUNKS: usize = 4;
/// The longest lines of real logs have about 64 KiB: every header field of a request.
pub(super) const LONGEST_LINE: usize = 1024 * 1024;
const GZIP: [u8; 2] = [0x1f, 0x8b];

// === impl LogInput ===

impl LogInput {
    /// Opens the files, so that a wrong name is an error before anything is replayed, and starts to read.
    pub(super) fn open(paths: &[PathBuf], show_progress: bool) -> io::Result<Self> {
        let (sender, feed) = sync_channel(CHUNKS);
        let read = Arc::new(AtomicU64::new(0));
        let files = paths.iter().map(|path| LogFile::open(path, &read));
        let files = files.collect::<io::Result<Vec<_>>>()?;
        let progress = progress(files.iter().map(|file| file.size).sum(), show_progress);
        watch_interrupts(sender.clone())?;
        let work = move || read_all(files, &sender);
        std::thread::Builder::new().name("log-reader".to_owned()).spawn(work)?;
        let (partial, place) = (Vec::new(), LinePlace::default());
        Ok(Self { feed, progress, read, partial, overlong: false, place })
    }

    /// Calls `each` for every line, until the files end, the user interrupts, or `each` returns an error.
    pub(super) fn each_line(
        &mut self,
        mut each: impl FnMut(LineBytes<'_>, &LinePlace) -> io::Result<()>,
    ) -> io::Result<InputEnd> {
        let end = loop {
            match self.feed.recv() {
                Ok(Feed::File(file)) => self.place = LinePlace { file, line: 0 },
                Ok(Feed::Chunk(chunk)) => {
                    self.lines_of(&chunk, &mut each)?;
                    self.progress.set_position(self.read.load(Ordering::Relaxed));
                }
                Ok(Feed::FileEnd) if self.partial.is_empty() && !self.overlong => {}
                Ok(Feed::FileEnd) => self.lines_of(b"\n", &mut each)?,
                Ok(Feed::End) | Err(_) => break InputEnd::Complete,
                Ok(Feed::Interrupted) => break InputEnd::Interrupted,
                Ok(Feed::Failed(error)) => return Err(error),
            }
        };
        self.progress.finish_and_clear();
        Ok(end)
    }

    fn lines_of(
        &mut self,
        chunk: &[u8],
        each: &mut impl FnMut(LineBytes<'_>, &LinePlace) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rest = chunk;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            self.place.line = self.place.line.saturating_add(1);
            if self.overlong {
                self.overlong = false;
                each(None, &self.place)?;
            } else if self.partial.is_empty() {
                each(Some(without_return(line)), &self.place)?;
            } else {
                self.partial.extend_from_slice(line);
                each(Some(without_return(&self.partial)), &self.place)?;
                self.partial.clear();
            }
        }
        if self.partial.len().saturating_add(rest.len()) > LONGEST_LINE {
            self.overlong = true;
            self.partial.clear();
        }
        if !self.overlong {
            self.partial.extend_from_slice(rest);
        }
        Ok(())
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// A bar on the standard error if that is a terminal. It knows the end unless a file is a pipe.
fn progress(bytes: u64, show: bool) -> ProgressBar {
    if !show {
        return ProgressBar::hidden();
    }
    let bar = match bytes {
        0 => ProgressBar::no_length(),
        _ => ProgressBar::new(bytes),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = match bytes {
        0 => "{bytes} read, {bytes_per_sec}",
        _ => "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
    };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
    bar
}

/// Ends the lines at the first Ctrl-C, and the program at the second.
fn watch_interrupts(feed: SyncSender<Feed>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // Registered here, so that a signal that comes soon is not missed.
    let mut interrupts = {
        let _entered = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?
    };
    let watch = move || {
        runtime.block_on(interrupts.recv());
        // Sent from another thread, because the queue may be full, and a second Ctrl-C must be noticed.
        std::thread::spawn(move || feed.send(Feed::Interrupted));
        runtime.block_on(interrupts.recv());
        process::exit(130);
    };
    std::thread::Builder::new().name("interrupts".to_owned()).spawn(watch)?;
    Ok(())
}

// === reading ===

/// A file that was opened.
struct LogFile {
    name: Arc<str>,
    size: u64,
    bytes: Box<dyn BufRead + Send>,
}

/// Counts bytes, for the progress bar.
struct CountedRead<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountedRead<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.read.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
        Ok(count)
    }
}

impl LogFile {
    fn open(path: &Path, read: &Arc<AtomicU64>) -> io::Result<Self> {
        let read = Arc::clone(read);
        if path == Path::new("-") {
            let bytes =
                BufReader::with_capacity(CHUNK_BYTES, CountedRead { inner: io::stdin(), read });
            return Ok(Self { name: "standard input".into(), size: 0, bytes: Box::new(bytes) });
        }
        let name: Arc<str> = printable(&path.display().to_string()).into();
        let named = |error: io::Error| explained(&name, &error);
        let file = File::open(path).map_err(named)?;
        let data = file.metadata().map_err(named)?;
        if data.is_dir() {
            return Err(named(io::Error::other("it is a directory; name its files")));
        }
        let size = if data.is_file() { data.len() } else { 0 };
        let bytes = BufReader::with_capacity(CHUNK_BYTES, CountedRead { inner: file, read });
        Ok(Self { name, size, bytes: Box::new(bytes) })
    }

    /// Sends the file in chunks; false if the reader has ended.
    fn send(mut self, feed: &SyncSender<Feed>) -> io::Result<bool> {
        let is_gzip = self.bytes.fill_buf()?.starts_with(&GZIP);
        let mut source: Box<dyn Read> =
            if is_gzip { Box::new(MultiGzDecoder::new(self.bytes)) } else { Box::new(self.bytes) };
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            let count = match source.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if count == 0 {
                return Ok(true);
            }
            chunk.truncate(count);
            if feed.send(Feed::Chunk(chunk)).is_err() {
                return Ok(false);
            }
        }
    }
}

fn read_all(files: Vec<LogFile>, feed: &SyncSender<Feed>) {
    for file in files {
        let name = Arc::clone(&file.name);
        if feed.send(Feed::File(Arc::clone(&name))).is_err() {
            return;
        }
        let sent = match file.send(feed) {
            Ok(true) => feed.send(Feed::FileEnd),
            Ok(false) => return,
            Err(error) => feed.send(Feed::Failed(explained(&name, &error))),
        };
        if sent.is_err() {
            return;
        }
    }
    // The receiver may have gone, because it needs no more.
    let _ = feed.send(Feed::End);
}
