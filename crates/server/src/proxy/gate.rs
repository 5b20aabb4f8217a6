//! What happens to a request, independent of the version of HTTP: route, decide, forward, report.
//!
//! ```text
//!   admit:   route ──► attributes ──► limiter: pass, or wait for a turn ──► Admitted
//!              │ 404        │ 400           │ 429
//!   forward: upstream server ──► its answer is checked ──► the outcome is reported ──► RateLimit fields
//! ```

use super::access_log::AccessLog;
use super::headers::{self, Forwarding, RequestIds, UpstreamOutcome};
use super::interim::InterimAnswers;
use super::live_routes::{LiveRoutes, RouteTable};
use super::observe::RequestRecord;
use super::piece_room::PieceRoom;
use super::request_body::RequestBody;
use super::routes::{BalanceBy, HostField};
use super::upstream::{ExchangeBounds, Pool, UpstreamBody, UpstreamError, UpstreamGroup};
use crate::backend::Backend;
use crate::bounds;
use crate::metrics::{Metrics, Refused, Tally};
use crate::net::{Account, Drain, after};
use crate::supervise::contained;
use crate::timers;
use crate::web;
use crate::web::{Answer, HeadError, PROBLEM};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use rustls::ClientConfig;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tidegate::http::{HeaderStyle, grpc_refusal, refusal};
use tidegate::{Check, CheckError, Limiter, Priority, Report, Span, Verdict};
use tidegate_policy::{AttributeError, Attributes, NormalPath};

/// The proxy on one worker.
pub(crate) struct Proxy<S> {
    limiter: Limiter<S>,
    style: HeaderStyle,
    live: Arc<LiveRoutes>,
    pools: RefCell<WorkerPools>,
    tls: Option<Arc<ClientConfig>>,
    ids: RequestIds,
    pub(crate) options: ProxyOptions,
    tally: Arc<Tally>,
    metrics: Arc<Metrics>,
    access_log: Option<Rc<AccessLog>>,
    /// Whether the task that closes idle connections runs.
    is_swept: Cell<bool>,
}

/// Settings of the proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProxyOptions {
    /// The most bytes of a request body.
    pub(crate) body_limit: u64,
    /// Whether clients use TLS.
    pub(crate) secure: bool,
}

/// The connections of this worker, for the routes that it saw last.
struct WorkerPools {
    table: Arc<RouteTable>,
    pools: Vec<Rc<Pool>>,
}

/// Whose connection a request came over.
pub(crate) struct ProxyClient {
    pub(crate) peer: IpAddr,
    /// Counts the memory that its requests need.
    pub(crate) account: Rc<Account>,
    pub(crate) drain: Drain,
}

/// A request that may pass.
pub(crate) struct Admitted {
    pool: Rc<Pool>,
    /// The value that decides which server gets the request.
    home: Option<String>,
    /// `None`: the request is not limited.
    verdict: Option<Verdict>,
    cross_origin: bool,
    pub(super) record: RequestRecord,
}

/// How long a request may be held, unless its rule sets `max_wait`.
const DEFAULT_WAIT: Span = Span::from_secs(10);
/// How often idle connections to upstream servers are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// The fields that scripts of other origins may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("RateLimit, RateLimit-Policy, Retry-After");

impl<S: Backend> Proxy<S> {
    pub(crate) fn new(
        limiter: Limiter<S>,
        style: HeaderStyle,
        live: Arc<LiveRoutes>,
        (tls, options): (Option<Arc<ClientConfig>>, ProxyOptions),
        (ids, metrics): (RequestIds, Arc<Metrics>),
    ) -> Self {
        let tally = metrics.tally("proxy");
        let pools = RefCell::new(WorkerPools::new(live.load(), tls.as_ref(), &metrics, &[]));
        let (is_swept, access_log) = (Cell::new(false), None);
        Self {
            limiter,
            style,
            live,
            pools,
            tls,
            ids,
            options,
            tally,
            metrics,
            access_log,
            is_swept,
        }
    }

    /// The same proxy with an access log.
    pub(crate) fn with_access_log(self, access_log: Option<Rc<AccessLog>>) -> Self {
        Self { access_log, ..self }
    }

    /// Decides a request by its head. It may wait here for its turn.
    pub(crate) async fn admit(
        &self,
        head: &Parts,
        client: &ProxyClient,
    ) -> Result<Admitted, Answer> {
        let mut record = RequestRecord::new(self.access_log.as_ref(), head, client.peer);
        let admitted = self.admit_recorded(head, client, &mut record).await;
        admitted.inspect_err(|answer| record.own_answer(answer.status))
    }

