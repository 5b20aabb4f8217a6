//! The body of an upstream server's answer. Reading it drives the connection; at its end the connection is kept for the next request.

use super::patience::BodyPatience;
use super::seats::HeldSeat;
use super::stream::UpstreamStream;
use super::work::{ClientPresence, Work};
use crate::bounds;
use crate::net::HeldBytes;
use crate::proxy::headers;
use crate::proxy::observe::RequestRecord;
use crate::proxy::piece_room::PieceRoom;
use crate::proxy::request_body::BodyProgress;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// The body of an upstream server's answer.
pub(crate) struct UpstreamBody {
    body: Incoming,
    work: Work,
    /// How the body of the request goes on, if it has one.
    request: Option<BodyProgress>,
    patience: BodyPatience,
    room: PieceRoom,
    /// Ends with the body.
    record: RequestRecord,
    /// Counts the memory of the exchange.
    _held: HeldBytes,
}

/// The bounds of an exchange with an upstream server.
pub(crate) struct ExchangeBounds {
    /// When it must be over.
    pub(crate) until: Option<Instant>,
    /// Memory for the pieces of the answer.
    pub(crate) room: PieceRoom,
    /// Counts the memory of the exchange besides the pieces.
    pub(crate) held: HeldBytes,
    /// Whether its client is still there.
    pub(crate) presence: Rc<ClientPresence>,
}

/// An answer on its way: its body, the work that it is the end of, and how the body of the request goes on.
pub(crate) struct Answering {
    pub(super) body: Incoming,
    pub(super) work: Work,
    pub(super) request: Option<BodyProgress>,
}

impl UpstreamBody {
    pub(super) fn new(
        answering: Answering,
        quiet: Option<Duration>,
        bounds: ExchangeBounds,
    ) -> Self {
        let Answering { body, mut work, request } = answering;
        let ExchangeBounds { until, room, held, presence: _ } = bounds;
        let (patience, record) = (BodyPatience::new(quiet, until), RequestRecord::default());
        // A body without bytes may never be read.
        if body.is_end_stream() {
            work.over();
        }
        Self { body, work, request, patience, room, record, _held: held }
    }

    /// The answer is not passed on, because of the server.
    pub(crate) fn refuse(&mut self) {
        self.work.over();
    }

    /// The client has got everything that has arrived so far.
    pub(crate) fn delivered(&mut self) {
        self.room.release();
    }

    /// Goes on with the record of the request.
    pub(crate) fn keep_record(&mut self, record: RequestRecord) {
        self.record = record;
        // A body without bytes may never be read.
        if self.body.is_end_stream() {
            self.record.complete();
        }
    }

    /// After a 101: the stream to the server and the bytes that were read from it, once the connection has ended as HTTP. The
    /// request is in flight until its seat at the server and its record are dropped. The seat of its group is free: a
    /// switched protocol may last for days.
    pub(crate) async fn into_upgraded(
        self,
    ) -> Option<(UpstreamStream, Bytes, (impl Sized, RequestRecord))> {
        let (mut connection, held) = self.work.switched()?;
        poll_fn(|context| connection.poll_end(context)).await;
        let (stream, read) = connection.into_stream();
        Some((stream, read, (held, self.record)))
    }

    /// At the end of the body: keeps the connection, if another request can be sent over it.
    fn ended(&mut self, context: &mut Context<'_>) {
        self.record.complete();
        self.work.over_with(context);
    }
}

/// A frame of an answer without trailers that clients must not get.
fn cleaned(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    frame.trailers_mut().into_iter().for_each(headers::trailers_to_client);
    frame
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        // A client that sends its request slowly keeps its permits. The seat is for those that the server works for.
        if this.request.as_ref().is_some_and(BodyProgress::is_late) {
            this.work.free_seat();
        }
        this.work.seat().into_iter().for_each(HeldSeat::asked);
        if !this.body.is_end_stream() {
            ready!(this.room.poll(bounds::UPSTREAM_BUFFER, context));
        }
        let mut frame = Pin::new(&mut this.body).poll_frame(context);
        if frame.is_pending() && this.work.poll_connection(context) {
            frame = Pin::new(&mut this.body).poll_frame(context);
        }
        match frame {
            Poll::Ready(frame) => {
                this.work.seat().into_iter().for_each(HeldSeat::given);
                if !this.patience.progress() {
                    this.work.over();
                    return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
                }
                if let Some(Ok(data)) =
                    frame.as_ref().map(|frame| frame.as_ref().map(Frame::data_ref))
                {
                    this.record.received(data.map_or(0, Bytes::len));
                }
                if matches!(frame, Some(Err(_))) {
                    this.work.over();
                } else if frame.is_none() || this.body.is_end_stream() {
                    this.ended(context);
                }
                Poll::Ready(frame.map(|frame| frame.map(cleaned).map_err(io::Error::other)))
            }
            Poll::Pending => this.patience.poll(context).map(|()| {
                this.work.over();
                Some(Err(io::ErrorKind::TimedOut.into()))
            }),
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
