//! The middleware: asks the limiter before the inner service, and reports the outcome after it.

use super::body::{BoxedPermit, PermitBody};
use super::{DEFAULT_WAIT, Settings};
use crate::check::Check;
use crate::error::CheckError;
use crate::http::{HeaderStyle, is_grpc, overload_to, refusal_to};
use crate::limiter::Limiter;
use crate::receipt::Report;
use crate::scheduler::{Seat, Shed};
use crate::verdict::Verdict;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_policy::{AttributeError, Attributes};
use tidegate_store::{Memory, Store};
use tower_service::Service;

/// Middleware that applies rate limits to requests of the inner service; created by
/// [`RateLimitLayer`](super::RateLimitLayer).
///
/// A denied request does not reach the inner service. For an admitted request, handlers find the [`Verdict`] in the extensions
/// of the request, as `Arc<Verdict>`.
#[derive(Debug)]
pub struct RateLimit<T, S = Memory> {
    inner: T,
    limiter: Limiter<S>,
    settings: Arc<Settings>,
}

/// The body of the inner service, or that of a response of this middleware.
type Body<B> = Either<PermitBody<B>, Full<Bytes>>;

/// The fields that scripts of other origins may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("RateLimit, RateLimit-Policy, Retry-After");

impl<T, S> RateLimit<T, S> {
    pub(super) const fn new(inner: T, limiter: Limiter<S>, settings: Arc<Settings>) -> Self {
        Self { inner, limiter, settings }
    }
}

impl<T: Clone, S> Clone for RateLimit<T, S> {
    fn clone(&self) -> Self {
        let settings = Arc::clone(&self.settings);
        Self { inner: self.inner.clone(), limiter: self.limiter.clone(), settings }
    }
}

impl<T, S, B, C> Service<Request<B>> for RateLimit<T, S>
where
    T: Service<Request<B>, Response = Response<C>> + Clone + Send + 'static,
    T::Future: Send,
    T::Error: Send,
    S: Store + 'static,
    B: Send + 'static,
    C: Send + 'static,
{
    type Response = Response<Body<C>>;
    type Error = T::Error;
    type Future = ResponseFuture<T::Future, C, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // `poll_ready` made this instance ready, so it serves the request; a clone takes its place.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        if self.settings.skips(&parts) {
            return ResponseFuture::served(inner.call(Request::from_parts(parts, body)), None);
        }
        let gate = Gate { limiter: &self.limiter, settings: &self.settings };
        match gate.try_ask(&parts) {
            Some(Ok(verdict)) if verdict.allowed() => match gate.try_seat(&verdict) {
                Some(seat) => {
                    let (request, after) = gate.admitted((verdict, seat), parts, body);
                    ResponseFuture::served(inner.call(request), Some(after))
                }
                None => {
                    let (limiter, settings) = (self.limiter.clone(), Arc::clone(&self.settings));
                    ResponseFuture::waiting(async move {
                        let gate = Gate { limiter: &limiter, settings: &settings };
                        gate.serve_admitted(inner, verdict, parts, body).await
                    })
                }
            },
            Some(Ok(verdict)) => ResponseFuture::ready(gate.refused(&verdict, &parts)),
            Some(Err(refused)) => ResponseFuture::ready(refused),
            None => {
                let (limiter, settings) = (self.limiter.clone(), Arc::clone(&self.settings));
                ResponseFuture::waiting(async move {
                    let gate = Gate { limiter: &limiter, settings: &settings };
                    gate.serve(inner, parts, body).await
                })
            }
        }
    }
}

/// The limiter and settings for one request. Borrowed, because cloning an `Arc` would make all requests write to one shared
/// reference count.
struct Gate<'l, S> {
    limiter: &'l Limiter<S>,
    settings: &'l Arc<Settings>,
}

/// What remains to be done when the inner service has responded.
struct AfterResponse {
    verdict: Arc<Verdict>,
    style: HeaderStyle,
    cross_origin: bool,
    /// The permit of the request, if a concurrency limit applies to it, and its seat, if there is a scheduler.
    permit: Option<BoxedPermit>,
    /// Reports the outcome, if a rule counts outcomes.
    report: Option<ReportOutcome>,
}

type ReportOutcome = Box<dyn FnOnce(StatusCode) -> Reporting + Send>;

impl<S: Store + 'static> Gate<'_, S> {
    /// Slow path: for requests that may wait, and for remote stores.
    async fn serve<T, B, C>(
        &self,
        inner: T,
        parts: Parts,
        body: B,
    ) -> Result<Response<Body<C>>, T::Error>
    where
        T: Service<Request<B>, Response = Response<C>>,
    {
        match self.ask(&parts).await {
            Ok(verdict) if verdict.allowed() => {
                self.serve_admitted(inner, verdict, parts, body).await
            }
            Ok(verdict) => Ok(self.refused(&verdict, &parts).map(own_body)),
            Err(refused) => Ok(refused.map(own_body)),
        }
    }

