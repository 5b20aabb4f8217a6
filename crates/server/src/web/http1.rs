//! HTTP/1.1: answers the requests of a connection one after another.
//!
//! ```text
//!   idle ──first byte──► head ──► body ──► answer ──► idle …        each arrow has a deadline
//! ```
//!
//! The parser of request heads is `httparse`; everything around it is here, for two reasons. The first is request smuggling:
//! a request whose length two parsers could understand differently (two lengths, a length and chunks, lines that end in a bare
//! line feed) is refused and its connection closed. The usual server library accepts some of these. The second is speed:
//! requests that arrive together are answered with one write, and a timer is touched only for slow clients.

mod body;
mod body_decoder;
pub(crate) mod head;

pub(crate) use body::{BodyBound, is_list};
pub(crate) use body_decoder::{BodyDecoder, BodyError, Decoded};
pub(crate) use head::HeadError;

use super::call::{Answer, Call, Headers};
use super::{WebHandler, answer};
use crate::bounds;
use crate::net::{
    Account, BufferedConnection, Drain, ListenerContext, PIECE, Reservation, Slot, Stream, Woken,
};
use body::Body;
use head::{HeadLines, Length, RequestHead};
use http::StatusCode;
use std::io;
use std::mem;
use std::net::IpAddr;
use std::rc::Rc;

/// An HTTP/1 connection.
pub(crate) struct Connection<'f, W> {
    stream: BufferedConnection<'f>,
    peer: IpAddr,
    /// Its slot at the listener.
    slot: &'f Slot,
    handler: &'f W,
    listener: &'f ListenerContext,
    /// Bytes of empty lines since the last request.
    skipped: usize,
}

/// What happens to a connection after an answer: it waits for the next request, or is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterAnswer {
    Request,
    Close,
}

/// The protocol of the first bytes of a connection.
pub(crate) enum FirstBytes {
    /// Requests of HTTP/1.
    One,
    /// The preface of HTTP/2.
    Two,
    /// The client has sent nothing.
    Nothing,
}

/// The result of the fast path: a request that is answered in the read buffer, without copying it.
enum InPlace {
    /// The request is answered. It had this many bytes.
    Answered(AfterAnswer, usize),
    /// The body has not arrived completely.
    BodyToCome,
}

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most unparsed bytes: more than the largest head, so that a head always fits.
pub(crate) const UNREAD: usize = 16 * 1024 + bounds::REQUEST_LINE + bounds::HEADER_BLOCK;

/// How many requests of a pipeline take as long as one piece of long work.
const REQUESTS: usize = 50;
/// The cost of one read of a body, in microseconds.
const READ: u32 = 3;

// === impl Connection ===

impl<'f, W: WebHandler> Connection<'f, W> {
    pub(crate) fn new(
        stream: Stream,
        (peer, slot, account): (IpAddr, &'f Slot, Rc<Account>),
        handler: &'f W,
        listener: &'f ListenerContext,
        drain: &Drain,
    ) -> Self {
        let stream = BufferedConnection::new(stream, account, listener, drain, UNREAD);
        Self { stream, peer, slot, handler, listener, skipped: 0 }
    }

    /// Waits for the first bytes and detects the version of HTTP.
    pub(crate) async fn first(&mut self) -> io::Result<FirstBytes> {
        loop {
            let here = self.stream.input.unread();
            let seen = PREFACE.len().min(here.len());
            match (PREFACE.get(..seen) == here.get(..seen), seen) {
                (true, seen) if seen == PREFACE.len() => return Ok(FirstBytes::Two),
                (true, _) => {}
                (false, _) => return Ok(FirstBytes::One),
            }
            match self.stream.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.stream.wait_for_more(),
                // An incomplete preface is not a valid HTTP/1 request either, which the HTTP/1 parser answers.
                Woken::End if !self.stream.input.is_empty() => return Ok(FirstBytes::One),
                Woken::End | Woken::Late | Woken::NoRoom => return Ok(FirstBytes::Nothing),
            }
        }
    }

    /// The stream, and the bytes that were read from it and not parsed.
    pub(crate) fn into_parts(self) -> (Stream, Vec<u8>) {
        self.stream.into_parts()
    }

    /// Answers requests until the connection ends.
    pub(crate) async fn serve(mut self) -> io::Result<()> {
        loop {
            let next = self.answer_arrived().await?;
            if next == AfterAnswer::Close {
                return self.stream.close().await;
            }
            self.stream.flush().await?;
            self.stream.wait_for_more();
            let error = match self.stream.fill().await? {
                Woken::Bytes | Woken::Draining => continue,
                Woken::End => return Ok(()),
                Woken::Late if self.stream.input.is_empty() => return Ok(()),
                Woken::Late => HeadError::Late,
                Woken::NoRoom => HeadError::NoRoom,
            };
            self.refuse(error);
            return self.stream.close().await;
        }
    }

    // === requests ===

