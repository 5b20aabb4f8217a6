//! The body of a request on its way to an upstream server: a pipe that holds one piece, or a body of HTTP/2.
//!
//! ```text
//!   client ──► read ──► BodyPipe (one piece) ──► RequestBody ──► hyper ──► upstream server
//!                         └ full: the client is not read, so TCP slows it down (backpressure)
//! ```

use super::headers;
use crate::timers;
use bytes::Bytes;
use http::HeaderName;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// The body of a request to an upstream server.
pub(crate) struct RequestBody {
    source: BodySource,
    /// `None` if there is no body.
    progress: Option<BodyProgress>,
    /// Counts the bytes that were passed on, for the access log.
    counter: Option<Rc<Cell<u64>>>,
    /// Fields that this server sets in the header, which therefore cannot be trailers.
    set_by_us: Option<Arc<[HeaderName]>>,
}

enum BodySource {
    Empty,
    /// From an HTTP/1 client, with its length if it announced one.
    Piped(Rc<BodyPipe>, Option<u64>),
    /// From an HTTP/2 client.
    Stream(Incoming),
}

/// How a body moves. Its request, its timeouts and its report look at it.
#[derive(Clone)]
pub(crate) struct BodyProgress(Rc<BodyTimes>);

struct BodyTimes {
    /// When the upstream server last took a piece. A server that still reads a slow upload is not late.
    taken: Cell<Instant>,
    /// Since when the upstream server waits for the next piece of the client; `None` while the client waits for the server.
    waiting: Cell<Option<Instant>>,
    /// For how long it waited for earlier pieces.
    waited: Cell<Duration>,
}

/// Where the reader of a client's connection leaves the next piece of a body. Both ends are on one worker.
#[derive(Default)]
pub(crate) struct BodyPipe(RefCell<PipeState>);

#[derive(Default)]
struct PipeState {
    piece: Option<Frame<Bytes>>,
    end: Option<PipeEnd>,
    /// Wakes the side that waits for the other one.
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PipeEnd {
    Complete,
    /// The client did not send all of it. The upstream server must not take it for the whole body.
    CutShort,
}

impl BodyPipe {
    /// Waits until the pipe has room for the next piece.
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        if state.piece.is_none() {
            return Poll::Ready(());
        }
        state.writer = Some(context.waker().clone());
        Poll::Pending
    }

    /// Leaves a piece. The pipe must have room for it.
    pub(crate) fn push(&self, piece: Frame<Bytes>) {
        let mut state = self.0.borrow_mut();
        state.piece = Some(piece);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    pub(crate) fn end(&self, end: PipeEnd) {
        let mut state = self.0.borrow_mut();
        state.end.get_or_insert(end);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    fn poll_piece(&self, context: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut state = self.0.borrow_mut();
        if let Some(piece) = state.piece.take() {
            if let Some(writer) = state.writer.take() {
                writer.wake();
            }
            return Poll::Ready(Some(Ok(piece)));
        }
        match state.end {
            Some(PipeEnd::Complete) => Poll::Ready(None),
            Some(PipeEnd::CutShort) => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_over(&self) -> bool {
        let state = self.0.borrow();
        state.piece.is_none() && state.end == Some(PipeEnd::Complete)
    }
}

// === impl RequestBody ===

impl RequestBody {
    pub(crate) const fn empty() -> Self {
        Self { source: BodySource::Empty, progress: None, counter: None, set_by_us: None }
    }

    pub(crate) fn piped(pipe: Rc<BodyPipe>, length: Option<u64>) -> Self {
        Self::of(BodySource::Piped(pipe, length))
    }

    pub(crate) fn stream(body: Incoming) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        Self::of(BodySource::Stream(body))
    }

    fn of(source: BodySource) -> Self {
        Self { source, progress: Some(BodyProgress::new()), ..Self::empty() }
    }

    pub(crate) fn progress(&self) -> Option<BodyProgress> {
        self.progress.clone()
    }

    /// The same body, whose bytes are added to a counter when they are passed on.
    pub(crate) fn counted(self, bytes: &Rc<Cell<u64>>) -> Self {
        Self { counter: Some(Rc::clone(bytes)), ..self }
    }

    /// The same body without trailers of these names: the server sets these fields in the header.
    pub(crate) fn without_trailers(self, set_by_us: &Arc<[HeaderName]>) -> Self {
        Self { set_by_us: Some(Arc::clone(set_by_us)), ..self }
    }

    /// Notes that the upstream server has taken a piece.
    fn taken(&self, frame: Option<&Result<Frame<Bytes>, io::Error>>) {
        if let Some(progress) = &self.progress {
            progress.taken();
        }
        let data = frame.and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let (Some(counter), Some(data)) = (&self.counter, data) {
            let more = u64::try_from(data.len()).unwrap_or(u64::MAX);
            counter.set(counter.get().saturating_add(more));
        }
    }
}

impl BodyProgress {
    fn new() -> Self {
        let (taken, waiting) = (Cell::new(timers::now()), Cell::default());
        Self(Rc::new(BodyTimes { taken, waiting, waited: Cell::default() }))
    }

    fn taken(&self) {
        self.0.waited.set(self.waited_for_client());
        self.0.waiting.set(None);
        self.0.taken.set(timers::now());
    }

    /// The upstream server wants a piece, and the client has not sent it.
    fn waits(&self) {
        if self.0.waiting.get().is_none() {
            self.0.waiting.set(Some(timers::now()));
        }
    }

    pub(crate) fn last(&self) -> Instant {
        self.0.taken.get()
    }

    /// For how long the upstream server has waited for the client, in all.
    pub(crate) fn waited_for_client(&self) -> Duration {
        let now = self.0.waiting.get().map(timers::since).unwrap_or_default();
        self.0.waited.get().saturating_add(now)
    }
}

/// A frame of a request without trailers that the upstream server must not get.
fn cleaned(mut frame: Frame<Bytes>, set_by_us: &[HeaderName]) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        headers::trailers_to_upstream(trailers, set_by_us);
    }
    frame
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let polled = match &mut this.source {
            BodySource::Empty => Poll::Ready(None),
            BodySource::Piped(pipe, _) => pipe.poll_piece(context),
            BodySource::Stream(body) => {
                Pin::new(body).poll_frame(context).map_err(io::Error::other)
            }
        };
        match (&polled, &this.progress) {
            (Poll::Ready(frame), _) => this.taken(frame.as_ref()),
            (Poll::Pending, Some(progress)) => progress.waits(),
            (Poll::Pending, None) => {}
        }
        let set_by_us = this.set_by_us.as_deref().unwrap_or_default();
        polled.map(|frame| frame.map(|frame| frame.map(|frame| cleaned(frame, set_by_us))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Empty => true,
            BodySource::Piped(pipe, _) => pipe.is_over(),
            BodySource::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Empty => SizeHint::with_exact(0),
            BodySource::Piped(_, Some(length)) => SizeHint::with_exact(*length),
            BodySource::Piped(_, None) => SizeHint::default(),
            BodySource::Stream(body) => body.size_hint(),
        }
    }
}
