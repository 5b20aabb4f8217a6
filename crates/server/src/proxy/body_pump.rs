//! The body of an HTTP/1 request on its way from the client to the upstream server.

use super::body_decoder::{BodyDecoder, Decoded};
use super::piece_room::PieceRoom;
use super::request_body::{BodyPipe, PipeEnd, RequestBody};
use crate::bounds;
use crate::net::{BufferedConnection, ListenerContext, Woken};
use crate::web::HeadError;
use crate::web::head::Length;
use http_body::Frame;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// The body of a request on its way from the client to the pipe.
pub(super) struct BodyPump {
    decoder: BodyDecoder,
    pipe: Rc<BodyPipe>,
    room: PieceRoom,
    /// Whether nothing more is to be read.
    pub(super) done: bool,
}

/// The client did not do its part of an exchange.
pub(super) enum ClientFault {
    Refuse(HeadError),
    Gone,
}

impl BodyPump {
    pub(super) fn new(decoder: BodyDecoder, room: PieceRoom) -> Self {
        let done = decoder.is_done();
        Self { decoder, pipe: Rc::default(), room, done }
    }

    /// The other end of the pipe, which hyper reads.
    pub(super) fn body(&self, length: Length) -> RequestBody {
        let pipe = Rc::clone(&self.pipe);
        match length {
            Length::None | Length::Bytes(0) => RequestBody::empty(),
            Length::Bytes(bytes) => RequestBody::piped(pipe, u64::try_from(bytes).ok()),
            Length::Chunks => RequestBody::piped(pipe, None),
        }
    }

    /// Moves the body from the client to the pipe, as far as both are ready. Ready when it is complete.
    pub(super) fn poll(
        &mut self,
        stream: &mut BufferedConnection<'_>,
        listener: &ListenerContext,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ClientFault>> {
        loop {
            ready!(self.pipe.poll_room(context));
            if !stream.input.is_empty() {
                let room = self.room.poll(bounds::PROXY_PIECE, context);
                self.pipe.set_lacks_memory(room.is_pending());
                ready!(room);
            }
            let decoded = match self.decoder.next(&mut stream.input) {
                Ok(decoded) => decoded,
                Err(error) => return self.fails(ClientFault::Refuse(error.into())),
            };
            match decoded {
                Decoded::Data(data) => self.pipe.push(Frame::data(self.room.counted(data))),
                Decoded::Trailers(trailers) => self.pipe.push(Frame::trailers(trailers)),
                Decoded::End => {
                    self.done = true;
                    self.pipe.end(PipeEnd::Complete);
                    return Poll::Ready(Ok(()));
                }
                Decoded::NeedsMore => match ready!(stream.poll_fill(context)) {
                    // The timeout is a time without progress.
                    Ok(Woken::Bytes) => stream.wait_within(listener.timeouts.body),
                    Ok(Woken::Draining) => {}
                    Ok(Woken::Late) => return self.fails(ClientFault::Refuse(HeadError::Late)),
                    Ok(Woken::NoRoom) => return self.fails(ClientFault::Refuse(HeadError::NoRoom)),
                    Ok(Woken::End) | Err(_) => return self.fails(ClientFault::Gone),
                },
            }
        }
    }

    fn fails(&self, fault: ClientFault) -> Poll<Result<(), ClientFault>> {
        self.pipe.end(PipeEnd::CutShort);
        Poll::Ready(Err(fault))
    }
}
