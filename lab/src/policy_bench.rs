//! A full check behind tower against `tower_governor`'s layer, on the same request, in one run.
//!
//! Ours finds the rules of a request among ten (or a thousand), takes two limits together or not at all, names
//! states by a keyed hash, and writes the `RateLimit` fields of both. The peer takes one limit of one key. Rounds
//! alternate and medians count, because these machines wander.

#![expect(clippy::float_arithmetic, reason = "medians and ratios, for people")]

use crate::rounds::{Comparison, median, write_section};
use clap::Args;
use http::{Request, Response};
use std::convert::Infallible;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tidegate::tower::RateLimitLayer;
use tidegate::{Limiter, Policy};
use tower::{Layer, Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

/// What the experiment takes from the command line.
#[derive(Args)]
pub(crate) struct PolicyOptions {
    /// Prints a line of JSON for each case.
    #[arg(long)]
    json: bool,
    /// Writes its section of BENCHMARKS.md.
    #[arg(long)]
    write: bool,
    /// Only cases whose name holds this.
    #[arg(long, default_value = "")]
    only: String,
}

/// Rounds whose median counts.
const ROUNDS: usize = 15;
/// Requests of one round, on each thread.
const REQUESTS: u32 = 50_000;
/// Clients that take turns.
const CLIENTS: u32 = 10_000;

/// Something that serves a request from a client.
type Serve = Box<dyn FnMut(u32) -> u16 + Send>;

/// A case: what is measured, and what it is measured against.
struct LayerCase {
    name: String,
    threads: usize,
    ours: fn() -> Result<ServeFactory, String>,
    peer: fn() -> Result<ServeFactory, String>,
    peer_name: &'static str,
}

/// Makes one server for each thread; all of them share the limits.
type ServeFactory = Box<dyn Fn() -> Serve>;

pub(crate) fn run(options: &PolicyOptions) -> Result<(), String> {
    let mut cases = Vec::new();
    for threads in [1, 2] {
        let case = |name: &str, ours, peer, peer_name| LayerCase {
            name: format!("{name}-{threads}t"),
            threads,
            ours,
            peer,
            peer_name,
        };
        cases.push(case(
            "layer-allowed",
            || ours(10, "{ rate: 10000/h, burst: 1000000 }"),
            || governor(1_000_000),
            "tower_governor",
        ));
        cases.push(case("layer-refused", || ours(10, "1/h"), || governor(1), "tower_governor"));
        cases.push(case(
            "rules-1000",
            || ours(1_000, "{ rate: 10000/h, burst: 1000000 }"),
            || ours(10, "{ rate: 10000/h, burst: 1000000 }"),
            "10 rules",
        ));
    }
    let mut rows = Vec::new();
    for case in cases.iter().filter(|case| case.name.contains(&options.only)) {
        let (ours, peer) = measured(case)?;
        let LayerCase { name, peer_name, .. } = case;
        let line = Comparison { bench: "policy", case: name, ours, peer, peer_name, unit: "1/s" };
        rows.push(line.print(options.json));
    }
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

const TITLE: &str = "A full check behind tower";
const TEXT: &str = "\
Requests per second through tidegate's tower layer, without a network. The layer finds the rules of the request among
ten (or a thousand), takes two limits together or not at all, and writes the `RateLimit` fields of both. The peer
`tower_governor` takes one limit and has no rules. The same requests go through both.

- `layer-allowed`: every request passes.
- `layer-refused`: nearly every request is refused.
- `rules-1000`: tidegate with a thousand rules, against tidegate with ten.";

/// Medians of rounds that alternate: requests a second, ours and the peer's.
fn measured(case: &LayerCase) -> Result<(f64, f64), String> {
    let (ours, peer) = ((case.ours)()?, (case.peer)()?);
    let mut rates: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (maker, rates) in [&ours, &peer].into_iter().zip(&mut rates) {
            rates.push(round(maker, case.threads));
        }
    }
    let [ours, peer] = rates.map(median);
    Ok((ours, peer))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn round(maker: &ServeFactory, threads: usize) -> f64 {
    let servers: Vec<Serve> = (0..threads).map(|_| maker()).collect();
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for (thread, mut serve) in (0u32..).zip(servers) {
            scope.spawn(move || {
                for n in 0..REQUESTS {
                    // Threads begin at different clients, and meet all of them.
                    let client =
                        n.wrapping_mul(7).wrapping_add(thread.wrapping_mul(5_000)) % CLIENTS;
                    black_box(serve(client));
                }
            });
        }
    });
    let requests = f64::from(REQUESTS) * f64::from(u32::try_from(threads).unwrap_or(1));
    requests / start.elapsed().as_secs_f64()
}

// === the two ===

/// Our layer: so many rules, of which one with two limits applies.
fn ours(rules: usize, rate: &str) -> Result<ServeFactory, String> {
    let others: String = (1..rules)
        .map(|n| format!("  - {{ name: r{n}, match: {{ method: POST, path: /service-{n}/** }}, key: [ip], limits: [{rate}] }}\n"))
        .collect();
    let policy = format!(
        "version: 1\nrules:\n{others}  - {{ name: api, match: {{ path: /api/** }}, key: [ip], limits: [{rate}, {{ rate: 1000000/min, algorithm: fixed_window }}] }}\n"
    );
    let policy = Policy::parse(policy).map_err(|error| error.to_string())?;
    let limiter = Limiter::in_memory(policy).map_err(|error| error.to_string())?;
    let layer = RateLimitLayer::new(limiter);
    Ok(Box::new(move || server(layer.layer(service_fn(answer)))))
}

/// The peer's layer: one limit for each address, headers on.
fn governor(burst: u32) -> Result<ServeFactory, String> {
    let config = GovernorConfigBuilder::default()
        .key_extractor(PeerIpKeyExtractor)
        .per_nanosecond(if burst == 1 { 3_600_000_000_000 } else { 360_000_000 })
        .burst_size(burst)
        .use_headers()
        .finish()
        .ok_or("tower_governor refused its settings")?;
    let layer = GovernorLayer::new(config);
    Ok(Box::new(move || server(layer.layer(service_fn(answer)))))
}

/// The service behind: it says yes.
async fn answer(
    _request: Request<axum::body::Body>,
) -> Result<Response<axum::body::Body>, Infallible> {
    Ok(Response::new(axum::body::Body::empty()))
}

/// A request through a service, on this thread; nothing in it waits.
fn server<S, B>(mut service: S) -> Serve
where
    S: Service<Request<axum::body::Body>, Response = Response<B>, Error = Infallible>
        + Send
        + 'static,
    S::Future: Send,
{
    Box::new(move |client| {
        let [a, b, c, d] = (0x0a00_0000 | client).to_be_bytes();
        let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), 4711);
        let mut request = Request::new(axum::body::Body::empty());
        *request.uri_mut() = http::Uri::from_static("/api/urls/42?page=2");
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(axum::extract::ConnectInfo(peer));
        let mut context = Context::from_waker(Waker::noop());
        let _ = service.poll_ready(&mut context);
        let mut future = pin!(service.call(request));
        match future.as_mut().poll(&mut context) {
            Poll::Ready(Ok(response)) => response.status().as_u16(),
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => 0,
        }
    })
}
