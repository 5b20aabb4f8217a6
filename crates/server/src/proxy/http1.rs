//! Clients that speak HTTP/1.1: requests and answers are passed on while they arrive.
//!
//! ```text
//!   head ──► admit ──► send ─────────────► head of the answer ──► body of the answer ──► next request
//!              │         ▲ body of the request, as long as it lasts ▲
//!              └ refused, or the client has gone: the waiting request is dropped
//! ```
//!
//! The request's body is read and the answer is written by one task, which waits for both at the same time. So a server may
//! answer before it has read everything, and neither side can block the other for ever.

use super::body_pump::{BodyPump, ClientFault};
use super::departure::{Departure, WaitingWatch};
use super::exchange::ClientSide;
use super::gate::{Admitted, Proxy, ProxyClient};
use super::http1_answer::{AnswerFraming, poll_body};
use super::interim::InterimAnswers;
use super::piece_room::PieceRoom;
use super::request_head::ReceivedRequest;
use super::tunnel;
use super::upstream::{ClientPresence, UpstreamBody};
use crate::backend::Backend;
use crate::bounds;
use crate::net::{BufferedConnection, Drain, USUAL};
use crate::web::head::Length;
use crate::web::{
    AfterAnswer, Answer, BodyDecoder, Connection, HeadError, Responder, field, status_line,
    write_fields,
};
use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, header};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

/// Answers the requests of an HTTP/1 client, and passes their bodies and answers on while they arrive.
pub(crate) struct StreamedAnswers<'f, S> {
    pub(crate) client: Rc<ProxyClient>,
    pub(crate) proxy: &'f Proxy<S>,
}

/// What decides how an answer is framed.
struct AskedAnswer {
    method: Method,
    /// Whether the client speaks HTTP/1.1, not 1.0.
    eleven: bool,
    /// Whether the client wants the connection to be closed.
    close: bool,
}

/// The read buffer of a connection whose request waits for its turn.
const WAITING: usize = 64;
/// While the proxy waits for an upstream server, the client has no deadline.
const NO_DEADLINE: Duration = Duration::from_secs(86_400);

impl<S: Backend> Responder for StreamedAnswers<'_, S> {
    async fn respond(
        &self,
        connection: &mut Connection<'_>,
        head_end: usize,
    ) -> io::Result<AfterAnswer> {
        let head = Bytes::copy_from_slice(connection.stream.input.take(head_end));
        let request = match ReceivedRequest::parse(&head) {
            Ok(request) => request,
            Err(error) => return Ok(connection.refuse(error)),
        };
        // Boxed: most connections are idle, and should be small.
        let after = Box::pin(self.one_request(connection, request)).await;
        connection.stream.input.set_usual(USUAL);
        after
    }

    /// With other answers on their way, they are written together, which costs less. Alone, there is no reason to wait.
    fn writes_together(&self) -> bool {
        self.proxy.is_busy()
    }
}

impl<S: Backend> StreamedAnswers<'_, S> {
    /// Decides a request, and exchanges it for an answer if it may pass.
    async fn one_request(
        &self,
        connection: &mut Connection<'_>,
        request: ReceivedRequest,
    ) -> io::Result<AfterAnswer> {
        let _in_flight = self.proxy.in_flight();
        // Each part is on the heap by itself: a request that waits for its turn should be small.
        let admitting = Box::pin(self.proxy.admit(&request.parts, &self.client));
        match watching(&mut connection.stream, admitting).await {
            None => Ok(AfterAnswer::Close),
            Some(Ok(admitted)) => Box::pin(self.forwarded(connection, request, admitted)).await,
            Some(Err(answer)) => Ok(answer_unread(connection, &answer, &request)),
        }
    }

    /// Passes on an admitted request and its answer.
    async fn forwarded(
        &self,
        connection: &mut Connection<'_>,
        request: ReceivedRequest,
        mut admitted: Admitted,
    ) -> io::Result<AfterAnswer> {
        let decoder = match BodyDecoder::new(request.length, self.proxy.parts.options.body_limit) {
            Ok(decoder) => decoder,
            Err(error) => {
                let error = HeadError::from(error);
                error.status().into_iter().for_each(|status| admitted.record.own_answer(status));
                return Ok(connection.refuse(error));
            }
        };
        let mut pump = BodyPump::new(decoder, PieceRoom::new(Rc::clone(&self.client.account)));
        connection.begin_body(request.expects && !pump.done).await?;
        let usual = if pump.done { USUAL } else { bounds::PROXY_PIECE };
        connection.stream.input.set_usual(usual);

        let ReceivedRequest { parts, length, close, eleven, .. } = request;
        let asked = AskedAnswer { method: parts.method.clone(), eleven, close };
        let body = pump.body(length);
        let (interim, presence) = (InterimAnswers::default(), Rc::default());
        let side = ClientSide { client: &self.client, interim: &interim, presence: &presence };
        let sending = self.proxy.forward(admitted, parts, body, &side);
        let hints = eleven.then_some(&interim);
        let stream = &mut connection.stream;
        match exchange(stream, sending, &mut pump, hints, &presence).await {
            Ok(Ok(answer)) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                switch_protocols(stream, answer, &self.client.drain).await
            }
            Ok(Ok(answer)) => pass_on(connection, answer, &asked, pump).await,
            Ok(Err(answer)) => {
                let nothing_behind = connection.stream.input.is_empty();
                let next = connection.next(close || !pump.done, nothing_behind);
                connection.write(&answer, asked.method == Method::HEAD, next);
                Ok(next)
            }
            Err(ClientFault::Gone) => Ok(AfterAnswer::Close),
            Err(ClientFault::Refuse(error)) => Ok(connection.refuse(error)),
        }
    }
}

