//! From an HTTP/2 stream to a gRPC call, and back to a response.
//!
//! ```text
//!   POST /package.Service/Method, application/grpc, grpc-timeout: 20m ──► one message of bounded length
//! ```
//!
//! This is written by hand and does not use tonic: tonic answers broken messages with other statuses than clients expect, and
//! allocates buffers of 8 KiB and several boxes for a call of a hundred bytes.

use super::handler::GrpcHandler;
use super::message::{Message, NoMessage, whole};
use super::reply::{Code, Reply};
use super::tonic_service::{TonicRequest, TonicResponse, TonicService};
use crate::backend::Backend;
use crate::bounds;
use crate::metrics::Refused;
use crate::net::{AcceptedConnection, Drain, ListenerContext, PIECE, after};
use crate::supervise::{Panicked, caught, contained};
use crate::timers;
use crate::web::{self, Headers, InFlightRequest, is_of_page, read_over};
use futures_util::FutureExt as _;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tidegate::Span;
use tokio::time::timeout_at;

pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Serves a connection to its end.
pub(crate) async fn serve<S: Backend>(
    opened: AcceptedConnection<'_>,
    handler: &Rc<GrpcHandler<S>>,
    place: &Rc<ListenerContext>,
    drain: &Drain,
) -> io::Result<()> {
    // One reference count for each call, not one for each of the three: those of a drain are locks.
    let context = Rc::new((Rc::clone(handler), Rc::clone(place), drain.clone()));
    web::serve_calls(opened, place, drain, move |request, work| {
        let context = Rc::clone(&context);
        async move {
            let (handler, place, drain) = &*context;
            answer_stream(request, work, handler, place, drain).await
        }
    })
    .await
}

/// Answers one stream.
async fn answer_stream<S: Backend>(
    request: Request<Incoming>,
    work: InFlightRequest,
    handler: &GrpcHandler<S>,
    place: &ListenerContext,
    drain: &Drain,
) -> Response<Reply> {
    if let Some(status) = not_grpc(&request, place) {
        read_over(request.into_body(), work.lingers());
        return Reply::plain(status);
    }
    if request.uri().path() != SHOULD_RATE_LIMIT {
        // Boxed because it is large and rare: otherwise every call would reserve memory for it.
        return Box::pin(tonic_call(request, work, handler, place, drain)).await;
    }
    let Ok(timeout) = timeout(request.headers()) else {
        read_over(request.into_body(), work.lingers());
        return Reply::failed(Code::InvalidArgument, INVALID_TIMEOUT);
    };
    match read_message(request.into_body(), &work, handler, place).await {
        Ok(message) => decide(message, timeout, work, handler).await,
        Err(response) => response,
    }
}

const INVALID_TIMEOUT: &str =
    "`grpc-timeout` must be one to eight digits and one of H, M, S, m, u, n";

/// Reads the message of a call; an error is the response to send instead.
#[allow(
    clippy::result_large_err,
    reason = "both results are moved once, on the way to the response"
)]
async fn read_message<S: Backend>(
    mut body: Incoming,
    work: &InFlightRequest,
    handler: &GrpcHandler<S>,
    place: &ListenerContext,
) -> Result<Message, Response<Reply>> {
    let message =
        if work.fits() { whole(&mut body, work, place).await } else { Err(NoMessage::NoRoom) };
    let message = message.map_err(|error| {
        place.metrics.refused(error.kind());
        read_over(body, work.lingers());
        let denied = || Reply::message(work.answered(handler.undecided(&error.text())));
        error.error().unwrap_or_else(denied)
    })?;
    if message.len() > bounds::SHORT_MESSAGE {
        // The message is decided in one piece, so it waits for its turn once.
        place.long_work.pass(PIECE).await;
    }
    Ok(message)
}

async fn decide<S: Backend>(
    message: Message,
    timeout: Option<Span>,
    work: InFlightRequest,
    handler: &GrpcHandler<S>,
) -> Response<Reply> {
    // A store in this process never waits, so the future needs no memory beyond this line.
    let at_once = || handler.answer(&message, timeout).now_or_never();
    let decided = if S::IN_PROCESS { caught(at_once).transpose() } else { None };
    let answered = match decided {
        Some(answered) => answered,
        // On the heap: the future that asks the store would otherwise take memory in every call.
        None => contained(Box::pin(handler.answer(&message, timeout)).as_mut()).await,
    };
    drop(message);
    match answered {
        Ok(Ok((answer, Span::ZERO))) => Reply::message(work.answered(answer)),
        Ok(Ok((answer, delay))) => {
            Box::pin(timers::sleep(Duration::from_nanos(delay.as_nanos()))).await;
            Reply::message(work.answered(answer))
        }
        Ok(Err(error)) if error.is_undecided() => {
            Reply::message(work.answered(handler.undecided(&error)))
        }
        Ok(Err(error)) => Reply::failed(Code::InvalidArgument, &error.to_string()),
        Err(Panicked) => {
            handler.metrics().panicked();
            tracing::error!("a call met a bug in tidegate and was denied");
            Reply::message(work.answered(handler.undecided(&"an internal error")))
        }
    }
}

/// The status for a request that is not a gRPC call.
fn not_grpc(request: &Request<Incoming>, place: &ListenerContext) -> Option<StatusCode> {
    // Of the host nothing is asked: proxies put the name of a cluster there, and a browser speaks HTTP/2 only to a host that has shown
    // a certificate for its name, so DNS rebinding does not lead here.
    if is_of_page(Headers::Map(request.headers()), |_| false) {
        place.metrics.refused(Refused::Foreign);
        return Some(StatusCode::FORBIDDEN);
    }
    if request.method() != Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !is_grpc(request.headers()) {
        return Some(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    None
}

/// Answers a call of a service that tonic implements: health and reflection.
async fn tonic_call<S: Backend>(
    request: Request<Incoming>,
    work: InFlightRequest,
    handler: &GrpcHandler<S>,
    place: &ListenerContext,
    drain: &Drain,
) -> Response<Reply> {
    let Some(service) = TonicService::at(request.uri().path()) else {
        let path = request.uri().path().chars().take(100).collect::<String>();
        read_over(request.into_body(), work.lingers());
        return Reply::failed(Code::Unimplemented, &format!("there is no method {path}"));
    };
    let (head, body) = request.into_parts();
    let (body, answering) = TonicRequest::new(body);
    let response = handler.call_tonic(service, Request::from_parts(head, body));
    match timeout_at(after(place.timeouts.body), response).await {
        Ok(response) => response
            .map(|body| Reply::Tonic(Box::new(TonicResponse::new(body, work, answering, drain)))),
        Err(_) => {
            place.metrics.refused(NoMessage::Late.kind());
            Reply::failed(Code::DeadlineExceeded, NoMessage::Late.text())
        }
    }
}

/// Whether the media type is `application/grpc`, with an optional `+proto` or parameters.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return false };
    let Some(rest) = kind.as_bytes().strip_prefix(b"application/grpc") else { return false };
    rest.is_empty() || rest == b"+proto" || rest.starts_with(b";")
}

/// How long the client waits for the answer, if it says so in `grpc-timeout`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_follow_the_grpc_format() {
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
