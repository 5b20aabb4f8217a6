//! The connections of one worker to the servers of a group, and sending a request over them.
//!
//! ```text
//!   choose a server ──► idle connection, or a new one ──► send ──► head of the answer
//!        ▲                     │ refused                   │ nothing was sent
//!        └─────────────────────┴───────────────────────────┘ again, with another server or connection
//! ```
//!
//! A request is sent again only if nothing of it was sent.

use super::UpstreamError;
use super::connection::{SendError, UpstreamConnection};
use super::group::{ServerSeat, UpstreamGroup};
use super::health::Observed;
use super::patience::answer_within;
use super::response_body::{Answering, ExchangeBounds, UpstreamBody};
use super::seats::HeldSeats;
use super::stream::{UpstreamIo, UpstreamStream, UpstreamVersion, lacks_files};
use super::work::Work;
use crate::metrics::GroupTally;
use crate::proxy::observe::RequestRecord;
use crate::proxy::request_body::{BodyProgress, RequestBody};
use crate::timers;
use crate::web::LocalExecutor;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ClientConfig;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The connections of one worker to a group.
pub(crate) struct Pool {
    pub(crate) group: Arc<UpstreamGroup>,
    /// The counters of the group on this worker.
    pub(crate) tally: Arc<GroupTally>,
    tls: Option<Arc<ClientConfig>>,
    servers: Vec<ServerConnections>,
    random: Cell<u64>,
    /// The seats of the requests in flight on this worker.
    pub(crate) held_seats: Rc<HeldSeats>,
    /// How many requests are kept on this worker whose clients have left.
    pub(super) lingering: Rc<Cell<usize>>,
    /// The connections to the auth server of the group.
    pub(crate) auth: Option<Rc<Self>>,
}

/// The connections to one server.
#[derive(Default)]
struct ServerConnections {
    /// Idle HTTP/1 connections; the last one was used last.
    idle: RefCell<Vec<IdleConnection>>,
    /// One HTTP/2 connection, which many requests share.
    shared: RefCell<Option<http2::SendRequest<RequestBody>>>,
}

struct IdleConnection {
    connection: UpstreamConnection,
    since: Instant,
}

/// A connection that is ready for a request.
enum ReadyConnection {
    One(Box<UpstreamConnection>),
    Two(http2::SendRequest<RequestBody>),
}

/// Why a request has no answer.
enum NoAnswer {
    /// Nothing of it was sent.
    NotSent(Box<Request<RequestBody>>),
    Failed(UpstreamError),
}

/// An idle connection is closed after this time: before the server does so (Node waits for 5 s).
const IDLE: Duration = Duration::from_secs(4);
/// Idle connections that are kept for one server on one worker.
const MOST_IDLE: usize = 256;
/// How often a request that was not sent is tried again.
const MOST_TRIES: usize = 4;

impl Pool {
    pub(crate) fn new(
        (group, tally): (Arc<UpstreamGroup>, Arc<GroupTally>),
        tls: Option<Arc<ClientConfig>>,
        seed: u64,
    ) -> Rc<Self> {
        let servers = (0..group.len()).map(|_| ServerConnections::default()).collect();
        let of_auth = |auth| Self::new((auth, Arc::clone(&tally)), tls.clone(), seed);
        let auth = group.auth.clone().map(of_auth);
        let (random, held_seats) = (Cell::new(seed | 1), Rc::default());
        let lingering = Rc::default();
        Rc::new(Self { group, tally, tls, servers, random, held_seats, lingering, auth })
    }

