//! The access log: one line of JSON for every request that the proxy has finished.
//!
//! ```text
//!   worker 0 ── line ─┐
//!                     ├──► bounded queue ──► writer thread ──► file or standard output
//!   worker 1 ── line ─┘        └ full: the line is dropped and counted
//! ```
//!
//! A worker never waits for the log. Clients decide what is in a line, so its values are shortened and contain no characters
//! that a terminal acts on. Queries are left out, because they may contain secrets. Of the answers below status 400, one in
//! `proxy.access_log_sample` is written; refusals and errors always are.

use super::upstream::UpstreamGroup;
use crate::files;
use crate::health::Health;
use crate::metrics::{Metrics, ProxyAnswer};
use crate::timers;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use serde::Serialize;
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use tidegate::Clock;
use tidegate_policy::printable;
use tokio::sync::oneshot;
use tokio::time::{Instant, interval, timeout};

/// Where the access log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessLogPlace {
    Stdout,
    File(PathBuf),
}

/// The access log of the whole server, with its writer thread.
#[derive(Clone)]
pub(crate) struct AccessLogWriter {
    queue: SyncSender<LogMessage>,
    clock: Clock,
    sample: u64,
    metrics: Arc<Metrics>,
}

/// The access log of one worker.
pub(crate) struct AccessLog {
    writer: AccessLogWriter,
    /// Requests that were sampled so far.
    sampled: Cell<u64>,
}

/// What is known about a request.
pub(crate) struct AccessEntry {
    log: Rc<AccessLog>,
    began: Instant,
    at_ms: u64,
    peer: IpAddr,
    method: Method,
    target: Uri,
    host: Option<HeaderValue>,
    id: Option<HeaderValue>,
    traceparent: Option<HeaderValue>,
    /// `None`: it was rejected before the limiter was asked, or is not limited.
    pub(super) decided: Option<Decided>,
    /// The rule that refused or delayed it.
    pub(super) rule: Option<String>,
    pub(super) wait: Duration,
    /// The index of the upstream server.
    pub(super) server: Option<usize>,
    pub(super) first_byte: Option<Duration>,
    pub(super) status: Option<u16>,
    /// Bytes of the request's body that the upstream server got.
    pub(super) bytes_in: Rc<Cell<u64>>,
    /// Bytes of the answer's body.
    pub(super) bytes_out: u64,
    /// Whether the answer arrived completely.
    pub(super) complete: bool,
}

/// What the rules decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decided {
    Passed,
    Delayed,
    Refused,
}

/// A line of the log.
#[derive(Serialize)]
struct AccessLine<'e> {
    /// When the request arrived, in Unix time.
    at_ms: u64,
    id: Option<String>,
    trace: Option<String>,
    peer: IpAddr,
    method: String,
    host: Option<String>,
    path: String,
    group: Option<&'e str>,
    server: Option<String>,
    status: Option<u16>,
    answer: &'static str,
    decision: Option<Decided>,
    rule: Option<&'e str>,
    wait_ms: f64,
    upstream_ms: Option<f64>,
    total_ms: f64,
    bytes_in: u64,
    bytes_out: u64,
    complete: bool,
}

/// What the writer thread gets.
enum LogMessage {
    Line(Vec<u8>),
    /// Everything before it is written now.
    Flush(oneshot::Sender<()>),
}

/// An open access log.
enum LogTarget {
    Stdout(io::Stdout),
    File(PathBuf, File),
}

/// Lines that wait for the writer. A line has at most about 4 KiB, so they use 16 MiB at most.
const QUEUE: usize = 4_096;
/// Bytes that are written together.
const BATCH_BYTES: usize = 64 * 1024;
/// Characters of a path, of a host, and of other values.
const LONGEST_PATH: usize = 512;
const LONGEST_HOST: usize = 128;
const LONGEST_WORD: usize = 128;
/// How long a server that stops waits for the last lines, and how often it looks for room in the queue.
const LAST_LINES: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

// === impl AccessLogWriter ===

