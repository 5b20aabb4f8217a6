//! Tower: limit the requests to a service on axum, hyper or tonic. (Feature `tower`.)
//!
//! ```toml
//! [dependencies]
//! tidegate = { path = "../tidegate/crates/limiter", features = ["tower"] } # a clone of the repository
//! ```
//!
//! The layer derives the attributes of a request, asks the limiter, and answers denied requests itself:
//!
//! ```
//! use axum::body::Body;
//! use axum::extract::ConnectInfo;
//! use axum::http::{Request, Response, StatusCode, header};
//! use axum::{Router, routing::get};
//! use std::net::SocketAddr;
//! use tidegate::tower::RateLimitLayer;
//! use tidegate::{Limiter, Policy};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::parse("
//! version: 1
//! rules:
//!   - { name: per-client, key: [ip], limits: [5/h] }
//! ")?;
//! let layer = RateLimitLayer::new(Limiter::in_memory(policy)?)
//!     // Where the server keeps the address of the client.
//!     .peer(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip()))
//!     // Health checks are not limited.
//!     .skip(|request| request.uri.path() == "/healthz")
//!     // An export takes as much of the limit as three other requests.
//!     .cost(|request| if request.uri.path() == "/export" { 3 } else { 1 })
//!     // Denials look like the other errors of this API.
//!     .refusal(|verdict, request| {
//!         let rule = verdict.refusing().next().map_or("", |limit| limit.rule);
//!         let text = format!(r#"{{"error":"limited","rule":"{rule}","path":"{}"}}"#, request.uri.path());
//!         let mut response = Response::new(text);
//!         *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
//!         let json = header::HeaderValue::from_static("application/json");
//!         response.headers_mut().insert(header::CONTENT_TYPE, json);
//!         response
//!     });
//!
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .route("/export", get(|| async { "all of it" }))
//!     .route("/healthz", get(|| async { "well" }))
//!     .layer(layer);
//! // A program would now call:
//! // axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!
//! # let client: SocketAddr = "203.0.113.7:4711".parse()?;
//! # let ask = async |path: &str| {
//! #     let request = Request::builder().uri(path).extension(ConnectInfo(client));
//! #     app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
//! # };
//! for (path, status) in [("/export", 200), ("/", 200), ("/export", 429), ("/", 200), ("/", 429), ("/healthz", 200)] {
//!     assert_eq!(ask(path).await.status(), status, "{path}");
//! }
//! let denied = ask("/").await;
//! assert_eq!(denied.headers()[header::CONTENT_TYPE], "application/json");
//! assert!(denied.headers().contains_key(header::RETRY_AFTER)); // the layer adds it
//! # Ok(())
//! # }
//! ```
//!
//! # Who is the client?
//!
//! - **Address.** `.peer(…)` finds it. Without it all requests share one counter. Behind a proxy, name the proxy in the policy
//!   (`identity: { trusted: [10.0.0.0/8] }`); then the address in `X-Forwarded-For` counts.
//! - **Header fields** count only if they come from a trusted proxy, because a client could write anything into them. A policy
//!   can accept a credential such as an API key from all clients: `api_key: { from: header:x-api-key, peers: any }`.
//! - **Users that your service authenticates.** Put the layer inside of your authentication, and add the user from what that left
//!   in the extensions of the request: [`RateLimitLayer::attributes`].
//!
//! # Users and plans
//!
//! The function of `.attributes(…)` adds to what `identity` of the policy finds. Attributes that it does not set stay, so rules
//! by path, method and address go on to apply. `tier` is the plan of the customer, here from the record of the user:
//!
//! ```
//! use axum::body::Body;
//! use axum::extract::ConnectInfo;
//! use axum::http::Request;
//! use axum::{Router, routing::get};
//! use std::net::SocketAddr;
//! use tidegate::tower::RateLimitLayer;
//! use tidegate::{Allowance, Attributes, Limiter, Policy};
//! use tower::ServiceExt;
//!
//! /// What the authentication of this service leaves in the extensions of a request.
//! #[derive(Clone)]
//! struct User {
//!     name: String,
//!     plan: &'static str,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::parse("
//! version: 1
//! tiers: { default: free, known: [free, pro] }
//! rules:
//!   - { name: api, key: [user], limits: [2/h], tiers: { pro: { scale: 10 } } }
//!   - { name: search, match: { path: /search }, key: [user|ip], limits: [1/h] }
//! ")?;
//! let limiter = Limiter::in_memory(policy)?;
//! let layer = RateLimitLayer::new(limiter.clone())
//!     .peer(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip()))
//!     .attributes(|request| {
//!         let Some(user) = request.extensions.get::<User>() else { return Ok(Attributes::new()) };
//!         Attributes::new().with("user", user.name.clone())?.with("tier", user.plan)
//!     });
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .route("/search", get(|| async { "found" }))
//!     .layer(layer);
//!
//! # let client: SocketAddr = "203.0.113.7:4711".parse()?;
//! # let ask = async |name: &str, plan, path: &str| {
//! #     let request = Request::builder().uri(path).extension(ConnectInfo(client));
//! #     let request = request.extension(User { name: name.to_owned(), plan });
//! #     app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
//! # };
//! for (name, plan, path, status) in [
//!     ("alice", "free", "/search", 200),
//!     ("alice", "free", "/search", 429), // the rule by path applies
//!     ("alice", "free", "/", 200),
//!     ("alice", "free", "/", 429),
//!     ("bob", "pro", "/", 200),
//!     ("bob", "pro", "/", 200),
//!     ("bob", "pro", "/", 200), // 20 per hour
//! ] {
//!     assert_eq!(ask(name, plan, path).await, status, "{name} {path}");
//! }
//!
//! // One customer gets other limits, until the override is removed or the process ends.
//! limiter.set_override("api", &[("user", "alice")], Allowance::parse("[3/h]")?)?;
//! assert_eq!(ask("alice", "free", "/").await, 200);
//! limiter.remove_override("api", &[("user", "alice")])?;
//! # Ok(())
//! # }
//! ```
//!
//! If your program knows all attributes itself, the function sets them all, and replaces what the layer has found:
//!
//! ```
//! use http::request::Parts;
//! use std::net::IpAddr;
//! use tidegate::{AttributeError, Attributes};
//!
//! # #[derive(Clone)]
//! # struct User { name: String, plan: &'static str }
//! fn attributes(request: &Parts, user: &User, client: IpAddr) -> Result<Attributes<'static>, AttributeError> {
//!     Ok(Attributes::new()
//!         .with("user", user.name.clone())?
//!         .with("tier", user.plan)?
//!         .with("method", request.method.to_string())?
//!         .with("path", request.uri.path().to_owned())?
//!         .from_address(client))
//! }
//! # let (request, ()) = http::Request::put("/urls//42").body(()).unwrap().into_parts();
//! # let user = User { name: "alice".to_owned(), plan: "pro" };
//! # let found = attributes(&request, &user, [203, 0, 113, 7].into())?;
//! # assert_eq!(found.get("path").as_deref(), Some("/urls/42"));
//! # assert_eq!(found.iter().count(), 5);
//! # Ok::<(), AttributeError>(())
//! ```
//!
//! # Order of layers
//!
//! ```text
//!   request ──► CORS ──► authentication ──► RateLimitLayer ──► handlers
//! ```
//!
//! Inside of CORS, so that browsers can read denials. Inside of authentication, if users are limited. Guessing passwords is then
//! not limited by this layer; a second one outside of the authentication, with a rule by `ip`, does that.
//!
//! # In a handler
//!
//! The [`Verdict`](crate::Verdict) of an admitted request is among its extensions, as `Arc<Verdict>`.
//!
//! # gRPC
//!
//! A denied gRPC call gets the status `RESOURCE_EXHAUSTED` and the time to wait; `examples/tonic.rs` shows it.
//!
//! [`RateLimitLayer::attributes`]: crate::tower::RateLimitLayer::attributes