    /// Sends a request to a server of the group. `home` is the value that decides which server it is, if there is one.
    pub(crate) async fn send(
        self: &Rc<Self>,
        mut request: Request<RequestBody>,
        home: Option<&str>,
        bounds: ExchangeBounds,
        record: &mut RequestRecord,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let mut tried = Vec::new();
        let mut last = UpstreamError::Unreachable;
        for _ in 0..MOST_TRIES {
            let seat = self.group.seat(self.next_random(), home, &tried)?;
            record.tries(seat.server());
            let connection = match self.connection(seat.server()).await {
                Ok(connection) => connection,
                // No server is to blame. Idle connections are files that this worker can do without.
                Err(UpstreamError::NoFiles) if self.drop_idle() => continue,
                Err(UpstreamError::NoFiles) => return Err(UpstreamError::NoFiles),
                Err(error) => {
                    seat.observe(Observed::Refused);
                    tried.push(seat.server());
                    last = error;
                    continue;
                }
            };
            let mut work =
                Work::new(Rc::clone(self), seat, record.take_held(), Rc::clone(&bounds.presence));
            let request_progress = request.body().progress();
            let began = timers::now();
            match self.send_over(connection, request, &mut work).await {
                Ok(answer) => {
                    record.first_byte(timers::since(began));
                    request_progress.iter().for_each(BodyProgress::answered);
                    let idle = self.group.spec.timeouts.idle;
                    return Ok(answer.map(|body| {
                        let answering = Answering { body, work, request: request_progress };
                        UpstreamBody::new(answering, idle, bounds)
                    }));
                }
                Err(NoAnswer::NotSent(not_sent)) => {
                    request = *not_sent;
                    record.hold(work.not_begun());
                }
                Err(NoAnswer::Failed(error)) => return Err(error),
            }
        }
        Err(last)
    }

    /// Sends a request over a connection.
    async fn send_over(
        &self,
        connection: ReadyConnection,
        request: Request<RequestBody>,
        work: &mut Work,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let first_byte = self.group.spec.timeouts.first_byte;
        let progress = request.body().progress();
        let answer = match connection {
            ReadyConnection::One(connection) => {
                let sending = work.carry(connection).send(request);
                answer_within(first_byte, progress.clone(), sending).await
            }
            ReadyConnection::Two(sender) => {
                let server = work.server().map_or(0, ServerSeat::server);
                let sending = send_shared(sender, self.absolute(request, server));
                answer_within(first_byte, progress.clone(), sending).await
            }
        };
        let observe = |observed| work.server().into_iter().for_each(|seat| seat.observe(observed));
        let error = match answer {
            Some(Ok(answer)) => {
                observe(Observed::Answered);
                return Ok(answer);
            }
            Some(Err(SendError::NotSent(request))) => return Err(NoAnswer::NotSent(request)),
            Some(Err(SendError::Sent(error))) => match progress.and_then(|body| body.fault()) {
                // The server is not to blame, and may be at work with what it got.
                Some(fault) => return Err(NoAnswer::Failed(fault.into())),
                None => UpstreamError::Broken(error.to_string()),
            },
            None => UpstreamError::TimedOut,
        };
        observe(Observed::Failed);
        work.over();
        Err(NoAnswer::Failed(error))
    }

    /// HTTP/2 needs the scheme and the authority in the URI.
    fn absolute(&self, mut request: Request<RequestBody>, server: usize) -> Request<RequestBody> {
        request.headers_mut().remove(http::header::TRANSFER_ENCODING);
        let host = request.headers_mut().remove(http::header::HOST);
        let named = host.as_ref().and_then(|host| host.to_str().ok().map(str::to_owned));
        let authority = named.or_else(|| Some(self.group.url(server)?.authority()));
        let target = request.uri().path_and_query().cloned();
        let uri = authority.zip(target).and_then(|(authority, target)| {
            Uri::builder().scheme("http").authority(authority).path_and_query(target).build().ok()
        });
        if let Some(uri) = uri {
            *request.uri_mut() = uri;
        }
        *request.version_mut() = http::Version::HTTP_2;
        request
    }

    // === connections ===

    async fn connection(&self, server: usize) -> Result<ReadyConnection, UpstreamError> {
        if let Some(idle) = self.idle(server).await {
            return Ok(ReadyConnection::One(Box::new(idle)));
        }
        if let Some(shared) = self.shared(server) {
            return Ok(ReadyConnection::Two(shared));
        }
        let connecting = self.connect(server);
        match timeout(self.group.spec.timeouts.connect, connecting).await {
            Ok(connected) => connected,
            Err(_late) => Err(UpstreamError::Unreachable),
        }
    }