impl AccessLogWriter {
    /// Opens the log and starts its writer. `sample`: of how many successful requests one is written.
    pub(crate) fn start(
        place: &AccessLogPlace,
        sample: u64,
        clock: &Clock,
        (metrics, health): (Arc<Metrics>, Arc<Health>),
    ) -> io::Result<Self> {
        let target = LogTarget::open(place)?;
        let (queue, lines) = sync_channel(QUEUE);
        let counted = Arc::clone(&metrics);
        let write = move || write_lines(&lines, target, &counted, &health);
        std::thread::Builder::new().name("access-log".to_owned()).spawn(write)?;
        Ok(Self { queue, clock: clock.clone(), sample, metrics })
    }

    /// The log of one worker.
    pub(crate) fn of_worker(&self) -> Rc<AccessLog> {
        Rc::new(AccessLog { writer: self.clone(), sampled: Cell::new(0) })
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

    fn send(&self, line: Vec<u8>) {
        if self.queue.try_send(LogMessage::Line(line)).is_err() {
            self.metrics.access_lines_dropped(1);
        }
    }
}

// === impl AccessLog ===

impl AccessLog {
    /// Whether a request is written: one in so many of those that went well.
    fn keeps(&self, answer: ProxyAnswer) -> bool {
        let went_well = matches!(
            answer,
            ProxyAnswer::Informational | ProxyAnswer::Success | ProxyAnswer::Redirection
        );
        if !went_well {
            return true;
        }
        let number = self.sampled.get();
        self.sampled.set(number.wrapping_add(1));
        number.checked_rem(self.writer.sample).is_none_or(|rest| rest == 0)
    }
}

// === impl AccessEntry ===

impl AccessEntry {
    pub(super) fn new(log: &Rc<AccessLog>, head: &Parts, peer: IpAddr) -> Self {
        let nanos = log.writer.clock.now().calendar.as_nanos();
        Self {
            log: Rc::clone(log),
            began: timers::now(),
            at_ms: nanos.checked_div(1_000_000).unwrap_or(0),
            peer,
            method: head.method.clone(),
            target: head.uri.clone(),
            host: head.headers.get(header::HOST).cloned(),
            id: None,
            traceparent: head.headers.get(TRACEPARENT).cloned(),
            decided: None,
            rule: None,
            wait: Duration::ZERO,
            server: None,
            first_byte: None,
            status: None,
            bytes_in: Rc::default(),
            bytes_out: 0,
            complete: false,
        }
    }

    pub(super) fn identified(&mut self, headers: &HeaderMap) {
        self.id = headers.get(REQUEST_ID).cloned();
    }

    /// Writes the line of this request, unless the sample leaves it out.
    pub(super) fn write(&self, group: Option<&UpstreamGroup>, answer: ProxyAnswer) {
        if !self.log.keeps(answer) {
            return;
        }
        let mut line = Vec::with_capacity(512);
        if serde_json::to_writer(&mut line, &self.line(group, answer)).is_ok() {
            line.push(b'\n');
            self.log.writer.send(line);
        }
    }

    fn line<'e>(&'e self, group: Option<&'e UpstreamGroup>, answer: ProxyAnswer) -> AccessLine<'e> {
        let host = self.target.host().map(|host| shortened(host.as_bytes(), LONGEST_HOST));
        let word = |value: &HeaderValue| shortened(value.as_bytes(), LONGEST_WORD);
        let named = |value: &HeaderValue| shortened(value.as_bytes(), LONGEST_HOST);
        let url = group.zip(self.server).and_then(|(group, server)| group.url(server));
        AccessLine {
            at_ms: self.at_ms,
            id: self.id.as_ref().map(word),
            trace: self.traceparent.as_ref().and_then(|field| trace_id(field.as_bytes())),
            peer: self.peer,
            method: shortened(self.method.as_str().as_bytes(), LONGEST_WORD),
            host: host.or_else(|| self.host.as_ref().map(named)),
            path: shortened(self.target.path().as_bytes(), LONGEST_PATH),
            group: group.map(|group| &*group.spec.name),
            server: url.map(ToString::to_string),
            status: self.status,
            answer: answer.name(),
            decision: self.decided,
            rule: self.rule.as_deref(),
            wait_ms: millis(self.wait),
            upstream_ms: self.first_byte.map(millis),
            total_ms: millis(timers::since(self.began)),
            bytes_in: self.bytes_in.get(),
            bytes_out: self.bytes_out,
            complete: self.complete,
        }
    }
}

/// A value for the log: at most so many characters, none of which a terminal acts on.
fn shortened(bytes: &[u8], most: usize) -> String {
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

/// The trace id of a `traceparent` field (W3C Trace Context): `00-<32 hexadecimal digits>-<16>-<2>`.
fn trace_id(field: &[u8]) -> Option<String> {
    let mut parts = str::from_utf8(field).ok()?.split('-');
    let (version, id) = (parts.next()?, parts.next()?);
    let is_hex = |text: &str, length| {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        text.len() == length && text.bytes().all(digit)
    };
    let is_valid = is_hex(version, 2)
        && is_hex(id, 32)
        && parts.next().is_some_and(|parent| is_hex(parent, 16))
        && parts.next().is_some_and(|flags| is_hex(flags, 2));
    is_valid.then(|| id.to_owned())
}

/// A time in milliseconds, to the microsecond.
#[allow(
    clippy::float_arithmetic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "the sixteenth digit does not matter"
)]
fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

