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
mod input;

pub(crate) use body::Most;
pub(crate) use head::HeadError;

use super::{Drain, Place, after};
use crate::bounds;
use crate::call::{Answer, Call, Headers};
use crate::front::Front;
use crate::metrics::Refused;
use body::{Body, BodyError};
use head::{Framing, Length};
use http::StatusCode;
use input::Input;
use std::future::poll_fn;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate::Store;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// A connection, and what has been read of it.
pub(crate) struct Connection<'f, S> {
    stream: TcpStream,
    peer: IpAddr,
    front: &'f Front<S>,
    place: &'f Place,
    input: Input,
    output: Vec<u8>,
    deadline: Deadline,
    drain: Drain,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether the timer and the end of the server know whom to wake. They wake the same task however often
    /// they are asked, so while requests come they are not asked again.
    waiting: bool,
    draining: bool,
}

/// A timer that is set back only when it rings too early.
struct Deadline {
    at: Instant,
    timer: Pin<Box<Sleep>>,
}

/// Why a connection that waits goes on.
enum Woken {
    Bytes,
    /// The other side will send no more.
    End,
    Late,
    Draining,
}

/// What becomes of a connection after an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
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
    Answered(Next, usize),
    /// Its body is still on its way.
    BodyToCome,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// As much as is kept for the answers of a connection that waits.
const OUTPUT: usize = 4 * 1024;

type Lines<'b> = [MaybeUninit<httparse::Header<'b>>; bounds::HEADERS];

// === impl Connection ===