    async fn connect(&self, server: usize) -> Result<ReadyConnection, UpstreamError> {
        let url = self.group.url(server).ok_or(UpstreamError::Unreachable)?;
        let connected = UpstreamStream::connect(url, self.tls.as_ref()).await;
        let (stream, version) = connected.map_err(|error| {
            tracing::debug!("upstream server {url}: {error}");
            if lacks_files(&error) { UpstreamError::NoFiles } else { UpstreamError::Unreachable }
        })?;
        self.tally.connected();
        let broken = |error: hyper::Error| UpstreamError::Broken(error.to_string());
        match version {
            UpstreamVersion::One => {
                let connection = UpstreamConnection::new(stream).await.map_err(broken)?;
                Ok(ReadyConnection::One(Box::new(connection)))
            }
            UpstreamVersion::Two => {
                let io: UpstreamIo = TokioIo::new(stream);
                let builder = http2::Builder::new(LocalExecutor).timer(TokioTimer::new()).clone();
                let (sender, connection) = builder.handshake(io).await.map_err(broken)?;
                // An HTTP/2 connection serves many requests, so it has a task of its own.
                tokio::task::spawn_local(async move {
                    let _: hyper::Result<()> = connection.await;
                });
                if let Some(connections) = self.servers.get(server) {
                    *connections.shared.borrow_mut() = Some(sender.clone());
                }
                Ok(ReadyConnection::Two(sender))
            }
        }
    }

    fn shared(&self, server: usize) -> Option<http2::SendRequest<RequestBody>> {
        let mut shared = self.servers.get(server)?.shared.borrow_mut();
        if shared.as_ref().is_some_and(http2::SendRequest::is_closed) {
            *shared = None;
        }
        shared.clone()
    }

    /// An idle connection that the server has not closed.
    async fn idle(&self, server: usize) -> Option<UpstreamConnection> {
        let connections = self.servers.get(server)?;
        poll_fn(|context| {
            while let Some(IdleConnection { mut connection, since }) = connections.pop() {
                if timers::since(since) < IDLE && connection.is_ready(context) {
                    return Poll::Ready(Some(connection));
                }
            }
            Poll::Ready(None)
        })
        .await
    }

    /// Keeps a connection for the next request.
    pub(crate) fn keep(&self, server: usize, connection: UpstreamConnection) {
        let Some(connections) = self.servers.get(server) else { return };
        let mut idle = connections.idle.borrow_mut();
        if idle.len() < MOST_IDLE {
            idle.push(IdleConnection { connection, since: timers::now() });
        }
    }

    /// Closes all idle connections. False if there are none.
    fn drop_idle(&self) -> bool {
        let idle: Vec<_> =
            self.servers.iter().flat_map(|server| server.idle.borrow_mut().split_off(0)).collect();
        !idle.is_empty()
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn close_idle(&self) {
        for connections in &self.servers {
            connections.idle.borrow_mut().retain(|idle| timers::since(idle.since) < IDLE);
        }
        self.auth.iter().for_each(|auth| auth.close_idle());
    }

    /// A pseudorandom number (xorshift).
    fn next_random(&self) -> u64 {
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        random
    }
}

impl ServerConnections {
    fn pop(&self) -> Option<IdleConnection> {
        self.idle.borrow_mut().pop()
    }
}

async fn send_shared(
    mut sender: http2::SendRequest<RequestBody>,
    request: Request<RequestBody>,
) -> Result<Response<Incoming>, SendError> {
    if sender.ready().await.is_err() {
        return Err(SendError::NotSent(Box::new(request)));
    }
    sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
        Some(request) => SendError::NotSent(Box::new(request)),
        None => SendError::Sent(error.into_error()),
    })
}
