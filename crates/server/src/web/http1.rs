//! HTTP/1.1: one connection, its requests one after another.
//!
//! ```text
//!   idle ──first byte──► head ──► body ──► answer ──► idle …        each arrow has a deadline
//! ```
//!
//! The parser of request heads is `httparse`; everything around it is here, for two reasons. The strict one:
//! a request whose length two readers could understand differently (two lengths, a length beside chunks,
//! lines that end in a bare line feed) is refused, and its connection closed; the usual server library reads
//! over some of these. The fast one: requests that arrive together are answered with one write, and a timer
//! is touched only when somebody is slow.

mod body;
mod head;

pub(crate) use body::{BodyBound, is_list};
pub(crate) use head::HeadError;

use super::call::{Answer, Call, Headers};
use super::{WebHandler, answer};
use crate::bounds;
use crate::net::{Account, Drain, Hold, Line, PIECE, Place, Slot, Stream, Woken};
use body::{Body, BodyError};
use head::{Framing, Length};
use http::StatusCode;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::IpAddr;
use std::rc::Rc;

/// A connection of HTTP/1.
pub(crate) struct Connection<'f, W> {
    line: Line<'f>,
    peer: IpAddr,
    /// Its place at the listener.
    slot: &'f Slot,
    handler: &'f W,
    place: &'f Place,
    /// The bytes of empty lines since the last request.
    skipped: usize,
}

/// What becomes of a connection after an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterAnswer {
    Request,
    Close,
}

/// What the first bytes of a connection are.
pub(crate) enum First {
    /// Requests of HTTP/1.
    One,
    /// The preface of HTTP/2.
    Two,
    /// Nothing came.
    Nothing,
}

/// What became of a request that was looked at where it lies.
enum Looked {
    /// It was all here, so many bytes, and it is answered.
    Answered(AfterAnswer, usize),
    /// Its body is still on its way.
    BodyToCome,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// More than the largest head, so that one always fits.
const UNREAD: usize = 16 * 1024 + bounds::REQUEST_LINE + bounds::HEADER_BLOCK;

/// Requests of a pipeline that take as long as a piece of work.
const REQUESTS: usize = 50;
/// What it takes to read as much of a body as is read at once, in microseconds.
const READ: u32 = 3;

type Lines<'b> = [MaybeUninit<httparse::Header<'b>>; bounds::HEADERS];

// === impl Connection ===

impl<'f, W: WebHandler> Connection<'f, W> {
    pub(crate) fn new(
        stream: Stream,
        (peer, slot, account): (IpAddr, &'f Slot, Rc<Account>),
        handler: &'f W,
        place: &'f Place,
        drain: &Drain,
    ) -> Self {
        let line = Line::new(stream, account, place, drain, UNREAD);
        Self { line, peer, slot, handler, place, skipped: 0 }
    }

    /// Waits for the first bytes and tells the versions apart.
    pub(crate) async fn first(&mut self) -> io::Result<First> {
        loop {
            let here = self.line.input.here();
            let seen = PREFACE.len().min(here.len());
            match (PREFACE.get(..seen) == here.get(..seen), seen) {
                (true, seen) if seen == PREFACE.len() => return Ok(First::Two),
                (true, _) => {}
                (false, _) => return Ok(First::One),
            }
            match self.line.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.wait_for_more(),
                // What is there is no whole preface, and no request begins so.
                Woken::End if !self.line.input.is_empty() => return Ok(First::One),
                Woken::End | Woken::Late | Woken::NoRoom => return Ok(First::Nothing),
            }
        }
    }

    /// The connection, and what has been read of it.
    pub(crate) fn into_parts(self) -> (Stream, Vec<u8>) {
        self.line.into_parts()
    }

