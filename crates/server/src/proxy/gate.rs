//! The first half of a request's way, independent of the version of HTTP: its route, and whether and when it may pass.
//!
//! ```text
//!   admit:   route ──► auth server, if the group has one ──► attributes ──► limiter: pass, or wait for a turn ──► seat ──► Admitted
//!              │ 404       │ 401, 403, 429, 502              │ 400           │ 429, or 401 for a bad token       │ 503
//! ```

use super::access_log::AccessLog;
use super::auth_request::AuthAnswer;
use super::headers::{self, RequestIds};
use super::identity::{RequestIdentity, TokenVerifier};
use super::live_routes::{LiveRoutes, RouteTable};
use super::observe::RequestRecord;
use super::piece_room::PieceRoom;
use super::preflight::is_preflight;
use super::routes::BalanceBy;
use super::upstream::{ClientPresence, ExchangeBounds, Pool, SeatRequest, UpstreamGroup};
use crate::backend::Backend;
use crate::bounds;
use crate::decision_logs::DecisionLogs;
use crate::metrics::{Metrics, Refused, Tally};
use crate::net::{Account, Drain};
use crate::supervise::contained;
use crate::timers;
use crate::web::{Answer, HeadError, PROBLEM};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rustls::ClientConfig;
use std::cell::{Cell, RefCell};
use std::mem;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tidegate::http::{HeaderStyle, is_grpc, refusal_to};
use tidegate::{Check, CheckError, Limiter, Span, Verdict};
use tidegate_policy::{AttributeError, Attributes};
use tokio::time::Instant;

/// The proxy on one worker.
pub(crate) struct Proxy<S> {
    pub(super) limiter: Limiter<S>,
    pub(super) style: HeaderStyle,
    live: Arc<LiveRoutes>,
    pools: RefCell<WorkerPools>,
    tls: Option<Arc<ClientConfig>>,
    pub(super) ids: RequestIds,
    pub(crate) options: ProxyOptions,
    tally: Arc<Tally>,
    metrics: Arc<Metrics>,
    access_log: Option<Rc<AccessLog>>,
    decisions: DecisionLogs,
    /// Verifies tokens, if there are keys.
    verifier: Option<TokenVerifier>,
    /// Whether the task that closes idle connections runs.
    is_swept: Cell<bool>,
    /// Requests in flight on this worker over HTTP/1.
    in_flight: Cell<usize>,
}

/// A request in flight, until it is dropped.
pub(crate) struct InFlight<'p>(&'p Cell<usize>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
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

impl ProxyClient {
    /// The memory for an exchange with an upstream server that ends at this instant; `None` if there is none.
    pub(super) fn exchange(
        &self,
        until: Option<Instant>,
        presence: Rc<ClientPresence>,
    ) -> Option<ExchangeBounds> {
        let held = self.account.hold_for_long(bounds::EXCHANGE)?;
        let room = PieceRoom::new(Rc::clone(&self.account));
        Some(ExchangeBounds { until, room, held, presence })
    }
}

/// A request that may pass.
pub(crate) struct Admitted {
    pub(super) pool: Rc<Pool>,
    /// The value that decides which server gets the request.
    pub(super) home: Option<String>,
    /// `None`: the request is not limited.
    pub(super) verdict: Option<Verdict>,
    pub(super) cross_origin: bool,
    pub(super) record: RequestRecord,
    /// What the auth server said, if one was asked.
    pub(super) said: HeaderMap,
}

