//! HTTP/2: concurrent requests on one connection, each on its own stream.
//!
//! The protocol is implemented by hyper. This module sets its bounds, and adds the timeouts that it lacks.

mod activity;

use super::call::{Answer, Call, Headers};
use super::guard::{ClosingFlag, GuardedStream};
use super::http1::{BodyBound, Connection, FirstBytes, HeadError, is_list};
use super::{WebHandler, answer};
use crate::bounds;
use crate::metrics::Refused;
use crate::net::{
    AcceptedConnection, Account, Drain, LINGER, ListenerContext, Reservation, Stream, after,
};
use crate::timers;
use activity::Activity;
pub(crate) use activity::{BudgetedBody, InFlightRequest, UnreadResponse};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::rt::Executor;
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::server::conn::http2::Builder;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Runs the streams of a connection on the worker of the connection.
#[derive(Clone, Copy)]
pub(crate) struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// Serves a connection to its end.
pub(super) async fn serve<W: WebHandler>(
    parts: (Stream, Vec<u8>),
    (peer, account): (IpAddr, &Rc<Account>),
    handler: &(impl Deref<Target = W> + Clone + 'static),
    listener: &Rc<ListenerContext>,
    drain: &Drain,
) -> io::Result<()> {
    let on_call = |request: Request<Incoming>, work: InFlightRequest| {
        let (handler, listener) = (handler.clone(), Rc::clone(listener));
        async move {
            let head_only = request.method() == Method::HEAD;
            let answer = if work.fits() {
                one_request(request, peer, &*handler, (&listener, &work)).await
            } else {
                // There is no memory for its body, nor for a body of the answer.
                drop(request);
                refused(HeadError::NoRoom, &listener).without_body()
            };
            response(answer, head_only, work, &listener).map(Full::new)
        }
    };
    serve_streams(parts, account, listener, drain, on_call).await
}

/// Serves a connection of the gRPC listener; `on_call` answers each call.
pub(crate) async fn serve_calls<F, B>(
    AcceptedConnection { stream, account, .. }: AcceptedConnection<'_>,
    listener: &Rc<ListenerContext>,
    drain: &Drain,
    on_call: impl Fn(Request<Incoming>, InFlightRequest) -> F,
) -> io::Result<()>
where
    F: Future<Output = Response<B>> + 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut connection = Connection::new(stream, &account, listener, drain);
    match connection.first().await? {
        FirstBytes::Two => {
            serve_streams(connection.into_parts(), &account, listener, drain, on_call).await
        }
        // The client may understand an error of HTTP/1.1.
        FirstBytes::One => {
            listener.metrics.refused(Refused::NoHttp);
            connection.stream.output.extend_from_slice(NO_GRPC);
            connection.stream.close().await
        }
        FirstBytes::Nothing => Ok(()),
    }
}

