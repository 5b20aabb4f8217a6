//! Reads the message of a call: exactly one, of bounded length, within a timeout.
//!
//! ```text
//!   0 │ length │ message        the first byte says: not compressed; the length has four bytes, big-endian
//! ```
//!
//! No memory is reserved for a length that a message only announces. A message that is too long, or for which there is no
//! memory, is read to its end and dropped. Resetting the stream early would count as an offence of the proxy, so a client could
//! make the server close the connection of its proxy.

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
    /// Arrived in one frame, and is not copied.
    Whole(Bytes),
    /// Assembled from several frames, including the prefix.
    Pieces(BudgetedBody),
}

/// Why a message could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoMessage {
    Missing,
    Compressed,
    TooLong,
    /// The memory for unread bytes of connections is used up.
    NoRoom,
    /// More bytes follow the message.
    Two,
    Late,
    /// The client cancelled the stream.
    Gone,
}

/// Reads the one message of a body within the timeout. Fast path: nearly always it has arrived already, and no timer is set.
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
    // Fast path: nearly always the whole message has arrived in one frame.
    if body.is_end_stream() && read.len() >= PREFIX {
        let length = checked_length(&read)?.ok_or(NoMessage::Missing)?;
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

/// Reads a message that arrives in several frames.
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
        let length = checked_length(&held)?;
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

/// The length of the message that begins here; `None` while its prefix is incomplete.
fn checked_length(bytes: &[u8]) -> Result<Option<usize>, NoMessage> {
    let Some(([compressed, length @ ..], rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    if *compressed != 0 {
        return Err(NoMessage::Compressed);
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
    /// The error response; `None` for what a client can cause through its proxy, which is denied instead.
    pub(super) fn error(&self) -> Option<Response<Reply>> {
        let code = match self {
            Self::TooLong | Self::NoRoom => return None,
            Self::Missing | Self::Two => Code::InvalidArgument,
            Self::Compressed => Code::Unimplemented,
            Self::Late => Code::DeadlineExceeded,
            Self::Gone => Code::Unavailable,
        };
        let mut response = Reply::failed(code, self.text());
        if *self == Self::Compressed {
            let plain = http::HeaderValue::from_static("identity");
            response.headers_mut().insert("grpc-accept-encoding", plain);
        }
        Some(response)
    }

    pub(super) const fn text(&self) -> &'static str {
        match self {
            Self::Missing => "the message is missing or cut short",
            Self::Compressed => "compressed messages are not supported; send them uncompressed",
            Self::TooLong => "the message is longer than 4 MiB",
            Self::NoRoom => "no memory left for a message of this length",
            Self::Two => "expected one message, and nothing after it",
            Self::Late => "the message took too long to arrive",
            Self::Gone => "the stream was cancelled",
        }
    }

    pub(super) const fn kind(&self) -> Refused {
        match self {
            Self::Missing | Self::Compressed | Self::Two => Refused::Malformed,
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
    fn the_length_in_the_prefix_is_checked() {
        assert_eq!(checked_length(&[]), Ok(None));
        assert_eq!(checked_length(&[0, 0, 0, 0]), Ok(None));
        assert_eq!(checked_length(&[0, 0, 0, 0, 0]), Ok(Some(0)));
        assert_eq!(checked_length(&[0, 0, 0, 0, 2, 7]), Ok(Some(2)));
        assert_eq!(checked_length(&[0, 0, 0, 0, 1, 7, 7]), Err(NoMessage::Two));
        assert_eq!(checked_length(&[1, 0, 0, 0, 1]), Err(NoMessage::Compressed));
        assert_eq!(checked_length(&[0, 0xff, 0xff, 0xff, 0xff]), Err(NoMessage::TooLong));
        assert_eq!(checked_length(&[0, 0, 0x40, 0, 1]), Err(NoMessage::TooLong));
        assert_eq!(checked_length(&[0, 0, 0x40, 0, 0]), Ok(Some(4 * 1024 * 1024)));
    }
}
