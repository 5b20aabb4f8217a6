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

use super::{Drain, Place};
use crate::bounds;
use crate::call::{Answer, Call, Headers};
use crate::front::Front;
use crate::metrics::Refused;
pub(crate) use body::Most;
pub(crate) use head::HeadError;

use body::{Body, BodyError};
use bytes::{Buf, BytesMut};
use head::{Framing, Length};
use http::StatusCode;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate::Store;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::io::poll_read_buf;
use tokio_util::sync::WaitForCancellationFutureOwned;

/// A connection, and what has been read of it.
pub(crate) struct Connection<'f, S> {
    pub(crate) stream: TcpStream,
    peer: IpAddr,
    front: &'f Front<S>,
    place: &'f Place,
    input: BytesMut,
    output: Vec<u8>,
    deadline: Deadline,
    drain: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The server is stopping; whoever never pauses is told to go from this moment on.
    draining: Option<Instant>,
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

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const LINGER: Duration = Duration::from_millis(bounds::LINGER_MILLIS);
/// As much as most requests need.
const BUFFER: usize = 4 * 1024;

// === impl Connection ===

impl<'f, S: Store + 'static> Connection<'f, S> {
    pub(crate) fn new(
        stream: TcpStream,
        peer: IpAddr,
        front: &'f Front<S>,
        place: &'f Place,
        drain: &Drain,
    ) -> Self {
        let deadline = Deadline::new(Instant::now() + place.timeouts.head);
        Self {
            stream,
            peer,
            front,
            place,
            input: BytesMut::new(),
            output: Vec::new(),
            deadline,
            drain: Box::pin(drain.begun.clone().cancelled_owned()),
            draining: None,
        }
    }

    /// Waits for the first bytes and tells the versions apart.
    pub(crate) async fn first(&mut self) -> io::Result<First> {
        loop {
            let seen = PREFACE.len().min(self.input.len());
            match (PREFACE.get(..seen) == self.input.get(..seen), seen) {
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
    pub(crate) fn into_parts(self) -> (TcpStream, BytesMut) {
        (self.stream, self.input)
    }

    /// Answers requests until there are no more.
    pub(crate) async fn serve(mut self) -> io::Result<()> {
        loop {
            let next = self.answer_what_is_here().await?;
            self.flush().await?;
            if next == Next::Close {
                return self.close().await;
            }
            self.deadline.set(Instant::now() + self.patience());
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
            (true, Some(_)) => LINGER,
            (true, None) => self.place.timeouts.idle,
            (false, _) => self.place.timeouts.head,
        }
    }

    /// Between two requests.
    fn begin_draining(&mut self) {
        self.drains();
        self.deadline.set(Instant::now() + self.patience());
    }

    fn drains(&mut self) {
        self.draining = Some(Instant::now() + LINGER);
    }

    /// Whether the answer that is about to be written is the last: the server is stopping, and the client
    /// had sent nothing more.
    fn is_last(&mut self) -> bool {
        let Some(at_the_latest) = self.draining.filter(|_| self.input.is_empty()) else {
            return false;
        };
        // What came before the end may still lie in the socket.
        self.input.reserve(BUFFER);
        let more = matches!(self.stream.try_read_buf(&mut self.input), Ok(1..));
        !more || Instant::now() >= at_the_latest
    }

    // === requests ===

    /// Answers every request that has arrived whole, and waits for the rest of one that has begun.
    async fn answer_what_is_here(&mut self) -> io::Result<Next> {
        while !self.input.is_empty() {
            let Some(head_end) = self.whole_head().await? else { return Ok(Next::Close) };
            if self.one_request(head_end).await? == Next::Close {
                return Ok(Next::Close);
            }
            if self.output.len() > bounds::UNWRITTEN {
                self.flush().await?;
            }
        }
        Ok(Next::Request)
    }

    /// Waits until the head of a request is here, and says where it ends. `None`: nothing more is to be
    /// read.
    async fn whole_head(&mut self) -> io::Result<Option<usize>> {
        self.skip_empty_lines();
        let mut began = false;
        let mut seen = 0;
        loop {
            if let Some(end) = head::end(&self.input, seen) {
                return Ok(Some(end));
            }
            // Nonsense is told at once, not when it has grown to the size of a head.
            if let Err(error) = head::plausible(&self.input) {
                self.refuse(error);
                return Ok(None);
            }
            if self.input.is_empty() {
                return Ok(Some(0));
            }
            seen = self.input.len();
            if !began {
                // Answers to what came before do not wait for what comes after.
                self.flush().await?;
                self.deadline.set(Instant::now() + self.place.timeouts.head);
                began = true;
            }
            match self.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.drains(),
                Woken::End => return Ok(None),
                Woken::Late => {
                    self.refuse_late();
                    return Ok(None);
                }
            }
        }
    }

    /// Some clients send an empty line after a body.
    fn skip_empty_lines(&mut self) {
        let lines = self.input.iter().take(4).take_while(|byte| matches!(byte, b'\r' | b'\n'));
        let count = lines.count();
        self.input.advance(count);
    }

    /// Answers one request, whose head is here.
    async fn one_request(&mut self, head_end: usize) -> io::Result<Next> {
        if head_end == 0 {
            return Ok(Next::Request);
        }
        let bytes = self.input.split_to(head_end);
        let mut lines = [const { MaybeUninit::uninit() }; bounds::HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(&bytes, &mut lines);
        let framing = match head::framing(parsed, &request, &bytes) {
            Ok(framing) => framing,
            Err(error) => {
                self.refuse(error);
                return Ok(Next::Close);
            }
        };
        let call = Call {
            peer: self.peer,
            method: request.method.unwrap_or_default(),
            path: framing.path,
            query: framing.query,
            headers: Headers::Lines(request.headers),
            body: b"",
        };
        self.answered(&call, &framing).await
    }

    /// Reads the body, if the front wants one, and writes the answer.
    async fn answered(&mut self, call: &Call<'_>, framing: &Framing<'_>) -> io::Result<Next> {
        let refused = match self.front.begin(call) {
            Ok(most) => match self.body(framing, most).await? {
                Ok(body) => {
                    let answer = self.front.answer(&Call { body: &body, ..*call }).await;
                    let next = self.next(framing);
                    self.write(&answer, call.method == "HEAD", next);
                    return Ok(next);
                }
                Err(error) => error,
            },
            // A body that nobody asked for is not read, so what follows it cannot be told apart from it.
            Err(answer) if framing.length == Length::None => {
                let next = self.next(framing);
                self.write(&answer, call.method == "HEAD", next);
                return Ok(next);
            }
            Err(answer) => {
                self.write(&answer, call.method == "HEAD", Next::Close);
                return Ok(Next::Close);
            }
        };
        self.refuse(refused);
        Ok(Next::Close)
    }

    fn next(&mut self, framing: &Framing<'_>) -> Next {
        if framing.close || self.is_last() { Next::Close } else { Next::Request }
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
                self.deadline.set(Instant::now() + self.place.timeouts.body);
                began = true;
            }
            match self.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.drains(),
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
        let date = self.place.date();
        line(out, b"date", &date);
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

    fn refuse_late(&mut self) {
        self.refuse(HeadError::Late);
    }

    /// A request was begun and not finished in time.
    async fn late(mut self) -> io::Result<()> {
        self.refuse_late();
        self.flush().await?;
        self.close().await
    }

    // === bytes ===

    async fn flush(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        let mut rest = &self.output[..];
        // Nearly always the socket takes all at once, and no timer is touched.
        match self.stream.try_write(rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if !rest.is_empty() {
            self.deadline.set(Instant::now() + self.place.timeouts.body);
            let (stream, deadline) = (&mut self.stream, &mut self.deadline);
            let written = poll_fn(|context| write_some(stream, deadline, &mut rest, context)).await;
            if let Err(error) = written {
                if error.kind() == io::ErrorKind::TimedOut {
                    self.place.metrics.refused(Refused::Unread);
                }
                return Err(error);
            }
        }
        self.output.clear();
        self.output.shrink_to(BUFFER);
        Ok(())
    }

    /// Waits for more bytes.
    async fn fill(&mut self) -> io::Result<Woken> {
        if self.input.is_empty() && self.input.capacity() > BUFFER.saturating_mul(4) {
            self.input = BytesMut::new();
        }
        self.input.reserve(BUFFER);
        let Self { stream, input, deadline, drain, draining, .. } = self;
        poll_fn(|context| {
            if let Poll::Ready(read) = poll_read_buf(Pin::new(stream), context, input) {
                return Poll::Ready(match read? {
                    0 => Ok(Woken::End),
                    _ => Ok(Woken::Bytes),
                });
            }
            if draining.is_none() && drain.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(Woken::Draining));
            }
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
        self.drains();
        self.deadline.set(Instant::now() + LINGER);
        let mut left = bounds::LINGER_BYTES;
        loop {
            self.input.clear();
            match self.fill().await? {
                Woken::Bytes => left = left.saturating_sub(self.input.len()),
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
