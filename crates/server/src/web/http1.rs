//! HTTP/1.1: reads the requests of a connection one after another, and writes their answers. All listeners use it.
//!
//! ```text
//!   first bytes ──► idle ──first byte──► head ──► Responder: body, answer ──► idle …        each arrow has a deadline
//!       └──► HTTP/2
//! ```
//!
//! A [`Responder`] gets a request as its head and a connection from which it reads the body. The API answers whole requests
//! ([`WholeAnswers`]), if it can without copying them; the proxy passes bodies on while they arrive.
//!
//! - **Bytes.** The connection owns the read buffer and the output. A responder takes its request out of the read buffer, up to the
//!   beginning of the next one, or lets the connection be closed.
//! - **Deadlines.** The connection sets those of the first bytes, of the pause between requests and of heads; the responder that of a
//!   body; and whatever writes, that of the client that reads. A deadline that is moved later touches no timer.
//! - **Memory.** What is read and what is written counts in the account of the connection.
//! - **Drain.** A client that has begun no request has a second to send one. The answer behind which nothing has arrived is the last.
//!
//! The parser of request heads is `httparse`; everything around it is here, for two reasons. The first is request smuggling:
//! a request whose length two parsers could understand differently (two lengths, a length and chunks, lines that end in a bare
//! line feed) is refused and its connection closed. The usual server library accepts some of these. The second is speed:
//! requests that arrive together are answered with one write, and a timer is touched only for slow clients.

mod body;
mod body_decoder;
pub(crate) mod head;
mod whole;

pub(crate) use body::{BodyBound, is_list};
pub(crate) use body_decoder::{BodyDecoder, BodyError, Decoded};
pub(crate) use head::HeadError;
pub(super) use whole::WholeAnswers;

use super::call::Answer;
use crate::bounds;
use crate::metrics::Refused;
use crate::net::{
    Account, BufferedConnection, Drain, ListenerContext, PIECE, Stream, Versions, Woken,
};
use http::{HeaderName, HeaderValue, StatusCode};
use std::io;
use std::mem;
use std::ops::ControlFlow;
use std::rc::Rc;

/// An HTTP/1 connection; or an HTTP/2 connection, until its first bytes have shown that it is one.
pub(crate) struct Connection<'f> {
    pub(crate) stream: BufferedConnection<'f>,
    /// Bytes of empty lines since the last request.
    skipped: usize,
    /// How many more requests of a pipeline are short work.
    short: usize,
}

/// What answers the requests of a connection.
pub(crate) trait Responder {
    /// Answers the request whose head ends here in the read buffer.
    fn respond(
        &self,
        connection: &mut Connection<'_>,
        head_end: usize,
    ) -> impl Future<Output = io::Result<AfterAnswer>>;

    /// Whether answers wait until other connections of this worker were served, too, so that they are written together.
    fn writes_together(&self) -> bool {
        true
    }
}

/// What happens to a connection after an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterAnswer {
    /// It waits for the next request.
    Request,
    Close,
    /// It has ended.
    Ended,
}

/// The protocol of the first bytes of a connection.
pub(crate) enum FirstBytes {
    /// Requests of HTTP/1.
    One,
    /// The preface of HTTP/2.
    Two,
    /// The client has sent nothing, or a version of HTTP that this listener does not speak.
    Nothing,
}

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most unparsed bytes: more than the largest head, so that a head always fits.
const UNREAD: usize = 16 * 1024 + bounds::REQUEST_LINE + bounds::HEADER_BLOCK;
/// How many requests of a pipeline take as long as one piece of long work.
const REQUESTS: usize = 50;

// === impl Connection ===

impl<'f> Connection<'f> {
    pub(crate) fn new(
        stream: Stream,
        account: &Rc<Account>,
        listener: &'f ListenerContext,
        drain: &Drain,
    ) -> Self {
        let stream = BufferedConnection::new(stream, Rc::clone(account), listener, drain, UNREAD);
        Self { stream, skipped: 0, short: bounds::SHORT_PIPELINE }
    }

