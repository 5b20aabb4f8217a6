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
use crate::desk::Desk;
use crate::metrics::Refused;
use crate::net::{Account, Drain};
use crate::web::{Answer, HeadError, PROBLEM};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rustls::ClientConfig;
use std::cell::{Cell, RefCell};
use std::mem;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tidegate::http::{HeaderStyle, is_grpc, refusal_to};
use tidegate::{Check, CheckError, Cost, RuleLimit, Span, Verdict};
use tidegate_policy::{AttributeError, Attributes};
use tokio::time::Instant;

/// The proxy on one worker.
pub(crate) struct Proxy<S> {
    pub(crate) parts: ProxyParts<S>,
    pools: RefCell<WorkerPools>,
    /// Whether the task that closes idle connections runs.
    is_swept: Cell<bool>,
    /// Requests in flight on this worker over HTTP/1.
    in_flight: Cell<usize>,
}

/// What the proxy of a worker is built from.
pub(crate) struct ProxyParts<S> {
    pub(crate) desk: Desk<S>,
    pub(crate) style: HeaderStyle,
    pub(crate) live: Arc<LiveRoutes>,
    /// For connections to upstream servers.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) ids: RequestIds,
    pub(crate) options: ProxyOptions,
    pub(crate) access_log: Option<Rc<AccessLog>>,
    /// Verifies tokens, if there are keys.
    pub(crate) verifier: Option<TokenVerifier>,
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

/// A request on its way through the gate.
pub(super) struct ArrivingRequest<'r> {
    pub(super) head: &'r Parts,
    pub(super) client: &'r ProxyClient,
    pub(super) record: RequestRecord,
}

/// Why a request has no decision.
#[derive(Debug, thiserror::Error)]
enum Undecided {
    #[error("the server stops")]
    Stopping,
    #[error(transparent)]
    Impossible(#[from] CheckError),
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
    pub(crate) fn new(parts: ProxyParts<S>) -> Self {
        let pools = WorkerPools::new(&parts, &[]);
        let (is_swept, in_flight) = (Cell::new(false), Cell::new(0));
        Self { parts, pools: RefCell::new(pools), is_swept, in_flight }
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
        let record = RequestRecord::new(self.parts.access_log.as_ref(), head, client.peer);
        let mut arrival = ArrivingRequest { head, client, record };
        let admitted = self.admit_recorded(&mut arrival).await;
        admitted.inspect_err(|answer| arrival.record.own_answer(answer.status))
    }

    async fn admit_recorded(&self, arrival: &mut ArrivingRequest<'_>) -> Result<Admitted, Answer> {
        let ArrivingRequest { head, client, .. } = *arrival;
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let pool = self.route(head, target)?;
        arrival.record.routed(&pool);
        let values = |name: &str| {
            head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>()
        };
        let method = head.method.as_str();
        let request =
            tidegate::Request { peer: Some(client.peer), method, target, headers: &values };
        let said = match &pool.auth {
            None => AuthAnswer::Nothing,
            Some(_) => Box::pin(self.authenticate(&pool, &request, arrival)).await?,
        };
        let identity = RequestIdentity::of(self.parts.verifier.as_ref(), head, said);
        let limiter = &self.parts.desk.limiter;
        let attributes = limiter
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
            let check = Check::new(&attributes).waiting_by_rule(DEFAULT_WAIT);
            // A request that waits for a seat may still be shed, and is given back then.
            let may_be_shed = pool.group.seats.is_some();
            let check = if may_be_shed { check.with_receipt() } else { check };
            Some(self.decide(&check, arrival).await?)
        };
        // Only now, so that a request with a wrong token has taken from all limits that do not depend on it.
        let said = identity
            .check()
            .inspect_err(|_| self.parts.desk.metrics().refused(Refused::Unauthorized))?;
        if let Some(seats) = &pool.group.seats {
            let asks = SeatRequest { verdict: verdict.as_ref(), address };
            let seat = match seats.try_enter(&asks) {
                Some(seat) => seat,
                None => Box::pin(self.seat(seats, &asks, arrival)).await?,
            };
            arrival.record.hold_seat(pool.held_seats.hold(seat));
        }
        let record = mem::take(&mut arrival.record);
        Ok(Admitted { pool, home, verdict, cross_origin, record, said })
    }