    /// Answers every request that has arrived, and waits for the rest of a request that has begun.
    async fn answer_arrived(&mut self) -> io::Result<AfterAnswer> {
        // A short pipeline is answered without queueing; the rest of a longer one is long work.
        let mut short = bounds::SHORT_PIPELINE;
        loop {
            if let Err(error) = self.skip_empty_lines() {
                return Ok(self.refuse(error));
            }
            if self.stream.input.is_empty() {
                return Ok(AfterAnswer::Request);
            }
            if short == 0 {
                self.stream.flush().await?;
                self.listener.long_work.pass(PIECE).await;
                short = REQUESTS;
            }
            short = short.saturating_sub(1);
            let Some(head_end) = self.whole_head().await? else { return Ok(AfterAnswer::Close) };
            if self.one_request(head_end).await? == AfterAnswer::Close {
                return Ok(AfterAnswer::Close);
            }
            if self.stream.output.len() > bounds::UNWRITTEN {
                self.stream.flush().await?;
            }
        }
    }

    /// Skips empty lines, which some clients send after a body. There is a bound on them over several reads: otherwise a client
    /// could keep a connection open with empty lines alone.
    fn skip_empty_lines(&mut self) -> Result<(), HeadError> {
        self.skipped = self.skipped.saturating_add(self.stream.input.skip_empty_lines());
        if self.skipped > bounds::EMPTY_LINES { Err(HeadError::NoHttp) } else { Ok(()) }
    }

    /// Waits until the head of a request has arrived, and returns where it ends; `None` if the connection is to be closed.
    async fn whole_head(&mut self) -> io::Result<Option<usize>> {
        let mut seen = 0;
        loop {
            let here = self.stream.input.unread();
            if let Some(end) = head::end(here, seen) {
                return Ok(Some(end));
            }
            // What cannot become a head is refused immediately, not when it has reached the size of a head.
            if let Err(error) = head::plausible(here) {
                self.refuse(error);
                return Ok(None);
            }
            if mem::replace(&mut seen, here.len()) == 0 {
                // Answers to earlier requests do not wait for the rest of this one.
                self.stream.flush().await?;
                self.stream.wait_for_more();
            }
            let error = match self.stream.fill().await? {
                Woken::Bytes | Woken::Draining => continue,
                Woken::End => return Ok(None),
                Woken::Late => HeadError::Late,
                Woken::NoRoom => HeadError::NoRoom,
            };
            self.refuse(error);
            return Ok(None);
        }
    }

    /// Answers one request, whose head has arrived.
    async fn one_request(&mut self, head_end: usize) -> io::Result<AfterAnswer> {
        self.skipped = 0;
        // The request borrows the read buffer while it is answered.
        let input = mem::take(&mut self.stream.input);
        let result = self.answer_in_place(input.unread(), head_end).await;
        self.stream.input = input;
        match result {
            Ok(InPlace::Answered(next, used)) => {
                self.stream.input.consume(used);
                Ok(next)
            }
            Ok(InPlace::BodyToCome) => self.with_body(head_end).await,
            Err(error) => Ok(self.refuse(error)),
        }
    }

    /// The fast path: answers a request in the read buffer, if it has arrived completely or its body is not needed.
    async fn answer_in_place(
        &mut self,
        here: &[u8],
        head_end: usize,
    ) -> Result<InPlace, HeadError> {
        let (head, rest) = here.split_at_checked(head_end).unwrap_or((here, b""));
        let mut lines = HeadLines::new();
        let head = lines.parse(head)?.without_upgrade()?;
        let room = self.stream.answers();
        let call = self.call(&head, &room);
        if self.handler.knows(&call) && !self.slot.keep() {
            // The connection was evicted: do not start what could not be answered.
            return Ok(InPlace::Answered(AfterAnswer::Close, here.len()));
        }
        let (route, bound) = match self.handler.begin(&call) {
            Ok(accepted) => accepted,
            Err(answer) => {
                let next = self.unread(&answer, &head, rest.is_empty());
                return Ok(InPlace::Answered(next, head_end));
            }
        };
        let body = match head.length {
            Length::None => Some(&b""[..]),
            Length::Bytes(length) => rest.get(..length),
            Length::Chunks => None,
        };
        let Some(body) = body else { return Ok(InPlace::BodyToCome) };
        let most = bound.of(body);
        if body.len() > most {
            return Err(HeadError::BodyTooLarge(most));
        }
        let used = head_end.saturating_add(body.len());
        let next = self.next(&head, used == here.len());
        let call = Call { body, ..call };
        let answer = answer(self.handler, route, &call).await;
        self.write(&answer, call.method == "HEAD", next);
        Ok(InPlace::Answered(next, used))
    }

