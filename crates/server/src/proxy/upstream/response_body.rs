//! The body of an upstream server's answer. Reading it drives the connection; at its end the connection is kept for the next request.

use super::connection::UpstreamConnection;
use super::group::Seat;
use super::pool::Pool;
use super::stream::UpstreamStream;
use crate::timers;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The body of an upstream server's answer.
pub(crate) struct UpstreamBody {
    body: Incoming,
    carrier: Carrier,
    seat: Seat,
    quiet: QuietTimer,
}

/// What carries the body.
pub(crate) enum Carrier {
    /// An HTTP/1 connection, until it is kept for the next request.
    One(Option<Box<UpstreamConnection>>, Rc<Pool>),
    /// A stream of an HTTP/2 connection, which has a task of its own.
    Two,
}

/// Fires if the server sends nothing for some time. The timer is not touched while bytes arrive.
struct QuietTimer {
    most: Option<Duration>,
    last: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl UpstreamBody {
    pub(crate) fn new(
        body: Incoming,
        carrier: Carrier,
        seat: Seat,
        quiet: Option<Duration>,
    ) -> Self {
        let quiet = QuietTimer { most: quiet, last: None, timer: None };
        Self { body, carrier, seat, quiet }
    }

    /// After a 101: the stream to the server and the bytes that were read from it, once the connection has ended as HTTP.
    pub(crate) async fn into_upgraded(self) -> Option<(UpstreamStream, Bytes, Seat)> {
        let Carrier::One(Some(mut connection), _) = self.carrier else { return None };
        poll_fn(|context| connection.poll_end(context)).await;
        let (stream, read) = connection.into_stream();
        Some((stream, read, self.seat))
    }

    /// At the end of the body: keeps the connection, if another request can be sent over it.
    fn ended(&mut self, context: &mut Context<'_>) {
        let Carrier::One(connection, pool) = &mut self.carrier else { return };
        let Some(mut connection) = connection.take() else { return };
        if connection.is_ready(context) {
            pool.keep(self.seat.server(), *connection);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let mut frame = Pin::new(&mut this.body).poll_frame(context);
        if frame.is_pending()
            && let Carrier::One(Some(connection), _) = &mut this.carrier
        {
            connection.poll(context);
            frame = Pin::new(&mut this.body).poll_frame(context);
        }
        match frame {
            Poll::Ready(frame) => {
                this.quiet.progress();
                if frame.is_none() || this.body.is_end_stream() {
                    this.ended(context);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)))
            }
            Poll::Pending => {
                this.quiet.poll(context).map(|()| Some(Err(io::ErrorKind::TimedOut.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl UpstreamBody {
    /// Ends a body that has no bytes, such as that of an answer to HEAD, so that its connection is kept.
    pub(crate) async fn finish_empty(mut self) {
        poll_fn(|context| {
            self.ended(context);
            Poll::Ready(())
        })
        .await;
    }
}

impl QuietTimer {
    fn progress(&mut self) {
        if self.timer.is_some() {
            self.last = Some(timers::now());
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(most) = self.most else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(timers::sleep(most)));
        loop {
            std::task::ready!(timer.as_mut().poll(context));
            let Some(until) = self.last.take().and_then(|last| last.checked_add(most)) else {
                return Poll::Ready(());
            };
            timer.as_mut().reset(until);
        }
    }
}
