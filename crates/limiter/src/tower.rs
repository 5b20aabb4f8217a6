//! A layer in front of a service: axum, hyper, tonic, anything that tower knows.
//!
//! ```text
//!   request ──► attributes ──► admit ──► service ──► response + RateLimit fields
//!                               │                       └─ 401, 403, 422, 5xx: reported as a failure
//!                               └─ 429 problem+json, or gRPC RESOURCE_EXHAUSTED
//! ```
//!
//! A path that cannot be read, and different values of a cookie, a query parameter or a header field that the policy reads,
//! are answered 400: the service might read them otherwise than the rules do.
//!
//! `OPTIONS` is not limited: a browser asks before it sends, and a refused preflight hides the refusal. The
//! fields are exposed to scripts of other origins, so that a page can read when to come back. Put the layer
//! *inside* of a CORS layer, so that refusals carry its headers too.

mod service;

pub use service::{RateLimit, ResponseFuture};

use crate::http::HeaderStyle;
use crate::limiter::Limiter;
use http::request::Parts;
use http::{Extensions, HeaderValue, StatusCode};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tidegate_core::{Cost, Span};
use tidegate_policy::{AttributeError, Attributes, Request};
use tidegate_store::{Memory, Store};
use tower_layer::Layer;

/// Puts a limiter in front of services. A clone can be changed by itself: what shares its settings keeps them.
///
/// ```
/// use tidegate::tower::RateLimitLayer;
/// use tidegate::{Limiter, Policy};
/// let policy = Policy::parse("{ version: 1, rules: [{ name: all, key: [ip], limits: [15/s] }] }")?;
/// let layer = RateLimitLayer::new(Limiter::in_memory(policy)?)
///     .peer(|extensions| extensions.get::<std::net::SocketAddr>().map(|address| address.ip()))
///     .cost(|request| if request.method == "POST" { 2 } else { 1 });
/// # let _ = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RateLimitLayer<S = Memory> {
    limiter: Limiter<S>,
    settings: Arc<Settings>,
}

type PeerOf = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;
type AttributesOf = dyn Fn(&Parts) -> Result<Attributes<'static>, AttributeError> + Send + Sync;

/// How the layer reads requests and answers them. Clones share the functions.
#[derive(Clone)]
struct Settings {
    peer: Arc<PeerOf>,
    /// Instead of the policy's `identity`.
    attributes: Option<Arc<AttributesOf>>,
    cost: Arc<dyn Fn(&Parts) -> u64 + Send + Sync>,
    failed: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
    max_wait: Span,
    limit_options: bool,
    style: HeaderStyle,
}

/// What a server waits for on behalf of a client, when the rules have no opinion.
const USUAL_WAIT: Span = Span::from_secs(10);

// === impl RateLimitLayer ===

impl<S: Store> RateLimitLayer<S> {
    /// A layer that asks this limiter, with what the policy's `identity` makes of requests.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        let settings = Settings {
            peer: Arc::new(|extensions| extensions.get::<SocketAddr>().map(SocketAddr::ip)),
            attributes: None,
            cost: Arc::new(|_| Cost::ONE.get()),
            failed: Arc::new(is_failure),
            max_wait: USUAL_WAIT,
            limit_options: false,
            style: HeaderStyle::default(),
        };
        Self { limiter, settings: Arc::new(settings) }
    }

    /// Where the address of the peer is found; with axum it is `ConnectInfo<SocketAddr>`. A request without
    /// one counts as `0.0.0.0`: all of them share a bucket, which is noticed, and safe.
    #[must_use]
    pub fn peer(
        self,
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.with(|settings| settings.peer = Arc::new(peer))
    }

    /// What is known of a request, instead of the policy's `identity`; for services that know their users.
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

    /// What a request costs; 1 unless said otherwise.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.cost = Arc::new(cost))
    }

    /// Which answers are failures, for rules that count them; 401, 403, 422 and 5xx unless said otherwise.
    #[must_use]
    pub fn failures(self, failed: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.failed = Arc::new(failed))
    }

    /// How long a request waits for a leaky bucket's turn, when its rule does not say; 10 s.
    #[must_use]
    pub fn max_wait(self, max_wait: Span) -> Self {
        self.with(|settings| settings.max_wait = max_wait)
    }

    /// Limits `OPTIONS` too.
    #[must_use]
    pub fn limit_options(self) -> Self {
        self.with(|settings| settings.limit_options = true)
    }

    /// Which header fields are written.
    #[must_use]
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.with(|settings| settings.style = style)
    }

    /// Copy on write: layers and services that share the settings keep them as they are.
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
    /// What is known of a request.
    fn attributes<'r, S: Store>(
        &self,
        limiter: &Limiter<S>,
        parts: &'r Parts,
    ) -> Result<Attributes<'r>, AttributeError> {
        if let Some(attributes) = &self.attributes {
            let attributes = attributes(parts)?;
            limiter.accepts(&attributes)?;
            return Ok(attributes);
        }
        let values = |name: &str| -> Vec<&'r [u8]> {
            parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
        };
        let peer = (self.peer)(&parts.extensions).unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        limiter.attributes(&Request {
            peer: Some(peer),
            method: parts.method.as_str(),
            target,
            headers: &values,
        })
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("max_wait", &self.max_wait).finish_non_exhaustive()
    }
}