    async fn admit_recorded(
        &self,
        head: &Parts,
        client: &ProxyClient,
        record: &mut RequestRecord,
    ) -> Result<Admitted, Answer> {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let pool = self.route(head, target)?;
        record.routed(&pool);
        let values = |name: &str| {
            head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>()
        };
        let method = head.method.as_str();
        let request =
            tidegate::Request { peer: Some(client.peer), method, target, headers: &values };
        let attributes = self.limiter.attributes(&request).map_err(|error| unreadable(&error))?;
        let home = home(&pool, &attributes);
        let attributes = match home.as_deref().and_then(|home| pool.group.home(home)) {
            Some(server) => attributes
                .with("upstream", server.to_string())
                .map_err(|error| unreadable(&error))?,
            None => attributes,
        };
        let cross_origin = head.headers.contains_key(header::ORIGIN);
        // A denied preflight would hide the denial from the page.
        let verdict = if head.method == Method::OPTIONS {
            None
        } else {
            Some(self.decide(&attributes, head, (&client.drain, record)).await?)
        };
        Ok(Admitted { pool, home, verdict, cross_origin, record: mem::take(record) })
    }

    async fn decide(
        &self,
        attributes: &Attributes<'_>,
        head: &Parts,
        (drain, record): (&Drain, &mut RequestRecord),
    ) -> Result<Verdict, Answer> {
        let check = Check::new(attributes).waiting_by_rule(DEFAULT_WAIT);
        let began = timers::now();
        let verdict = match contained(pin!(self.ask(&check, drain, record))).await {
            Ok(Some(verdict)) => verdict,
            Ok(None) => return Err(stopping()),
            Err(_) => self.without_store(&check),
        };
        let verdict = verdict.map_err(|error| {
            Answer::problem(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string())
        })?;
        self.tally.count(&verdict);
        self.tally.took(timers::since(began));
        record.decided(&verdict, S::IN_PROCESS);
        if verdict.allowed() { Ok(verdict) } else { Err(self.refused(&verdict, &head.headers)) }
    }

    /// Asks the limiter, and waits for a turn if a rule says so. `None`: the server stops before the turn has come. What the
    /// request took is given back then.
    async fn ask(
        &self,
        check: &Check<'_>,
        drain: &Drain,
        record: &mut RequestRecord,
    ) -> Option<Result<Verdict, CheckError>> {
        if let Some(verdict) = self.limiter.try_admit(check) {
            return Some(verdict);
        }
        tokio::select! {
            biased;
            verdict = record.holding(self.limiter.admit(check)) => return Some(verdict),
            () = drain.nearly_over.cancelled() => {}
        }
        self.limiter.given_back().await;
        None
    }

    fn without_store(&self, check: &Check<'_>) -> Result<Verdict, CheckError> {
        self.metrics.panicked();
        tracing::error!("a decision met a bug in tidegate; the rules decided without the store");
        self.limiter.check_without_store(check)
    }

    /// The answer to a request that a limit refuses, as gRPC for gRPC requests.
    fn refused(&self, verdict: &Verdict, request: &HeaderMap) -> Answer {
        let kind = request.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let is_grpc = kind.starts_with(b"application/grpc");
        let mut response = if is_grpc {
            let mut response = grpc_refusal(verdict).map(|()| String::new());
            self.style.write(verdict, response.headers_mut());
            response
        } else {
            refusal(verdict, &self.style)
        };
        expose(response.headers_mut(), request.contains_key(header::ORIGIN));
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(header::CONTENT_TYPE);
        let kind = if is_grpc { "application/grpc" } else { PROBLEM };
        let table = Arc::clone(&self.pools.borrow().table);
        let Some(custom) = table.routes.refusals.choose(request).filter(|_| !is_grpc) else {
            return Answer::new(parts.status, kind, body).with_all(&parts.headers);
        };
        let retry_after = parts.headers.get(header::RETRY_AFTER);
        let text = custom.text(retry_after.and_then(|time| time.to_str().ok()).unwrap_or("0"));
        Answer::new(parts.status, "", text)
            .with(header::CONTENT_TYPE, custom.media_type.clone())
            .with_all(&parts.headers)
    }

    // === routes ===

    fn route(&self, head: &Parts, target: &str) -> Result<Rc<Pool>, Answer> {
        let bad = |why: &str| {
            self.metrics.refused(Refused::Malformed);
            Answer::problem(StatusCode::BAD_REQUEST, why)
        };
        let host = headers::host(&head.uri, &head.headers)
            .map_err(|why| bad(&HeadError::Malformed(why).to_string()))?;
        let path = NormalPath::new(target).map_err(|error| bad(&error.to_string()))?;
        let mut pools = self.pools.borrow_mut();
        if !self.live.is(&pools.table) {
            *pools =
                WorkerPools::new(self.live.load(), self.tls.as_ref(), &self.metrics, &pools.pools);
        }
        let group = pools.table.routes.group_of(host, &path);
        group.and_then(|group| pools.pools.get(group).cloned()).ok_or_else(|| {
            self.metrics.refused(Refused::NoRoute);
            Answer::problem(StatusCode::NOT_FOUND, "no route leads to this host and path")
        })
    }