    /// Serves a request that the limits admit, as soon as it has a seat.
    async fn serve_admitted<T, B, C>(
        &self,
        mut inner: T,
        verdict: Verdict,
        parts: Parts,
        body: B,
    ) -> Result<Response<Body<C>>, T::Error>
    where
        T: Service<Request<B>, Response = Response<C>>,
    {
        let seat = match self.seat(&verdict).await {
            Ok(seat) => seat,
            Err(shed) => {
                self.give_back(&verdict).await;
                return Ok(overload_to(&parts, &shed).map(Bytes::from).map(own_body));
            }
        };
        let (request, mut after) = self.admitted((verdict, seat), parts, body);
        let answer = inner.call(request).await;
        if let Some(report) = after.report.take() {
            report(status_of(&answer)).await;
        }
        Ok(after.finish(answer?))
    }

    /// A seat, if one is free or none is needed.
    fn try_seat(&self, verdict: &Verdict) -> Option<Option<Seat>> {
        match &self.settings.scheduler {
            None => Some(None),
            Some(scheduler) => scheduler.try_enter(verdict.priority, verdict.turn_key()).map(Some),
        }
    }

    /// Waits for a seat, if one is needed.
    async fn seat(&self, verdict: &Verdict) -> Result<Option<Seat>, Shed> {
        let Some(scheduler) = &self.settings.scheduler else { return Ok(None) };
        let patience = verdict.class().patience();
        scheduler.enter(verdict.priority, verdict.turn_key(), patience).await.map(Some)
    }

    /// Gives back what a request took that is not served.
    async fn give_back(&self, verdict: &Verdict) {
        if let Some(receipt) = verdict.receipt() {
            // If the store does not answer, the request stays counted: the error is on the strict side.
            let _ = self.limiter.report(receipt, Report::Cancelled).await;
        }
    }

    /// Fast path: a decision without waiting; `None` if the request or the store may have to wait.
    fn try_ask(&self, parts: &Parts) -> Option<Result<Verdict, Response<Bytes>>> {
        if !S::IN_PROCESS {
            return None;
        }
        let attributes = match self.settings.attributes(self.limiter, parts) {
            Ok(attributes) => attributes,
            Err(error) => return Some(Err(unreadable(&error))),
        };
        let verdict = self.limiter.try_admit(&self.check(&attributes, parts))?;
        Some(verdict.map_err(|error| undecided(&error)))
    }

    /// Asks the limiter. A request that cannot be decided gets an error response.
    async fn ask(&self, parts: &Parts) -> Result<Verdict, Response<Bytes>> {
        let attributes = self.settings.attributes(self.limiter, parts);
        let attributes = attributes.map_err(|error| unreadable(&error))?;
        let verdict = self.limiter.admit(&self.check(&attributes, parts)).await;
        verdict.map_err(|error| undecided(&error))
    }

    fn check<'c>(&self, attributes: &'c Attributes<'c>, parts: &Parts) -> Check<'c> {
        let check = Check::new(attributes).cost((self.settings.cost)(parts));
        let may_be_shed = self.settings.scheduler.is_some();
        let check = if may_be_shed { check.with_receipt() } else { check };
        match self.settings.max_wait {
            Some(max_wait) => check.waiting(max_wait),
            None => check.waiting_by_rule(DEFAULT_WAIT),
        }
    }

    /// The request with its verdict in the extensions, and what remains to be done after the response.
    fn admitted<B>(
        &self,
        (mut verdict, seat): (Verdict, Option<Seat>),
        mut parts: Parts,
        body: B,
    ) -> (Request<B>, AfterResponse) {
        let permit = self.limiter.hold(&mut verdict);
        let permit = match (permit, seat) {
            (None, None) => None,
            held @ ((Some(_), _) | (_, Some(_))) => {
                let held: BoxedPermit = Box::new(held);
                Some(held)
            }
        };
        let verdict = Arc::new(verdict);
        let cross_origin = parts.headers.contains_key(header::ORIGIN);
        parts.extensions.insert(Arc::clone(&verdict));
        let style = self.settings.style;
        let report = verdict.receipt_to_report().is_some().then(|| self.reporter(&verdict));
        let after = AfterResponse { verdict, style, cross_origin, permit, report };
        (Request::from_parts(parts, body), after)
    }

    /// The response to a denied request: that of the application if it has one, and gRPC for gRPC requests.
    fn refused(&self, verdict: &Verdict, request: &Parts) -> Response<Bytes> {
        let (fields, style) = (&request.headers, &self.settings.style);
        let mut response = match &self.settings.refusal {
            Some(refusal) if !is_grpc(request) => {
                let mut response = refusal(verdict, request);
                complete(response.headers_mut(), verdict, style);
                response
            }
            Some(_) | None => refusal_to(request, verdict, style).map(Bytes::from),
        };
        expose(response.headers_mut(), fields.contains_key(header::ORIGIN));
        response
    }

