//! tidegate's tower layer against `tower_governor`'s layer, on the same requests and in one run.
//!
//! Two comparisons. *Like for like*: both layers apply one limit to each client address and write their
//! header fields. *Full check*: tidegate's layer also finds the rules of the request among ten (or a
//! thousand), takes two limits together or not at all, and writes the `RateLimit` fields of both, while the
//! peer still applies one limit. In both, tidegate identifies states by a keyed hash. Rounds alternate and
//! medians count, because the speed of a shared machine varies.

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

/// The command-line options of `lab policy`.
#[derive(Args)]
pub(crate) struct PolicyOptions {
    /// Print one line of JSON per case
    #[arg(long)]
    json: bool,
    /// Write the section of BENCHMARKS.md
    #[arg(long)]
    write: bool,
    /// Run only the cases whose name contains this text
    #[arg(long, default_value = "")]
    only: String,
}

/// Number of rounds, of which the median counts.
const ROUNDS: usize = 15;
/// Requests per thread and round.
const REQUESTS: u32 = 50_000;
/// Number of different client addresses.
const CLIENTS: u32 = 10_000;

/// Serves one request of a client, and returns the status.
pub(crate) type Serve = Box<dyn FnMut(u32) -> u16 + Send>;

/// One comparison of two layers.
struct LayerCase {
    name: String,
    threads: usize,
    ours: fn() -> Result<ServeFactory, String>,
    peer: fn() -> Result<ServeFactory, String>,
    peer_name: &'static str,
}

/// Makes one service per thread; all services of a layer share its limits.
pub(crate) type ServeFactory = Box<dyn Fn() -> Serve>;

pub(crate) fn run(options: &PolicyOptions) -> Result<(), String> {
    let mut rows = Vec::new();
    let cases = [1, 2].into_iter().flat_map(cases);
    for case in cases.filter(|case| case.name.contains(&options.only)) {
        let (ours, peer) = measured(&case)?;
        let LayerCase { name, peer_name, .. } = &case;
        let row = Comparison { bench: "policy", case: name, ours, peer, peer_name, unit: "1/s" };
        rows.push(row.print(options.json));
    }
    if options.write { write_section(TITLE, TEXT, &rows) } else { Ok(()) }
}

/// A limit that no request of this experiment exceeds, as a policy writes it.
pub(crate) const LARGE: &str = "{ rate: 10000/h, burst: 1000000 }";

fn cases(threads: usize) -> [LayerCase; 5] {
    let case = |name: &str, ours, peer, peer_name| {
        let name = format!("{name}-{threads}t");
        LayerCase { name, threads, ours, peer, peer_name }
    };
    let governor_allowed = || governor(1_000_000);
    let governor_refused = || governor(1);
    [
        case("layer-one-limit-allowed", || one_limit(LARGE), governor_allowed, "tower_governor"),
        case("layer-one-limit-refused", || one_limit("1/h"), governor_refused, "tower_governor"),
        case("layer-allowed", || many_rules(10, LARGE), governor_allowed, "tower_governor"),
        case("layer-refused", || many_rules(10, "1/h"), governor_refused, "tower_governor"),
        case("rules-1000", || many_rules(1_000, LARGE), || many_rules(10, LARGE), "10 rules"),
    ]
}

const TITLE: &str = "A full check behind tower";
const TEXT: &str = "\
Requests per second through tidegate's tower layer, without a network. The same requests go through both layers.

- `layer-one-limit-allowed` and `layer-one-limit-refused`: like for like. tidegate has one rule with one limit per client
  address, as the peer `tower_governor` has, and both write their header fields. Every request passes, or nearly every
  request is refused.
- `layer-allowed` and `layer-refused`: a full check. tidegate finds the rules of the request among ten, takes two limits
  together or not at all, and writes the `RateLimit` fields of both. The peer still takes one limit and has no rules.
- `rules-1000`: tidegate's full check with a thousand rules, against tidegate with ten.";

/// The medians of alternating rounds, in requests per second: tidegate's and the peer's.
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
                    // Threads begin at different clients, and each of them goes through all clients.
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

// === the two layers ===

/// tidegate's layer with many rules, of which one applies. That rule has two limits.
pub(crate) fn many_rules(rules: usize, rate: &str) -> Result<ServeFactory, String> {
    let others: String = (1..rules)
        .map(|n| format!("  - {{ name: r{n}, match: {{ method: POST, path: /service-{n}/** }}, key: [ip], limits: [{rate}] }}\n"))
        .collect();
    let policy = format!(
        "version: 1\nrules:\n{others}  - {{ name: api, match: {{ path: /api/** }}, key: [ip], limits: [{rate}, {{ rate: 1000000/min, algorithm: fixed_window }}] }}\n"
    );
    ours(policy)
}

/// tidegate's layer with one rule for all requests, which has one limit.
pub(crate) fn one_limit(rate: &str) -> Result<ServeFactory, String> {
    ours(format!("version: 1\nrules:\n  - {{ name: per-client, key: [ip], limits: [{rate}] }}\n"))
}

fn ours(policy: String) -> Result<ServeFactory, String> {
    let policy = Policy::parse(policy).map_err(|error| error.to_string())?;
    let limiter = Limiter::in_memory(policy).map_err(|error| error.to_string())?;
    let layer = RateLimitLayer::new(limiter);
    Ok(Box::new(move || server(layer.layer(service_fn(answer)))))
}

/// The peer's layer: one limit per client address, with its header fields.
pub(crate) fn governor(burst: u32) -> Result<ServeFactory, String> {
    let config = GovernorConfigBuilder::default()
        .key_extractor(PeerIpKeyExtractor)
        .per_nanosecond(if burst == 1 { 3_600_000_000_000 } else { 360_000_000 })
        .burst_size(burst)
        .use_headers()
        .finish()
        .ok_or("tower_governor rejected its configuration")?;
    let layer = GovernorLayer::new(config);
    Ok(Box::new(move || server(layer.layer(service_fn(answer)))))
}

/// The service behind the layer: it answers every request with an empty 200.
async fn answer(
    _request: Request<axum::body::Body>,
) -> Result<Response<axum::body::Body>, Infallible> {
    Ok(Response::new(axum::body::Body::empty()))
}

/// Sends a request through a service on this thread. Nothing in it waits, so one poll completes it.
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
