//! Middleware that applies rate limits to a tower [`Service`] over HTTP: axum, hyper, tonic. (Feature `tower`.)
//!
//! ```text
//!   request ──► attributes ──► limiter ──► inner service ──► response + RateLimit fields
//!                               │                            └─ 401, 403, 422 or 5xx is reported as a failure
//!                               └─ denied: 429 problem+json, or gRPC RESOURCE_EXHAUSTED
//! ```
//!
//! [`Service`]: https://docs.rs/tower-service/latest/tower_service/trait.Service.html
//!
//! [`RateLimitLayer`] wraps a service in the [`RateLimit`] middleware:
//!
//! ```
//! use http::{Request, Response};
//! use tidegate::tower::RateLimitLayer;
//! use tidegate::{Limiter, Policy};
//! use tower::{Service, ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [2/h] }] }")?;
//! let mut service = ServiceBuilder::new()
//!     .layer(RateLimitLayer::new(Limiter::in_memory(policy)?))
//!     .service_fn(|_: Request<String>| async {
//!         Ok::<_, std::convert::Infallible>(Response::new("hello".to_owned()))
//!     });
//!
//! for status in [200, 200, 429] {
//!     let response = service.ready().await?.call(Request::new(String::new())).await?;
//!     assert_eq!(response.status(), status);
//!     assert!(response.headers().contains_key("ratelimit"));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Malformed requests
//!
//! A request with a malformed path is answered with 400. So is a request with several different values of a cookie, query
//! parameter or header field that the policy reads: the service might use another value than the rules do.
//!
//! # Concurrency limits
//!
//! A request holds its permits until the body of its response has ended or was dropped. If the client goes away before that,
//! the permits are returned, too.
//!
//! # Your own refusals
//!
//! A denied request is answered with problem details as JSON. [`RateLimitLayer::refusal`] replaces them.
//!
//! # Browsers
//!
//! [Preflight requests](crate::http::is_preflight) are not limited, unless [`RateLimitLayer::limit_options`] is set: a denied
//! preflight would hide the denial from the page. All other `OPTIONS` requests are limited. Any client can send requests that look
//! like preflights, so limit them if your service does not answer them at once. Responses to other origins list the fields in
//! `Access-Control-Expose-Headers`, so that scripts can read when to try again. Put this layer *inside* of a CORS layer, so
//! that denials carry the CORS headers, too.

mod body;
mod service;

pub use body::PermitBody;
pub use service::{RateLimit, ResponseFuture};

use crate::http::{HeaderStyle, is_preflight};
use crate::limiter::Limiter;
use crate::scheduler::Scheduler;
use crate::verdict::Verdict;
use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, HeaderValue, Response, StatusCode};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tidegate_core::{Cost, Span};
use tidegate_policy::{AttributeError, Attributes, Request};
use tidegate_store::{Memory, Store};
use tower_layer::Layer;

/// Applies the rules of a [`Limiter`] to requests of the inner service.
///
/// This is a [`Layer`]: [`Layer::layer`] wraps a service in [`RateLimit`]. Cloning it is cheap. A setter on a clone changes
/// only that clone.
///
/// ```
/// use axum::{Router, body::Body, routing::get};
/// use http::Request;
/// use tidegate::tower::RateLimitLayer;
/// use tidegate::{Limiter, Policy};
/// use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [ip], limits: [5/h] }] }")?;
/// let layer = RateLimitLayer::new(Limiter::in_memory(policy)?)
///     .peer(|extensions| extensions.get::<std::net::SocketAddr>().map(|address| address.ip()))
///     .cost(|request| if request.method == "POST" { 4 } else { 1 });
/// let app = Router::new().route("/", get(|| async { "hello" }).post(|| async { "done" })).layer(layer);
///
/// for (method, status) in [("POST", 200), ("POST", 429), ("GET", 200), ("GET", 429)] {
///     let request = Request::builder().method(method).uri("/").body(Body::empty())?;
///     assert_eq!(app.clone().oneshot(request).await?.status(), status);
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`Layer`]: https://docs.rs/tower-layer/latest/tower_layer/trait.Layer.html
/// [`Layer::layer`]: https://docs.rs/tower-layer/latest/tower_layer/trait.Layer.html#tymethod.layer
#[derive(Debug)]
pub struct RateLimitLayer<S = Memory> {
    limiter: Limiter<S>,
    settings: Arc<Settings>,
}