/// Answers a request without its body. If the body is here, it is skipped; if not, the next request could not be told apart
/// from it, so the connection is closed.
fn answer_unread(
    connection: &mut Connection<'_>,
    answer: &Answer,
    request: &ReceivedRequest,
) -> AfterAnswer {
    let input = &mut connection.stream.input;
    let skip = match request.length {
        Length::None => Some(0),
        Length::Bytes(length) if length <= input.unread().len() => Some(length),
        Length::Bytes(_) | Length::Chunks => None,
    };
    input.consume(skip.unwrap_or(0));
    let nothing_behind = input.is_empty();
    let next = connection.next(skip.is_none() || request.close, nothing_behind);
    connection.write(answer, request.parts.method == Method::HEAD, next);
    next
}

/// Waits for a future, or until the client has gone. Of a request that waits for its turn or its seat, a client that closes its
/// side of the connection is gone.
async fn watching<T>(
    stream: &mut BufferedConnection<'_>,
    mut future: Pin<Box<impl Future<Output = T>>>,
) -> Option<T> {
    stream.wait_within(NO_DEADLINE);
    let mut watch = WaitingWatch::default();
    poll_fn(|context| {
        if let Poll::Ready(done) = future.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        // While the request waits, only the end of the connection is of interest.
        stream.input.set_usual(WAITING);
        watch.poll_gone(stream, context).map(|()| None)
    })
    .await
}

/// Waits for the head of the answer, and meanwhile reads the body of the request.
async fn exchange<T>(
    stream: &mut BufferedConnection<'_>,
    sending: impl Future<Output = T>,
    pump: &mut BodyPump,
    hints: Option<&InterimAnswers>,
    presence: &ClientPresence,
) -> Result<T, ClientFault> {
    let mut sending = pin!(sending);
    let mut departure = Departure::of(presence);
    poll_fn(|context| {
        let sent = sending.as_mut().poll(context);
        for (status, fields) in hints.into_iter().flat_map(InterimAnswers::take) {
            write_interim(&mut stream.output, status, &fields);
        }
        if let Poll::Ready(sent) = sent {
            return Poll::Ready(Ok(sent));
        }
        if let Poll::Ready(Err(_)) = stream.poll_flush(context) {
            return Poll::Ready(Err(ClientFault::Gone));
        }
        if pump.done {
            return departure.poll(stream, context).map(|()| Err(ClientFault::Gone));
        }
        ready!(pump.poll(stream, context))?;
        stream.wait_within(NO_DEADLINE);
        // The end of the body may be all that the server waits for.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

// === answers ===

/// Writes an answer while it arrives.
async fn pass_on(
    connection: &mut Connection<'_>,
    answer: Response<UpstreamBody>,
    asked: &AskedAnswer,
    mut pump: BodyPump,
) -> io::Result<AfterAnswer> {
    let (head, mut body) = answer.into_parts();
    let framing = AnswerFraming::of(&head, &body, &asked.method, asked.eleven);
    let close = asked.close || framing == AnswerFraming::UntilClose || !pump.done;
    let nothing_behind = connection.stream.input.is_empty();
    let next = connection.next(close, nothing_behind);
    let stream = &mut connection.stream;
    write_head(stream, &head, framing, next);
    if framing == AnswerFraming::None {
        body.finish_empty().await;
        return Ok(next);
    }
    stream.wait_within(stream.listener.timeouts.body);
    let passed = poll_fn(|context| {
        // A client that is still sending its body is read, whatever becomes of it: the answer counts.
        if !pump.done && pump.poll(stream, context).is_ready() {
            pump.done = true;
        }
        poll_body(stream, &mut body, framing, context)
    })
    .await;
    if passed.is_err() && framing == AnswerFraming::UntilClose {
        // The end of the connection would look like the end of the body.
        stream.reset_at_close();
    }
    passed?;
    // While the body exists, its last piece is counted.
    stream.flush_long().await?;
    drop(body);
    Ok(next)
}

fn write_head(
    stream: &mut BufferedConnection<'_>,
    head: &http::response::Parts,
    framing: AnswerFraming,
    next: AfterAnswer,
) {
    let date = stream.listener.date();
    let out = &mut stream.output;
    out.extend_from_slice(status_line(head.status).as_bytes());
    write_fields(out, &head.headers);
    if framing == AnswerFraming::Chunks {
        field(out, b"transfer-encoding", b"chunked");
    }
    if next == AfterAnswer::Close {
        field(out, b"connection", b"close");
    }
    if !head.headers.contains_key(header::DATE) {
        field(out, b"date", &date);
    }
    out.extend_from_slice(b"\r\n");
}

/// Passes on everything in both directions, after the server has agreed to switch protocols, until one side has ended it.
async fn switch_protocols(
    stream: &mut BufferedConnection<'_>,
    answer: Response<UpstreamBody>,
    drain: &Drain,
) -> io::Result<AfterAnswer> {
    let (head, body) = answer.into_parts();
    write_interim(&mut stream.output, head.status, &head.headers);
    stream.flush().await?;
    if let Some((upstream, read, (_seat, mut record))) = body.into_upgraded().await {
        let (client, first) = stream.stream_and_unread();
        tunnel::run((client, &first), (upstream, &read), drain).await?;
        record.complete();
    }
    Ok(AfterAnswer::Ended)
}

/// Writes the head of an interim answer, which says nothing about the end of the connection.
fn write_interim(out: &mut Vec<u8>, status: StatusCode, fields: &HeaderMap) {
    out.extend_from_slice(status_line(status).as_bytes());
    write_fields(out, fields);
    out.extend_from_slice(b"\r\n");
}