/// Serves a connection whose first bytes were read; `on_call` answers each request.
pub(crate) async fn serve_streams<F, B>(
    (stream, read): (Stream, Vec<u8>),
    account: &Rc<Account>,
    listener: &Rc<ListenerContext>,
    drain: &Drain,
    on_call: impl Fn(Request<Incoming>, InFlightRequest) -> F,
) -> io::Result<()>
where
    F: Future<Output = Response<B>> + 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let activity = Activity::new(account, listener);
    let service = service_fn(|request: Request<Incoming>| {
        let work = activity.begin(&request);
        let answered = on_call(request, work);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    run(stream, read, listener, drain, &activity, service).await
}

const NO_GRPC: &[u8] = b"HTTP/1.1 505 HTTP Version Not Supported\r\n\
    content-type: text/plain\r\ncontent-length: 57\r\nconnection: close\r\n\r\n\
    this listener speaks gRPC; for HTTP use another listener\n";

/// Serves the streams of a connection. Closes it when it is idle, or when the client does not read its answers.
async fn run<V, B>(
    stream: Stream,
    read: Vec<u8>,
    listener: &ListenerContext,
    drain: &Drain,
    activity: &Activity,
    service: V,
) -> io::Result<()>
where
    V: HttpService<Incoming, ResBody = B>,
    V::Error: Into<Box<dyn Error + Send + Sync>>,
    V::Future: 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    LocalExecutor: Http2ServerConnExec<V::Future, B>,
{
    let is_closing = ClosingFlag::default();
    let io = TokioIo::new(GuardedStream::new(stream, read, is_closing.clone()));
    let mut connection = pin!(builder(listener).serve_connection(io, service));
    let stalled = Duration::from_millis(bounds::STALLED_MILLIS);
    let often = listener.timeouts.idle.min(listener.timeouts.body).min(stalled);
    let mut checks = tokio::time::interval(often);
    let mut end: Option<Instant> = None;
    loop {
        let over = end.unwrap_or_else(far);
        tokio::select! {
            served = connection.as_mut() => return served.map_err(io::Error::other),
            () = drain.begun.cancelled(), if end.is_none() => {
                is_closing.begin();
                connection.as_mut().graceful_shutdown();
                end = Some(far());
            }
            _ = checks.tick(), if end.is_none() => {
                if activity.unread_for() > listener.timeouts.body {
                    listener.metrics.refused(Refused::Unread);
                    return Ok(());
                }
                if activity.blocks_others() {
                    listener.metrics.refused(Refused::NoRoom);
                    return Ok(());
                }
                if activity.idle_for() > listener.timeouts.idle {
                    is_closing.begin();
                    connection.as_mut().graceful_shutdown();
                    // The client has this long to read the GOAWAY.
                    end = Some(after(listener.timeouts.head));
                }
            }
            () = timers::sleep_until(over) => return Ok(()),
        }
    }
}

/// An instant that is later than every deadline here.
fn far() -> Instant {
    after(Duration::from_secs(86_400))
}

fn builder(listener: &ListenerContext) -> Builder<LocalExecutor> {
    let mut builder = Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(listener.streams.most)
        .max_pending_accept_reset_streams(listener.streams.pending_resets)
        .max_local_error_reset_streams(bounds::PROVOKED_RESETS)
        .max_header_list_size(u32::try_from(listener.streams.head_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(bounds::UNWRITTEN)
        .initial_stream_window_size(listener.streams.window)
        .initial_connection_window_size(listener.streams.window)
        // Pings detect a client that is gone without closing the connection.
        .keep_alive_interval(listener.timeouts.idle.min(Duration::from_secs(bounds::PING_SECONDS)))
        .keep_alive_timeout(listener.timeouts.body);
    builder
}

async fn one_request<W: WebHandler>(
    request: Request<Incoming>,
    peer: IpAddr,
    handler: &W,
    (listener, work): (&ListenerContext, &InFlightRequest),
) -> Answer {
    let (mut parts, mut body) = request.into_parts();
    let room = work.reserve();
    let checked = check_head(&parts);
    // Handlers find the host where HTTP/1 has it. If there is such a field, it names the same one.
    if let Some(host) = parts.uri.authority().and_then(|host| host.as_str().parse().ok()) {
        parts.headers.insert(header::HOST, host);
    }
    let call = Call {
        peer,
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query(),
        headers: Headers::Map(&parts.headers),
        body: b"",
        room: &room,
    };
    if let Err(error) = checked {
        return refused(error, listener);
    }
    let (route, bound) = match handler.begin(&call) {
        Ok(accepted) => accepted,
        Err(answer) => {
            read_over(body, work.lingers());
            return answer;
        }
    };
    let deadline = after(listener.timeouts.body);
    let body = match timeout_at(deadline, read_body(&mut body, bound, work)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            read_over(body, work.lingers());
            return refused(error, listener);
        }
        Err(_) => return refused(HeadError::Late, listener),
    };
    let _turn = if is_list(&body) { work.batch().await } else { None };
    answer(handler, route, &Call { body: &body, ..call }).await
}

/// The checks of a head that HTTP/1 makes too.
pub(crate) fn check_head(parts: &http::request::Parts) -> Result<(), HeadError> {
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if target > bounds::REQUEST_LINE {
        return Err(HeadError::LineTooLong);
    }
    if parts.headers.len() > bounds::HEADERS {
        return Err(HeadError::HeaderTooLarge);
    }
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    match (parts.uri.authority(), hosts.next(), hosts.next()) {
        (None, None, _) => Err(HeadError::Malformed("no authority")),
        (_, Some(_), Some(_)) => Err(HeadError::Malformed("two `host` fields")),
        (Some(authority), Some(host), None)
            if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) =>
        {
            Err(HeadError::Malformed("it names two hosts"))
        }
        _ => Ok(()),
    }
}

/// Reads a body within its bound and the connection budget.
async fn read_body(
    body: &mut Incoming,
    most: BodyBound,
    work: &InFlightRequest,
) -> Result<BudgetedBody, HeadError> {
    let mut bytes = work.body();
    // The announced length, if it is allowed.
    let announced = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let announced = announced.unwrap_or(0).min(most.batch);
    if !bytes.expect(announced) {
        return Err(HeadError::NoRoom);
    }
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(HeadError::CutShort) };
        let Ok(data) = frame.into_data() else { continue };
        let then = bytes.len().saturating_add(data.len());
        let needs = if then > announced { then.next_power_of_two() } else { announced };
        if !bytes.expect(needs) || !bytes.push(&data) {
            return Err(HeadError::NoRoom);
        }
        let most = most.of(&bytes);
        if bytes.len() > most {
            return Err(HeadError::BodyTooLarge(most));
        }
    }
    Ok(bytes)
}

/// Reads and discards the rest of a body whose request was already answered, for up to [`LINGER`]. If the stream ended while
/// the client still sends, the library would count that as an error of the client, and a few such errors close the connection
/// with every other request on it.
pub(crate) fn read_over(mut body: Incoming, reserved: Reservation) {
    let rest = async move {
        let _reserved = reserved;
        let mut left = bounds::LINGER_BYTES;
        while let (Some(Ok(frame)), 1..) = (body.frame().await, left) {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    tokio::task::spawn_local(timeout(LINGER, rest));
}

/// The answer to a request that is refused before it is evaluated.
pub(crate) fn refused(error: HeadError, listener: &ListenerContext) -> Answer {
    listener.metrics.refused(error.kind());
    Answer::problem(error.status().unwrap_or(StatusCode::BAD_REQUEST), &error.to_string())
}

/// A body without copying it, and the memory that it takes.
fn shared(body: Cow<'static, [u8]>) -> (Bytes, usize) {
    match body {
        Cow::Borrowed(bytes) => (Bytes::from_static(bytes), 0),
        Cow::Owned(bytes) => {
            let room = bytes.capacity();
            (bytes.into(), room)
        }
    }
}

/// An answer of this server as the library sends it.
pub(crate) fn response(
    answer: Answer,
    head_only: bool,
    work: InFlightRequest,
    listener: &ListenerContext,
) -> Response<UnreadResponse> {
    let Answer { status, kind, fields, body } = answer;
    let length = body.len();
    let (body, room) = if head_only { (Bytes::new(), 0) } else { shared(body) };
    let mut response = Response::new(work.ended(body, room));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if head_only {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    headers.extend(fields);
    if !kind.is_empty() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    if let Ok(date) = HeaderValue::from_bytes(&listener.date()) {
        headers.insert(header::DATE, date);
    }
    response
}