type PeerOf = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;
type AttributesOf = dyn Fn(&Parts) -> Result<Attributes<'static>, AttributeError> + Send + Sync;
type SkipOf = dyn Fn(&Parts) -> bool + Send + Sync;
type RefusalOf = dyn Fn(&Verdict, &Parts) -> Response<Bytes> + Send + Sync;

/// How the layer reads requests and writes responses. Clones share the functions.
#[derive(Clone)]
struct Settings {
    peer: Arc<PeerOf>,
    /// Adds to what `identity` of the policy finds, and replaces it.
    attributes: Option<Arc<AttributesOf>>,
    /// `None`: every request is limited, apart from preflight requests.
    skip: Option<Arc<SkipOf>>,
    cost: Arc<dyn Fn(&Parts) -> u64 + Send + Sync>,
    /// `None`: denied requests get problem details.
    refusal: Option<Arc<RefusalOf>>,
    failed: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
    /// `None`: as the rules say.
    max_wait: Option<Span>,
    limit_options: bool,
    style: HeaderStyle,
    /// Bounds how many requests the inner service has at a time.
    scheduler: Option<Scheduler>,
}

/// How long a request may be held, unless its rule sets `max_wait`.
const DEFAULT_WAIT: Span = Span::from_secs(10);

// === impl RateLimitLayer ===

