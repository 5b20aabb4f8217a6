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
use crate::net::{
    AcceptedConnection, BufferedConnection, Drain, ListenerContext, Stream, USUAL, Woken,
};
use crate::web::head::{self, Length};
use crate::web::{
    AfterAnswer, Answer, BodyDecoder, HeadError, PREFACE, UNREAD, field, status_line, write_answer,
};
use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// A connection of an HTTP/1 client.
pub(crate) struct ProxyConnection<'f, S> {
    stream: BufferedConnection<'f>,
    client: Rc<ProxyClient>,
    proxy: &'f Proxy<S>,
    listener: &'f ListenerContext,
    /// Bytes of empty lines since the last request.
    skipped: usize,
}

/// The protocol of the first bytes.
pub(crate) enum FirstRequest {
    One,
    Two,
    Nothing,
}

/// What becomes of the connection after a request.
enum AfterRequest {
    Next(AfterAnswer),
    /// It was upgraded, and everything was passed on until one side ended it.
    Tunneled,
}

/// The read buffer of a connection whose request waits for its turn.
const WAITING: usize = 64;
/// While the proxy waits for an upstream server, the client has no deadline.
const NO_DEADLINE: Duration = Duration::from_secs(86_400);

impl<'f, S: Backend> ProxyConnection<'f, S> {
    pub(crate) fn new(
        opened: AcceptedConnection<'f>,
        proxy: &'f Proxy<S>,
        listener: &'f ListenerContext,
        drain: &Drain,
    ) -> Self {
        let AcceptedConnection { stream, peer, account, .. } = opened;
        let client = ProxyClient { peer, account: Rc::clone(&account), drain: drain.clone() };
        let stream = BufferedConnection::new(stream, account, listener, drain, UNREAD);
        Self { stream, client: Rc::new(client), proxy, listener, skipped: 0 }
    }

    /// Waits for the first bytes and detects the version of HTTP.
    pub(crate) async fn first(&mut self) -> io::Result<FirstRequest> {
        loop {
            let here = self.stream.input.unread();
            let seen = PREFACE.len().min(here.len());
            match (PREFACE.get(..seen) == here.get(..seen), seen) {
                (true, seen) if seen == PREFACE.len() => return Ok(FirstRequest::Two),
                (true, _) => {}
                (false, _) => return Ok(FirstRequest::One),
            }
            match self.stream.fill().await? {
                Woken::Bytes => {}
                Woken::Draining => self.stream.wait_for_more(),
                Woken::End if !self.stream.input.is_empty() => return Ok(FirstRequest::One),
                Woken::End | Woken::Late | Woken::NoRoom => return Ok(FirstRequest::Nothing),
            }
        }
    }

    /// The stream, and the bytes that were read from it and not parsed.
    pub(crate) fn into_parts(self) -> (Stream, Vec<u8>) {
        self.stream.into_parts()
    }

    /// Serves requests until the connection ends.
    pub(crate) async fn serve(mut self) -> io::Result<()> {
        loop {
            self.stream.input.set_usual(USUAL);
            let Some(head_end) = self.next_head().await? else { return self.stream.close().await };
            let request = match self.parse(head_end) {
                Ok(request) => request,
                Err(error) => {
                    self.refuse(error);
                    return self.stream.close().await;
                }
            };
            // Boxed: most connections are idle, and should be small.
            match Box::pin(self.one_request(request)).await? {
                AfterRequest::Next(AfterAnswer::Request) => {}
                AfterRequest::Next(AfterAnswer::Close) => return self.stream.close().await,
                AfterRequest::Tunneled => return Ok(()),
            }
        }
    }

    // === heads ===

    /// Waits for the head of the next request, and returns where it ends; `None` if the connection is to be closed.
    async fn next_head(&mut self) -> io::Result<Option<usize>> {
        let mut seen = 0;
        loop {
            self.skipped = self.skipped.saturating_add(self.stream.input.skip_empty_lines());
            if self.skipped > bounds::EMPTY_LINES {
                self.refuse(HeadError::NoHttp);
                return Ok(None);
            }
            let here = self.stream.input.unread();
            if let Some(end) = head::end(here, seen) {
                return Ok(Some(end));
            }
            if let Err(error) = if here.is_empty() { Ok(()) } else { head::plausible(here) } {
                self.refuse(error);
                return Ok(None);
            }
            let (is_idle, began) = (here.is_empty(), mem::replace(&mut seen, here.len()) == 0);
            // With other answers on their way, they are written together, which costs less. Alone, there is no reason to wait.
            if self.proxy.is_busy() {
                self.stream.flush().await?;
            } else {
                self.stream.flush_now().await?;
            }
            if is_idle || began {
                self.stream.wait_for_more();
            }
            let error = match self.stream.fill().await? {
                Woken::Bytes | Woken::Draining => continue,
                Woken::End => return Ok(None),
                Woken::Late if is_idle => return Ok(None),
                Woken::Late => HeadError::Late,
                Woken::NoRoom => HeadError::NoRoom,
            };
            self.refuse(error);
            return Ok(None);
        }
    }