/// How long a request may be held, unless its rule sets `max_wait`.
const DEFAULT_WAIT: Span = Span::from_secs(10);
/// How often idle connections to upstream servers, and requests with a seat, are looked through.
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
        let (is_swept, in_flight) = (Cell::new(false), Cell::new(0));
        let (access_log, verifier) = (None, None);
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
            decisions: DecisionLogs::default(),
            verifier,
            is_swept,
            in_flight,
        }
    }

    /// The same proxy with an access log.
    pub(crate) fn with_access_log(self, access_log: Option<Rc<AccessLog>>) -> Self {
        Self { access_log, ..self }
    }

    /// The same proxy with a denial log and a recorder.
    pub(crate) fn noting(self, decisions: DecisionLogs) -> Self {
        Self { decisions, ..self }
    }

    /// Verifies tokens with these keys.
    pub(crate) fn verifying_by(self, verifier: Option<TokenVerifier>) -> Self {
        Self { verifier, ..self }
    }

    pub(crate) const fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    /// Counts a request as in flight.
    pub(crate) fn in_flight(&self) -> InFlight<'_> {
        self.in_flight.set(self.in_flight.get().saturating_add(1));
        InFlight(&self.in_flight)
    }

    /// Whether this worker has other requests in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.get() > 0
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
        let said = match &pool.auth {
            None => AuthAnswer::Nothing,
            Some(_) => Box::pin(self.authenticate(&pool, head, (&request, client))).await?,
        };
        let identity = RequestIdentity::of(self.verifier.as_ref(), head, said);
        let attributes = self
            .limiter
            .attributes_verified(&request, &|source| identity.value(source))
            .map_err(|error| unreadable(&error))?;
        let home = home(&pool, &attributes);
        let attributes = match home.as_deref().and_then(|home| pool.group.home(home)) {
            Some(server) => attributes
                .with("upstream", server.to_string())
                .map_err(|error| unreadable(&error))?,
            None => attributes,
        };
        let cross_origin = head.headers.contains_key(header::ORIGIN);
        let address = attributes.get("ip").and_then(|address| address.parse().ok());
        let address = address.unwrap_or(client.peer);
        // A denied preflight would hide the denial from the page.
        let verdict = if is_preflight(head) {
            self.take_for_preflight(&pool, address, head).await?;
            None
        } else {
            let is_bounded = pool.group.seats.is_some();
            Some(self.decide((&attributes, is_bounded), head, (&client.drain, record)).await?)
        };
        // Only now, so that a request with a wrong token has taken from all limits that do not depend on it.
        let said = identity.check().inspect_err(|_| self.metrics.refused(Refused::Unauthorized))?;
        if let Some(seats) = &pool.group.seats {
            let asks = SeatRequest { verdict: verdict.as_ref(), address };
            let seat = match seats.try_enter(&asks) {
                Some(seat) => seat,
                None => Box::pin(self.seat(seats, &asks, (head, client, record))).await?,
            };
            record.hold_seat(pool.held_seats.hold(seat));
        }
        Ok(Admitted { pool, home, verdict, cross_origin, record: mem::take(record), said })
    }

    /// `undoable`: the request may still be shed, and is given back then.
    async fn decide(
        &self,
        (attributes, undoable): (&Attributes<'_>, bool),
        head: &Parts,
        (drain, record): (&Drain, &mut RequestRecord),
    ) -> Result<Verdict, Answer> {
        let check = Check::new(attributes).waiting_by_rule(DEFAULT_WAIT);
        let check = if undoable { check.with_receipt() } else { check };
        let began = timers::now();
        let verdict = match contained(pin!(self.ask(&check, drain, record))).await {
            Ok(Some(verdict)) => verdict,
            Ok(None) => return Err(stopping()),
            Err(_) => self.without_store(&check),
        };
        let mut verdict = verdict.map_err(|error| {
            Answer::problem(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string())
        })?;
        record.hold_permits(self.limiter.hold(&mut verdict));
        self.tally.count(&verdict);
        self.decisions.of_request("proxy", &verdict, &check);
        self.tally.took(timers::since(began));
        record.decided(&verdict, S::IN_PROCESS);
        if verdict.allowed() { Ok(verdict) } else { Err(self.refused(&verdict, head)) }
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
        // On the heap by itself: most requests are decided above.
        let admitting = Box::pin(self.limiter.admit(check));
        tokio::select! {
            biased;
            verdict = record.holding(admitting) => return Some(verdict),
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
    pub(super) fn refused(&self, verdict: &Verdict, request: &Parts) -> Answer {
        let is_grpc = is_grpc(request);
        let mut response = refusal_to(request, verdict, &self.style);
        expose(response.headers_mut(), request.headers.contains_key(header::ORIGIN));
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(header::CONTENT_TYPE);
        let kind = if is_grpc { "application/grpc" } else { PROBLEM };
        let table = Arc::clone(&self.pools.borrow().table);
        let Some(custom) = table.routes.refusals.choose(&request.headers).filter(|_| !is_grpc)
        else {
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
        let mut pools = self.pools.borrow_mut();
        if !self.live.is(&pools.table) {
            *pools =
                WorkerPools::new(self.live.load(), self.tls.as_ref(), &self.metrics, &pools.pools);
        }
        let group = pools.table.routes.group_of(host, target);
        let group = group.map_err(|error| bad(&error.to_string()))?;
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
                for pool in &proxy.pools.borrow().pools {
                    pool.close_idle();
                    pool.held_seats.free_blocked();
                }
                drop(proxy);
                ticks.tick().await;
            }
        });
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

/// The value by which a server is chosen, if the group is balanced by one.
fn home(pool: &Pool, attributes: &Attributes<'_>) -> Option<String> {
    match &pool.group.spec.balance {
        BalanceBy::LeastInFlight => None,
        // Requests without the attribute have a home too: all the same.
        BalanceBy::Hash(name) => Some(attributes.get(name).unwrap_or_default().into_owned()),
    }
}

/// The answer to a request that waits for its turn when the server stops.
pub(super) fn stopping() -> Answer {
    Answer::problem(StatusCode::SERVICE_UNAVAILABLE, "the server stops; send the request again")
        .with(header::RETRY_AFTER, HeaderValue::from_static("1"))
}

pub(super) fn unreadable(error: &AttributeError) -> Answer {
    Answer::problem(StatusCode::BAD_REQUEST, &error.to_string())
}

pub(super) fn expose(headers: &mut HeaderMap, cross_origin: bool) {
    if cross_origin {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}
