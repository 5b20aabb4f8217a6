//! The service: asks before, tells after.

use super::Settings;
use crate::check::Check;
use crate::http::{grpc_refusal, refusal};
use crate::limiter::Limiter;
use crate::receipt::Report;
use crate::verdict::Verdict;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate_store::{Memory, Store};
use tower_service::Service;

/// A service behind a limiter. Handlers find the [`Verdict`] in the request's extensions, as `Arc<Verdict>`.
#[derive(Debug)]
pub struct RateLimit<T, S = Memory> {
    inner: T,
    limiter: Limiter<S>,
    settings: Arc<Settings>,
}

/// The service's own body, or one of ours.
type Body<B> = Either<B, Full<Bytes>>;

/// What scripts of other origins may read.
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
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, T::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was ready serves this request; its clone takes its place.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let gate = Gate { limiter: self.limiter.clone(), settings: Arc::clone(&self.settings) };
        Box::pin(gate.serve(inner, request))
    }
}

/// What one request needs of the layer.
struct Gate<S> {
    limiter: Limiter<S>,
    settings: Arc<Settings>,
}

impl<S: Store + 'static> Gate<S> {
    async fn serve<T, B, C>(
        self,
        mut inner: T,
        request: Request<B>,
    ) -> Result<Response<Body<C>>, T::Error>
    where
        T: Service<Request<B>, Response = Response<C>>,
    {
        if request.method() == Method::OPTIONS && !self.settings.limit_options {
            return Ok(inner.call(request).await?.map(Either::Left));
        }
        let (mut parts, body) = request.into_parts();
        let verdict = match self.ask(&parts).await {
            Ok(verdict) => Arc::new(verdict),
            Err(refused) => return Ok(refused.map(ours)),
        };
        let cross_origin = parts.headers.contains_key(header::ORIGIN);
        if !verdict.allowed() {
            return Ok(self.refused(&verdict, &parts.headers, cross_origin).map(ours));
        }
        parts.extensions.insert(Arc::clone(&verdict));
        let answer = inner.call(Request::from_parts(parts, body)).await;
        let status = answer.as_ref().map_or(StatusCode::INTERNAL_SERVER_ERROR, Response::status);
        self.report(&verdict, status).await;
        let mut response = answer?;
        // A redirect is followed by another request, which will tell.
        if !status.is_redirection() {
            self.settings.style.write(&verdict, response.headers_mut());
            expose(response.headers_mut(), cross_origin);
        }
        Ok(response.map(Either::Left))
    }

    /// Asks the limiter; whoever cannot be asked about is answered by what comes back.
    async fn ask(&self, parts: &Parts) -> Result<Verdict, Response<String>> {
        let attributes = self
            .settings
            .attributes(&self.limiter, parts)
            .map_err(|error| plain(StatusCode::BAD_REQUEST, &error.to_string()))?;
        let check = Check::new(&attributes)
            .cost((self.settings.cost)(parts))
            .waiting(self.settings.max_wait);
        let verdict = self.limiter.admit(&check).await;
        verdict.map_err(|error| plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()))
    }

    fn refused(
        &self,
        verdict: &Verdict,
        request: &HeaderMap,
        cross_origin: bool,
    ) -> Response<String> {
        let kind = request.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let mut response = if kind.starts_with(b"application/grpc") {
            let mut response = grpc_refusal(verdict).map(|()| String::new());
            self.settings.style.write(verdict, response.headers_mut());
            response
        } else {
            refusal(verdict, &self.settings.style)
        };
        expose(response.headers_mut(), cross_origin);
        response
    }

    /// Tells what became of the request, if a rule counts outcomes.
    async fn report(&self, verdict: &Verdict, status: StatusCode) {
        let Some(receipt) = verdict.receipt() else { return };
        let failed = (self.settings.failed)(status);
        let report = if failed { Report::Failure } else { Report::Success };
        // A store that is gone counts it as it was taken: for the strict side.
        let _ = self.limiter.report(receipt, report).await;
    }
}

fn ours<B>(text: String) -> Body<B> {
    Either::Right(Full::from(text))
}

fn plain(status: StatusCode, detail: &str) -> Response<String> {
    let body = serde_json::json!({ "status": status.as_u16(), "detail": detail }).to_string();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn expose(headers: &mut HeaderMap, cross_origin: bool) {
    if cross_origin {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}