    /// Waits for the first bytes and detects the version of HTTP.
    pub(crate) async fn first(&mut self) -> io::Result<FirstBytes> {
        let listener = self.stream.listener;
        loop {
            let here = self.stream.input.unread();
            if here.starts_with(PREFACE) {
                if listener.versions == Versions::One {
                    listener.metrics.refused(Refused::NoHttp);
                    return Ok(FirstBytes::Nothing);
                }
                return Ok(FirstBytes::Two);
            }
            if !PREFACE.starts_with(here) {
                return Ok(FirstBytes::One);
            }
            let has_begun = !here.is_empty();
            match self.stream.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.stream.wait_for_more(),
                // An incomplete preface is not a valid HTTP/1 request either, which the HTTP/1 parser answers.
                Woken::End if has_begun => return Ok(FirstBytes::One),
                Woken::Late if has_begun => {
                    listener.metrics.refused(Refused::Late);
                    return Ok(FirstBytes::Nothing);
                }
                Woken::End | Woken::Late | Woken::NoRoom => return Ok(FirstBytes::Nothing),
            }
        }
    }

    /// The stream, and the bytes that were read from it and not parsed.
    pub(crate) fn into_parts(self) -> (Stream, Vec<u8>) {
        self.stream.into_parts()
    }

    /// Answers requests until the connection ends.
    pub(crate) async fn serve(&mut self, responder: &impl Responder) -> io::Result<()> {
        loop {
            let after = match self.next_head(responder).await? {
                ControlFlow::Continue(head_end) => {
                    // A short pipeline is answered without queueing; the rest of a longer one is long work.
                    if self.short == 0 {
                        self.stream.flush().await?;
                        self.stream.listener.long_work.pass(PIECE).await;
                        self.short = REQUESTS;
                    }
                    self.short = self.short.saturating_sub(1);
                    responder.respond(self, head_end).await?
                }
                ControlFlow::Break(after) => after,
            };
            match after {
                AfterAnswer::Request if self.stream.output.len() > bounds::UNWRITTEN => {
                    self.stream.flush().await?;
                }
                AfterAnswer::Request => {}
                AfterAnswer::Close => return self.stream.close().await,
                AfterAnswer::Ended => return Ok(()),
            }
        }
    }

    // === heads ===

    /// Waits for the head of the next request, and returns where it ends; or what happens to the connection, if there is none.
    async fn next_head(
        &mut self,
        responder: &impl Responder,
    ) -> io::Result<ControlFlow<AfterAnswer, usize>> {
        let mut seen = 0;
        loop {
            // Some clients send empty lines after a body. There is a bound on them over several reads: otherwise a client could
            // keep a connection open with empty lines alone.
            self.skipped = self.skipped.saturating_add(self.stream.input.skip_empty_lines());
            if self.skipped > bounds::EMPTY_LINES {
                return Ok(ControlFlow::Break(self.refuse(HeadError::NoHttp)));
            }
            let here = self.stream.input.unread();
            if let Some(end) = head::end(here, seen) {
                self.skipped = 0;
                return Ok(ControlFlow::Continue(end));
            }
            let is_idle = here.is_empty();
            // What cannot become a head is refused immediately, not when it has reached the size of a head.
            if !is_idle && let Err(error) = head::plausible(here) {
                return Ok(ControlFlow::Break(self.refuse(error)));
            }
            // Between two requests, and once when a head has begun.
            if mem::replace(&mut seen, here.len()) == 0 {
                // Answers to earlier requests do not wait for the rest of this one.
                if responder.writes_together() {
                    self.stream.flush().await?;
                } else {
                    self.stream.flush_now().await?;
                }
                self.stream.wait_for_more();
            }
            if is_idle {
                self.short = bounds::SHORT_PIPELINE;
            }
            let error = match self.stream.fill().await? {
                Woken::Bytes | Woken::Draining => continue,
                Woken::End => return Ok(ControlFlow::Break(AfterAnswer::Ended)),
                Woken::Late if is_idle => return Ok(ControlFlow::Break(AfterAnswer::Close)),
                Woken::Late => HeadError::Late,
                Woken::NoRoom => HeadError::NoRoom,
            };
            return Ok(ControlFlow::Break(self.refuse(error)));
        }
    }

    // === for responders ===

    /// Prepares to read a body that has not arrived completely. The client is told to send it, if it waits for that.
    pub(crate) async fn begin_body(&mut self, expects: bool) -> io::Result<()> {
        if expects && self.stream.input.is_empty() {
            self.stream.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.stream.flush().await?;
        self.stream.wait_within(self.stream.listener.timeouts.body);
        Ok(())
    }

    /// What happens to the connection after the answer to a request. `close`: it cannot go on, or the client does not want it to.
    pub(crate) fn next(&mut self, close: bool, nothing_behind: bool) -> AfterAnswer {
        let last = close || self.stream.is_last(nothing_behind);
        if last { AfterAnswer::Close } else { AfterAnswer::Request }
    }

    /// Writes an answer that is complete.
    pub(crate) fn write(&mut self, answer: &Answer, head_only: bool, next: AfterAnswer) {
        let date = self.stream.listener.date();
        let out = &mut self.stream.output;
        out.extend_from_slice(status_line(answer.status).as_bytes());
        if !answer.kind.is_empty() {
            field(out, b"content-type", answer.kind.as_bytes());
        }
        write_fields(out, answer.fields.iter().map(|(name, value)| (name, value)));
        if next == AfterAnswer::Close {
            field(out, b"connection", b"close");
        }
        field(out, b"date", &date);
        // A 304 would have to name the length of the body that it does not have.
        if ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&answer.status) {
            let mut digits = itoa::Buffer::new();
            field(out, b"content-length", digits.format(answer.body.len()).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        if !head_only {
            out.extend_from_slice(&answer.body);
        }
    }

    /// Answers an invalid request. The connection is closed, because the bytes that follow cannot be trusted.
    pub(crate) fn refuse(&mut self, error: HeadError) -> AfterAnswer {
        self.stream.listener.metrics.refused(error.kind());
        if let Some(status) = error.status() {
            self.write(&Answer::problem(status, &error.to_string()), false, AfterAnswer::Close);
        }
        AfterAnswer::Close
    }
}

pub(crate) fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn write_fields<'h>(
    out: &mut Vec<u8>,
    fields: impl IntoIterator<Item = (&'h HeaderName, &'h HeaderValue)>,
) {
    for (name, value) in fields {
        field(out, name.as_str().as_bytes(), value.as_bytes());
    }
}

pub(crate) fn status_line(status: StatusCode) -> std::borrow::Cow<'static, str> {
    match status {
        StatusCode::OK => "HTTP/1.1 200 OK\r\n".into(),
        StatusCode::TOO_MANY_REQUESTS => "HTTP/1.1 429 Too Many Requests\r\n".into(),
        other => {
            let reason = other.canonical_reason().unwrap_or_default();
            format!("HTTP/1.1 {} {reason}\r\n", other.as_u16()).into()
        }
    }
}

impl From<BodyError> for HeadError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(most) => Self::BodyTooLarge(most),
            BodyError::BadChunk => Self::BadChunk,
        }
    }
}
