//! From a stream of HTTP/2 to a call and back: what a call of gRPC looks like, whoever it is for.
//!
//! ```text
//!   POST /package.Service/Method, application/grpc, grpc-timeout: 20m ──► one message, no longer than it may be
//! ```
//!
//! By hand and not by tonic, because that answers other statuses to broken messages than people expect, and takes buffers of
//! eight kilobytes and several boxes for a call of a hundred bytes.

use super::handler::Handler;
use super::others::{Others, Question};
use super::reflection::RequestOf;
use super::reply::{Code, Reply};
use super::wire::WireError;
use crate::bounds;
use crate::front::{Panicked, contained};
use crate::metrics::Refused;
use crate::net::{Drain, Place, Work, after, read_over};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tidegate::{Span, Store};
use tokio::time::{sleep, timeout_at};

pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The bytes before a message: whether it is packed, and how long it is.
const PREFIX: usize = 5;

/// Why there is no message.
#[derive(Debug, PartialEq, Eq)]
enum NoMessage {
    Missing,
    Packed,
    TooLong,
    Two,
    Late,
    Gone,
}

/// Answers a stream.
pub(crate) async fn serve_call<S: Store + 'static>(
    request: Request<Incoming>,
    work: Work,
    front: &Handler<S>,
    place: &Place,
    drain: &Drain,
) -> Response<Reply> {
    if let Some(status) = no_call(&request) {
        read_over(request.into_body());
        return Reply::plain(status);
    }
    if request.uri().path() != SHOULD_RATE_LIMIT {
        // Apart, because it is large and seldom: all that a call may become takes room in every call.
        return Box::pin(others(request, work, front, place, drain)).await;
    }
    let timeout = match timeout(request.headers()) {
        Ok(timeout) => timeout,
        Err(()) => {
            read_over(request.into_body());
            return Reply::wrong(
                Code::InvalidArgument,
                "`grpc-timeout` is up to eight digits and one of H, M, S, m, u, n",
            );
        }
    };
    let mut body = request.into_body();
    let message = match whole(&mut body, place).await {
        Ok(message) => message,
        Err(error) => {
            place.metrics.refused(error.kind());
            read_over(body);
            return error.answer();
        }
    };
    let answered = catch_unwind(AssertUnwindSafe(|| front.answer_at_once(&message, timeout)));
    let answered = match answered {
        Ok(Some(answered)) => Ok(answered),
        Ok(None) => {
            Box::pin(async { contained(pin!(front.answer(&message, timeout))).await }).await
        }
        Err(_) => Err(Panicked),
    };
    match answered {
        Ok(Ok((answer, Span::ZERO))) => Reply::message(work.answered(answer)),
        Ok(Ok((answer, delay))) => {
            Box::pin(sleep(Duration::from_nanos(delay.as_nanos()))).await;
            Reply::message(work.answered(answer))
        }
        Ok(Err(error)) => Reply::wrong(error.code(), &error.to_string()),
        Err(Panicked) => {
            front.metrics().panicked();
            tracing::error!("a call met a mistake of ours and got no answer but an error");
            Reply::wrong(Code::Internal, "a mistake of ours; it has been logged")
        }
    }
}

/// The one message of a body, in time. Nearly always it is there already, and no timer is needed.
async fn whole(body: &mut Incoming, place: &Place) -> Result<Bytes, NoMessage> {
    let mut reading = pin!(message(body));
    if let Poll::Ready(read) = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await
    {
        return read;
    }
    let late = timeout_at(after(place.timeouts.body), reading);
    Box::pin(late).await.unwrap_or(Err(NoMessage::Late))
}

/// Why a request is no call at all, if it is none.
fn no_call(request: &Request<Incoming>) -> Option<StatusCode> {
    if request.method() != Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !is_grpc(request.headers()) {
        return Some(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let too_many = request.headers().len() > bounds::HEADERS;
    too_many.then_some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
}

/// Services that others wrote.
async fn others<S: Store + 'static>(
    request: Request<Incoming>,
    work: Work,
    front: &Handler<S>,
    place: &Place,
    drain: &Drain,
) -> Response<Reply> {
    let Some(whose) = RequestOf::path(request.uri().path()) else {
        let path = request.uri().path().chars().take(100).collect::<String>();
        read_over(request.into_body());
        return Reply::wrong(Code::Unimplemented, &format!("there is no method {path}"));
    };
    let (head, body) = request.into_parts();
    let (question, answering) = Question::new(body);
    let asked = front.others(whose, Request::from_parts(head, question));
    match timeout_at(after(place.timeouts.body), asked).await {
        Ok(response) => {
            response.map(|body| Reply::Others(Box::new(Others::new(body, work, answering, drain))))
        }
        Err(_) => {
            place.metrics.refused(NoMessage::Late.kind());
            NoMessage::Late.answer()
        }
    }
}

/// `application/grpc`, and what may stand behind it.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return false };
    let Some(rest) = kind.as_bytes().strip_prefix(b"application/grpc") else { return false };
    rest.is_empty() || rest == b"+proto" || rest.starts_with(b";")
}

