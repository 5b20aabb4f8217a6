//! The access log: one line of JSON for every request that the proxy has finished.
//!
//! Its lines are written by a [thread of their own](crate::line_writer). Clients decide what is in a line, so its values are
//! shortened and contain no characters that a terminal acts on. Queries are left out, because they may contain secrets. Of the
//! answers below status 400, one in `proxy.access_log_sample` is written; refusals and errors always are.

use super::upstream::UpstreamGroup;
use crate::health::Health;
use crate::line_writer::{LineWriter, LogKind, LogPlace, shortened};
use crate::metrics::{Metrics, ProxyAnswer};
use crate::timers;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use serde::Serialize;
use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tidegate::Clock;
use tokio::time::Instant;

/// The access log of the whole server, with its writer thread.
#[derive(Clone)]
pub(crate) struct AccessLogWriter {
    lines: LineWriter,
    clock: Clock,
    sample: u64,
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

const ACCESS_LOG: LogKind =
    LogKind { name: "access log", written: None, dropped: |metrics| &metrics.access_lines_dropped };
/// Characters of a path, of a host, and of other values.
const LONGEST_PATH: usize = 512;
const LONGEST_HOST: usize = 128;
const LONGEST_WORD: usize = 128;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

// === impl AccessLogWriter ===

impl AccessLogWriter {
    /// Opens the log and starts its writer. `sample`: of how many successful requests one is written.
    pub(crate) fn start(
        place: &LogPlace,
        sample: u64,
        clock: &Clock,
        reports: (Arc<Metrics>, Arc<Health>),
    ) -> io::Result<Self> {
        let lines = LineWriter::start(place, ACCESS_LOG, reports)?;
        Ok(Self { lines, clock: clock.clone(), sample })
    }

    /// The log of one worker.
    pub(crate) fn of_worker(&self) -> Rc<AccessLog> {
        Rc::new(AccessLog { writer: self.clone(), sampled: Cell::new(0) })
    }

    /// Waits until all lines are written, for a second at most.
    pub(crate) async fn flush(&self) {
        self.lines.flush().await;
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
        if self.log.keeps(answer) {
            self.log.writer.lines.write(&self.line(group, answer));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_successes_is_written_and_every_error() {
        let (lines, _queued) = LineWriter::queued(ACCESS_LOG, 1);
        let writer = AccessLogWriter { lines, clock: Clock::system(), sample: 10 };
        let log = writer.of_worker();
        let kept = |answer| (0..30).filter(|_| log.keeps(answer)).count();
        assert_eq!(kept(ProxyAnswer::Success), 3);
        assert_eq!(kept(ProxyAnswer::Refused), 30);
        assert_eq!(kept(ProxyAnswer::ClientError), 30);
        assert_eq!(kept(ProxyAnswer::CutShort), 30);
        assert_eq!(kept(ProxyAnswer::Redirection), 3);
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
}