    /// Parses a head, and removes it from the read buffer.
    fn parse(&mut self, head_end: usize) -> Result<ReceivedRequest, HeadError> {
        self.skipped = 0;
        let bytes = self.stream.input.unread().get(..head_end).unwrap_or_default();
        let bytes = Bytes::copy_from_slice(bytes);
        self.stream.input.consume(head_end);
        ReceivedRequest::parse(&bytes)
    }

    /// Answers an invalid request. The connection is closed, because the bytes that follow cannot be trusted.
    fn refuse(&mut self, error: HeadError) {
        self.listener.metrics.refused(error.kind());
        if let Some(status) = error.status() {
            let answer = Answer::problem(status, &error.to_string());
            self.write(&answer, false, AfterAnswer::Close);
        }
    }

    fn write(&mut self, answer: &Answer, head_only: bool, next: AfterAnswer) {
        let date = self.listener.date();
        write_answer(&mut self.stream.output, answer, (head_only, next), &date);
    }

    // === requests ===

    /// Decides a request, and exchanges it for an answer if it may pass.
    async fn one_request(&mut self, request: ReceivedRequest) -> io::Result<AfterRequest> {
        let (proxy, client) = (self.proxy, Rc::clone(&self.client));
        let _in_flight = proxy.in_flight();
        // Each part is on the heap by itself: a request that waits for its turn should be small.
        let admitting = Box::pin(proxy.admit(&request.parts, &client));
        let admitted = match self.watching(admitting).await {
            None => return Ok(AfterRequest::Next(AfterAnswer::Close)),
            Some(Ok(admitted)) => admitted,
            Some(Err(answer)) => {
                return Ok(AfterRequest::Next(self.answer_unread(&answer, &request)));
            }
        };
        Box::pin(self.forwarded(request, admitted)).await
    }