    fn call<'c>(&self, head: &RequestHead<'c, 'c>, room: &'c Reservation) -> Call<'c> {
        let RequestHead { method, path, query, fields, .. } = *head;
        let headers = Headers::Lines(fields);
        Call { peer: self.peer, method, path, query, headers, body: b"", room }
    }

    /// What happens to the connection after the answer to this request.
    fn next(&mut self, head: &RequestHead<'_, '_>, nothing_behind: bool) -> AfterAnswer {
        let last = head.close || self.stream.is_last(nothing_behind);
        if last { AfterAnswer::Close } else { AfterAnswer::Request }
    }

    /// Answers a request by its head. Its body is not read, so the next request could not be told apart from it: a connection
    /// with a body is closed.
    fn unread(
        &mut self,
        answer: &Answer,
        head: &RequestHead<'_, '_>,
        nothing_behind: bool,
    ) -> AfterAnswer {
        let next = match head.length {
            Length::None => self.next(head, nothing_behind),
            Length::Bytes(_) | Length::Chunks => AfterAnswer::Close,
        };
        self.write(answer, head.method == "HEAD", next);
        next
    }

    /// The slow path: answers a request whose body has not arrived yet. Its head is copied, because the read buffer is needed
    /// for the body.
    async fn with_body(&mut self, head_end: usize) -> io::Result<AfterAnswer> {
        let reserved = self.stream.reserve();
        if !reserved.resize(head_end) {
            return Ok(self.refuse(HeadError::NoRoom));
        }
        let head = self.stream.input.unread().get(..head_end).unwrap_or_default().to_vec();
        self.stream.input.consume(head_end);
        self.read_and_answer(&head).await
    }

    async fn read_and_answer(&mut self, head: &[u8]) -> io::Result<AfterAnswer> {
        let mut lines = HeadLines::new();
        let head = match lines.parse(head).and_then(RequestHead::without_upgrade) {
            Ok(head) => head,
            Err(error) => return Ok(self.refuse(error)),
        };
        let room = self.stream.answers();
        let call = self.call(&head, &room);
        let (route, bound) = match self.handler.begin(&call) {
            Ok(accepted) => accepted,
            Err(answer) => return Ok(self.unread(&answer, &head, false)),
        };
        let reserved = self.stream.reserve();
        let body = match self.body(&head, bound, &reserved).await? {
            Ok(body) => body,
            Err(error) => return Ok(self.refuse(error)),
        };
        let answer = answer(self.handler, route, &Call { body: &body, ..call }).await;
        let next = self.next(&head, self.stream.input.is_empty());
        self.write(&answer, call.method == "HEAD", next);
        Ok(next)
    }

    /// The body of a request, within bounds and in time.
    async fn body(
        &mut self,
        head: &RequestHead<'_, '_>,
        most: BodyBound,
        reserved: &Reservation,
    ) -> io::Result<Result<Vec<u8>, HeadError>> {
        let mut body = match Body::new(head.length, most) {
            Ok(body) => body,
            Err(error) => return Ok(Err(error.into())),
        };
        let mut began = false;
        loop {
            if !reserved.resize_soon(body.needs(&self.stream.input)).await {
                return Ok(Err(HeadError::NoRoom));
            }
            match body.take_from(&mut self.stream.input) {
                Ok(true) => return Ok(Ok(body.into_bytes())),
                Ok(false) => {}
                Err(error) => return Ok(Err(error.into())),
            }
            if !began {
                if head.expects {
                    self.stream.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                self.stream.flush().await?;
                self.stream.wait_within(self.listener.timeouts.body);
                began = true;
            }
            if body.len() > bounds::SHORT_BODY {
                self.listener.long_work.pass(READ).await;
            }
            match self.stream.fill().await? {
                Woken::Bytes | Woken::Draining => {}
                Woken::End => return Ok(Err(HeadError::CutShort)),
                Woken::Late => return Ok(Err(HeadError::Late)),
                Woken::NoRoom => return Ok(Err(HeadError::NoRoom)),
            }
        }
    }

    // === answers ===

    fn write(&mut self, answer: &Answer, head_only: bool, next: AfterAnswer) {
        let date = self.listener.date();
        write_answer(&mut self.stream.output, answer, (head_only, next), &date);
    }

    /// Answers an invalid request. The connection is closed, because the bytes that follow cannot be trusted.
    fn refuse(&mut self, error: HeadError) -> AfterAnswer {
        self.listener.metrics.refused(error.kind());
        if let Some(status) = error.status() {
            self.write(&Answer::problem(status, &error.to_string()), false, AfterAnswer::Close);
        }
        AfterAnswer::Close
    }
}

/// Writes an answer that is complete.
pub(crate) fn write_answer(
    out: &mut Vec<u8>,
    answer: &Answer,
    (head_only, next): (bool, AfterAnswer),
    date: &[u8],
) {
    out.extend_from_slice(status_line(answer.status).as_bytes());
    if !answer.kind.is_empty() {
        field(out, b"content-type", answer.kind.as_bytes());
    }
    for (name, value) in &answer.fields {
        field(out, name.as_str().as_bytes(), value.as_bytes());
    }
    if next == AfterAnswer::Close {
        field(out, b"connection", b"close");
    }
    field(out, b"date", date);
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

pub(crate) fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
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