    /// Closes connections to upstream servers that were idle for too long, from now on.
    pub(crate) fn sweep(self: &Rc<Self>) {
        if self.is_swept.replace(true) {
            return;
        }
        let proxy = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let mut ticks = tokio::time::interval(SWEEP_EVERY);
            while let Some(proxy) = proxy.upgrade() {
                proxy.pools.borrow().pools.iter().for_each(|pool| pool.close_idle());
                drop(proxy);
                ticks.tick().await;
            }
        });
    }

    // === forwarding ===

    /// Sends an admitted request to an upstream server, and returns its answer as the client gets it.
    pub(crate) async fn forward(
        &self,
        mut admitted: Admitted,
        mut head: Parts,
        body: RequestBody,
        client: &ProxyClient,
        interim: &InterimAnswers,
    ) -> Result<Response<UpstreamBody>, Answer> {
        let body = admitted.record.counting(body);
        let is_eleven = head.version == http::Version::HTTP_11;
        let upgrade = headers::is_upgrade(&head.headers).filter(|_| is_eleven);
        self.prepare(&admitted, &mut head, client.peer, upgrade.as_ref());
        admitted.record.identified(&head.headers);
        if body.size_hint().exact().is_none() {
            // hyper sends no body with a GET otherwise.
            head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let mut request = Request::from_parts(head, body);
        interim.watch(&mut request);
        let sent = self.send(&mut admitted, request, client, interim).await;
        let checked = sent.and_then(|answer| checked(answer, upgrade.as_ref()));
        let mut answer = match checked {
            Ok(answer) => answer,
            Err(error) => {
                let answer = failed(&error);
                admitted.record.failed(&error, answer.status);
                self.report(&admitted, None, StatusCode::BAD_GATEWAY).await;
                return Err(answer);
            }
        };
        let status = answer.status();
        admitted.record.answered(status);
        let upgraded = upgrade.filter(|_| status == StatusCode::SWITCHING_PROTOCOLS);
        let outcome = headers::to_client(answer.headers_mut(), upgraded.as_ref());
        self.report(&admitted, outcome, status).await;
        if let Some(verdict) = admitted.verdict.as_ref().filter(|_| !status.is_redirection()) {
            self.style.write(verdict, answer.headers_mut());
            expose(answer.headers_mut(), admitted.cross_origin);
        }
        answer.body_mut().keep_record(admitted.record);
        Ok(answer)
    }

    /// Sends a request within the bounds of its group, and waits for the head of the answer.
    async fn send(
        &self,
        admitted: &mut Admitted,
        request: Request<RequestBody>,
        client: &ProxyClient,
        interim: &InterimAnswers,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let held = client.account.hold_for_long(bounds::EXCHANGE).ok_or(UpstreamError::NoRoom)?;
        let until = admitted.pool.group.spec.timeouts.total.map(after);
        let room = PieceRoom::new(Rc::clone(&client.account));
        let bounds = ExchangeBounds { until, room, held };
        let (pool, home) = (&admitted.pool, admitted.home.as_deref());
        let mut sending = pin!(pool.send(request, home, bounds, &mut admitted.record));
        let mut over = until.map(|until| Box::pin(timers::sleep_until(until)));
        poll_fn(|context| {
            let sent = sending.as_mut().poll(context);
            if interim.are_too_many() {
                return Poll::Ready(Err(UpstreamError::Invalid("too many interim answers")));
            }
            if let (Poll::Pending, Some(over)) = (&sent, &mut over) {
                return over.as_mut().poll(context).map(|()| Err(UpstreamError::TimedOut));
            }
            sent
        })
        .await
    }

    /// Changes the head of a request to what the upstream server gets.
    fn prepare(
        &self,
        admitted: &Admitted,
        head: &mut Parts,
        peer: IpAddr,
        upgrade: Option<&HeaderValue>,
    ) {
        // The route was found by this host, so it is valid.
        let host = headers::host(&head.uri, &head.headers).ok().flatten().map(str::to_owned);
        let forwarding = Forwarding {
            peer,
            peer_is_trusted: self.limiter.trusts(peer),
            secure: self.options.secure,
            host: host.as_deref(),
            request_id: &self.ids.next(),
        };
        headers::to_upstream(&mut head.headers, &forwarding, upgrade);
        let named = match admitted.pool.group.spec.host {
            HostField::Keep => host,
            HostField::Upstream => {
                let servers = &admitted.pool.group.spec.servers;
                servers.first().map(super::routes::ServerUrl::authority)
            }
        };
        if let Some(Ok(host)) = named.map(HeaderValue::try_from) {
            head.headers.insert(header::HOST, host);
        }
        if let Some(target) = head.uri.path_and_query().cloned() {
            head.uri = target.into();
        }
        head.version = http::Version::HTTP_11;
        if let Some(verdict) = &admitted.verdict {
            tell(verdict, &mut head.headers);
        }
    }

    /// Reports the outcome of a request, if a rule counts outcomes.
    async fn report(&self, admitted: &Admitted, said: Option<UpstreamOutcome>, status: StatusCode) {
        let receipt = admitted.verdict.as_ref().and_then(Verdict::receipt);
        let Some(receipt) = receipt else { return };
        let report = match said {
            Some(UpstreamOutcome::Failure) => Report::Failure,
            Some(UpstreamOutcome::Success) => Report::Success,
            None if is_failure(status) => Report::Failure,
            None => Report::Success,
        };
        // If the store does not answer, the request stays counted: the error is on the strict side.
        let _ = self.limiter.report(receipt, report).await;
    }
}