impl<S: Store> RateLimitLayer<S> {
    /// Creates a layer that asks this limiter. The attributes of a request (user, address, path and so on) are derived by
    /// `identity` of the policy.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        let settings = Settings {
            peer: Arc::new(|extensions| extensions.get::<SocketAddr>().map(SocketAddr::ip)),
            attributes: None,
            skip: None,
            cost: Arc::new(|_| Cost::ONE.get()),
            refusal: None,
            failed: Arc::new(is_failure),
            max_wait: None,
            limit_options: false,
            style: HeaderStyle::default(),
            scheduler: None,
        };
        Self { limiter, settings: Arc::new(settings) }
    }

    /// Sets how the address of the peer is found in the extensions of a request. The default looks for a [`SocketAddr`]; with
    /// axum, look for `ConnectInfo<SocketAddr>`.
    ///
    /// A request without an address counts as `0.0.0.0`. So if the address is never found, all clients share one counter:
    /// that is soon noticed, and safe.
    #[must_use]
    pub fn peer(
        self,
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.peer = Arc::new(peer))
    }

    /// Adds attributes that the service knows, such as the user that it authenticated and the plan that this user pays for
    /// (`tier`).
    ///
    /// The function is called after `identity` of the policy was applied. An attribute that it sets replaces the one of the same
    /// name. All others stay, so rules by `path`, `method` and `ip` apply as they do without this function. An error of the
    /// function is answered with 400.
    ///
    /// Attributes that the policy reads from tokens or from an auth server (`jwt:sub`, `auth:x-user`) are absent unless the
    /// function sets them, because the layer does not verify tokens.
    ///
    /// ```
    /// use http::Request;
    /// use tidegate::tower::RateLimitLayer;
    /// use tidegate::{Attributes, Limiter, Policy};
    /// # use http::Response;
    /// # use tower::{Layer, ServiceExt, service_fn};
    ///
    /// /// What the authentication of this service leaves in the extensions of a request.
    /// #[derive(Clone)]
    /// struct User { name: &'static str, plan: &'static str }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::parse("
    /// version: 1
    /// tiers: { default: free, known: [free, pro] }
    /// rules:
    ///   - { name: exports, match: { path: /export }, key: [user|ip], limits: [1/h], tiers: { pro: { scale: 3 } } }
    /// ")?;
    /// let layer = RateLimitLayer::new(Limiter::in_memory(policy)?).attributes(|request| {
    ///     match request.extensions.get::<User>() {
    ///         Some(user) => Attributes::new().with("user", user.name)?.with("tier", user.plan),
    ///         None => Ok(Attributes::new()), // without a user, the address counts
    ///     }
    /// });
    /// # let service = layer.layer(service_fn(async |_: Request<String>| {
    /// #     Ok::<_, std::convert::Infallible>(Response::new("rows".to_owned()))
    /// # }));
    /// # let ask = async |user: Option<User>| {
    /// #     let mut request = Request::builder().uri("/export").body(String::new()).unwrap();
    /// #     user.map(|user| request.extensions_mut().insert(user));
    /// #     service.clone().oneshot(request).await.unwrap().status()
    /// # };
    /// let alice = User { name: "alice", plan: "pro" };
    /// for status in [200, 200, 200, 429] {
    ///     assert_eq!(ask(Some(alice.clone())).await, status); // the function says nothing about the path
    /// }
    /// for status in [200, 429] {
    ///     assert_eq!(ask(None).await, status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn attributes(
        self,
        attributes: impl Fn(&Parts) -> Result<Attributes<'static>, AttributeError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.with(|settings| settings.attributes = Some(Arc::new(attributes)))
    }

    /// Sets which requests are not limited, such as health checks. They reach the inner service without a decision, are not
    /// counted, and their responses have no `RateLimit` fields.
    ///
    /// ```
    /// use tidegate::tower::RateLimitLayer;
    /// use tidegate::{Limiter, Policy};
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
    /// let layer = RateLimitLayer::new(Limiter::in_memory(policy)?)
    ///     .skip(|request| request.uri.path() == "/healthz");
    /// # let service = layer.layer(service_fn(async |_: Request<String>| {
    /// #     Ok::<_, std::convert::Infallible>(Response::new("well".to_owned()))
    /// # }));
    /// for (path, status) in [("/", 200), ("/", 429), ("/healthz", 200), ("/healthz", 200)] {
    ///     let request = Request::builder().uri(path).body(String::new())?;
    ///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.skip = Some(Arc::new(skip)))
    }

    /// Sets the cost of each request. The default is 1. A cost above what a limit allows at a time (the `burst` of a token bucket) is
    /// always refused.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Arc::new(cost))
    }

    /// Sets the response to a denied request: status, header fields and body. The default is status 429 with problem details
    /// as JSON.
    ///
    /// The layer adds `RateLimit`, `RateLimit-Policy`, `Retry-After` and `Cache-Control: no-store`. A field that the response
    /// already has stays as it is. The function is not called for gRPC requests, whose clients can only read a gRPC status.
    ///
    /// ```
    /// use http::{Response, StatusCode, header};
    /// use tidegate::tower::RateLimitLayer;
    /// use tidegate::{Limiter, Policy};
    /// # use http::Request;
    /// # use http_body_util::BodyExt;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [], limits: [1/h] }] }")?;
    /// let layer = RateLimitLayer::new(Limiter::in_memory(policy)?).refusal(|verdict, request| {
    ///     let seconds = verdict.retry_after().map_or(0, |wait| wait.as_secs_ceil());
    ///     let text = format!("{} is busy, please come back in {seconds} s\n", request.uri.path());
    ///     let mut response = Response::new(text);
    ///     *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    ///     response
    /// });
    /// # let service = layer.layer(service_fn(async |_: Request<String>| {
    /// #     Ok::<_, std::convert::Infallible>(Response::new("first\n".to_owned()))
    /// # }));
    /// # let ask = async || {
    /// #     let request = Request::builder().uri("/books").body(String::new()).unwrap();
    /// #     service.clone().oneshot(request).await.unwrap()
    /// # };
    /// # ask().await;
    /// let second = ask().await;
    /// assert_eq!(second.status(), 429);
    /// assert!(second.headers().contains_key(header::RETRY_AFTER));
    /// let body = second.into_body().collect().await?.to_bytes();
    /// assert!(body.starts_with(b"/books is busy, please come back in "));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn refusal<B: Into<Bytes>>(
        self,
        refusal: impl Fn(&Verdict, &Parts) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        let refusal =
            move |verdict: &Verdict, request: &Parts| refusal(verdict, request).map(Into::into);
        self.with(|settings| settings.refusal = Some(Arc::new(refusal)))
    }

    /// Sets which responses are failures, for rules with `count: failures` or `count: successes`. The default is 401, 403, 422
    /// and 5xx.
    #[must_use]
    pub fn failures(self, failed: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.failed = Arc::new(failed))
    }

    /// Sets how long a request may be held, for its turn in a leaky bucket or under `on_limit: delay`. A rule's own `max_wait`
    /// applies if it is shorter. By default the rules decide, and a rule without `max_wait` holds a request for up to 10 s.
    #[must_use]
    pub fn max_wait(self, max_wait: Span) -> Self {
        self.with(|settings| settings.max_wait = Some(max_wait))
    }

    /// Also limits [preflight requests](crate::http::is_preflight).
    #[must_use]
    pub fn limit_options(self) -> Self {
        self.with(|settings| settings.limit_options = true)
    }

    /// Sets which header fields are written into responses.
    #[must_use]
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|settings| settings.style = style)
    }

    /// Lets at most as many requests into the inner service at a time as this scheduler has seats. When all are taken, requests
    /// wait by their priority class and their key. A request that waits too long gets 503, and what it took is given back. The
    /// seat is held until the body of the response has ended.
    ///
    /// Build the scheduler with the classes of the policy. A request without a verdict (a preflight) needs no seat.
    ///
    /// ```
    /// use tidegate::tower::RateLimitLayer;
    /// use tidegate::{Limiter, Policy, Scheduler, SchedulerSettings};
    /// let policy = Policy::parse("
    /// version: 1
    /// rules:
    ///   - { name: payments, match: { path: /payments/** }, priority: critical }
    ///   - { name: everyone, key: [ip], limits: [15/s] }")?;
    /// let classes = policy.classes().clone();
    /// let scheduler = Scheduler::new(SchedulerSettings { classes, limit: Some(8), ..Default::default() })?;
    /// let layer = RateLimitLayer::new(Limiter::in_memory(policy)?).scheduled_by(scheduler);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn scheduled_by(self, scheduler: Scheduler) -> Self {
        self.with(|settings| settings.scheduler = Some(scheduler))
    }

    /// Copy on write, so that layers and services that share the settings keep theirs.
    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Clone for RateLimitLayer<S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), settings: Arc::clone(&self.settings) }
    }
}

