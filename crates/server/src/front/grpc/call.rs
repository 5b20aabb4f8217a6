//! From a stream of HTTP/2 to a call and back: what a call of gRPC looks like, whoever it is for.
//!
//! ```text
//!   POST /package.Service/Method, application/grpc, grpc-timeout: 20m ──► one message, no longer than it may be
//! ```
//!
//! By hand and not by tonic, because that answers other statuses to broken messages than people expect, and takes buffers of
//! eight kilobytes and several boxes for a call of a hundred bytes.

use super::handler::GrpcHandler;
use super::message::{NoMessage, whole};
use super::others::{Others, RequestBody};
use super::reflection::RequestOf;
use super::reply::{Code, Reply};
use super::wire::MessageError;
use crate::backend::Backend;
use crate::bounds;
use crate::net::{AcceptedConnection, Drain, ListenerContext, PIECE, after};
use crate::supervise::{Panicked, contained};
use crate::web::{self, InFlightRequest, read_over};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tidegate::Span;
use tokio::time::{sleep, timeout_at};

pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Serves a connection to its end.
pub(crate) async fn serve<S: Backend>(
    opened: AcceptedConnection<'_>,
    handler: &Rc<GrpcHandler<S>>,
    place: &Rc<ListenerContext>,
    drain: &Drain,
) -> io::Result<()> {
    web::serve_calls(opened, place, drain, |request, work| {
        let (handler, place, drain) = (Rc::clone(handler), Rc::clone(place), drain.clone());
        async move { serve_call(request, work, &handler, &place, &drain).await }
    })
    .await
}

/// Answers a stream.
async fn serve_call<S: Backend>(
    request: Request<Incoming>,
    work: InFlightRequest,
    front: &GrpcHandler<S>,
    place: &ListenerContext,
    drain: &Drain,
) -> Response<Reply> {
    if let Some(status) = no_call(&request) {
        read_over(request.into_body(), work.lingers());
        return Reply::plain(status);
    }
    if request.uri().path() != SHOULD_RATE_LIMIT {
        // Apart, because it is large and seldom: all that a call may become takes room in every call.
        return Box::pin(others(request, work, front, place, drain)).await;
    }
    let timeout = match timeout(request.headers()) {
        Ok(timeout) => timeout,
        Err(()) => {
            read_over(request.into_body(), work.lingers());
            return Reply::wrong(
                Code::InvalidArgument,
                "`grpc-timeout` is up to eight digits and one of H, M, S, m, u, n",
            );
        }
    };
    let mut body = request.into_body();
    let message =
        if work.fits() { whole(&mut body, &work, place).await } else { Err(NoMessage::NoRoom) };
    let message = match message {
        Ok(message) => message,
        Err(error) => {
            place.metrics.refused(error.kind());
            read_over(body, work.lingers());
            let refused = || Reply::message(work.answered(front.undecided(&error.text())));
            return error.error().unwrap_or_else(refused);
        }
    };
    if message.len() > bounds::SHORT_MESSAGE {
        // It is decided in one piece, all or none.
        place.long_work.pass(PIECE).await;
    }
    // On the heap: what it takes to ask the store would otherwise take room in every call.
    let answered = contained(Box::pin(front.answer(&message, timeout)).as_mut()).await;
    drop(message);
    match answered {
        Ok(Ok((answer, Span::ZERO))) => Reply::message(work.answered(answer)),
        Ok(Ok((answer, delay))) => {
            Box::pin(sleep(Duration::from_nanos(delay.as_nanos()))).await;
            Reply::message(work.answered(answer))
        }
        Ok(Err(error)) if error.is_undecided() => {
            Reply::message(work.answered(front.undecided(&error)))
        }
        Ok(Err(error)) => Reply::wrong(Code::InvalidArgument, &error.to_string()),
        Err(Panicked) => {
            front.metrics().panicked();
            tracing::error!("a call met a bug in tidegate and was refused");
            Reply::message(work.answered(front.undecided(&"an internal error")))
        }
    }
}

/// Why a request is no call at all, if it is none.
fn no_call(request: &Request<Incoming>) -> Option<StatusCode> {
    if request.method() != Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !is_grpc(request.headers()) {
        return Some(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    None
}

/// Services that others wrote.
async fn others<S: Backend>(
    request: Request<Incoming>,
    work: InFlightRequest,
    front: &GrpcHandler<S>,
    place: &ListenerContext,
    drain: &Drain,
) -> Response<Reply> {
    let Some(whose) = RequestOf::path(request.uri().path()) else {
        let path = request.uri().path().chars().take(100).collect::<String>();
        read_over(request.into_body(), work.lingers());
        return Reply::wrong(Code::Unimplemented, &format!("there is no method {path}"));
    };
    let (head, body) = request.into_parts();
    let (question, answering) = RequestBody::new(body);
    let asked = front.others(whose, Request::from_parts(head, question));
    match timeout_at(after(place.timeouts.body), asked).await {
        Ok(response) => {
            response.map(|body| Reply::Others(Box::new(Others::new(body, work, answering, drain))))
        }
        Err(_) => {
            place.metrics.refused(NoMessage::Late.kind());
            Reply::wrong(Code::DeadlineExceeded, NoMessage::Late.text())
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

/// Why a call was not decided.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("{0}")]
    Wire(#[from] MessageError),
    #[error("{0}")]
    Descriptor(#[from] tidegate::DescriptorError),
}

impl CallError {
    /// Whether the call is refused and not an error: the client of a proxy can cause it by what it sends.
    const fn is_undecided(&self) -> bool {
        match self {
            Self::Wire(error) => error.is_undecided(),
            Self::Descriptor(_) => true,
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
}
