//! Pacing: call other services without exceeding their limits. (Feature `http`, which `tower` implies. The example also uses
//! `testing`, so that it takes no time.)
//!
//! A client that is denied has wasted a call. Four things prevent that, in this order:
//!
//! ```text
//!   cache: is the answer known? ──► pacer: did the server say "not yet"? ──► own rate ──► call ──► backoff, then once more
//! ```
//!
//! 1. **Cache.** The cheapest call is the one that is not made. Keep an answer for as long as its server allows
//!    (`Cache-Control: max-age`).
//! 2. **What the server said.** [`Pacer`] remembers `Retry-After` and the `RateLimit` fields of each server, in all forms that are
//!    in use, and waits that long.
//! 3. **Your own rate.** [`Limiter::acquire`] spaces the calls by a rule of yours, a little below what the service allows. It
//!    works before the first denial, and over several nodes, if their limiters share a store.
//! 4. **Backoff.** After a failure without a time to wait, wait for a random time of up to 100 ms, then up to 200 ms, 400 ms, and
//!    so on (exponential backoff with full jitter). Random, so that clients that failed together do not return together. Retries
//!    have a limit of their own, a *retry budget*, so that an outage is not answered with twice the load.
//!
#![cfg_attr(feature = "testing", doc = "```")]
#![cfg_attr(not(feature = "testing"), doc = "```ignore")]
//! use http::{Response, StatusCode, header};
//! use std::collections::HashMap;
//! use std::error::Error;
//! use std::hash::{BuildHasher, RandomState};
//! use std::time::Duration;
//! use tidegate::http::Pacer;
//! use tidegate::testing::tokio_clock;
//! use tidegate::{Attributes, Check, Clock, Limiter, Policy, Span, Timestamp};
//!
//! struct Client {
//!     /// The body of each path, and until when it may be used.
//!     cache: HashMap<String, (String, Timestamp)>,
//!     pacer: Pacer,
//!     limiter: Limiter,
//!     clock: Clock,
//!     server: Server,
//! }
//!
//! const POLICY: &str = "
//! version: 1
//! rules:
//!   - { name: calls, match: { path: /call }, key: [], limits: [{ rate: 10/s, burst: 1 }] }
//!   - { name: retries, match: { path: /retry }, key: [], limits: [20/min] }
//! ";
//!
//! impl Client {
//!     async fn get(&mut self, path: &str) -> Result<String, Box<dyn Error>> {
//!         if let Some((body, until)) = self.cache.get(path)
//!             && self.clock.now().steady < *until
//!         {
//!             return Ok(body.clone());
//!         }
//!         let call = Attributes::new().with("path", "/call")?;
//!         let retry = Attributes::new().with("path", "/retry")?;
//!         for attempt in 0..5 {
//!             if attempt > 0 && !self.limiter.check_now(&Check::new(&retry))?.allowed() {
//!                 return Err("too many calls fail at the moment".into());
//!             }
//!             self.pacer.ready("api.example.com").await;
//!             let in_time = Check::new(&call).waiting(Span::from_secs(30));
//!             if !self.limiter.acquire(&in_time).await?.allowed() {
//!                 return Err("too many calls are waiting".into());
//!             }
//!             let response = self.server.get(path);
//!             let heard = self.pacer.heard("api.example.com", response.status(), response.headers());
//!             if response.status().is_success() {
//!                 self.keep(path, &response);
//!                 return Ok(response.into_body());
//!             }
//!             if response.status().is_client_error() && !heard.refused {
//!                 return Err(response.status().to_string().into()); // the next answer would be the same
//!             }
//!             if !heard.refused {
//!                 tokio::time::sleep(backoff(attempt)).await; // otherwise the pacer waits
//!             }
//!         }
//!         Err("the server did not serve any of five calls".into())
//!     }
//!
//!     fn keep(&mut self, path: &str, response: &Response<String>) {
//!         let control = response.headers().get(header::CACHE_CONTROL).and_then(|value| value.to_str().ok());
//!         let seconds = control.and_then(|text| text.strip_prefix("max-age=")?.parse().ok());
//!         let until = seconds.and_then(|seconds| self.clock.now().steady.after(Span::from_secs(seconds)));
//!         if let Some(until) = until {
//!             self.cache.insert(path.to_owned(), (response.body().clone(), until));
//!         }
//!     }
//! }
//!
//! /// A random time of at most 100 ms, 200 ms, 400 ms and so on, up to 10 s.
//! fn backoff(attempt: u32) -> Duration {
//!     let most = 100_u64.saturating_mul(1 << attempt.min(10)).min(10_000);
//!     Duration::from_millis(RandomState::new().hash_one(attempt) % (most + 1))
//! }
//! #
//! # /// A server that fails once, denies once and then serves.
//! # struct Server { calls: u32 }
//! #
//! # impl Server {
//! #     fn get(&mut self, path: &str) -> Response<String> {
//! #         self.calls += 1;
//! #         let response = Response::builder();
//! #         match self.calls {
//! #             1 => response.status(StatusCode::BAD_GATEWAY),
//! #             2 => response.status(StatusCode::TOO_MANY_REQUESTS).header(header::RETRY_AFTER, 7),
//! #             _ => response.header(header::CACHE_CONTROL, "max-age=60"),
//! #         }
//! #         .body(format!("{path}, call {}", self.calls))
//! #         .unwrap()
//! #     }
//! # }
//!
//! #[tokio::main(flavor = "current_thread", start_paused = true)] // paused, so that the example takes no time
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let clock = tokio_clock(Timestamp::EPOCH); // in a program: Clock::system()
//!     let mut client = Client {
//!         cache: HashMap::new(),
//!         pacer: Pacer::new(clock.clone()),
//!         limiter: Limiter::in_memory_with(Policy::parse(POLICY)?, clock.clone())?,
//!         clock: clock.clone(),
//!         server: Server { calls: 0 },
//!     };
//!     // The first call fails (502), the second is denied (429, Retry-After: 7), the third is served.
//!     assert_eq!(client.get("/weather").await?, "/weather, call 3");
//!     let passed = clock.now().steady.since(Timestamp::EPOCH);
//!     assert!(Span::from_secs(7) <= passed && passed < Span::from_secs(8));
//!
//!     // For 60 s the answer comes from the cache.
//!     assert_eq!(client.get("/weather").await?, "/weather, call 3");
//!     tokio::time::advance(Duration::from_secs(60)).await;
//!     assert_eq!(client.get("/weather").await?, "/weather, call 4");
//!     Ok(())
//! }
//! ```
//!
//! # More about each step
//!
//! - **Identical calls at the same time** need only one answer. Let the first one call, and the others wait for it ("single
//!   flight"); cache crates such as `moka` offer that.
//! - **An answer that is too old** may still be valid. Ask with `If-None-Match`: many services do not count a 304.
//! - **Calls that change something** must not be repeated after a failure unless the service recognizes the repetition, for example
//!   by an idempotency key.
//! - **Without async**, use [`Limiter::acquire_blocking`] and [`Pacer::wait`].
//! - **A quota for the whole company** needs a shared store: see the guide for Redis.
//!
//! [`Limiter::acquire`]: crate::Limiter::acquire
//! [`Limiter::acquire_blocking`]: crate::Limiter::acquire_blocking
//! [`Pacer`]: crate::http::Pacer
//! [`Pacer::wait`]: crate::http::Pacer::wait