// === the writer thread ===

/// Writes lines until no worker is left.
fn write_lines(
    lines: &Receiver<LogMessage>,
    mut target: LogTarget,
    metrics: &Metrics,
    health: &Health,
) {
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    while let Ok(first) = lines.recv() {
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
        let problem = target.write(&batch).err();
        if let Some(error) = &problem {
            metrics.access_lines_dropped(count);
            tracing::error!("the access log cannot be written: {error}");
        }
        let problem = problem.map(|error| format!("the access log cannot be written: {error}"));
        health.set_problem("access log", problem);
        waiting.into_iter().for_each(|done| _ = done.send(()));
    }
}

// === impl LogTarget ===

impl LogTarget {
    fn open(place: &AccessLogPlace) -> io::Result<Self> {
        match place {
            AccessLogPlace::Stdout => Ok(Self::Stdout(io::stdout())),
            AccessLogPlace::File(path) => Ok(Self::File(path.clone(), append_to(path)?)),
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

    fn writer(sample: u64, room: usize) -> (AccessLogWriter, Receiver<LogMessage>) {
        let (queue, lines) = sync_channel(room);
        let (clock, metrics) = (Clock::system(), Arc::default());
        (AccessLogWriter { queue, clock, sample, metrics }, lines)
    }

    #[test]
    fn one_in_so_many_successes_is_written_and_every_error() {
        let log = writer(10, 1).0.of_worker();
        let kept = |answer| (0..30).filter(|_| log.keeps(answer)).count();
        assert_eq!(kept(ProxyAnswer::Success), 3);
        assert_eq!(kept(ProxyAnswer::Refused), 30);
        assert_eq!(kept(ProxyAnswer::ClientError), 30);
        assert_eq!(kept(ProxyAnswer::CutShort), 30);
        assert_eq!(kept(ProxyAnswer::Redirection), 3);
    }

    #[test]
    fn lines_that_find_the_queue_full_are_dropped_and_counted() {
        let (writer, lines) = writer(1, 2);
        (0..5).for_each(|_| writer.send(b"line\n".to_vec()));
        assert_eq!(lines.try_iter().count(), 2);
        let readings = crate::metrics::GaugeReadings {
            version: 1,
            rules_version: None,
            memory: None,
            held: (0, 0),
            proxied: None,
            store: None,
            nodes: 1,
            upstreams: Some(vec![]),
            elastic: vec![],
            over: vec![],
            leases: vec![],
            durability: None,
        };
        let text = writer.metrics.text(&readings);
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

    #[test]
    fn the_trace_id_is_that_of_a_valid_field() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let trace = |field: String| trace_id(field.as_bytes());
        assert_eq!(trace(format!("00-{id}-00f067aa0ba902b7-01")).as_deref(), Some(id));
        assert_eq!(trace(format!("01-{id}-00f067aa0ba902b7-01-later")).as_deref(), Some(id));
        for wrong in [
            "",
            "00",
            "00-x-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(trace(wrong.to_owned()), None, "{wrong}");
        }
        assert_eq!(trace(format!("00-{id}-00f067aa0ba902b7")), None);
    }

    /// A file that was renamed is left alone, and a new one takes its place.
    #[test]
    fn a_log_can_be_rotated() {
        let name = format!("tidegate-access-{}.log", std::process::id());
        let path = std::env::temp_dir().join(name);
        let old = path.with_extension("old");
        let mut target = LogTarget::open(&AccessLogPlace::File(path.clone())).unwrap();
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