    /// Prepares the report of the outcome.
    fn reporter(&self, verdict: &Arc<Verdict>) -> ReportOutcome {
        let verdict = Arc::clone(verdict);
        let (limiter, settings) = (self.limiter.clone(), Arc::clone(self.settings));
        Box::new(move |status| {
            Box::pin(async move {
                let Some(receipt) = verdict.receipt() else { return };
                let failed = (settings.failed)(status);
                let report = if failed { Report::Failure } else { Report::Success };
                // If the store does not answer, the request stays counted: the error is on the strict side.
                let _ = limiter.report(receipt, report).await;
            })
        })
    }
}

impl AfterResponse {
    /// Adds the header fields to the response of the inner service.
    fn finish<C>(self, mut response: Response<C>) -> Response<Body<C>> {
        // A redirect leads to another request, whose response has the fields.
        if !response.status().is_redirection() {
            self.style.write(&self.verdict, response.headers_mut());
            expose(response.headers_mut(), self.cross_origin);
        }
        response.map(|body| Either::Left(PermitBody::new(body, self.permit)))
    }
}

/// The status of a response; an error of the inner service counts as 500.
fn status_of<C, E>(answer: &Result<Response<C>, E>) -> StatusCode {
    answer.as_ref().map_or(StatusCode::INTERNAL_SERVER_ERROR, Response::status)
}

pin_project! {
    /// The response future of [`RateLimit`].
    pub struct ResponseFuture<F, C, E> {
        #[pin]
        state: State<F, C, E>,
    }
}

type BoxedResponse<C, E> = Pin<Box<dyn Future<Output = Result<Response<Body<C>>, E>> + Send>>;
type Reporting = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    #[project = StateProjection]
    enum State<F, C, E> {
        /// The middleware responds itself: the request is denied or malformed.
        Ready { response: Option<Response<Bytes>> },
        /// The inner service handles the request.
        Served { #[pin] future: F, after: Option<AfterResponse> },
        /// The inner service has responded, and the outcome is being reported.
        Reporting { reporting: Reporting, answer: Option<(Result<Response<C>, E>, AfterResponse)> },
        /// The slow path.
        Waiting { future: BoxedResponse<C, E> },
    }
}

impl<F, C, E> ResponseFuture<F, C, E> {
    const fn ready(response: Response<Bytes>) -> Self {
        Self { state: State::Ready { response: Some(response) } }
    }

    const fn served(future: F, after: Option<AfterResponse>) -> Self {
        Self { state: State::Served { future, after } }
    }

    fn waiting(
        future: impl Future<Output = Result<Response<Body<C>>, E>> + Send + 'static,
    ) -> Self {
        Self { state: State::Waiting { future: Box::pin(future) } }
    }
}

impl<F, C, E> Future for ResponseFuture<F, C, E>
where
    F: Future<Output = Result<Response<C>, E>>,
{
    type Output = Result<Response<Body<C>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Ready { response } => {
                    return response
                        .take()
                        .map_or(Poll::Pending, |response| Poll::Ready(Ok(response.map(own_body))));
                }
                StateProjection::Waiting { future } => return future.as_mut().poll(context),
                StateProjection::Served { future, after } => {
                    let answer = ready!(future.poll(context));
                    let Some(mut after) = after.take() else {
                        return Poll::Ready(answer.map(|response| response.map(unlimited)));
                    };
                    let Some(report) = after.report.take() else {
                        return Poll::Ready(answer.map(|response| after.finish(response)));
                    };
                    let reporting = report(status_of(&answer));
                    State::Reporting { reporting, answer: Some((answer, after)) }
                }
                StateProjection::Reporting { reporting, answer } => {
                    ready!(reporting.as_mut().poll(context));
                    return answer.take().map_or(Poll::Pending, |(answer, after)| {
                        Poll::Ready(answer.map(|response| after.finish(response)))
                    });
                }
            };
            state.set(next);
        }
    }
}

/// The body of a response to a request that is not limited.
fn unlimited<B, F>(body: B) -> Either<PermitBody<B>, F> {
    Either::Left(PermitBody::new(body, None))
}

fn own_body<B>(bytes: Bytes) -> Body<B> {
    Either::Right(Full::new(bytes))
}

fn unreadable(error: &AttributeError) -> Response<Bytes> {
    plain(StatusCode::BAD_REQUEST, &error.to_string())
}

fn undecided(error: &CheckError) -> Response<Bytes> {
    plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
}

fn plain(status: StatusCode, detail: &str) -> Response<Bytes> {
    let body = serde_json::json!({ "status": status.as_u16(), "detail": detail }).to_string();
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Adds the fields of a denial that the response of the application does not have yet.
fn complete(headers: &mut HeaderMap, verdict: &Verdict, style: &HeaderStyle) {
    let mut fields = HeaderMap::new();
    // A denial is valid only for the moment; RFC 6585 forbids caches to store it.
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    style.write(verdict, &mut fields);
    for (name, value) in &fields {
        headers.entry(name).or_insert_with(|| value.clone());
    }
}

fn expose(headers: &mut HeaderMap, cross_origin: bool) {
    if cross_origin {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}
