//! An answer on its way: a message and how it went, or only how it went.
//!
//! ```text
//!   HEADERS 200, application/grpc     DATA 0 length message     HEADERS grpc-status: 0
//!   HEADERS 200, application/grpc, grpc-status: 3, grpc-message: …
//! ```

use super::others::Others;
use crate::web::UnreadResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame};
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of an answer.
pub(crate) enum Reply {
    /// Nothing: all is said in the head.
    Nothing,
    /// One message, and that all went well.
    Message(Option<UnreadResponse>),
    /// It went well, and that was said.
    Done,
    /// What tonic answers, which may go on for as long as the server does.
    Others(Box<Others>),
}

/// How a call went, for calls that went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidArgument,
    DeadlineExceeded,
    Unimplemented,
    Unavailable,
}

pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const TEXT: HeaderName = HeaderName::from_static("grpc-message");

impl Reply {
    /// A message: five bytes are before it, of which one says that it is not packed.
    pub(super) fn message(data: UnreadResponse) -> Response<Self> {
        let mut response = Response::new(Self::Message(Some(data)));
        response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
        response
    }

    /// A call that went wrong.
    pub(super) fn wrong(code: Code, text: &str) -> Response<Self> {
        let mut response = Response::new(Self::Nothing);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, GRPC);
        headers.insert(STATUS, code.number());
        if let Ok(text) = HeaderValue::try_from(percent(text)) {
            headers.insert(TEXT, text);
        }
        response
    }

    /// What is no call of gRPC.
    pub(super) fn plain(status: StatusCode) -> Response<Self> {
        let mut response = Response::new(Self::Nothing);
        *response.status_mut() = status;
        response
    }
}

/// As text is written there: printable ASCII stays, the rest is in percent.
fn percent(text: &str) -> String {
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
                Poll::Ready(Some(Ok(Frame::trailers(ended(HeaderValue::from_static("0"))))))
            }
            Self::Others(others) => others.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Nothing | Self::Done => true,
            Self::Message(_) => false,
            // An error of theirs is all in the head. The head must end the stream then: a client that reads a status there
            // and finds a body behind it takes the answer for a broken one.
            Self::Others(others) => others.is_over(),
        }
    }
}

pub(super) fn ended(status: HeaderValue) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, status);
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_as_the_protocol_wants() {
        assert_eq!(percent("50% of `ä`\n"), "50%25 of `%C3%A4`%0A");
    }
}