    /// Answers requests until there are no more.
    pub(crate) async fn serve(mut self) -> io::Result<()> {
        loop {
            let next = self.answer_what_is_here().await?;
            if next == AfterAnswer::Close {
                return self.line.close().await;
            }
            self.line.flush().await?;
            self.wait_for_more();
            match self.line.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.wait_for_more(),
                Woken::End => return Ok(()),
                Woken::Late if self.line.input.is_empty() => return Ok(()),
                Woken::Late => {
                    self.refuse(HeadError::Late);
                    return self.line.close().await;
                }
                Woken::NoRoom => {
                    self.refuse(HeadError::NoRoom);
                    return self.line.close().await;
                }
            }
        }
    }

    /// How long the next byte may take.
    fn wait_for_more(&mut self) {
        let begun = !self.line.input.is_empty();
        let time = if begun { self.place.timeouts.head } else { self.line.patience() };
        self.line.wait_within(time);
    }

    // === requests ===

    /// Answers every request that has arrived whole, and waits for the rest of one that has begun.
    async fn answer_what_is_here(&mut self) -> io::Result<AfterAnswer> {
        // So many at once are short work; a longer pipeline takes turns with others.
        let mut short = bounds::SHORT_PIPELINE;
        loop {
            if let Err(error) = self.skip_empty_lines() {
                self.refuse(error);
                return Ok(AfterAnswer::Close);
            }
            if self.line.input.is_empty() {
                return Ok(AfterAnswer::Request);
            }
            if short == 0 {
                self.line.flush().await?;
                self.place.turns.pass(PIECE).await;
                short = REQUESTS;
            }
            short = short.saturating_sub(1);
            let Some(head_end) = self.whole_head().await? else { return Ok(AfterAnswer::Close) };
            if self.one_request(head_end).await? == AfterAnswer::Close {
                return Ok(AfterAnswer::Close);
            }
            if self.line.output.len() > bounds::UNWRITTEN {
                self.line.flush().await?;
            }
        }
    }

    /// Some clients send an empty line after a body. They are counted however they arrive: were there no end
    /// of them, a connection could be kept without ever asking for anything.
    fn skip_empty_lines(&mut self) -> Result<(), HeadError> {
        self.skipped = self.skipped.saturating_add(self.line.input.skip_empty_lines());
        if self.skipped > bounds::EMPTY_LINES { Err(HeadError::NoHttp) } else { Ok(()) }
    }

    /// Waits until the head of a request is here, and says where it ends. `None`: nothing more is to be
    /// read.
    async fn whole_head(&mut self) -> io::Result<Option<usize>> {
        let mut seen = 0;
        loop {
            let here = self.line.input.here();
            if let Some(end) = head::end(here, seen) {
                return Ok(Some(end));
            }
            // Nonsense is told at once, not when it has grown to the size of a head.
            if let Err(error) = head::plausible(here) {
                self.refuse(error);
                return Ok(None);
            }
            if mem::replace(&mut seen, here.len()) == 0 {
                // Answers to what came before do not wait for what comes after.
                self.line.flush().await?;
                self.line.wait_within(self.place.timeouts.head);
            }
            match self.line.fill().await? {
                Woken::Bytes | Woken::Draining => {}
                Woken::End => return Ok(None),
                Woken::Late => {
                    self.refuse(HeadError::Late);
                    return Ok(None);
                }
                Woken::NoRoom => {
                    self.refuse(HeadError::NoRoom);
                    return Ok(None);
                }
            }
        }
    }

    /// Answers one request, whose head is here.
    async fn one_request(&mut self, head_end: usize) -> io::Result<AfterAnswer> {
        self.skipped = 0;
        // What is read is lent to the request while it is answered, and comes back after it.
        let input = mem::take(&mut self.line.input);
        let looked = self.look(input.here(), head_end).await;
        self.line.input = input;
        match looked {
            Ok(Looked::Answered(next, used)) => {
                self.line.input.consume(used);
                Ok(next)
            }
            Ok(Looked::BodyToCome) => {
                let hold = self.line.hold();
                if !hold.resize(head_end) {
                    self.refuse(HeadError::NoRoom);
                    return Ok(AfterAnswer::Close);
                }
                let head = self.line.input.here().get(..head_end).unwrap_or_default().to_vec();
                self.line.input.consume(head_end);
                self.with_body(&head).await
            }
            Err(error) => {
                self.refuse(error);
                Ok(AfterAnswer::Close)
            }
        }
    }

    /// Answers a request where it lies, if all of it is here or its body is not wanted.
    async fn look(&mut self, here: &[u8], head_end: usize) -> Result<Looked, HeadError> {
        let (head, rest) = here.split_at_checked(head_end).unwrap_or((here, b""));
        let mut lines: Lines<'_> = [const { MaybeUninit::uninit() }; bounds::HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(head, &mut lines);
        let framing = head::framing(parsed, &request, head)?;
        let room = self.line.answers();
        let call = self.call(&request, &framing, &room);
        if self.handler.knows(&call) && !self.slot.keep() {
            // Nothing is begun that could not be answered.
            return Ok(Looked::Answered(AfterAnswer::Close, here.len()));
        }
        let (route, bound) = match self.handler.begin(&call) {
            Ok(accepted) => accepted,
            Err(answer) => {
                let next = self.unread(&answer, &call, &framing, rest.is_empty());
                return Ok(Looked::Answered(next, head_end));
            }
        };
        let body = match framing.length {
            Length::None => Some(&b""[..]),
            Length::Bytes(length) => rest.get(..length),
            Length::Chunks => None,
        };
        let Some(body) = body else { return Ok(Looked::BodyToCome) };
        let most = bound.of(body);
        if body.len() > most {
            return Err(HeadError::BodyTooLarge(most));
        }
        let used = head_end.saturating_add(body.len());
        let next = self.next(&framing, used == here.len());
        let call = Call { body, ..call };
        let answer = answer(self.handler, route, &call).await;
        self.write(&answer, call.method == "HEAD", next);
        Ok(Looked::Answered(next, used))
    }

    fn call<'c, 'b: 'c>(
        &self,
        request: &'c httparse::Request<'_, 'b>,
        framing: &Framing<'b>,
        room: &'c Hold,
    ) -> Call<'c> {
        Call {
            peer: self.peer,
            method: request.method.unwrap_or_default(),
            path: framing.path,
            query: framing.query,
            headers: Headers::Lines(request.headers),
            body: b"",
            room,
        }
    }

    /// What becomes of the connection after the answer to this request, behind which there may be no other.
    fn next(&mut self, framing: &Framing<'_>, nothing_behind: bool) -> AfterAnswer {
        let last = framing.close || self.line.is_last(nothing_behind);
        if last { AfterAnswer::Close } else { AfterAnswer::Request }
    }

    /// Answers a request by its head. A body that nobody wants is not read, so what follows it cannot be told
    /// apart from it.
    fn unread(
        &mut self,
        answer: &Answer,
        call: &Call<'_>,
        framing: &Framing<'_>,
        nothing_behind: bool,
    ) -> AfterAnswer {
        let next = match framing.length {
            Length::None => self.next(framing, nothing_behind),
            Length::Bytes(_) | Length::Chunks => AfterAnswer::Close,
        };
        self.write(answer, call.method == "HEAD", next);
        next
    }

    /// Answers a request whose body is on its way.
    async fn with_body(&mut self, head: &[u8]) -> io::Result<AfterAnswer> {
        let mut lines: Lines<'_> = [const { MaybeUninit::uninit() }; bounds::HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(head, &mut lines);
        let framing = match head::framing(parsed, &request, head) {
            Ok(framing) => framing,
            Err(error) => {
                self.refuse(error);
                return Ok(AfterAnswer::Close);
            }
        };
        let room = self.line.answers();
        let call = self.call(&request, &framing, &room);
        let (route, bound) = match self.handler.begin(&call) {
            Ok(accepted) => accepted,
            Err(answer) => return Ok(self.unread(&answer, &call, &framing, false)),
        };
        let hold = self.line.hold();
        let body = match self.body(&framing, bound, &hold).await? {
            Ok(body) => body,
            Err(error) => {
                self.refuse(error);
                return Ok(AfterAnswer::Close);
            }
        };
        let answer = answer(self.handler, route, &Call { body: &body, ..call }).await;
        let next = self.next(&framing, self.line.input.is_empty());
        self.write(&answer, call.method == "HEAD", next);
        Ok(next)
    }

    /// The body of a request, within bounds and in time.
    async fn body(
        &mut self,
        framing: &Framing<'_>,
        most: BodyBound,
        hold: &Hold,
    ) -> io::Result<Result<Vec<u8>, HeadError>> {
        let mut body = match Body::new(framing.length, most) {
            Ok(body) => body,
            Err(error) => return Ok(Err(error.into())),
        };
        let mut began = false;
        loop {
            if !hold.resize_soon(body.needs(&self.line.input)).await {
                return Ok(Err(HeadError::NoRoom));
            }
            match body.take_from(&mut self.line.input) {
                Ok(true) => return Ok(Ok(body.into_bytes())),
                Ok(false) => {}
                Err(error) => return Ok(Err(error.into())),
            }
            if !began {
                if framing.expects {
                    self.line.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                self.line.flush().await?;
                self.line.wait_within(self.place.timeouts.body);
                began = true;
            }
            if body.len() > bounds::SHORT_BODY {
                self.place.turns.pass(READ).await;
            }
            match self.line.fill().await? {
                Woken::Bytes | Woken::Draining => {}
                Woken::End => return Ok(Err(HeadError::CutShort)),
                Woken::Late => return Ok(Err(HeadError::Late)),
                Woken::NoRoom => return Ok(Err(HeadError::NoRoom)),
            }
        }
    }

    // === answers ===

    fn write(&mut self, answer: &Answer, head_only: bool, next: AfterAnswer) {
        let out = &mut self.line.output;
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
        field(out, b"date", &self.place.date());
        if answer.status != StatusCode::NO_CONTENT {
            let mut digits = itoa::Buffer::new();
            field(out, b"content-length", digits.format(answer.body.len()).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        if !head_only {
            out.extend_from_slice(&answer.body);
        }
    }

    /// Answers what is no request; nothing after it can be trusted.
    fn refuse(&mut self, error: HeadError) {
        self.place.metrics.refused(error.kind());
        if let Some(status) = error.status() {
            self.write(&Answer::problem(status, &error.to_string()), false, AfterAnswer::Close);
        }
    }
}

fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn status_line(status: StatusCode) -> std::borrow::Cow<'static, str> {
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