/// How long the client waits, if it says so.
fn timeout(headers: &HeaderMap) -> Result<Option<Span>, ()> {
    let mut values = headers.get_all("grpc-timeout").iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key("grpc-timeout") { Err(()) } else { Ok(None) };
    };
    span(value.as_bytes()).map(Some).ok_or(())
}

fn span(text: &[u8]) -> Option<Span> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    let nanos: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return None,
    };
    Some(Span::from_nanos(number.saturating_mul(nanos)))
}

/// The one message of a body. Nothing is kept of one that is too long.
async fn message(body: &mut Incoming) -> Result<Bytes, NoMessage> {
    let mut read = data(body).await?.unwrap_or_default();
    // Nearly always all of it has arrived at once.
    if !body.is_end_stream() || read.len() < PREFIX {
        let mut whole = BytesMut::from(&*read);
        loop {
            allowed(&whole)?;
            match data(body).await? {
                Some(more) => whole.extend_from_slice(&more),
                None => break,
            }
        }
        read = whole.freeze();
    }
    let length = allowed(&read)?.ok_or(NoMessage::Missing)?;
    read.advance(PREFIX);
    match read.len().cmp(&length) {
        std::cmp::Ordering::Less => Err(NoMessage::Missing),
        std::cmp::Ordering::Equal => Ok(read),
        std::cmp::Ordering::Greater => Err(NoMessage::Two),
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

impl NoMessage {
    fn answer(&self) -> Response<Reply> {
        let most = format!("a message has at most {} bytes", bounds::GRPC_MESSAGE);
        let (code, text) = match self {
            Self::Missing => (Code::InvalidArgument, "the message is missing or cut short"),
            Self::Packed => (Code::Unimplemented, "messages are not packed here; send them plain"),
            Self::TooLong => (Code::ResourceExhausted, &*most),
            Self::Two => (Code::InvalidArgument, "one message, and nothing behind it"),
            Self::Late => (Code::DeadlineExceeded, "the message took too long to arrive"),
            Self::Gone => (Code::Unavailable, "the stream was given up"),
        };
        let mut response = Reply::wrong(code, text);
        if *self == Self::Packed {
            let plain = http::HeaderValue::from_static("identity");
            response.headers_mut().insert("grpc-accept-encoding", plain);
        }
        response
    }

    const fn kind(&self) -> Refused {
        match self {
            Self::Missing | Self::Packed | Self::Two => Refused::Malformed,
            Self::TooLong => Refused::TooLarge,
            Self::Late => Refused::Late,
            Self::Gone => Refused::CutShort,
        }
    }
}

/// Why a call was not decided.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Descriptor(#[from] tidegate::DescriptorError),
}

impl CallError {
    const fn code(&self) -> Code {
        match self {
            Self::Descriptor(tidegate::DescriptorError::Check(tidegate::CheckError::Store(_))) => {
                Code::Unavailable
            }
            Self::Wire(_) | Self::Descriptor(_) => Code::InvalidArgument,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        for (text, millis) in [("20m", 20), ("2S", 2_000), ("1H", 3_600_000), ("5000u", 5)] {
            assert_eq!(span(text.as_bytes()), Some(Span::from_millis(millis)), "{text}");
        }
        assert_eq!(span(b"1n"), Some(Span::from_nanos(1)));
        assert_eq!(span(b"99999999H"), Some(Span::from_nanos(u64::MAX)));
        for text in ["", "m", "20", "-1m", "+1m", "1.5S", "123456789n", "20x", "abc", " 1m"] {
            assert_eq!(span(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_message_is_as_long_as_it_says() {
        assert_eq!(allowed(&[]), Ok(None));
        assert_eq!(allowed(&[0, 0, 0, 0]), Ok(None));
        assert_eq!(allowed(&[0, 0, 0, 0, 0]), Ok(Some(0)));
        assert_eq!(allowed(&[0, 0, 0, 0, 2, 7]), Ok(Some(2)));
        assert_eq!(allowed(&[0, 0, 0, 0, 1, 7, 7]), Err(NoMessage::Two));
        assert_eq!(allowed(&[1, 0, 0, 0, 1]), Err(NoMessage::Packed));
        assert_eq!(allowed(&[0, 0xff, 0xff, 0xff, 0xff]), Err(NoMessage::TooLong));
        assert_eq!(allowed(&[0, 0, 1, 0, 1]), Err(NoMessage::TooLong));
        assert_eq!(allowed(&[0, 0, 1, 0, 0]), Ok(Some(65_536)));
    }
}
