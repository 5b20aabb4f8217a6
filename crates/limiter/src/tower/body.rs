//! The body of a response, which holds the permit of its request until it has ended.

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A permit of any store. It is returned when it is dropped.
pub(super) type BoxedPermit = Box<dyn Any + Send + Sync>;

pin_project! {
    /// The body of a response of the inner service. If the request holds a permit of a concurrency limit, the permit is returned
    /// when the body has ended, has failed or is dropped.
    pub struct PermitBody<B> {
        #[pin]
        body: B,
        permit: Option<BoxedPermit>,
    }
}

impl<B> PermitBody<B> {
    pub(super) const fn new(body: B, permit: Option<BoxedPermit>) -> Self {
        Self { body, permit }
    }
}

impl<B: Body> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            *this.permit = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: std::fmt::Debug> std::fmt::Debug for PermitBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_held = self.permit.is_some();
        f.debug_struct("PermitBody").field("body", &self.body).field("is_held", &is_held).finish()
    }
}
