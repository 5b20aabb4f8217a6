//! Health and reflection, which are tonic's: what they read of a call, and what they answer, within our bounds.
//!
//! ```text
//!   stream ──RequestBody──► tonic ──Others──► answer        whoever needs no more of a question lets it go; then it is read over
//!              ▲                     │
//!              └──── is answered ────┘                   and nobody asks on once the answer is over
//! ```

use super::reply::{Code, ended};
use crate::net::{Drain, Reservation};
use crate::web::{InFlightRequest, UnreadResponse, read_over};
use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// What they read: ends when the answer does, because otherwise a client that asks nothing more keeps the stream, and with it
/// a server that wants to stop.
pub(super) struct RequestBody {
    body: Option<Incoming>,
    answered: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// What they answer, which may go on for as long as the server does.
pub(crate) struct Others {
    body: tonic::body::Body,
    work: InFlightRequest,
    ends: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Tells the question; `None` once all is said.
    answering: Option<DropGuard>,
}

type Polled = Poll<Option<Result<Frame<UnreadResponse>, Box<dyn Error + Send + Sync>>>>;

// === impl RequestBody ===

impl RequestBody {
    /// A question, and what must be kept for as long as it is answered.
    pub(super) fn new(body: Incoming) -> (Self, DropGuard) {
        let token = CancellationToken::new();
        let answered = Box::pin(token.clone().cancelled_owned());
        (Self { body: Some(body), answered }, token.drop_guard())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.answered.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            // The library asks for a question that may go to another thread, and what is counted may not.
            read_over(body, Reservation::default());
        }
    }
}

// === impl Others ===

impl Others {
    pub(super) fn new(
        body: tonic::body::Body,
        work: InFlightRequest,
        answering: DropGuard,
        drain: &Drain,
    ) -> Self {
        let ends = Box::pin(drain.begun.clone().cancelled_owned());
        Self { body, work, ends, answering: Some(answering) }
    }

    /// Whether all is said.
    pub(super) fn is_over(&self) -> bool {
        self.answering.is_none() || self.body.is_end_stream()
    }

    /// What they say next; that it is over, when the server stops and they have nothing to say.
    pub(super) fn poll_frame(&mut self, context: &mut Context<'_>) -> Polled {
        if self.answering.is_none() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let frame = frame.map(|frame| {
                let taken = |data| self.work.answered(data);
                frame.map(|frame| frame.map_data(taken)).map_err(Into::into)
            });
            return Poll::Ready(frame);
        }
        ready!(self.ends.as_mut().poll(context));
        self.answering = None;
        Poll::Ready(Some(Ok(Frame::trailers(ended(Code::Unavailable.number())))))
    }
}
