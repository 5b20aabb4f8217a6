//! HTTP/2: streams of one connection at once, each a request.
//!
//! The protocol is hyper's. What is set here are its bounds, and what it leaves open: time.

mod busy;

use super::call::{Answer, Call, Headers};
use super::guard::{Ending, Guarded};
use super::http1::{BodyBound, HeadError, is_list};
use super::{WebHandler, answer};
use crate::bounds;
use crate::metrics::Refused;
use crate::net::{Account, Drain, Hold, LINGER, Opened, Place, Stream, after};
use busy::Busy;
pub(crate) use busy::{Held, Untaken, Work};
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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Runs the streams of a connection where the connection runs.
#[derive(Clone, Copy)]
struct Here;

impl<F: Future<Output = ()> + 'static> Executor<F> for Here {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// Serves a connection to its end.
pub(super) async fn serve<W: WebHandler>(
    (stream, read): (Stream, Vec<u8>),
    (peer, account): (IpAddr, &Rc<Account>),
    handler: &(impl Deref<Target = W> + Clone + 'static),
    place: &Rc<Place>,
    drain: &Drain,
) -> io::Result<()> {
    let busy = Busy::new(account, place);
    let service = service_fn(|request: Request<Incoming>| {
        let (handler, place, busy) = (handler.clone(), Rc::clone(place), Rc::clone(&busy));
        let work = busy.begin(&request);
        async move {
            let head_only = request.method() == Method::HEAD;
            let answer = if work.fits() {
                one_request(request, peer, &*handler, (&place, &work)).await
            } else {
                // Neither its body nor a body of the answer is kept: there is no room for them.
                drop(request);
                refused(HeadError::NoRoom, &place).without_body()
            };
            Ok::<_, Infallible>(response(answer, head_only, work, &place))
        }
    });
    run(stream, read, place, drain, &busy, service).await
}

/// Serves a connection on which gRPC is spoken and nothing else; `on_call` answers each call.
pub(crate) async fn serve_calls<F, B>(
    Opened { mut stream, account, .. }: Opened<'_>,
    place: &Rc<Place>,
    drain: &Drain,
    on_call: impl Fn(Request<Incoming>, Work) -> F,
) -> io::Result<()>
where
    F: Future<Output = Response<B>> + 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let Some(read) = preface(&mut stream, place, drain).await? else { return Ok(()) };
    let busy = Busy::new(&account, place);
    let service = service_fn(|request: Request<Incoming>| {
        let work = busy.begin(&request);
        let answered = on_call(request, work);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    run(stream, read, place, drain, &busy, service).await
}

/// The first bytes of a connection. Whoever says something else than HTTP/2 is told so, in words that they may understand.
async fn preface(stream: &mut Stream, place: &Place, drain: &Drain) -> io::Result<Option<Vec<u8>>> {
    let mut read = Vec::with_capacity(512);
    let late = after(place.timeouts.head);
    // Who came before the end may have said something that has not been read.
    let mut stopped = pin!(async {
        drain.begun.cancelled().await;
        sleep(LINGER).await;
    });
    loop {
        tokio::select! {
            more = timeout_at(late, stream.read_buf(&mut read)) => {
                let Ok(more) = more else {
                    place.metrics.refused(Refused::Late);
                    return Ok(None);
                };
                if more? == 0 {
                    return Ok(None);
                }
            }
            () = stopped.as_mut() => return Ok(None),
        }
        let length = read.len().min(PREFACE.len());
        if read.get(..length) != PREFACE.get(..length) {
            break;
        }
        if length == PREFACE.len() {
            return Ok(Some(read));
        }
    }
    place.metrics.refused(Refused::NoHttp);
    stream.write_all(NO_GRPC).await?;
    stream.shutdown().await?;
    Ok(None)
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const NO_GRPC: &[u8] = b"HTTP/1.1 505 HTTP Version Not Supported\r\n\
    content-type: text/plain\r\ncontent-length: 57\r\nconnection: close\r\n\r\n\
    this listener speaks gRPC; for HTTP use another listener\n";

/// Serves requests as they come, and ends a connection that does nothing or takes nothing.
async fn run<V, B>(
    stream: Stream,
    read: Vec<u8>,
    place: &Place,
    drain: &Drain,
    busy: &Busy,
    service: V,
) -> io::Result<()>
where
    V: HttpService<Incoming, ResBody = B>,
    V::Error: Into<Box<dyn Error + Send + Sync>>,
    V::Future: 'static,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    Here: Http2ServerConnExec<V::Future, B>,
{
    let ending = Ending::default();
    let io = TokioIo::new(Guarded::new(stream, read, ending.clone()));
    let mut connection = pin!(builder(place).serve_connection(io, service));
    let stalled = Duration::from_millis(bounds::STALLED_MILLIS);
    let often = place.timeouts.idle.min(place.timeouts.body).min(stalled);
    let mut look = tokio::time::interval(often);
    let mut end: Option<Instant> = None;
    loop {
        let over = end.unwrap_or_else(far);
        tokio::select! {
            served = connection.as_mut() => return served.map_err(io::Error::other),
            () = drain.begun.cancelled(), if end.is_none() => {
                ending.begin();
                connection.as_mut().graceful_shutdown();
                end = Some(far());
            }
            _ = look.tick(), if end.is_none() => {
                if busy.untaken_for() > place.timeouts.body {
                    place.metrics.refused(Refused::Unread);
                    return Ok(());
                }
                if busy.stands_in_the_way() {
                    place.metrics.refused(Refused::NoRoom);
                    return Ok(());
                }
                if busy.idle_for() > place.timeouts.idle {
                    ending.begin();
                    connection.as_mut().graceful_shutdown();
                    // Whoever has not even read our goodbye by then is not waited for.
                    end = Some(after(place.timeouts.head));
                }
            }
            () = tokio::time::sleep_until(over) => return Ok(()),
        }
    }
}

/// Later than anything here.
fn far() -> Instant {
    after(Duration::from_secs(86_400))
}

fn builder(place: &Place) -> Builder<Here> {
    let mut builder = Builder::new(Here);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(place.streams.most)
        .max_pending_accept_reset_streams(place.streams.pending_resets)
        .max_local_error_reset_streams(bounds::PROVOKED_RESETS)
        .max_header_list_size(u32::try_from(place.streams.head_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(bounds::UNWRITTEN)
        .initial_stream_window_size(place.streams.window)
        .initial_connection_window_size(place.streams.window)
        // A peer that is gone without a word is noticed.
        .keep_alive_interval(place.timeouts.idle.min(Duration::from_secs(bounds::PING_SECONDS)))
        .keep_alive_timeout(place.timeouts.body);
    builder
}

async fn one_request<W: WebHandler>(
    request: Request<Incoming>,
    peer: IpAddr,
    handler: &W,
    (place, work): (&Place, &Work),
) -> Answer {
    let (parts, mut body) = request.into_parts();
    let room = work.hold();
    let call = Call {
        peer,
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query(),
        headers: Headers::Map(&parts.headers),
        body: b"",
        room: &room,
    };
    if let Err(error) = whole(&parts) {
        return refused(error, place);
    }
    let (route, bound) = match handler.begin(&call) {
        Ok(accepted) => accepted,
        Err(answer) => {
            read_over(body, work.lingers());
            return answer;
        }
    };
    let deadline = after(place.timeouts.body);
    let body = match timeout_at(deadline, bytes(&mut body, bound, work)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            read_over(body, work.lingers());
            return refused(error, place);
        }
        Err(_) => return refused(HeadError::Late, place),
    };
    let _turn = if is_list(&body) { work.batch().await } else { None };
    answer(handler, route, &Call { body: &body, ..call }).await
}

/// What HTTP/1 asks of a head too.
fn whole(parts: &http::request::Parts) -> Result<(), HeadError> {
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

async fn bytes(body: &mut Incoming, most: BodyBound, work: &Work) -> Result<Held, HeadError> {
    let mut bytes = work.body();
    // What was announced, as far as it may be so much.
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

/// Reads over the rest of a body that has been answered already, for a moment. To end a stream while its
/// client still sends is an offence of the client's in the eyes of the library, and a few of them end the
/// connection, with every other request on it.
pub(crate) fn read_over(mut body: Incoming, held: Hold) {
    let rest = async move {
        let _held = held;
        let mut left = bounds::LINGER_BYTES;
        while let (Some(Ok(frame)), 1..) = (body.frame().await, left) {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    tokio::task::spawn_local(timeout(Duration::from_millis(bounds::LINGER_MILLIS), rest));
}

fn refused(error: HeadError, place: &Place) -> Answer {
    place.metrics.refused(error.kind());
    Answer::problem(error.status().unwrap_or(StatusCode::BAD_REQUEST), &error.to_string())
}

fn response(answer: Answer, head_only: bool, work: Work, place: &Place) -> Response<Full<Untaken>> {
    let Answer { status, kind, fields, body } = answer;
    let length = body.len();
    let mut room = 0;
    let body = match body {
        _ if head_only => Bytes::new(),
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => {
            room = bytes.capacity();
            bytes.into()
        }
    };
    let mut response = Response::new(Full::new(work.ended(body, room)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if head_only {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    headers.extend(fields);
    if !kind.is_empty() {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    if let Ok(date) = HeaderValue::from_bytes(&place.date()) {
        headers.insert(header::DATE, date);
    }
    response
}