impl WorkerPools {
    /// Groups that were there `before` go on counting where they were.
    fn new(
        table: Arc<RouteTable>,
        tls: Option<&Arc<ClientConfig>>,
        metrics: &Metrics,
        before: &[Rc<Pool>],
    ) -> Self {
        let tally = |name: &str| {
            let same = before.iter().find(|pool| pool.group.spec.name == name);
            same.map_or_else(|| metrics.group_tally(name), |pool| Arc::clone(&pool.tally))
        };
        let pool = |group: &Arc<UpstreamGroup>| {
            let seed = getrandom::u64().unwrap_or(0x9e37_79b9_7f4a_7c15);
            Pool::new((Arc::clone(group), tally(&group.spec.name)), tls.cloned(), seed)
        };
        let pools = table.groups.iter().map(pool).collect();
        Self { table, pools }
    }
}

/// Whether a status counts as a failure of the client. Errors of the server do not: an outage must not lock users out.
fn is_failure(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::PAYMENT_REQUIRED
            | StatusCode::FORBIDDEN
            | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// The value by which a server is chosen, if the group is balanced by one.
fn home(pool: &Pool, attributes: &Attributes<'_>) -> Option<String> {
    match &pool.group.spec.balance {
        BalanceBy::LeastInFlight => None,
        // Requests without the attribute have a home too: all the same.
        BalanceBy::Hash(name) => Some(attributes.get(name).unwrap_or_default().into_owned()),
    }
}

/// Tells the upstream server what the rules say about a request.
fn tell(verdict: &Verdict, headers: &mut HeaderMap) {
    if verdict.priority == Priority::Low {
        headers.insert(web::PRIORITY, HeaderValue::from_static("low"));
    }
    let flags: Vec<&str> = verdict.flags().collect();
    if let (false, Ok(flags)) = (flags.is_empty(), HeaderValue::try_from(flags.join(", "))) {
        headers.insert(web::FLAGS, flags);
    }
}

/// Refuses an answer that two readers could understand differently.
fn checked(
    answer: Response<UpstreamBody>,
    upgrade: Option<&HeaderValue>,
) -> Result<Response<UpstreamBody>, UpstreamError> {
    let (status, fields) = (answer.status(), answer.headers());
    headers::check_response(status, fields, answer.version()).map_err(UpstreamError::Invalid)?;
    if status == StatusCode::SWITCHING_PROTOCOLS
        && !upgrade.is_some_and(|upgrade| headers::accepts_upgrade(fields, upgrade))
    {
        return Err(UpstreamError::Invalid("it switches to a protocol that was not asked for"));
    }
    Ok(answer)
}

fn failed(error: &UpstreamError) -> Answer {
    let status = match error {
        UpstreamError::Unreachable | UpstreamError::Broken(_) | UpstreamError::Invalid(_) => {
            StatusCode::BAD_GATEWAY
        }
        UpstreamError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        UpstreamError::Full | UpstreamError::Drained | UpstreamError::NoRoom => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    let answer = Answer::problem(status, &error.to_string());
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return answer.with(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

/// The answer to a request that waits for its turn when the server stops.
fn stopping() -> Answer {
    Answer::problem(StatusCode::SERVICE_UNAVAILABLE, "the server stops; send the request again")
        .with(header::RETRY_AFTER, HeaderValue::from_static("1"))
}

fn unreadable(error: &AttributeError) -> Answer {
    Answer::problem(StatusCode::BAD_REQUEST, &error.to_string())
}

fn expose(headers: &mut HeaderMap, cross_origin: bool) {
    if cross_origin {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}
