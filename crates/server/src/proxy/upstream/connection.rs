//! One HTTP/1 connection to an upstream server. It is driven by the task of the request that uses it, without a task of its own.
//!
//! ```text
//!   request's task:  poll the connection (reads and writes the socket) ──► poll the answer
//! ```
//!
//! While it is idle it is not polled. So before it is used again it is polled once, which shows whether the server has closed it.

use super::stream::{HalfClose, UpstreamIo, UpstreamStream};
use crate::bounds;
use crate::proxy::request_body::RequestBody;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

/// A connection to an upstream server.
pub(crate) struct UpstreamConnection {
    sender: http1::SendRequest<RequestBody>,
    connection: Box<http1::Connection<UpstreamIo, RequestBody>>,
    ended: bool,
    half_close: HalfClose,
}

/// Why there is no answer.
pub(crate) enum SendError {
    /// Nothing of the request was sent, so it may be sent again.
    NotSent(Box<Request<RequestBody>>),
    /// The server may have got the request.
    Sent(hyper::Error),
}

impl UpstreamConnection {
    pub(crate) async fn new(stream: UpstreamStream) -> hyper::Result<Self> {
        let mut builder = http1::Builder::new();
        builder.max_headers(bounds::HEADERS).max_buf_size(bounds::UPSTREAM_BUFFER);
        let half_close = stream.half_close();
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, connection: Box::new(connection), ended: false, half_close })
    }

    /// Ends the sending side, once everything was written.
    pub(super) fn half_close(&self) -> HalfClose {
        self.half_close.clone()
    }

    /// Lets the connection read and write. It must not be polled after its end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        if !self.ended && self.connection.poll_without_shutdown(context).is_ready() {
            self.ended = true;
        }
    }

    /// Whether another request can be sent.
    pub(crate) fn is_ready(&mut self, context: &mut Context<'_>) -> bool {
        self.poll(context);
        !self.ended && !self.half_close.has_begun() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let (connection, ended) = (&mut self.connection, &mut self.ended);
        let answer = poll_fn(|context| {
            if !*ended && connection.poll_without_shutdown(context).is_ready() {
                *ended = true;
            }
            answer.as_mut().poll(context)
        });
        answer.await.map_err(|mut error| match error.take_message() {
            Some(request) => SendError::NotSent(Box::new(request)),
            None => SendError::Sent(error.into_error()),
        })
    }

    /// After a 101, or when the request is given up: the stream, and the bytes that were read from it.
    pub(crate) fn into_stream(self) -> (UpstreamStream, Bytes) {
        let parts = self.connection.into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }

    /// Waits until the connection has ended, after a 101.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.poll(context);
        if self.ended { Poll::Ready(()) } else { Poll::Pending }
    }
}