    async fn decide(
        &self,
        check: &Check<'_>,
        arrival: &mut ArrivingRequest<'_>,
    ) -> Result<Verdict, Answer> {
        let ask = self.ask(check, arrival);
        let mut verdict = self.parts.desk.decided(check, ask).await.map_err(|no| match no {
            Undecided::Stopping => stopping(),
            Undecided::Impossible(error) => impossible(&error),
        })?;
        arrival.record.hold_permits(self.parts.desk.limiter.hold(&mut verdict));
        arrival.record.decided(&verdict, S::IN_PROCESS);
        if verdict.allowed() { Ok(verdict) } else { Err(self.refused(&verdict, arrival.head)) }
    }

    /// Asks the limiter, and waits for a turn if a rule says so. If the server stops before the turn has come, what the request took is
    /// given back.
    async fn ask(
        &self,
        check: &Check<'_>,
        arrival: &mut ArrivingRequest<'_>,
    ) -> Result<Verdict, Undecided> {
        if let Some(verdict) = self.parts.desk.limiter.try_admit(check) {
            return Ok(verdict?);
        }
        // On the heap by itself: most requests are decided above.
        let admitting = Box::pin(self.parts.desk.limiter.admit(check));
        tokio::select! {
            biased;
            verdict = arrival.record.holding(admitting) => return Ok(verdict?),
            () = arrival.client.drain.nearly_over.cancelled() => {}
        }
        self.parts.desk.limiter.given_back().await;
        Err(Undecided::Stopping)
    }

    /// Takes from a limit that the routes file sets beside the policy, if there is one.
    pub(super) async fn take_from(
        &self,
        limit: Option<&RuleLimit>,
        key: &str,
        head: &Parts,
    ) -> Result<(), Answer> {
        let Some(limit) = limit else { return Ok(()) };
        let taken = self.parts.desk.limiter.take(key, limit, Cost::ONE, Span::ZERO).await;
        let verdict = taken.map_err(|error| impossible(&error))?;
        if verdict.allowed() { Ok(()) } else { Err(self.refused(&verdict, head)) }
    }

    /// The answer to a request that a limit refuses, as gRPC for gRPC requests.
    pub(super) fn refused(&self, verdict: &Verdict, request: &Parts) -> Answer {
        let is_grpc = is_grpc(request);
        let mut response = refusal_to(request, verdict, &self.parts.style);
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
            self.parts.desk.metrics().refused(Refused::Malformed);
            Answer::problem(StatusCode::BAD_REQUEST, why)
        };
        let host = headers::host(&head.uri, &head.headers)
            .map_err(|why| bad(&HeadError::Malformed(why).to_string()))?;
        let mut pools = self.pools.borrow_mut();
        if !self.parts.live.is(&pools.table) {
            *pools = WorkerPools::new(&self.parts, &pools.pools);
        }
        let group = pools.table.routes.group_of(host, target);
        let group = group.map_err(|error| bad(&error.to_string()))?;
        group.and_then(|group| pools.pools.get(group).cloned()).ok_or_else(|| {
            self.parts.desk.metrics().refused(Refused::NoRoute);
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
    fn new<S: Backend>(parts: &ProxyParts<S>, before: &[Rc<Pool>]) -> Self {
        let table = parts.live.load();
        let tally = |name: &str| {
            let same = before.iter().find(|pool| pool.group.spec.name == name);
            same.map_or_else(
                || parts.desk.metrics().group_tally(name),
                |pool| Arc::clone(&pool.tally),
            )
        };
        let pool = |group: &Arc<UpstreamGroup>| {
            let seed = getrandom::u64().unwrap_or(0x9e37_79b9_7f4a_7c15);
            Pool::new((Arc::clone(group), tally(&group.spec.name)), parts.tls.clone(), seed)
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

/// The answer to a request about which the rules cannot decide.
fn impossible(error: &CheckError) -> Answer {
    Answer::problem(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string())
}

pub(super) fn unreadable(error: &AttributeError) -> Answer {
    Answer::problem(StatusCode::BAD_REQUEST, &error.to_string())
}

pub(super) fn expose(headers: &mut HeaderMap, cross_origin: bool) {
    if cross_origin {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}
