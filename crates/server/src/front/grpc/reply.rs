//! The body of a gRPC response: a message followed by a status, or a status alone.
//!
//! ```text
//!   HEADERS 200, application/grpc     DATA 0 length message     HEADERS grpc-status: 0
//!   HEADERS 200, application/grpc, grpc-status: 3, grpc-message: …
//! ```

use super::tonic_service::{GRPC_STATUS, TonicResponse, trailers};
use crate::web::UnreadResponse;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame};
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of a response.
pub(crate) enum Reply {
    /// Nothing: the status is in the head.
    Nothing,
    /// One message, followed by the status 0 in the trailers.
    Message(Option<UnreadResponse>),
    /// The trailers were sent.
    Done,
    /// A response of tonic, which may go on until the server stops.
    Tonic(Box<TonicResponse>),
}

/// The status of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidArgument,
    DeadlineExceeded,
    Unimplemented,
    Unavailable,
}

pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

impl Reply {
    /// A message. The data begins with the prefix of five bytes: not compressed, and the length.
    pub(super) fn message(data: UnreadResponse) -> Response<Self> {
        let mut response = Response::new(Self::Message(Some(data)));
        response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
        response
    }

    /// A failed call.
    pub(super) fn failed(code: Code, text: &str) -> Response<Self> {
        let mut response = Response::new(Self::Nothing);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, GRPC);
        headers.insert(GRPC_STATUS, code.number());
        if let Ok(text) = HeaderValue::try_from(percent_encoded(text)) {
            headers.insert(GRPC_MESSAGE, text);
        }
        response
    }

    /// An HTTP response to a request that is not a gRPC call.
    pub(super) fn plain(status: StatusCode) -> Response<Self> {
        let mut response = Response::new(Self::Nothing);
        *response.status_mut() = status;
        response
    }
}

/// Text as `grpc-message` holds it: printable ASCII stays, other bytes are percent-encoded.
fn percent_encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().take(1_000).map(byte).collect()
}

impl Code {
    pub(super) const fn number(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::InvalidArgument => "3",
            Self::DeadlineExceeded => "4",
            Self::Unimplemented => "12",
            Self::Unavailable => "14",
        })
    }
}

impl Body for Reply {
    type Data = UnreadResponse;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<UnreadResponse>, Self::Error>>> {
        match &mut *self {
            Self::Nothing | Self::Done => Poll::Ready(None),
            Self::Message(data) => {
                if let Some(data) = data.take() {
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                *self = Self::Done;
                Poll::Ready(Some(Ok(Frame::trailers(trailers(HeaderValue::from_static("0"))))))
            }
            Self::Tonic(response) => response.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Nothing | Self::Done => true,
            Self::Message(_) => false,
            // For an error, tonic sends the status in the head, and the head must then end the stream: a client that reads a
            // status there and finds a body after it takes the response for a broken one.
            Self::Tonic(response) => response.is_over(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("50% of `ä`\n"), "50%25 of `%C3%A4`%0A");
    }
}
