//! The message of a call: one, no longer than it may be, and in time.
//!
//! ```text
//!   0 │ length │ message        the first byte says that it is not compressed; the length has four bytes
//! ```
//!
//! Nothing is kept ready for what a message only says of itself. A message that is too long, or for which its connection has no
//! room, is read to its end and dropped: a stream that were ended before would count as an offence of the proxy, and its client
//! could end the connection that way.

use super::reply::{Code, Reply};
use crate::bounds;
use crate::metrics::Refused;
use crate::net::{ListenerContext, after};
use crate::web::{BudgetedBody, InFlightRequest};
use bytes::{Buf, Bytes};
use http::Response;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::task::Poll;
use tokio::time::timeout_at;

/// The bytes before a message: whether it is compressed, and how long it is.
const PREFIX: usize = 5;

/// The message of a call.
pub(super) enum Message {
    /// As it came, in one piece.
    Whole(Bytes),
    /// Put together from its pieces, the prefix included.
    Pieces(BudgetedBody),
}

/// Why there is no message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoMessage {
    Missing,
    Packed,
    TooLong,
    /// Connections hold too much already.
    NoRoom,
    Two,
    Late,
    Gone,
}

/// The one message of a body, in time. Nearly always it is there already, and no timer is needed.
pub(super) async fn whole(
    body: &mut Incoming,
    work: &InFlightRequest,
    place: &ListenerContext,
) -> Result<Message, NoMessage> {
    let mut reading = pin!(message(body, work));
    if let Poll::Ready(read) = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await
    {
        return read;
    }
    let late = timeout_at(after(place.timeouts.body), reading);
    Box::pin(late).await.unwrap_or(Err(NoMessage::Late))
}

async fn message(body: &mut Incoming, work: &InFlightRequest) -> Result<Message, NoMessage> {
    let mut read = data(body).await?.unwrap_or_default();
    // Nearly always all of it has arrived at once.
    if body.is_end_stream() && read.len() >= PREFIX {
        let length = allowed(&read)?.ok_or(NoMessage::Missing)?;
        read.advance(PREFIX);
        return if read.len() == length {
            Ok(Message::Whole(read))
        } else {
            Err(NoMessage::Missing)
        };
    }
    match pieces(body, read, work).await {
        Err(error @ (NoMessage::TooLong | NoMessage::NoRoom)) => {
            while data(body).await?.is_some() {}
            Err(error)
        }
        read => read,
    }
}

/// A message that did not come in one piece.
async fn pieces(
    body: &mut Incoming,
    first: Bytes,
    work: &InFlightRequest,
) -> Result<Message, NoMessage> {
    let mut held = work.body();
    if !held.push(&first) {
        return Err(NoMessage::NoRoom);
    }
    drop(first);
    loop {
        let length = allowed(&held)?;
        let Some(more) = data(body).await? else {
            let whole = length.is_some_and(|length| length.saturating_add(PREFIX) == held.len());
            return if whole { Ok(Message::Pieces(held)) } else { Err(NoMessage::Missing) };
        };
        if !held.push(&more) {
            return Err(NoMessage::NoRoom);
        }
    }
}

async fn data(body: &mut Incoming) -> Result<Option<Bytes>, NoMessage> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| NoMessage::Gone)?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// How long the message is that begins here, if that is known yet and it may be so long.
fn allowed(bytes: &[u8]) -> Result<Option<usize>, NoMessage> {
    let Some(([packed, length @ ..], rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    if *packed != 0 {
        return Err(NoMessage::Packed);
    }
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > bounds::GRPC_MESSAGE {
        return Err(NoMessage::TooLong);
    }
    if rest.len() > length { Err(NoMessage::Two) } else { Ok(Some(length)) }
}

// === impl Message ===

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Pieces(held) => held.get(PREFIX..).unwrap_or_default(),
        }
    }
}

// === impl NoMessage ===

impl NoMessage {
    /// The error that a proxy is told; `None` for what its client can cause by what it sends, which is refused instead.
    pub(super) fn error(&self) -> Option<Response<Reply>> {
        let code = match self {
            Self::TooLong | Self::NoRoom => return None,
            Self::Missing | Self::Two => Code::InvalidArgument,
            Self::Packed => Code::Unimplemented,
            Self::Late => Code::DeadlineExceeded,
            Self::Gone => Code::Unavailable,
        };
        let mut response = Reply::wrong(code, self.text());
        if *self == Self::Packed {
            let plain = http::HeaderValue::from_static("identity");
            response.headers_mut().insert("grpc-accept-encoding", plain);
        }
        Some(response)
    }

    pub(super) const fn text(&self) -> &'static str {
        match self {
            Self::Missing => "the message is missing or cut short",
            Self::Packed => "messages are not packed here; send them plain",
            Self::TooLong => "the message has more than 4 MiB",
            Self::NoRoom => "there is no room for so long a message at the moment",
            Self::Two => "one message, and nothing behind it",
            Self::Late => "the message took too long to arrive",
            Self::Gone => "the stream was given up",
        }
    }

    pub(super) const fn kind(&self) -> Refused {
        match self {
            Self::Missing | Self::Packed | Self::Two => Refused::Malformed,
            Self::TooLong => Refused::TooLarge,
            Self::NoRoom => Refused::NoRoom,
            Self::Late => Refused::Late,
            Self::Gone => Refused::CutShort,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_as_long_as_it_says() {
        assert_eq!(allowed(&[]), Ok(None));
        assert_eq!(allowed(&[0, 0, 0, 0]), Ok(None));
        assert_eq!(allowed(&[0, 0, 0, 0, 0]), Ok(Some(0)));
        assert_eq!(allowed(&[0, 0, 0, 0, 2, 7]), Ok(Some(2)));
        assert_eq!(allowed(&[0, 0, 0, 0, 1, 7, 7]), Err(NoMessage::Two));
        assert_eq!(allowed(&[1, 0, 0, 0, 1]), Err(NoMessage::Packed));
        assert_eq!(allowed(&[0, 0xff, 0xff, 0xff, 0xff]), Err(NoMessage::TooLong));
        assert_eq!(allowed(&[0, 0, 0x40, 0, 1]), Err(NoMessage::TooLong));
        assert_eq!(allowed(&[0, 0, 0x40, 0, 0]), Ok(Some(4 * 1024 * 1024)));
    }
}