    /// Passes on an admitted request and its answer.
    async fn forwarded(
        &mut self,
        request: ReceivedRequest,
        mut admitted: Admitted,
    ) -> io::Result<AfterRequest> {
        let (proxy, client) = (self.proxy, Rc::clone(&self.client));
        let mut pump = match self.begin_body(&request).await? {
            Ok(pump) => pump,
            Err(error) => {
                error.status().into_iter().for_each(|status| admitted.record.own_answer(status));
                self.refuse(error);
                return Ok(AfterRequest::Next(AfterAnswer::Close));
            }
        };
        let ReceivedRequest { parts, length, close, eleven, .. } = request;
        let (method, body) = (parts.method.clone(), pump.body(length));
        let (interim, presence) = (InterimAnswers::default(), Rc::default());
        let side = ClientSide { client: &client, interim: &interim, presence: &presence };
        let sending = proxy.forward(admitted, parts, body, &side);
        let hints = eleven.then_some(&interim);
        let answer = match self.exchange(sending, &mut pump, hints, &presence).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(answer)) => {
                let next =
                    if pump.done && !close { AfterAnswer::Request } else { AfterAnswer::Close };
                self.write(&answer, method == Method::HEAD, next);
                return Ok(AfterRequest::Next(next));
            }
            Err(ClientFault::Gone) => return Ok(AfterRequest::Next(AfterAnswer::Close)),
            Err(ClientFault::Refuse(error)) => {
                self.refuse(error);
                return Ok(AfterRequest::Next(AfterAnswer::Close));
            }
        };
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return self.tunnel(answer).await;
        }
        self.pass_on(answer, (&method, eleven, close), pump).await.map(AfterRequest::Next)
    }

    /// Prepares to read the body of an admitted request. The client is told to send it, if it waits for that.
    async fn begin_body(
        &mut self,
        request: &ReceivedRequest,
    ) -> io::Result<Result<BodyPump, HeadError>> {
        let decoder = match BodyDecoder::new(request.length, self.proxy.options.body_limit) {
            Ok(decoder) => decoder,
            Err(error) => return Ok(Err(error.into())),
        };
        if request.expects && !decoder.is_done() && self.stream.input.is_empty() {
            self.stream.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.stream.flush().await?;
        let pump = BodyPump::new(decoder, PieceRoom::new(Rc::clone(&self.client.account)));
        let usual = if pump.done { USUAL } else { bounds::PROXY_PIECE };
        self.stream.input.set_usual(usual);
        self.stream.wait_within(self.listener.timeouts.body);
        Ok(Ok(pump))
    }

    /// Answers a request without its body. If the body is here, it is skipped; if not, the next request could not be told apart
    /// from it, so the connection is closed.
    fn answer_unread(&mut self, answer: &Answer, request: &ReceivedRequest) -> AfterAnswer {
        let skip = match request.length {
            Length::None => Some(0),
            Length::Bytes(length) if length <= self.stream.input.unread().len() => Some(length),
            Length::Bytes(_) | Length::Chunks => None,
        };
        self.stream.input.consume(skip.unwrap_or(0));
        let nothing_behind = self.stream.input.is_empty();
        let last = skip.is_none() || request.close || self.stream.is_last(nothing_behind);
        let next = if last { AfterAnswer::Close } else { AfterAnswer::Request };
        self.write(answer, request.parts.method == Method::HEAD, next);
        next
    }

    /// Waits for a future, or until the client has gone. Of a request that waits for its turn or its seat, a client that closes its
    /// side of the connection is gone.
    async fn watching<T>(&mut self, mut future: Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        self.stream.wait_within(NO_DEADLINE);
        let stream = &mut self.stream;
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
        &mut self,
        sending: impl Future<Output = T>,
        pump: &mut BodyPump,
        hints: Option<&InterimAnswers>,
        presence: &ClientPresence,
    ) -> Result<T, ClientFault> {
        let mut sending = pin!(sending);
        let (stream, listener) = (&mut self.stream, self.listener);
        let mut departure = Departure::of(presence);
        poll_fn(|context| {
            let sent = sending.as_mut().poll(context);
            if let Some(hints) = hints {
                write_hints(&mut stream.output, hints);
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
            match pump.poll(stream, listener, context) {
                Poll::Ready(Ok(())) => {
                    stream.wait_within(NO_DEADLINE);
                    // The end of the body may be all that the server waits for.
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Ready(Err(fault)) => Poll::Ready(Err(fault)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    // === answers ===

    /// Writes an answer while it arrives.
    async fn pass_on(
        &mut self,
        answer: Response<UpstreamBody>,
        (method, eleven, close): (&Method, bool, bool),
        mut pump: BodyPump,
    ) -> io::Result<AfterAnswer> {
        let (head, mut body) = answer.into_parts();
        let framing = AnswerFraming::of(&head, &body, method, eleven);
        let last = close
            || framing == AnswerFraming::UntilClose
            || !pump.done
            || self.stream.is_last(self.stream.input.is_empty());
        let next = if last { AfterAnswer::Close } else { AfterAnswer::Request };
        self.write_head(&head, framing, next);
        if framing == AnswerFraming::None {
            body.finish_empty().await;
            return Ok(next);
        }
        self.stream.wait_within(self.listener.timeouts.body);
        let (stream, listener) = (&mut self.stream, self.listener);
        let passed = poll_fn(|context| {
            // A client that is still sending its body is read, whatever becomes of it: the answer counts.
            if !pump.done && pump.poll(stream, listener, context).is_ready() {
                pump.done = true;
            }
            poll_body(stream, &mut body, framing, context)
        })
        .await;
        if passed.is_err() && framing == AnswerFraming::UntilClose {
            // The end of the connection would look like the end of the body.
            self.stream.reset_at_close();
        }
        passed?;
        // While the body exists, its last piece is counted.
        self.stream.flush_long().await?;
        drop(body);
        Ok(next)
    }

    fn write_head(
        &mut self,
        head: &http::response::Parts,
        framing: AnswerFraming,
        next: AfterAnswer,
    ) {
        let date = self.listener.date();
        let out = &mut self.stream.output;
        out.extend_from_slice(status_line(head.status).as_bytes());
        for (name, value) in &head.headers {
            field(out, name.as_str().as_bytes(), value.as_bytes());
        }
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

    /// Passes on everything in both directions, after the server has agreed to switch protocols.
    async fn tunnel(&mut self, answer: Response<UpstreamBody>) -> io::Result<AfterRequest> {
        let (head, body) = answer.into_parts();
        let out = &mut self.stream.output;
        out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\n");
        for (name, value) in &head.headers {
            field(out, name.as_str().as_bytes(), value.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        self.stream.flush().await?;
        if let Some((upstream, read, (_seat, mut record))) = body.into_upgraded().await {
            let drain = self.client.drain.clone();
            let (client, first) = self.stream.stream_and_unread();
            tunnel::run((client, &first), (upstream, &read), &drain).await?;
            record.complete();
        }
        Ok(AfterRequest::Tunneled)
    }
}

/// Writes the interim answers that have arrived.
fn write_hints(out: &mut Vec<u8>, hints: &InterimAnswers) {
    for (status, fields) in hints.take() {
        out.extend_from_slice(status_line(status).as_bytes());
        for (name, value) in &fields {
            field(out, name.as_str().as_bytes(), value.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}
