//! Health and reflection, which tonic implements: adapters that keep their requests and responses within our bounds.
//!
//! ```text
//!   stream ──TonicRequest──► tonic ──TonicResponse──► client     a request that tonic drops early is read to its end
//!                 ▲                       │
//!                 └──── response ended ───┘                      the request ends when the response does
//! ```

use crate::net::{Drain, Reservation};
use crate::web::{InFlightRequest, UnreadResponse, read_over};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// A service that tonic implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TonicService {
    Health,
    Reflection(ReflectionVersion),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReflectionVersion {
    V1,
    V1Alpha,
}

/// The body of a request. It ends when the response ends: otherwise a client that sends nothing more would keep the stream
/// open, and with it a server that wants to stop.
pub(super) struct TonicRequest {
    body: Option<Incoming>,
    answered: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// The body of a response, which may go on until the server stops (`Health/Watch`).
pub(crate) struct TonicResponse {
    body: tonic::body::Body,
    work: InFlightRequest,
    ends: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Dropping it ends the request; `None` once the response has ended.
    answering: Option<DropGuard>,
}

/// The result of polling a response body.
type PolledFrame = Poll<Option<Result<Frame<UnreadResponse>, Box<dyn Error + Send + Sync>>>>;

/// The status of a response that a stopping server ends.
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The trailers that end a response.
pub(super) fn trailers(status: HeaderValue) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, status);
    trailers
}

// === impl TonicService ===

impl TonicService {
    /// The service of a path, if tonic implements it.
    pub(super) fn at(path: &str) -> Option<Self> {
        let (service, _) = path.strip_prefix('/')?.split_once('/')?;
        match service {
            "grpc.health.v1.Health" => Some(Self::Health),
            "grpc.reflection.v1.ServerReflection" => Some(Self::Reflection(ReflectionVersion::V1)),
            "grpc.reflection.v1alpha.ServerReflection" => {
                Some(Self::Reflection(ReflectionVersion::V1Alpha))
            }
            _ => None,
        }
    }
}

// === impl TonicRequest ===

impl TonicRequest {
    /// A request body, and the guard to keep until the response has ended.
    pub(super) fn new(body: Incoming) -> (Self, DropGuard) {
        let token = CancellationToken::new();
        let answered = Box::pin(token.clone().cancelled_owned());
        (Self { body: Some(body), answered }, token.drop_guard())
    }
}

impl Body for TonicRequest {
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

impl Drop for TonicRequest {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            // tonic needs a request that may move to another thread, and the accounting of a connection may not; so these bytes
            // are not accounted.
            read_over(body, Reservation::default());
        }
    }
}

// === impl TonicResponse ===

impl TonicResponse {
    pub(super) fn new(
        body: tonic::body::Body,
        work: InFlightRequest,
        answering: DropGuard,
        drain: &Drain,
    ) -> Self {
        let ends = Box::pin(drain.begun.clone().cancelled_owned());
        Self { body, work, ends, answering: Some(answering) }
    }

    /// Whether the response has ended.
    pub(super) fn is_over(&self) -> bool {
        self.answering.is_none() || self.body.is_end_stream()
    }

    /// The next frame of the response. When the server stops and tonic has none ready, the trailers `UNAVAILABLE`.
    pub(super) fn poll_frame(&mut self, context: &mut Context<'_>) -> PolledFrame {
        if self.answering.is_none() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let frame = frame.map(|frame| {
                let accounted = |data| self.work.answered(data);
                frame.map(|frame| frame.map_data(accounted)).map_err(Into::into)
            });
            return Poll::Ready(frame);
        }
        ready!(self.ends.as_mut().poll(context));
        self.answering = None;
        Poll::Ready(Some(Ok(Frame::trailers(trailers(UNAVAILABLE)))))
    }
}