impl<S, T> Layer<T> for RateLimitLayer<S> {
    type Service = RateLimit<T, S>;

    fn layer(&self, inner: T) -> RateLimit<T, S> {
        RateLimit::new(inner, self.limiter.clone(), Arc::clone(&self.settings))
    }
}

fn is_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 422) || status.is_server_error()
}

// === impl Settings ===

impl Settings {
    /// Whether a request is not limited.
    fn skips(&self, request: &Parts) -> bool {
        let is_exempt = !self.limit_options && is_preflight(request);
        is_exempt || self.skip.as_ref().is_some_and(|skip| skip(request))
    }

    /// The attributes of a request.
    fn attributes<'r, S: Store>(
        &self,
        limiter: &Limiter<S>,
        parts: &'r Parts,
    ) -> Result<Attributes<'r>, AttributeError> {
        let values = |name: &str| -> Vec<&'r [u8]> {
            parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
        };
        let peer = (self.peer)(&parts.extensions).unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let method = parts.method.as_str();
        let request = Request { peer: Some(peer), method, target, headers: &values };
        let Some(known) = &self.attributes else { return limiter.attributes(&request) };
        // Only a service verifies tokens, so such attributes are left to its function.
        let found = limiter.attributes_verified(&request, &|_| None)?;
        let attributes = found.with_all(known(parts)?);
        limiter.accepts(&attributes)?;
        Ok(attributes)
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("max_wait", &self.max_wait).finish_non_exhaustive()
    }
}