impl<'f, S: Store + 'static> Connection<'f, S> {
    pub(crate) fn new(
        stream: TcpStream,
        peer: IpAddr,
        front: &'f Front<S>,
        place: &'f Place,
        drain: &Drain,
    ) -> Self {
        Self {
            stream,
            peer,
            front,
            place,
            input: Input::default(),
            output: Vec::new(),
            deadline: Deadline::new(after(place.timeouts.head)),
            drain: drain.clone(),
            drained: Box::pin(drain.begun.clone().cancelled_owned()),
            waiting: false,
            draining: false,
        }
    }

    /// Waits for the first bytes and tells the versions apart.
    pub(crate) async fn first(&mut self) -> io::Result<First> {
        loop {
            let here = self.input.here();
            let seen = PREFACE.len().min(here.len());
            match (PREFACE.get(..seen) == here.get(..seen), seen) {
                (true, seen) if seen == PREFACE.len() => return Ok(First::Two),
                (true, _) => {}
                (false, _) => return Ok(First::One),
            }
            match self.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.begin_draining(),
                // What is there is no whole preface, and no request begins so.
                Woken::End if !self.input.is_empty() => return Ok(First::One),
                Woken::End | Woken::Late => return Ok(First::Nothing),
            }
        }
    }

    /// The connection, and what has been read of it.
    pub(crate) fn into_parts(self) -> (TcpStream, Vec<u8>) {
        let read = self.input.here().to_vec();
        (self.stream, read)
    }

    /// Answers requests until there are no more.
    pub(crate) async fn serve(mut self) -> io::Result<()> {
        loop {
            let next = self.answer_what_is_here().await?;
            self.flush().await?;
            if next == Next::Close {
                return self.close().await;
            }
            self.deadline.set(after(self.patience()));
            match self.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.begin_draining(),
                Woken::End => return Ok(()),
                Woken::Late if self.input.is_empty() => return Ok(()),
                Woken::Late => return self.late().await,
            }
        }
    }

    /// How long the next byte may take.
    fn patience(&self) -> Duration {
        match (self.input.is_empty(), self.draining) {
            (true, true) => Duration::from_millis(bounds::LINGER_MILLIS),
            (true, false) => self.place.timeouts.idle,
            (false, _) => self.place.timeouts.head,
        }
    }

    fn begin_draining(&mut self) {
        self.draining = true;
        self.deadline.set(after(self.patience()));
    }

    // === requests ===

    /// Answers every request that has arrived whole, and waits for the rest of one that has begun.
    async fn answer_what_is_here(&mut self) -> io::Result<Next> {
        loop {
            self.input.skip_empty_lines();
            if self.input.is_empty() {
                return Ok(Next::Request);
            }
            let Some(head_end) = self.whole_head().await? else { return Ok(Next::Close) };
            if self.one_request(head_end).await? == Next::Close {
                return Ok(Next::Close);
            }
            if self.output.len() > bounds::UNWRITTEN {
                self.flush().await?;
            }
        }
    }

    /// Waits until the head of a request is here, and says where it ends. `None`: nothing more is to be
    /// read.
    async fn whole_head(&mut self) -> io::Result<Option<usize>> {
        let mut seen = 0;
        loop {
            let here = self.input.here();
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
                self.flush().await?;
                self.deadline.set(after(self.place.timeouts.head));
            }
            match self.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.draining = true,
                Woken::End => return Ok(None),
                Woken::Late => {
                    self.refuse(HeadError::Late);
                    return Ok(None);
                }
            }
        }
    }

    /// Answers one request, whose head is here.
    async fn one_request(&mut self, head_end: usize) -> io::Result<Next> {
        // What is read is lent to the request while it is answered, and comes back after it.
        let input = mem::take(&mut self.input);
        let looked = self.look(input.here(), head_end).await;
        self.input = input;
        match looked {
            Ok(Looked::Answered(next, used)) => {
                self.input.consume(used);
                Ok(next)
            }
            Ok(Looked::BodyToCome) => {
                let head = self.input.here().get(..head_end).unwrap_or_default().to_vec();
                self.input.consume(head_end);
                self.with_body(&head).await
            }
            Err(error) => {
                self.refuse(error);
                Ok(Next::Close)
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
        let call = self.call(&request, &framing);
        let most = match self.front.begin(&call) {
            Ok(most) => most,
            Err(answer) => {
                return Ok(Looked::Answered(self.unread(&answer, &call, &framing), head_end));
            }
        };
        let body = match framing.length {
            Length::None => Some(&b""[..]),
            Length::Bytes(length) => rest.get(..length),
            Length::Chunks => None,
        };
        let Some(body) = body else { return Ok(Looked::BodyToCome) };
        if body.len() > most.of(body) {
            return Err(HeadError::BodyTooLarge(most.of(body)));
        }
        let used = head_end.saturating_add(body.len());
        // What came together is answered together; the last answer of a server that stops says so.
        let last = self.draining && used == here.len();
        let next = if framing.close || last { Next::Close } else { Next::Request };
        let call = Call { body, ..call };
        let answer = match self.front.answer_at_once(&call) {
            Some(answer) => answer,
            None => self.front.answer(&call).await,
        };
        self.write(&answer, call.method == "HEAD", next);
        Ok(Looked::Answered(next, used))
    }

    fn call<'c, 'b: 'c>(
        &self,
        request: &'c httparse::Request<'_, 'b>,
        framing: &Framing<'b>,
    ) -> Call<'c> {
        Call {
            peer: self.peer,
            method: request.method.unwrap_or_default(),
            path: framing.path,
            query: framing.query,
            headers: Headers::Lines(request.headers),
            body: b"",
        }
    }

    /// Answers a request by its head. A body that nobody wants is not read, so what follows it cannot be told
    /// apart from it.
    fn unread(&mut self, answer: &Answer, call: &Call<'_>, framing: &Framing<'_>) -> Next {
        let close = framing.close || framing.length != Length::None;
        let next = if close { Next::Close } else { Next::Request };
        self.write(answer, call.method == "HEAD", next);
        next
    }

    /// Answers a request whose body is on its way.
    async fn with_body(&mut self, head: &[u8]) -> io::Result<Next> {
        let mut lines: Lines<'_> = [const { MaybeUninit::uninit() }; bounds::HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(head, &mut lines);
        let framing = match head::framing(parsed, &request, head) {
            Ok(framing) => framing,
            Err(error) => {
                self.refuse(error);
                return Ok(Next::Close);
            }
        };
        let call = self.call(&request, &framing);
        let most = match self.front.begin(&call) {
            Ok(most) => most,
            Err(answer) => return Ok(self.unread(&answer, &call, &framing)),
        };
        let body = match self.body(&framing, most).await? {
            Ok(body) => body,
            Err(error) => {
                self.refuse(error);
                return Ok(Next::Close);
            }
        };
        let answer = self.front.answer(&Call { body: &body, ..call }).await;
        let last = self.draining && self.input.is_empty();
        let next = if framing.close || last { Next::Close } else { Next::Request };
        self.write(&answer, call.method == "HEAD", next);
        Ok(next)
    }

    /// The body of a request, within bounds and in time.
    async fn body(
        &mut self,
        framing: &Framing<'_>,
        most: Most,
    ) -> io::Result<Result<Vec<u8>, HeadError>> {
        let mut body = match Body::new(framing.length, most) {
            Ok(body) => body,
            Err(error) => return Ok(Err(error.into())),
        };
        let mut began = false;
        loop {
            match body.take_from(&mut self.input) {
                Ok(true) => return Ok(Ok(body.into_bytes())),
                Ok(false) => {}
                Err(error) => return Ok(Err(error.into())),
            }
            if !began {
                if framing.expects {
                    self.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                self.flush().await?;
                self.deadline.set(after(self.place.timeouts.body));
                began = true;
            }
            match self.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.draining = true,
                Woken::End => return Ok(Err(HeadError::CutShort)),
                Woken::Late => return Ok(Err(HeadError::Late)),
            }
        }
    }

    // === answers ===

    fn write(&mut self, answer: &Answer, head_only: bool, next: Next) {
        let out = &mut self.output;
        out.extend_from_slice(status_line(answer.status).as_bytes());
        if !answer.kind.is_empty() {
            line(out, b"content-type", answer.kind.as_bytes());
        }
        for (name, value) in &answer.fields {
            line(out, name.as_str().as_bytes(), value.as_bytes());
        }
        if next == Next::Close {
            line(out, b"connection", b"close");
        }
        line(out, b"date", &self.place.date());
        if answer.status != StatusCode::NO_CONTENT {
            let mut digits = itoa::Buffer::new();
            line(out, b"content-length", digits.format(answer.body.len()).as_bytes());
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
            self.write(&Answer::problem(status, &error.to_string()), false, Next::Close);
        }
    }

    /// A request was begun and not finished in time.
    async fn late(mut self) -> io::Result<()> {
        self.refuse(HeadError::Late);
        self.flush().await?;
        self.close().await
    }

    // === bytes ===

    async fn flush(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        // Nearly always the socket takes all at once, and no timer is touched.
        let written = match self.stream.try_write(&self.output) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if written < self.output.len() {
            self.flush_slowly(written).await?;
        }
        self.output.clear();
        self.output.shrink_to(OUTPUT);
        Ok(())
    }

    /// Writes the rest to somebody who is slow to read it.
    async fn flush_slowly(&mut self, written: usize) -> io::Result<()> {
        self.deadline.set(after(self.place.timeouts.body));
        let Self { stream, deadline, output, .. } = self;
        let mut rest = output.get(written..).unwrap_or_default();
        let written = poll_fn(|context| write_some(stream, deadline, &mut rest, context)).await;
        if let Err(error) = &written
            && error.kind() == io::ErrorKind::TimedOut
        {
            self.place.metrics.refused(Refused::Unread);
        }
        written
    }

    /// Waits for more bytes.
    async fn fill(&mut self) -> io::Result<Woken> {
        let Self { stream, input, deadline, drain, drained, waiting, draining, .. } = self;
        poll_fn(|context| {
            if let Poll::Ready(read) = input.poll_read_from(stream, context) {
                return Poll::Ready(match read? {
                    0 => Ok(Woken::End),
                    _ => Ok(Woken::Bytes),
                });
            }
            if !*draining && drain.has_begun() {
                return Poll::Ready(Ok(Woken::Draining));
            }
            if *waiting && !deadline.timer.is_elapsed() {
                return Poll::Pending;
            }
            // Its flag was looked at: it is asked only so that it wakes us.
            let _ = drained.as_mut().poll(context);
            *waiting = true;
            ready!(deadline.poll(context));
            Poll::Ready(Ok(Woken::Late))
        })
        .await
    }

    /// Closes after the last answer. Bytes that were still on their way are read over for a moment: a socket
    /// that is closed with unread bytes takes the answer back.
    async fn close(mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await?;
        self.draining = true;
        self.deadline.set(after(Duration::from_millis(bounds::LINGER_MILLIS)));
        let mut left = bounds::LINGER_BYTES;
        loop {
            self.input.clear();
            match self.fill().await? {
                Woken::Bytes => left = left.saturating_sub(self.input.here().len()),
                Woken::Draining => {}
                Woken::End | Woken::Late => return Ok(()),
            }
            if left == 0 {
                return Ok(());
            }
        }
    }
}

/// Writes as much as the socket takes, until all is written or the time is over.
fn write_some(
    stream: &mut TcpStream,
    deadline: &mut Deadline,
    rest: &mut &[u8],
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while !rest.is_empty() {
        match Pin::new(&mut *stream).poll_write(context, rest) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(written)) => *rest = rest.get(written..).unwrap_or_default(),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {
                ready!(deadline.poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }
    Poll::Ready(Ok(()))
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
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

// === impl Deadline ===

impl Deadline {
    fn new(at: Instant) -> Self {
        Self { at, timer: Box::pin(tokio::time::sleep_until(at)) }
    }

    fn set(&mut self, at: Instant) {
        self.at = at;
        if at < self.timer.deadline() {
            self.timer.as_mut().reset(at);
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            if self.timer.deadline() >= self.at {
                return Poll::Ready(());
            }
            let at = self.at;
            self.timer.as_mut().reset(at);
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
