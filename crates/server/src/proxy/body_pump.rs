//! The body of an HTTP/1 request on its way from the client to the upstream server.

use super::piece_room::PieceRoom;
use super::request_body::{BodyPipe, PipeEnd, RequestBody};
use crate::bounds;
use crate::net::{BufferedConnection, Woken};
use crate::web::head::Length;
use crate::web::{BodyDecoder, BodyError, Decoded, HeadError};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
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
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ClientFault>> {
        loop {
            ready!(self.pipe.poll_room(context));
            if !stream.input.is_empty() {
                let room = self.room.poll(bounds::PROXY_PIECE, context);
                self.pipe.set_lacks_memory(room.is_pending());
                ready!(room);
            }
            match self.decoder.next(&mut stream.input) {
                Err(error) => return self.fails(ClientFault::Refuse(error.into())),
                Ok(Decoded::Data(data)) => {
                    let data = self.room.counted(Bytes::copy_from_slice(data));
                    self.pipe.push(Frame::data(data));
                }
                Ok(Decoded::Trailers(lines)) => match parse_trailers(lines) {
                    Err(error) => return self.fails(ClientFault::Refuse(error.into())),
                    Ok(trailers) => self.pipe.push(Frame::trailers(trailers)),
                },
                Ok(Decoded::End) => {
                    self.done = true;
                    self.pipe.end(PipeEnd::Complete);
                    return Poll::Ready(Ok(()));
                }
                Ok(Decoded::NeedsMore) => match ready!(stream.poll_fill(context)) {
                    // The timeout is a time without progress.
                    Ok(Woken::Bytes) => stream.wait_within(stream.listener.timeouts.body),
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

/// Parses trailers. Fields that frame or route a message are not allowed there (RFC 9110, 6.5.1).
pub(super) fn parse_trailers(bytes: &[u8]) -> Result<HeaderMap, BodyError> {
    let mut lines = [httparse::EMPTY_HEADER; bounds::TRAILER_FIELDS];
    let Ok(httparse::Status::Complete((_, lines))) = httparse::parse_headers(bytes, &mut lines)
    else {
        return Err(BodyError::BadChunk);
    };
    let mut trailers = HeaderMap::new();
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes());
        let value = HeaderValue::from_bytes(line.value);
        let (Ok(name), Ok(value)) = (name, value) else { return Err(BodyError::BadChunk) };
        if FORBIDDEN.contains(&name.as_str()) {
            return Err(BodyError::BadChunk);
        }
        trailers.append(name, value);
    }
    Ok(trailers)
}

const FORBIDDEN: [&str; 9] = [
    "content-length",
    "transfer-encoding",
    "host",
    "authorization",
    "cookie",
    "content-encoding",
    "content-type",
    "content-range",
    "trailer",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_that_frame_or_route_a_message_are_refused() {
        assert_eq!(parse_trailers(b"sum: 5\r\nmore: 6\r\n\r\n").unwrap().len(), 2);
        for lines in [
            &b"content-length: 5\r\n\r\n"[..],
            b"transfer-encoding: chunked\r\n\r\n",
            b"bad name: 5\r\n\r\n",
        ] {
            assert_eq!(parse_trailers(lines).unwrap_err(), BodyError::BadChunk);
        }
    }
}
